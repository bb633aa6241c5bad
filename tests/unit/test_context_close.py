"""Who may declare an agent's head empty: who answers for every project that its context has read in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from bus.frames import ContextAnswer, ContextRequest, Recall
from gate.identify import Principal
from gate.ledger import events as E
from gate.projections.catalog import MemoryRow
from gate.quotas import Quotas
from gate.reading.ask import Ask, Found
from gate.refusals import Refused
from gate.rights import TABLE
from gate.writing.context_texts import ContextTexts
from gate.writing.lifetime import OPERATIONAL

from .small_shard import SmallShard, while_running
from .story import Story


def close(story: Story, by: Principal, agent: str, texts: ContextTexts | None = None, meanwhile: E.AnyEvent | None = None) -> int:
    """The epoch after a close. `texts`: what the index thread keeps of contexts. `meanwhile`: happens before its turn comes."""

    async def main() -> int:
        shard = SmallShard(story.t, lambda: story.ms)
        shard.context_texts = texts or shard.context_texts
        asked = asyncio.create_task(
            shard.operators.answer(
                replace(by, row=TABLE["ops"]["context"]), ContextRequest(agent=agent, action="close", message="a new shift")
            )
        )
        await asyncio.sleep(0)
        if meanwhile is not None:
            story.apply(meanwhile)
            shard.follow(story.t)
        await while_running(shard, asked.done)
        answer = asked.result()
        await asyncio.sleep(0)  # the index thread's turn
        assert isinstance(answer, ContextAnswer)
        return answer.epoch

    return asyncio.run(main())


def test_an_operator_of_some_of_an_agent_s_projects_may_not_close_its_context() -> None:
    story = Story("p1", "p2")
    both = story.agent("both", projects=("p1", "p2"))
    story.serve(both, story.memory(both, class_=2))
    one, all_ = (
        story.agent("one", "operator", projects=("p2",)),
        story.agent("all", "operator", tags=("see:restricted",), projects=("p1", "p2")),
    )
    with pytest.raises(Refused, match="context_elsewhere"):
        close(story, one, "both")
    assert story.context(both).labels.cls == 2
    assert close(story, all_, "both") == 1
    assert story.context(both).labels.cls == 0


def test_projects_that_the_agent_has_no_more_count_as_long_as_it_remembers_them() -> None:
    story = Story("p1", "p2")
    mover = story.agent("mover", projects=("p1", "p2"))
    story.serve(mover, story.memory(mover))
    mover.agent.projects = ("p2",)
    one = story.agent("one", "operator", projects=("p2",))
    with pytest.raises(Refused, match="context_elsewhere"):
        close(story, one, "mover")


def test_what_fell_out_of_its_window_counts_too() -> None:
    story = Story("p1", "p2")
    mover = story.agent("mover", projects=("p1", "p2"))
    story.serve(mover, story.memory(mover))
    mover.agent.projects = ("p2",)
    story.context(mover).served.clear()
    with pytest.raises(Refused, match="context_elsewhere"):
        close(story, story.agent("one", "operator", projects=("p2",)), "mover")


@pytest.mark.parametrize("how", ["served", "noted"])
def test_an_operator_of_lower_clearance_may_not_close_it(how: str) -> None:
    """Else the agent writes again what it read, as if it were everybody's; or its notes end by who may not see them."""
    story = Story()
    agent = story.agent("agent")
    secret = story.memory(agent, class_=2, scope=OPERATIONAL)
    if how == "served":
        story.memory(agent)
        story.t.columns.ended[secret] = story.ms
        story.serve(agent, secret)
    low, high = story.agent("low", "operator"), story.agent("high", "operator", tags=("see:restricted",))
    with pytest.raises(Refused, match="context_elsewhere"):
        close(story, low, "agent")
    assert close(story, high, "agent") == 1
    assert close(story, low, "agent") == 2


def test_a_supervisor_closes_any_context() -> None:
    story = Story("p1", "p2")
    both = story.agent("both", projects=("p1", "p2"))
    story.serve(both, story.memory(both))
    assert close(story, story.agent("chief", "supervisor", projects=("p2",)), "both") == 1


def test_what_the_index_thread_keeps_of_a_context_that_is_closed_goes_with_it() -> None:
    story, texts = Story(), ContextTexts()
    agent, other = story.agent("agent"), story.agent("other")
    for one in (agent, other):
        ctx = story.context(one)
        texts.of((story.t.account, ctx.id)).begin(ctx.epoch)
    close(story, story.agent("chief", "supervisor"), "agent", texts)
    assert (len(texts), texts.behind((story.t.account, story.context(other).id), story.context(other))) == (1, 0)


