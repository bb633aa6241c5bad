"""Fusion of the two lanes, and what is usable now: the fast forms against the plain ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gate.reading.retrieve import FUSION_K0, fuse

Lane = list[tuple[int, float]]
lanes = st.lists(st.tuples(st.integers(0, 30), st.floats(0.0625, 1, width=32)), max_size=20, unique_by=lambda x: x[0])


def plain(lexical: Lane, near: Lane, limit: int) -> list[tuple[int, float, float, float, float]]:
    """(row, lexical, vector, overlap, cosine) by fused rank, of equal ones the newest first."""
    by_lexical = {row: (1 / (FUSION_K0 + n), score) for n, (row, score) in enumerate(lexical)}
    by_vector = {row: (1 / (FUSION_K0 + n), score) for n, (row, score) in enumerate(near)}
    rows = by_lexical.keys() | by_vector.keys()
    found = [(r, *by_lexical.get(r, (0.0, 0.0)), *by_vector.get(r, (0.0, 0.0))) for r in rows]
    best = sorted(found, key=lambda x: (-np.float32(np.float32(x[1]) + np.float32(x[3])), -x[0]))[:limit]
    return [(r, lex, vec, overlap, cosine) for r, lex, overlap, vec, cosine in best]


def as_arrays(lane: Lane) -> tuple[np.ndarray, np.ndarray]:
    return np.array([r for r, _ in lane], np.int32), np.array([s for _, s in lane], np.float32)


@given(st.lists(st.tuples(lanes, lanes, st.integers(1, 25)), min_size=1, max_size=4))
def test_fused_candidates_are_those_of_each_question_alone(asks: list[tuple[Lane, Lane, int]]) -> None:
    seqs = np.arange(31, dtype=np.int32) * 2 + 5
    found = fuse(
        seqs,
        [as_arrays(lexical) for lexical, _, _ in asks],
        [as_arrays(near) for _, near, _ in asks],
        np.array([limit for _, _, limit in asks], np.int32),
    )
    for i, (lexical, near, limit) in enumerate(asks):
        mine = found.owner == i
        expected = plain(lexical, near, limit)
        assert found.rows[mine].tolist() == [x[0] for x in expected]
        for column, at in ((found.lexical, 1), (found.vector, 2), (found.overlap, 3), (found.cosine, 4)):
            assert np.allclose(column[mine], [x[at] for x in expected], atol=1e-6)
    assert (found.seqs == seqs[found.rows]).all()
