"""Verification: every block again from the stream, its chain, and what the projections have made of it. Findings name the
record.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from gate.ledger import erased
from gate.ledger import events as E
from gate.ledger.block import decode, decode_reads
from gate.ledger.chain import Heads, ReadsHead
from gate.ledger.errors import LedgerError
from gate.ledger.replay import read_blocks, stream_state
from gate.projections.catalog import MemoryRow
from gate.reads_front import ReadsFront
from gate.state.tenant import Tenant

if TYPE_CHECKING:
    from gate.shard import Shard

FINDINGS_MAX: Final = 100
BATCH: Final = 1_000
# Columns that no later event may change, and those that must agree when nothing was written meanwhile.
STAMPED: Final = (
    "kind",
    "project",
    "row",
    "actor",
    "trust",
    "floor",
    "origin",
    "cls",
    "sens",
    "opt_out",
    "scope",
    "written",
    "oldest",
    "expires",
)
FACTS: Final = ("eff", "held", "superseded", "review", "erased")


class Verifier:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    async def verify(self) -> dict[str, Any]:
        """{ok, findings, blocks, events, reads_blocks, memories, seconds}. Serves meanwhile; facts that move are compared
        only at rest.
        """
        started = time.perf_counter()
        run = _Run(self.shard)
        try:
            await run.ledger()
            await run.reads()
            await run.projections()
        except LedgerError as e:
            run.found(e.message)
        return {
            "ok": not run.findings,
            "findings": run.findings[:FINDINGS_MAX],
            "blocks": run.blocks,
            "events": run.events,
            "reads_blocks": run.reads_blocks,
            "memories": run.memories,
            "tenants": len(run.tenants),
            "seconds": round(time.perf_counter() - started, 3),
        }


class _Run:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.findings: list[str] = []
        self.tenants: dict[str, Tenant] = {}
        self.heads = Heads()
        self.front: ReadsFront
        self.blocks = self.events = self.reads_blocks = self.memories = 0
        self.last = 0
        self.waiting: dict[str, list[tuple[int, bytes, str]]] = {}
        self.waiting_count = 0

    def found(self, what: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(what)

    async def ledger(self) -> None:
        s = self.shard
        self.front = ReadsFront(await stream_state(s.outbox.nc, f"READS_{s.number}"), s.now_ms())
        name = f"LEDGER_{s.number}"
        upto = s.ledger_seq
        state = await stream_state(s.outbox.nc, name)
        if state.last < upto:
            self.found(f"{name} ends at {state.last}, {upto} was acknowledged")
        missing = erased.instead(s.outbox.nc, s.number)
        async for no, data in read_blocks(s.outbox.nc, name, 1, min(upto, state.last), missing=missing):
            block = decode(data, no)
            self.heads.commit(block)
            self.front.ledger_block(block.header)
            self.blocks += 1
            self.last = no
            for section in block.sections:
                t = self.tenants.get(section.tenant)
                if t is None:
                    t = self.tenants[section.tenant] = Tenant(section.tenant)
                for seq, (meta, body) in enumerate(section.events, section.seq):
                    event = E.decode_event(meta)
                    t.apply(seq, event)
                    self.front.ledger_event(event)
                    self.events += 1
                    if isinstance(event, E.MemoryWritten):
                        self.memories += 1
                        content = E.decode_memory_body(body[E.SALT_BYTES :]).content if body is not None else ""
                        if body is None and not self._is_erased(section.tenant, seq):
                            self.found(f"block {no}: the text of memory {seq} is gone, and no erasure names it")
                        self.waiting.setdefault(section.tenant, []).append((seq, meta, content))
                        self.waiting_count += 1
            if self.waiting_count >= BATCH:
                await self._catalogs()
        await self._catalogs()

    async def _catalogs(self) -> None:
        waiting, self.waiting, self.waiting_count = self.waiting, {}, 0
        for account, memories in waiting.items():
            index = self.shard.indexes.get(account)
            if index is None:
                self.found(f"tenant {account} is in the ledger and not served")
                continue
            rows: dict[int, MemoryRow] = await self.shard.index.call(index.catalog.fetch, [seq for seq, _, _ in memories])
            for seq, meta, content in memories:
                row = rows.get(seq)
                if row is None:
                    self.found(f"catalog of {account}: memory {seq} is missing")
                elif row.meta != meta or row.content != ("" if self._is_erased(account, seq) else content):
                    self.found(f"catalog of {account}: memory {seq} differs from the ledger")

    def _is_erased(self, account: str, seq: int) -> bool:
        t = self.shard.tenants.get(account)
        return t is not None and seq < t.columns.n and bool(t.columns.erased[seq])

    async def reads(self) -> None:
        s = self.shard
        name = f"READS_{s.number}"
        state = await stream_state(s.outbox.nc, name)
        upto = min(s.reads_seq, state.last)
        if state.last < s.reads_seq:
            self.found(f"{name} ends at {state.last}, {s.reads_seq} was acknowledged")
        if state.messages:
            await self._reads(name, max(1, state.first), upto)
        lost = await self.front.lost(s.lineage)
        if lost:
            self.found(lost)

    async def _reads(self, name: str, first: int, upto: int) -> None:
        head = ReadsHead()
        async for no, data in read_blocks(self.shard.outbox.nc, name, first, upto):
            block = decode_reads(data, no)
            head.commit(block)
            self.reads_blocks += 1
            for record in block.records:
                try:
                    self.front.read(E.decode_record(record.data))
                except msgspec.MsgspecError as e:
                    self.found(f"{name} block {no}: a record can't be read ({e})")

    async def projections(self) -> None:
        s = self.shard
        await s.store_caught_up()
        for account, scratch in self.tenants.items():
            live, index = s.tenants.get(account), s.indexes.get(account)
            if live is None or index is None:
                continue
            self._columns(account, scratch, live)
            if live.position == scratch.position:
                counted = await s.index.call(index.catalog.count)
                if counted != scratch.memories:
                    self.found(f"catalog of {account}: {counted} memories, the ledger has {scratch.memories}")
                indexed = await s.index.call(lambda i=index: sum(p.n for p in i.projects.values()))  # type: ignore[misc]
                if indexed != scratch.memories:
                    self.found(f"index of {account}: {indexed} memories, the ledger has {scratch.memories}")
                counts = dict(await s.lineage.query("counts", {"tenant": s.tenant_number(live)}))
                for table, expected in (("memory", scratch.memories), ("edge", scratch.down.edges)):
                    if counts.get(table, 0) != expected:
                        self.found(
                            f"lineage store of {account}: {counts.get(table, 0)} rows in {table}, the ledger has {expected}"
                        )
        for account in s.tenants.keys() - self.tenants.keys():
            if s.tenants[account].position:
                self.found(f"tenant {account} is served and not in the ledger")

    def _columns(self, account: str, scratch: Tenant, live: Tenant) -> None:
        n = min(scratch.columns.n, live.columns.n)
        still = live.position == scratch.position
        for name in (*STAMPED, *(FACTS if still else ())):
            differ = np.flatnonzero(getattr(scratch.columns, name)[:n] != getattr(live.columns, name)[:n])
            for seq in differ[:10].tolist():
                self.found(f"live state of {account}: {name} of memory {seq} differs from the ledger")
