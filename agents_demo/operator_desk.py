"""The person who learns that documents are poisoned: finds what came of them, holds it, lets go of it again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

import bus

from .scenario import Document
from .swarm import Desk

R = TypeVar("R")


class Person:
    """An operator. Each act is a connection of its own: nothing is open while the agents work."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def plan(self, poisoned: Iterable[Document]) -> tuple[list[str], bus.Plan]:
        """(what to hold, the dry run of it).

        A forged document goes with all that it said: `source:URI`. Of a page with one wrong statement only that is held: a dry
        run shows what came of the page, and the person looks for it there.
        """

        async def work(desk: bus.Desk) -> tuple[list[str], bus.Plan]:
            selector: list[str] = []
            for document in poisoned:
                source = f"source:{document.uri}"
                selector += await _wrong(desk, source, document.false) if document.false else [source]
            return selector, await desk.plan(selector)

        return self._at(work)

    def hold(self, plan: bus.Plan, message: str) -> bus.Case:
        return self._at(lambda desk: desk.apply(plan.plan, message))

    def look(self, case: bus.Case) -> bus.Case:
        return self._at(lambda desk: desk.case(case.case))

    def release(self, case: bus.Case, message: str) -> bus.Case:
        return self._at(lambda desk: desk.release(case.case, message))

    def counts(self) -> dict[str, int]:
        """Counts of the tenant."""

        async def work(desk: bus.Desk) -> dict[str, int]:
            return (await desk.stats()).counts

        return self._at(work)

    def _at(self, work: Callable[[bus.Desk], Awaitable[R]]) -> R:
        async def run() -> R:
            async with bus.connect_operator(url=self._desk.url, creds=self._desk.creds) as desk:
                return await work(desk)

        return anyio.run(run)


async def _wrong(desk: bus.Desk, source: str, false: str) -> list[str]:
    """Of the records that a source gave, those with the wrong statement."""
    roots = (await desk.plan(source)).roots
    return [root for root in roots if false in ((await desk.why(root, reveal=True)).content or "")]
