"""How long a memory may live: by kind and scope at write, and after a useful report; and which turns of a line count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.frames import KINDS, SCOPES, Draft
from gate.config import DAY_MS
from gate.ledger import events as E
from gate.ledger.members import pack_members
from gate.state.columns import NEVER_MS
from gate.state.succession import TURNS_KEPT
from gate.state.tenant import Tenant
from gate.writing.decide import decide
from gate.writing.lifetime import EXTEND_MS_MIN, EXTEND_SHARE, TTL_DAYS, end_of, extended, last_end
from gate.writing.supersede import FLAP_WINDOW_MS, FLAPPING, FLAPS_MAX
from gate.writing.validate import check_draft

from .story import ACCOUNT, Story

NOW = 1_700_000_000_000
KIND_NUMBERS = st.integers(0, len(KINDS) - 1)
SCOPE_NUMBERS = st.integers(0, len(SCOPES) - 1)


# --- at write ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "days"), TTL_DAYS.items())
def test_a_draft_gets_its_kind_s_default_less_if_it_asks_and_never_more_than_its_kind_s_most(
    kind: str, days: tuple[int | None, int | None]
) -> None:
    (default, most), number = days, KINDS.index(kind)
    assert end_of(number, 0, NOW) == ((NOW + default * DAY_MS) if default else 0, False, False)
    assert end_of(number, 0, NOW, ttl_s=60) == (NOW + 60_000, False, False)
    assert end_of(number, 0, NOW, at_ms=NOW + 60_000) == (NOW + 60_000, True, False)
    far = NOW + 10_000 * DAY_MS
    assert end_of(number, 0, NOW, at_ms=far) == ((NOW + most * DAY_MS, True, True) if most else (far, True, False))


def test_operational_scope_counts_whatever_the_kind() -> None:
    for kind in ("fact", "rule", "emotional_state"):
        end = check_draft(Draft(content="x", kind=kind, scope="operational", ttl=366 * 86_400), NOW).end
        assert end == (NOW + 30 * DAY_MS, False, True)


# --- after a report ---------------------------------------------------------------------------------------
def alive(story: Story, kind: int, scope: int, life_ms: int) -> int:
    return story.memory(story.agent("writer"), kind=kind, scope=scope, expires=story.ms + life_ms if life_ms else 0)


@given(KIND_NUMBERS, SCOPE_NUMBERS, st.integers(0, 400 * DAY_MS), st.lists(st.integers(1, 60 * DAY_MS), max_size=20))
def test_reports_never_bring_an_end_nearer_nor_beyond_the_kind_s_most_and_cost_few_events(
    kind: int, scope: int, life_ms: int, steps: list[int]
) -> None:
    story = Story()
    s = alive(story, kind, scope, min(life_ms, (last_end(kind, scope, NOW) or NEVER_MS) - NOW))
    at, events, passed = story.t.columns.at, 0, 0
    for step in steps:
        story.ms, passed = story.ms + step, passed + step
        if story.t.current(s, story.ms) != "active":
            break
        before = at.expires[s]
        if end := extended(at, s, story.ms):
            story.apply(E.LifeExtended(ms=story.ms, agent=story.t.agents.all[0].id, items=[(s, end)]))
            events += 1
            assert end > before
            assert end <= story.ms + at.life[s]
            assert end <= (last_end(kind, scope, at.written[s]) or NEVER_MS)
    assert events <= passed / max(at.life[s] / EXTEND_SHARE, EXTEND_MS_MIN) + 1


def test_an_end_that_the_writer_named_is_not_moved() -> None:
    story = Story()
    writer = story.agent("writer")
    sliding = story.memory(writer, expires=story.ms + DAY_MS)
    fixed = story.memory(writer, expires=story.ms + DAY_MS, fixed=True)
    endless = story.memory(writer)
    at, later = story.t.columns.at, story.ms + DAY_MS // 2
    assert extended(at, sliding, later) == later + DAY_MS
    assert (extended(at, fixed, later), extended(at, endless, later)) == (0, 0)


# --- ends and resumptions ---------------------------------------------------------------------------------
def ended(story: Story, end: bytes, members: list[int]) -> None:
    [(count, deltas)] = pack_members(members)
    story.apply(E.LifeEnded(ms=story.ms, end=end, why="pruned", agent=story.t.agents.all[0].id, count=count, deltas=deltas))


def resumed(story: Story, end: bytes) -> None:
    story.apply(E.LifeResumed(ms=story.ms, end=end, agent=story.t.agents.all[0].id))


def test_an_end_hides_at_once_and_a_resumption_gives_back_exactly_what_it_took() -> None:
    story = Story()
    writer = story.agent("writer")
    endless, dated, over = (story.memory(writer, expires=x) for x in (0, story.ms + DAY_MS, story.ms + 5))
    story.ms += 10
    ended(story, b"e" * 16, [endless, dated, over])
    assert [story.t.current(s, story.ms) for s in (endless, dated, over)] == ["expired"] * 3
    resumed(story, b"e" * 16)
    assert [story.t.current(s, story.ms) for s in (endless, dated, over)] == ["active", "active", "expired"]
    assert story.t.columns.at.expires[endless] == NEVER_MS


def test_of_two_ends_the_first_stands_until_it_is_resumed_itself() -> None:
    story = Story()
    s = story.memory(story.agent("writer"))
    ended(story, b"a" * 16, [s])
    story.ms += 10
    ended(story, b"b" * 16, [s])
    resumed(story, b"b" * 16)
    assert story.t.current(s, story.ms) == "expired"
    resumed(story, b"a" * 16)
    assert story.t.current(s, story.ms) == "active"


def test_what_an_ended_memory_superseded_stays_superseded() -> None:
    """Else tidying up would bring back what was wrong; a time to live that is over lets it count again, as its writer knew."""
    story = Story()
    writer = story.agent("writer")
    old = story.memory(writer)
    new = story.memory(writer, supersedes=old)
    ended(story, b"e" * 16, [new])
    assert (story.t.current(new, story.ms), story.t.current(old, story.ms)) == ("expired", "superseded")
    resumed(story, b"e" * 16)
    assert (story.t.current(new, story.ms), story.t.current(old, story.ms)) == ("active", "superseded")


# --- turns of a line --------------------------------------------------------------------------------------
def correct(story: Story, by: str, old: int) -> tuple[int, list[str]]:
    """The memory that `by` writes instead of `old`, through the real decision; and why it is held."""
    event = decide(story.draft(story.principals[by], "The budget is other", supersedes=old), "", story.ms)
    return story.apply(event), event.holds


def flap(story: Story, names: list[str], old: int) -> list[bool]:
    """Each supersedes the last that counts; whether it was let."""
    let = []
    for name in names:
        story.ms += 1_000
        seq, holds = correct(story, name, old)
        assert holds in ([], [FLAPPING])
        let.append(not holds)
        old = old if holds else seq
    return let


def two(*more: str) -> tuple[Story, int]:
    story = Story()
    for name in ("ann", "ben", *more):
        story.agent(name)
    return story, correct(story, "ann", 0)[0]


def test_two_agents_that_correct_each_other_have_a_last_word() -> None:
    story, first = two()
    names = ["ben", "ann"] * 4
    let = flap(story, names, first)
    assert let.index(False) == FLAPS_MAX + 1, "a first correction, and its returns"
    assert not any(let[i] for i in range(FLAPS_MAX + 1, len(names)) if names[i] == "ben"), "ann was first and has the last word"


def test_two_that_use_up_the_returns_between_them_do_not_have_the_last_word() -> None:
    story, first = two("bob")
    assert flap(story, ["ben", "bob", "ben", "bob", "ben", "bob"], first) == [True] * 5 + [False]
    last = max(story.t.turns)
    assert flap(story, ["ann", "ben", "bob", "ann"], last) == [True, False, False, True], "ann was first"


def test_who_was_first_is_known_however_long_the_line() -> None:
    story, first = two(*(f"agent{i}" for i in range(2 * TURNS_KEPT)))
    assert all(flap(story, [f"agent{i}" for i in range(2 * TURNS_KEPT)], first))
    late = f"agent{2 * TURNS_KEPT - 1}"
    assert flap(story, ["ann", late, "ann", late, "ann", late], max(story.t.turns)) == [True, True, True, False, True, False]


def test_after_the_window_they_may_go_on() -> None:
    story, first = two()
    let = flap(story, ["ben", "ann", "ben", "ann"], first)
    assert let == [True] * (FLAPS_MAX + 1)
    last = story.t.position
    assert correct(story, "ben", last)[1] == [FLAPPING]
    story.ms += FLAP_WINDOW_MS + 5_000
    assert correct(story, "ben", last)[1] == []


def test_agents_that_each_have_their_turn_and_one_s_own_changes_are_no_flapping() -> None:
    story, first = two(*(f"agent{i}" for i in range(12)))
    assert all(flap(story, [f"agent{i}" for i in range(12)], first))
    assert all(flap(story, ["agent11"] * 30, story.t.position)), "its own memory"
    assert all(len(turns) <= TURNS_KEPT for turns in story.t.turns.values())


def test_the_turns_are_the_same_after_a_replay() -> None:
    story, first = two()
    flap(story, ["ben", "ann", "ben"], first)
    again = Tenant(ACCOUNT, "acme", b"k" * 32)
    for seq, event in enumerate(story.told, 1):
        again.apply(seq, event)
    assert again.turns == story.t.turns != {}
