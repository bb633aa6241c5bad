"""What an earlier ledger takes over from later events: nothing that shows more, and nothing that names what isn't there."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gate.config import ProjectSettings, decode_settings, encode_settings
from gate.ledger import events as E
from gate.ledger.block import ZERO_HASH, Section, make_section
from gate.ledger.members import members_digest, pack_members, unpack_members
from gate.snapshots.carried import Earlier, record_left, tighter
from gate.state.tenant import Tenant

MS, OPS = 1_764_000_000_000, b"o" * 16
BEGIN: tuple[E.AnyEvent, ...] = (
    E.TenantAdded(ms=MS, name="acme", by=""),
    E.ProjectChanged(ms=MS, name="p1"),
    E.AgentIssued(ms=MS, agent=OPS, name="ops", key="U1", role="operator", projects=["p1"]),
)


def memory(n: int) -> E.MemoryWritten:
    return E.MemoryWritten(
        ms=MS, id=bytes([n]) * 16, project="p1", agent=OPS, key="U1", role="operator", origin=1, trust=400, floor=400, ctx=OPS,
        body=bytes(32),
    )  # fmt: skip


def case(name: bytes, members: Sequence[int]) -> list[E.AnyEvent]:
    """Two parts and the seal."""
    halves = [members[:1], members[1:]]
    parts: list[E.AnyEvent] = [
        E.CasePart(ms=MS, case=name, part=i, count=len(half), deltas=pack_members(half)[0][1]) for i, half in enumerate(halves)
    ]
    digest = members_digest(members)
    seal = E.CaseOpened(ms=MS, case=name, agent=OPS, roots=[members[0]], parts=2, count=len(members), digest=digest)
    return [*parts, seal]


def section(first: int, events: Sequence[E.AnyEvent]) -> Section:
    return make_section("A", first, ZERO_HASH, [(E.encode(e), None) for e in events])


def carried(then: Sequence[E.AnyEvent], later: Sequence[E.AnyEvent]) -> tuple[list[E.AnyEvent], Tenant]:
    """The events that are carried over, and the tenant that a replay of the new ledger gives."""
    earlier, before = Earlier(), [*BEGIN, *then]
    earlier.then(section(1, before))
    found = [E.decode_event(meta) for meta, _ in earlier.later(section(len(before) + 1, later))]
    t = Tenant("A")
    for seq, event in enumerate([*before, *found], 1):
        t.apply(seq, event)
    return found, t


def held(t: Tenant) -> list[int]:
    return [s for s in range(1, t.columns.n) if t.columns.at.held[s]]


def test_a_later_case_holds_those_of_its_members_that_were_there() -> None:
    _, t = carried([memory(1), memory(2)], [memory(3), *case(b"c" * 16, [4, 5, 6])])
    assert held(t) == [4, 5]
    assert t.cases[b"c" * 16].state == "open"


def test_a_later_case_of_later_memories_alone_and_what_is_told_of_it_are_left_out() -> None:
    told = E.NoticeSent(ms=MS, case=b"c" * 16, kind="recall", agents=[OPS])
    found, t = carried([memory(1)], [memory(2), memory(3), *case(b"c" * 16, [5, 6]), told])
    assert found == []
    assert held(t) == []


def test_a_release_is_carried_over_with_its_case_and_never_lifts_a_hold_of_then() -> None:
    releases = [E.CaseReleased(ms=MS, case=name, agent=OPS) for name in (b"a" * 16, b"b" * 16)]
    then = [memory(1), memory(2), memory(3), *case(b"a" * 16, [4, 5])]
    found, t = carried(then, [*case(b"b" * 16, [5, 6]), *releases])
    assert [type(e).__name__ for e in found][-1] == "CaseReleased"
    assert held(t) == [4, 5], "as it was then"
    assert t.cases[b"b" * 16].state == "released"


def test_a_case_with_parts_on_both_sides_of_the_cut_counts_with_all_its_members() -> None:
    first, *rest = case(b"c" * 16, [4, 5, 6])
    _, t = carried([memory(1), memory(2), memory(3), first], rest)
    assert held(t) == [4, 5, 6]
    assert len(t.cases) == 1


def test_an_erasure_names_what_was_there_and_one_of_later_memories_is_left_out() -> None:
    def erased(name: bytes, members: list[int]) -> list[E.AnyEvent]:
        [(count, deltas)] = pack_members(members)
        return [E.MemoryErased(ms=MS, erasure=name, agent=OPS, count=count, deltas=deltas), E.ErasureDone(ms=MS, erasure=name)]

    found, t = carried([memory(1), memory(2)], [memory(3), *erased(b"e" * 16, [5, 6]), *erased(b"f" * 16, [6])])
    first = found[0]
    assert isinstance(first, E.MemoryErased)
    assert (unpack_members([first.deltas]).tolist(), first.count) == ([5], 1)
    assert list(t.erasures) == [b"e" * 16]
    assert t.erasures[b"e" * 16].done_ms


def test_an_accepted_loss_names_what_was_there_and_that_alone_counts_as_erased() -> None:
    [(_, deltas)] = pack_members([5, 6])
    found, t = carried([memory(1), memory(2)], [memory(3), E.LedgerAccepted(ms=MS, by="kim", position=6, deltas=deltas)])
    [accepted] = found
    assert isinstance(accepted, E.LedgerAccepted)
    assert unpack_members([accepted.deltas]).tolist() == [5]
    assert np.flatnonzero(t.columns.erased).tolist() == [5]


def test_an_end_is_carried_over_with_its_resumption_and_what_would_have_memories_live_on_is_not() -> None:
    def end(name: bytes, members: list[int]) -> E.LifeEnded:
        [(count, deltas)] = pack_members(members)
        return E.LifeEnded(ms=MS, end=name, why="pruned", agent=OPS, count=count, deltas=deltas)

    def resumed(name: bytes) -> E.LifeResumed:
        return E.LifeResumed(ms=MS, end=name, agent=OPS)

    def over(t: Tenant) -> list[int]:
        return [s for s in t.by_id.values() if t.current(s, MS) == "expired"]

    then: list[E.AnyEvent] = [memory(1), memory(2), end(b"a" * 16, [4])]
    found, t = carried(then, [memory(3), end(b"b" * 16, [5, 7]), end(b"c" * 16, [7]), resumed(b"a" * 16)])
    assert [type(e).__name__ for e in found] == ["LifeEnded"]
    assert over(t) == [4, 5], "what was over then is over, and so is what ended since"
    assert over(carried(then, [end(b"b" * 16, [5]), resumed(b"b" * 16)])[1]) == [4]
    dated = msgspec.structs.replace(memory(1), expires=MS + 5)
    _, t = carried([dated], [E.LifeExtended(ms=MS, agent=OPS, items=[(4, MS + 500)])])
    assert t.columns.at.expires[4] == MS + 5


def test_a_review_is_carried_over_if_it_rejects() -> None:
    waiting = msgspec.structs.replace(memory(1), holds=["screen:instruction"])
    accept, reject = (E.MemoryReviewed(ms=MS, memory=4, verdict=v, agent=OPS) for v in ("accept", "reject"))
    assert carried([waiting], [accept])[0] == []
    assert held(carried([waiting], [accept])[1]) == [4]
    assert carried([waiting], [accept, reject])[0] == [reject]


def test_agents_and_their_ends_are_as_they_are_now() -> None:
    new = E.AgentIssued(ms=MS, agent=b"n" * 16, name="new", key="U2", role="agent", projects=["p1"])
    gone = E.AgentRevoked(ms=MS, agent=OPS, keys=["U1"], whole=True)
    found, t = carried([], [new, gone])
    assert found == [new, gone]
    assert t.agents.by_id[OPS].whole
    assert "new" in t.agents.by_name


def test_a_project_keeps_the_tighter_of_both_and_a_later_one_is_as_it_is() -> None:
    def project(name: str, state: str = "active", shared: Sequence[str] = (), **settings: object) -> E.ProjectChanged:
        raw = encode_settings(msgspec.convert(settings, ProjectSettings))
        return E.ProjectChanged(ms=MS, name=name, state=state, settings=raw, shared_with=list(shared))

    then = project("p2", shared=["p1"], classification_max="internal", flow_to=["p1"])
    later = [project("p2", "archived", ["p1", "p3"], mode="shadow", flow_to=["p1", "p3"]), project("p2"), project("p9")]
    found, t = carried([then], later)
    assert len(found) == 3
    p2 = t.projects["p2"]
    assert (p2.state, p2.shared_with, p2.settings.classification_max) == ("archived", (), "internal")
    assert (p2.settings.mode, p2.settings.flow_to) == ("enforce", [])
    assert t.projects["p9"].state == "active"


def test_the_tighter_of_two_settings_is_never_looser_than_either() -> None:
    a = decode_settings(b'{"context_idle_hours":0,"gate":"off","audience":["agent"],"flow_from":["x","y"]}')
    b = decode_settings(b'{"context_idle_hours":48,"gate":"enforce","audience":["agent","operator"],"flow_from":["y"]}')
    both = tighter(a, b)
    assert (both.context_idle_hours, both.gate, both.audience, both.flow_from) == (0, "enforce", ["agent"], ["y"])
    assert tighter(b, a) == both


def test_a_suspension_is_carried_over_and_its_end_only_with_it() -> None:
    suspended, active = (E.TenantChanged(ms=MS, state=s) for s in ("suspended", "active"))
    assert carried([], [suspended])[1].suspended
    assert not carried([], [suspended, active])[1].suspended
    assert carried([suspended], [active])[1].suspended


def test_a_later_read_keeps_its_labels_and_loses_the_memories_that_are_gone() -> None:
    joined = E.Joined(250, 0, 2, 1, True, ["project:p1"])
    read = E.Served(
        ms=MS, recall=OPS, ctx=OPS, epoch=1, ctx_seq=1, agent=OPS, project="p1", verb="query", items=[(4, 0, 0), (9, 0, 0)],
        withheld=[(8, 4, 0)], joined=joined,
    )  # fmt: skip
    left = record_left(read, 7)
    assert isinstance(left, E.Served)
    assert (left.items, left.withheld, left.joined) == ([(4, 0, 0)], [], joined)
    assert record_left(E.Withdrawn(ms=MS, recall=OPS, items=[4, 9]), 7) == E.Withdrawn(ms=MS, recall=OPS, items=[4])
