"""Queries and durable writes from outside, with the bare echo and raw JetStream beside them in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Final

from bus.frames import Case, Hold, Release

from . import texts
from .load import Figures
from .rows import Budget, Row
from .stand import Stand, standing

SEED: Final = 10_000
ROUNDS: Final = 3  # echo and the thing in turn; medians of them
FULL: Final = 2_048  # ids of a full context
BUILT_S: Final = 180.0  # more than it takes


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


async def seed(stand: Stand, agents: Sequence[str], total: int, seed: int = 3) -> Figures:
    return await stand.run("write", agents, min(256, 60 * len(agents)), total, seed=seed)


async def fill_contexts(stand: Stand, agents: Sequence[str], ids: int) -> None:
    """Serve every agent's context its tenant's newest memories, 64 at a time."""
    await stand.run("get", agents, len(agents), -(-ids // 64) * len(agents), k=64)


class Beside:
    """Rounds of echo and of the thing, so that a noisy neighbour hits both."""

    def __init__(self, stand: Stand, agents: Sequence[str]) -> None:
        self.stand, self.agents = stand, agents

    async def rounds(
        self, kind: str, in_flight: int, total: int, echo_in_flight: int, echo_total: int, rounds: int = ROUNDS
    ) -> tuple[list[Figures], list[Figures], float]:
        """(echoes, things, gatekeeper's CPU ms an operation, the median)."""
        echoes, things, cpus = [], [], []
        for n in range(rounds):
            echoes.append(await self.stand.run("echo", self.agents, echo_in_flight, echo_total))
            found, cpu = await self.stand.metered(kind, self.agents, in_flight, total, seed=100 + n)
            things.append(found)
            cpus.append(cpu)
        return echoes, things, _median(cpus)


async def query(big: bool) -> AsyncIterator[Row]:
    """Queries at 1, 16 and 64 in flight over 10,000 memories of 120 B in one project, k = 8, READS included."""
    agents = [f"t0/a{i}" for i in range(4)]
    async with standing(1, 4) as stand:
        await stand.open(agents)
        await seed(stand, agents, SEED)
        await stand.run("query", agents, 16, 400)
        async for row in _queries(stand, agents, "10k"):
            yield row
        if big:
            await seed(stand, agents, 100_000 - SEED, seed=4)
            spent = await stand.idle(BUILT_S)
            yield Row(
                bench="query", name="idle time in which the approximate index of 100k is built", value=spent, unit="s",
                note="until then a question scans all vectors",
            )  # fmt: skip
            await stand.run("query", agents, 16, 400)
            async for row in _queries(stand, agents, "100k"):
                yield row


async def _queries(stand: Stand, agents: list[str], size: str) -> AsyncIterator[Row]:
    beside = Beside(stand, agents)
    note = f"{size} memories, {texts.source()}; the echo is a process of its own under the same kind of import"
    echoes, things, cpu = await beside.rounds("query", 1, 500, 1, 1_000)
    yield Row(
        bench="query",
        name=f"query p50, 1 in flight, {size}",
        value=_median([t.p50 for t in things]) * 1e3,
        unit="ms",
        raw_name="echo",
        raw=_median([e.p50 for e in echoes]) * 1e3,
        budget=Budget("<=", 12, "ratio"),
        note=f"{note}; CPU {cpu:.2f} ms; p99 {_median([t.p99 for t in things]) * 1e3:.1f} ms",
    )
    for in_flight in (16, 64):
        echoes, things, cpu = await beside.rounds("query", in_flight, 3_000, in_flight, 8_000)
        rate, client = _median([t.rate for t in things]), _median([t.cpu / t.seconds for t in things])
        yield Row(
            bench="query",
            name=f"queries, {in_flight} in flight, {size}",
            value=rate,
            unit="/s",
            raw_name="echo",
            raw=_median([e.rate for e in echoes]),
            budget=Budget(">=", 0.06, "ratio") if in_flight == 64 else None,
            note=f"p50 {_median([t.p50 for t in things]) * 1e3:.1f} ms, p99 {_median([t.p99 for t in things]) * 1e3:.1f}; "
            f"{things[0].items / things[0].total:.1f} items each; load generator {client:.0%} of a core",
        )
        yield Row(
            bench="query",
            name=f"gatekeeper CPU a query, {in_flight} in flight, {size}",
            value=cpu,
            unit="ms",
            budget=Budget("<=", 0.9) if in_flight == 64 else None,
        )


async def write(big: bool) -> AsyncIterator[Row]:
    """Durable writes over 1, 16 and 256 tenants, contexts full, everything on; raw JetStream and the echo beside them."""
    async for row in _writes(1, 8, SEED, FULL):
        yield row
    async for row in _writes(16, 1, 16 * FULL, FULL):
        yield row
    async for row in _writes(256, 1, 256 * 128, 128):
        yield row


async def _writes(tenants: int, agents: int, memories: int, context: int) -> AsyncIterator[Row]:
    everyone = [f"t{i}/a{j}" for i in range(tenants) for j in range(agents)]
    said = f"{tenants} tenant{'s' * (tenants > 1)}"
    async with standing(tenants, agents) as stand:
        await stand.open([*everyone, "core/bench"])
        await seed(stand, everyone, memories)
        await fill_contexts(stand, everyone, context)
        await stand.run("write", everyone, min(64, 8 * len(everyone)), 1_000, seed=9)
        beside = Beside(stand, everyone)
        for in_flight in (1, 64, 256) if tenants == 1 else (256,):
            total = {1: 500, 64: 3_000, 256: 6_000}[in_flight]
            before = await stand.status()
            echoes, things, cpu = await beside.rounds(
                "write", in_flight, total, min(64, in_flight), 1_000 if in_flight == 1 else 8_000
            )
            after = await stand.status()
            raws = [await stand.run("raw", ["core/bench"], in_flight, 400 if in_flight == 1 else 2_000) for _ in range(ROUNDS)]
            per_message = (after["events"] - before["events"]) / (after["blocks"] - before["blocks"])
            rate, client = _median([t.rate for t in things]), _median([t.cpu / t.seconds for t in things])
            name = f"durable writes, {in_flight} in flight, {said}"
            note = (
                f"contexts of {context} ids; p50 {_median([t.p50 for t in things]) * 1e3:.1f} ms, "
                f"p99 {_median([t.p99 for t in things]) * 1e3:.1f}; load generator {client:.0%} of a core"
            )
            full = in_flight == 256
            yield Row(
                bench="write",
                name=name,
                value=rate,
                unit="/s",
                raw_name="echo",
                raw=_median([e.rate for e in echoes]),
                budget=Budget(">=", 0.14, "ratio") if full else None,
                note=note,
            )
            yield Row(
                bench="write", name=name, value=rate, unit="/s", raw_name="JetStream singles", raw=_median([x.rate for x in raws])
            )
            yield Row(
                bench="write",
                name=f"gatekeeper CPU a write, {in_flight} in flight, {said}",
                value=cpu,
                unit="ms",
                budget=Budget("<=", 0.4) if full else None,
            )
            yield Row(
                bench="write",
                name=f"memories a ledger message, {in_flight} in flight, {said}",
                value=per_message,
                unit="memories",
                budget=Budget(">=", 40) if full else None,
            )


async def memory(big: bool) -> AsyncIterator[Row]:
    """The gatekeeper's resident memory at 10,000 (and 100,000) memories of one project, read by four agents."""
    agents = [f"t0/a{i}" for i in range(4)]
    async with standing(1, 4) as stand:
        await stand.open(agents)
        done = 0
        for size in (SEED, 100_000) if big else (SEED,):
            await seed(stand, agents, size - done, seed=size)
            done = size
            await stand.run("query", agents, 64, 2_000)
            limit = round(450 + 2.5 * size / 1024, 0)
            yield Row(
                bench="memory",
                name=f"gatekeeper RSS, {size:,} memories",
                value=stand.gatekeeper.rss_mb(),
                unit="MB",
                budget=Budget("<=", limit),
                note="450 MB + 2.5 KB a memory",
            )


async def hold(big: bool) -> AsyncIterator[Row]:
    """A hold of 5,000 members of a tree, warmed, to the receipt; the echo beside it."""
    async with standing(1, 4) as stand, AsyncExitStack() as stack:
        agents = [f"t0/a{i}" for i in range(4)]
        await stand.open(agents)
        await stand.open_desk(stack, "t0")
        await seed(stand, agents, SEED)
        await stand.run("child", agents[:1], 1, 1, project="p2")
        grown = await stand.run("child", agents, 200, 4_999, project="p2")
        root, times, inside, released = grown.ids[0], list[float](), list[str](), list[float]()
        for _ in range(9):
            start = time.perf_counter()
            case = await stand.ops("t0", Hold(selector=[root], now=True, message="bench"))
            times.append(time.perf_counter() - start)
            assert isinstance(case, Case), case
            inside.append(f"closure {case.closure_ms:.1f}, set and append {case.hold_ms:.1f} ms")
            start = time.perf_counter()
            await stand.ops("t0", Release(case=case.case, message="bench"))
            released.append(time.perf_counter() - start)
        echo = await stand.run("echo", agents[:1], 1, 1_000)
        yield Row(
            bench="hold",
            name=f"hold of {case.count} members, to the receipt",
            value=_median(times[2:]) * 1e3,
            unit="ms",
            raw_name="echo",
            raw=echo.p50 * 1e3,
            budget=Budget("<=", 15),
            note=f"{inside[-1]}; the median of 7 after 2 to warm up",
        )
        yield Row(bench="hold", name=f"release of {case.count} members", value=_median(released[2:]) * 1e3, unit="ms")
