"""Carrying an erasure out: every store that holds text, one after another, until all are seen to be without it.

The ledger says that a text is gone (`memory_erased`) before the first store forgets it, and that it is gone everywhere
(`erasure_done`) after the last. Between the two every step may be repeated, so whatever is killed goes on at the next start:

    purge      postings, vectors, catalog and its log, windows of contexts, copies set aside, snapshots          this process
    strip      the block without these bodies into ERASED, then the original overwritten                         the janitor
    look       the original is gone, the copy has its hash and none of these bodies                              this process

The gatekeeper's key can't delete, the janitor's can't append: neither erases alone.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gate.ledger import erased
from gate.ledger import events as E
from gate.ledger.block import decode
from gate.ledger.errors import LedgerError
from gate.ledger.jetstream import Unanswered, stored
from gate.paths import Paths
from gate.projections import ProjectionUnwritable
from gate.refusals import Refused
from gate.snapshots.files import SnapshotDamaged, forget_in_all
from gate.snapshots.notary import Notary
from gate.state.erasures import Erasure
from gate.state.tenant import Tenant
from gate.writing.sequencer import Stored

if TYPE_CHECKING:
    from gate.shard import Shard

log = logging.getLogger(__name__)
CHUNK_MEMORIES: Final = 32  # of a call of the index thread: a few milliseconds, so that nobody's question waits long
WORK_BLOCKS_MAX: Final = 64  # of one answer to the janitor
WORK_WAIT_S: Final = 10.0  # a janitor that finds nothing to do is answered after so long
RETRY_S: Final = 1.0
JANITOR_SILENT_S: Final = 30.0
TROUBLE_CHARS_MAX: Final = 200

# Stores as a receipt lists them, and what is done there. The last three count files, segments and blocks, the others memories.
STORES: Final = {
    "live_state": "marked as erased; id, labels, lineage and attribution stay",
    "catalog": "text, evidence and clear labels overwritten, the write-ahead log emptied",
    "postings": "terms removed from the lexical index",
    "vectors": "overwritten with zeros",
    "contexts": "windows of agents that could hold some of it, forgotten",
    "set_aside": "old catalogs that a rebuild had moved away, deleted (files)",
    "snapshots": "texts taken out of the home's snapshots (segments); copies elsewhere lose them at their next `cordon backup`",
    "ledger": "blocks stripped into ERASED, the originals overwritten",
}
WITHOUT_TEXT: Final = {
    "lineage_store": "holds no text: ids, labels and edges stay",
    "reads": "holds no text: who was served which id stays",
    "plans": "hold ids, and the reasons that operators gave",
    "feeds_and_notices": "carry ids alone",
}


class Erasures:
    """Erasures of a shard's tenants, from the event on. On the loop; what takes CPU or files is done elsewhere."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.wake = asyncio.Event()
        self.janitor_asked = 0.0  # seconds of the monotonic clock; 0 = never
        self.janitor_trouble = ""  # its last word about a block that it couldn't strip
        self._todo = asyncio.Event()  # there is something for the janitor
        self._changed = asyncio.Event()  # some erasure got on

    def open(self) -> list[tuple[Tenant, Erasure]]:
        """Those that aren't done, of tenants that are served, or were deleted."""
        tenants = self.shard.tenants
        served = [t for account, t in tenants.items() if account in self.shard.indexes]
        ended = [(t, t.end) for t in tenants.values() if t.deleted and t.end is not None and not t.end.done_ms]
        return [*((t, e) for t in served for e in t.erasures.values() if not e.done_ms), *ended]

    async def run(self) -> None:
        """Until cancelled: carry on what isn't done; what fails is tried again, and its receipt says why."""
        self.wake.set()
        while True:
            await self.wake.wait()
            self.wake.clear()
            for t, erasure in self.open():
                try:
                    await self._advance(t, erasure)
                    erasure.trouble = ""
                except (Refused, LedgerError, Unanswered, SnapshotDamaged, ProjectionUnwritable) as e:
                    erasure.trouble = str(e)
                except Exception as e:
                    log.exception("an erasure of tenant %s didn't get on; it is tried again", t.account)
                    erasure.trouble = type(e).__name__
            if any(e.trouble for _, e in self.open()):
                self.shard.loop.call_later(RETRY_S, self.wake.set)
            self._tell()

    async def _advance(self, t: Tenant, erasure: Erasure) -> None:
        if not erasure.purged:
            await (self._purge_all(t, erasure) if t.deleted else self.purge(t, erasure))
            erasure.blocks = _blocks(t, erasure)
            erasure.purged = True
            self._todo.set()
        if not erasure.blocks:
            await self._finish(t, erasure)

    async def done(self, erasure: Erasure, timeout_s: float) -> None:
        """Return when it is done, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not erasure.done_ms:
                    await self._changed.wait()
        except TimeoutError:
            return

    def _tell(self) -> None:
        self._changed.set()
        self._changed.clear()

    # --- this process's stores ------------------------------------------------------------------------
    async def purge(self, t: Tenant, erasure: Erasure) -> None:
        """Every store but the ledger forgets it; repeated, it finds nothing to do. A done one is looked at again at each start:
        an old file may have been put back.
        """
        s, index = self.shard, self.shard.indexes[t.account]
        members = erasure.members.tolist()
        s.recalls.shown.forget(t.account)
        found = 0
        for i in range(0, len(members), CHUNK_MEMORIES):
            found += await s.index.call(index.erase, members[i : i + CHUNK_MEMORIES], t)
        gone, windows = frozenset(members), 0
        for context in list(t.contexts):
            windows += await s.index.call(index.forget, context, gone, t)
        if erasure.done_ms and not found:
            return
        if not await s.index.call(index.catalog.scrub):
            raise Refused("store_behind")
        await self._purge_copies(t, erasure, members, windows)

    async def _purge_all(self, t: Tenant, erasure: Erasure) -> None:
        """Of a deleted tenant nothing is left here but copies: `Shard.drop_tenant`."""
        self.shard.recalls.shown.forget(t.account)
        await self._purge_copies(t, erasure, range(1, erasure.position), 0)

    async def _purge_copies(self, t: Tenant, erasure: Erasure, seqs: Iterable[int], windows: int) -> None:
        """The catalogs that were set aside and the home's snapshots; then the receipt has this process's stores."""
        aside, snapshots = await asyncio.to_thread(_purge_files, self.shard.paths, t.account, seqs)
        n, was = erasure.count, erasure.stores
        erasure.stores = {
            **was, "live_state": n, "catalog": n, "postings": n, "vectors": n, "contexts": max(windows, was.get("contexts", 0)),
            "set_aside": aside + was.get("set_aside", 0), "snapshots": snapshots + was.get("snapshots", 0),
        }  # fmt: skip

    def janitor_is_silent(self) -> bool:
        """Whether none has asked for too long: since the last question, or since this process began."""
        return time.monotonic() - max(self.janitor_asked, self.shard.started) > JANITOR_SILENT_S

    def pending(self, erasure: Erasure, most: int = sys.maxsize) -> list[str]:
        """What is still to be done, for people. `most`: what no count may go beyond."""
        left = [] if erasure.purged else ["this gatekeeper's stores"]
        if erasure.blocks:
            n = min(len(erasure.blocks), most)
            left.append(f"{n} block{'' if n == 1 else 's'} of the ledger wait for the janitor")
            if self.janitor_is_silent():
                left.append("the janitor doesn't ask for work: see `cordon status` and its log")
            elif self.janitor_trouble:
                left.append(f"the janitor says: {self.janitor_trouble}")
        if erasure.trouble:
            left.append(f"tried again: {erasure.trouble}")
        return left or ["its last entry in the ledger"]

    # --- the janitor's part ---------------------------------------------------------------------------
    async def work(self, done: list[int], trouble: str = "") -> dict[str, Any]:
        """Take note of blocks that the janitor has stripped, and answer {blocks: [{block, only: {account: [seq…]}}…]}.

        Waits a while when there is nothing.
        """
        self.janitor_asked, self.janitor_trouble = time.monotonic(), trouble[:TROUBLE_CHARS_MAX]
        await self._look_at(done)
        self._todo.clear()
        blocks = self._waiting()
        if not blocks:
            try:
                await asyncio.wait_for(self._todo.wait(), WORK_WAIT_S)
            except TimeoutError:
                return {"blocks": []}
            blocks = self._waiting()
        return {"blocks": [{"block": b, "only": self._erased_in(b)} for b in blocks]}

    def _waiting(self) -> list[int]:
        return heapq.nsmallest(WORK_BLOCKS_MAX, {b for _, e in self.open() for b in e.blocks})

    def _erased_in(self, block: int) -> dict[str, list[int]]:
        """By account the tenant_seqs in a block whose text is erased. Of what was done before, no copy has a body any more."""
        found = {}
        for t, erasure in dict(self.open()).items():
            if t.deleted:
                seqs = [s for s in t.blocks.span(block, t.position + 1) if s < erasure.position]
            else:
                at = t.columns.at
                seqs = [s for s in t.blocks.span(block, t.columns.n) if at.erased[s]]
            if seqs:
                found[t.account] = seqs
        return found

    async def _look_at(self, done: Iterable[int]) -> None:
        """Believe nobody: a block is stripped when it is seen to be."""
        open_ = [e for _, e in self.open()]
        for block in [b for b in done if any(b in e.blocks for e in open_)]:
            try:
                stripped = await self._is_stripped(block)
            except (Unanswered, LedgerError) as e:
                log.warning("block %d can't be looked at: %s", block, e)
                continue
            if not stripped:
                log.error("the janitor says that block %d is stripped, and it isn't", block)
                continue
            for _, erasure in self.open():
                erasure.blocks.discard(block)
        if any(e.purged and not e.blocks for _, e in self.open()):
            self.wake.set()

    async def _is_stripped(self, block: int) -> bool:
        """The original is gone, and the one copy is that very block (its successor names its hash) without the bodies."""
        s, nc = self.shard, self.shard.outbox.nc
        if await stored(nc, s.ledger.stream, block) is not None:
            return False
        found = await erased.copies(nc, s.number, block)
        if len(found) != 1:
            return False
        copy = decode(found[0].data, block)
        if copy.hash != await self._hash_of(block):
            return False
        bodies = {(x.tenant, seq): body for x in copy.sections for seq, (_, body) in enumerate(x.events, x.seq)}
        return all(bodies.get((account, seq), b"") is None for account, seqs in self._erased_in(block).items() for seq in seqs)

    async def _hash_of(self, block: int) -> bytes:
        """What the chain says that a block's hash is."""
        s, nc = self.shard, self.shard.outbox.nc
        last = s.heads.block
        if block == last.seq:
            return last.hash
        data = await stored(nc, s.ledger.stream, block + 1) or await erased.instead(nc, s.number)(block + 1)
        return decode(data, block + 1).header.prev_block if data else b""

    async def _finish(self, t: Tenant, erasure: Erasure) -> None:
        stores = {**erasure.stores, "ledger": len(_blocks(t, erasure))}
        event = E.ErasureDone(ms=self.shard.now_ms(), erasure=erasure.id, stores=stores)

        async def run() -> None:
            if not erasure.done_ms:
                await self.shard.sequencer.commit(t, [Stored(event)])

        await self.shard.operators.barrier(t, run, deleted=True)


def _blocks(t: Tenant, erasure: Erasure) -> set[int]:
    """Those of the ledger that hold what it erases."""
    if t.deleted:
        return t.blocks.before(erasure.position)
    return {t.blocks.of(s) for s in erasure.members.tolist()}


def _purge_files(paths: Paths, account: str, seqs: Iterable[int]) -> tuple[int, int]:
    """Catalogs that were set aside, deleted; segments of snapshots, replaced."""
    aside = _delete_copies(paths.run, account)
    texts = frozenset((account, seq) for seq in seqs)
    return aside, forget_in_all(paths.snapshots, texts, Notary(paths.creds))


def _delete_copies(run: Path, account: str) -> int:
    """Delete the catalogs that were set aside: what was right in them was made again. How many files."""
    aside = [p for p in run.glob(f"aside-*/{account}/*") if p.is_file()]
    for path in aside:
        path.unlink(missing_ok=True)
    return len(aside)
