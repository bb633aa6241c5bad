"""Catalogs and lineage store, compared with what the ledger made of them. Nothing is written, the gatekeeper may serve.

Catalogs are read as files beside it; DuckDB lets one process in, so a gatekeeper that serves is asked for its digests.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gate.ledger import events as E
from gate.ledger.block import Section
from gate.paths import Paths
from gate.projections import COMPANIONS, ProjectionUnusable
from gate.projections.catalog import COLUMNS, CatalogFile, citations_of, columns_of
from gate.projections.lineage import LineageFile
from gate.state.tenant import Tenant
from gate.verifying.answers import plain, query_name
from gate.verifying.expected import Expected

BATCH: Final = 1_000
SHOWN_PARTS: Final = 5  # of a table, whose rows are compared one by one
SHOWN_ROWS: Final = 10
MINUTE_MS: Final = 60_000
MOVING_MS: Final = 2 * MINUTE_MS  # what came so late may be in one of the two and not in the other while it serves
FOREVER: Final = 1 << 62
Found = Callable[[str], None]
Rows = list[list[Any]]


@dataclass(slots=True)
class _Catalog:
    file: CatalogFile
    memories: int = 0
    citations: int = 0
    checksum: int = 0


class Catalogs:
    """Each tenant's catalog, opened at its first section. One that is behind is compared as far as it goes; `elsewhere`: none."""

    def __init__(self, paths: Paths, identity: str, found: Found, *, elsewhere: bool = False) -> None:
        self._elsewhere = elsewhere
        self._paths, self._identity, self._found = paths, identity, found
        self._open: dict[str, _Catalog | None] = {}
        self._waiting: dict[str, list[tuple[int, bytes, E.MemoryBody | None]]] = {}
        self._count = 0
        self._blank: list[tuple[str, int]] = []
        self._missing: list[str] = []

    def erased(self, tenants: Mapping[str, Tenant] | None) -> None:
        """Memories without a text must be erased ones. None: a part of the ledger can't tell."""
        self.compare()
        for account, seq in self._blank if tenants is not None else ():
            t = tenants.get(account) if tenants else None
            if t is None or not (t.deleted or t.columns.erased[seq]):
                self._found(f"catalog of tenant {account}: memory {seq} differs from the ledger (content)")

    def _of(self, account: str) -> _Catalog | None:
        if account not in self._open:
            self._open[account] = None
            if self._elsewhere:
                return None
            try:
                self._open[account] = _Catalog(CatalogFile(self._paths.catalog(account), self._identity))
            except FileNotFoundError:
                self._missing.append(account)
            except ProjectionUnusable as e:
                self._found(f"catalog of tenant {account}: {e.message}")
        return self._open[account]

    def section(self, no: int, section: Section) -> None:
        """Whether the catalog stands where the ledger's chain does."""
        catalog = self._of(section.tenant)
        at = catalog.file.position if catalog else None
        if at is None or not section.seq <= at.tenant_seq <= section.last:
            return
        if at.tenant_seq != section.last or at.chain != section.hash:
            self._found(f"catalog of tenant {section.tenant}: its event {at.tenant_seq} is another than block {no} holds")

    def memory(self, account: str, seq: int, meta: bytes, body: E.MemoryBody | None) -> None:
        self._waiting.setdefault(account, []).append((seq, meta, body))
        self._count += 1
        if self._count >= BATCH:
            self.compare()

    def compare(self) -> None:
        waiting, self._waiting, self._count = self._waiting, {}, 0
        for account, memories in waiting.items():
            catalog = self._of(account)
            if catalog is None or catalog.file.position is None:
                continue
            applied = catalog.file.position.tenant_seq
            try:
                rows = catalog.file.fetch([seq for seq, _, _ in memories])
            except ProjectionUnusable as e:
                self._found(f"catalog of tenant {account}: {e.message}")
                self._open[account] = None
                continue
            for seq, meta, body in memories:
                if seq <= applied:
                    self._memory(account, catalog, seq, rows.get(seq), meta, body)

    def _memory(
        self, account: str, catalog: _Catalog, seq: int, row: tuple[object, ...] | None, meta: bytes, body: E.MemoryBody | None
    ) -> None:
        catalog.memories += 1
        if row is None:
            self._found(f"catalog of tenant {account}: memory {seq} is missing")
            return
        citations, checksum = citations_of(body.evidence if body else ())
        catalog.citations += citations
        catalog.checksum += checksum
        right = columns_of(seq, meta, body)
        if row == right:
            return
        if row == columns_of(seq, meta, None):  # its erasure may come later in the ledger
            self._blank.append((account, seq))
        else:
            fields = [name for name, a, b in zip(COLUMNS, row, right, strict=True) if a != b]
            self._found(f"catalog of tenant {account}: memory {seq} differs from the ledger ({', '.join(fields)})")

    def finish(self, positions: Mapping[str, int], deleted: Collection[str], *, counted: bool) -> None:
        """At the ledger's end. `positions`: where the ledger of each tenant ends. `deleted`: accounts that may have no catalog.
        `counted`: every block was seen.
        """
        self.compare()
        for account in self._missing:
            if account not in deleted:
                self._found(f"catalog of tenant {account}: it is missing; the next start makes it anew")
        for account in deleted:
            if self._open.get(account) is not None:
                self._found(f"catalog of tenant {account}: it is there, though the tenant was deleted; the next start removes it")
        for account, catalog in self._open.items():
            self._strange(account)
            if catalog is None:
                continue
            at, end = catalog.file.position, positions.get(account, 0)
            if at is not None and at.tenant_seq > end and counted:
                self._found(f"catalog of tenant {account}: it has applied event {at.tenant_seq}, the ledger ends at {end}")
            elif at is not None and counted:
                memories, citations, checksum = catalog.file.counts(at.tenant_seq)
                if memories != catalog.memories:
                    self._found(f"catalog of tenant {account}: {memories} memories, the ledger has {catalog.memories}")
                if (citations, checksum) != (catalog.citations, catalog.checksum):
                    self._found(f"catalog of tenant {account}: its {citations} citations differ from the ledger")
            catalog.file.close()

    def _strange(self, account: str) -> None:
        """Files beside the catalog that the gatekeeper doesn't make, such as an index from elsewhere. Nothing reads them, and
        nothing erases in them.
        """
        catalog = self._paths.catalog(account)
        made = {catalog.with_name(catalog.name + suffix) for suffix in COMPANIONS}
        for folder, _, names in os.walk(catalog.parent) if not self._elsewhere else ():
            for path in sorted({Path(folder, name) for name in names} - made):
                beside = repr(str(path.relative_to(catalog.parent)))  # whoever made it may have called it anything
                self._found(f"catalog of tenant {account}: {beside} beside it isn't the gatekeeper's; nothing reads it")


