"""The lineage store: graph, reads, decisions, cases, notices and audit of a shard, in DuckDB. The only user of duckdb.

A projection for operators; agents never wait for it. One thread writes. Invariants: rows only arrive by INSERT, and leave only
with their whole tenant; in the same transaction comes how far each stream is applied, so a block that comes again is skipped;
what the machine refuses to write (`trouble`) is tried again, after another error nothing more goes in (the file stays right up to
its positions, and the next start replays the rest). The queue is bounded by rows.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import duckdb
import numpy as np
import numpy.typing as npt

from bus.errors import CordonError, Unavailable

from . import ProjectionUnusable, ProjectionUnwritable
from .lineage_rows import OF_TENANTS, Rows
from .queries import load_queries

_log = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
FLUSH_ROWS: Final = 2_048  # or FLUSH_S: a transaction costs 2 ms and one fdatasync, a row about 2 µs more
FLUSH_S: Final = 0.2  # who waits for a position (`wait`) is served at once
TRANSACTION_ROWS_MAX: Final = 8_192  # when it is behind
QUEUE_ROWS_MAX: Final = 500_000  # about 100 MB of tuples, and ten seconds of the fastest writing that was measured
RETRY_S: Final = 1.0  # so often a file that couldn't be written is tried again
QUERY_TIMEOUT_S: Final = 10.0
SCRATCH_ROWS: Final = 20_000
CLOSE_TIMEOUT_S: Final = 10.0
_QUERIES: Final = load_queries("lineage")
_SCHEMA: Final = load_queries("lineage_schema")
_DAMAGE: Final = (duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)
_DAMAGE_SIGNS: Final = ("orrupt", "not read enough bytes")  # checksums and short files come under general types
_MACHINE_SIGNS: Final = (
    "No space left",
    "Too many open files",
    "Permission denied",
    "Read-only file",
    "quota exceeded",
    "File too large",
)
_BUGS: Final = (duckdb.ProgrammingError, duckdb.DataError)  # a wrong statement or parameter
_HEADER_BYTES: Final = 3 * 4_096  # before the first block of a DuckDB file


@dataclass(slots=True, frozen=True)
class _Block:
    stream: str
    seq: int
    rows: Rows
    count: int


@dataclass(slots=True, frozen=True, eq=False)
class _Waiter:
    stream: str
    seq: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]

    def wake(self, error: CordonError | None) -> None:
        def settle() -> None:
            if self.future.done():
                return
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(settle)


class LineageStore:
    """`streams`: name → identity of the streams whose blocks are applied.

    Raises ProjectionUnusable when the file is damaged, of another schema version or of other streams; Unavailable when another
    process has it open.
    """

    def __init__(self, path: Path, streams: Mapping[str, str], *, memory_limit: str = "256MB") -> None:
        self.path = path
        self._root = _connect(path, memory_limit)
        try:
            self._positions = _open(self._root, path, dict(streams))
        except BaseException:
            self._root.close()
            raise
        self._accepted = dict(self._positions)
        self._failed: CordonError | None = None
        self._trouble: ProjectionUnwritable | None = None
        self._changed = threading.Condition()  # guards everything below
        self._queue: deque[_Block] = deque()
        self._queued_rows = 0
        self._oldest_at = 0.0
        self._urgent = self._closing = False
        self._waiters: list[_Waiter] = []
        self._limiter = anyio.CapacityLimiter(1)
        self._writer = threading.Thread(target=self._write_all, name="lineage", daemon=True)
        self._writer.start()

    # --- writing ------------------------------------------------------------------------------------
    @property
    def positions(self) -> dict[str, int]:
        """The last sequence of each stream that is on disk; 0 = none."""
        return dict(self._positions)

    @property
    def failed(self) -> CordonError | None:
        """Why nothing is applied any more, if so."""
        return self._failed

    @property
    def trouble(self) -> ProjectionUnwritable | None:
        """Why nothing can be written now; it is tried again."""
        return self._trouble

    @property
    def backlog(self) -> int:
        """Rows that wait to be written."""
        return self._queued_rows

    def put(self, stream: str, seq: int, rows: Rows) -> bool:
        """Queue the rows of one block; never waits, and takes ownership of `rows`. Blocks of a stream come in ascending order.

        False: nothing was queued, since the block came before, or since the store has failed (see `failed`).
        """
        count = rows.count()
        with self._changed:
            if self._failed is not None or self._closing or seq <= self._accepted[stream]:
                return False
            if self._queued_rows + count > QUEUE_ROWS_MAX:
                self._fail(_unavailable("it fell too far behind", "lineage_behind"))
                return False
            first = not self._queue
            if first:
                self._oldest_at = time.monotonic()
            self._accepted[stream] = seq
            self._queue.append(_Block(stream, seq, rows, count))
            self._queued_rows += count
            if first or self._urgent or self._queued_rows >= FLUSH_ROWS:  # else the writer would be woken for each block
                self._changed.notify_all()
        return True

    def _write_all(self) -> None:
        try:
            while blocks := self._take():
                while (positions := self._applied(blocks)) is None:
                    with self._changed:
                        self._changed.wait_for(lambda: self._closing, RETRY_S)
                        if self._closing:  # it comes again by replay
                            return
                with self._changed:
                    self._trouble = None
                    self._positions.update(positions)
                    self._wake(lambda waiter: self._positions[waiter.stream] >= waiter.seq, None)
        except BaseException as error:  # whatever it was, the file is right up to its positions
            _log.exception("lineage store %s stops applying", self.path)
            with self._changed:
                self._fail(_named(self.path, error))

    def _applied(self, blocks: list[_Block]) -> dict[str, int] | None:
        """The positions that are on disk now; None where the machine refused, and nothing of it is there."""
        cursor = self._root.cursor()
        try:
            return _apply(cursor, blocks)
        except duckdb.Error as error:
            named = _named(self.path, error)
            if not isinstance(named, ProjectionUnwritable):
                raise
            with self._changed:
                if self._trouble is None:
                    _log.error("%s", named.message)
                self._trouble = named
                self._wake(lambda _: True, _for_caller(named))
            return None
        finally:
            cursor.close()

    def _take(self) -> list[_Block]:
        """Wait until it is worth a transaction, then the oldest blocks; none = closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            left = self._oldest_at + FLUSH_S - time.monotonic()
            self._changed.wait_for(lambda: self._queued_rows >= FLUSH_ROWS or self._urgent or self._closing, max(left, 0.0))
            taken: list[_Block] = []
            rows = 0
            while self._queue and (not taken or rows + self._queue[0].count <= TRANSACTION_ROWS_MAX):
                taken.append(self._queue.popleft())
                rows += taken[-1].count
            self._queued_rows -= rows
            self._urgent = self._urgent and bool(self._queue)
            return taken

    def _fail(self, error: CordonError) -> None:
        self._failed = error
        self._queue.clear()
        self._queued_rows = 0
        self._wake(lambda _: True, _for_caller(error))
        self._changed.notify_all()

    def _wake(self, due: Callable[[_Waiter], bool], error: CordonError | None) -> None:
        ready = [waiter for waiter in self._waiters if due(waiter)]
        self._waiters = [waiter for waiter in self._waiters if waiter not in ready]
        for waiter in ready:
            waiter.wake(error)

    # --- reading ------------------------------------------------------------------------------------
    async def wait(self, stream: str, seq: int, timeout_s: float) -> None:
        """Return when `stream` is on disk up to `seq`. Unavailable after `timeout_s`, or when the store has failed."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(stream, seq, loop, loop.create_future())
        with self._changed:
            if self._failed is not None:
                raise _for_caller(self._failed)
            if self._positions[stream] >= seq:
                return
            if self._trouble is not None:
                raise _for_caller(self._trouble)
            self._waiters.append(waiter)
            self._urgent = True
            self._changed.notify_all()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.future
        except TimeoutError:
            raise _unavailable(f"{stream} is applied up to {self._positions[stream]}, not {seq}", "lineage_behind") from None
        finally:
            with self._changed:
                self._waiters = [other for other in self._waiters if other is not waiter]

    async def query(self, name: str, params: Mapping[str, object], timeout_s: float = QUERY_TIMEOUT_S) -> list[tuple[Any, ...]]:
        """The rows of a named query (sql/lineage.sql says what each gives and takes), one query at a time, off the loop.

        KeyError for an unknown name; Unavailable after `timeout_s`, beyond the memory limit, or when the store has failed.
        """
        sql = _QUERIES[name].sql
        if self._closing:
            raise _unavailable("it is closed", "lineage_closed")
        if isinstance(self._failed, ProjectionUnusable):  # of another failure the file is right up to its positions
            raise _for_caller(self._failed)
        cursor = self._root.cursor()

        def run() -> list[tuple[Any, ...]]:
            try:
                return cursor.execute(sql, used(name, params)).fetchall()
            finally:
                cursor.close()

        try:
            async with asyncio.timeout(timeout_s):
                return await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._limiter)
        except (TimeoutError, asyncio.CancelledError) as late:
            cursor.interrupt()
            if isinstance(late, asyncio.CancelledError):
                raise
            raise _unavailable(f"query {name} took over {timeout_s} s", "lineage_slow") from None
        except duckdb.Error as error:
            if isinstance(error, _BUGS):
                raise
            named = _named(self.path, error)
            if isinstance(named, ProjectionUnusable):
                with self._changed:
                    self._fail(named)
            raise _for_caller(named) from error

    # --- closing ------------------------------------------------------------------------------------
    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write what is queued, then close. What isn't written in `timeout_s` comes again by replay. Call it off the loop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout_s)
        if self._writer.is_alive():
            _log.warning("lineage store %s was closed before it was done; it catches up at the next start", self.path)
            self._root.interrupt()
        self._root.close()


class Scratch:
    """The same tables in memory, for verification: what a store that follows the ledger must hold. One thread at a time."""

    def __init__(self) -> None:
        self._con = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "1GB"})
        for statement in _SCHEMA.values():
            self._con.execute(statement.sql)
        self._rows = Rows()
        self._count = 0

    def add(self, rows: Rows) -> None:
        self._rows.extend(rows)
        self._count += rows.count()
        if self._count >= SCRATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        """By columns: a fifth of an appender's time."""
        rows, self._rows, self._count = self._rows, Rows(), 0
        _drop_gone(self._con, rows)
        for table, lines in rows.tables():
            columns = {f"c{i}": _column(values) for i, values in enumerate(zip(*lines, strict=True))}
            self._con.register("lines", columns)
            self._con.execute(f"INSERT INTO {table} SELECT * FROM lines")
            self._con.unregister("lines")

    def query(self, name: str, params: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """As LineageStore.query."""
        self._flush()
        return _run(self._con, name, params)


class LineageFile:
    """A lineage store that no gatekeeper has open, read and never changed. Raises as LineageStore."""

    def __init__(self, path: Path, streams: Mapping[str, str]) -> None:
        self._path = path
        self._con = _connect(path, "1GB", read_only=True)
        try:
            found = _read_positions(self._con, path, dict(streams))
            self.positions = {name: found.get(name, 0) for name in streams}
            numbers = self._con.execute("SELECT account, tenant FROM tenant").fetchall()
        except BaseException as error:
            self._con.close()
            if isinstance(error, duckdb.Error):
                raise ProjectionUnusable(path, "damaged", str(error)) from error
            raise
        self.numbers: dict[str, int] = dict(numbers)

    def query(self, name: str, params: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """As LineageStore.query."""
        try:
            return _run(self._con, name, params)
        except duckdb.Error as error:
            raise ProjectionUnusable(self._path, "damaged", str(error)) from error

    def close(self) -> None:
        self._con.close()


def _run(con: duckdb.DuckDBPyConnection, name: str, params: Mapping[str, object]) -> list[tuple[Any, ...]]:
    return con.execute(_QUERIES[name].sql, used(name, params)).fetchall()


def used(name: str, params: Mapping[str, object]) -> dict[str, object]:
    """Those that the query names: DuckDB refuses others."""
    return {key: value for key, value in params.items() if f"${key}" in _QUERIES[name].sql}


def _column(values: tuple[Any, ...]) -> npt.NDArray[Any]:
    if isinstance(values[0], int):
        return np.array(values, np.uint64 if max(values) >= 1 << 63 else np.int64)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _unavailable(what: str, reason: str) -> Unavailable:
    advice = "Try again; if it stays so, restart the gatekeeper."
    return Unavailable(f"The lineage store isn't ready: {what}.", reason=reason, advice=advice)


def _for_caller(error: CordonError) -> Unavailable:
    """Who asks can only wait; `failed` has the cause for whoever runs the shard."""
    return error if isinstance(error, Unavailable) else _unavailable(error.message, "lineage_failed")


def _named(path: Path, error: BaseException) -> CordonError:
    """Damage is a reason to rebuild; a lack of memory or disk isn't, nor is a bug of ours."""
    if isinstance(error, CordonError):
        return error
    if any(sign in str(error) for sign in _MACHINE_SIGNS):
        return ProjectionUnwritable(path, str(error))
    if isinstance(error, _DAMAGE) or any(sign in str(error) for sign in _DAMAGE_SIGNS):
        return ProjectionUnusable(path, "damaged", str(error))
    return _unavailable(f"{type(error).__name__}: {error}", "lineage_failed")


# --- the file -----------------------------------------------------------------------------------------
def _connect(path: Path, memory_limit: str, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": memory_limit,
        "enable_external_access": False,  # else even a read-only query reads any file and COPY writes any
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "lock_configuration": True,
    }
    try:
        return duckdb.connect(str(path), read_only=read_only, config=config)
    except duckdb.IOException as error:
        if "lock" in str(error):
            raise _unavailable(f"another process has {path.name} open", "lineage_locked") from error
        raise _unopened(path, error) from error
    except duckdb.Error as error:
        raise _unopened(path, error) from error


def _unopened(path: Path, error: duckdb.Error) -> CordonError:
    """Of a file that doesn't open everything is damage but what the machine refuses."""
    named = _named(path, error)
    return named if isinstance(named, ProjectionUnwritable) else ProjectionUnusable(path, "damaged", str(error))


def _open(con: duckdb.DuckDBPyConnection, path: Path, streams: dict[str, str]) -> dict[str, int]:
    """Create or check the file; the position of every stream."""
    try:
        if not con.execute("SELECT count(*) FROM duckdb_tables()").fetchall()[0][0]:
            _create(con, streams)
        found = _read_positions(con, path, streams)
        _thin_out(con, found)
    except duckdb.Error as error:
        raise _unopened(path, error) from error
    return {name: found.get(name, 0) for name in streams}


def _read_positions(con: duckdb.DuckDBPyConnection, path: Path, streams: dict[str, str]) -> dict[str, int]:
    try:
        _check(con, path, streams)
        return dict(con.execute("SELECT stream, max(seq) FROM position GROUP BY stream").fetchall())
    except duckdb.CatalogException as error:
        raise ProjectionUnusable(path, "schema", str(error)) from error


def _create(con: duckdb.DuckDBPyConnection, streams: dict[str, str]) -> None:
    con.execute("BEGIN")
    for statement in _SCHEMA.values():
        con.execute(statement.sql)
    con.execute("INSERT INTO about VALUES (?)", [SCHEMA_VERSION])
    for name, identity in streams.items():
        con.execute("INSERT INTO stream VALUES (?, ?)", [name, identity])
    con.execute("COMMIT")


def _check(con: duckdb.DuckDBPyConnection, path: Path, streams: dict[str, str]) -> None:
    versions = [version for (version,) in con.execute("SELECT schema FROM about").fetchall()]
    if versions != [SCHEMA_VERSION]:
        raise ProjectionUnusable(path, "schema", f"version {versions}, this program writes {SCHEMA_VERSION}")
    stored = dict(con.execute("SELECT name, identity FROM stream").fetchall())
    if stored != streams:
        raise ProjectionUnusable(path, "stream", f"it follows {stored}, not {streams}")
    # DuckDB itself opens a file that lacks its end. Free blocks at the end may rightly not be there.
    [(block_bytes, used)] = con.execute("SELECT block_size, used_blocks FROM pragma_database_size()").fetchall()
    if path.stat().st_size < _HEADER_BYTES + block_bytes * used:
        raise ProjectionUnusable(path, "damaged", "its end is missing")


def _thin_out(con: duckdb.DuckDBPyConnection, found: dict[str, int]) -> None:
    """One position row a stream again: they are only ever inserted while serving."""
    con.execute("BEGIN")
    con.execute("DELETE FROM position")
    for item in found.items():
        con.execute("INSERT INTO position VALUES (?, ?)", list(item))
    con.execute("COMMIT")


def _apply(cursor: duckdb.DuckDBPyConnection, blocks: list[_Block]) -> dict[str, int]:
    """All blocks in one transaction with their positions, which it returns."""
    rows, positions = Rows(), dict[str, int]()
    for block in blocks:
        rows.extend(block.rows)
        positions[block.stream] = block.seq
    cursor.execute("BEGIN")
    try:
        _drop_gone(cursor, rows)
        for table, lines in rows.tables():
            _append(cursor, table, lines)
        _append(cursor, "position", list(positions.items()))
    except BaseException:
        cursor.execute("ROLLBACK")  # a COMMIT now would report success and keep nothing
        raise
    cursor.execute("COMMIT")
    return positions


def _drop_gone(con: duckdb.DuckDBPyConnection, rows: Rows) -> None:
    """Forget what was known of tenants that were deleted."""
    for tenant in rows.gone:
        for table in OF_TENANTS:
            con.execute(f"DELETE FROM {table} WHERE tenant = ?", [tenant])


def _append(cursor: duckdb.DuckDBPyConnection, table: str, lines: list[Any]) -> None:
    with cursor.appender(table) as appender:
        appender.append_rows(lines)
