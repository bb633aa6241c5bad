"""What happens to the stores of a home while it serves: what is damaged or gone is made again, another ledger stops it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import bus
from broker_config import supervisor
from broker_config.processes import command_line
from bus.errors import Unavailable

from .stored import any_right
from .world import UP_S, World, running, until, verified

pytestmark = pytest.mark.slow  # kills and restarts

LARGE = 64_000  # characters: enough memories of it don't fit into SQLite's cache


@pytest.fixture
def world() -> Iterator[World]:
    with running() as world:
        asyncio.run(world.add("writer"))
        yield world


def catalog(world: World) -> Path:
    (path,) = world.home.shard(0).glob("tenants/*/catalog.sqlite")
    return path


def refusal(world: World) -> str:
    """Why the gatekeeper refused to serve; empty while it does."""
    now = supervisor.read_status(world.home)
    return now.error.reason if now is not None and now.state == "degraded" and now.error is not None else ""


async def answered(memory: bus.MemoryBus, *ids: str) -> list[str]:
    """Those that are served, when somebody serves again."""
    async with asyncio.timeout(UP_S):
        while True:
            try:
                return (await memory.get(ids)).ids
            except Unavailable:
                await asyncio.sleep(0.2)


def test_a_catalog_that_is_found_damaged_is_made_again_at_once_and_nobody_is_answered_wrongly(world: World) -> None:
    async def scenario() -> None:
        async with world.agent("writer") as memory:
            ids = [(await memory.write(f"{n} " + "herons are ringed at the weir " * (LARGE // 30))).id for n in range(160)]
            was = world.pid("gatekeeper")
            flip(catalog(world))
            flip(catalog(world).with_name("catalog.sqlite-wal"))
            for id_ in ids[:20]:
                assert set(await answered(memory, id_)) <= {id_}
            await world.ready_again(was)
            assert await answered(memory, *ids[:5]) == ids[:5]
            assert [p.name for folder in world.home.run.glob("aside-*") for p in folder.rglob("catalog.sqlite")] == [
                "catalog.sqlite"
            ]
        assert (await verified(world.home))["ok"]

    asyncio.run(scenario())


def flip(path: Path) -> None:
    """All pages but the first."""
    with path.open("r+b") as f:
        f.seek(4_096)
        data = bytes(b ^ 0xFF for b in f.read())
        f.seek(4_096)
        f.write(data)


def test_stores_that_are_deleted_under_a_gatekeeper_are_made_again_by_the_next(world: World) -> None:
    async def scenario() -> None:
        async with world.agent("writer") as memory, world.desk() as desk:
            first = await memory.write("Written before the files were deleted")
            shutil.rmtree(catalog(world).parent)
            world.home.lineage(0).unlink()
            second = await memory.write("Written after the files were deleted")
            assert (await memory.get([first.id, second.id])).ids == [first.id, second.id]
            await world.restart_gatekeeper()
            assert await answered(memory, first.id, second.id) == [first.id, second.id]
            assert (await desk.why(second.id)).facts
        assert (await verified(world.home))["ok"]

    asyncio.run(scenario())


def test_a_stream_that_goes_back_under_a_gatekeeper_stops_it_and_nothing_is_made_again(world: World) -> None:
    async def scenario() -> None:
        js, early = world.home.broker_js, world.home.path.parent / "early"
        keeper = world.pid("supervisor")
        async with world.agent("writer") as memory:
            await memory.write("Both copies have this")
            broker = world.pid("broker")
            os.kill(broker, signal.SIGSTOP)  # no file changes while it is copied
            try:
                shutil.copytree(js, early)
            finally:
                os.kill(broker, signal.SIGCONT)
            await memory.write("One copy has this")
        os.kill(keeper, signal.SIGSTOP)
        try:
            os.kill(broker, signal.SIGKILL)
            await until(lambda: not command_line(broker), "the broker is gone")
            shutil.rmtree(js)
            shutil.copytree(early, js)
        finally:
            os.kill(keeper, signal.SIGCONT)
        await until(lambda: refusal(world) == "ledger_went_back", "it stops", UP_S)
        assert not list(world.home.run.glob("aside-*"))

    asyncio.run(scenario())


def test_another_stream_of_the_same_length_under_a_gatekeeper_stops_it(world: World) -> None:
    async def scenario() -> None:
        async with world.agent("writer") as memory:
            await memory.write("Written to the stream that is replaced")
        pid = world.pid("gatekeeper")
        async with any_right(world.home) as thief:
            js = thief.jetstream()
            info = await js.stream_info("LEDGER_0")
            blocks = [(await js.get_msg("LEDGER_0", n)).data or b"" for n in range(1, info.state.last_seq + 1)]
            os.kill(pid, signal.SIGSTOP)
            try:
                await js.delete_stream("LEDGER_0")
                await js.add_stream(info.config.evolve(metadata={"cordon": "another"}))
                for block in blocks:
                    await js.publish("ledger.0.block", block)
            finally:
                os.kill(pid, signal.SIGCONT)
        await until(lambda: refusal(world) == "ledger_went_back", "it stops", UP_S)
        assert "isn't the stream any more" in json.loads(world.home.gatekeeper_error.read_text())["message"]

    asyncio.run(scenario())
