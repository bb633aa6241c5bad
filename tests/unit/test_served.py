"""To whom memories were served: the same as a set of numbers says, and as large as what was served, not as all agents."""

from __future__ import annotations

import sys
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from gate.state.served import SPAN, ServedTo

MEMORIES: Final = 8
LATE: Final = 2_000_000  # a gateway's sessions of a day or two


@given(st.lists(st.tuples(st.sampled_from([0, 1, SPAN - 1, SPAN, SPAN + 1, LATE]), st.sets(st.integers(0, MEMORIES - 1)))))
def test_it_says_what_sets_of_numbers_would(served: list[tuple[int, set[int]]]) -> None:
    kept, oracle = ServedTo(), [set[int]() for _ in range(MEMORIES)]
    for _ in range(MEMORIES - 1):
        kept.extend()
    for agent, seqs in served:
        kept.note(agent, seqs)
        for s in seqs:
            oracle[s].add(agent)
    for s in range(MEMORIES):
        assert kept.agents([s]) == sorted(oracle[s])
        assert kept.count(s) == len(oracle[s])
        assert all(kept.has(agent, s) == (agent in oracle[s]) for agent in (0, SPAN, LATE))
    assert kept.agents(range(MEMORIES)) == sorted(set().union(*oracle))


def test_a_memory_that_a_late_agent_was_served_takes_no_more_than_one_of_an_early() -> None:
    kept = ServedTo()
    kept.extend()
    kept.note(0, [0])
    kept.note(LATE, [1])
    sizes = [sum(map(sys.getsizeof, [*kept._first, *kept._others.get(s, {}).values()])) for s in (0, 1)]
    assert max(sizes) < SPAN
