"""The index thread: everything that takes CPU off the loop, one job after another: embedding, redaction, screening, lineage
evidence,
lexical index, vectors, policy, gate, catalog.

Invariant: only this thread writes vectors, postings, context texts and catalogs; only the loop writes columns and holds.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
_Job = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class IndexThread:
    """Runs calls in order on one thread of its own. `idle`: called about every `idle_s` when there is nothing to do."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: Callable[[], None], idle_s: float = 0.05) -> None:
        self._loop = loop
        self._idle, self._idle_s = idle, idle_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Await the result. Jobs are bounded by the callers: one micro-batch of each kind is under way at a time."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((future, fn, args, kwargs))
        return future

    def stop(self) -> None:
        """Finish what is queued, then end. Blocking."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._idle_s)
            except queue.Empty:
                try:
                    self._idle()
                except Exception:  # what is lost here comes again by replay; the next job meets the cause
                    log.exception("the idle work of the index thread failed")
                continue
            if job is None:
                return
            future, fn, args, kwargs = job
            try:
                result = fn(*args, **kwargs)
            except BaseException as e:  # handed to whoever waits
                self._loop.call_soon_threadsafe(_fail, future, e)
            else:
                self._loop.call_soon_threadsafe(_succeed, future, result)


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
