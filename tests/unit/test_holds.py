"""Holds where the ledger is full half-way, where the index thread is busy, and what a case says of its members."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from bus import frames
from bus.frames import Case, CaseQuery, Cases, Hold, Notice, Plan, Release, Trace, TraceAnswer
from bus.limits import PAYLOAD_BYTES_MAX
from gate import ids, operators
from gate.clock import STAYED_S, SteadyClock
from gate.config import DAY_MS
from gate.containment import notices
from gate.containment.plans import PART
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.block import members_digest, pack_members
from gate.refusals import Refused
from gate.rights import TABLE
from gate.state.principals import Agent
from gate.state.served import ServedTo
from gate.writing import sequencer

from .small_shard import SmallShard, while_running
from .story import Story


class Room:
    """A root, two children, one of which has another parent too; a reader that was served the root; an operator."""

    def __init__(self) -> None:
        self.story = Story()
        self.writer, self.reader, self.ops = (
            self.story.agent("writer"), self.story.agent("reader"), self.story.agent("ops", "operator")
        )  # fmt: skip
        memory = self.story.memory
        self.root, self.other = memory(self.writer), memory(self.writer)
        self.child = memory(self.writer, edges=[E.Edge(E.DECLARED, self.root, 255)])
        self.mixed = memory(self.writer, edges=[E.Edge(E.DECLARED, self.child, 255), E.Edge(E.COPIED, self.other, 255)])
        self.story.serve(self.reader, self.root)

    def text(self, seq: int) -> str:
        return self.story.t.memory_id(seq)


def run(scenario: Callable[[Room, SmallShard], Coroutine[Any, Any, None]]) -> Room:
    async def main() -> Room:
        room = Room()
        shard = SmallShard(room.story.t, lambda: room.story.ms)
        task = asyncio.create_task(scenario(room, shard))
        await while_running(shard, task.done)
        task.result()
        return room

    return asyncio.run(main())


async def hold_now(shard: SmallShard, p: Principal, *selector: str) -> Case:
    answer = await shard.operators.answer(p, Hold(selector=list(selector), now=True, message="why"))
    assert isinstance(answer, Case)
    return answer


async def planned(shard: SmallShard, p: Principal, *selector: str) -> Plan:
    answer = await shard.operators.answer(p, Hold(selector=list(selector), dry_run=True))
    assert isinstance(answer, Plan)
    return answer


async def applied(shard: SmallShard, p: Principal, plan: str) -> Case:
    answer = await shard.operators.answer(p, Hold(plan=plan, message="why"))
    assert isinstance(answer, Case)
    return answer


def test_every_page_of_a_rollback_s_plan_counts_what_came_of_what_its_operator_may_not_see() -> None:
    async def scenario(room: Room, shard: SmallShard) -> None:
        story = room.story
        case = await hold_now(shard, room.ops, room.text(room.root))
        secret = story.memory(room.writer, class_=2)
        story.project("p2")
        far = story.memory(story.agent("far", project="p2", projects=("p2",)), edges=[E.Edge(E.DECLARED, secret, 255)])
        ops = story.agent("both", "operator", projects=("p1", "p2"))
        shard.follow(story.t)
        first = await shard.operators.answer(ops, Hold(rollback=case.case, dry_run=True))
        assert isinstance(first, Plan)
        again = await shard.operators.answer(ops, Hold(plan=first.plan, dry_run=True))
        assert isinstance(again, Plan)
        assert room.text(far) in {m.id for m in first.members}
        assert (again.members, again.count) == (first.members, first.count)

    run(scenario)


# --- who is told --------------------------------------------------------------------------------------
def test_a_change_that_can_t_be_fed_leaves_the_feeds_of_the_next_ones_going(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fed: list[str] = []

    async def scenario(room: Room, shard: SmallShard) -> None:
        def feed(t: object, project: str, cls: int, kind: str, ids: list[str]) -> None:
            if room.text(room.root) in ids:
                raise OSError("no way out")
            fed.extend(ids)

        monkeypatch.setattr(shard, "feed", feed)
        await hold_now(shard, room.ops, room.text(room.root))
        await hold_now(shard, room.ops, room.text(room.other))
        while shard.holds.notices.telling:  # noqa: ASYNC110 - what a stop waits for, too
            await asyncio.sleep(0)
        assert fed == [room.text(room.other), room.text(room.mixed)]

    run(scenario)
    assert "feeding a change broke off" in caplog.text


def test_a_crowd_is_told_once_each_of_what_it_was_served_and_others_have_their_turns_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "SLICE_S", 0.0)  # one step, then the others
    crowd = 1_050  # beyond the first span of served.py
    told: list[tuple[str, Notice]] = []
    turns = 0

    async def scenario(room: Room, shard: SmallShard) -> None:
        nonlocal turns
        monkeypatch.setattr(shard, "push_notice", lambda _, key, notice: told.append((key, notice)))
        agents = [room.story.agent(f"session{i}") for i in range(crowd)]
        for i, agent in enumerate(agents):
            room.story.serve(agent, room.root)
            if i % 2:
                room.story.serve(agent, room.child)
        shard.follow(room.story.t)
        await hold_now(shard, room.ops, room.text(room.root))
        assert len(told) < crowd / 2, "all were told in one go"
        while len(told) <= crowd:  # and the reader
            turns += 1
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(told) == crowd + 1
        keys = dict(told)
        for i, agent in enumerate(agents):
            ids = [room.text(room.root), room.text(room.child)][: 1 + i % 2]
            assert (keys[agent.key].ids, keys[agent.key].total) == (ids, len(ids))

    run(scenario)
    assert turns > crowd / 2


def test_a_list_of_many_large_cases_comes_in_pages_that_fit_into_a_message() -> None:
    async def scenario(room: Room, shard: SmallShard) -> None:
        story = room.story
        members = [story.memory(room.writer) for _ in range(600)]
        opened = []
        for _ in range(120):
            story.ms += 1
            opened.append(story.case(room.ops, *members, roots=members))
        listed, cursor, pages = [], 0, 0
        while True:
            page = await shard.operators.answer(room.ops, CaseQuery(cursor=cursor))
            assert isinstance(page, Cases)
            assert len(frames.encode(page)) < PAYLOAD_BYTES_MAX / 2
            listed += [case.case for case in page.cases]
            pages += 1
            if page.next is None:
                break
            cursor = page.next
        assert listed == [story.t.cases[id_].text for id_ in reversed(opened)]
        assert pages > 2

    run(scenario)


def test_a_case_of_which_a_crowd_was_told_names_them_all_in_pages_that_fit_into_a_message() -> None:
    crowd = 2_600

    async def scenario(room: Room, shard: SmallShard) -> None:
        story = room.story
        projects, elsewhere = ["p1"], ["p2"]
        story.project("p2")
        for i in range(crowd + 3):
            name, where = f"{i:064}", projects if i < crowd else elsewhere
            id_ = i.to_bytes(16, "big")
            story.apply(E.AgentIssued(ms=story.ms, agent=id_, name=name, key=f"U{name}", role="agent", projects=where))
            story.t.note_served(story.t.agents.by_name[name], [room.root])
        shard.follow(story.t)

        plan = await planned(shard, room.ops, room.text(room.root))
        assert (plan.agents_to_tell_count, plan.told_elsewhere) == (crowd + 1, 3)
        first = await hold_now(shard, room.ops, room.text(room.root))
        answers: dict[str, list[Any]] = {"plan": [plan], "case": [first]}
        named: dict[str, list[str]] = {}
        for kind, pages in answers.items():
            while (cursor := pages[-1].next) is not None:
                story.ms += 1_000
                again = (
                    CaseQuery(case=first.case, cursor=cursor)
                    if kind == "case"
                    else Hold(plan=plan.plan, dry_run=True, cursor=cursor)
                )
                pages.append(await shard.operators.answer(room.ops, again))
            assert len(pages) == 6, "a page of names is bounded"
            assert all(len(frames.encode(page)) < PAYLOAD_BYTES_MAX / 8 for page in pages)
            named[kind] = [name for page in pages for name in (page.told if kind == "case" else page.agents_to_tell)]
            assert [m.id for page in pages for m in page.members] == [room.text(s) for s in (room.root, room.child, room.mixed)]
        assert {page.expires_at for page in answers["plan"]} == {plan.expires_at}, "looking on gives it no more time"
        assert named["plan"] == named["case"]
        assert len(set(named["case"])) == len(named["case"]) == crowd + 1
        assert (first.told_count, first.acked_count, first.told_elsewhere) == (crowd + 1, 0, 3)

        listed = await shard.operators.answer(room.ops, CaseQuery())
        assert isinstance(listed, Cases)
        assert len(frames.encode(listed)) < PAYLOAD_BYTES_MAX / 8
        assert (listed.cases[0].told_count, listed.cases[0].acked_count) == (crowd + 1, 0)

    run(scenario)


# --- a ledger that is full half-way -------------------------------------------------------------------
@pytest.mark.parametrize("fitting", [0, 1, 2])
def test_a_case_that_was_cut_off_is_written_on_from_there_and_replayed_whole(
    fitting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event a block; of part, seal and notice so many fit before the ledger is full."""
    monkeypatch.setattr(sequencer, "BLOCK_EVENTS_MAX", 1)
    written: list[E.AnyEvent] = []

    async def scenario(room: Room, shard: SmallShard) -> None:
        shard.ledger.full_after = fitting
        case = await hold_now(shard, room.ops, room.text(room.root))
        assert case.state == ("open" if fitting == 2 else "pending")
        await shard.holds.tend(room.story.t)  # still no room
        shard.ledger.full_after = None
        await shard.holds.tend(room.story.t)
        await shard.holds.tend(room.story.t)
        written.extend(e for block in shard.events() for e in block)

    room = run(scenario)
    assert [type(e) for e in written] == [E.CasePart, E.CaseOpened, E.NoticeSent]
    again = Room()
    for e in written:
        again.story.apply(e)
    assert again.story.t.columns.held.tolist() == room.story.t.columns.held.tolist()
    (case,) = again.story.t.cases.values()
    assert (case.state, case.told) == ("open", {room.reader.agent.number})


