"""Rows of the lineage store, one type a table, fields in the order of the table's columns. No text of a memory is in any of them.

Memories are named by their tenant_seq, tenants by a dense number; ids are 16 raw bytes, times ms since 1970, enumerations indexes
into the tuples of bus.frames. Invariant (a test): field names and order equal the schema's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple


class TenantLine(NamedTuple):
    tenant: int
    account: str


class MemoryLine(NamedTuple):
    tenant: int
    seq: int
    id: bytes
    project: str
    agent: bytes
    kind: int
    origin: int
    trust: int
    floor: int
    class_: int
    state: str  # at write: active | held
    ms: int
    ctx: bytes
    epoch: int
    ctx_seq: int


class EdgeLine(NamedTuple):
    tenant: int
    src: int
    dst: int
    kind: int
    confidence: int


class RecallLine(NamedTuple):
    tenant: int
    id: bytes
    ctx: bytes
    epoch: int
    ctx_seq: int
    agent: bytes
    project: str
    ms: int
    verb: str
    intent: int
    risk: int


class ServedLine(NamedTuple):
    tenant: int
    recall: bytes
    memory: int
    decision: int
    reasons: int


class WithdrawnLine(NamedTuple):
    tenant: int
    recall: bytes
    memory: int


class CaseEventLine(NamedTuple):
    tenant: int
    ledger_seq: int
    case_id: bytes
    kind: str  # opened | joined | released
    ms: int
    agent: bytes
    members: int


class CaseMemberLine(NamedTuple):
    tenant: int
    case_id: bytes
    memory: int


class NoticeLine(NamedTuple):
    tenant: int
    case_id: bytes
    kind: str  # recall | released
    agent: bytes
    state: str  # sent | acked
    ms: int


class AuditLine(NamedTuple):
    tenant: int
    ms: int
    key: str
    verb: str
    project: str
    code: str
    number: int
    agent: bytes
    memory: int


@dataclass(slots=True)
class Rows:
    """What one block adds, by table. Field names are table names."""

    tenant: list[TenantLine] = field(default_factory=list)
    memory: list[MemoryLine] = field(default_factory=list)
    edge: list[EdgeLine] = field(default_factory=list)
    recall: list[RecallLine] = field(default_factory=list)
    served: list[ServedLine] = field(default_factory=list)
    withdrawn: list[WithdrawnLine] = field(default_factory=list)
    case_event: list[CaseEventLine] = field(default_factory=list)
    case_member: list[CaseMemberLine] = field(default_factory=list)
    notice: list[NoticeLine] = field(default_factory=list)
    audit: list[AuditLine] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)  # no table: tenants that were deleted, of which the store keeps the number alone

    def tables(self) -> list[tuple[str, list[tuple[object, ...]]]]:
        """Name and rows of every table that has some."""
        return [(name, rows) for name in TABLES if (rows := getattr(self, name))]

    def count(self) -> int:
        return sum(len(rows) for _, rows in self.tables())

    def extend(self, other: Rows) -> None:
        for name, rows in self.tables() if other.gone else ():
            if name in OF_TENANTS:
                rows[:] = [line for line in rows if line[0] not in other.gone]
        self.gone |= other.gone
        for name, rows in other.tables():
            getattr(self, name).extend(rows)


TABLES: Final = tuple(name for name in Rows.__slots__ if name != "gone")
OF_TENANTS: Final = tuple(name for name in TABLES if name != "tenant")
