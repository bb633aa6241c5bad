"""Time and chance of a simulation: seconds pass only while nothing is left to do, and all that is random comes of the seed.

`install` must come before the first import of the gate: some defaults are bound then. Only for a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import time
from typing import Any, Final

BEGIN_S: Final = 1_780_000_000.0  # the wall clock's start, 2026-05-28
TICK_S: Final = 1e-6


class Stuck(Exception):
    """Everybody waits, and nothing will ever happen."""


class Clock:
    """`now_s`: monotonic. `wall_s`: what the machine takes for the time; faults step it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.now_s, self.offset_s = 0.0, BEGIN_S
        self._latest_s = BEGIN_S

    @property
    def wall_s(self) -> float:
        return self.offset_s + self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += max(seconds, TICK_S)

    def step(self, seconds: float) -> None:
        """The wall clock alone is set."""
        self._latest_s = max(self._latest_s, self.wall_s)
        self.offset_s += seconds

    def right(self) -> None:
        """Nothing that was written lies in the future any more."""
        self.step(max(0.0, self._latest_s - self.wall_s))


CLOCK: Final = Clock()
SECRETS: Final = random.Random(0)  # keys, salts, ids


def install() -> None:
    """This process has no other time and no other chance from now on."""
    changed: Any = time
    changed.time = lambda: CLOCK.wall_s
    changed.monotonic = changed.perf_counter = lambda: CLOCK.now_s
    changed.clock_gettime = lambda _: CLOCK.now_s
    for module, name in ((os, "urandom"), (random, "_urandom")):
        setattr(module, name, SECRETS.randbytes)


def reseed(seed: int) -> None:
    from gate import ids

    CLOCK.reset()
    SECRETS.seed(seed)
    ids._tails.clear()


class _Jump(selectors.SelectSelector):
    """Nothing ever comes from outside: to wait is to let time pass."""

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("every task waits for something that nobody will do")
        if timeout > 0:
            CLOCK.advance(timeout)
        return []


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(_Jump())

    def time(self) -> float:
        return CLOCK.now_s

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """At once and here: a thread would come back at another time in each run."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as e:
            future.set_exception(e)
        return future

    def _write_to_self(self) -> None:
        """Nobody sleeps who had to be woken."""
