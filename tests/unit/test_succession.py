"""Which successor is in force: the answer for one memory and for many are the same, and time alone changes it when foretold."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gate.state.columns import NEVER_MS, Columns
from gate.state.succession import LINKS_MAX, next_change, successor, superseded

NOW = 1_000
TIMES = st.sampled_from([0, NOW - 1, NOW, NOW + 1, NOW + 5])
LINK = st.tuples(st.booleans(), TIMES, st.one_of(TIMES, st.just(NEVER_MS)), st.one_of(TIMES, st.just(NEVER_MS)))


def line(links: list[tuple[bool, int, int, int]]) -> Columns:
    """Memory 1 and its successors one after another: (held, valid from, valid until, expires)."""
    c = Columns()
    for s, (held, from_, until, expires) in enumerate(links, 2):
        c.superseded[s - 1] = s
        c.held[s], c.valid_from[s], c.valid_until[s], c.expires[s] = held, from_, until, expires
    return c


def many(c: Columns, seqs: list[int], now: int) -> list[bool]:
    found: list[bool] = superseded(c, np.array(seqs, np.int32), np.full(len(seqs), now, np.int64)).tolist()
    return found


@given(st.lists(LINK, max_size=8))
def test_one_memory_and_many_are_answered_alike(links: list[tuple[bool, int, int, int]]) -> None:
    c, seqs = line(links), [*range(1, len(links) + 2)]
    assert many(c, seqs, NOW) == [bool(successor(c, s, NOW)) for s in seqs]


@given(st.lists(LINK, max_size=4))
def test_nothing_changes_before_the_next_change(links: list[tuple[bool, int, int, int]]) -> None:
    c, seqs = line(links), [*range(1, len(links) + 2)]
    until = next_change(c, np.array(seqs, np.int32), NOW)
    for now in range(NOW, min(until, NOW + 7)):
        assert many(c, seqs, now) == many(c, seqs, NOW)


def test_more_lapsed_successors_than_are_looked_through_leave_it_superseded() -> None:
    for n, gone in ((LINKS_MAX, False), (LINKS_MAX + 1, True)):
        c = line([(False, 0, NEVER_MS, NOW)] * n)
        assert (many(c, [1], NOW), bool(successor(c, 1, NOW))) == ([gone], gone)
