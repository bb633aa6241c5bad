"""The bus without `await`, for scripts and notebooks: the same clients, each call run to its end on a thread beside yours.

    import bus.sync

    with bus.sync.connect() as memory:
        recall = memory.query("how do we log in to staging?")
        with memory.run("nightly"):
            print(memory.write("Checked: the keys rotate", derived_from=recall.ids))

Arguments, answers and errors are those of `bus.connect` and `bus.connect_operator`, and so are the deadlines: no call blocks for
ever. Feeds and streams of notices are for `async` code; `sync()` gives the open notices. May be used from several threads.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from . import client, operator
from .transport import Timing

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


class _Blocking(Generic[C]):
    """A client, and the thread on whose loop it lives."""

    def __init__(self, portal: BlockingPortal, client: C) -> None:
        self._portal = portal
        self._client = client


def _blocking(method: Callable[Concatenate[C, P], Awaitable[R]]) -> Callable[Concatenate[_Blocking[C], P], R]:
    """A client's method as a call that returns its result. The portal takes the caller's context along, and so its labels."""

    @wraps(method)
    def call(self: _Blocking[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call(partial(method, self._client, *args, **kwargs))

    return call


class MemoryBus(_Blocking[client.MemoryBus]):
    """An agent's shared memory; the methods of `bus.MemoryBus`."""

    write = _blocking(client.MemoryBus.write)
    promote = _blocking(client.MemoryBus.promote)
    query = _blocking(client.MemoryBus.query)
    get = _blocking(client.MemoryBus.get)
    report = _blocking(client.MemoryBus.report)
    delegate = _blocking(client.MemoryBus.delegate)
    ack = _blocking(client.MemoryBus.ack)
    sync = _blocking(client.MemoryBus.sync)

    def run(self, run: str = "", *, task: str = "", session: str = "") -> AbstractContextManager[None]:
        """Label the calls inside, as `bus.MemoryBus.run` does."""
        return self._client._labelled(run, task=task, session=session)


class Desk(_Blocking[operator.Desk]):
    """An operator's desk; the methods of `bus.Desk`."""

    plan = _blocking(operator.Desk.plan)
    plan_rollback = _blocking(operator.Desk.plan_rollback)
    apply_rollback = _blocking(operator.Desk.apply_rollback)
    apply = _blocking(operator.Desk.apply)
    hold_now = _blocking(operator.Desk.hold_now)
    release = _blocking(operator.Desk.release)
    review = _blocking(operator.Desk.review)
    case = _blocking(operator.Desk.case)
    cases = _blocking(operator.Desk.cases)
    trace = _blocking(operator.Desk.trace)
    why = _blocking(operator.Desk.why)
    context = _blocking(operator.Desk.context)
    close_context = _blocking(operator.Desk.close_context)
    stats = _blocking(operator.Desk.stats)
    plan_erasure = _blocking(operator.Desk.plan_erasure)
    erase = _blocking(operator.Desk.erase)
    agree_to_erase = _blocking(operator.Desk.agree_to_erase)
    erasure = _blocking(operator.Desk.erasure)
    erasures = _blocking(operator.Desk.erasures)
    place_legal_hold = _blocking(operator.Desk.place_legal_hold)
    lift_legal_hold = _blocking(operator.Desk.lift_legal_hold)
    legal_holds = _blocking(operator.Desk.legal_holds)
    plan_pruning = _blocking(operator.Desk.plan_pruning)
    plan_compaction = _blocking(operator.Desk.plan_compaction)
    prune = _blocking(operator.Desk.prune)
    undo_end = _blocking(operator.Desk.undo_end)
    ends = _blocking(operator.Desk.ends)


@contextmanager
def connect(
    url: str | Sequence[str] | None = None, creds: str | os.PathLike[str] | None = None, *, project: str | None = None,
    name: str = "", ca_file: str | None = None, timing: Timing | None = None,
) -> Iterator[MemoryBus]:  # fmt: skip
    """Connect an agent; see `bus.connect`."""
    opening = partial(client.connect, url, creds, project=project, name=name, ca_file=ca_file, timing=timing)
    with _opened(opening) as (portal, memory):
        yield MemoryBus(portal, memory)


@contextmanager
def connect_operator(
    url: str | Sequence[str] | None = None, creds: str | os.PathLike[str] | None = None, *, name: str = "",
    ca_file: str | None = None, timing: Timing | None = None,
) -> Iterator[Desk]:  # fmt: skip
    """Connect an operator; see `bus.connect_operator`."""
    opening = partial(operator.connect_operator, url, creds, name=name, ca_file=ca_file, timing=timing)
    with _opened(opening) as (portal, desk):
        yield Desk(portal, desk)


@contextmanager
def _opened(opening: Callable[[], Any]) -> Iterator[tuple[BlockingPortal, Any]]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opening()) as opened:
        yield portal, opened
