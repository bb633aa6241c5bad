"""The catalog of one tenant: text, evidence and metadata of every memory, and the plans of holds. The only user of sqlite3.

Owned by the index thread; one connection, one thread at a time. Invariant: the position (ledger and tenant sequence, chain hash)
changes in the transaction of the rows that it speaks for, so a block that comes again is skipped, also after a kill. Commits are
off the receipt path (the ledger has the rows); this connection sees its own rows before they are committed.

What isn't committed is kept in memory too: where the machine refuses to write (`trouble`), the rows are read from there, and are
written when it goes again. Its owner takes no more drafts meanwhile, so what is kept is bounded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from gate.ledger.events import MemoryBody

from . import ProjectionUnusable, ProjectionUnwritable
from .queries import load_queries

_log = logging.getLogger(__name__)
SCHEMA_VERSION: Final = 1
PLANS_KEPT: Final = 128  # the newest: one of 100,000 members is 400 KB
COMMIT_ROWS: Final = 1_000  # beside COMMIT_S: a kill loses at most this much work, never data
RETRY_S: Final = 1.0  # so often a file that couldn't be written is tried again
COMMIT_S: Final = 1.0  # of many tenants each has few rows a second, and a commit costs as much as ten rows
# cache in KiB (negative); a checkpoint every 4,000 pages keeps the WAL near 16 MB and off most commits
_PRAGMAS: Final = ("journal_mode=WAL", "synchronous=NORMAL", "secure_delete=ON", "cache_size=-8000", "wal_autocheckpoint=4000")
_SQL: Final = {name: q.sql for name, q in load_queries("catalog").items()}
_decode_evidence = msgspec.json.Decoder(tuple[str, ...]).decode
# Only these codes mean that the file is bad. A full disk or a lock is no reason to set a catalog aside.
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MACHINE: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM,
     sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
)  # fmt: skip


class MemoryRow(msgspec.Struct, frozen=True, gc=False):
    """What the catalog keeps of a memory. `seq` is its tenant_seq; `meta` decodes with gate.ledger.events.decode_memory."""

    seq: int
    meta: bytes
    content: str
    evidence: tuple[str, ...]
    run: str
    task: str
    session: str
    trace_id: str
    scope_id: str


@dataclass(frozen=True, slots=True)
class Position:
    """How far the ledger is applied: the block, the tenant's own last sequence, the hash of its last section."""

    ledger_seq: int
    tenant_seq: int
    chain: bytes


@dataclass(frozen=True, slots=True)
class _Part:
    """What one block brought."""

    rows: list[MemoryRow]
    after: Position


