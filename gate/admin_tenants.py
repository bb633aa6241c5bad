"""A tenant's end in the control plane: its export a page at a time, and its deletion.

Invariants: a page is bounded in bytes; what is exported is what the ledger's projections hold, no more (an erased text is gone);
a deletion is one event, after which nothing of the tenant is in memory or in its files, and its name and account stay used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from bus.frames import CLASSIFICATIONS, KINDS, METHODS, ORIGINS, SCOPES, SENSITIVITIES, AdmTenant, Done
from gate import ids
from gate.admin_projects import ADMIN, checked_message, shown
from gate.ledger import events as E
from gate.projections.catalog import MemoryRow
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.state.cases import CaseState
from gate.state.columns import NEVER_MS, REVIEWS
from gate.state.erasures import LegalHold
from gate.state.tenant import Tenant
from gate.writing.sequencer import noted

if TYPE_CHECKING:
    from gate.shard import Shard

PAGE_BYTES: Final = 512 << 10  # of lines; the longest single one is a memory of 64 KiB, six times that as JSON
PAGE_ROWS: Final = 200  # 10 ms of the loop
Line = dict[str, Any]
_size: Final = msgspec.json.Encoder().encode


class Tenants:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    # --- export -----------------------------------------------------------------------------------
    async def export(self, t: Tenant, req: AdmTenant) -> Done:
        """A page of `req.what` from `req.cursor` on: {lines, next (None = the last), position, chain, legal_holds (in force)}."""
        lines = await self._memories(t, req.cursor) if req.what == "memories" else _lines(t, req.what, req.cursor)
        page: list[Line] = []
        size, last, following = 0, -1, None
        for at, line in lines:
            size += len(_size(line))
            if page and at != last and (size > PAGE_BYTES or len(page) >= PAGE_ROWS):
                following = at
                break
            page.append(line)
            last = at
        head = self.shard.heads.head(t.account)
        held = len(_legal_holds(t))
        result = {"lines": page, "next": following, "position": t.position, "chain": head.hash.hex(), "legal_holds": held}
        return Done(request_id=req.request_id, result=result, position=t.position)

    async def _memories(self, t: Tenant, cursor: int) -> Iterator[tuple[int, Line]]:
        catalog = self.shard.indexes[t.account].catalog
        rows = await self.shard.index.call(catalog.after, cursor - 1, PAGE_ROWS + 1)
        now_ms = self.shard.now_ms()
        return ((row.seq, _memory(t, row, now_ms)) for row in rows)

    # --- deletion ---------------------------------------------------------------------------------
    async def delete(self, t: Tenant, req: AdmTenant) -> Done:
        """End the tenant at exactly `req.position`: what came after its export would be lost unseen. Repeating it is harmless."""
        message = checked_message(req.message)
        if not t.deleted:

            async def run() -> None:
                if _legal_holds(t):
                    raise Refused("tenant_legally_held")
                if t.position != req.position:
                    raise Refused("tenant_moved", field="position")
                now_ms = self.shard.now_ms()
                event = noted(
                    lambda body: E.TenantChanged(
                        ms=now_ms, state="deleted", by=req.by or ADMIN, exported=req.exported, body=body
                    ),
                    message,
                    os.urandom(E.SALT_BYTES),
                )
                await self.shard.sequencer.commit(t, [event])
                await self.shard.drop_tenant(t)

            await self.shard.operators.barrier(t, run)
        gone = self.shard.tenants[t.account]
        return Done(request_id=req.request_id, result={"name": gone.name, "state": "deleted"}, position=gone.position)


def _legal_holds(t: Tenant) -> list[LegalHold]:
    """Those in force."""
    return [hold for hold in t.legal_holds.values() if not hold.lifted_ms]


def _lines(t: Tenant, what: str, cursor: int) -> Iterator[tuple[int, Line]]:
    """(where a page can begin again, line) of everything but memories, from `cursor` on."""
    match what:
        case "lineage":
            return ((s, line) for s in range(max(1, cursor), t.columns.n) for line in _edges(t, s))
        case "cases":
            return enumerate((_case(t, k) for k in list(t.cases.values())[cursor:]), cursor)
        case "members":
            return _members(t, cursor)
        case "projects":
            return enumerate((shown(t, p) for p in list(t.projects.values())[cursor:]), cursor)
        case "agents":
            return ((n, _agent(t, n)) for n in range(cursor, len(t.agents.all)))
    raise Refused("bad_field", field="what")


def _memory(t: Tenant, row: MemoryRow, now_ms: int) -> Line:
    e, c, s = E.decode_memory(row.meta), t.columns.at, row.seq
    if c.erased[s]:  # its text may still be in the catalog for a moment
        row = MemoryRow(s, row.meta, "", (), "", "", "", "", "")
    return {
        "id": t.memory_id(s), "position": s, "project": e.project, "kind": KINDS[e.kind], "content": row.content,
        "scope": SCOPES[e.scope], "scope_id": row.scope_id, "user": e.user, "evidence": list(row.evidence),
        "agent": ids.text("agt_", e.agent), "key": e.key, "role": e.role, "chain": [ids.text("agt_", x) for x in e.chain],
        "origin": ORIGINS[e.origin], "method": METHODS[e.method], "trust": e.trust / 1000, "trust_effective": c.eff[s] / 1000,
        "trust_floor": e.floor / 1000, "classification": CLASSIFICATIONS[e.class_], "sensitivity": SENSITIVITIES[e.sens],
        "opt_out": e.opt_out, "readers": e.readers, "compartments": list(e.comp), "state": t.current(s, now_ms),
        "review": REVIEWS[c.review[s]], "holds": list(e.holds), "reasons": list(e.reasons), "run": row.run, "task": row.task,
        "session": row.session, "trace_id": row.trace_id, "written_at": rfc3339(e.ms),
        "expires_at": rfc3339(c.expires[s]) if c.expires[s] < NEVER_MS else None,
        "supersedes": t.memory_id(e.supersedes) if e.supersedes else None,
        "promotes": t.memory_id(e.promotes) if e.promotes else None, "context": ids.text("ctx_", e.ctx), "epoch": e.epoch,
    }  # fmt: skip


def _edges(t: Tenant, s: int) -> list[Line]:
    return [
        {
            "from": t.memory_id(e.node), "to": t.memory_id(s), "kind": E.EDGE_KINDS[e.kind],
            "confidence": round(e.confidence / 255, 2),
        }
        for e in t.up.edges_of(s)
    ]  # fmt: skip


def _case(t: Tenant, k: CaseState) -> Line:
    agents = t.agents.all
    return {
        "case": k.text, "state": k.state, "by": agents[k.agent].name, "person": k.person, "why": k.why, "roots": len(k.roots),
        "members": len(k.all_members()), "opened_at": rfc3339(k.opened_ms),
        "released_at": rfc3339(k.released_ms) if k.released_ms else None, "told": len(k.told), "acked": len(k.acked),
    }  # fmt: skip


def _members(t: Tenant, cursor: int) -> Iterator[tuple[int, Line]]:
    """Members of all cases in one row, numbered through."""
    at = 0
    for k in t.cases.values():
        members = np.sort(k.all_members())
        if at + len(members) > cursor:
            roots = set(k.roots)
            for s in members[max(0, cursor - at) :].tolist():
                yield max(at, cursor), {"case": k.text, "memory": t.memory_id(s), "root": s in roots}
                cursor = max(at, cursor) + 1
        at += len(members)


def _agent(t: Tenant, number: int) -> Line:
    a = t.agents.all[number]
    return {
        "agent_id": a.text, "name": a.name, "role": a.role, "keys": list(a.keys), "projects": list(a.projects),
        "person": a.person, "state": "revoked" if a.whole else "active",
    }  # fmt: skip
