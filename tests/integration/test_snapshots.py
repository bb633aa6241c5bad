"""Snapshots of a home that serves, homes made of them, and what such a home must not forget: erasures, holds, revocations."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bus
from broker_config import supervisor
from broker_config.control import Control
from broker_config.home import Home
from broker_config.restore import Restore, Wish, drill
from broker_config.snapshots import Copy, Snapshots
from broker_config.streams import ensure_streams

from .test_erasure import done, found
from .world import UP_S, World, running, until, verified

MARK = "zanzibar-ledger-marker"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:

        async def populate() -> None:
            for name in ("w", "r", "leaver"):
                await world.add(name, "p1")
            await world.add("kim", "p1", "p2", role="operator", person="kim", see=("public", "internal", "restricted"))
            async with world.agent("w") as w, world.agent("r") as r:
                for i in range(5):
                    await w.write(f"Fact number {i} about invoices")
                assert (await r.query("invoices")).admitted

        asyncio.run(populate())
        yield world


@contextmanager
def restored(world: World, copy: Copy, **wish: object) -> Iterator[World]:
    """A home made of the copy, that serves; removed at the end."""
    into = world.home.path.parent / "restored"
    shutil.rmtree(into, ignore_errors=True)
    Restore(world.home, copy).run(Wish(into=into, by="kim", why="a look", **wish))  # type: ignore[arg-type]
    home = Home(into)
    try:
        assert supervisor.start(home, detach=True, ready_timeout_s=UP_S).state == "ready"
        yield World(home, dict(world.agents))
    finally:
        supervisor.stop(home)
        shutil.rmtree(into, ignore_errors=True)


def test_a_restored_home_answers_as_the_home_did_and_agents_cannot_write_in_it(world: World) -> None:
    async def texts(at: World) -> list[str]:
        async with at.agent("r") as r:
            return sorted(a.memory.content for a in (await r.query("invoices", k=20)).admitted)

    before = asyncio.run(texts(world))
    copy = Snapshots(world.home).create("whole")
    assert Snapshots(world.home).verify(copy)["ok"]

    async def later() -> None:
        async with world.agent("w") as w:
            await w.write("A later fact about invoices, that no snapshot has")

    asyncio.run(later())
    with restored(world, copy) as there:
        assert asyncio.run(texts(there)) == before

        async def refused() -> None:
            async with there.agent("w") as w:
                with pytest.raises(bus.Denied) as e:
                    await w.write("Nobody writes here")
            assert e.value.reason == "read_only"
            async with there.desk("kim") as desk:
                assert await desk.stats()

        asyncio.run(refused())
        assert verified(there.home) == []
        told = json.loads(there.home.restored.read_text())
        assert (told["by"], told["snapshot"], told["left_out"]["memories"], told["later"]) == ("kim", "whole", 1, True)
