"""The read pump: micro-batches through the index thread, READS on disk, then the last look and the answer.

Invariant: an answer leaves only when its READS record is acknowledged, and its context was told of it before; so what an
agent was
served survives any crash, and a restart launders nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from gate import ids
from gate.config import CROWD_ASKS_MAX, QUERY_BATCH_MAX, READS_BLOCK_BYTES_MAX, READS_BLOCK_RECORDS_MAX
from gate.ledger import events as E
from gate.ledger.block import Record
from gate.ledger.errors import LedgerFull, TooLarge
from gate.refusals import Refused
from gate.state.tenant import Tenant
from gate.steps import Steps, finished
from gate.turns import Lanes

from .ask import Ask
from .last_look import look
from .surface import Shown

if TYPE_CHECKING:
    from gate.shard import Shard

log = logging.getLogger(__name__)
ANSWERING_S: Final = 0.004  # of the loop, for answers of one block, before others have their turn


class Queued(NamedTuple):
    """A record on its way, with its bytes, and the ask whose answer waits for it."""

    tenant: Tenant
    record: E.AnyRecord
    data: Record
    ask: Ask | None

    @property
    def weight(self) -> int:
        """Bytes that it takes in a block."""
        return len(self.data.data) + len(self.data.tenant) + 8


class Recalls:
    last_look = True  # off only in the control run of the race test, by a gatekeeper of its own

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.asks = Lanes[Ask](shard.pace)
        self.records: deque[Queued] = deque()
        self.wake_records = asyncio.Event()
        self.shown = Shown()
        self.answered = 0
        self.alarms = 0

    def submit(self, a: Ask) -> None:
        self.asks.add(a.principal.tenant.account, a.context.id, a, calm=self.shard.intake.calm(a.principal))

    def record(self, tenant: Tenant, record: E.AnyRecord) -> None:
        """A record that nobody waits for (audit, withdrawn)."""
        self._queue(tenant, record, None)
        self.wake_records.set()

    def _queue(self, t: Tenant, record: E.AnyRecord, a: Ask | None) -> None:
        self.records.append(Queued(t, record, Record(t.account, E.encode(record)), a))

    # --- decide -----------------------------------------------------------------------------------
    async def run_asks(self) -> None:
        """Until cancelled: of each lane one micro-batch at a time through the index thread, whatever queued meanwhile."""

        async def calm() -> None:
            await self._decide(self.asks.calm.some(QUERY_BATCH_MAX))

        async def crowd(shared: bool) -> None:
            await self._decide(self.asks.crowd.some(CROWD_ASKS_MAX if shared else QUERY_BATCH_MAX), crowd=True)

        await self.asks.run(calm, crowd)

    async def _decide(self, batch: list[Ask], *, crowd: bool = False) -> None:
        for a in await self._admitted(batch, self.shard.now_ms(), crowd=crowd):
            if a.context.closing:  # who closes it has answered for what it was served so far, and for no more
                self.shard.refuse_ask(a, Refused("context_changed"))
            else:
                self._register(a)
        self.wake_records.set()

    async def _admitted(self, batch: list[Ask], now_ms: int, *, crowd: bool) -> list[Ask]:
        """Those that could be decided; the others are refused. One that fails costs no other: they are asked again one by one."""
        index = self.shard.index
        try:
            if crowd:
                await index.work(self._admit(batch, now_ms), _nothing, "crowd").done
            else:
                await index.call(finished, self._admit(batch, now_ms))
            return batch
        except Exception:
            if len(batch) == 1:
                log.exception("a question could not be decided")
                self.shard.refuse_ask(batch[0], Refused("internal"))
                return []
        for a in batch:
            a.forget()
        return [a for one in batch for a in await self._admitted([one], now_ms, crowd=crowd)]

    def _admit(self, batch: list[Ask], now_ms: int) -> Steps[None]:
        """On the index thread: asks grouped by project, a step each."""
        s = self.shard
        groups: dict[tuple[str, str], list[Ask]] = {}
        for a in batch:
            groups.setdefault((a.principal.tenant.account, a.principal.project), []).append(a)
        for (account, name), asks in groups.items():
            t, index = s.tenants[account], s.indexes[account]
            project = t.projects[name]
            s.admission.answer(t, project, index.projects, index.catalog, asks, now_ms)
            yield

    def _register(self, a: Ask) -> None:
        """On the loop: the context learns what it is about to be served, then the record is queued."""
        t, ctx, p = a.principal.tenant, a.context, a.principal
        now_ms = self.shard.now_ms()
        if ctx.idle(now_ms, t.context_idle_ms(p.agent), self.shard.unseen_ms):
            ctx.begin_epoch(ctx.epoch + 1)
        seqs = [f.seq for f in a.found]
        a.recall, a.epoch = ids.new_raw(now_ms), ctx.epoch
        a.recall_no = ctx.register(t.columns, t.comps, seqs, now_ms, a.run, a.task)
        t.note_served(p.agent, seqs)
        t.expose_to_held(ctx, seqs)
        record = E.Served(
            ms=now_ms,
            recall=a.recall,
            ctx=ctx.id,
            epoch=a.epoch,
            ctx_seq=a.recall_no,
            agent=p.agent.id,
            project=p.project,
            verb=a.verb,
            intent=a.intent,
            risk=a.risk,
            run=a.run,
            task=a.task,
            items=[(f.seq, f.decision, f.reasons) for f in a.found],
            withheld=[(f.seq, f.decision, f.reasons) for f in a.withheld],
            joined=ctx.labels.joined(),
        )
        self._queue(t, record, a)

    # --- record, then answer ----------------------------------------------------------------------
    async def run_records(self) -> None:
        """Until cancelled: READS blocks, one outstanding; the answers of a block leave when it is acknowledged."""
        while True:
            await self.wake_records.wait()
            self.wake_records.clear()
            while self.records:
                await self._record(self._next_block())

    def _next_block(self) -> list[Queued]:
        batch = [self.records.popleft()]
        size = batch[0].weight
        while self.records and len(batch) < READS_BLOCK_RECORDS_MAX:
            size += self.records[0].weight
            if size > READS_BLOCK_BYTES_MAX:
                break
            batch.append(self.records.popleft())
        return batch

    async def _record(self, batch: list[Queued]) -> None:
        """Append one block, then answer; where the broker finds it too large, each half, down to the one that is refused."""
        try:
            await self._append(batch)
        except LedgerFull:  # no answer without its record
            self._not_recorded(batch, Refused("reads_full"))
        except TooLarge as e:
            if len(batch) == 1:
                log.error("a read of tenant %s is refused: %s", batch[0].tenant.account, e)
                self._not_recorded(batch, Refused("event_too_large"))
                return
            half = len(batch) // 2
            await self._record(batch[:half])
            await self._record(batch[half:])
        else:
            await self._answer_all(batch)

    async def _answer_all(self, batch: list[Queued]) -> None:
        """Each is looked at just before it leaves; between two of them others have their turn."""
        over = time.perf_counter() + ANSWERING_S
        for x in batch:
            if x.ask is not None:
                self._answer(x.tenant, x.ask)
            if time.perf_counter() >= over:
                await asyncio.sleep(0)
                over = time.perf_counter() + ANSWERING_S

    def _not_recorded(self, batch: list[Queued], e: Refused) -> None:
        for x in batch:
            if x.ask is not None:
                self.shard.refuse_ask(x.ask, e)

    async def fence(self) -> None:
        """Append a block without records, before anything else is taken: see Shard.fence."""
        await self._append([])

    async def _append(self, batch: list[Queued]) -> None:
        s = self.shard
        block, data = s.reads_head.build(
            shard=s.number, epoch=s.owner_epoch, ms=s.now_ms(), ledger_seq=s.ledger_seq, records=[x.data for x in batch]
        )
        seq = await s.reads.append(data)
        s.reads_head.commit(block)
        s.reads_seq = seq
        s.room.recorded(len(data))
        for x in batch:
            x.tenant.note_recorded(x.record, len(x.data.data))  # as a replay counts it
        s.lineage.put("READS", seq, s.event_rows.reads([(x.tenant, x.record) for x in batch]))

    def _answer(self, t: Tenant, a: Ask) -> None:
        """Synchronous: the look, then the connection's buffer."""
        try:
            looked = look(a, self.shard.now_ms(), self.shown, enabled=self.last_look)
        except Refused as e:
            if e.code == "integrity_alarm":
                self.alarms += 1
                log.error("last look: an answer failed its check and was not sent (tenant %s)", t.account)
            self.shard.refuse_ask(a, e)
            return
        except Exception:
            log.exception("an answer could not be encoded")
            self.shard.refuse_ask(a, Refused("internal"))
            return
        self.shard.send(a.reply, looked.data)
        self.answered += 1
        self.shard.ask_finished(a)
        if looked.withdrawn:
            self.record(t, E.Withdrawn(ms=self.shard.now_ms(), recall=a.recall, items=list(looked.withdrawn)))


def _nothing(_: None) -> None:
    """What is decided stands in the asks."""
