"""Why a memory is as it is, or why a recall served what it did: the answer to `cordon why`, facts and sentences.

Full records in the operator's own projects, only counts elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bus.frames import (
    CLASSIFICATIONS,
    DECISIONS,
    INTENTS,
    KINDS,
    ORIGINS,
    RISKS,
    Edge,
    Why,
    WhyAnswer,
)
from bus.limits import PAGE_ITEMS_MAX
from gate import ids
from gate.containment.selection import resolve
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.events import decode_memory
from gate.lifecycle.ends import ENDED_BECAUSE, ended_by
from gate.reading import policy
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import code_here, counted_rows, decide, has_project, labels_here, visible_rows
from gate.state.columns import NEVER_MS, REVIEWS
from gate.state.tenant import Tenant

if TYPE_CHECKING:
    from gate.shard import Shard

READS_SHOWN: Final = 20


class Whys:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    async def answer(self, p: Principal, req: Why) -> WhyAnswer:
        """Raises Refused."""
        if req.id.startswith("rec_"):
            return await self._recall(p, req)
        t, c = p.tenant, p.tenant.columns
        s = resolve(p, req.id)
        row = (await self.shard.index.call(self.shard.indexes[t.account].catalog.fetch, [s])).get(s)
        if row is None:
            raise Refused("memory_unknown", field="id")
        e = decode_memory(row.meta)
        await self.shard.store_caught_up()
        reads = await self.shard.lineage.query(
            "exposure",
            {"tenant": self.shard.tenant_number(t), "memories": [s], "quarantine": policy.QUARANTINE, "most": READS_SHOWN},
        )
        cases = [k for k in t.cases.values() if s in k]
        if req.reveal:
            self.shard.audit(p, "reveal", memory=s)
        agent = t.agents.by_id[e.agent]
        facts: dict[str, Any] = {
            "state": t.current(s, self.shard.now_ms()),
            "project": e.project,
            "kind": KINDS[e.kind],
            "origin": ORIGINS[e.origin],
            "origin_claimed": ORIGINS[e.origin_claimed] if e.origin_claimed >= 0 else None,
            "trust_stamped": e.trust / 1000,
            "trust_effective": int(c.eff[s]) / 1000,
            "trust_floor": e.floor / 1000,
            "classification": CLASSIFICATIONS[e.class_],
            "actor": {
                "id": agent.text,
                "name": agent.name,
                "key": e.key,
                "role": e.role,
                "chain": [ids.text("agt_", x) for x in e.chain],
            },
            "written_at": rfc3339(e.ms),
            "sourceless": e.nosrc,
            "holds": [code_here(p, code) for code in e.holds],
            "reasons": list(e.reasons),
            "review": REVIEWS[int(c.review[s])],
            "compartments": (mine := labels_here(p, e.comp)),
            "compartments_elsewhere": len(e.comp) - len(mine),
            "context": {"id": ids.text("ctx_", e.ctx), "epoch": e.epoch, "recalls_before": e.ctx_seq},
            "redactions": [r[0] for r in e.red],
            "superseded_by": t.memory_id(int(c.superseded[s])) if c.superseded[s] and decide(p, int(c.superseded[s])) else None,
            "exposed": (exposed := cases_seen(p, e.exposed))[-PAGE_ITEMS_MAX:],
            "exposed_count": len(exposed),
            "promotes": t.memory_id(e.promotes) if e.promotes and decide(p, e.promotes) else None,
            "promoted_as": t.memory_id(t.promoted[s]) if s in t.promoted and decide(p, t.promoted[s]) else None,
            "expires_at": rfc3339(int(c.expires[s])) if c.expires[s] < NEVER_MS else None,
            "ended": ended_by(t, s),
            "erased_at": rfc3339(int(c.erased[s])) if c.erased[s] else None,
            "erasures": [x.text for x in t.erasures.values() if s in x.members],
            "legal_holds": (legal := [h.text for h in t.legal_holds.values() if not h.lifted_ms and s in h.members])[
                -PAGE_ITEMS_MAX:
            ],
            "legal_holds_count": len(legal),
        }
        return WhyAnswer(
            agent=p.key,
            request_id=req.request_id,
            project=e.project,
            id=t.memory_id(s),
            kind="memory",
            facts=facts,
            sentences=_sentences(p, e, facts, [k.text for k in cases if k.holding], len(reads)),
            parents=[edge(t, x.parent, s, x.kind, x.confidence) for x in e.edges if decide(p, x.parent)],
            reads=[self._read(p, r) for r in reads],
            cases=[k.text for k in cases[-PAGE_ITEMS_MAX:]],
            cases_count=len(cases),
            content=row.content if req.reveal and not c.erased[s] else None,
            position=t.position,
        )

    def _read(self, p: Principal, r: tuple[Any, ...]) -> dict[str, Any]:
        """A row of the query `exposure`. Of a project that borrows the memory only is told that it was read there."""
        ms, recall, agent, project, verb, intent, risk, _, decision, reasons, withdrawn = r
        known, here = p.tenant.agents.by_id.get(bytes(agent)), has_project(p, project)
        return {
            "recall": ids.text("rec_", bytes(recall)) if here else "",
            "agent": known.name if known and here else "",
            "project": project if here else "",
            "elsewhere": not here,
            "at": rfc3339(ms),
            "verb": verb,
            "intent": INTENTS[intent],
            "risk": RISKS[risk],
            "decision": DECISIONS[decision],
            "reasons": policy.codes(reasons),
            "withdrawn": withdrawn,
        }

    async def _recall(self, p: Principal, req: Why) -> WhyAnswer:
        t = p.tenant
        raw = ids.raw(req.id)
        await self.shard.store_caught_up()
        rows = await self.shard.lineage.query("decisions", {"tenant": self.shard.tenant_number(t), "recall": raw}) if raw else []
        number = self.shard.tenant_number(t)
        known = await self.shard.lineage.query("recall", {"tenant": number, "recall": raw}) if rows else []
        project = str(known[0][2]) if known else ""
        counted = set(counted_rows(p, np.array([row[0] for row in rows], np.int32)).tolist())
        rows = [row for row in rows if row[0] in counted]
        if not has_project(p, project):  # of a recall elsewhere: what it was lent of this operator's projects
            rows = [row for row in rows if decide(p, row[0])]
        if not rows:
            raise Refused("recall_unknown", field="id")
        shown = [
            {
                "memory": t.memory_id(seq),
                "decision": DECISIONS[decision],
                "reasons": (found := policy.codes(reasons)),
                "sentences": [policy.SENTENCES[x] for x in found],
                "withdrawn": withdrawn,
            }
            for seq, decision, reasons, withdrawn in rows
            if decide(p, seq)
        ]
        served = sum(1 for _, decision, _, withdrawn in rows if decision < policy.QUARANTINE and not withdrawn)
        return WhyAnswer(
            agent=p.key,
            request_id=req.request_id,
            id=req.id,
            kind="recall",
            facts={"decided": len(rows), "served": served, "elsewhere": len(rows) - len(shown)},
            sentences=[_served_sentence(served, len(rows))],
            reads=shown,
            position=t.position,
        )


def _share(confidence: int) -> float:
    return round(confidence / 255, 2)


def edge(t: Tenant, parent: int, child: int, kind: int, confidence: int) -> Edge:
    """`confidence`: of 255."""
    return Edge(from_=t.memory_id(parent), to=t.memory_id(child), kind=E.EDGE_KINDS[kind], confidence=_share(confidence))


def cases_seen(p: Principal, cases: Iterable[bytes]) -> list[str]:
    """Those with a member that this operator may see."""
    known = p.tenant.cases
    return [known[x].text for x in sorted(cases) if x in known and visible_rows(p, known[x].all_members())]


def _served_sentence(served: int, decided: int) -> str:
    candidates = f"{decided} candidate{'' if decided == 1 else 's'}"
    was, left = ("was" if n == 1 else "were" for n in (served, decided - served))
    return f"{served} of {candidates} {was} served; {decided - served} {left} withheld."


def _sentences(p: Principal, e: E.MemoryWritten, facts: dict[str, Any], cases: list[str], reads: int) -> list[str]:
    """What happened to this memory, as a person would say it. No agent text in it, and of what is elsewhere only how much."""
    agent = facts["actor"]["name"]
    above = "".join(f", delegated by {p.tenant.agents.by_id[x].name}" for x in reversed(e.chain))
    who = f"{agent}{above}," if above else agent
    out = [f"Agent {who} wrote it on {facts['written_at']} into project {e.project}; the broker vouches for the agent."]
    edges = [x for x in e.edges if decide(p, x.parent)]
    if edges:
        kinds = [E.EDGE_KINDS[x.kind] for x in edges]
        said = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
        trust = min(int(p.tenant.columns.eff[x.parent]) for x in edges) / 1000
        out.append(
            f"It derives from {len(edges)} memories ({said}); the least trusted of them has trust {trust:g}."
            if len(edges) > 1
            else f"It derives from 1 memory ({said}), which has trust {trust:g}."
        )
    if len(e.edges) > len(edges):
        out.append(f"It derives from {len(e.edges) - len(edges)} elsewhere.")
    if not e.edges:
        out.append("It derives from nothing that its writer was served here.")
    source = "names no source" if e.nosrc else "names a source"
    out.append(f"Its trust is {facts['trust_stamped']:g}: origin {facts['origin']}, it {source}.")
    out += [f"It was held at write: {code}." for code in facts["holds"]]
    if cases:
        out.append(f"It is held by {len(cases)} open case{'s' if len(cases) > 1 else ''}.")
    if facts["erased_at"] and p.tenant.partial and not facts["erasures"]:
        out.append("Its text was left out of this restored part: who wrote it, its labels and what came of it are here.")
    elif facts["erased_at"]:
        out.append(f"Its text was erased on {facts['erased_at']}: who wrote it, its labels and what came of it stay.")
    if facts["promotes"]:
        out.append("It is what a task learnt, promoted into the project.")
    if facts["ended"]:
        out.append(f"It expired before its time, on {facts['ended']['at']}: {ENDED_BECAUSE[facts['ended']['why']]}.")
    if facts["superseded_by"]:
        out.append("A newer memory supersedes it.")
    out.append(
        f"It was decided on in {reads if reads < READS_SHOWN else f'at least {READS_SHOWN}'} recall{'s' if reads > 1 else ''}."
        if reads
        else "No recall has come upon it."
    )
    return out