class Catalog:
    """`trouble`: why nothing can be written now; empty = all is well.

    `stream_identity` names the very stream (not only its name) whose blocks are applied.

    Raises ProjectionUnusable when the file is damaged, of another schema version or of another stream; ProjectionUnwritable when
    the machine is at fault (disk full, no permission).
    """

    def __init__(self, path: Path, stream_identity: str) -> None:
        self.path = path
        self._uncommitted = 0
        self._waiting_since: float | None = None
        self._parts: list[_Part] = []  # since the last commit
        self.trouble = ""
        self._again_at = 0.0
        self._position: Position | None = None
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise ProjectionUnwritable(path, str(error)) from error
        try:
            with self._written():
                self._configure()
                self._position = self._open(stream_identity)
        except BaseException:
            self._db.close()
            raise

    # --- opening ------------------------------------------------------------------------------------
    def _configure(self) -> None:
        for pragma in _PRAGMAS:
            self._db.execute(f"PRAGMA {pragma}")

    def _open(self, stream_identity: str) -> Position | None:
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if not tables:
            self._create(stream_identity)
            return None
        if "position" not in tables:
            raise ProjectionUnusable(self.path, "schema", "it has no position table")
        return _read_position(self._db, self.path, stream_identity)

    def _create(self, stream_identity: str) -> None:
        with self._transaction():
            for name in ("create_memory", "create_source", "create_position", "create_plan"):
                self._db.execute(_SQL[name])
            self._db.execute(_SQL["first_position"], (stream_identity, SCHEMA_VERSION))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    # --- applying -----------------------------------------------------------------------------------
    @property
    def position(self) -> Position | None:
        """How far this connection sees the ledger applied, committed or not; None before the first block."""
        return self._position

    def apply(self, rows: Sequence[MemoryRow], ledger_seq: int, tenant_seq: int, chain: bytes) -> int:
        """Apply one block's part of this tenant (no rows = only the position moves) and return how many rows were new.

        A block, or a row, at or before the position is skipped. All or nothing: on an error this call leaves no trace. That the
        machine refuses to write is none: see `trouble`.
        """
        done = self._position
        if done is not None and ledger_seq <= done.ledger_seq:
            return 0
        after = done.tenant_seq if done is not None else 0
        if tenant_seq < after:
            raise ValueError(f"block {ledger_seq} ends at tenant_seq {tenant_seq}, but {after} is applied: the ledger went back")
        new = [row for row in rows if row.seq > after]
        part = _Part(new, Position(ledger_seq, tenant_seq, chain))
        if not self.trouble:
            with self._machine_named(), _damage_named(self.path):
                self._write(part)
        if self._parts and not new:  # only the position moves
            part = _Part(self._parts.pop().rows, part.after)
        self._parts.append(part)
        self._position = part.after
        self._uncommitted += len(new)
        return len(new)

    def _write(self, part: _Part) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")
        at = part.after
        with self._savepoint():
            self._db.executemany(_SQL["insert_memory"], map(_columns, part.rows))
            self._db.executemany(_SQL["insert_source"], [pair for row in part.rows for pair in _citations(row)])
            self._db.execute(_SQL["move_position"], (at.ledger_seq, at.tenant_seq, at.chain))

    @contextmanager
    def _machine_named(self) -> Iterator[None]:
        """Where the machine refuses, nothing of what isn't committed is in the file; all of it is kept."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _MACHINE:
                raise
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if not self.trouble:
                _log.error("%s can't be written: %s", self.path, error)
            self.trouble = str(error)

    def _write_again(self) -> None:
        """All that is kept, in one transaction."""
        with self._machine_named(), _damage_named(self.path):
            nothing = [_Part([], self._position)] if self._position else []  # it is tried all the same
            for part in self._parts or nothing:
                self._write(part)
            self._end()
            self.trouble = ""
            _log.info("%s can be written again", self.path)

    def _end(self) -> None:
        if self._db.in_transaction:
            self._db.execute("COMMIT")
        self._parts.clear()
        self._uncommitted, self._waiting_since = 0, None

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._db.execute("SAVEPOINT block")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK TO block")
                self._db.execute("RELEASE block")
            raise  # outside a transaction SQLite gave up all of it (disk full)
        self._db.execute("RELEASE block")

    def maybe_commit(self, now: float) -> bool:
        """Commit if 1,000 rows wait, or COMMIT_S after the first call that found something waiting. `now`: monotonic seconds."""
        if self.trouble:
            if now < self._again_at:
                return False
            self._again_at = now + RETRY_S
            self._write_again()
            return not self.trouble
        if not self._db.in_transaction:
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        if self._uncommitted < COMMIT_ROWS and now - self._waiting_since < COMMIT_S:
            return False
        self._commit()
        return not self.trouble

    def commit(self) -> None:
        """Make everything applied so far survive a kill. Raises ProjectionUnwritable."""
        if self.trouble:
            self._write_again()
        else:
            self._commit()
        if self.trouble:
            raise ProjectionUnwritable(self.path, self.trouble)

    def _commit(self) -> None:
        with self._machine_named(), _damage_named(self.path):
            self._end()

    # --- reading ------------------------------------------------------------------------------------
    def fetch(self, seqs: Sequence[int]) -> dict[int, MemoryRow]:
        """The memories among `seqs` that exist, by tenant_seq."""
        if not seqs:
            return {}
        with _damage_named(self.path):
            found = self._db.execute(_SQL["fetch"], (json.dumps([int(seq) for seq in seqs]),)).fetchall()
        wanted = set(seqs) if self.trouble else set()
        return {row[0]: _row(row) for row in found} | {row.seq: row for row in self._unwritten() if row.seq in wanted}

    def _unwritten(self) -> list[MemoryRow]:
        """What the file doesn't have because of its trouble, ascending."""
        return [row for part in self._parts for row in part.rows] if self.trouble else []

    def iterate(self, batch: int = 1_000) -> Iterator[list[MemoryRow]]:
        """All memories ascending, in lists of at most `batch`; safe beside applying."""
        after = 0
        while True:
            with _damage_named(self.path):
                found = self._db.execute(_SQL["after"], (after, batch)).fetchall()
            if not found:
                return
            after = found[-1][0]
            yield [_row(row) for row in found]

    def after(self, seq: int, most: int) -> list[MemoryRow]:
        """At most `most` memories after a tenant_seq, ascending."""
        with _damage_named(self.path):
            found = [_row(row) for row in self._db.execute(_SQL["after"], (seq, most)).fetchall()]
        return [*found, *(row for row in self._unwritten() if row.seq > seq)][:most]

    def find_source(self, evidence_uri: str) -> list[int]:
        """The tenant_seqs, ascending, of memories that cite this evidence, or a span of it (the same URI followed by `#…`)."""
        with _damage_named(self.path):
            found = self._db.execute(_SQL["citing"], (_hash(evidence_uri),)).fetchall()
        cited = [(seq, _decode_evidence(evidence)) for seq, evidence in found]
        cited += [(row.seq, row.evidence) for row in self._unwritten()]
        return [seq for seq, evidence in cited if evidence_uri in cited_names(evidence)]

    def count(self) -> int:
        with _damage_named(self.path):
            return int(self._db.execute(_SQL["count"]).fetchone()[0])

    # --- erasing ------------------------------------------------------------------------------------
    def erase(self, rows: Sequence[MemoryRow]) -> None:
        """Overwrite the text of these memories (as they were fetched); on disk when this returns, with copies in the log: see
        `scrub`.
        """
        self.commit()
        with self._written(), self._transaction():
            self._db.executemany(_SQL["erase_source"], [pair for row in rows for pair in _citations(row)])
            self._db.executemany(_SQL["erase_memory"], [(row.seq,) for row in rows])

    def scrub(self) -> bool:
        """Empty the write-ahead log, so that no older page is left in it. False if somebody else reads the file: try again.

        What was overwritten in the file itself is zeroed already (secure_delete).
        """
        self.commit()
        with self._written():
            busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return bool(busy == 0)

    def erased(self) -> list[int]:
        """The tenant_seqs, ascending, of memories without text."""
        with _damage_named(self.path):
            return [seq for (seq,) in self._db.execute(_SQL["erased"]).fetchall()]

    # --- plans --------------------------------------------------------------------------------------
    def save_plan(self, plan_id: bytes, blob: bytes, expires_ms: int, now_ms: int) -> None:
        """Keep a plan until it expires, or PLANS_KEPT newer ones are here. Those that can't be used any more go."""
        self._change_plan("insert_plan", (plan_id, blob, expires_ms))
        self._change_plan("prune_plans", (now_ms, PLANS_KEPT))

    def load_plan(self, plan_id: bytes, now_ms: int) -> bytes | None:
        """The plan, unless it is unknown, used or expired."""
        row = self._db.execute(_SQL["read_plan"], (plan_id, now_ms)).fetchone()
        return None if row is None else bytes(row[0])

    def plan_ids(self, now_ms: int) -> list[bytes]:
        """Plans that may still be used."""
        return [bytes(id_) for (id_,) in self._db.execute(_SQL["plan_ids"], (now_ms,)).fetchall()]

    def use_plan(self, plan_id: bytes, now_ms: int) -> bool:
        """True for exactly one caller, and only before the plan expires; on disk when this returns."""
        return self._change_plan("use_plan", (plan_id, now_ms)) == 1

    def _change_plan(self, query: str, values: tuple[object, ...]) -> int:
        self.commit()  # a plan's life is its own: never rolled back with a block
        with self._written(), self._transaction():
            return self._db.execute(_SQL[query], values).rowcount

    @contextmanager
    def _written(self) -> Iterator[None]:
        """A change that its caller waits for: ProjectionUnwritable where the machine refuses."""
        with self._machine_named(), _damage_named(self.path):
            yield
        if self.trouble:
            raise ProjectionUnwritable(self.path, self.trouble)

    # --- closing ------------------------------------------------------------------------------------
    def close(self) -> None:
        """Commit and close. Closing twice is allowed."""
        try:
            self.commit()
        except (sqlite3.ProgrammingError, ProjectionUnwritable):  # closed already; or the next start has it from the ledger
            return
        finally:
            self._db.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class CatalogFile:
    """A catalog that another process may have open, read and never changed. Raises as Catalog; or FileNotFoundError."""

    def __init__(self, path: Path, stream_identity: str) -> None:
        if not path.exists():
            raise FileNotFoundError(path)
        self.path = path
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            with _damage_named(path):
                self.position = _read_position(self._db, path, stream_identity)
        except BaseException:
            self._db.close()
            raise

    def fetch(self, seqs: Sequence[int]) -> dict[int, tuple[object, ...]]:
        """The rows of those that exist, by tenant_seq, in the order of `columns_of`."""
        with _damage_named(self.path):
            return {row[0]: row for row in self._db.execute(_SQL["fetch"], (json.dumps(seqs),)).fetchall()}

    def counts(self, upto: int) -> tuple[int, int, int]:
        """Of memories up to a tenant_seq: how many, how many citations, and the citations' checksum (see `citations_of`)."""
        with _damage_named(self.path):
            (memories,) = self._db.execute(_SQL["count_upto"], (upto,)).fetchone()
            citations, checksum = self._db.execute(_SQL["citations_upto"], (upto,)).fetchone()
        return memories, citations, checksum or 0

    def close(self) -> None:
        self._db.close()


