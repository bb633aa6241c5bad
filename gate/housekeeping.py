"""What a gatekeeper does every second beside its requests: garbage, the lease's question to the ledger, room, marks for who comes
next; notices again; what time brings to contexts and cases. Decides nothing about a request.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nats.aio.client import Client

from bus.errors import CordonError
from gate.config import NOTICE_AGAIN_S
from gate.ledger.replay import stream_state
from gate.projections import ProjectionUnusable
from gate.recovery import streams

if TYPE_CHECKING:
    from gate.shard import Shard

HOUSEKEEPING_S: Final = 1.0
CONTEXTS_LOOKED_AT: Final = 512  # in a round of all tenants' contexts: some three milliseconds of the loop
GARBAGE_QUIET_S: Final = 600.0
GARBAGE_LATEST_S: Final = 6 * 3_600.0
SHARE_EVERY_S: Final = 5.0
TRIM_EVERY_S: Final = 30.0  # takes one to seven milliseconds, of another thread


class Garbage:
    """Young garbage every time, all of it (a quarter of a second with 100k memories) in a quiet moment, or else after hours.

    What has survived is frozen, so that the collector's own full runs don't stop everybody; until the next full one, cycles among
    it that became garbage stay.
    """

    def __init__(self) -> None:
        self._next = self._latest = 0.0
        self._work = 0

    def collect(self, now: float, work: int) -> None:
        """`now`: seconds of a monotonic clock. `work`: a number that grows with whatever is done."""
        quiet, self._work = work == self._work, work
        if not self._latest:
            self._set(now)
        if now < (self._next if quiet else self._latest):
            gc.collect(1)
        else:
            self._set(now)
            gc.unfreeze()
            gc.collect()
        gc.freeze()

    def _set(self, now: float) -> None:
        self._next, self._latest = now + GARBAGE_QUIET_S, now + GARBAGE_LATEST_S


def trim_heap() -> None:
    """Give the system back what was freed: glibc keeps it, among what stays, and a busy gatekeeper seemed to grow by it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
    if trim is not None:
        trim(0)


async def housekeeping(shard: Shard, nc: Client) -> None:
    """The lease's question to the ledger, room, marks, notices again."""
    loop, garbage = shard.loop, Garbage()
    next_trim = loop.time() + TRIM_EVERY_S
    next_share, next_notice = loop.time() + SHARE_EVERY_S, loop.time() + NOTICE_AGAIN_S
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        garbage.collect(loop.time(), shard.recalls.answered + shard.ledger_seq)
        await asyncio.gather(shard.ledger.confirm(), shard.reads.confirm())
        shard.room.look()
        _mark(shard.paths.lineage_doubted, isinstance(shard.lineage.failed, ProjectionUnusable))
        _mark(shard.paths.broker_stuck, shard.lease is None and (shard.ledger.stuck or shard.reads.stuck))
        _mark(shard.paths.ledger_at_end, shard.lease is None and shard.room.ledger_at_end)
        if loop.time() >= next_trim:
            next_trim = loop.time() + TRIM_EVERY_S
            await asyncio.to_thread(trim_heap)
        if loop.time() >= next_share:
            next_share = loop.time() + SHARE_EVERY_S
            with suppress(CordonError):
                ledger, reads = [await stream_state(nc, name, patience_s=1) for name in streams(shard.number)]
                shard.room.ledger_is(ledger.bytes, ledger.max_bytes)
                shard.room.reads_are(reads.bytes, reads.max_bytes)
        if loop.time() >= next_notice:
            next_notice = loop.time() + NOTICE_AGAIN_S
            for t in shard.tenants.values():
                for case, kind in {key for open_ in t.notices.values() for key in open_}:
                    shard.holds.notices.tell(t, t.cases[case], kind)


def _mark(path: Path, wanted: bool) -> None:
    """Leave a word for who comes next. A disk that is full keeps none: then in the next round."""
    if wanted and not path.exists():
        with suppress(OSError):
            path.touch()


async def tending(shard: Shard) -> None:
    """Beside housekeeping: it waits for the ledger, however long that takes."""
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        for t in list(shard.tenants.values()):
            ended = t.end_idle(shard.now_ms(), 1 + CONTEXTS_LOOKED_AT // len(shard.tenants), shard.unseen_ms)
            if ended:
                shard.index_later(shard.context_texts.end, t.account, ended)
            if not t.broken:
                await shard.holds.tend(t)
