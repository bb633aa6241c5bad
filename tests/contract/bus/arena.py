"""Where the contract is played: on the twin in memory, and on a real home; one interface, two projects and fresh names a test."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

import anyio

import bus
from broker_config.control import Control
from bus.testing import World as Twin
from tests.integration.world import World as Home

WAIT_S: Final = 20.0
STEP_S: Final = 0.05
_numbers = itertools.count(1)


class Arena(Protocol):
    """Nothing may flow between `project` and `other`."""

    project: str
    other: str

    def named(self, name: str) -> str:
        """The name that the agent called `name` really has."""

    def agent(self, name: str, *, project: str = "", **rights: Any) -> AbstractAsyncContextManager[bus.MemoryBus]: ...

    def child(self, creds: str) -> AbstractAsyncContextManager[bus.MemoryBus]:
        """A client of a credential that one of its agents delegated."""

    def operator(self, name: str = "ops", **rights: Any) -> AbstractAsyncContextManager[bus.Desk]: ...

    def tick(self) -> None:
        """A moment passes: what comes now is later than what was."""

    async def eventually(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Time passes until the condition holds; AssertionError if it doesn't within WAIT_S."""


class TwinArena:
    project, other = "p1", "p2"

    def __init__(self, world: Twin) -> None:
        self.world = world

    def named(self, name: str) -> str:
        return name

    def agent(self, name: str, *, project: str = "", **rights: Any) -> AbstractAsyncContextManager[bus.MemoryBus]:
        return self.world.agent(name, project=project, **rights)

    def child(self, creds: str) -> AbstractAsyncContextManager[bus.MemoryBus]:
        return self.world.connect(creds)

    def operator(self, name: str = "ops", **rights: Any) -> AbstractAsyncContextManager[bus.Desk]:
        return self.world.operator(name, **rights)

    def tick(self) -> None:
        self.world.clock.advance(seconds=0.001)

    async def eventually(self, condition: Callable[[], Awaitable[bool]]) -> None:
        passed = 0.0
        while not await condition():
            assert passed < WAIT_S
            self.world.clock.advance(seconds=STEP_S)
            passed += STEP_S


class HomeArena:
    def __init__(self, home: Home) -> None:
        self.home = home
        self._number = next(_numbers)
        self.project, self.other = f"c{self._number}-p1", f"c{self._number}-p2"
        self._added: set[str] = set()

    def named(self, name: str) -> str:
        return f"{name}-c{self._number}"

    @asynccontextmanager
    async def agent(self, name: str, *, project: str = "", **rights: Any) -> AsyncIterator[bus.MemoryBus]:
        project = project or self.project
        await self._add(name, **{"projects": (project,), **rights})
        async with self.home.agent(self.named(name), project) as memory:
            yield memory

    def child(self, creds: str) -> AbstractAsyncContextManager[bus.MemoryBus]:
        return bus.connect(self.home.home.url, creds)

    @asynccontextmanager
    async def operator(self, name: str = "ops", **rights: Any) -> AsyncIterator[bus.Desk]:
        everything = {"role": "operator", "projects": (self.project, self.other), "see": ("public", "internal", "restricted")}
        await self._add(name, **{**everything, **rights})
        async with self.home.desk(self.named(name)) as desk:
            yield desk

    async def _add(self, name: str, *, projects: tuple[str, ...], **rights: Any) -> None:
        if not self._added:
            async with Control(self.home.home) as control:
                for project in (self.project, self.other):
                    await control.project_add("acme", project)
        if name not in self._added:
            self._added.add(name)
            await self.home.add(self.named(name), *projects, **rights)

    def tick(self) -> None:
        """Its time passes by itself."""

    async def eventually(self, condition: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not await condition():
            assert time.monotonic() < deadline
            await anyio.sleep(STEP_S)
