"""No block grows over the size of a message, whatever the labels in it weigh; and one that does costs nobody else anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from bus.frames import Receipt
from gate.config import BLOCK_BYTES_MAX, COMPARTMENTS_MAX, EVENT_BYTES_MAX, READS_BLOCK_BYTES_MAX
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.block import body_hash
from gate.quotas import Quotas
from gate.reading.ask import Ask
from gate.refusals import Refused
from gate.state.compartments import MANY, bounded
from gate.writing.decide import Write, decide
from gate.writing.lineage import Text
from gate.writing.sequencer import Operation, Stored

from .small_shard import SmallShard, while_running
from .story import Story

MESSAGE_BYTES = (1 << 20) - 256


def wide_readers(name: str, i: int) -> list[list[str]]:
    """16 clauses of 32 long names: all that a draft may name."""
    return [[f"agent:{name}", *(f"agent:{i:02d}-{j:02d}-{k:02d}-{'x' * 50}" for k in range(31))] for j in range(16)]


def write(story: Story, by: Principal, size: int = 1_000, **more: Any) -> Write:
    """A write with a body of `size` bytes."""
    w = story.draft(by, **more)
    w.text = Text(frozenset(), (), np.zeros(8, np.float32))
    w.body = b"b" * size
    w.body_hash = body_hash(w.body)
    return w


def submitted(shard: SmallShard, story: Story, writes: list[Write]) -> None:
    for w in writes:
        shard.sequencer.submit(story.t.account, w)


def test_heavy_events_share_blocks_by_their_real_weight() -> None:
    async def scenario() -> None:
        story = Story()
        writer = story.agent("writer")
        shard = SmallShard(story.t, lambda: story.ms)
        story.t.quotas = Quotas(agent_readers=1 << 15)
        submitted(shard, story, [write(story, writer, readers=wide_readers("writer", i)) for i in range(60)])
        await while_running(shard, lambda: len(shard.sent) == 60)
        assert [type(r) for r in shard.replies()] == [Receipt] * 60
        assert max(map(len, shard.ledger.blocks)) <= BLOCK_BYTES_MAX + 1_024
        assert len(shard.ledger.blocks) < 20  # and no more blocks than that takes
        assert story.t.position == story.t.memories + 3  # each event once

    asyncio.run(scenario())


def test_who_asks_for_one_barrier_after_another_stops_nobody_elses_writes() -> None:
    async def scenario() -> None:
        story = Story()
        writer = story.agent("writer")
        shard = SmallShard(story.t, lambda: story.ms)
        ran = 0

        async def again() -> None:
            nonlocal ran
            ran += 1
            if not shard.sent:
                shard.sequencer.submit("other", Operation("other", again))
            await asyncio.sleep(0)

        for _ in range(3):
            shard.sequencer.submit("other", Operation("other", again))
        submitted(shard, story, [write(story, writer)])
        await while_running(shard, lambda: len(shard.sent) == 1)
        assert 0 < ran < 20

    asyncio.run(scenario())


def test_readers_of_many_parents_are_stored_as_nobody_and_held() -> None:
    story = Story()
    writer = story.agent("writer")
    parents = [story.memory(writer, readers=wide_readers("writer", i)) for i in range(40)]
    e = decide(story.draft(writer, declared=parents), "", story.ms)
    assert (e.holds, e.readers) == (["readers_too_complex"], [[]])
    assert len(E.encode(e)) < 2_000
    child = story.apply(e)
    assert decide(story.draft(writer, declared=[child]), "", story.ms).readers == [[]]  # and nobody stays nobody


def test_more_compartments_than_are_kept_become_one_that_flows_nowhere() -> None:
    story = Story()
    writer = story.agent("writer")
    users = [story.memory(writer, comp=["project:p1", f"user:usr_{i:016d}"]) for i in range(COMPARTMENTS_MAX + 1)]
    few, much = (decide(story.draft(writer, declared=users[:n]), "", story.ms) for n in (8, len(users)))
    assert len(few.holds) == 8
    assert (much.comp, much.holds) == ([MANY], ["flow_down:many"])
    child = story.apply(much)
    own = decide(story.draft(writer, declared=[child], scope="user", scope_id="ann"), "", story.ms)
    assert (own.comp, own.holds) == ([MANY], ["flow_down:many", "parent_held"])


def test_a_context_keeps_a_bounded_number_of_compartments_live_and_on_replay() -> None:
    story = Story()
    reader = story.agent("reader")
    users = [story.memory(reader, comp=[f"user:usr_{i:016d}"]) for i in range(COMPARTMENTS_MAX * 3)]
    ctx = story.context(reader)
    for s in users:
        story.serve(reader, s)
    assert ctx.labels.joined().comp == [MANY]
    replayed = Story()
    again = replayed.context(replayed.agent("reader"))
    old = E.Joined(0, 0, 0, 0, False, [f"user:usr_{i:016d}" for i in range(6_000)])  # as it was written before
    again.restore(replayed.t.columns, replayed.t.comps, 0, 1, [], story.ms, b"", b"", old)
    assert again.labels.joined().comp == [MANY]
    assert bounded({"project:p1"}) == {"project:p1"}


def test_an_event_that_could_never_be_stored_is_refused_alone() -> None:
    async def scenario() -> None:
        story = Story()
        writer = story.agent("writer")
        shard = SmallShard(story.t, lambda: story.ms)
        giant = write(story, writer, EVENT_BYTES_MAX + 1)
        submitted(shard, story, [write(story, writer), giant, write(story, writer)])
        await while_running(shard, lambda: len(shard.sent) == 2 and len(shard.refused) == 1)
        assert shard.refused[0].code == "event_too_large"

    asyncio.run(scenario())


def test_a_block_that_the_broker_finds_too_large_is_split_down_to_the_write_that_is_refused() -> None:
    async def scenario() -> None:
        story = Story()
        writer = story.agent("writer")
        shard = SmallShard(story.t, lambda: story.ms)
        shard.ledger.room = 8_000  # a broker with a smaller max_payload than this version expects
        writes = [write(story, writer, 9_000 if i == 5 else 1_000) for i in range(12)]
        submitted(shard, story, writes)
        await while_running(shard, lambda: len(shard.sent) == 11 and len(shard.refused) == 1)
        assert shard.refused[0].code == "event_too_large"
        assert sum(len(block) for block in shard.events()) == 11
        assert [w.seq for w in writes if w.seq] == sorted({w.seq for w in writes} - {0})

    asyncio.run(scenario())


def test_an_operation_that_could_never_be_stored_is_refused_before_anything_is_appended() -> None:
    async def scenario() -> None:
        story = Story()
        shard = SmallShard(story.t, lambda: story.ms)
        small, giant = (Stored(E.PolicyChanged(ms=1, number=1, by="x" * n)) for n in (1, EVENT_BYTES_MAX))
        with pytest.raises(Refused, match="event_too_large"):
            await shard.sequencer.commit(story.t, [small, giant])
        assert shard.ledger.blocks == []
        shard.ledger.room = 5_000
        await shard.sequencer.commit(story.t, [Stored(E.PolicyChanged(ms=1, number=i, by="x" * 1_000)) for i in range(9)])
        assert story.t.policy == 8

    asyncio.run(scenario())


# --- READS --------------------------------------------------------------------------------------------
def ask(story: Story, p: Principal) -> Ask:
    return Ask(p, "get", story.context(p), "", "", story.ms)


def served(comp: list[str]) -> E.Served:
    return E.Served(
        ms=1, recall=b"r" * 16, ctx=b"c" * 16, epoch=0, ctx_seq=1, agent=b"a" * 16, project="p1", verb="get",
        joined=E.Joined(0, 0, 0, 0, False, comp),
    )  # fmt: skip


def test_records_of_reads_share_blocks_by_their_real_weight() -> None:
    async def scenario() -> None:
        story = Story()
        story.agent("reader")
        shard = SmallShard(story.t, lambda: story.ms)
        for _ in range(64):
            shard.recalls.record(story.t, served([f"user:usr_{i:016d}" for i in range(1_000)]))
        await while_running(shard, lambda: sum(shard.records()) == 64)
        assert max(map(len, shard.reads.blocks)) <= READS_BLOCK_BYTES_MAX + 1_024

    asyncio.run(scenario())


def test_a_block_of_reads_that_is_too_large_is_split_and_only_the_one_read_refused() -> None:
    async def scenario() -> None:
        story = Story()
        reader = story.agent("reader")
        shard = SmallShard(story.t, lambda: story.ms)
        shard.reads.room = 4_000
        asks = [ask(story, reader) for _ in range(8)]
        for i, a in enumerate(asks):
            shard.recalls._queue(story.t, served(["x" * (5_000 if i == 3 else 500)]), a)
        shard.recalls.wake_records.set()
        await while_running(shard, lambda: len(shard.sent) == 7 and len(shard.refused) == 1)
        assert (shard.refused[0].code, sum(shard.records())) == ("event_too_large", 7)

    asyncio.run(scenario())


def test_a_question_that_fails_costs_no_other_of_its_batch_an_answer() -> None:
    async def scenario() -> None:
        story = Story()
        story.project("p2")
        reader = story.agent("reader")
        there = replace(reader, project="p2")
        shard = SmallShard(story.t, lambda: story.ms)
        decided: list[int] = []

        def admit(batch: list[Ask], now_ms: int) -> Iterator[None]:
            for a in batch:
                a.notes.append("decided")
                if a.principal.project == "p2":
                    raise RuntimeError("a bug")
            decided.extend(len(a.notes) for a in batch)
            yield

        cast(Any, shard.recalls)._admit = admit
        for p in (reader, reader, there, reader):
            shard.recalls.submit(ask(story, p))
        await while_running(shard, lambda: len(shard.sent) == 3 and len(shard.refused) == 1)
        assert (shard.refused[0].code, decided) == ("internal", [1, 1, 1])  # what the first attempt had found is forgotten

    asyncio.run(scenario())


def test_a_message_holds_any_event_that_is_taken() -> None:
    assert EVENT_BYTES_MAX + 4_096 < MESSAGE_BYTES
    assert BLOCK_BYTES_MAX + 4_096 < MESSAGE_BYTES
