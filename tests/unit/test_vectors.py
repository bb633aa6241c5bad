"""Vectors of a project: the two kinds of index keep one contract, and the big one follows the exact one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gate.model.unit import unit
from gate.projections.vectors import SCAN_ROWS_MAX, ExactVectors, HnswVectors, InvalidVectors, ProjectVectors, VectorIndex

DIM = 32
Vectors = npt.NDArray[np.float32]


def unit_vectors(n: int, seed: int = 0, dim: int = DIM) -> Vectors:
    """Clustered, as texts are."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(1, n // 50), dim))
    raw = centres[random.integers(0, len(centres), n)] + 0.7 * random.standard_normal((n, dim))
    scaled: Vectors = (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def rows_of(*rows: int) -> npt.NDArray[np.int32]:
    return np.array(rows, np.int32)


def empty(kind: str) -> VectorIndex:
    if kind == "exact":
        return ExactVectors(DIM)
    return HnswVectors(DIM) if kind == "hnsw" else ProjectVectors(DIM, hnsw_from=50, exact_below=20)


def caught_up(index: VectorIndex) -> VectorIndex:
    if isinstance(index, ProjectVectors):
        while index.catch_up():
            pass
    return index


@pytest.fixture(params=["exact", "hnsw", "project"])
def index(request: pytest.FixtureRequest) -> VectorIndex:
    return empty(request.param)


def test_the_nearest_come_first_with_their_cosine(index: VectorIndex) -> None:
    data = unit_vectors(300)
    index.add(data[:100])
    index.add(3.0 * data[100:])  # length doesn't matter
    queries = unit_vectors(3, seed=1)
    for query, (rows, scores) in zip(queries, caught_up(index).search(queries, 10, [None] * 3), strict=True):
        cosines = data @ query
        best = np.argsort(-cosines)[:10]
        assert rows.dtype == np.int32
        assert scores.dtype == np.float32
        assert len(rows) == 10
        assert len(set(rows.tolist()) & set(best.tolist())) >= 9
        assert scores == pytest.approx(cosines[rows], abs=0.01)
        assert (np.diff(scores) <= 0).all()


def test_a_row_that_is_not_allowed_is_never_found(index: VectorIndex) -> None:
    data = unit_vectors(300)
    index.add(data)
    caught_up(index)
    one, none, most = np.zeros(300, np.bool_), np.zeros(300, np.bool_), np.ones(300, np.bool_)
    one[[17]], most[[5]] = True, False
    hits = index.search(data[[5, 5, 5]], 5, [one, none, most])
    assert hits[0][0].tolist() == [17]
    assert hits[1][0].tolist() == []
    assert 5 not in hits[2][0]
    assert len(hits[2][0]) == 5


def test_fewer_results_rather_than_an_exception(index: VectorIndex) -> None:
    assert [len(rows) for rows, _ in index.search(unit_vectors(2), 5, [None, None])] == [0, 0]
    index.add(np.empty((0, DIM), np.float32))
    index.add(unit_vectors(3))
    assert len(index.search(unit_vectors(1), 64, [None])[0][0]) <= 3
    assert len(index.search(unit_vectors(1), 0, [None])[0][0]) == 0
    assert index.search(np.empty((0, DIM), np.float32), 5, []) == []


def test_a_zero_vector_is_evidence_of_nothing_on_either_side(index: VectorIndex) -> None:
    data = unit_vectors(100)
    data[10] = 0.0
    index.add(data)
    zero = np.zeros((1, DIM), np.float32)
    assert len(caught_up(index).search(zero, 5, [None])[0][0]) == 0
    rows, scores = index.search(data[[0]], 100, [None])[0]
    assert 10 not in rows
    assert np.isfinite(scores).all()


def test_a_removed_row_is_never_found_again_and_keeps_its_number(index: VectorIndex) -> None:
    data = unit_vectors(100)
    index.add(data[:90])
    caught_up(index)
    for _ in range(2):
        index.remove(rows_of(3, 89))
    index.add(data[90:])
    assert 3 not in caught_up(index).search(data[[3]], 100, [None])[0][0]
    assert index.search(data[[95]], 1, [None])[0][0].tolist() == [95]


@pytest.mark.parametrize("kind", ["exact", "project"])
def test_vectors_are_given_back_by_their_rows_and_removed_ones_as_zeros(kind: str) -> None:
    index, data = empty(kind), unit_vectors(100)
    assert isinstance(index, ExactVectors | ProjectVectors)
    data[10] = 0.0
    index.add(data)
    caught_up(index)
    index.remove(rows_of(3))
    assert not index.gather(rows_of(3, 10)).any()
    assert index.gather(rows_of(95, 4)) == pytest.approx(data[[95, 4]], abs=0.01)
    assert index.gather(rows_of()).shape == (0, DIM)


def test_of_a_removed_vector_the_approximate_index_keeps_no_number(tmp_path: Path) -> None:
    index, data = HnswVectors(DIM), unit_vectors(150)
    index.add(data)
    one, other = (unit(data[[row]])[0].tobytes() for row in (7, 8))

    def kept() -> bytes:
        index._index.save_index(str(tmp_path / "all"))
        return (tmp_path / "all").read_bytes()

    assert one in kept()
    index.remove(rows_of(7))
    assert one not in kept()
    assert other in kept()
    near = index.search(data[[8]], 3, [None])[0][0].tolist()
    assert near[0] == 8
    assert 7 not in near


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((2, DIM)),
        np.zeros(DIM, np.float32),
        np.zeros((2, DIM + 1), np.float32),
        np.full((1, DIM), np.nan, np.float32),
        np.full((1, DIM), np.inf, np.float32),
    ],
)
def test_what_is_no_vector_is_refused_and_changes_nothing(index: VectorIndex, bad: Vectors) -> None:
    data = unit_vectors(5)
    index.add(data)
    with pytest.raises(InvalidVectors):
        index.add(bad)
    with pytest.raises(InvalidVectors):
        index.search(bad, 3, [None] * len(bad))
    index.add(data)
    assert index.search(data[[4]], 2, [None])[0][0].tolist() == [9, 4]


