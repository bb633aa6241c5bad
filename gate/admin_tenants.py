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
from gate.config import PLAN_MS
from gate.erasure.requests import LISTED_MAX, WAIT_S, stores_of
from gate.ledger import events as E
from gate.projections.catalog import MemoryRow
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.state.cases import CaseState
from gate.state.columns import NEVER_MS, REVIEWS
from gate.state.erasures import LegalHold
from gate.state.tenant import Tenant
from gate.writing.sequencer import Stored, noted

if TYPE_CHECKING:
    from gate.shard import Shard

PAGE_BYTES: Final = 512 << 10  # of lines; the longest single one is a memory of 64 KiB, six times that as JSON
PAGE_ROWS: Final = 200  # 10 ms of the loop
Line = dict[str, Any]
_size: Final = msgspec.json.Encoder().encode


class _Asked(msgspec.Struct, frozen=True):
    """Who asked for a tenant's deletion that an open case stands against, until when that counts, and who agreed."""

    by: str
    until_ms: int
    second: str = ""


_NOBODY: Final = _Asked("", 0)


class Tenants:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._asked: dict[str, _Asked] = {}  # by account; of this process's time, for whoever asked can ask again

    # --- export -----------------------------------------------------------------------------------
    async def export(self, t: Tenant, req: AdmTenant) -> Done:
        """A page of `req.what` from `req.cursor` on: {lines, next (None = the last), position, chain, and how many legal_holds
        and open_cases stand against its deletion}.
        """
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
        result = {"lines": page, "next": following, "position": t.position, "chain": head.hash.hex()}
        result |= {"legal_holds": len(_legal_holds(t)), "open_cases": len(_open_cases(t))}
        return Done(request_id=req.request_id, result=result, position=t.position)

    async def _memories(self, t: Tenant, cursor: int) -> Iterator[tuple[int, Line]]:
        catalog = self.shard.indexes[t.account].catalog
        rows = await self.shard.index.call(catalog.after, cursor - 1, PAGE_ROWS + 1)
        now_ms = self.shard.now_ms()
        return ((row.seq, _memory(t, row, now_ms)) for row in rows)

    # --- deletion ---------------------------------------------------------------------------------
    def consent(self, t: Tenant, req: AdmTenant) -> Done:
        """Ask for the deletion of a tenant that open cases hold memories of, or agree to what somebody else asked for."""
        by, asked = req.by or ADMIN, self._asked.get(t.account)
        now_ms = self.shard.now_ms()
        if asked is None or now_ms >= asked.until_ms:
            asked = self._asked[t.account] = _Asked(by, now_ms + PLAN_MS)
        if asked.by == by:
            cases = [k.text for k in _open_cases(t)]
            raise Refused("tenant_contested", detail={"cases": cases[:LISTED_MAX], "cases_count": len(cases), "asked_by": by})
        self._asked[t.account] = msgspec.structs.replace(asked, second=by)
        return Done(request_id=req.request_id, result={"asked_by": asked.by, "second": by}, position=t.position)

    async def delete(self, t: Tenant, req: AdmTenant) -> Done:
        """End the tenant at exactly `req.position`: what came after its export would be lost unseen. All its texts are erased
        with it. Repeating it is harmless, and says how far that is: the receipt.
        """
        message = checked_message(req.message)
        if not t.deleted:

            async def run() -> None:
                if _legal_holds(t):
                    raise Refused("tenant_legally_held")
                asked = self._asked.get(t.account, _NOBODY)
                if _open_cases(t) and not asked.second:
                    raise Refused("tenant_contested")
                if t.position != req.position:
                    raise Refused("tenant_moved", field="position")
                await self.shard.sequencer.commit(t, [self._end(t, req, asked, message)])
                await self.shard.drop_tenant(t)

            await self.shard.operators.barrier(t, run)
            self._asked.pop(t.account, None)
            self.shard.erasures.wake.set()
        gone = self.shard.tenants[t.account]
        if gone.end is not None:
            await self.shard.erasures.done(gone.end, WAIT_S)
        return Done(request_id=req.request_id, result=self._receipt(gone), position=gone.position)

    def _end(self, t: Tenant, req: AdmTenant, asked: _Asked, message: str) -> Stored:
        now_ms, c = self.shard.now_ms(), t.columns
        memories = int(np.count_nonzero((c.kind[: c.n] >= 0) & (c.erased[: c.n] == 0)))

        def event(body: bytes) -> E.AnyEvent:
            return E.TenantChanged(
                ms=now_ms,
                state="deleted",
                by=(asked.second and asked.by) or req.by or ADMIN,
                second=asked.second,
                exported=req.exported,
                erasure=ids.new_raw(now_ms),
                memories=memories,
                body=body,
            )

        return noted(event, message, os.urandom(E.SALT_BYTES))

    def _receipt(self, gone: Tenant) -> dict[str, Any]:
        """Of a deleted tenant: {name, state, and of its erasure id, state, by, second, why, memories, stores …}."""
        result: dict[str, Any] = {"name": gone.name, "state": "deleted"}
        if (e := gone.end) is None:  # by a version that didn't erase
            return result
        return result | {
            "erasure": {
                "erasure": e.text,
                "state": "done" if e.done_ms else "erasing",
                "by": e.person,
                "second": e.second,
                "why": e.why,
                "count": e.count,
                "stores": msgspec.to_builtins(stores_of(e)),
                "pending": [] if e.done_ms else self.shard.erasures.pending(e),
                "out_of_reach": self.shard.erasing.out_of_reach(),
                "erased_at": rfc3339(e.ms),
                "done_at": rfc3339(e.done_ms) if e.done_ms else None,
            }
        }


def _open_cases(t: Tenant) -> list[CaseState]:
    """Those that hold something."""
    return [case for case in t.cases.values() if case.holding]


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
