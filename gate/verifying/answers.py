"""The gatekeeper's side of a verification: what it is asked while it serves, each answer made in a moment.

Invariant: the loop does no more than copy what may still change; digests are made on other threads, vectors on the index thread.
Nothing here decides whether anything is right: `gate.verifying.live` compares, in another process.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from bus.frames import AdmVerify
from gate.refusals import Refused
from gate.state.cases import CaseState
from gate.state.columns import Columns
from gate.state.contexts import Context
from gate.state.tenant import Tenant
from gate.verifying.vectors import PART_ROWS, digest

if TYPE_CHECKING:
    from gate.shard import Shard

PAGE: Final = 500  # cases and contexts in an answer
# What later events may change: copied on the loop, so that all of it is of one position.
MOVING: Final = ("eff", "held", "superseded", "superseded_ms", "review", "erased", "body", "expires", "ended")
STAMPED: Final = tuple(name for name in Columns._TYPES if name not in MOVING)

Arrays = Mapping[str, npt.NDArray[Any]]


class Answers:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    async def answer(self, req: AdmVerify) -> dict[str, Any]:
        """Raises Refused."""
        if req.what == "positions":
            return await self._positions()
        if req.table == "newest_read":
            return await self._lineage(-1, req)
        t = self.shard.tenants.get(req.account)
        if t is None:
            raise Refused("tenant_unknown", field="account")
        match req.what:
            case "state":
                return await self._state(t)
            case "rows":
                return live_rows(t, max(req.first, 0), req.first + PART_ROWS)
            case "cases":
                return _page(t.cases, req.first, case_facts)
            case "contexts":
                return _page(t.contexts, req.first, context_facts)
            case "vectors":
                return await self._vectors(t, req.part)
            case "lineage":
                return await self._lineage(self.shard.tenant_number(t), req)

    async def _positions(self) -> dict[str, Any]:
        """How far everything is; catalogs are committed up to there, so that another process sees their rows."""
        s = self.shard
        ledger, reads = s.ledger_seq, s.reads_seq
        tenants = {account: t.position for account, t in s.tenants.items()}
        for index in list(s.indexes.values()):
            await s.index.call(index.catalog.commit)
        failed = str(s.lineage.failed) if s.lineage.failed else ""
        return {
            "ledger_seq": ledger,
            "reads_seq": reads,
            "tenants": tenants,
            "encoder": s.admission.embedder.id,
            "lineage_failed": failed,
            "broken": {account: t.broken for account, t in s.tenants.items() if t.broken},
        }

    async def _state(self, t: Tenant) -> dict[str, Any]:
        s, n = self.shard, t.columns.n
        moving = {name: getattr(t.columns, name)[:n].copy() for name in MOVING}
        stamped = {name: getattr(t.columns, name)[:n] for name in STAMPED}
        edges = edges_of(t)
        about = {**tenant_facts(t), "ledger_seq": s.ledger_seq, "reads_seq": s.reads_seq}
        return {**about, **await asyncio.to_thread(digests, stamped, moving, edges)}

    async def _vectors(self, t: Tenant, project: int) -> dict[str, Any]:
        index = self.shard.indexes[t.account].projects.get(project)
        parts = []
        for first in range(0, index.n if index else 0, PART_ROWS):
            assert index is not None
            rows = np.arange(first, min(first + PART_ROWS, index.n), dtype=np.int32)
            parts.append(await self.shard.index.call(lambda r=rows: digest([index.vectors.gather(r)])))  # type: ignore[misc]
        return {"parts": parts, "rows": index.n if index else 0}

    async def _lineage(self, tenant: int, req: AdmVerify) -> dict[str, Any]:
        """Digests of the store's rows, or what `table` names."""
        s = self.shard
        await s.store_caught_up()
        ledger, reads = s.ledger_seq, s.reads_seq
        bounds = {name: getattr(req, name) for name in ("upto", "ledger", "since", "until", "part")}
        rows = await s.lineage.query(query_name(req.table), {**bounds, "tenant": tenant, "before": req.until})
        return {"rows": [[plain(x) for x in row] for row in rows], "ledger_seq": ledger, "reads_seq": reads}


