"""The index thread: everything that takes CPU off the loop: embedding, redaction, screening, lineage evidence, lexical index,
vectors, policy, gate, catalog.

Invariants: only this thread writes vectors, postings, context texts and catalogs; only the loop writes columns and holds.
Calls run in order. Work is done in slices between calls, and work that has had PARTED_S goes behind all that hasn't: so a
tenant's large texts cost the others a slice at a time, and nothing waits for ever (CALLS_S, WAIT_S). While the calm are about
(gate/turns.py) the crowd's work has shorter slices, and a rest after each: two threads share one interpreter lock, so a thread
that is never idle is felt at every step of everybody's way.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, ParamSpec, TypeVar

from gate.projections import ProjectionUnusable

log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
Place = Literal["short", "behind", "crowd"]  # first; behind what is short from the start; that, and with a rest after each slice
# By the clock, which runs twice as fast as this thread while the loop is busy too.
SLICE_S: Final = 0.004  # a slice ends with the first step that ends after it
PARTED_S: Final = 0.2  # what takes longer is long; a batch of 64 short drafts takes 30 to 60 ms
TOGETHER_S: Final = 0.06  # what is made meanwhile is handed over at once: together it makes one block of the ledger
CALLS_S: Final = 0.008  # so long calls alone are run while there is work, then a slice
WAIT_S: Final = 0.02  # so long others go before long work, then a slice
SHARED_SLICE_S: Final = 0.002  # of the crowd's work, while the calm are about
REST: Final = 2.0  # and it rests twice as long: a third of the time; what else the crowd costs, on the loop, comes to as much


class _Call:
    """One call whose result somebody awaits."""

    __slots__ = ("_done", "_run")

    def __init__(self, run: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self._run, self._done = run, done

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            result = self._run()
        except BaseException as e:  # handed to whoever waits
            loop.call_soon_threadsafe(_fail, self._done, e)
        else:
            loop.call_soon_threadsafe(_succeed, self._done, result)


class Work:
    """An iterator of short steps. `deliver` gets, on the loop, what they yield other than None.

    `parted` is done when it has become long, or has ended; `done` when it has ended, with the error that ended it. `place`: see
    Place.
    """

    def __init__(
        self,
        steps: Iterator[Any],
        deliver: Callable[[Any], None],
        loop: asyncio.AbstractEventLoop,
        place: Place = "short",
    ) -> None:
        self._steps, self._deliver, self._loop, self._place = steps, deliver, loop, place
        self._spent_s = 0.0
        self._made: list[Any] = []  # and not handed over yet
        self._waited_s = 0.0
        self.parted: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()

    @property
    def long(self) -> bool:
        return self._spent_s >= PARTED_S

    @property
    def behind(self) -> bool:
        """Whether what is short goes first."""
        return self._place != "short" or self.long

    @property
    def resting(self) -> bool:
        """Whether it has a rest after each slice while the calm are about."""
        return self._place == "crowd"

    def slice(self, slice_s: float) -> bool:
        """Go on for so long or to the end; whether that is reached."""
        start, tell = time.perf_counter(), self._loop.call_soon_threadsafe
        ended, error = False, None
        try:
            for found in self._steps:
                if found is not None:
                    self._made.append(found)
                if time.perf_counter() - start >= slice_s:
                    break
            else:
                ended = True
        except BaseException as e:  # handed to whoever waits
            ended, error = True, e
        took = time.perf_counter() - start
        self._spent_s += took
        self._waited_s += took
        if self._made and (ended or self._waited_s >= TOGETHER_S):
            tell(self._hand_over, self._made)
            self._made, self._waited_s = [], 0.0
        if ended or self.long:
            tell(_succeed, self.parted, None)
        if ended:
            tell(*((_succeed, self.done, None) if error is None else (_fail, self.done, error)))
        return ended

    def _hand_over(self, made: list[Any]) -> None:
        for one in made:
            self._deliver(one)


class IndexThread:
    """Runs calls and work on one thread of its own. `idle`: called when there has been nothing to do for `idle_s`, and at once
    again while it says that there is more of that and nothing else comes.

    `damaged`: told on the loop when a projection turns out to be, whoever asked. `shared`: whether the calm are about.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        idle: Callable[[], bool],
        idle_s: float = 0.05,
        damaged: Callable[[ProjectionUnusable], None] = lambda _: None,
        shared: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop, self._damaged, self._shared = loop, damaged, shared
        self._idle, self._idle_s = idle, idle_s
        self._more = False  # for a quiet moment that has begun
        self._jobs: queue.SimpleQueue[_Call | Work | None] = queue.SimpleQueue()
        self._short, self._long = deque[Work](), deque[Work]()
        self._rested = 0.0  # when the crowd's work has had its rest
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Await the result. Jobs are bounded by the callers: one micro-batch of each kind is under way at a time."""
        future: asyncio.Future[T] = self._loop.create_future()
        future.add_done_callback(self._look)
        self._jobs.put(_Call(lambda: fn(*args, **kwargs), future))
        return future

    def work(self, steps: Iterator[Any], deliver: Callable[[Any], None], place: Place = "short") -> Work:
        """Have an iterator's steps done, each of them milliseconds. Bounded by the callers too."""
        work = Work(steps, deliver, self._loop, place)
        work.done.add_done_callback(self._look)
        self._jobs.put(work)
        return work

    def _look(self, done: asyncio.Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, ProjectionUnusable) and error.reason == "damaged":
            self._damaged(error)

    def stop(self) -> None:
        """Finish what is queued, then end. Blocking."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        worked = sliced = 0.0  # when work, and long work, last had a slice
        ending = False
        while not ending or self._short or self._long:
            now, waiting = time.perf_counter(), not ending and not self._jobs.empty()
            if self._short and (not waiting or now - worked >= CALLS_S):
                self._slice(self._short.popleft(), SLICE_S)
                worked = time.perf_counter()
            elif (not (waiting or self._short) or now - sliced >= WAIT_S) and (work := self._rested_work(now, ending)):
                shared = work.resting and self._shared()
                self._slice(work, SHARED_SLICE_S if shared else SLICE_S)
                sliced = time.perf_counter()
                if shared:
                    self._rested = sliced + REST * (sliced - now)
            else:
                ending = self._take()

    def _rested_work(self, now: float, ending: bool) -> Work | None:
        """The next long work that has no rest to take, out of its queue."""
        for _ in range(len(self._long)):
            work = self._long.popleft()
            if not work.resting or ending or now >= self._rested:
                return work
            self._long.append(work)
        return None

    def _slice(self, work: Work, slice_s: float) -> None:
        if not work.slice(slice_s):
            self._queue(work)

    def _queue(self, work: Work) -> None:
        (self._long if work.behind else self._short).append(work)

    def _take(self) -> bool:
        """The next call or piece of work, or something for a quiet moment; whether this is the end."""
        rest_s = max(0.0, self._rested - time.perf_counter()) if self._long else None
        try:
            job = self._jobs.get(timeout=rest_s if rest_s is not None else 0 if self._more else self._idle_s)
        except queue.Empty:
            if rest_s is not None:  # a moment's rest is not a quiet one
                return False
            self._more = False
            try:
                self._more = self._idle()
            except Exception:  # what is lost here comes again by replay; the next job meets the cause
                log.exception("the idle work of the index thread failed")
            return False
        self._more = False
        if isinstance(job, _Call):
            job.run(self._loop)
        elif job is not None:
            self._queue(job)
        return job is None


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
