"""Start-up: replay both streams in their one order into live state, and bring the projections to the ledger's end. Decides
nothing.

Invariant: a projection that stands beyond the ledger, or whose chain differs where it stands, stops the shard
(`LedgerWentBack`): it is
the trace of a lost or forged tail. One that is missing, damaged, of another schema or behind is rebuilt by itself.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from nats.aio.client import Client

from bus.errors import ConfigError
from gate.index_state import NewMemory
from gate.ledger import erased
from gate.ledger import events as E
from gate.ledger.block import ZERO_HASH, Block, ReadsBlock, Section, decode, event_bytes
from gate.ledger.chain import Head, ReadsHead
from gate.ledger.committer import Committer
from gate.ledger.errors import LedgerCorrupt, LedgerGap, LedgerWentBack
from gate.ledger.members import erased_by
from gate.ledger.replay import NOTHING_LOST, Accepted, Blocks, StreamState, merge, read_blocks, stream_state
from gate.projections import ProjectionUnusable, set_aside
from gate.projections.catalog import MemoryRow, Position
from gate.projections.lexical import indexed_at_once
from gate.projections.lineage_rows import Rows
from gate.projections.vectors import DIM
from gate.reads_front import ReadsFront, left_of
from gate.state.tenant import Tenant

if TYPE_CHECKING:
    from gate.shard import Shard

log = logging.getLogger(__name__)
FLUSH_MEMORIES: Final = 1_000
SWITCH_S: Final = 0.005  # Python's own; who asks meanwhile is told to come again a little later
BACKLOG_ROWS_MAX: Final = 50_000


def streams(shard: int) -> tuple[str, str]:
    return f"LEDGER_{shard}", f"READS_{shard}"


class Recovery:
    """One replay. `progress` is told the ledger sequence now and then. `accepting`: a person accepts what one stream has lost.
    `broken`: account → the first event that can't be trusted, by a survey of the whole ledger; they are replayed up to it.
    """

    def __init__(
        self,
        shard: Shard,
        nc: Client,
        progress: Callable[[int, int], None] = lambda done, of: None,
        *,
        accepting: bool = False,
        broken: Mapping[str, int] | None = None,
    ) -> None:
        self.shard, self.nc, self.progress, self.accepting = shard, nc, progress, accepting
        self.broken = dict(broken or {})
        self.met: Callable[[int], None] = shard.clock.met if shard.clock else lambda _: None
        self.front: ReadsFront
        self.reads_resume: set[int] = set()  # READS blocks before which others are missing
        self.reads_beside_loss = 0  # READS blocks up to here may name what the ledger has lost
        self.waiting: dict[str, list[NewMemory]] = {}
        self.count = 0
        self.flushing: Awaitable[None] | None = None
        self.events = self.records = 0
        self.catalog_rows = self.lineage_blocks = 0  # what these didn't have
        self.stood: dict[str, Position] = {}  # catalogs as they were opened
        self.lineage_at = shard.lineage.positions  # what the lineage store has: no rows are made of it again
        self.erased = erased.instead(nc, shard.number)
        self.blank: dict[str, frozenset[int]] = {}  # memories that a catalog had no text of when it was opened
        self.bare: set[tuple[str, int]] = set()  # memories without a body that no erasure has named so far
        self.noteless: dict[tuple[str, int], int] = {}  # other events without theirs → their blocks: only a deletion takes these
        self.unended: dict[str, str] = {}  # account → name of tenants that were deleted, until the ledger says so

    async def run(self) -> None:
        started = time.perf_counter()
        s = self.shard
        ledger, reads = [await stream_state(self.nc, name) for name in streams(s.number)]
        self._check_lineage(ledger, reads)
        self.front = front = ReadsFront(reads, s.now_ms())
        names = streams(s.number)
        pruned = front.missing
        both = merge(
            read_blocks(self.nc, names[0], 1, ledger.last, missing=self.erased),
            self._reads(names[1], pruned + 1, reads.last),
            reads_applied=pruned,
            accepted=lambda start: self._accepted(start, ledger.last),
            surveyed=bool(self.broken),
        )
        with _unhurried():
            async with aclosing(both):
                async for block in both:
                    if isinstance(block, Block):
                        await self._ledger_block(block, ledger.last)
                    else:
                        await self._reads_block(block)
            await self._flush()
            if self.flushing is not None:
                await self.flushing
        self.met(s.now_ms())
        self._check_catalogs()
        await self._forget_erased()
        lost = await front.lost(s.lineage)
        if lost and not self.accepting:
            raise LedgerWentBack(lost)
        s.reads_missing = front.missing
        if not reads.messages:  # all of it is gone: its chain begins again, at the number that comes next
            s.reads_head = ReadsHead(Head(reads.last, ZERO_HASH))
            if reads.last:
                s.lineage.put("READS", reads.last, Rows())  # nothing of it will come any more
        s.ledger_seq, s.reads_seq = ledger.last, reads.last
        s.ledger = Committer(
            self.nc,
            streams(s.number)[0],
            f"ledger.{s.number}.block",
            ledger.last,
            replicas=ledger.replicas,
            identity=ledger.identity,
        )
        s.reads = Committer(
            self.nc, streams(s.number)[1], f"reads.{s.number}.block", reads.last, replicas=reads.replicas, identity=reads.identity
        )
        s.ledger_replicas = ledger.replicas
        s.room.ledger_is(ledger.bytes, ledger.max_bytes)
        s.room.look()
        seconds = time.perf_counter() - started
        s.replayed = {"events": self.events, "reads": self.records, "seconds": round(seconds, 3), "position": ledger.last}
        s.replayed |= {"catalog_rows": self.catalog_rows, "lineage_blocks": self.lineage_blocks}
        log.info(
            "replayed %d events and %d reads in %.2f s; new to a catalog: %d memories, to the lineage store: %d blocks",
            *(self.events, self.records, seconds, self.catalog_rows, self.lineage_blocks),
        )

    async def _reads(self, name: str, start: int, last: int) -> Blocks:
        """READS around its gaps: whether they are accepted is known when the ledger has been read."""
        while start <= last:
            try:
                async with aclosing(read_blocks(self.nc, name, start, last)) as blocks:
                    async for no, data in blocks:
                        yield no, data
                return
            except LedgerGap as gap:
                self.front.gap(gap.seq, gap.upto)
                self.reads_resume.add(gap.upto + 1)
                start = gap.upto + 1

    async def _accepted(self, start: int, last: int) -> Accepted:
        """The next place at or after ledger block `start` where a person accepted a lost tail."""
        found = Accepted(sys.maxsize, sys.maxsize) if self.accepting else await self._next_accepted(start, last)
        self.reads_beside_loss = found.reads
        return found

    async def _next_accepted(self, start: int, last: int) -> Accepted:
        ledger = streams(self.shard.number)[0]
        async with aclosing(read_blocks(self.nc, ledger, start, last, missing=self.erased)) as blocks:
            async for no, data in blocks:
                block = decode(data, no)
                metas = (meta for section in block.sections for meta, _ in section.events)
                if any(isinstance(E.decode_event(meta), E.LedgerAccepted) for meta in metas):
                    return Accepted(no, block.header.reads_seq)
        return NOTHING_LOST

    def _check_lineage(self, ledger: StreamState, reads: StreamState) -> None:
        at = self.shard.lineage.positions
        for name, state in (("LEDGER", ledger), ("READS", reads)):
            if at.get(name, 0) > state.last:
                raise LedgerWentBack(f"{name} ends at {state.last}; the lineage store has applied {at[name]}.")

    def _check_catalogs(self) -> None:
        for account, name in self.unended.items():
            raise LedgerWentBack(f"Tenant {name} ({account}) was deleted, and the ledger doesn't say so.")
        for account, position in self.stood.items():
            t = self.shard.tenants[account]
            if position.tenant_seq > t.position and not t.broken:
                raise LedgerWentBack(
                    f"The ledger of tenant {account} ends at {t.position}; its catalog has applied {position.tenant_seq}."
                )

    # --- ledger -----------------------------------------------------------------------------------
    async def _ledger_block(self, block: Block, last: int) -> None:
        s = self.shard
        if self.broken:
            s.heads.follow(block)
        else:
            s.heads.commit(block)
        self.front.ledger_block(block.header)
        self.met(block.header.ms)
        rows = []
        for section in block.sections:
            t = s.tenants.get(section.tenant) or self._tenant(section.tenant)
            decoded = []
            for seq, (meta, body) in enumerate(section.events, section.seq):
                if t.broken and seq >= t.broken:
                    break
                event = E.decode_event(meta)
                decoded.append(event)
                if isinstance(event, E.MemoryWritten):  # nearly all are
                    self._written(t, seq, event, meta, body)
                else:
                    t = await self._fact(t, seq, event, meta, body, block.header.no)
            self.events += len(decoded)
            if not t.broken:
                self._same_chain(section)
            t.blocks.note(section.seq, block.header.no)
            rows.append((section.tenant, section.seq, decoded))
        s.ledger_seq = block.header.no
        s.replaying = (block.header.no, last)
        if block.header.no > self.lineage_at["LEDGER"]:
            self.lineage_blocks += s.lineage.put("LEDGER", block.header.no, s.event_rows.ledger(s.tenants, rows, block.header.no))
            await self._room()
        else:
            for account, _, _ in rows:
                s.event_rows.number(account)
        if self.count >= FLUSH_MEMORIES:
            await self._flush()
            self.progress(block.header.no, last)

    def _written(self, t: Tenant, seq: int, event: E.MemoryWritten, meta: bytes, body: bytes | None) -> None:
        t.apply(seq, event, "", event_bytes(meta, body), len(body or b""))
        if t.deleted:
            return
        if body is None:
            self.bare.add((t.account, seq))
        self.waiting.setdefault(t.account, []).append(self._memory(t, seq, meta, body, event))
        self.count += 1

    async def _fact(self, t: Tenant, seq: int, event: E.AnyEvent, meta: bytes, body: bytes | None, block: int) -> Tenant:
        """Any other event; the tenant as it is from there on."""
        self.front.ledger_event(event)
        t.apply(seq, event, _note(body), event_bytes(meta, body), len(body or b""))
        self._check_body(t.account, seq, event, body, block)
        if isinstance(event, E.TenantAdded) and not t.deleted:
            if self.shard.paths.deleted(event.name).exists():
                return await self._passed_by(t)
            t.user_key = self._user_key(event.name, t.account)
        elif isinstance(event, E.TenantChanged) and event.state == "deleted":
            return await self._ended(t)
        return t

    def _tenant(self, account: str) -> Tenant:
        """A tenant that the ledger names: its catalog is opened, or set aside and made anew."""
        s = self.shard
        try:
            t = s.open_tenant(account)
        except ProjectionUnusable as e:
            if e.reason == "stream":
                raise LedgerWentBack(f"The catalog of tenant {account} follows another ledger: {e.detail}.") from e
            set_aside(e.path, s.paths.aside(stamp()) / account)
            t = s.open_tenant(account)
        t.broken = self.broken.get(account, 0)
        self.blank[account] = frozenset(s.indexes[account].catalog.erased())
        position = s.indexes[account].catalog.position
        if position is not None:
            self.stood[account] = position
        return t

    async def _passed_by(self, t: Tenant) -> Tenant:
        """A tenant that the home says was deleted: the ledger must come to say so, too."""
        self.unended[t.account] = t.name
        await self.shard.drop_tenant(t)
        return self.shard.tenants[t.account]

    async def _ended(self, t: Tenant) -> Tenant:
        """The ledger says that this tenant was deleted."""
        self.bare = {(account, seq) for account, seq in self.bare if account != t.account}
        self.noteless = {(account, seq): no for (account, seq), no in self.noteless.items() if account != t.account}
        if self.unended.pop(t.account, None) is None and t.account in self.shard.indexes:
            self.count -= len(self.waiting.pop(t.account, ()))
            self.stood.pop(t.account, None)
            await self.shard.drop_tenant(t)
        return self.shard.tenants[t.account]

    def _user_key(self, name: str, account: str) -> bytes:
        try:
            return self.shard.paths.user_key(name, account)
        except (OSError, ValueError) as e:
            raise ConfigError(
                f"The key for end users' ids of tenant {name} can't be used: {e}.",
                reason="trust_lost",
                advice="Put trust/ back from a copy that was made --with-keys.",
            ) from e

    def _same_chain(self, section: Section) -> None:
        stood = self.stood.get(section.tenant)
        if (
            stood
            and section.seq <= stood.tenant_seq <= section.last
            and (stood.tenant_seq != section.last or stood.chain != section.hash)
        ):
            raise LedgerWentBack(
                f"At event {stood.tenant_seq} of tenant {section.tenant} the ledger isn't the one that its catalog has applied."
            )

    def _memory(self, t: Tenant, seq: int, meta: bytes, body: bytes | None, e: E.MemoryWritten) -> NewMemory:
        project = t.projects[e.project].number
        if body is None or seq in self.blank[t.account]:  # erased: its row keeps its place, and finds nothing
            row, nothing = MemoryRow(seq, meta, "", (), "", "", "", "", ""), np.zeros(DIM, np.float32)
            return NewMemory(row, project, frozenset(), nothing, not E.is_plain(e))
        b = E.decode_memory_body(body[E.SALT_BYTES :])
        row = MemoryRow(seq, meta, b.content, tuple(b.evidence), b.run, b.task, b.session, b.trace_id, b.scope_id)
        return NewMemory(row, project, indexed_at_once(b.content), self._vector(e, b), not E.is_plain(e))

    def _vector(self, e: E.MemoryWritten, b: E.MemoryBody) -> npt.NDArray[Any]:
        """float16 as it lies in the ledger: the index thread widens many at once."""
        embedder = self.shard.admission.embedder
        if e.enc != embedder.id or len(b.vector) != 2 * DIM:  # another encoder wrote it: the text is the truth
            fresh: npt.NDArray[np.float32] = embedder.encode([b.content])[0]
            return fresh
        return np.frombuffer(b.vector, "<f2")

    def _check_body(self, account: str, seq: int, event: E.AnyEvent, body: bytes | None, block: int) -> None:
        """Only what the ledger says was erased may be without its body: whoever can delete a block can't erase in silence."""
        if self.shard.tenants[account].deleted:
            return
        if isinstance(event, E.MemoryErased):
            members = self.shard.tenants[account].erasures[event.erasure].members.tolist()
            self.bare.difference_update((account, s) for s in members)
        elif isinstance(event, E.LedgerAccepted):
            for s in erased_by(event, seq):
                self.bare.discard((account, s))
                self.noteless.pop((account, s), None)
        elif isinstance(event, E.HomeRestored) and event.part is not None:  # applied: what it left out counts as erased
            erased = self.shard.tenants[account].columns.at.erased
            self.bare = {(a, s) for a, s in self.bare if a != account or not erased[s]}
        elif body is None and _has_body(event):
            self.noteless[account, seq] = block

    async def _forget_erased(self) -> None:
        """Before anything is served: what was erased is in no store, whatever a kill or an old file has left there."""
        if self.accepting:  # a lost tail may have named them
            self.shard.bodies_missing = sorted({*self.bare, *self.noteless})
            self.bare, self.noteless = set(), {}
        for (account, seq), block in self.noteless.items():
            raise LedgerCorrupt(f"the body of event {seq} of tenant {account} is gone.", block=block)
        if self.bare:
            account, seq = min(self.bare)
            raise LedgerCorrupt(f"the text of memory {seq} of tenant {account} is gone, and no erasure names it.")
        for t in [self.shard.tenants[account] for account in self.shard.indexes]:
            emptied = [s for s in sorted(self.blank[t.account]) if not t.columns.at.erased[s]]
            if emptied:
                path = self.shard.paths.catalog(t.account)
                raise ProjectionUnusable(path, "damaged", f"memory {emptied[0]} has no text there, and no erasure names it")
            for erasure in t.erasures.values():
                await self.shard.erasures.purge(t, erasure)

    async def _flush(self) -> None:
        s, waiting = self.shard, self.waiting
        self.waiting, self.count = {}, 0
        whole = {a: new for a, new in waiting.items() if not s.tenants[a].broken}
        jobs = [(s.indexes[a], new, s.ledger_seq, s.tenants[a].position, s.heads.head(a).hash) for a, new in whole.items()]

        broken = [(s.indexes[a], new) for a, new in waiting.items() if a not in whole]

        def index() -> None:
            for tenant_index, new, at, last, chain in jobs:
                self.catalog_rows += tenant_index.apply(new, at, last, chain)
                tenant_index.catalog.commit()
            for tenant_index, new in broken:  # its catalog stays as it was made
                tenant_index.index(new)

        before, self.flushing = self.flushing, s.index.call(index)
        if before is not None:  # one is worked on while the blocks of the next are read
            await before

    async def _room(self) -> None:
        """Let the lineage store catch up: its queue must not hold the whole ledger."""
        lineage = self.shard.lineage
        while lineage.backlog > BACKLOG_ROWS_MAX and lineage.failed is None:
            if lineage.trouble is not None:
                raise lineage.trouble
            await asyncio.sleep(0.01)

    # --- READS ------------------------------------------------------------------------------------
    async def _reads_block(self, block: ReadsBlock) -> None:
        s = self.shard
        if block.header.no in self.reads_resume:
            s.reads_head = ReadsHead()
        s.reads_head.commit(block)
        self.met(block.header.ms)
        records = []
        for record in block.records:
            t = s.tenants.get(record.tenant)
            decoded: E.AnyRecord | None = E.decode_record(record.data)
            if decoded is not None:
                self.front.read(decoded)
            if block.header.no <= self.reads_beside_loss or (t is not None and t.broken):
                decoded = left_of(t, decoded)
                if decoded is None:
                    continue
            if t is not None and t.deleted:
                continue
            if t is None or decoded is None:
                raise LedgerCorrupt(f"READS names tenant {record.tenant}, which the ledger doesn't know.", block=block.header.no)
            t.replay_read(decoded)
            t.note_recorded(decoded, len(record.data))
            records.append((t, decoded))
        self.records += len(records)
        s.reads_seq = block.header.no
        if block.header.no > self.lineage_at["READS"]:
            self.lineage_blocks += s.lineage.put("READS", block.header.no, s.event_rows.reads(records))
            await self._room()


@contextmanager
def _unhurried() -> Iterator[None]:
    """Nothing that a replay makes is garbage, and the collector would look through all of it again and again; nobody is served
    meanwhile, so its two threads needn't take turns every half millisecond.
    """
    interval = sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()


def _has_body(event: E.AnyEvent) -> bool:
    """Whether its meta names a body."""
    return bool(getattr(event, "body", None))


def _note(body: bytes | None) -> str:
    """The free text of an event's body. Not of a memory's, whose text the catalog keeps."""
    return "" if body is None else E.decode_note(body[E.SALT_BYTES :]).text


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def set_all_aside(folder: Path, aside: Path) -> list[Path]:
    """Move every projection of a shard away (offline rebuild)."""
    moved = []
    for pattern in ("lineage.duckdb", "tenants/*/catalog.sqlite"):
        for path in sorted(folder.glob(pattern)):
            moved += set_aside(path, aside / path.parent.name)
    return moved