def query_name(table: str) -> str:
    """The named query behind a `table` of AdmVerify."""
    return {"": "digests", "newest_read": "newest_read"}.get(table, f"rows_{table}")


def plain(x: object) -> object:
    """A value of the lineage store as JSON takes it; sums of hashes are beyond its integers."""
    if isinstance(x, bytes):
        return x.hex()
    return str(x) if isinstance(x, int) and abs(x) >= 1 << 53 else x


# --- facts of a tenant, on either side ------------------------------------------------------------------
def tenant_facts(t: Tenant) -> dict[str, Any]:
    """What can be said at once. `pending`: a hold is in force that the ledger hasn't yet, so `held` may be ahead of it."""
    agents = [(a.id.hex(), a.name, a.role, a.keys, a.projects, a.root, sorted(a.revoked), a.whole) for a in t.agents.all]
    projects = [(p.name, p.number, p.state, repr(p.settings), p.rows) for p in t.projects.values()]
    return {
        "position": t.position,
        "memories": t.memories,
        "bytes": t.bytes,
        "edges": t.down.edges,
        "agents": _short(repr(agents)),
        "projects": _short(repr(projects)),
        "idempotency_keys": len(t.idem),
        "suspended": t.suspended,
        "ends": _short(repr([(x.id.hex(), x.ms, x.resumed_ms) for x in t.ends.values()])),
        "promoted": len(t.promoted),
        "turns": len(t.turns),
        "pending": any(c.state == "pending" for c in t.cases.values()),
    }


def edges_of(t: Tenant) -> dict[str, npt.NDArray[Any]]:
    """In the order of the ledger. An edge that is there never changes, so nothing is copied."""
    n, down, up = t.down.edges, t.down._links, t.up._links
    return {"child": down.to[:n], "parent": up.to[:n], "kind": down.kind[:n], "confidence": down.confidence[:n]}


def digests(stamped: Arrays, moving: Arrays, edges: Arrays) -> dict[str, list[str]]:
    """A digest of each PART_ROWS rows of each group."""
    return {"stamped": _parts(stamped), "facts": _parts(moving), "edge_parts": _parts(edges)}


def _parts(arrays: Arrays) -> list[str]:
    n = len(next(iter(arrays.values())))
    out = []
    for first in range(0, n, PART_ROWS):
        h = hashlib.blake2b(digest_size=16)
        for array in arrays.values():
            h.update(np.ascontiguousarray(array[first : first + PART_ROWS]).data)
        out.append(h.hexdigest())
    return out


def live_rows(t: Tenant, first: int, last: int) -> dict[str, Any]:
    """Columns of events `first` to `last` (exclusive), and the edges with those numbers."""
    n = t.columns.n
    rows = {name: getattr(t.columns, name)[first : min(last, n)].tolist() for name in Columns._TYPES}
    return {"position": t.position, "columns": rows, "edges": {k: v[first:last].tolist() for k, v in edges_of(t).items()}}


def case_facts(c: CaseState) -> dict[str, Any]:
    members = np.sort(c.all_members()).astype("<i4").tobytes()
    return {"state": c.state, "members": len(members) // 4, "digest": _short(members.hex())}


def context_facts(c: Context) -> dict[str, Any]:
    """`labels` as bus's Joined, in its order; `exposed` are open cases."""
    joined = c.labels.joined()
    return {
        "epoch": c.epoch,
        "recalls": c.recalls,
        "labels": [joined.floor, joined.origin, joined.class_, joined.sens, joined.opt_out, joined.comp],
        "served": len(c.served),
        "exposed": sorted(x.hex() for x in c.exposed),
    }


def _page(found: Mapping[bytes, Any], first: int, facts: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    keys = list(found)[max(first, 0) : max(first, 0) + PAGE]
    return {"of": len(found), "items": {key.hex(): facts(found[key]) for key in keys}}


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
