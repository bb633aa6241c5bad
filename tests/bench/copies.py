"""A snapshot of a home that serves: how long it takes, and what it costs the writers meanwhile."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from typing import Final

from broker_config.snapshots import Snapshots

from .rows import Budget, Row
from .stand import standing
from .traffic import seed

MEMORIES: Final = 30_000
IN_FLIGHT: Final = 16
ROUND: Final = 1_000  # writes
ROUNDS: Final = 5


async def snapshot(big: bool) -> AsyncIterator[Row]:
    """Seconds of a first snapshot of 30,000 memories (100,000 with --big), and the writers' p99 during it against without it."""
    total = 100_000 if big else MEMORIES
    async with standing(1, 8) as stand:
        agents = [f"t0/a{i}" for i in range(8)]
        await stand.open(agents)
        await seed(stand, agents, total)
        normal = [(await stand.run("write", agents, IN_FLIGHT, ROUND, seed=10 + n)).p99 for n in range(ROUNDS)]
        began = time.monotonic()
        made = asyncio.create_task(asyncio.to_thread(Snapshots(stand.home).create, "first"))
        during: list[float] = []
        while not made.done():
            during.append((await stand.run("write", agents, IN_FLIGHT, ROUND, seed=100 + len(during))).p99)
        copy = await made
        taken = time.monotonic() - began
        yield Row(
            bench="snapshot",
            name=f"a first snapshot of {total:,} memories while agents write",
            value=taken,
            unit="s",
            budget=Budget("<=", 5.0),
            note=f"{copy.manifest.events:,} events; {len(during)} rounds of {ROUND} writes beside it",
        )
        yield Row(
            bench="snapshot",
            name=f"write p99 during it, {IN_FLIGHT} in flight",
            value=statistics.median(during) / statistics.median(normal),
            unit="x of without",
            budget=Budget("<=", 4.0),
            note=f"{statistics.median(during) * 1e3:.1f} ms (worst round {max(during) * 1e3:.1f}), "
            f"{statistics.median(normal) * 1e3:.1f} ms without",
        )
