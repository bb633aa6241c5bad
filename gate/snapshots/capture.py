"""Both streams of a shard into segments, as of one moment, while the gatekeeper appends.

Invariant: the copy is closed in itself: no block of it names a later block of the other stream than it has. The ledger's end is
looked up first, the end of READS after it, so READS has whatever those blocks name; of READS, what names a later block stays out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
from nats.aio.client import Client

from gate.ledger import erased
from gate.ledger import events as E
from gate.ledger.block import ZERO_HASH, Block, decode, decode_reads
from gate.ledger.errors import LedgerCorrupt, LedgerGap, LedgerWentBack
from gate.ledger.members import erased_by
from gate.ledger.replay import StreamState, stream_state
from gate.snapshots.files import Kept, SegmentWriter, SnapshotForeign, Stream, forget, read_kept, sweep, write_kept
from gate.snapshots.notary import Notary
from gate.verifying.gaps import blocks_around_gaps, nothing_instead

Progress = Callable[[str, int, int], None]  # stage, done, of


class Capture:
    """One capture of a shard into `folder`, which may hold an earlier one of the same ledger."""

    def __init__(self, nc: Client, shard: int, folder: Path, progress: Progress, notary: Notary) -> None:
        self._notary = notary
        self._nc, self._shard, self._folder, self._progress = nc, shard, folder, progress
        self._events = self._memories = self._ms = 0
        self._erased: set[tuple[str, int]] = set()

    async def run(self) -> Kept:
        """What the folder holds now. Raises SnapshotForeign, SnapshotDamaged and whatever is wrong with the ledger."""
        ledger, reads = [await stream_state(self._nc, f"{kind}_{self._shard}") for kind in ("LEDGER", "READS")]
        before = read_kept(self._folder)
        if before is not None and before.ledger.identity != ledger.identity:
            raise SnapshotForeign(self._folder)
        sweep(self._folder, before)
        was = before or Kept(shard=self._shard, ledger=Stream(identity=ledger.identity), reads=Stream(identity=reads.identity))
        self._ms = was.ms
        kept = Kept(
            shard=self._shard,
            ledger=await self._ledger(was.ledger, ledger),
            reads=await self._reads(was.reads, reads, ledger.last),
            ms=self._ms,
            events=was.events + self._events,
            memories=was.memories + self._memories,
        )
        if self._erased:  # also in what was copied before they were; a kill before the last line does it all again
            forget(self._folder, kept.ledger, frozenset(self._erased), self._notary)
        write_kept(self._folder, kept)
        return kept

    async def _ledger(self, was: Stream, state: StreamState) -> Stream:
        if state.last < was.last:
            raise LedgerWentBack(f"{state.name} ends at sequence {state.last}; {self._folder} has it up to {was.last}.")
        writer, hash_ = SegmentWriter(self._folder, "ledger"), bytes.fromhex(was.hash) or ZERO_HASH
        stand_in = erased.instead(self._nc, self._shard)
        async with aclosing(blocks_around_gaps(self._nc, state.name, was.last + 1, state.last, stand_in)) as walk:
            async for first, last, data, _ in walk:
                if data is None:
                    raise LedgerGap(state.name, first, last)
                block = decode(data, first)
                if block.header.prev_block != hash_:
                    raise LedgerCorrupt(f"it doesn't continue block {first - 1} as {self._folder} has it.", block=first)
                hash_ = block.hash
                self._note(block)
                writer.add(first, data, hash_)
                self._progress("ledger", first, state.last)
        writer.close()
        return _longer(was, writer, state.last, hash_)

    def _note(self, block: Block) -> None:
        self._ms = block.header.ms
        for section in block.sections:
            self._events += len(section.events)
            for seq, (meta, _) in enumerate(section.events, section.seq):
                event = E.decode_event(meta)
                if isinstance(event, E.MemoryWritten):
                    self._memories += 1
                else:
                    self._erased.update((section.tenant, s) for s in erased_by(event, seq))

    async def _reads(self, was: Stream, state: StreamState, ledger_last: int) -> Stream:
        """READS from where `was` ends; anew from what is still there, if age or a loss has taken what comes next."""
        oldest = state.first if state.messages else state.last + 1
        if was.identity != state.identity or oldest > was.last + 1 or not was.segments:
            was = Stream(identity=state.identity, first=oldest, last=oldest - 1)
        last, hash_, writer = was.last, bytes.fromhex(was.hash), SegmentWriter(self._folder, "reads")
        async with aclosing(self._reads_blocks(state, was.last + 1)) as walk:
            async for no, data in walk:
                if data is None:  # whether this was accepted, the ledger says; a replay looks
                    was, writer = Stream(identity=state.identity, first=no + 1, last=no), SegmentWriter(self._folder, "reads")
                    last, hash_ = no, b""
                    continue
                block = decode_reads(data, no)
                if block.header.ledger_seq > ledger_last:
                    break
                if hash_ and block.header.prev_block != hash_:
                    raise LedgerCorrupt(f"READS doesn't continue block {no - 1} as {self._folder} has it.", block=no)
                last, hash_ = no, block.hash
                writer.add(no, data, hash_)
                self._progress("reads", no, state.last)
        writer.close()
        return _longer(was, writer, last, hash_)

    async def _reads_blocks(self, state: StreamState, begin: int) -> AsyncGenerator[tuple[int, bytes | None], None]:
        async with aclosing(blocks_around_gaps(self._nc, state.name, begin, state.last, nothing_instead)) as walk:
            async for _, last, data, _ in walk:
                yield last, data


def _longer(was: Stream, writer: SegmentWriter, last: int, hash_: bytes) -> Stream:
    segments = [*was.segments, *writer.done]
    return msgspec.structs.replace(was, last=last, hash=hash_.hex() if segments else "", segments=segments)
