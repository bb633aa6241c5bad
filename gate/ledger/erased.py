"""ERASED: what stands for blocks of the ledger that had text erased: the same block, bodies stripped, every hash as it was.

A block has at most two copies there, under two names that take turns: the next is stored before the last is deleted, so there is
no moment without any (the stream would drop an older message of the same name by itself, but leave its bytes on disk).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from nats.aio.client import Client

from .errors import LedgerWentBack
from .jetstream import last_of
from .replay import Missing

_TURNS: Final = ("", "-b")


class Copy(NamedTuple):
    """A stored copy: under which subject, at which sequence of ERASED."""

    subject: str
    seq: int
    data: bytes


def stream(shard: int) -> str:
    return f"ERASED_{shard}"


def subjects(shard: int, block: int) -> list[str]:
    """The names under which a block's copies are stored."""
    return [f"erased.{shard}.{block}{turn}" for turn in _TURNS]


async def copies(nc: Client, shard: int, block: int) -> list[Copy]:
    """The copies of a block, newest first; [] if nothing of it was erased. `Unanswered` if the broker doesn't tell."""
    found = []
    with suppress(LedgerWentBack):  # no such stream: nothing stands for a block then (`up` says that the stream is missing)
        for subject in subjects(shard, block):
            message = await last_of(nc, stream(shard), subject)
            if message is not None:
                found.append(Copy(subject, *message))
    return sorted(found, key=lambda copy: -copy.seq)


def instead(nc: Client, shard: int) -> Missing:
    """For `read_blocks` of the ledger: the newest copy of a block that isn't there."""

    async def missing(block: int) -> bytes | None:
        found = await copies(nc, shard, block)
        return found[0].data if found else None

    return missing
