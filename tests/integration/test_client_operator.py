"""The operator's desk against a real broker: whole answers out of pages, and changes that never happen twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import anyio
import msgspec
import pytest

import bus
from bus.frames import Cases, Hold, Member, TraceAnswer

from .rim import Broker, Respond, Rim, broker, creds, gatekeeper, until

CREDS = creds("project:p1", name="ops")
SHORT = bus.Timing(request_s=0.2, deadline_s=1.5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


Scenario = Callable[[bus.Desk, Rim], Coroutine[Any, Any, None]]


def play(server: Broker, scenario: Scenario, timing: bus.Timing | None = None) -> None:
    async def scene() -> None:
        async with gatekeeper(server.url) as rim, bus.connect_operator(server.url, CREDS, timing=timing) as desk:
            await scenario(desk, rim)

    asyncio.run(scene())


def members(first: int, count: int) -> list[Member]:
    return [Member(id=f"mem_{i}") for i in range(first, first + count)]


def case(**fields: Any) -> bus.Case:
    return bus.Case(**{"case": "case_1", "state": "open", "by": "ops", "count": 3, **fields})


def plan_page(cursor: int, plan: str = "plan_1") -> bus.Plan:
    following = cursor + 2 if cursor < 4 else None
    return bus.Plan(plan=plan, roots=["mem_0"], members=members(cursor, 2), count=6, by_agent={"writer": 6}, next=following)


def test_a_plan_comes_with_all_its_members(server: Broker) -> None:
    async def scenario(desk: bus.Desk, rim: Rim) -> None:
        async def plan(hold: Hold, respond: Respond) -> None:
            await respond(plan_page(hold.cursor))

        rim.answers["hold"] = plan
        made = await desk.plan("mem_0", suspects=True)
        assert [m.id for m in made.members] == [f"mem_{i}" for i in range(6)]
        assert (made.plan, made.count, made.by_agent, made.next) == ("plan_1", 6, {"writer": 6}, None)
        asked = rim.requests("hold")
        assert all(h.dry_run and h.suspects and h.selector == ["mem_0"] for h in asked)
        assert [(h.plan, h.cursor) for h in asked] == [("", 0), ("plan_1", 2), ("plan_1", 4)]

    play(server, scenario)


def test_a_plan_that_changes_between_its_pages_is_a_conflict(server: Broker) -> None:
    async def scenario(desk: bus.Desk, rim: Rim) -> None:
        async def plan(hold: Hold, respond: Respond) -> None:
            await respond(plan_page(hold.cursor, plan="plan_2" if hold.cursor else "plan_1"))

        rim.answers["hold"] = plan
        with pytest.raises(bus.Conflict) as conflict:
            await desk.plan(["mem_0"])
        assert conflict.value.reason == "plan_stale"

    play(server, scenario)


def test_pages_that_do_not_advance_are_a_wire_error_and_not_an_endless_loop(server: Broker) -> None:
    async def scenario(desk: bus.Desk, rim: Rim) -> None:
        async def stuck(_request: Any, respond: Respond) -> None:
            await respond(Cases(cases=[], next=7))

        rim.answers["case"] = stuck
        with pytest.raises(bus.MalformedFrame, match="don't end"):
            await desk.cases()
        assert len(rim.seen) == 2

    play(server, scenario)


def test_holds_releases_and_reviews_send_what_was_asked(server: Broker) -> None:
    async def scenario(desk: bus.Desk, rim: Rim) -> None:
        async def held(_request: Any, respond: Respond) -> None:
            await respond(case())

        async def reviewed(_request: Any, respond: Respond) -> None:
            await respond(bus.WhyAnswer(id="mem_1", kind="memory", sentences=["s"], facts={"state": "active"}))

        rim.answers |= {"hold": held, "release": held, "review": reviewed}
        assert (await desk.apply("plan_1", "forged")).case == "case_1"
        await desk.hold_now("agent:writer", "3 a.m.")
        await desk.release("case_1", "false alarm")
        assert (await desk.review("mem_1", "accept", "checked")).facts == {"state": "active"}
        apply, now = rim.requests("hold")
        assert (apply.plan, apply.message, apply.now, apply.selector) == ("plan_1", "forged", False, [])
        assert (now.selector, now.message, now.now) == (["agent:writer"], "3 a.m.", True)
        (release,), (review,) = rim.requests("release"), rim.requests("review")
        assert (release.case, release.message) == ("case_1", "false alarm")
        assert (review.id, review.verdict, review.message) == ("mem_1", "accept", "checked")

    play(server, scenario)


def test_cases_and_traces_come_whole(server: Broker) -> None:
    async def scenario(desk: bus.Desk, rim: Rim) -> None:
        async def cases(request: Any, respond: Respond) -> None:
            if request.case:
                await respond(case(members=members(request.cursor, 2), next=None if request.cursor else 2))
            else:
                await respond(Cases(cases=[case(case=f"case_{request.cursor}")], next=None if request.cursor else 1))

        async def trace(request: Any, respond: Respond) -> None:
            edge = bus.Edge(from_=f"mem_{request.cursor}", to="mem_9", kind="declared")
            page = TraceAnswer(root="mem_0", direction="down", nodes=members(request.cursor, 2), edges=[edge], count=4)
            await respond(msgspec.structs.replace(page, next=None if request.cursor else 2))

        rim.answers |= {"case": cases, "trace": trace}
        assert [m.id for m in (await desk.case("case_1")).members] == ["mem_0", "mem_1", "mem_2", "mem_3"]
        assert [c.case for c in await desk.cases()] == ["case_0", "case_1"]
        traced = await desk.trace("mem_0", "down", hops=3, edges=["declared", "served"])
        assert ([n.id for n in traced.nodes], len(traced.edges)) == (["mem_0", "mem_1", "mem_2", "mem_3"], 2)
        assert all((t.hops, t.edges) == (3, ["declared", "served"]) for t in rim.requests("trace"))

    play(server, scenario)


def test_why_context_and_stats_answer_with_their_own_frames(server: Broker) -> None:
    async def scenario(desk: bus.Desk, rim: Rim) -> None:
        async def why(request: Any, respond: Respond) -> None:
            await respond(
                bus.WhyAnswer(id=request.id, kind="memory", sentences=["s"], facts={}, content="text" if request.reveal else None)
            )

        async def context(request: Any, respond: Respond) -> None:
            closed = request.action == "close"
            await respond(
                bus.ContextAnswer(context="ctx_1", root="agt_1", epoch=1, recalls=0, served=0, trust_floor=1, closed=closed)
            )

        async def stats(_request: Any, respond: Respond) -> None:
            await respond(bus.Stats(counts={"memories": 3}))

        rim.answers |= {"why": why, "context": context, "stats": stats}
        assert (await desk.why("mem_1")).content is None
        assert (await desk.why("mem_1", reveal=True)).content == "text"
        assert not (await desk.context("writer")).closed
        assert (await desk.close_context("writer", "agent was restarted from scratch")).closed
        assert (await desk.stats()).counts == {"memories": 3}

    play(server, scenario)


def test_a_change_whose_answer_is_lost_is_not_sent_again(server: Broker) -> None:
    async def scenario(desk: bus.Desk, rim: Rim) -> None:
        async def silent(_request: Any, respond: Respond) -> None: ...

        rim.answers |= {"hold": silent, "case": silent}
        with pytest.raises(bus.DeadlineExceeded, match="happened or not") as lost:
            await desk.apply("plan_1", "forged")
        assert (lost.value.reason, len(rim.requests("hold"))) == ("outcome_unknown", 1)
        with pytest.raises(bus.DeadlineExceeded):
            await desk.cases()
        assert len(rim.requests("case")) > 1  # a look is safe to repeat

    play(server, scenario, SHORT)


def test_a_change_that_nobody_got_is_sent_again(server: Broker) -> None:
    async def scenario() -> None:
        async with bus.connect_operator(server.url, CREDS) as desk, anyio.create_task_group() as tasks:
            cases: list[bus.Case] = []

            async def apply() -> None:
                cases.append(await desk.apply("plan_1", "forged"))

            async def held(_request: Any, respond: Respond) -> None:
                await respond(case())

            tasks.start_soon(apply)
            async with gatekeeper(server.url) as rim:
                rim.answers["hold"] = held
                await until(lambda: bool(cases))
                assert len(rim.requests("hold")) == 1

    asyncio.run(scenario())
