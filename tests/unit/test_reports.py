"""Reports and ends through the real sequencer: what they cost, who may, and that a replay of their blocks gives the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bus.frames import ContextRequest, Frame, Report, Reported
from gate.config import DAY_MS
from gate.identify import Principal
from gate.ledger import events as E
from gate.refusals import Refused
from gate.rights import TABLE
from gate.state.tenant import Tenant
from gate.verifying.answers import MOVING, STAMPED

from .small_shard import SmallShard, while_running
from .story import ACCOUNT, Story


def told(story: Story, ask: Callable[[SmallShard], Any]) -> tuple[Frame, list[E.AnyEvent]]:
    """The answer to one request, and the events that it cost; live state is as a replay of all events gives it."""

    async def main() -> tuple[Frame, list[E.AnyEvent]]:
        shard = SmallShard(story.t, lambda: story.ms)
        before = len(story.told)
        asked = asyncio.create_task(ask(shard))
        await while_running(shard, asked.done)
        story.told += [event for block in shard.events() for event in block]
        return asked.result(), story.told[before:]

    answer, events = asyncio.run(main())
    again = Tenant(ACCOUNT, "acme", b"k" * 32)
    for seq, event in enumerate(story.told, 1):
        again.apply(seq, event)
    n = story.t.columns.n
    for name in (*MOVING, *STAMPED):
        assert (getattr(again.columns, name)[:n] == getattr(story.t.columns, name)[:n]).all(), name
    assert (again.ends.keys(), again.promoted) == (story.t.ends.keys(), story.t.promoted)
    return answer, events


def reported(story: Story, by: Principal, *seqs: int) -> tuple[Reported, list[E.AnyEvent]]:
    request = Report(used=[story.t.memory_id(s) for s in seqs])
    asker = replace(by, row=TABLE["mem"]["report"])
    answer, events = told(story, lambda shard: shard.reports.answer(asker, request))
    assert isinstance(answer, Reported)
    return answer, events


def test_one_event_moves_all_ends_of_a_report_and_none_is_written_for_nothing() -> None:
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    two = [story.memory(writer, kind=2, expires=story.ms + 90 * DAY_MS) for _ in range(2)]
    story.serve(reader, *two)
    assert reported(story, reader, *two)[1] == []
    story.ms += 30 * DAY_MS
    answer, events = reported(story, reader, *two)
    end = story.ms + 90 * DAY_MS
    assert events == [E.LifeExtended(ms=story.ms, agent=reader.agent.id, items=[(s, end) for s in two])]
    assert len(answer.extended) == 2
    story.ms += DAY_MS
    assert reported(story, reader, *two)[1] == []


def test_who_was_not_served_all_of_them_moves_none() -> None:
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    served, other = (story.memory(writer, kind=2, expires=story.ms + 90 * DAY_MS) for _ in range(2))
    story.serve(reader, served)
    story.ms += 30 * DAY_MS
    with pytest.raises(Refused, match="used_unknown"):
        reported(story, reader, served, other)
    assert story.t.columns.at.expires[served] == story.t.columns.at.written[served] + 90 * DAY_MS
    assert len(reported(story, reader, served)[0].extended) == 1


def test_reports_count_against_the_bytes_of_who_sends_them() -> None:
    """Else somebody fills the ledger by reporting what lives for a minute or two."""
    story = Story()
    writer, reader = story.agent("writer"), story.agent("reader")
    s = story.memory(writer, kind=2, expires=story.ms + 2 * 60_000)
    story.serve(reader, s)
    story.ms += 90_000
    reported(story, reader, s)
    assert reader.agent.bytes > 0
    assert writer.agent.bytes == 0


def test_a_storm_of_reports_is_one_barrier_and_one_block_and_who_may_not_enter_costs_no_other() -> None:
    story = Story()
    writer, gone = story.agent("writer"), story.agent("gone")
    readers = [*(story.agent(f"reader{i}") for i in range(20)), gone]
    seqs = [story.memory(writer, kind=2, expires=story.ms + 90 * DAY_MS) for _ in readers]
    for reader, s in zip(readers, seqs, strict=True):
        story.serve(reader, s, seqs[0])
    story.ms += 30 * DAY_MS
    answers: list[object] = []

    async def main() -> SmallShard:
        shard = SmallShard(story.t, lambda: story.ms)
        asked = [
            shard.reports.answer(
                replace(reader, row=TABLE["mem"]["report"]), Report(used=[story.t.memory_id(x) for x in {s, seqs[0]}])
            )
            for reader, s in zip(readers, seqs, strict=True)
        ]
        storm = asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(0)  # they wait for their barrier
        gone.agent.projects = ()
        await while_running(shard, storm.done)
        answers.extend(storm.result())
        return shard

    shard = asyncio.run(main())
    assert isinstance(answers[-1], Refused)
    assert answers[-1].code == "project_unknown"
    assert sum(len(x.extended) for x in answers if isinstance(x, Reported)) == 20, "each end is moved once"
    assert [len(block) for block in shard.events()] == [20]
    assert (story.t.columns.at.expires[seqs[0]], story.t.columns.at.expires[seqs[-1]]) == (
        story.ms + 90 * DAY_MS,
        story.ms + 60 * DAY_MS,
    )


def test_a_close_ends_the_operational_notes_of_that_context_first_and_in_one_block() -> None:
    story = Story()
    writer, other, boss = story.agent("writer"), story.agent("other"), story.agent("boss", "operator")
    mine, fact, over = (
        story.memory(writer, scope=3), story.memory(writer), story.memory(writer, scope=3, expires=story.ms + 1)
    )  # fmt: skip
    theirs = story.memory(other, scope=3)
    story.ms += 10
    closer = replace(boss, row=TABLE["ops"]["context"])
    request = ContextRequest(agent="writer", action="close", message="a new shift")
    _, events = told(story, lambda shard: shard.operators.answer(closer, request))
    assert [type(e) for e in events] == [E.LifeEnded, E.ContextClosed]
    [end] = story.t.ends.values()
    assert (end.members.tolist(), end.why) == ([mine], "session")
    states = [story.t.current(s, story.ms) for s in (mine, fact, over, theirs)]
    assert states == ["expired", "active", "expired", "active"]