def columns_of(seq: int, meta: bytes, body: MemoryBody | None) -> tuple[object, ...]:
    """A memory's row as it must lie in the file; `body` None: it was erased."""
    if body is None:
        return (seq, meta, "", b"[]", "", "", "", "", "")
    evidence = msgspec.json.encode(body.evidence) if body.evidence else b"[]"
    return (seq, meta, body.content, evidence, body.run, body.task, body.session, body.trace_id, body.scope_id)


COLUMNS: Final = tuple(MemoryRow.__struct_fields__)


def citations_of(evidence: Sequence[str]) -> tuple[int, int]:
    """How many rows of `source` a memory with this evidence has, and what they add to the checksum."""
    if not evidence:
        return 0, 0
    hashes = [_hash(name) for name in cited_names(tuple(evidence))]
    return len(hashes), sum(h & 0xFFFFFFFF for h in hashes)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
            raise ProjectionUnusable(path, "damaged", str(error)) from error
        raise


def _read_position(db: sqlite3.Connection, path: Path, stream_identity: str) -> Position | None:
    """The position of a catalog that is there, sound, of this schema and of this stream; else ProjectionUnusable."""
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise ProjectionUnusable(path, "damaged", str(verdict))
    try:
        row = db.execute(_SQL["read_position"]).fetchone()
    except sqlite3.OperationalError as error:
        raise ProjectionUnusable(path, "schema", str(error)) from error
    if row is None or row[1] != SCHEMA_VERSION:
        raise ProjectionUnusable(path, "schema", f"version {row and row[1]}, this program writes {SCHEMA_VERSION}")
    if row[0] != stream_identity:
        raise ProjectionUnusable(path, "stream", f"it follows {row[0]}, not {stream_identity}")
    return Position(*row[2:]) if row[2] else None


def _columns(row: MemoryRow) -> tuple[object, ...]:
    evidence = msgspec.json.encode(row.evidence)
    return (row.seq, row.meta, row.content, evidence, row.run, row.task, row.session, row.trace_id, row.scope_id)


def _row(columns: tuple[int, bytes, str, bytes, str, str, str, str, str]) -> MemoryRow:
    seq, meta, content, evidence, run, task, session, trace_id, scope_id = columns
    cited = () if evidence == b"[]" else _decode_evidence(evidence)
    return MemoryRow(seq, meta, content, cited, run, task, session, trace_id, scope_id)


def cited_names(evidence: tuple[str, ...]) -> set[str]:
    """Every name under which evidence is found: as cited, and without its span."""
    return {*evidence, *(item.partition("#")[0] for item in evidence)} - {""}


def _citations(row: MemoryRow) -> list[tuple[int, int]]:
    return [(_hash(name), row.seq) for name in cited_names(row.evidence)]


def _hash(name: str) -> int:
    """64 bits as SQLite's signed integer. Only a filter: a match is compared in full."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
