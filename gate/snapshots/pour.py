"""A ledger made of a copy: its blocks up to a cut, in the empty streams of a new home, and what is carried over from later.
All of it, or the part that was asked for (gate.snapshots.part).

Invariants: a text that was erased at any time that the copy knows of never reaches the new home's disk; blocks keep their numbers
and hashes, so old ids, positions and proofs hold; what is appended behind them says whose copy this is. The new streams have ids
of their own: stores of the old home don't fit them, nor the other way round.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client

from bus.errors import ConfigError
from gate.config import BLOCK_BYTES_MAX, BLOCK_EVENTS_MAX, READS_BLOCK_BYTES_MAX, READS_BLOCK_RECORDS_MAX
from gate.ledger import events as E
from gate.ledger.block import Payload, ReadsBlock, Record, body_hash, decode, decode_reads, event_bytes
from gate.ledger.chain import Head, Heads, ReadsHead
from gate.ledger.committer import Committer
from gate.ledger.errors import LedgerError
from gate.ledger.members import pack_members
from gate.ledger.replay import stream_state
from gate.snapshots.carried import Earlier, record_left
from gate.snapshots.files import Kept, SnapshotDamaged, forgotten, read_kept, read_stream, without
from gate.snapshots.notary import Notary
from gate.snapshots.part import Chosen, Only

Progress = Callable[[str, int, int], None]
T = TypeVar("T")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be made: `block`: the cut; `by`, `why`: who restores; `later`: the copy reaches to what the source has now."""

    block: int
    by: str
    why: str = ""
    later: bool = False
    read_only: bool = False
    only: Only | None = None


