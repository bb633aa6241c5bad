"""Answers that grow with a tenant: each comes in pages that fit into a message, and what is counted is all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
import pytest

import bus.testing
from bus import Rejected, frames, limits
from bus.frames import (
    AdmAgent,
    AdminRequest,
    AdmProject,
    AdmTenant,
    Answer,
    CaseQuery,
    ErasureQuery,
    Frame,
    LegalHoldRequest,
    Prune,
    Trace,
    TraceAnswer,
)
from bus.limits import PAGE_BYTES_MAX, PAGE_ITEMS_MAX, PAYLOAD_BYTES_MAX
from gate.admin import Admin
from gate.erasure.requests import Requests
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.members import pack_members
from gate.pages import filled, following
from gate.shard import Shard

from .small_shard import SmallShard
from .story import ACCOUNT, Story

Ask = Callable[[int], Coroutine[Any, Any, Any]]


class Desk:
    """An operator of a story, and the shard that answers."""

    def __init__(self) -> None:
        self.story = Story()
        self.writer, self.ops = self.story.agent("writer"), self.story.agent("ops", "operator")
        self.shard = SmallShard(self.story.t, lambda: self.story.ms)

    async def ask(self, req: Frame) -> Any:
        return await self.shard.operators.answer(self.ops, req)


def run(scenario: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Desk())

    asyncio.run(main())


async def pages_of(ask: Ask, *, up: bool = True) -> list[Any]:
    """All pages; each fits into a message with room to spare. `up`: whether cursors rise, as of all but lists of the newest."""
    pages, cursor = [], 0
    while True:
        page = await ask(cursor)
        assert len(frames.encode(page)) < PAYLOAD_BYTES_MAX / 2
        pages.append(page)
        following = page.result["next"] if isinstance(page, frames.Done) else page.next
        if following is None:
            return pages
        assert following > cursor if up or not cursor else following < cursor
        cursor = following


# --- a page ---------------------------------------------------------------------------------------------
def test_a_page_is_bounded_in_items_and_bytes_and_holds_one_item_however_large() -> None:
    assert filled(range(3)) == [0, 1, 2]
    assert len(filled(range(PAGE_ITEMS_MAX + 1))) == PAGE_ITEMS_MAX
    assert filled(range(9), 2) == [0, 1]
    half = "x" * (PAGE_BYTES_MAX // 2 - 10)
    assert len(filled([half] * 3)) == 2
    huge = "x" * PAGE_BYTES_MAX
    assert filled([huge, "y"]) == [huge]
    assert filled([]) == []


def test_pages_follow_each_other_until_all_is_shown() -> None:
    assert [following(0, 2, 5), following(2, 2, 5), following(4, 1, 5), following(0, 0, 0)] == [2, 4, None, None]


# --- operators ------------------------------------------------------------------------------------------
def test_a_trace_of_nodes_with_very_many_edges_comes_in_pages() -> None:
    async def scenario(desk: Desk) -> None:
        story = desk.story
        sources = [story.memory(desk.writer)]
        for _ in range(99):
            sources.append(story.memory(desk.writer, edges=[E.Edge(E.DECLARED, sources[0], 255)]))
        edges = [E.Edge(E.COPIED, s, 255) for s in sources]
        children = [story.memory(desk.writer, edges=edges) for _ in range(120)]

        async def ask(cursor: int) -> TraceAnswer:
            return cast(TraceAnswer, await desk.ask(Trace(id=story.t.memory_id(sources[0]), cursor=cursor)))

        pages = await pages_of(ask)
        assert len(pages) > 2
        assert {n.id for page in pages for n in page.nodes} == {story.t.memory_id(s) for s in sources + children}
        found = [(e.from_, e.to) for page in pages for e in page.edges]
        assert len(found) == len(set(found)) == 99 + 120 * 100
        assert all(page.count == 220 for page in pages)

    run(scenario)


def _legal_holds(story: Story, by: Principal, members: list[int], n: int) -> None:
    [(count, deltas)] = pack_members(members)
    for i in range(n):
        id_, agent = i.to_bytes(16, "big"), by.agent.id
        story.apply(E.LegalHoldPlaced(ms=story.ms, hold=id_, agent=agent, person="kim", count=count, deltas=deltas))


def test_legal_holds_and_erasures_come_in_pages() -> None:
    async def scenario(desk: Desk) -> None:
        story, requests = desk.story, Requests(cast(Shard, desk.shard))
        members = [story.memory(desk.writer) for _ in range(PAGE_ITEMS_MAX)]
        _legal_holds(story, desk.ops, members, 100)
        pages = await pages_of(lambda cursor: requests.legal_hold(desk.ops, LegalHoldRequest(cursor=cursor)), up=False)
        assert len(pages) > 2
        holds = [hold for page in pages for hold in page.holds]
        assert len({hold.hold for hold in holds}) == len(holds) == 100
        assert {(hold.count, len(hold.ids)) for hold in holds} == {(PAGE_ITEMS_MAX, PAGE_ITEMS_MAX)}
        assert requests.receipts(desk.ops, ErasureQuery()).next is None

    run(scenario)


def test_what_comes_in_between_two_pages_of_a_list_neither_doubles_nor_hides_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in ("gate.operators.CASES_MAX", "gate.erasure.requests.LISTED_MAX", "gate.lifecycle.pruning.LISTED_MAX"):
        monkeypatch.setattr(where, 2)

    async def scenario() -> None:
        async with bus.testing.bus() as world:
            alice, desk = world.agent("alice"), world.operator("ops", person="kim")

            async def entry(i: int) -> dict[str, str]:
                """One more of each list."""
                held, erased = await alice.write(f"Held, number {i}"), await alice.write(f"Erased, number {i}")
                await alice.write(f"Noted in passing, number {i}", scope="operational")
                await desk.close_context("alice", "a new day")
                case = await desk.hold_now(held.id, "forged")
                legal = (await desk.place_legal_hold(held.id, "a case at court")).hold
                erasure = (await desk.erase(erased.id, "asked for")).erasure
                return {"case": case.case, "legal": legal, "erasure": erasure, "end": (await desk.ends())[0].end}

            lists: dict[str, tuple[Callable[[int], Any], str, str]] = {
                "case": (lambda cursor: CaseQuery(cursor=cursor), "cases", "case"),
                "legal": (lambda cursor: LegalHoldRequest(cursor=cursor), "holds", "hold"),
                "end": (lambda cursor: Prune(action="list", cursor=cursor), "ends", "end"),
                "erasure": (lambda cursor: ErasureQuery(cursor=cursor), "erasures", "erasure"),
            }
            there = [await entry(i) for i in range(5)]
            pages: dict[str, list[Any]] = {kind: [await desk._look(make(0), Answer)] for kind, (make, _, _) in lists.items()}
            for i in range(5, 7):
                await entry(i)
                for kind, (make, _, _) in lists.items():
                    pages[kind].append(await desk._look(make(pages[kind][-1].next), Answer))
            for kind, (_, name, id_) in lists.items():
                found = [getattr(x, id_) for page in pages[kind] for x in getattr(page, name)]
                assert (found, pages[kind][-1].next) == ([x[kind] for x in reversed(there)], None), kind
            whole = (desk.cases(), desk.legal_holds(), desk.erasures(), desk.ends())
            assert [len(await asked) for asked in whole] == [7] * 4

    asyncio.run(scenario())


def test_why_and_context_name_the_newest_cases_and_count_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bus.testing.bus() as world:
            alice, bob, desk = world.agent("alice"), world.agent("bob"), world.operator()
            memory = (await alice.write("The staging database uses rotating keys")).id
            assert (await bob.query("staging")).ids == [memory]
            case = await desk.hold_now(memory, "forged")
            why, context = await desk.why(memory), await desk.context("bob")
            assert (why.cases, why.cases_count) == (context.exposed, context.exposed_count) == ([case.case], 1)

            for where in ("gate.operators", "gate.why"):
                monkeypatch.setattr(f"{where}.PAGE_ITEMS_MAX", 1)
            world.clock.advance(seconds=1)
            newer = await desk.hold_now(memory, "forged indeed")
            why, context = await desk.why(memory), await desk.context("bob")
            assert (why.cases, why.cases_count) == (context.exposed, context.exposed_count) == ([newer.case], 2)

    asyncio.run(scenario())


# --- the home -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("what", "frame"),
    [("agents", AdmAgent(account=ACCOUNT)), ("projects", AdmProject(account=ACCOUNT)), ("tenants", AdmTenant())],
)
def test_lists_of_the_home_come_in_pages(what: str, frame: AdminRequest) -> None:
    async def scenario(desk: Desk) -> None:
        story, admin = desk.story, Admin(cast(Shard, desk.shard))
        for i in range(1_100):
            name = f"{i:04}"
            story.apply(E.AgentIssued(ms=story.ms, agent=i.to_bytes(16, "big"), name=name, key=f"U{name}", role="agent"))
            story.project(f"{name}{'-' * 59}x", flow_from=[f"{name}{'-' * 59}y"] * 9)

        async def ask(cursor: int) -> frames.Done:
            return await admin.answer(msgspec.structs.replace(frame, cursor=cursor))

        rows = [row["name"] for page in await pages_of(ask) for row in page.result[what]]
        assert rows == sorted(set(rows))
        assert len(rows) == {"agents": 1_102, "projects": 1_101, "tenants": 1}[what]

    run(scenario)


# --- the last resort ------------------------------------------------------------------------------------
def test_an_answer_that_fits_no_message_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with bus.testing.bus() as world:
            alice, desk = world.agent("alice"), world.operator()
            memory = (await alice.write("The staging database uses rotating keys")).id
            monkeypatch.setattr(limits, "PAYLOAD_BYTES_MAX", 800)
            assert (await desk.stats()).counts["memories"] == 1
            with pytest.raises(Rejected) as refused:
                await desk.why(memory)
            assert (refused.value.reason, refused.value.limit) == ("answer_too_large", 800)

    asyncio.run(scenario())