def test_equal_scores_come_newest_first(index: VectorIndex) -> None:
    index.add(np.repeat(unit_vectors(1), 4, axis=0))
    assert index.search(unit_vectors(1), 4, [None])[0][0].tolist() == [3, 2, 1, 0]


def test_a_project_changes_its_index_by_size_and_back_with_a_gap_between() -> None:
    index = ProjectVectors(DIM, hnsw_from=100, exact_below=60)
    data = unit_vectors(120)
    index.add(data[:99])
    assert (index.approximate, index.backlog) == (False, 0)
    index.add(data[99:])
    assert (index.approximate, index.backlog) == (True, 120)
    assert index.catch_up(50) == 70
    assert index.catch_up(1_000) == 0
    index.remove(np.arange(60, dtype=np.int32))
    assert index.approximate
    index.remove(rows_of(60))
    assert not index.approximate
    assert index.search(data[[61]], 1, [None])[0][0].tolist() == [61]


def test_rows_that_are_not_indexed_yet_are_found() -> None:
    index = ProjectVectors(DIM, hnsw_from=100, exact_below=60)
    data = unit_vectors(200)
    index.add(data[:150])
    index.catch_up(120)
    index.remove(rows_of(130))
    index.add(data[150:])
    assert index.backlog == 80
    mask = np.ones(200, np.bool_)
    mask[199] = False
    for allowed in (None, mask):
        found = [rows[0] for rows, _ in index.search(data[[10, 125, 160]], 3, [allowed] * 3)]
        assert found == [10, 125, 160]
    assert 130 not in index.search(data[[130]], 200, [None])[0][0]
    caught_up(index)
    assert 130 not in index.search(data[[130]], 200, [None])[0][0]


def test_an_owner_that_never_has_time_catches_up_by_searching() -> None:
    index, data = ProjectVectors(8, hnsw_from=100, exact_below=60), unit_vectors(SCAN_ROWS_MAX + 50, dim=8)
    index.add(data)
    assert not index.approximate
    for before in (50, 18):
        assert index.backlog == SCAN_ROWS_MAX + before
        assert index.search(data[[7]], 1, [None])[0][0].tolist() == [7]
    assert index.approximate
    index.search(data[[7]], 1, [None])
    assert index.backlog == SCAN_ROWS_MAX - 14  # what is left is scanned beside the index, and waits for a quiet moment


def test_an_approximate_search_finds_what_an_exact_one_finds() -> None:
    data, queries = unit_vectors(4_000, dim=DIM), unit_vectors(50, seed=2)
    exact, approximate = ExactVectors(DIM), HnswVectors(DIM)
    exact.add(data)
    approximate.add(data)
    few = np.zeros(4_000, np.bool_)
    few[::20] = True
    for mask in (None, few):
        wanted = exact.search(queries, 10, [mask] * 50)
        got = approximate.search(queries, 10, [mask] * 50)
        shared = sum(len(set(a.tolist()) & set(b.tolist())) for (a, _), (b, _) in zip(wanted, got, strict=True))
        assert shared >= 0.95 * 500
