"""A project of its own for one test, in a home that many share: nothing that other tests wrote is in it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import bus

from .scenes import add_project
from .world import World

ALL = ("public", "internal", "restricted")
_fresh = itertools.count()


@asynccontextmanager
async def room(world: World, *agents: str, **more: Any) -> AsyncIterator[tuple[str, dict[str, bus.MemoryBus]]]:
    """(name of the project, clients by name). Agent `writer` of project room3 is registered as writer-room3.

    `more`: by an agent's name, what else `World.add` takes for it.
    """
    name = f"room{next(_fresh)}"
    await add_project(world, name)
    clients: dict[str, bus.MemoryBus] = {}
    async with AsyncExitStack() as stack:
        for agent in agents:
            await world.add(f"{agent}-{name}", name, **more.get(agent, {}))
            clients[agent] = await stack.enter_async_context(world.agent(f"{agent}-{name}", name))
        yield name, clients


@asynccontextmanager
async def desk(world: World, project: str) -> AsyncIterator[bus.Desk]:
    """A new operator of that project with every clearance."""
    operator = f"boss{next(_fresh)}-{project}"
    await world.add(operator, project, role="operator", see=ALL)
    async with world.desk(operator) as opened:
        yield opened