class Pour:
    """`user_key`: (tenant's name, account) → the key of its end users' ids."""

    def __init__(
        self,
        nc: Client,
        shard: int,
        folder: Path,
        wanted: Wanted,
        now_ms: int,
        progress: Progress,
        user_key: Callable[[str, str], bytes],
        notary: Notary,
    ) -> None:
        self._notary = notary
        self._nc, self._shard, self._folder, self._wanted = nc, shard, folder, wanted
        self._now_ms, self._progress = now_ms, progress
        self._tenants: defaultdict[str, Earlier] = defaultdict(Earlier)
        self._carried: defaultdict[str, list[Payload]] = defaultdict(list)
        self._counts: Counter[str] = Counter()
        self._chosen = Chosen(wanted.only, user_key) if wanted.only is not None else None
        self._heads, self._reads_head = Heads(), ReadsHead()
        self._reads_seq = self._epoch = 0
        self._lost = Counter[str]()
        self._taken = Counter[str]()
        self._at_ms = 0

    async def run(self) -> dict[str, Any]:
        """Raises SnapshotDamaged, ConfigError (the home isn't new), Rejected (no such part) and what the broker says."""
        kept = read_kept(self._folder)
        if kept is None:
            raise SnapshotDamaged(self._folder, "it has no streams.json")
        ledger, reads = await self._empty("ledger"), await self._empty("reads")
        self._read(kept)
        await self._ledger(kept, ledger)
        later = await self._reads(kept, reads)
        await self._append_carried(ledger)
        await self._append_reads(later, reads)
        return {
            "block": self._wanted.block,
            "at_ms": self._at_ms,
            "events": self._taken["events"],
            "memories": self._taken["memories"],
            "stubs": self._taken["stubs"],
            "carried": dict(self._counts),
            "left_out": {"events": self._lost["events"], "memories": self._lost["memories"]},
            "ledger_seq": ledger.last_seq,
            "reads_seq": reads.last_seq,
        }

    async def _empty(self, kind: str) -> Committer:
        name = f"{kind.upper()}_{self._shard}"
        state = await stream_state(self._nc, name)
        if state.messages:
            raise ConfigError(
                f"{name} of the home to be made holds blocks already.",
                reason="home_exists",
                advice="Remove that folder, or restore into another one.",
            )
        return Committer(self._nc, name, f"{kind}.{self._shard}.block", state.last)

    def _read(self, kept: Kept) -> None:
        """First pass: what is carried over, and what is erased."""
        for segment, no, data in read_stream(self._folder, kept.ledger):
            try:
                block = decode(data, no)
            except LedgerError as e:
                raise SnapshotDamaged(self._folder / segment.file, e.message) from None
            self._at_ms = block.header.ms if no == self._wanted.block else self._at_ms
            count = self._taken if no <= self._wanted.block else self._lost
            for section in block.sections:
                if self._chosen is not None:
                    if no <= self._wanted.block:
                        self._chosen.then(section)
                    if not self._chosen.is_of(section.tenant):
                        continue
                count["events"] += len(section.events)
                count["memories"] += sum(isinstance(E.decode_event(meta), E.MemoryWritten) for meta, _ in section.events)
                if no <= self._wanted.block:
                    self._tenants[section.tenant].then(section)
                else:
                    self._carried[section.tenant] += self._tenants[section.tenant].later(section)
        if self._chosen is not None:
            self._chosen.settle(self._wanted.block)
            self._taken["stubs"] = len(self._chosen.left_out)
            self._taken["memories"] -= self._taken["stubs"]
        self._counts.update(type(E.decode_event(meta)).__name__ for metas in self._carried.values() for meta, _ in metas)
        gone = forgotten(self._folder, kept.ledger, self._notary)
        for account, t in self._tenants.items():
            unnamed = {seq for tenant, seq in gone if tenant == account and seq <= t.last} - t.erased
            if unnamed:  # the erasure is younger than the copy, and whoever could tell of it isn't there
                for _, deltas in pack_members(sorted(unnamed)):
                    accepted = E.LedgerAccepted(ms=self._now_ms, by=self._wanted.by, position=t.last, deltas=deltas)
                    self._carried[account].append((E.encode(accepted), None))
            self._carried[account].append(self._note(kept))

    def _note(self, kept: Kept) -> Payload:
        w = self._wanted
        body = os.urandom(E.SALT_BYTES) + E.encode(E.NoteBody(text=w.why)) if w.why else None
        event = E.HomeRestored(
            ms=self._now_ms, by=w.by, source=kept.ledger.identity, block=w.block, at=self._at_ms,
            later=kept.ledger.last if w.later else 0, read_only=w.read_only,
            part=self._chosen.part if self._chosen is not None else None, body=body_hash(body) if body else b"",
        )  # fmt: skip
        return E.encode(event), body

    async def _ledger(self, kept: Kept, ledger: Committer) -> None:
        erased = frozenset((account, seq) for account, t in self._tenants.items() for seq in t.erased)
        if self._chosen is not None:
            erased |= {(self._chosen.account, seq) for seq in self._chosen.left_out}
        for segment, no, data in read_stream(self._folder, kept.ledger):
            if no > self._wanted.block:
                return
            try:
                data = without(data, no, erased)
                block = decode(data, no)
                if self._chosen is not None:
                    data = self._chosen.block(block, data, self._heads.block.hash)
                    block = decode(data, no)
                self._heads.commit(block)
            except LedgerError as e:
                raise SnapshotDamaged(self._folder / segment.file, e.message) from None
            self._epoch = block.header.epoch
            await ledger.append(data)
            self._progress("ledger", no, self._wanted.block)

    async def _reads(self, kept: Kept, reads: Committer) -> list[Record]:
        """Append what was decided up to the cut; the records of what came later."""
        later: list[Record] = []
        self._reads_seq = reads.last_seq
        self._reads_head = ReadsHead(Head(reads.last_seq, bytes(32))) if reads.last_seq else ReadsHead()
        fresh = True
        for segment, no, data in read_stream(self._folder, kept.reads):
            try:
                block = decode_reads(data, no)
                if block.header.ledger_seq > self._wanted.block:
                    later += self._left(block)
                    continue
                head = ReadsHead() if fresh else self._reads_head
                if self._chosen is not None:
                    data = self._chosen.reads(block, data, None if fresh else head.block.hash)
                    block = decode_reads(data, no)
                head.commit(block)
            except LedgerError as e:
                raise SnapshotDamaged(self._folder / segment.file, e.message) from None
            self._reads_head, fresh = head, False
            self._reads_seq = await reads.append(data)
            self._progress("reads", no, kept.reads.last)
        return later

    def _left(self, block: ReadsBlock) -> list[Record]:
        records = []
        for record in block.records:
            t = self._tenants.get(record.tenant)
            if t is not None:
                records.append(Record(record.tenant, E.encode(record_left(E.decode_record(record.data), t.last))))
        return records

    async def _append_carried(self, ledger: Committer) -> None:
        for account, payloads in self._carried.items():
            for part in _parts(payloads, lambda p: event_bytes(*p), BLOCK_EVENTS_MAX, BLOCK_BYTES_MAX):
                block, data = self._heads.build(
                    shard=self._shard, epoch=self._epoch, ms=self._now_ms, reads_seq=self._reads_seq, events={account: part}
                )
                await ledger.append(data)
                self._heads.commit(block)

    async def _append_reads(self, records: list[Record], reads: Committer) -> None:
        for part in _parts(records, lambda r: len(r.data) + 80, READS_BLOCK_RECORDS_MAX, READS_BLOCK_BYTES_MAX):
            block, data = self._reads_head.build(
                shard=self._shard, epoch=self._epoch, ms=self._now_ms, ledger_seq=self._heads.block.seq, records=part
            )
            await reads.append(data)
            self._reads_head.commit(block)


def _parts(items: list[T], size: Callable[[T], int], most: int, most_bytes: int) -> Iterator[list[T]]:
    """As many at a time as a block may have."""
    part: list[T] = []
    weight = 0
    for item in items:
        if part and (len(part) == most or weight + size(item) > most_bytes):
            yield part
            part, weight = [], 0
        part.append(item)
        weight += size(item)
    if part:
        yield part
