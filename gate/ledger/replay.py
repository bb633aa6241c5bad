"""Reading the ledger back: contiguous, bounded, in one order.

Invariant: `read_blocks` yields every sequence from `start` to `end` exactly once and in order, or raises; it never skips. `merge`
yields both streams in the order in which they were decided. Memory is bounded: one batch being read and one being consumed.
Consumers have a random name (a fixed one survives a kill and resumes half-way, silently) and are deleted when done.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Final, NamedTuple

import anyio
from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.errors import Closed, Unavailable

from .block import Block, ReadsBlock, decode, decode_reads
from .errors import LedgerCorrupt, LedgerError, LedgerGap, LedgerWentBack
from .jetstream import LINK_POLL_S, StreamState, Unanswered, create_consumer, delete_consumer, pull
from .jetstream import stream_state as _stream_state

__all__ = ["Blocks", "StreamState", "merge", "read_blocks", "stream_state", "verify_position"]

BATCH_MESSAGES: Final = 1_000
# A prime: a pull filled to the byte ends without a word from the broker, and equal blocks must not do that each time.
BATCH_BYTES: Final = 8_388_593
PULL_EXPIRES_S: Final = 5.0
STALL_S: Final = 2.0  # a pull that brings nothing for so long is asked again on a new consumer
CONSUMER_IDLE_S: Final = 30.0
DELETE_TIMEOUT_S: Final = 1.0
PATIENCE_S: Final = 30.0
_PULL_ENDED: Final = frozenset({"408 Request Timeout", "409 Message Size Exceeds MaxBytes", "409 Batch Completed"})

Blocks = AsyncGenerator[tuple[int, bytes], None]
"""(stream sequence, block bytes), ascending."""
Missing = Callable[[int], Awaitable[bytes | None]]
"""What stands for a missing sequence (see gate.ledger.erased); None: nothing does."""


class Accepted(NamedTuple):
    """Where a person accepted that a stream had lost its tail: up to here no block waits for the other stream."""

    ledger: int
    reads: int


NOTHING_LOST: Final = Accepted(0, 0)


async def stream_state(nc: Client, stream: str, *, patience_s: float = PATIENCE_S) -> StreamState:
    """The stream as the broker sees it. `LedgerWentBack` if it isn't there; `Unavailable` if nobody answers in `patience_s`."""
    give_up = time.monotonic() + patience_s
    while True:
        try:
            return await _stream_state(nc, stream)
        except Unanswered as e:
            if time.monotonic() > give_up:
                raise _unavailable(stream, e) from e
            await asyncio.sleep(LINK_POLL_S)


async def read_blocks(
    nc: Client,
    stream: str,
    start: int = 1,
    end: int | None = None,
    *,
    patience_s: float = PATIENCE_S,
    missing: Missing | None = None,
) -> Blocks:
    """(sequence, bytes) of `start` to `end` inclusive; `end` is the stream's last at the call unless given.

    `missing` gives what stands for a sequence that is not there any more. `LedgerGap`: nothing does (go on from `upto` + 1).
    `LedgerWentBack`: no stream, or it ends before `end` or `start` - 1. A lost connection is survived; `Unavailable` after
    `patience_s` without an answer. Leave early through `contextlib.aclosing`.
    """
    state = await stream_state(nc, stream, patience_s=patience_s)
    last = state.last if end is None else end
    _must_reach(state, stream, max(last, start - 1))
    expected = start
    failing_since: float | None = None
    while expected <= last:
        try:
            async with _Puller(nc, stream, expected) as puller:
                while expected <= last:
                    messages = await puller.take()
                    failing_since = None
                    if not messages:  # the consumer has delivered all there is
                        messages = [(last + 1, b"")]
                    for seq, data in messages:
                        for gone in range(expected, min(seq, last + 1)):
                            yield gone, await _instead(missing, stream, gone, min(seq - 1, last))
                            expected += 1
                        if expected > last:
                            return
                        yield seq, data
                        expected += 1
                        if expected > last:
                            return
        except Unanswered as e:
            failing_since = failing_since or time.monotonic()
            if time.monotonic() - failing_since > patience_s:
                raise _unavailable(stream, e) from e
            await asyncio.sleep(LINK_POLL_S)
            _must_reach(await stream_state(nc, stream, patience_s=patience_s), stream, last)


async def _instead(missing: Missing | None, stream: str, seq: int, upto: int) -> bytes:
    found = await missing(seq) if missing is not None else None
    if found is None:
        raise LedgerGap(stream, seq, upto)
    return found


async def verify_position(nc: Client, stream: str, seq: int, block_hash: bytes) -> None:
    """`LedgerWentBack` unless block `seq` of a LEDGER is there with this hash: asked before a projection goes on from `seq`."""
    async with aclosing(read_blocks(nc, stream, seq, seq)) as blocks:
        async for no, data in blocks:
            if decode(data, no).hash == block_hash:
                return
            raise LedgerWentBack(f"Block {seq} of {stream} isn't the one that was applied.")


