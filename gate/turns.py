"""Who is next: requests wait by tenant and by context, and take turns, so that nobody's queue is in front of another's.

Who has few requests open (the calm) doesn't wait behind who has many (the crowd), and while the calm are about the crowd leaves
room: a queue that is never empty would be felt at every step of everybody's way. Bounded by the in-flight quotas of agents and
tenants (gate/quotas.py). Within a context the order of arrival stays.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
CALM_IN_FLIGHT: Final = 8  # what an agent's family may have open and be calm, as its quota counts it
CALM_AGAIN_S: Final = 1.0  # so long after it had more; one block of receipts may close all that it has open
ABOUT_S: Final = 0.25  # so long after its last request the calm are about


class Turns(Generic[T]):
    """A queue of queues of queues. A context, not an agent, has a turn: children of one root have one between them."""

    def __init__(self) -> None:
        self._tenants = OrderedDict[str, OrderedDict[bytes, deque[T]]]()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def add(self, tenant: str, context: bytes, item: T) -> None:
        self._tenants.setdefault(tenant, OrderedDict()).setdefault(context, deque()).append(item)

    def waits(self, tenant: str, context: bytes) -> bool:
        """Whether something of the context waits."""
        return context in self._tenants.get(tenant, ())

    def take(self, tenant: str, context: bytes) -> deque[T]:
        """All that waits of a context, in order: it waits here no more."""
        contexts = self._tenants.get(tenant)
        items = contexts.pop(context, None) if contexts is not None else None
        if contexts is not None and not contexts:
            del self._tenants[tenant]
        return items or deque()

    def some(self, most: int) -> list[T]:
        """At most so many, by turns."""
        found: list[T] = []
        while self._tenants and len(found) < most:
            found.append(self.next())
        return found

    def next(self) -> T:
        """The oldest item of the context whose turn it is, in the tenant whose turn it is. There must be one."""
        tenant, contexts = next(iter(self._tenants.items()))
        context, items = next(iter(contexts.items()))
        item = items.popleft()
        if items:
            contexts.move_to_end(context)
        else:
            del contexts[context]
        if contexts:
            self._tenants.move_to_end(tenant)
        else:
            del self._tenants[tenant]
        return item


@dataclass(slots=True)
class Crowding:
    """Whether an agent's family is calm, or of the crowd: when it last had more open than the calm have."""

    at: float = -CALM_AGAIN_S

    def calm(self, open_: int, now: float) -> bool:
        """With `open_` requests, this one too, at `now` (seconds of a monotonic clock)."""
        if open_ > CALM_IN_FLIGHT:
            self.at = now
        return now - self.at >= CALM_AGAIN_S


class Pace:
    """How much of the time the crowd has: all of it, or, while the calm are about, a third (gate/index_thread.py) and one thing
    at a time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calm_until = 0.0
        self._one = asyncio.Lock()

    def saw_calm(self) -> None:
        """A request of the calm was queued."""
        self._calm_until = self._clock() + ABOUT_S

    @property
    def shared(self) -> bool:
        """Whether the calm are about. Any thread may ask."""
        return self._clock() < self._calm_until

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Around one batch of the crowd."""
        if not self.shared:
            yield
            return
        async with self._one:
            yield


class Lanes(Generic[T]):
    """Two queues with turns, each with a loop that serves it. What waits of a context waits in one of them, so that its order
    stays.
    """

    def __init__(self, pace: Pace) -> None:
        self.calm, self.crowd = Turns[T](), Turns[T]()
        self._pace = pace
        self._wake_calm, self._wake_crowd = asyncio.Event(), asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self.calm) or bool(self.crowd)

    def add(self, tenant: str, context: bytes, item: T, *, calm: bool) -> Turns[T]:
        """Queue a request of the calm or of the crowd; returns where. Who has become one of the crowd takes along what waits."""
        if calm:
            calm = not self.crowd.waits(tenant, context)
        else:
            for waiting in self.calm.take(tenant, context):
                self.crowd.add(tenant, context, waiting)
        lane = self.calm if calm else self.crowd
        lane.add(tenant, context, item)
        if calm:
            self._pace.saw_calm()
            self._wake_calm.set()
        else:
            self._wake_crowd.set()
        return lane

    def take(self, tenant: str, context: bytes) -> deque[T]:
        """All that waits of a context."""
        return self.calm.take(tenant, context) or self.crowd.take(tenant, context)

    async def run(self, calm: Callable[[], Awaitable[None]], crowd: Callable[[bool], Awaitable[None]]) -> None:
        """Until cancelled: `calm` serves a batch of the one queue, `crowd` one of the other, told whether the calm are about."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._run_calm(calm))
            loops.create_task(self._run_crowd(crowd))

    async def _run_calm(self, serve: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._wake_calm.wait()
            self._wake_calm.clear()
            while self.calm:
                await serve()

    async def _run_crowd(self, serve: Callable[[bool], Awaitable[None]]) -> None:
        while True:
            await self._wake_crowd.wait()
            self._wake_crowd.clear()
            while self.crowd:
                async with self._pace.turn():
                    await serve(self._pace.shared)
