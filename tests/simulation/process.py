"""A gatekeeper as a process of the simulation: gate.service itself, with a life that a kill ends between any two steps.

What a process has besides its code is replaced once, by `stage`: its connection, its threads (the index thread, DuckDB's writer),
the models that it would load anew. A kill leaves what kill -9 leaves: SQLite and DuckDB as they were last committed.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import gate.service as service
import gate.shard
from gate.index_thread import SLICE_S, IndexThread, Place, Work
from gate.model.embedder import StaticEmbedder
from gate.model.network import Gate
from gate.paths import Paths
from gate.projections import ProjectionUnusable, set_aside
from gate.projections import lineage as lineage_module
from gate.projections.lineage import LineageStore
from gate.reading.admit import Admission
from gate.shard import Shard
from gate.writing import sequencer

from .broker import Broker, Connection

IDLE_S: Final = 0.5
_listen_there: Final = service.listen
EMBEDDER: Final = StaticEmbedder()
GATE: Final = Gate.load(embedder_id=EMBEDDER.id)


class Index(IndexThread):
    """gate.index_thread without its thread: jobs in order, each after the time that it takes, one at a time; nobody rests."""

    chance = random.Random(0)
    slow_s = 0.0

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        idle: Callable[[], bool],
        damaged: Callable[[ProjectionUnusable], None],
        shared: Callable[[], bool],
    ) -> None:
        self._loop, self._idle, self._damaged = loop, idle, damaged
        self._todo = deque[Callable[[], None]]()
        self._next: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._rest = self._loop.call_later(IDLE_S, self._tick)

    def _tick(self) -> None:
        if not self._todo:
            self._idle()
        self.start()

    def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        future.add_done_callback(self._look)

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except Exception as e:
                if not future.done():
                    future.set_exception(e)
            else:
                if not future.done():
                    future.set_result(result)

        self._add(run)
        return future

    def work(self, steps: Iterator[Any], deliver: Callable[[Any], None], place: Place = "short") -> Work:
        work = Work(steps, deliver, self._loop, place)
        work.done.add_done_callback(self._look)

        def run() -> None:
            while not work.slice(SLICE_S):
                pass

        self._add(run)
        return work

    def _add(self, job: Callable[[], None]) -> None:
        self._todo.append(job)
        if self._next is None:
            self._begin()

    def _begin(self) -> None:
        self._next = self._loop.call_later(self.chance.uniform(0, self.slow_s), self._run)

    def _run(self) -> None:
        self._todo.popleft()()
        self._next = None
        if self._todo:
            self._begin()

    def stop(self) -> None:
        self.die()

    def die(self) -> None:
        """Nothing that is queued is done any more."""
        self._todo.clear()
        for timer in (self._next, self._rest):
            if timer is not None:
                timer.cancel()


class Lineage(LineageStore):
    """The lineage store, written by the loop every `every_s` where a thread of its own would."""

    every_s = 1.0

    def __init__(self, path: Path, streams: dict[str, str]) -> None:
        super().__init__(path, streams)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def _write_all(self) -> None:
        """Its thread has nothing to do."""

    def put(self, stream: str, seq: int, rows: Any) -> bool:
        queued = super().put(stream, seq, rows)
        if queued and self._timer is None:
            self._timer = self._loop.call_later(self.every_s, self.write)
        return queued

    def write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        blocks = list(self._queue)
        self._queue.clear()
        self._queued_rows = 0
        if blocks and self._failed is None:
            cursor = self._root.cursor()
            self._positions.update(lineage_module._apply(cursor, blocks))
            cursor.close()
            self._wake(lambda waiter: self._positions[waiter.stream] >= waiter.seq, None)

    async def wait(self, stream: str, seq: int, timeout_s: float) -> None:
        self.write()
        await super().wait(stream, seq, timeout_s)

    async def query(self, name: str, params: Any, timeout_s: float = 0) -> list[tuple[Any, ...]]:
        return lineage_module._run(self._root, name, params)

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """All rows, but for the positions."""
        self.write()
        names = [name for (name,) in self._root.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        kept = sorted(set(names) - {"position", "about", "stream"})
        return {name: self._root.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall() for name in kept}

    def die(self) -> None:
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def close(self, timeout_s: float = 0) -> None:
        self.write()
        super().close()


class Process:
    """One gatekeeper with its own home. `in_turn`: others may serve the same shard."""

    def __init__(self, name: str, home: Path, broker: Broker, core: str, *, in_turn: bool, limits: service.Limits) -> None:
        self.name, self.home, self.broker, self.core = name, home, broker, core
        self.in_turn, self.limits = in_turn, limits
        self.paths = Paths(home)
        self.shard: Shard | None = None
        self.task: asyncio.Task[None] | None = None
        self.connections: list[Connection] = []
        self.failure: BaseException | None = None
        self.deaths, self.killed = 0, False
        self.told: Callable[[str], None] = lambda what: None

    @property
    def serving(self) -> bool:
        s = self.shard
        return self.task is not None and s is not None and s.intake.open and s.state == "ready" and s.ours()

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._live(), name=self.name)

    async def _live(self) -> None:
        serve = service.serve_in_turn if self.in_turn else service.serve
        where: Any = self
        self.killed = False
        try:
            await serve(self.paths, where, self.limits)
        except asyncio.CancelledError:
            raise
        except Exception as e:
            if not self.killed:  # else it is whatever the last steps of the dead met
                self._end(e)

    def _end(self, error: Exception) -> None:
        """As gate.process.run does it: a store that can be made anew is set aside, and whose turn is over stands by again."""
        self.told(f"{self.name}: {error}")
        if isinstance(error, ProjectionUnusable) and error.reason != "stream":
            set_aside(error.path, self.paths.aside(f"{self.deaths}"))
        else:
            self.failure = error

    # --- what service calls -------------------------------------------------------------------------
    async def connect(self) -> tuple[Connection, str]:
        connection = Connection(self.broker, self)
        self.connections.append(connection)
        return connection, self.core

    def opened(self, shard: Shard) -> None:
        self.shard = shard

    # --- its end ------------------------------------------------------------------------------------
    def kill_soon(self) -> None:
        """kill -9 at the very step that is under way: nothing more comes of it."""
        self._dead()

    def _dead(self) -> None:
        self.deaths += 1
        self.killed = True
        for connection in self.connections:
            connection.drop()
        self.connections.clear()
        shard, self.shard = self.shard, None
        if shard is not None:
            index: Any = shard.index
            lineage: Any = shard.lineage
            index.die()
            lineage.die()
            for tenant in shard.indexes.values():
                tenant.catalog._db.close()  # a transaction that is open is rolled back, as it is after kill -9
        if self.task is not None:
            self.task.cancel()

    async def kill(self) -> None:
        task = self.task
        self._dead()
        await self.ended(task)

    async def ended(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            with suppress(asyncio.CancelledError):
                await task
        self.task = None


async def _listen(shard: Shard, nc: Any) -> None:
    nc.owner.opened(shard)
    await _listen_there(shard, nc)


def stage(*, with_gate: bool, index_slow_s: float, lineage_every_s: float, block_events: int, chance: random.Random) -> None:
    """Put a simulation's parts in the place of a process's. For the whole of this process, each time for the next run."""
    Index.chance, Index.slow_s, Lineage.every_s = chance, index_slow_s, lineage_every_s
    admission = Admission(EMBEDDER, GATE if with_gate else None)
    changed: Any = service
    changed.connect = lambda paths, where: where.connect()
    changed.admission = lambda embedder: admission
    changed.StaticEmbedder = lambda: EMBEDDER
    changed.LineageStore = Lineage
    changed.warm_up = lambda shard: None
    changed.gc = SimpleNamespace(collect=lambda *_: 0, freeze=lambda: None, unfreeze=lambda: None, set_threshold=lambda *_: None)
    changed.listen = _listen
    changed = gate.shard
    changed.IndexThread = Index
    changed = sequencer
    changed.BLOCK_EVENTS_MAX, changed.DECIDING_S = block_events, float("inf")