def test_a_hold_that_the_ledger_doesn_t_confirm_is_answered_as_it_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk without a byte left the append waits; whoever asked was left to a time-out, and the members were held."""
    monkeypatch.setattr(operators, "HOLD_ANSWER_S", 0.05)

    async def scenario(room: Room, shard: SmallShard) -> None:
        t = room.story.t
        shard.ledger.answers.clear()
        case = await hold_now(shard, room.ops, room.text(room.root))
        assert (case.state, case.count, case.next) == ("pending", 3, None)
        assert t.columns.held[[room.root, room.child, room.mixed]].tolist() == [1, 1, 1]
        with pytest.raises(Refused, match="ledger_unreachable"):  # it waits behind the first, and is in force nowhere
            await hold_now(shard, room.ops, room.text(room.other))
        shard.ledger.answers.set()
        later = await hold_now(shard, room.ops, room.text(room.mixed))
        assert [k.state for k in t.cases.values()] == ["open", "open"]
        assert (later.state, t.columns.at.held[room.other]) == ("open", 0), "what was refused isn't done when there is room"

    run(scenario)


def test_a_case_released_before_its_notices_were_written_stays_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer, "BLOCK_EVENTS_MAX", 1)

    async def scenario(room: Room, shard: SmallShard) -> None:
        shard.ledger.full_after = 2
        case = await hold_now(shard, room.ops, room.text(room.root))
        shard.ledger.full_after = None
        await shard.operators.answer(room.ops, Release(case=case.case, message="fine"))
        await shard.holds.tend(room.story.t)
        assert [k.state for k in room.story.t.cases.values()] == ["released"]
        assert not room.story.t.columns.held.any()

    run(scenario)


def test_an_overdue_case_stays_held_while_the_ledger_is_full() -> None:
    async def scenario(room: Room, shard: SmallShard) -> None:
        await hold_now(shard, room.ops, room.text(room.root))
        (case,) = room.story.t.cases.values()
        case.until_ms = room.story.ms
        shard.ledger.full_after = 0
        await shard.holds.tend(room.story.t)
        assert case.state == "open"
        shard.ledger.full_after = None
        await shard.holds.tend(room.story.t)
        assert (case.state, room.story.t.held_total) == ("released", 0)

    run(scenario)


def test_a_leap_of_the_clock_ends_no_hold_of_suspects_and_their_time_does() -> None:
    async def scenario(room: Room, shard: SmallShard) -> None:
        began, running = room.story.ms, [0.0]
        leap = [0.0]
        clock = SteadyClock(lambda: began / 1000 + running[0] + leap[0], lambda: running[0])
        clock.begin(began)
        clock.met(clock())
        shard.now_ms, shard.unseen_ms = clock, clock.unseen_ms

        async def tended_after(seconds: float) -> str:
            running[0] += seconds
            clock()
            await shard.holds.tend(room.story.t)
            return case.state

        await hold_now(shard, room.ops, room.text(room.root))
        (case,) = room.story.t.cases.values()
        case.until_ms = clock() + DAY_MS
        for by_s in (15 * 3_600.0, 40 * 86_400.0):  # less than a day, and a month
            leap[0] += by_s
            clock()
            assert await tended_after(STAYED_S) == "open"
            assert clock() - began > by_s * 1000, "the leap is followed"
        assert clock() > case.until_ms
        assert await tended_after(86_400.0 - 3 * STAYED_S) == "open"
        assert await tended_after(2 * STAYED_S) == "released"

    run(scenario)


def test_a_ledger_that_holds_parts_and_seal_twice_is_replayed_all_the_same() -> None:
    """As a version that began a case again from its first part wrote it."""
    room = Room()
    t, members = room.story.t, np.array([room.root, room.child, room.mixed], np.int32)
    ((count, deltas),) = pack_members(members)
    part = E.CasePart(ms=1, case=b"c" * 16, part=0, count=count, deltas=deltas)
    seal = E.CaseOpened(
        ms=1, case=b"c" * 16, agent=room.ops.agent.id, roots=[room.root], parts=1, count=3, digest=members_digest(members)
    )
    notice = E.NoticeSent(ms=1, case=b"c" * 16, kind="recall", agents=[room.reader.agent.id])
    for e in (part, part, seal, notice):
        room.story.apply(e)
    assert t.columns.held[members].tolist() == [1, 1, 1]
    assert t.cases[b"c" * 16].told == {room.reader.agent.number}
    room.story.release(room.ops, b"c" * 16)
    for e in (part, seal):  # begun again after the release
        room.story.apply(e)
    assert (t.cases[b"c" * 16].state, t.held_total) == ("released", 0)


def test_notices_of_a_case_that_doesn_t_count_don_t_stop_a_replay() -> None:
    room = Room()
    seal = E.CaseOpened(ms=1, case=b"c" * 16, agent=room.ops.agent.id, roots=[1], parts=1, count=1, digest=b"d" * 32)
    sent = E.NoticeSent(ms=1, case=b"c" * 16, kind="recall", agents=[room.reader.agent.id])
    acked = E.NoticeAcked(ms=1, case=b"c" * 16, kind="recall", agent=room.reader.agent.id)
    for e in (seal, sent, acked):
        room.story.apply(e)
    assert (room.story.t.cases, room.story.t.notices) == ({}, {})


# --- a busy index thread ------------------------------------------------------------------------------
def test_a_fresh_plan_is_applied_while_the_index_thread_is_busy() -> None:
    async def scenario(room: Room, shard: SmallShard) -> None:
        plan = await planned(shard, room.ops, room.text(room.root))
        shard.index.stand_still()
        case = await asyncio.wait_for(applied(shard, room.ops, plan.plan), 5)
        assert (case.state, case.count) == ("open", 3)
        shard.index.go_on()

    run(scenario)


@pytest.mark.parametrize("way", ["plan", "source"])
def test_the_sequencer_goes_on_while_a_hold_waits_for_the_index_thread(way: str) -> None:
    async def scenario(room: Room, shard: SmallShard) -> None:
        catalog = next(iter(shard.indexes.values())).catalog
        catalog.sources["https://a"] = [room.root]
        plan = await planned(shard, room.ops, room.text(room.root))
        shard.holds.plans._kept.clear()  # as after a restart
        shard.index.stand_still()
        ask = applied(shard, room.ops, plan.plan) if way == "plan" else hold_now(shard, room.ops, "source:https://a")
        waiting = asyncio.create_task(ask)
        await asyncio.sleep(0.02)
        case = await asyncio.wait_for(hold_now(shard, room.ops, room.text(room.other)), 5)
        assert (case.state, waiting.done()) == ("open", False)
        shard.index.go_on()
        assert (await waiting).count == 3

    run(scenario)


def test_what_cites_a_source_since_the_catalog_was_asked_is_held_too() -> None:
    async def scenario(room: Room, shard: SmallShard) -> None:
        late = room.story.memory(room.writer)
        shard.follow(room.story.t)
        room.story.t.cited.append((late, ("https://a#p2",)))
        index = next(iter(shard.indexes.values()))
        index.catalog.sources["https://a"] = [room.root]
        case = await hold_now(shard, room.ops, "source:https://a")
        assert set(case.roots) == {room.text(room.root), room.text(late)}

    run(scenario)


def test_a_plan_is_used_once_and_found_by_the_end_of_its_id() -> None:
    async def scenario(room: Room, shard: SmallShard) -> None:
        plan = await planned(shard, room.ops, room.text(room.root))
        for wrong in (plan.plan[-7:], "0" * 8, "plan_", "mem_" + plan.plan[5:]):
            with pytest.raises(Refused, match="plan_unknown"):
                await applied(shard, room.ops, wrong)
        one, two = await asyncio.gather(
            applied(shard, room.ops, plan.plan[-8:]), applied(shard, room.ops, plan.plan), return_exceptions=True
        )
        assert {type(one), type(two)} == {Case, Refused}
        second = await planned(shard, room.ops, room.text(room.other))
        shard.holds.plans._kept.clear()
        assert (await applied(shard, room.ops, second.plan[-9:])).count == 2
        with pytest.raises(Refused, match="plan_unknown"):
            await applied(shard, room.ops, second.plan[-9:])

    room = run(scenario)
    assert len(room.story.t.plans_used) == 2


# --- what is shown of a case --------------------------------------------------------------------------
def test_members_of_a_case_are_shown_with_their_hops_and_whether_they_are_mixed() -> None:
    async def scenario(room: Room, shard: SmallShard) -> None:
        case = await hold_now(shard, room.ops, room.text(room.root))
        late = room.story.memory(room.writer, edges=[E.Edge(E.DECLARED, room.mixed, 255)], cases=[next(iter(room.story.t.cases))])
        shard.follow(room.story.t)
        expected = {room.text(s): x for s, x in ((room.root, (0, False)), (room.child, (1, False)), (room.mixed, (2, True)))}
        assert {m.id: (m.hops, m.mixed) for m in case.members} == expected
        shown = await shard.operators.answer(room.ops, CaseQuery(case=case.case))
        assert isinstance(shown, Case)
        assert {m.id: (m.hops, m.mixed) for m in shown.members} == {**expected, room.text(late): (3, False)}
        released = await shard.operators.answer(room.ops, Release(case=case.case, message="fine"))
        assert isinstance(released, Case)
        assert released.members[2].hops == 2

    run(scenario)


def test_a_memory_that_more_agents_were_served_than_one_event_can_name_is_held_and_released() -> None:
    """A gateway makes that many sessions in half an hour. Refused as too large, its hold would be gone with the next start."""
    sessions = 40_000

    async def scenario(room: Room, shard: SmallShard) -> None:
        t = room.story.t
        for _ in range(sessions):
            number = len(t.agents.all)
            t.agents._added(Agent(number, number.to_bytes(16), f"s{number}", "user_session", [f"U{number}"], ("p",)))
            t.served_to.note(number, [room.root])
        case = await hold_now(shard, room.ops, room.text(room.root))
        state = t.cases[next(iter(t.cases))]
        assert (case.state, len(state.told)) == ("open", sessions + 1)
        assert (await shard.operators.answer(room.ops, Release(case=case.case, message="fine"))).state == "released"  # type: ignore[attr-defined]
        assert t.columns.at.held[room.root] == 0

    run(scenario)


# --- members that no edge of the closure reaches ------------------------------------------------------
def test_a_case_shows_a_copy_that_another_member_accounts_for_and_what_derives_from_it() -> None:
    """They joined with a served edge (`Evidence.strong`), and are the last of the tenant's memories."""

    async def scenario(room: Room, shard: SmallShard) -> None:
        opened = await hold_now(shard, room.ops, room.text(room.root))
        [case] = room.story.t.cases
        copy = room.story.memory(room.writer, cases=[case], edges=[E.Edge(E.SERVED, room.child, 150)])
        below = room.story.memory(room.writer, cases=[case], edges=[E.Edge(E.DECLARED, copy, 255)])
        shard.follow(room.story.t)
        shown = await shard.operators.answer(room.ops, CaseQuery(case=opened.case))
        assert isinstance(shown, Case)
        assert {m.id: m.hops for m in shown.members} == {
            room.text(s): n for s, n in ((room.root, 0), (room.child, 1), (room.mixed, 2), (copy, 2), (below, 3))
        }
        released = await shard.operators.answer(room.ops, Release(case=opened.case, message="it was right"))
        assert isinstance(released, Case)
        assert released.count == 5

    run(scenario)


