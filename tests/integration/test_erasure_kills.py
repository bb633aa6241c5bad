"""kill -9 at every named step of an erasure, of the gatekeeper and of the janitor: it goes on by itself, and nothing is left.

The processes are the real ones, but for one wrapper each that ends the process at the step which `run/kill-at` names, once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import bus
from broker_config import supervisor
from gate.ledger import erased
from gate.ledger.block import decode
from gate.ledger.chain import Heads
from gate.ledger.jetstream import stored
from gate.ledger.replay import read_blocks

from .kill_points import AROUND, STEPS_PER_START, order
from .stored import core_client
from .test_erasure import done, findings, found
from .world import UP_S, World, running, until

_GATEKEEPER = (
    AROUND
    + """
sys.setswitchinterval(0.0005)
import gate.erasure.stores as stores
from gate.erasure.requests import Requests
from gate.ledger.committer import Committer
from gate.projections.catalog import Catalog
from gate.process import run
around(Requests, "_carry_out", before="before the event")
around(Committer, "append", after="event appended, not applied", when=lambda _, data: b"memory_erased" in data)
around(Catalog, "erase", before="out of postings and vectors", after="out of the catalog")
around(Catalog, "scrub", after="out of the catalog's log")
around(stores.Erasures, "_look_at", before="the janitor tells", when=lambda _, done: bool(done))
around(stores.Erasures, "_finish", after="done appended")
sys.exit(run(home, 0, "serve", None))
"""
)
GATEKEEPER_STEPS = (
    "before the event", "event appended, not applied", "out of postings and vectors", "out of the catalog",
    "out of the catalog's log", "the janitor tells", "done appended",
)  # fmt: skip
IMPATIENT = bus.Timing(request_s=2.0, deadline_s=2.5)

_JANITOR = (
    AROUND
    + """
import gate.janitor as janitor
J = janitor.Janitor
around(J, "_copy", before="before the copy", after="copied")
around(J, "_stored_copy", after="looked at")
around(J, "_delete", after="deleted", when=lambda _, stream, seq: stream.startswith("LEDGER"))
around(J, "_delete", before="before the old copy goes", after="old copy gone", when=lambda _, s, seq: s.startswith("ERASED"))
around(J, "_ask", before="before it tells", when=lambda _, done, trouble: bool(done))
sys.exit(janitor.main())
"""
)
JANITOR_STEPS = (
    "before the copy", "copied", "looked at", "deleted", "before the old copy goes", "old copy gone", "before it tells",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gatekeeper_that_is_killed_at_any_step_of_an_erasure_finishes_it_when_it_is_back() -> None:
    with running() as world:
        home = world.home
        gatekeeper = [sys.executable, "-c", _GATEKEEPER, "--home", str(home.path)]

        async def populate() -> None:
            await world.add("w")
            await world.add("r")

        asyncio.run(populate())
        for i, step in enumerate(GATEKEEPER_STEPS):
            if i % STEPS_PER_START == 0:
                supervisor.stop(home)
                assert supervisor.start(home, detach=True, ready_timeout_s=UP_S, gatekeeper=gatekeeper).state == "ready"
            asyncio.run(_killed_gatekeeper(world, step, f"marker-{i}-halyard"))
        with suppress(FileNotFoundError):
            (home.run / "kill-at").unlink()


async def _killed_gatekeeper(world: World, step: str, mark: str) -> None:
    async with world.agent("w") as writer, world.agent("r") as reader, world.desk() as desk:
        memory = await writer.write(f"the knot of {mark}")
        assert memory.id in (await reader.query(f"knot {mark}")).ids
        assert found(world.home.path, mark)
        before, was = len(await desk.erasures()), world.pid("gatekeeper")
        ordered = order(world, step)
        with suppress(bus.Unavailable):
            async with bus.connect_operator(world.home.url, world.creds("ops"), timing=IMPATIENT) as dying:
                await dying.erase(memory.id, step)
        await until(lambda: not ordered.exists(), f"killed {step}", UP_S)
        await world.ready_again(was)
        erasures = await desk.erasures()
        if step == "before the event":
            assert len(erasures) == before, "nothing happened"
            assert memory.id in (await reader.get(memory.id)).ids
            erasures = [await desk.erase(memory.id, "again")]
        assert (await reader.get(memory.id)).withheld == {"erased": 1}, step
        assert (await reader.query(f"knot {mark}")).ids.count(memory.id) == 0
        await done(desk, erasures[0])
        assert found(world.home.path, mark) == set(), step
        assert len(await desk.erasures()) == before + 1, "the event is there once"
        if step == GATEKEEPER_STEPS[-1]:
            assert await findings(world.home) == []


@pytest.fixture
def paused() -> Iterator[World]:
    """A home whose own janitor stands still."""
    with running() as world:
        janitor = world.pid("janitor") if _has_janitor(world) else 0
        if not janitor:
            asyncio.run(until(lambda: _has_janitor(world), "a janitor", UP_S))
            janitor = world.pid("janitor")
        os.kill(janitor, signal.SIGSTOP)
        try:
            yield world
        finally:
            os.kill(janitor, signal.SIGCONT)


def _has_janitor(world: World) -> bool:
    status = supervisor.read_status(world.home)
    return status is not None and "janitor" in status.pids


@asynccontextmanager
async def janitor(world: World) -> AsyncIterator[asyncio.subprocess.Process]:
    """A janitor of the test's own, with the wrapper."""
    env = {**os.environ, "CORDON_URL": world.home.url}
    argv = [sys.executable, "-c", _JANITOR, "--home", str(world.home.path)]
    child = await asyncio.create_subprocess_exec(*argv, env=env, stderr=subprocess.DEVNULL)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.terminate()
            await child.wait()