async def merge(
    ledger: Blocks,
    reads: Blocks,
    *,
    ledger_applied: int = 0,
    reads_applied: int = 0,
    accepted: Callable[[int], Awaitable[Accepted]] | None = None,
) -> AsyncGenerator[Block | ReadsBlock, None]:
    """Decoded blocks of both streams in the one order: a READS block after ledger block `ledger_seq`, a ledger block after READS
    block `reads_seq`, each stream in its own order, and the ledger first where either could be.

    `…_applied` is the position before the first block of each (READS may be pruned at the front). `LedgerCorrupt` when two blocks
    wait for each other, `LedgerWentBack` when one waits for a block beyond the other stream's end; but first `accepted` is asked,
    with the number of the ledger block that comes next, whether somebody accepted this.
    """
    loss = NOTHING_LOST
    async with aclosing(ledger), aclosing(reads):
        block, ledger_done = await _next_block(ledger), ledger_applied
        read, reads_done = await _next_reads(reads), reads_applied
        while block is not None or read is not None:
            if block is not None and (
                block.header.no <= loss.ledger or block.header.reads_seq <= (read.header.no - 1 if read else reads_done)
            ):
                yield block
                ledger_done = block.header.no
                block = await _next_block(ledger)
            elif read is not None and (
                read.header.no <= loss.reads or read.header.ledger_seq <= (block.header.no - 1 if block else ledger_done)
            ):
                yield read
                reads_done = read.header.no
                read = await _next_reads(reads)
            else:
                before, loss = loss, await accepted(ledger_done + 1) if accepted else NOTHING_LOST
                if loss in (before, NOTHING_LOST):
                    raise _impossible(block, read, ledger_done, reads_done)


def _impossible(block: Block | None, read: ReadsBlock | None, ledger_done: int, reads_done: int) -> LedgerError:
    if block is None:
        return LedgerWentBack(f"The ledger ends at block {ledger_done}, but a READS block came after a later one.")
    if read is None:
        return LedgerWentBack(f"READS ends at block {reads_done}, but ledger block {block.header.no} came after a later one.")
    return LedgerCorrupt(f"it and READS block {read.header.no} each say to come after the other.", block=block.header.no)


async def _next_block(blocks: Blocks) -> Block | None:
    async for seq, data in blocks:
        return decode(data, seq)
    return None


async def _next_reads(blocks: Blocks) -> ReadsBlock | None:
    async for seq, data in blocks:
        return decode_reads(data, seq)
    return None


def _must_reach(state: StreamState, stream: str, seq: int) -> None:
    if state.last < seq:
        raise LedgerWentBack(f"{stream} ends at sequence {state.last}; {seq} was seen before.")


def _unavailable(stream: str, cause: Unanswered) -> Unavailable:
    return Unavailable(f"{stream} can't be read ({cause}).", reason="ledger_unavailable", advice="Check the broker, try again.")


class _Puller:
    """One consumer, one subscription, at most one pull under way beside the batch that was taken. An interruption ends it."""

    def __init__(self, nc: Client, stream: str, start: int) -> None:
        self._nc = nc
        self._stream = stream
        self._start = start
        self._name = f"replay-{os.urandom(8).hex()}"
        self._inbox = nc.new_inbox()
        self._subscription: Subscription | None = None
        self._queue: list[tuple[int, bytes]] = []
        self._waiting = 0  # messages that the broker has for this consumer and hasn't sent yet
        self._asked = 0  # messages still to come from the pull under way
        self._broken = ""
        self._wake = asyncio.Event()
        self._reconnects = nc.stats["reconnects"]

    async def __aenter__(self) -> _Puller:
        try:
            self._subscription = await self._nc.subscribe(self._inbox, cb=self._on_message)
            self._waiting = await create_consumer(self._nc, self._stream, self._name, self._start, idle_s=CONSUMER_IDLE_S)
        except nats_errors.Error as e:
            await self._close()
            raise Unanswered(str(e)) from e
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._close()

    async def take(self) -> list[tuple[int, bytes]]:
        """All that has come, at least one; [] when there is nothing more. `Unanswered` when this consumer is of no more use."""
        stalled_at = time.monotonic() + STALL_S
        while not self._queue:
            if not self._waiting:
                return []
            self._check(stalled_at)
            await self._ask()
            self._wake.clear()
            with anyio.move_on_after(LINK_POLL_S):
                await self._wake.wait()
        taken, self._queue = self._queue, []
        await self._ask()  # the next batch travels while this one is consumed
        return taken

    async def _ask(self) -> None:
        if not self._asked and self._waiting:
            self._asked = BATCH_MESSAGES
            await pull(
                self._nc,
                self._stream,
                self._name,
                self._inbox,
                messages=BATCH_MESSAGES,
                max_bytes=BATCH_BYTES,
                expires_s=PULL_EXPIRES_S,
            )

    def _check(self, stalled_at: float) -> None:
        if self._nc.is_closed:
            raise Closed("The connection to the broker was closed during a replay.", advice="Connect and replay again.")
        if self._nc.stats["reconnects"] != self._reconnects or not self._nc.is_connected:
            raise Unanswered("the connection was lost")
        if self._broken or time.monotonic() > stalled_at:
            raise Unanswered(self._broken or f"nothing came for {STALL_S:g} s")

    async def _on_message(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status is None:
            tokens = message.reply.split(".")  # $JS.ACK.[domain.account.]stream.consumer.delivered.seq.cseq.time.pending[.random]
            at = 5 if len(tokens) == 9 else 7
            self._waiting = int(tokens[at + 3])
            self._asked = max(0, self._asked - 1)
            self._queue.append((int(tokens[at]), message.data))
        else:
            text = f"{status} {(message.headers or {}).get('Description', '')}"
            self._asked = 0
            if text not in _PULL_ENDED:
                self._broken = text
        self._wake.set()

    async def _close(self) -> None:
        """Leave no consumer behind, also when cancelled; what can't be said within a second, the idle threshold does."""
        with anyio.move_on_after(DELETE_TIMEOUT_S, shield=True):
            try:
                if self._subscription is not None:
                    await self._subscription.unsubscribe()
                await delete_consumer(self._nc, self._stream, self._name)
            except (Unanswered, Closed, nats_errors.Error):
                return