# --- large graphs -------------------------------------------------------------------------------------
@pytest.mark.parametrize("ask", [Hold(selector=["ROOT"], dry_run=True), Trace(id="ROOT")], ids=["plan", "trace"])
def test_others_are_served_while_a_large_graph_is_looked_at(ask: Any) -> None:
    """Of twenty thousand descendants a plan took 0.7 s: nobody read or wrote meanwhile, and a lease is over after five."""

    async def scenario(room: Room, shard: SmallShard) -> None:
        for _ in range(20 * PART):
            room.story.memory(room.writer, edges=[E.Edge(E.DECLARED, room.other, 255)])
        named = {"selector": [room.text(room.other)]} if isinstance(ask, Hold) else {"id": room.text(room.other)}
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(others())
        verb = TABLE["ops"]["hold" if isinstance(ask, Hold) else "trace"]
        answer = await shard.operators.answer(replace(room.ops, row=verb), msgspec.structs.replace(ask, **named))
        task.cancel()
        assert isinstance(answer, Plan | TraceAnswer)
        assert answer.count == 20 * PART + 2, "the mixed one too"
        assert turns >= 20

    run(scenario)


@pytest.mark.parametrize("way", ["now", "plan", "shown"])
def test_others_have_their_turn_while_a_large_hold_is_set_and_shown(way: str) -> None:
    """Twenty thousand memories of one writer held everybody up for .2 s. Counted: calls of functions between two turns."""

    async def scenario(room: Room, shard: SmallShard) -> None:
        story, ops = room.story, replace(room.ops, row=TABLE["ops"]["hold"])
        for _ in range(20 * PART):
            story.memory(room.writer, edges=[E.Edge(E.DECLARED, room.other, 255)])
        for i in range(100):
            reader = story.agent(f"reader {i}")
            story.serve(reader, *range(room.other + 50 * i, room.other + 50 * i + 200))
        story.memory(room.writer, class_=2)
        shard.follow(story.t)
        high = replace(story.agent("high", "operator", tags=("see:restricted",)), row=ops.row)
        shard.follow(story.t)
        plan = await planned(shard, high, "agent:writer")
        with busiest_turn() as calls:
            case = await (applied(shard, high, plan.plan) if way == "plan" else hold_now(shard, high, "agent:writer"))
        if way == "shown":
            narrow = replace(ops, row=TABLE["ops"]["case"])
            with busiest_turn() as calls:
                shown = await shard.operators.answer(narrow, CaseQuery(case=case.case))
            assert isinstance(shown, Case)
            assert (shown.count, shown.told_count) == (case.count - 1, 101)
        assert max(calls) < 10 * PART
        (state,) = story.t.cases.values()
        assert (state.state, case.told_count, len(state.members)) == ("open", 101, story.t.memories)
        assert all(story.t.columns.held[state.members] == 1)
        assert sum(bool(ctx.exposed) for ctx in story.t.contexts.values()) == 101

    run(scenario)