@pytest.mark.parametrize("what", ["revoked", "suspended"])
def test_nothing_is_done_for_who_was_cut_before_its_turn_came(what: str) -> None:
    story = Story()
    story.agent("agent")
    chief, other = story.agent("chief", "supervisor"), story.agent("other", "supervisor")
    cut: E.AnyEvent = E.AgentRevoked(ms=story.ms, agent=chief.agent.id, keys=[chief.key], whole=True)
    if what == "suspended":
        cut = E.TenantChanged(ms=story.ms, state="suspended")
    with pytest.raises(Refused, match="credential_revoked" if what == "revoked" else "tenant_suspended"):
        close(story, chief, "agent", meanwhile=cut)
    if what == "suspended":
        story.apply(E.TenantChanged(ms=story.ms, state="active"))
    assert close(story, other, "agent") == 1


def test_a_tenant_that_used_up_its_reserve_adds_no_more_to_the_ledger() -> None:
    story = Story()
    story.agent("agent")
    chief = story.agent("chief", "supervisor")
    story.t.quotas = Quotas(tenant_bytes=1_000, tenant_reserve=500)
    story.t.bytes = 1_499
    assert close(story, chief, "agent") == 1, "it is beyond its memories, not its reserve"
    with pytest.raises(Refused) as refused:
        close(story, chief, "agent")
    assert (refused.value.code, refused.value.field, refused.value.limit) == ("quota_full", "bytes", 1_500)


# --- reads that cross a close ---------------------------------------------------------------------------
def reading(story: Story, shard: SmallShard, by: Principal, seq: int) -> Ask:
    """A question that was decided: of what is found only this memory."""
    a = Ask(replace(by, row=TABLE["mem"]["get"]), "get", story.context(by), "", "", story.ms)
    [event] = [e for e in story.told if isinstance(e, E.MemoryWritten) and e.id == story.t.ids[seq]]

    def admit(batch: list[Ask], now_ms: int) -> Iterator[None]:
        a.found, a.rows = [Found(seq, 0, 0, 0, 0.0)], {seq: MemoryRow(seq, E.encode(event), "text", (), "", "", "", "", "")}
        yield

    cast(Any, shard.recalls)._admit = admit
    shard.recalls.submit(a)
    return a


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110 - what pumps do
            await asyncio.sleep(0)


@pytest.mark.parametrize("when", ["asked before, answered meanwhile", "asked meanwhile"])
def test_nothing_is_served_into_a_context_while_its_close_is_written(when: str) -> None:
    """Else it would be in the agent's head without a mark in its context, and whoever closes it had not answered for it."""

    async def scenario(story: Story, shard: SmallShard) -> None:
        agent, low = story.agent("agent"), story.agent("low", "operator")
        secret = story.memory(story.agent("author"), class_=2)
        shard.follow(story.t)
        shard.ledger.answers.clear()
        if when == "asked before, answered meanwhile":
            shard.reads.answers.clear()
            reading(story, shard, agent, story.memory(agent))
            shard.follow(story.t)
            await until(lambda: story.context(agent).recalls == 1)
        request = ContextRequest(agent="agent", action="close", message="a new shift")
        closing = asyncio.create_task(shard.operators.answer(replace(low, row=TABLE["ops"]["context"]), request))
        await until(lambda: bool(story.context(agent).closing))
        if when == "asked meanwhile":
            reading(story, shard, agent, secret)
        shard.reads.answers.set()
        await until(lambda: bool(shard.refused or shard.sent))
        assert [e.code for e in shard.refused] == ["context_changed"]
        assert not shard.sent
        assert secret not in story.context(agent).served
        shard.ledger.answers.set()
        assert (await closing).epoch == 1  # type: ignore[attr-defined]
        reading(story, shard, agent, mine := story.memory(agent))
        await until(lambda: bool(shard.sent))
        assert (story.context(agent).epoch, [*story.context(agent).served]) == (1, [mine])

    with_pumps(scenario)


def test_a_close_that_is_refused_or_that_the_ledger_has_no_room_for_stops_no_read() -> None:
    async def scenario(story: Story, shard: SmallShard) -> None:
        agent, chief, stranger = story.agent("agent"), story.agent("chief", "supervisor"), story.agent("low", "operator")
        story.serve(agent, story.memory(agent, class_=2))
        shard.follow(story.t)
        request = ContextRequest(agent="agent", action="close", message="a new shift")
        for by, full, code in ((stranger, None, "context_elsewhere"), (chief, 0, "ledger_full")):
            shard.ledger.full_after = full
            with pytest.raises(Refused, match=code):
                await shard.operators.answer(replace(by, row=TABLE["ops"]["context"]), request)
        reading(story, shard, agent, seq := story.memory(agent))
        await until(lambda: bool(shard.sent))
        assert isinstance(shard.replies()[0], Recall)
        assert (story.context(agent).epoch, seq in story.context(agent).served) == (0, True)

    with_pumps(scenario)


def with_pumps(scenario: Callable[[Story, SmallShard], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        story = Story()
        shard = SmallShard(story.t, lambda: story.ms)
        task = asyncio.create_task(scenario(story, shard))
        await while_running(shard, task.done)
        task.result()

    asyncio.run(main())