async def block_of(world: World, mark: str) -> int:
    """The block of the ledger whose stored bytes hold the marker."""
    async with core_client(world.home) as nc:
        async for no, data in read_blocks(nc, "LEDGER_0", missing=erased.instead(nc, 0)):
            if mark.encode() in data:
                return no
    raise AssertionError(f"{mark} is in no block")


async def whole(world: World) -> int:
    """The chain over all blocks, copies in the place of what is gone; how many blocks."""
    heads = Heads()
    async with core_client(world.home) as nc:
        async for no, data in read_blocks(nc, "LEDGER_0", missing=erased.instead(nc, 0)):
            heads.commit(decode(data, no))
    return heads.block.seq


@pytest.mark.slow
def test_a_janitor_that_is_killed_at_any_step_loses_no_block_and_the_next_one_finishes(paused: World) -> None:
    world = paused

    async def scenario() -> None:
        await world.add("w")
        for i, step in enumerate(JANITOR_STEPS):
            async with world.agent("w") as writer, world.desk() as desk:
                for attempt in range(20):  # two that come at once share a block, but for a machine that is busy
                    first, mark = f"first-{i}-{attempt}-cleat", f"marker-{i}-{attempt}-cleat"
                    pair = await asyncio.gather(writer.write(f"the cleat of {first}"), writer.write(f"the cleat of {mark}"))
                    block = await block_of(world, mark)
                    if await block_of(world, first) == block:
                        break
                if "old copy" in step:  # its block must have been stripped before
                    assert await block_of(world, first) == block
                    async with janitor(world):
                        await done(desk, await desk.erase(pair[0].id, "the first of the block"))
                erasure = await desk.erase(pair[1].id, step)
                assert (erasure.state, bool(found(world.home.path, mark))) == ("erasing", True)
                assert any("janitor" in line for line in erasure.pending)
                ordered = order(world, step)
                async with janitor(world) as child:
                    assert await asyncio.wait_for(child.wait(), UP_S) == -signal.SIGKILL, step
                assert not ordered.exists()
                async with core_client(world.home) as nc:
                    there = await stored(nc, "LEDGER_0", block) is not None
                    assert there or await erased.copies(nc, 0, block), f"{step}: the block is nowhere"
                assert await whole(world) >= block
                assert (await desk.erasure(erasure.erasure)).state == "erasing"
                async with janitor(world):
                    await done(desk, erasure)
                assert found(world.home.path, mark) == set(), step
                async with core_client(world.home) as nc:
                    assert len(await erased.copies(nc, 0, block)) == 1
        assert await findings(world.home) == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_two_janitors_at_once_do_no_harm(paused: World) -> None:
    world = paused

    async def scenario() -> None:
        await world.add("w")
        async with world.agent("w") as writer, world.desk() as desk, janitor(world), janitor(world):
            for i in range(10):
                marks = [f"sheave-{i}-{j}-block" for j in range(3)]
                receipts = await asyncio.gather(*(writer.write(f"the {mark}") for mark in marks))
                assert found(world.home.path, marks[0])
                started = [await desk.erase(r.id, "one after another") for r in receipts]
                for erasure in started:
                    await done(desk, erasure)
                assert [found(world.home.path, mark) for mark in marks] == [set()] * 3
        assert await findings(world.home) == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_text_that_is_gone_without_an_erasure_stops_the_shard(paused: World) -> None:
    """The janitor's key can delete; it can't make that look right."""
    world = paused
    home = world.home

    async def strip_in_silence() -> None:
        from gate.ledger.block import strip

        await world.add("w")
        async with world.agent("w") as writer:
            await writer.write("the log of the halcyon-sextant")
        block = await block_of(world, "halcyon-sextant")
        async with core_client(home) as gate, core_client(home, "janitor") as nc:
            data = await stored(gate, "LEDGER_0", block)
            assert data is not None
            await nc.jetstream().publish(f"erased.0.{block}", strip(data))
            await nc.jetstream().delete_msg("LEDGER_0", block)
        assert any("no erasure names it" in finding for finding in await findings(home))
        os.kill(world.pid("gatekeeper"), signal.SIGKILL)
        await until(lambda: _refused(world), "the gatekeeper's refusal", UP_S)

    asyncio.run(strip_in_silence())


@pytest.mark.slow
def test_a_catalog_whose_text_was_emptied_by_another_hand_is_made_anew_and_not_taken_for_erased(paused: World) -> None:
    world = paused

    async def empty() -> None:
        await world.add("w")
        async with world.agent("w") as writer:
            memory = await writer.write("the bearing of the lighthouse")
        (catalog,) = world.home.shard(0).glob("tenants/*/catalog.sqlite")
        await until(lambda: _emptied(catalog) == 1, "the catalog's commit")
        os.kill(world.pid("gatekeeper"), signal.SIGKILL)
        await until(lambda: list(world.home.run.glob("aside-*/**/catalog.sqlite")) != [], "the catalog set aside", UP_S)
        async with world.agent("w") as reader, asyncio.timeout(UP_S):
            [item] = (await reader.get(memory.id)).admitted
            assert item.memory.content == "the bearing of the lighthouse"

    asyncio.run(empty())


def _emptied(catalog: Path) -> int:
    with sqlite3.connect(catalog, timeout=5) as db:
        return db.execute("UPDATE memory SET content = '' WHERE content != ''").rowcount


def _refused(world: World) -> bool:
    status = supervisor.read_status(world.home)
    return status is not None and status.error is not None and status.error.reason == "ledger_corrupt"