@contextmanager
def busiest_turn() -> Iterator[list[int]]:
    """How many calls of functions there were in each turn of the loop: what no other load on the machine changes."""
    turns = [0]

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "_run_once":
            turns.append(0)
        turns[-1] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield turns
    finally:
        sys.setprofile(None)


def test_however_often_it_asks_what_an_agent_was_served_of_a_case_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a case of twenty thousand that takes ten milliseconds, and an agent may ask five hundred times a second."""
    looks = 0
    those = ServedTo.those

    def counting(self: ServedTo, agent: int, seqs: Any) -> list[int]:
        nonlocal looks
        looks += 1
        return those(self, agent, seqs)

    monkeypatch.setattr(ServedTo, "those", counting)

    async def scenario(room: Room, shard: SmallShard) -> None:
        t, reader = room.story.t, room.reader

        def told() -> list[str]:
            case = next(iter(t.cases.values()))
            return shard.holds.notices.notice(t, case, "recall", reader.agent, reader.key).ids

        shown = await hold_now(shard, room.ops, room.text(room.root))
        assert [told() for _ in range(100)] == [[room.text(room.root)]] * 100
        assert looks == 1
        room.story.serve(reader, joined := room.story.memory(room.writer, cases=[ids.raw(shown.case)]))
        assert told() == [room.text(room.root), room.text(joined)]
        assert looks == 2

    run(scenario)
