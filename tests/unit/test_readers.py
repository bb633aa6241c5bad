"""Who is a reader of which memories: worked out once for each agent and user, and the same as if it were asked each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gate.identify import Principal
from gate.reading import retrieve
from gate.reading.ask import Ask
from gate.reading.retrieve import readers_ok
from gate.rights import is_reader

from .story import Story

ENTRY = st.sampled_from(["agent:ann", "agent:ben", "role:agent", "role:user_session", "user:usr_aaaaaaaaaaaaaaaa"])
READERS = st.lists(st.lists(ENTRY, min_size=1, max_size=3), min_size=1, max_size=3)


def asked(story: Story, p: Principal) -> list[bool]:
    found: list[bool] = readers_ok(story.t, Ask(p, "query", story.context(p), "", "", story.ms)).tolist()
    return found


@given(st.lists(st.tuples(READERS, st.booleans()), max_size=12))
def test_what_is_kept_of_readers_is_what_they_say(told: list[tuple[list[list[str]], bool]]) -> None:
    story = Story()
    people = [story.agent("ann"), story.agent("ben"), story.agent("sam", "user_session", tags=("user:usr_aaaaaaaaaaaaaaaa",))]
    for readers, look in told:
        story.memory(people[0], readers=readers)
        for p in people if look else ():
            assert asked(story, p) == [is_reader(p)(clauses) for clauses in story.t.readers.values]


def test_it_is_kept_of_the_latest_that_asked() -> None:
    story = Story()
    people = [story.agent(f"agent{n}") for n in range(4)]
    story.memory(people[0], readers=[["agent:agent1"]])
    most, retrieve.MASKS_KEPT = retrieve.MASKS_KEPT, 2  # type: ignore[misc]
    try:
        answers = [asked(story, people[n]) for n in (0, 1, 0, 2)]
    finally:
        retrieve.MASKS_KEPT = most  # type: ignore[misc]
    assert answers == [[True, False], [True, True], [True, False], [True, False]]
    assert [number for number, _ in story.t.reader_masks] == [people[n].agent.number for n in (0, 2)]
