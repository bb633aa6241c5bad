"""A second tenant with the same agents, documents and sources: what it is served must not change with what happens next door."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import bus

from .scenario import Scenario
from .swarm import Arena


class Neighbour:
    """The second tenant: the same agents, records and poisoned documents, of its own."""

    def __init__(self, arena: Arena, scenario: Scenario) -> None:
        self._arena, self._scenario = arena, scenario
        self._reader = next(a.name for a in scenario.agents if a.role == "agent")
        self._served: list[str] = []
        self._own: set[str] = set()

    async def move_in(self) -> None:
        """Read the poisoned documents, and remember what is served of them."""
        async with self._connect() as memory:
            for d in self._scenario.poisoned:
                for fact in d.facts:
                    wrote = await memory.write(fact, project=d.project, origin="external", evidence=[d.uri])
                    self._own.add(wrote.id)
            self._served = await self._ask(memory)

    async def is_untouched(self) -> bool:
        """Whether it is served what it was, of its own alone, and was told of nothing."""
        async with self._connect() as memory:
            now, told = await self._ask(memory), (await memory.sync()).notices
        return now == self._served != [] and set(now) <= self._own and not told

    async def _ask(self, memory: bus.MemoryBus) -> list[str]:
        asked = [await memory.query(text, project=project) for project, text in self._scenario.topics]
        return [id_ for recall in asked for id_ in recall.ids]

    def _connect(self) -> AbstractAsyncContextManager[bus.MemoryBus]:
        return bus.connect(url=self._arena.url, creds=self._arena.neighbour[self._reader])
