"""The decision on a write: what is held and why, whom it may replace, and that no order of reads and writes gains anything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.limits import EDGES_PER_MEMORY_MAX
from gate.config import DAY_MS
from gate.identify import Principal
from gate.ledger import events as E
from gate.quotas import DEFAULT
from gate.refusals import Refused
from gate.writing.decide import Write, decide
from gate.writing.lineage import Evidence, Pair
from gate.writing.screen import Screening

from .story import Story

SOURCED, SOURCELESS = 500, 400  # an agent's own sentence, per mille


def decided(story: Story, w: Write) -> E.MemoryWritten:
    return decide(w, "", story.ms)


def stored(story: Story, w: Write) -> int:
    return story.apply(decided(story, w))


def copied(*seqs: int, confidence: float = 0.9) -> Evidence:
    return Evidence(copied=tuple(Pair(s, confidence) for s in seqs))


# --- a plain write, and what it inherits --------------------------------------------------------------
def test_a_plain_write_is_accepted_with_its_own_labels() -> None:
    story = Story()
    e = decided(story, story.draft(story.agent("writer")))
    assert (e.trust, e.floor, e.origin, e.holds, e.reasons, e.edges, e.cases) == (SOURCED, SOURCED, 1, [], [], [], [])
    assert e.comp == ["project:p1"]
    assert decided(story, story.draft(story.agent("other"), sourced=False)).trust == SOURCELESS


@pytest.mark.parametrize("way", ["declared", "copied", "served"])
def test_every_joined_parent_lowers_its_child(way: str) -> None:
    story = Story()
    writer, reader = story.agent("writer", "ingest"), story.agent("reader")
    bad = story.memory(writer, trust=120, floor=90, origin=0, sens=1, opt_out=True, readers=[["agent:reader"]], oldest=7)
    story.serve(reader, bad)
    pair = (Pair(bad, 0.7),)
    w = {
        "declared": lambda: story.draft(reader, declared=[bad]),
        "copied": lambda: story.draft(reader, lineage=Evidence(copied=pair)),
        "served": lambda: story.draft(reader, lineage=Evidence(served=pair)),
    }[way]()
    e = decided(story, w)
    assert (e.trust, e.floor, e.origin, e.sens, e.opt_out, e.readers, e.oldest) == (120, 90, 0, 1, True, [["agent:reader"]], 7)
    assert [(E.EDGE_KINDS[x.kind], x.parent) for x in e.edges] == [(way, bad)]


def test_a_parent_that_is_declared_and_copied_is_one_edge_and_the_declared_one() -> None:
    story = Story()
    reader = story.agent("reader")
    parent = story.memory(reader)
    e = decided(story, story.draft(reader, declared=[parent], lineage=Evidence((Pair(parent, 0.9),), (Pair(parent, 0.6),))))
    assert e.edges == [E.Edge(E.DECLARED, parent, 255)]


def test_a_claim_can_lower_and_never_raise() -> None:
    story = Story()
    writer = story.agent("writer")
    assert decided(story, story.draft(writer, claimed_confidence=0.2)).trust == 200
    assert decided(story, story.draft(writer, claimed_confidence=1.0)).trust == SOURCED
    lower = decided(story, story.draft(writer, origin="external"))
    assert (lower.origin, lower.trust, lower.reasons) == (0, 250, [])
    higher = decided(story, story.draft(writer, origin="system"))
    assert (higher.origin, higher.trust, higher.reasons) == (1, SOURCED, ["origin_capped"])


# --- trust_floor: the property ------------------------------------------------------------------------
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # who
        st.lists(st.integers(0, 30), max_size=3),  # what it is served first
        st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1)), max_size=3),  # copied, at any confidence
        st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1)), max_size=3),  # joined as served
        st.lists(st.integers(0, 30), max_size=2),  # declared
        st.sampled_from([None, 0.0, 0.5, 1.0]),
        st.sampled_from(["", "external", "user_stated", "system"]),
    ),
    max_size=12,
)


def _pairs(known: list[int], chosen: list[tuple[int, float]]) -> tuple[Pair, ...]:
    return tuple(Pair(known[i % len(known)], confidence) for i, confidence in chosen if known)


@given(STEPS)
def test_recall_then_write_never_gains_whatever_the_confidence(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """Across three agents that pass text on to each other: floor against all that was served, the rest against joined parents."""
    story = Story()
    people = [story.agent("ingest", "ingest"), story.agent("a"), story.agent("b")]
    memories = [story.memory(people[0], trust=t, floor=f, origin=0) for t, f in ((250, 250), (150, 100), (900, 20))]
    c = story.t.columns
    least: dict[int, int] = {}  # by agent: the least floor it was ever served
    for who, reads, copies, near, declared, confidence, origin in steps:
        p = people[who]
        served = [memories[i % len(memories)] for i in reads]
        if served:
            story.serve(p, *served)
            floors = [min(int(c.eff[s]), int(c.floor[s])) for s in served]
            least[who] = min(least.get(who, 1000), *floors)
        known = list(story.context(p).served)
        lineage = Evidence(_pairs(known, copies), _pairs(known, near))
        parents = [known[i % len(known)] for i in declared if known]
        e = decided(story, story.draft(p, declared=parents, lineage=lineage, claimed_confidence=confidence, origin=origin))
        assert e.floor <= e.trust
        assert e.floor <= least.get(who, 1000)
        for edge in e.edges:
            assert e.trust <= c.eff[edge.parent]
            assert e.origin <= c.origin[edge.parent]
            assert e.floor <= c.floor[edge.parent]
        memories.append(story.apply(e))


# --- flow ---------------------------------------------------------------------------------------------
def test_a_label_of_another_project_is_held_unless_both_sides_have_the_line() -> None:
    def holds(from_: list[str], to: list[str]) -> list[str]:
        story = Story("p1")
        story.project("p1", flow_to=to)
        story.project("p2", flow_from=from_)
        reader = story.agent("reader")
        parent = story.memory(reader)
        there = Principal(reader.tenant, reader.agent, reader.key, "p2", reader.rights, row=reader.row)
        return decided(story, story.draft(there, declared=[parent])).holds

    held = ["flow_down:project:p1"]
    assert (holds([], []), holds(["p1"], []), holds([], ["p2"]), holds(["p1"], ["p2"])) == (held, held, held, [])
    assert holds(["p2"], ["p1"]) == held  # the other way is another way


def test_what_is_above_a_project_s_classification_is_held() -> None:
    story = Story("p1")
    story.project("p1", classification_max="internal")
    writer = story.agent("writer", tags=["see:restricted"])
    assert decided(story, story.draft(writer, classification="internal")).holds == []
    assert decided(story, story.draft(writer, classification="restricted")).holds == ["flow_down:restricted"]
    secret = story.memory(writer, class_=2)
    near = decided(story, story.draft(writer, lineage=Evidence(near=(secret,))))
    assert (near.class_, near.holds, near.edges) == (2, ["flow_down:restricted"], [])


def test_a_user_s_words_stay_with_the_user() -> None:
    story = Story()
    ann = story.agent("ann", "user_session", tags=["user:ann"])
    theirs = story.memory(ann, scope=1, user=ann.user_hash, comp=["project:p1", f"user:{ann.user_hash}"])
    for lineage in (copied(theirs), Evidence(near=(theirs,))):
        assert decided(story, story.draft(ann, lineage=lineage)).holds == [f"flow_down:user:{ann.user_hash}"]
        assert decided(story, story.draft(ann, lineage=lineage, scope="user", scope_id="ann")).holds == []
        assert decided(story, story.draft(ann, lineage=lineage, scope="user", scope_id="bob")).holds != []


# --- screening ----------------------------------------------------------------------------------------
def test_a_high_score_holds_a_middling_one_is_noted_a_low_one_is_nothing() -> None:
    story = Story()
    writer = story.agent("writer")

    def outcome(score: int) -> tuple[list[str], list[str]]:
        e = decided(story, story.draft(writer, screening=Screening(score, ("instruction",))))
        return e.holds, e.reasons

    assert outcome(800) == (["screen:instruction"], [])
    assert outcome(799) == ([], ["noted:instruction"])
    assert outcome(499) == ([], [])


# --- held parents -------------------------------------------------------------------------------------
def test_children_of_declared_and_copied_members_join_every_open_case_and_served_ones_none() -> None:
    story = Story()
    writer = story.agent("writer")
    bad = story.memory(writer)
    one, two = story.case(writer, bad), story.case(writer, bad)
    for w in (story.draft(writer, declared=[bad]), story.draft(writer, lineage=copied(bad))):
        e = decided(story, w)
        assert (e.cases, e.holds, e.reasons) == ([one, two], [], ["parent_held"])
    assert decided(story, story.draft(writer, lineage=Evidence(served=(Pair(bad, 0.6),)))).cases == []
    story.release(writer, one)
    assert decided(story, story.draft(writer, declared=[bad])).cases == [two]
    story.release(writer, two)
    assert decided(story, story.draft(writer, declared=[bad])).reasons == []


def test_a_child_of_what_waits_for_a_review_waits_too_also_beside_a_case() -> None:
    story = Story()
    writer = story.agent("writer")
    waiting = story.memory(writer, holds=["screen:instruction"])
    assert decided(story, story.draft(writer, declared=[waiting])).holds == ["parent_held"]
    case = story.case(writer, waiting)
    child = stored(story, story.draft(writer, declared=[waiting]))
    assert story.t.cases[case].joined == [child]
    story.release(writer, case)
    assert story.t.current(child, story.ms) == "held"
    for memory in (waiting, child):
        story.apply(E.MemoryReviewed(ms=story.ms, memory=memory, verdict="accept", agent=writer.agent.id))
        assert story.t.current(memory, story.ms) == "active"
    assert decided(story, story.draft(writer, declared=[waiting])).holds == []


def test_a_child_of_a_pending_case_is_held_without_naming_it() -> None:
    story = Story()
    writer = story.agent("writer")
    bad = story.memory(writer)
    case = story.case(writer, bad)
    story.t.cases[case].state = "pending"
    e = decided(story, story.draft(writer, declared=[bad]))
    assert (e.cases, e.holds) == ([], ["parent_held"])


def test_an_exposed_context_writes_with_the_floor_of_something_read_outside() -> None:
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    bad = story.memory(writer)
    story.serve(reader, bad)
    case = story.case(writer, bad)
    e = decided(story, story.draft(reader))
    assert (e.trust, e.floor, e.reasons, e.exposed, e.holds) == (SOURCED, 250, ["context_exposed"], [case], [])
    story.release(writer, case)
    assert decided(story, story.draft(reader)).floor == SOURCED


# --- superseding --------------------------------------------------------------------------------------
def test_only_ones_own_or_something_no_better_is_superseded() -> None:
    story = Story()
    mine, other, ops = story.agent("mine"), story.agent("other"), story.agent("ops", "operator")
    old = story.memory(mine, trust=450, expires=story.ms + DAY_MS)
    weaker = decided(story, story.draft(other, supersedes=old, sourced=False))
    assert (weaker.supersedes, weaker.contradicts, weaker.holds) == (0, old, ["contradicts_stronger"])
    for w in (
        story.draft(mine, supersedes=old, sourced=False),  # one's own
        story.draft(ops, supersedes=old, claimed_confidence=0.1),  # an operator
        story.draft(other, supersedes=old),  # trust 500 against 450, the same origin
    ):
        e = decided(story, w)
        assert (e.supersedes, e.contradicts, e.holds) == (old, 0, [])
    low_origin = story.memory(mine, trust=100, origin=3)
    assert decided(story, story.draft(other, supersedes=low_origin)).contradicts == low_origin


HIDING: dict[str, dict[str, Any]] = {
    "readers": {"readers": [["agent:other"]]},
    "classification": {"classification": "restricted"},
    "sensitivity": {"sensitivity": "high"},
    "opt_out": {"opt_out": True},
    "not valid yet": {"valid_from": "2999-01-01T00:00:00Z"},
    "over soon": {"ttl": 1},
    "valid until soon": {"valid_until": "2023-11-15T00:00:00Z"},
    "task scope": {"scope": "task", "task": "none"},
    "user scope": {"scope": "user", "scope_id": "nobody"},
    "operational scope": {"scope": "operational"},
    "another kind": {"kind": "rule"},
    "a closed task": {"task_state": "abandoned"},
    "no source": {"sourced": False, "claimed_confidence": None},
}


@pytest.mark.parametrize("hiding", HIDING)
def test_nobody_removes_another_s_memory_by_superseding_it_with_what_others_don_t_see(hiding: str) -> None:
    story = Story()
    mine, other, ops = story.agent("mine"), story.agent("other"), story.agent("ops", "operator")
    facts = {"trust": 400, "floor": 400, "expires": story.ms + DAY_MS}
    old, own = story.memory(mine, **facts), story.memory(other, **facts)
    e = decided(story, story.draft(other, supersedes=old, **HIDING[hiding]))
    assert (e.supersedes, e.contradicts, e.holds[-1]) == (0, old, "contradicts_more_visible")
    assert decided(story, story.draft(other, supersedes=own, **HIDING[hiding])).supersedes == own
    assert decided(story, story.draft(ops, supersedes=old, **HIDING[hiding])).supersedes == old
    step = stored(story, story.draft(other, supersedes=old))  # nor in two steps, the second on what is its own
    again = decided(story, story.draft(other, supersedes=step, **HIDING[hiding]))
    assert (again.supersedes, again.contradicts) == (0, step)
    assert decided(story, story.draft(other, supersedes=step)).supersedes == step


def test_a_successor_may_be_seen_by_more_and_for_longer() -> None:
    story = Story()
    mine, other = story.agent("mine"), story.agent("other", tags=["user:ann"])
    narrow = story.memory(
        mine, readers=[["agent:mine", "agent:other"]], scope=2, task=b"t" * 8, class_=2, sens=1, floor=300, trust=400, nosrc=True,
        expires=story.ms + DAY_MS,
    )  # fmt: skip
    assert decided(story, story.draft(other, supersedes=narrow)).supersedes == narrow
    wider = [["agent:mine", "agent:other", "agent:third"]]
    assert decided(story, story.draft(other, supersedes=narrow, readers=wider, classification="restricted")).supersedes == narrow
    assert decided(story, story.draft(other, supersedes=narrow, readers=[["agent:other"]])).supersedes == 0
    note = story.memory(mine, scope=1, user=other.user_hash, trust=400, floor=300, expires=story.ms + DAY_MS)
    assert decided(story, story.draft(other, supersedes=note, scope="user", scope_id="ann")).supersedes == note


def test_a_floor_that_hides_it_from_effects_is_less_visible_too() -> None:
    story = Story()
    mine, other = (story.agent(n, "user_session", tags=["user:ann"]) for n in ("mine", "other"))
    outside = story.memory(mine, trust=250, floor=250, origin=0)
    old = story.memory(mine, trust=700, floor=700, origin=1, expires=story.ms + DAY_MS)
    assert decided(story, story.draft(other, supersedes=old)).supersedes == old
    story.serve(other, outside)
    assert decided(story, story.draft(other, supersedes=old)).contradicts == old


def test_a_lapsed_successor_gives_way_and_one_to_come_does_not() -> None:
    story = Story()
    writer = story.agent("writer")
    old = story.memory(writer)
    stored(story, story.draft(writer, supersedes=old, ttl=1))
    assert story.t.current(old, story.ms) == "superseded"
    story.ms += 2_000
    assert story.t.current(old, story.ms) == "active"
    stored(story, story.draft(writer, supersedes=old, valid_from="2999-01-01T00:00:00Z"))
    assert story.t.current(old, story.ms) == "active"
    with pytest.raises(Refused, match="supersede_conflict"):
        decided(story, story.draft(writer, supersedes=old))


def test_what_is_superseded_already_is_a_conflict_until_its_successor_is_held() -> None:
    story = Story()
    writer = story.agent("writer")
    old = story.memory(writer)
    new = stored(story, story.draft(writer, supersedes=old))
    with pytest.raises(Refused) as refused:
        decided(story, story.draft(writer, supersedes=old))
    assert (refused.value.code, refused.value.detail) == ("supersede_conflict", {"superseded_by": story.t.memory_id(new)})
    story.case(writer, new)
    assert story.t.current(old, story.ms) == "active"
    assert decided(story, story.draft(writer, supersedes=old)).supersedes == old


# --- bounds -------------------------------------------------------------------------------------------
def test_an_agent_with_too_many_held_memories_may_write_only_what_isn_t_held() -> None:
    story = Story()
    writer = story.agent("writer")
    writer.agent.held = DEFAULT.agent_held
    with pytest.raises(Refused) as refused:
        decided(story, story.draft(writer, screening=Screening(900, ("instruction",))))
    assert (refused.value.code, refused.value.limit) == ("quota_full", DEFAULT.agent_held)
    assert decided(story, story.draft(writer)).holds == []


def test_readers_that_grow_beyond_their_bound_are_held() -> None:
    story = Story()
    writer = story.agent("writer")
    parents = [story.memory(writer, readers=[[f"agent:a{i}"]]) for i in range(17)]
    assert decided(story, story.draft(writer, declared=parents[:16])).holds == []
    assert decided(story, story.draft(writer, declared=parents)).holds == ["readers_too_complex"]


def test_what_gave_the_worst_label_has_an_edge_though_there_is_no_room_and_all_are_joined() -> None:
    story = Story()
    writer = story.agent("writer")
    good = [story.memory(writer) for _ in range(EDGES_PER_MEMORY_MAX)]
    outside, secret = story.memory(writer, origin=0, trust=250, floor=250), story.memory(writer, class_=2)
    found = Evidence(
        copied=tuple(Pair(s, 1.0) for s in good), joined=(*good, outside, secret), strong=(*good, outside, secret), cut=True
    )
    e = decided(story, story.draft(writer, lineage=found))
    assert (e.origin, e.trust, e.class_) == (0, 250, 2)
    assert len(e.edges) == EDGES_PER_MEMORY_MAX
    assert {outside, secret} < {x.parent for x in e.edges}
    assert "too_many_sources" in e.holds


def test_a_held_parent_without_an_edge_holds_the_child() -> None:
    story = Story()
    writer = story.agent("writer")
    bad = story.memory(writer)
    case = story.case(writer, bad)
    e = decided(story, story.draft(writer, lineage=Evidence(joined=(bad,), strong=(bad,))))
    assert (e.cases, e.reasons) == ([case], ["parent_held"])
