"""The catalog of one tenant: text, evidence and metadata of every memory, and the plans of holds. The only user of sqlite3.

Owned by the index thread; one connection, one thread at a time. Invariant: the position (ledger and tenant sequence, chain hash)
changes in the transaction of the rows that it speaks for, so a block that comes again is skipped, also after a kill. Commits are
off the receipt path (the ledger has the rows); this connection sees its own rows before they are committed.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from . import ProjectionUnusable
from .queries import load_queries

SCHEMA_VERSION: Final = 1
COMMIT_ROWS: Final = 1_000  # beside COMMIT_S: a kill loses at most this much work, never data
COMMIT_S: Final = 0.05
# cache in KiB (negative); a checkpoint every 4,000 pages keeps the WAL near 16 MB and off most commits
_PRAGMAS: Final = ("journal_mode=WAL", "synchronous=NORMAL", "secure_delete=ON", "cache_size=-8000", "wal_autocheckpoint=4000")
_SQL: Final = {name: q.sql for name, q in load_queries("catalog").items()}
_decode_evidence = msgspec.json.Decoder(tuple[str, ...]).decode
# Only these codes mean that the file is bad. A full disk or a lock is no reason to set a catalog aside.
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


@dataclass(frozen=True, slots=True)
class MemoryRow:
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


class Catalog:
    """`stream_identity` names the very stream (not only its name) whose blocks are applied.

    Raises ProjectionUnusable when the file is damaged, of another schema version or of another stream; sqlite3.OperationalError
    when the machine is at fault (disk full, no permission).
    """

    def __init__(self, path: Path, stream_identity: str) -> None:
        self.path = path
        self._uncommitted = 0
        self._waiting_since: float | None = None
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            with self._damage_named():
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
        verdict = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise ProjectionUnusable(self.path, "damaged", str(verdict))
        try:
            row = self._db.execute(_SQL["read_position"]).fetchone()
        except sqlite3.OperationalError as error:
            raise ProjectionUnusable(self.path, "schema", str(error)) from error
        if row is None or row[1] != SCHEMA_VERSION:
            raise ProjectionUnusable(self.path, "schema", f"version {row and row[1]}, this program writes {SCHEMA_VERSION}")
        if row[0] != stream_identity:
            raise ProjectionUnusable(self.path, "stream", f"it follows {row[0]}, not {stream_identity}")
        return Position(*row[2:]) if row[2] else None

    def _create(self, stream_identity: str) -> None:
        with self._transaction():
            for name in ("create_memory", "create_source", "create_position", "create_plan"):
                self._db.execute(_SQL[name])
            self._db.execute(_SQL["first_position"], (stream_identity, SCHEMA_VERSION))

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
                raise ProjectionUnusable(self.path, "damaged", str(error)) from error
            raise

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

        A block, or a row, at or before the position is skipped. All or nothing: on an error this call leaves no trace.
        """
        done = self._position
        if done is not None and ledger_seq <= done.ledger_seq:
            return 0
        after = done.tenant_seq if done is not None else 0
        if tenant_seq < after:
            raise ValueError(f"block {ledger_seq} ends at tenant_seq {tenant_seq}, but {after} is applied: the ledger went back")
        new = [row for row in rows if row.seq > after]
        with self._damage_named():
            if not self._db.in_transaction:
                self._db.execute("BEGIN IMMEDIATE")
            with self._savepoint():
                self._db.executemany(_SQL["insert_memory"], map(_columns, new))
                self._db.executemany(_SQL["insert_source"], [pair for row in new for pair in _citations(row)])
                self._db.execute(_SQL["move_position"], (ledger_seq, tenant_seq, chain))
        self._position = Position(ledger_seq, tenant_seq, chain)
        self._uncommitted += len(new)
        return len(new)

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._db.execute("SAVEPOINT block")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK TO block")
                self._db.execute("RELEASE block")
            else:  # SQLite gave up the whole transaction (disk full): what came before is gone too
                self._position, self._uncommitted = self._committed_position(), 0
            raise
        self._db.execute("RELEASE block")

    def _committed_position(self) -> Position | None:
        row = self._db.execute(_SQL["read_position"]).fetchone()
        return Position(*row[2:]) if row[2] else None

    def maybe_commit(self, now: float) -> bool:
        """Commit if 1,000 rows wait, or 50 ms after the first call that found something waiting. `now`: monotonic seconds."""
        if not self._db.in_transaction:
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        if self._uncommitted < COMMIT_ROWS and now - self._waiting_since < COMMIT_S:
            return False
        self.commit()
        return True

    def commit(self) -> None:
        """Make everything applied so far survive a kill."""
        if self._db.in_transaction:
            with self._damage_named():
                self._db.execute("COMMIT")
        self._uncommitted, self._waiting_since = 0, None

    # --- reading ------------------------------------------------------------------------------------
    def fetch(self, seqs: Sequence[int]) -> dict[int, MemoryRow]:
        """The memories among `seqs` that exist, by tenant_seq."""
        if not seqs:
            return {}
        with self._damage_named():
            found = self._db.execute(_SQL["fetch"], (json.dumps([int(seq) for seq in seqs]),)).fetchall()
        return {row[0]: _row(row) for row in found}

    def iterate(self, batch: int = 1_000) -> Iterator[list[MemoryRow]]:
        """All memories ascending, in lists of at most `batch`; safe beside applying."""
        after = 0
        while True:
            with self._damage_named():
                found = self._db.execute(_SQL["after"], (after, batch)).fetchall()
            if not found:
                return
            after = found[-1][0]
            yield [_row(row) for row in found]

    def find_source(self, evidence_uri: str) -> list[int]:
        """The tenant_seqs, ascending, of memories that cite this evidence, or a span of it (the same URI followed by `#…`)."""
        with self._damage_named():
            found = self._db.execute(_SQL["citing"], (_hash(evidence_uri),)).fetchall()
        return [seq for seq, evidence in found if evidence_uri in cited_names(_decode_evidence(evidence))]

    def count(self) -> int:
        with self._damage_named():
            return int(self._db.execute(_SQL["count"]).fetchone()[0])

    # --- erasing ------------------------------------------------------------------------------------
    def erase(self, rows: Sequence[MemoryRow]) -> None:
        """Overwrite the text of these memories (as they were fetched); on disk when this returns, with copies in the log: see
        `scrub`.
        """
        self.commit()
        with self._damage_named(), self._transaction():
            self._db.executemany(_SQL["erase_source"], [pair for row in rows for pair in _citations(row)])
            self._db.executemany(_SQL["erase_memory"], [(row.seq,) for row in rows])

    def scrub(self) -> bool:
        """Empty the write-ahead log, so that no older page is left in it. False if somebody else reads the file: try again.

        What was overwritten in the file itself is zeroed already (secure_delete).
        """
        self.commit()
        with self._damage_named():
            busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return bool(busy == 0)

    def erased(self) -> list[int]:
        """The tenant_seqs, ascending, of memories without text."""
        with self._damage_named():
            return [seq for (seq,) in self._db.execute(_SQL["erased"]).fetchall()]

    # --- plans --------------------------------------------------------------------------------------
    def save_plan(self, plan_id: bytes, blob: bytes, expires_ms: int) -> None:
        self._change_plan("insert_plan", (plan_id, blob, expires_ms))

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

    def prune_plans(self, now_ms: int) -> int:
        """Delete used and expired plans; returns how many."""
        return self._change_plan("prune_plans", (now_ms,))

    def _change_plan(self, query: str, values: tuple[object, ...]) -> int:
        self.commit()  # a plan's life is its own: never rolled back with a block
        with self._damage_named(), self._transaction():
            return self._db.execute(_SQL[query], values).rowcount

    # --- closing ------------------------------------------------------------------------------------
    def close(self) -> None:
        """Commit and close. Closing twice is allowed."""
        try:
            self.commit()
        except sqlite3.ProgrammingError:
            return
        finally:
            self._db.close()

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


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
