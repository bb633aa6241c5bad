"""A stream read around what is missing in it; an erased block has one that stands in for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from nats.aio.client import Client

from gate.ledger.errors import LedgerGap
from gate.ledger.replay import Missing, read_blocks


async def nothing_instead(_seq: int) -> bytes | None:
    """For READS: nothing of it is erased."""
    return None


async def blocks_around_gaps(
    nc: Client, stream: str, begin: int, end: int, stand_in: Missing
) -> AsyncGenerator[tuple[int, int, bytes | None, bool], None]:
    """(first, last, bytes, whether it stands in for an erased one) in order; bytes None: these are missing."""
    at = begin
    while at <= end:
        try:
            async with aclosing(read_blocks(nc, stream, at, end)) as blocks:
                async for seq, data in blocks:
                    yield seq, seq, data, False
                    at = seq + 1
            return
        except LedgerGap as gap:
            missing = gap.seq
            for seq in range(gap.seq, gap.upto + 1):
                stripped = await stand_in(seq)
                if stripped is not None:
                    if missing < seq:
                        yield missing, seq - 1, None, False
                    yield seq, seq, stripped, True
                    missing = seq + 1
            if missing <= gap.upto:
                yield missing, gap.upto, None, False
            at = gap.upto + 1
