"""Hours in minutes: a home under mixed load at a steady pace, and what grows in it that should not.

Writes, questions, ids, holds and releases, operators' questions, clients that come and go. Every few seconds of each process of
the home: memory, descriptors, threads; and the files of the home. What it keeps grows with what it was given, so the budget of
memory is that of DESIGN §11 for the memories written meanwhile, and what the members of a case take in it; descriptors and
threads may not grow at all. From 20,000 memories of a project on there is an index of their vectors, of all at once: the last
quarter of 20 minutes has it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import bus
from broker_config import supervisor
from bus.frames import Case, CaseQuery, Hold, Release, StatsRequest

from .rows import Budget, Row
from .stand import Meter, Stand, standing

MINUTES: Final = 20.0
SAMPLE_S: Final = 5.0
WARM_SHARE: Final = 0.25  # of the time: caches fill, DuckDB takes its memory
TENANTS, AGENTS = 2, 8
WRITES, QUESTIONS, GETS = 60, 60, 20  # a round of each tenant; a round takes ROUND_S, or as long as it takes
ROUND_S: Final = 2.0
GUESTS: Final = 3  # clients that connect, ask and leave, a round
MEMORY_KB: Final = 2.5  # a memory, resident (DESIGN §11)
MEMBER_KB: Final = 4 / 1024  # a member of a case, for as long as the case is known
QUARTERS: Final = 4
SLACK_MB: Final = 2.0  # a minute: allocators and caches that are still filling
FILES_PER_MINUTE: Final = 4.0  # blocks of the streams, segments


class Sample(NamedTuple):
    at_s: float
    rss_mb: float
    descriptors: float
    threads: float


class Growth(NamedTuple):
    """A minute, as a straight line through the samples has it."""

    rss_mb: float
    descriptors: float
    threads: float


def sample(pid: int, at_s: float) -> Sample:
    proc = Path(f"/proc/{pid}")
    threads = int((proc / "status").read_text().split("Threads:")[1].split()[0])
    return Sample(at_s, Meter(pid).rss_mb(), len(os.listdir(proc / "fd")), threads)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Per minute, by least squares."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mx) ** 2 for x, _ in points)
    return 60 * sum((x - mx) * (y - my) for x, y in points) / spread if spread else 0.0


def growth(samples: Sequence[Sample]) -> Growth:
    return Growth(*(slope([(s.at_s, float(s[field])) for s in samples]) for field in (1, 2, 3)))


def files_of(home: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(home))


async def soak(minutes: float) -> AsyncIterator[Row]:
    async with standing(TENANTS, AGENTS) as stand, AsyncExitStack() as stack:
        for i in range(TENANTS):
            await stand.open_desk(stack, f"t{i}")
        began = time.monotonic()
        seen: dict[str, list[Sample]] = {}
        files: list[tuple[float, float]] = []
        watching = asyncio.create_task(_watch(stand, began, seen, files))
        written, members = await _load(stand, began + minutes * 60)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        status = await stand.status()
        spent = (time.monotonic() - began) / 60
    warm_s = WARM_SHARE * minutes * 60
    pace, kept_kb = written / spent, (written * MEMORY_KB + members * MEMBER_KB) / spent
    for name, samples in sorted(seen.items()):
        kept = [s for s in samples if s.at_s >= warm_s]
        grown = growth(kept)
        due = kept_kb / 1024 if name == "gatekeeper" else pace * 0.5 / 1024
        last = kept[-1]
        note = f"{kept[0].rss_mb:.0f} to {last.rss_mb:.0f} MB, {last.descriptors:.0f} descriptors, {last.threads:.0f} threads"
        if name == "gatekeeper":
            quarters = (samples[i * len(samples) // QUARTERS : (i + 1) * len(samples) // QUARTERS] for i in range(QUARTERS))
            note += "; MB/min by quarter: " + ", ".join(f"{growth(q).rss_mb:.1f}" for q in quarters)
        budget = Budget("<=", round(due + SLACK_MB, 2))
        yield Row(bench="soak", name=f"{name}: memory", value=grown.rss_mb, unit="MB/min", budget=budget, note=note)
        for what, value in (("descriptors", grown.descriptors), ("threads", grown.threads)):
            yield Row(bench="soak", name=f"{name}: {what}", value=value, unit="/min", budget=Budget("<=", 1.0))
    kept_files = [f for f in files if f[0] >= warm_s]
    note = f"{kept_files[0][1]:.0f} to {kept_files[-1][1]:.0f}"
    yield Row(bench="soak", name="files", value=slope(kept_files), unit="/min", budget=Budget("<=", FILES_PER_MINUTE), note=note)
    note = f"{written:,} memories and {members:,} members of cases in {spent:.1f} min"
    note += "".join(f", {status[what]} {what}" for what in ("held", "alarms", "retries"))
    yield Row(bench="soak", name="alarms", value=status["alarms"], unit="", budget=Budget("<=", 0), note=note)


async def _watch(stand: Stand, began: float, seen: dict[str, list[Sample]], files: list[tuple[float, float]]) -> None:
    while True:
        at_s = time.monotonic() - began
        status = supervisor.read_status(stand.home)
        for name, pid in (status.pids if status else {}).items():
            seen.setdefault(name, []).append(sample(pid, at_s))
        files.append((at_s, float(files_of(stand.home.path))))
        await asyncio.sleep(SAMPLE_S)


async def _load(stand: Stand, until: float) -> tuple[int, int]:
    """Rounds until then; how many memories were written, and how many members the cases had."""
    chance = random.Random(5)
    tenants = [f"t{i}" for i in range(TENANTS)]
    agents = {t: [name for name in stand.agents if name.startswith(f"{t}/a")] for t in tenants}
    await stand.open([name for names in agents.values() for name in names])
    written = members = rounds = 0
    while (now := time.monotonic()) < until:
        rounds += 1
        for tenant in tenants:
            await stand.run("write", agents[tenant], 16, WRITES, seed=1_000 + rounds)
            await stand.run("query", agents[tenant], 16, QUESTIONS, seed=2_000 + rounds)
            await stand.run("get", agents[tenant], 4, GETS, k=8)
            written += WRITES
            members += await _contained(stand, tenant, chance)
        await asyncio.gather(*(_guest(stand, chance.choice(agents[chance.choice(tenants)])) for _ in range(GUESTS)))
        await asyncio.sleep(max(0.0, now + ROUND_S - time.monotonic()))
    return written, members


async def _contained(stand: Stand, tenant: str, chance: random.Random) -> int:
    """A hold of what an agent wrote, its release, and what an operator asks meanwhile; how many members it had."""
    await stand.ops(tenant, StatsRequest())
    found = await stand.ops(tenant, Hold(selector=[f"agent:a{chance.randrange(AGENTS)}"], now=True, message="soak"))
    await stand.ops(tenant, CaseQuery())
    if not isinstance(found, Case):
        return 0
    await stand.ops(tenant, Release(case=found.case, message="soak"))
    return found.count


async def _guest(stand: Stand, name: str) -> None:
    """A client that comes, asks, writes and goes."""
    async with bus.connect(stand.home.url, stand.creds(name), project="p1") as memory:
        await memory.sync()
        recall = await memory.query("who came and went?")
        await memory.write(f"A guest was told {len(recall.ids)} things", idempotency_key=os.urandom(8).hex())
