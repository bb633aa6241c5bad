"""One thread for all tenants: what is long is done in slices, and what is short goes between them."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gate.index_thread import PARTED_S, REST, SLICE_S, IndexThread

sys.setswitchinterval(0.0005)  # as in the gatekeeper: by Python's own 5 ms a busy thread can starve the loop for seconds


@contextmanager
def running(
    idle: Callable[[], bool] = lambda: False, idle_s: float = 0.001, shared: Callable[[], bool] = lambda: False
) -> Iterator[IndexThread]:
    thread = IndexThread(asyncio.get_running_loop(), idle, idle_s, shared=shared)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def spin(until: threading.Event) -> Iterator[Any]:
    """Long work: goes on, by steps that take next to nothing, until it is told to stop."""
    while not until.is_set():
        yield None


def test_a_call_is_answered_while_long_work_is_under_way() -> None:
    async def scenario() -> None:
        stop = threading.Event()
        with running() as thread:
            work = thread.work(spin(stop), lambda _: None)
            await asyncio.wait_for(work.parted, 10)
            assert work.long
            assert not work.done.done()
            for i in range(20):
                assert await asyncio.wait_for(thread.call(int, i), 10) == i
            second = thread.work(iter([None, "short"]), lambda _: None)  # and so is other work, to its end
            await asyncio.wait_for(second.done, 10)
            assert not work.done.done()
            stop.set()
            await asyncio.wait_for(work.done, 10)

    asyncio.run(scenario())


def test_what_is_short_goes_before_work_that_yields_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gate.index_thread.WAIT_S", math.inf)  # nothing is owed to it for waiting

    def steps(name: str) -> Iterator[None]:
        for _ in range(3):
            order.append(name)
            threading.Event().wait(SLICE_S)
            yield None

    async def scenario() -> None:
        with running() as thread:
            begin = threading.Event()
            first = thread.call(begin.wait)  # everything else is queued behind it
            crowd = thread.work(steps("crowd"), lambda _: None, "behind")
            calm = thread.work(steps("calm"), lambda _: None)
            called = thread.call(order.append, "call")
            begin.set()
            await asyncio.gather(first, crowd.done, calm.done, called)
        assert order[-3:] == ["crowd"] * 3

    order: list[str] = []
    asyncio.run(scenario())


def test_long_work_ends_though_there_is_always_something_short() -> None:
    async def scenario() -> None:
        steps, ended = 0, False

        def long() -> Iterator[None]:
            nonlocal steps
            while steps < 2_000:
                steps += 1
                threading.Event().wait(0.0001)
                yield None

        async def others() -> None:
            while not ended:
                await thread.call(threading.Event().wait, 0.002)

        with running() as thread:
            work = thread.work(long(), lambda _: None)
            busy = [asyncio.create_task(others()) for _ in range(3)]
            await asyncio.wait_for(work.done, 30)
            ended = True
            await asyncio.gather(*busy)
        assert steps == 2_000

    asyncio.run(scenario())


def test_work_that_yields_rests_while_the_calm_are_about_and_not_else() -> None:
    async def rests(about: bool) -> list[float]:
        """Between its steps, in seconds."""
        found: list[float] = []
        idle, quiet_moments = 0, set[int]()

        def steps() -> Iterator[None]:
            for _ in range(5):
                quiet_moments.add(idle)
                threading.Event().wait(SLICE_S)
                ended = time.perf_counter()
                yield None
                found.append(time.perf_counter() - ended)
            quiet_moments.add(idle)

        def quiet() -> bool:
            nonlocal idle
            idle += 1
            return True

        with running(quiet, shared=lambda: about) as thread:
            begin = threading.Event()
            first = thread.call(begin.wait)
            work = thread.work(steps(), lambda _: None, "crowd")
            begin.set()
            await first
            await work.done
        assert len(quiet_moments) == 1, "a rest is no quiet moment"
        return found

    assert min(asyncio.run(rests(about=True))) >= REST * SLICE_S
    assert min(asyncio.run(rests(about=False))) < REST * SLICE_S


def test_long_work_of_the_calm_takes_no_rest_and_waits_for_none() -> None:
    """A writer that was served much catches up with it while it is about itself."""

    async def scenario() -> None:
        stop = threading.Event()
        with running(shared=lambda: True) as thread:
            crowd = thread.work(spin(stop), lambda _: None, "crowd")
            calm = thread.work((threading.Event().wait(SLICE_S) or None for _ in range(50)), lambda _: None, "behind")
            await asyncio.wait_for(calm.done, 30)
            assert not crowd.done.done()
            stop.set()

    asyncio.run(scenario())


def test_stopping_waits_for_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gate.index_thread.REST", 1e6)

    def steps() -> Iterator[None]:
        for _ in range(3):
            threading.Event().wait(SLICE_S)
            yield None

    async def scenario() -> None:
        with running(shared=lambda: True) as thread:
            work = thread.work(steps(), lambda _: None, "crowd")
        await asyncio.wait_for(work.done, 10)

    asyncio.run(scenario())


def test_what_work_yields_is_delivered_in_order_and_before_its_end() -> None:
    async def scenario() -> None:
        heard: list[int] = []
        with running() as thread:
            work = thread.work(iter([1, None, 2, 3]), heard.append)
            await work.done
            assert heard == [1, 2, 3]
            assert work.parted.done()

    asyncio.run(scenario())


def test_an_error_in_work_reaches_who_waits_and_costs_no_other() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("a bad draft")

    async def scenario() -> None:
        heard: list[int] = []
        with running() as thread:
            work = thread.work(broken(), heard.append)
            with pytest.raises(ValueError, match="a bad draft"):
                await work.done
            await work.parted
            assert heard == [1]
            assert await thread.call(lambda: "goes on") == "goes on"

    asyncio.run(scenario())


def test_stopping_finishes_what_is_queued() -> None:
    async def scenario() -> None:
        done: list[str] = []

        def long() -> Iterator[None]:
            for _ in range(50):
                threading.Event().wait(PARTED_S / 20)
                yield None
            done.append("long")

        with running() as thread:
            work = thread.work(long(), lambda _: None)
            call = thread.call(done.append, "call")
            await work.parted
        await call
        await work.done
        assert sorted(done) == ["call", "long"]

    asyncio.run(scenario())


def test_a_failing_quiet_moment_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        failed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def idle() -> bool:
            loop.call_soon_threadsafe(failed.set)
            raise OSError("disk full")

        with running(idle) as thread:
            await asyncio.wait_for(failed.wait(), 10)
            assert await thread.call(lambda: 1) == 1

    asyncio.run(scenario())
    assert "the idle work of the index thread failed" in caplog.text


def test_a_quiet_moment_goes_on_while_there_is_more_to_do_and_ends_with_the_next_call() -> None:
    async def scenario() -> None:
        left, empty = [100], asyncio.Event()
        loop = asyncio.get_running_loop()

        def idle() -> bool:
            left[0] -= 1
            if not left[0]:
                loop.call_soon_threadsafe(empty.set)
            return left[0] > 0

        with running(idle, idle_s=0.5) as thread:
            await asyncio.wait_for(empty.wait(), 10)  # had it waited before each of them, it would take 50 s
            left[0] = 1_000_000
            assert await asyncio.wait_for(thread.call(lambda: "served"), 10) == "served"

    asyncio.run(scenario())
