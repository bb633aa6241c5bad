"""Start-up: a restart that replays into live state beside whole projections, a rebuild of everything, a verification, and the
first answer after a start with 100,000 memories.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import bus
from broker_config import gate_runs, supervisor
from broker_config.control import Control
from broker_config.home import Home
from broker_config.server import start_server, stop_server
from broker_config.supervision import GATEKEEPER_ENV, gatekeeper_command

from .rows import Budget, Row
from .stand import UP_S, standing
from .traffic import seed

EVENTS: Final = 30_000
QUERIES: Final = 3_000


async def rebuild(big: bool) -> AsyncIterator[Row]:
    """Events a second of a replay: 30,000 memories of 120 B (100,000 with --big), two parents each; 3,000 recalls."""
    total = 100_000 if big else EVENTS
    async with standing(1, 8) as stand:
        agents = [f"t0/a{i}" for i in range(8)]
        await stand.open(agents)
        await stand.run("child", agents, min(256, 60 * len(agents)), total)
        await stand.run("query", agents, 64, QUERIES)
        await asyncio.to_thread(supervisor.stop, stand.home)
        start = time.monotonic()
        await asyncio.to_thread(supervisor.start, stand.home, detach=True, ready_timeout_s=UP_S)
        ready = time.monotonic() - start
        replayed = (await _status(stand.home))["replayed"]
        yield Row(
            bench="rebuild",
            name="replay into live state at a restart",
            value=replayed["events"] / replayed["seconds"],
            unit="events/s",
            budget=Budget(">=", 18_000),
            note=f"{replayed['events']:.0f} events, {replayed['reads']:.0f} recalls in {replayed['seconds']:.2f} s; "
            f"the home was ready after {ready:.1f} s",
        )
        await asyncio.to_thread(supervisor.stop, stand.home)
        built = await asyncio.to_thread(_rebuilt, stand.home)
        yield Row(
            bench="rebuild",
            name="rebuild of every projection",
            value=built["replayed"] / built["seconds"],
            unit="events/s",
            budget=Budget(">=", 15_000),
            note=f"{built['replayed']} events, {built['reads']} recalls in {built['seconds']:.2f} s",
        )


async def verify(big: bool) -> AsyncIterator[Row]:
    """Events a second of `cordon verify`: 30,000 memories of 120 B (100,000 with --big), most with declared parents."""
    total = 100_000 if big else EVENTS
    async with standing(1, 8) as stand:
        agents = [f"t0/a{i}" for i in range(8)]
        await stand.open(agents)
        await stand.run("child", agents, min(256, 60 * len(agents)), total)
        await stand.run("query", agents, 64, QUERIES)
        for where in ("beside a gatekeeper that serves", "of a home that is down"):
            ended = await asyncio.to_thread(gate_runs.verify, stand.home)
            found = ended.last
            if not found.get("ok"):
                sys.exit(f"the verification failed: {found}")
            yield Row(
                bench="verify",
                name=f"events verified a second of the process's CPU, {where}",
                value=found["events"] / found["cpu_seconds"],
                unit="events/s",
                budget=Budget(">=", 30_000),
                note=f"{found['events']} events, {found['reads_blocks']} blocks of READS in {found['seconds']:.2f} s, "
                f"{found['cpu_seconds']:.2f} s of CPU",
            )
            await asyncio.to_thread(supervisor.stop, stand.home)


async def start(big: bool) -> AsyncIterator[Row]:
    """Seconds from `cordon up` to the first answer with 100,000 memories and whole projections (30,000 unless --big)."""
    total = 100_000 if big else EVENTS
    async with standing(1, 8) as stand:
        agents = [f"t0/a{i}" for i in range(8)]
        await stand.open(agents)
        await seed(stand, agents, total)
        await asyncio.to_thread(supervisor.stop, stand.home)
        began = time.monotonic()
        await asyncio.to_thread(supervisor.start, stand.home, detach=True, ready_timeout_s=UP_S)
        async with bus.connect(url=stand.home.url, creds=stand.creds(agents[0]), project="p1") as memory:
            recall = await memory.query("anything at all")
        first = time.monotonic() - began
        yield Row(
            bench="start",
            name=f"first answer after a start with {total:,} memories",
            value=first,
            unit="s",
            budget=Budget("<=", 5.0) if big else None,
            note=f"{stand.gatekeeper.cpu_s():.2f} s of the gatekeeper's CPU; {len(recall.admitted)} admitted",
        )


async def _status(home: Home) -> dict[str, Any]:
    async with Control(home) as control:
        return await control.status()


def _rebuilt(home: Home) -> dict[str, Any]:
    """`python -m gate --rebuild` on a home of which only the broker runs."""
    child = start_server(home)
    try:
        env = {**os.environ, **GATEKEEPER_ENV, "CORDON_URL": home.url}
        done = subprocess.run([*gatekeeper_command(home), "--rebuild"], capture_output=True, text=True, env=env, check=False)
    finally:
        stop_server(child, home)
    if done.returncode != 0:
        sys.exit(f"the rebuild failed: {done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