# --- lineage ----------------------------------------------------------------------------------------
class Store(Protocol):
    """The lineage store, wherever it is. `rows`: of the query that `table` names, with bounds; and where it stood."""

    async def rows(self, account: str, table: str, part: int, bounds: Mapping[str, int]) -> tuple[Rows, int, int]: ...


class StoreFile:
    """The file itself, while no gatekeeper has it open."""

    def __init__(self, file: LineageFile) -> None:
        self._file = file

    async def rows(self, account: str, table: str, part: int, bounds: Mapping[str, int]) -> tuple[Rows, int, int]:
        params = {**bounds, "tenant": self._file.numbers.get(account, -1), "part": part, "before": bounds["until"]}
        found = self._file.query(query_name(table), params)
        at = self._file.positions
        return [[plain(x) for x in row] for row in found], at["LEDGER"], at["READS"]


class Lineage:
    def __init__(self, store: Store, expected: Expected, found: Found, *, pruned: bool) -> None:
        self._store, self._expected, self._found, self._pruned = store, expected, found, pruned

    async def query(self, name: str, params: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """`newest_read`, for ReadsFront."""
        before = params["before"]
        assert isinstance(before, int)
        rows, _, _ = await self._store.rows("", name, 0, {"until": before})
        return [tuple(row) for row in rows]

    async def compare(self) -> None:
        for account, t in self._expected.tenants.items():
            if account not in self._expected.torn:
                await self._tenant(account, t.position)

    async def _tenant(self, account: str, position: int) -> None:
        x = self._expected
        # READS that were pruned by age: what is older is in the store alone.
        since = (x.oldest_read_ms // MINUTE_MS + 1) * MINUTE_MS if self._pruned else 0
        bounds = {"upto": position, "ledger": x.ledger_seq, "since": since, "until": FOREVER}
        rows, ledger, reads = await self._store.rows(account, "", 0, bounds)
        if (ledger, reads) != (x.ledger_seq, x.reads_seq):  # it goes on serving
            bounds["until"] = (x.newest_ms - MOVING_MS) // MINUTE_MS * MINUTE_MS
            rows, _, _ = await self._store.rows(account, "", 0, bounds)
        there = {(str(name), part): (count, str(digest)) for name, part, count, digest in rows}
        right = {(name, part): (count, str(digest)) for name, part, count, digest in self._mine(account, "", 0, bounds)}
        wrong: dict[str, list[int]] = {}
        for table, part in sorted(k for k in there.keys() | right.keys() if there.get(k) != right.get(k)):
            wrong.setdefault(table, []).append(part)
        for table, parts in wrong.items():
            for part in parts[:SHOWN_PARTS]:
                await self._rows(account, table, part, bounds)
            if len(parts) > SHOWN_PARTS:
                self._found(f"lineage store of tenant {account}: {table} differs in {len(parts) - SHOWN_PARTS} more places")

    def _mine(self, account: str, table: str, part: int, bounds: Mapping[str, int]) -> list[tuple[Any, ...]]:
        params = {**bounds, "tenant": self._expected.number(account), "part": part}
        return self._expected.store.query(query_name(table), params)

    async def _rows(self, account: str, table: str, part: int, bounds: Mapping[str, int]) -> None:
        found, _, _ = await self._store.rows(account, table, part, bounds)
        there = [tuple(map(str, row)) for row in found]
        right = [tuple(str(plain(x)) for x in row) for row in self._mine(account, table, part, bounds)]
        left, extra = list(right), []
        for row in there:
            left.remove(row) if row in left else extra.append(row)
        where = f"lineage store of tenant {account}: {table}"
        for what, rows in (("is missing", left), ("isn't in the ledger", extra)):
            for row in rows[:SHOWN_ROWS]:
                self._found(f"{where}: row ({', '.join(row)}) {what}")
            if len(rows) > SHOWN_ROWS:
                self._found(f"{where}: {len(rows) - SHOWN_ROWS} more rows: each {what}")


Ask = Callable[..., Awaitable[dict[str, Any]]]


class StoreAsked:
    """Through the gatekeeper that has it open."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def rows(self, account: str, table: str, part: int, bounds: Mapping[str, int]) -> tuple[Rows, int, int]:
        answer = await self._ask(what="lineage", account=account, table=table, part=part, **bounds)
        return answer["rows"], answer["ledger_seq"], answer["reads_seq"]
