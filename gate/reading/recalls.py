"""The read pump: micro-batches through the index thread, READS on disk, then the last look and the answer.

Invariant: an answer leaves only when its READS record is acknowledged, and its context was told of it before; so what an
agent was
served survives any crash, and a restart launders nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from gate import ids
from gate.config import QUERY_BATCH_MAX, READS_BLOCK_RECORDS_MAX
from gate.ledger import events as E
from gate.ledger.block import Record
from gate.ledger.errors import LedgerFull
from gate.refusals import Refused
from gate.state.tenant import Tenant

from .ask import Ask
from .last_look import look

if TYPE_CHECKING:
    from gate.shard import Shard

log = logging.getLogger(__name__)


class Recalls:
    last_look = True  # off only in the control run of the race test, by a gatekeeper of its own

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.asks: deque[Ask] = deque()
        self.records: deque[tuple[Tenant, E.AnyRecord, Ask | None]] = deque()
        self.wake_asks, self.wake_records = asyncio.Event(), asyncio.Event()
        self.answered = 0
        self.alarms = 0

    def submit(self, a: Ask) -> None:
        self.asks.append(a)
        self.wake_asks.set()

    def record(self, tenant: Tenant, record: E.AnyRecord) -> None:
        """A record that nobody waits for (audit, withdrawn)."""
        self.records.append((tenant, record, None))
        self.wake_records.set()

    # --- decide -----------------------------------------------------------------------------------
    async def run_asks(self) -> None:
        """Until cancelled: one micro-batch at a time through the index thread, whatever queued meanwhile."""
        s = self.shard
        while True:
            await self.wake_asks.wait()
            self.wake_asks.clear()
            while self.asks:
                batch = [self.asks.popleft() for _ in range(min(len(self.asks), QUERY_BATCH_MAX))]
                try:
                    await s.index.call(self._admit, batch, s.now_ms())
                except Exception:
                    log.exception("admission of %d questions failed", len(batch))
                    for a in batch:
                        s.refuse_ask(a, Refused("internal"))
                    continue
                for a in batch:
                    self._register(a)
                self.wake_records.set()

    def _admit(self, batch: list[Ask], now_ms: int) -> None:
        """On the index thread: asks grouped by project."""
        s = self.shard
        groups: dict[tuple[str, str], list[Ask]] = {}
        for a in batch:
            groups.setdefault((a.principal.tenant.account, a.principal.project), []).append(a)
        for (account, name), asks in groups.items():
            t, index = s.tenants[account], s.indexes[account]
            project = t.projects[name]
            s.admission.answer(t, project, index.projects.get(project.number), index.catalog, asks, now_ms)

    def _register(self, a: Ask) -> None:
        """On the loop: the context learns what it is about to be served, then the record is queued."""
        t, ctx, p = a.principal.tenant, a.context, a.principal
        now_ms = self.shard.now_ms()
        if ctx.idle(now_ms, t.context_idle_ms(p.agent)):
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
        self.records.append((t, record, a))

    # --- record, then answer ----------------------------------------------------------------------
    async def run_records(self) -> None:
        """Until cancelled: READS blocks, one outstanding; the answers of a block leave when it is acknowledged."""
        while True:
            await self.wake_records.wait()
            self.wake_records.clear()
            while self.records:
                batch = [self.records.popleft() for _ in range(min(len(self.records), READS_BLOCK_RECORDS_MAX))]
                try:
                    await self._append(batch)
                except LedgerFull:  # no answer without its record
                    for _, _, a in batch:
                        if a is not None:
                            self.shard.refuse_ask(a, Refused("reads_full"))
                    continue
                for t, _, a in batch:
                    if a is not None:
                        self._answer(t, a)

    async def _append(self, batch: list[tuple[Tenant, E.AnyRecord, Ask | None]]) -> None:
        s = self.shard
        records = [Record(t.account, E.encode(r)) for t, r, _ in batch]
        block, data = s.reads_head.build(
            shard=s.number, epoch=s.owner_epoch, ms=s.now_ms(), ledger_seq=s.ledger_seq, records=records
        )
        seq = await s.reads.append(data)
        s.reads_head.commit(block)
        s.reads_seq = seq
        s.lineage.put("READS", seq, s.event_rows.reads([(t, r) for t, r, _ in batch]))

    def _answer(self, t: Tenant, a: Ask) -> None:
        """Synchronous: the look, then the connection's buffer."""
        try:
            looked = look(a, self.shard.now_ms(), enabled=self.last_look)
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
