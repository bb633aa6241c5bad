"""Answers to operators' questions: why, trace, case, context, stats. Full records in their own projects, only counts
elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from bus.frames import (
    CLASSIFICATIONS,
    DECISIONS,
    INTENTS,
    KINDS,
    ORIGINS,
    RISKS,
    Case,
    CaseQuery,
    Cases,
    ContextAnswer,
    ContextRequest,
    Edge,
    Erase,
    ErasureQuery,
    Frame,
    Hold,
    LegalHoldRequest,
    Member,
    Prune,
    Release,
    Review,
    Stats,
    StatsRequest,
    Trace,
    TraceAnswer,
    Why,
    WhyAnswer,
)
from bus.limits import MESSAGE_CHARS_MAX, PAGE_ITEMS_MAX
from gate import ids
from gate.containment.holds import Held
from gate.containment.plans import counted_of, seen_of
from gate.containment.selection import known_agent, resolve
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.errors import LedgerFull
from gate.ledger.events import decode_memory
from gate.lifecycle.ends import ENDED_BECAUSE, SESSION, end_events, ended_by, of_session
from gate.pages import Page, following
from gate.reading import policy
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import code_here, decide, has_project, labels_here, shares_project, visible_rows
from gate.state.columns import NEVER_MS, REVIEWS
from gate.state.compartments import MANY
from gate.state.contexts import Context
from gate.state.tenant import Tenant
from gate.writing.redact import redact
from gate.writing.sequencer import Operation, noted
from gate.writing.validate import text_ok

if TYPE_CHECKING:
    from gate.shard import Shard

READS_SHOWN: Final = 20
CASES_MAX: Final = 100  # of a page, which may be full before
STATS_ROWS: Final = 1 << 15  # counted at once: about 2 ms
SELECTOR_MAX: Final = 64
HOPS_MAX: Final = 1_000_000


class Operators:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    async def answer(self, p: Principal, req: Frame) -> Frame:
        """The answer to one operator request. Raises Refused."""
        if isinstance(req, Hold | Release | Review | ContextRequest | Erase | LegalHoldRequest | Prune):
            req = msgspec.structs.replace(req, message=_checked_message(req.message))
        match req:
            case Hold():
                return await self._hold(p, req)
            case Release():
                released = await self.barrier(p.tenant, lambda: self.shard.holds.release(p, req.case, req.message))
                return await self.shard.holds.shown(p, released, req.request_id)
            case Review():
                await self.barrier(p.tenant, lambda: self.shard.holds.review(p, req))
                return await self._why(p, Why(id=req.id, request_id=req.request_id))
            case Erase():
                _checked_selector(req.selector)
                return await self.shard.erasing.erase(p, req)
            case ErasureQuery():
                return self.shard.erasing.receipts(p, req)
            case LegalHoldRequest():
                _checked_selector(req.selector)
                return await self.shard.erasing.legal_hold(p, req)
            case Prune():
                return await self.shard.pruning.answer(p, req)
            case CaseQuery():
                return await self._cases(p, req)
            case Trace():
                return await self._trace(p, req)
            case Why():
                return await self._why(p, req)
            case ContextRequest():
                return await self._context(p, req)
            case StatsRequest():
                return await self._stats(p, req)
        raise Refused("verb_not_available")

    async def barrier(self, tenant: Tenant, make: Any) -> Any:
        """Run something as an operation of the sequencer and wait for its result."""
        done = self.shard.loop.create_future()

        async def run() -> None:
            try:
                if tenant.deleted:
                    raise Refused("tenant_deleted")
                result = await make()
            except Refused as e:
                if not done.done():
                    done.set_exception(e)
            except LedgerFull:  # certain: nothing was appended; a hold stays in memory, its case pending
                if not done.done():
                    done.set_exception(Refused("ledger_full"))
            except BaseException as e:
                if not done.done():
                    done.set_exception(Refused("internal"))
                raise e
            else:
                if not done.done():
                    done.set_result(result)

        self.shard.sequencer.submit(tenant.account, Operation(tenant.account, run))
        return await done

    async def _hold(self, p: Principal, req: Hold) -> Frame:
        _checked_selector(req.selector)
        if req.dry_run or not (req.plan or req.now):
            return await self.shard.holds.plans.plan(p, req)
        holds = self.shard.holds
        named = await holds.named(p, req)
        held: Held = await self.barrier(p.tenant, lambda: holds.hold(p, req, named))
        return await holds.shown(p, held.case, req.request_id, held=held)

    async def _cases(self, p: Principal, req: CaseQuery) -> Frame:
        t, holds = p.tenant, self.shard.holds
        if req.case:
            return await holds.shown(p, holds.find(p, req.case), req.request_id, cursor=max(0, req.cursor))
        newest = sorted(t.cases.values(), key=lambda k: k.opened_ms, reverse=True)
        start, page, looked_at = max(0, req.cursor), Page[Case](), 0
        for case in newest[start : start + CASES_MAX]:
            if holds.is_told_of(p, case) and not page.add(await holds.listed(p, case)):
                break
            looked_at += 1
            await asyncio.sleep(0)  # a case of thousands takes a millisecond or two
        more = following(start, looked_at, len(newest))
        return Cases(agent=p.key, request_id=req.request_id, cases=page.items, position=t.position, next=more)

    # --- trace ------------------------------------------------------------------------------------
    async def _trace(self, p: Principal, req: Trace) -> TraceAnswer:
        t = p.tenant
        root = resolve(p, req.id)
        if req.hops is not None and not 0 <= req.hops <= HOPS_MAX:
            raise Refused("out_of_range", field="hops", limit=HOPS_MAX)
        kinds = {E.EDGE_KINDS.index(k) for k in (req.edges or ["declared", "copied"])}
        plans = self.shard.holds.plans
        closure, _ = await plans.closure(t, [root], kinds, up=req.direction != "down", hops=req.hops)
        closure = counted_of(p, closure)
        seen = seen_of(p, closure)
        start, page = max(0, req.cursor), Page[tuple[Member, list[Edge]]]()
        reached = set(closure.nodes.tolist())
        for s, hops in zip(*(x[start : start + PAGE_ITEMS_MAX].tolist() for x in seen), strict=True):
            above = [e for e in t.up.edges_of(s) if e.kind in kinds and e.node in reached and decide(p, e.node)]
            edges = [_edge(t, e.node, s, e.kind, e.confidence) for e in above]  # of one node there may be 128
            if not page.add((plans.member(t, s, hops), edges)):
                break
            await asyncio.sleep(0)
        return TraceAnswer(
            agent=p.key,
            request_id=req.request_id,
            root=t.memory_id(root),
            direction=req.direction,
            nodes=[node for node, _ in page.items],
            edges=[edge for _, edges in page.items for edge in edges],
            count=len(reached),
            elsewhere=len(reached) - len(seen.nodes),
            position=t.position,
            next=following(start, len(page.items), len(seen.nodes)),
        )

    # --- why --------------------------------------------------------------------------------------
    async def _why(self, p: Principal, req: Why) -> WhyAnswer:
        if req.id.startswith("rec_"):
            return await self._why_recall(p, req)
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
            "exposed": (exposed := _cases_seen(p, e.exposed))[-PAGE_ITEMS_MAX:],
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
            parents=[_edge(t, x.parent, s, x.kind, x.confidence) for x in e.edges if decide(p, x.parent)],
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

    async def _why_recall(self, p: Principal, req: Why) -> WhyAnswer:
        t = p.tenant
        raw = ids.raw(req.id)
        await self.shard.store_caught_up()
        rows = await self.shard.lineage.query("decisions", {"tenant": self.shard.tenant_number(t), "recall": raw}) if raw else []
        number = self.shard.tenant_number(t)
        known = await self.shard.lineage.query("recall", {"tenant": number, "recall": raw}) if rows else []
        project = str(known[0][2]) if known else ""
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

    # --- context ----------------------------------------------------------------------------------
    async def _context(self, p: Principal, req: ContextRequest) -> ContextAnswer:
        t = p.tenant
        agent = known_agent(p, req.agent)
        ctx = t.context_of(agent)
        if req.action == "close":
            if not req.message.strip():
                raise Refused("message_missing", field="message")
            await self.barrier(t, lambda: self._close(p, ctx, req.message))
        labels, exposed = ctx.labels, _cases_seen(p, ctx.exposed)
        shown = labels_here(p, labels.comp)
        return ContextAnswer(
            agent=p.key,
            request_id=req.request_id,
            context=ids.text("ctx_", ctx.id),
            root=t.agents.all[ctx.root].name,
            epoch=ctx.epoch,
            recalls=ctx.recalls,
            served=len(ctx.served),
            trust_floor=labels.floor / 1000,
            classification=CLASSIFICATIONS[labels.cls],
            compartments=shown,
            elsewhere=len(labels.comp) - len(shown),
            exposed=exposed[-PAGE_ITEMS_MAX:],
            exposed_count=len(exposed),
            last_read_at=rfc3339(ctx.last_read_ms) if ctx.last_read_ms else None,
            closed=req.action == "close",
            position=t.position,
        )

    async def _close(self, p: Principal, ctx: Context, message: str) -> None:
        now_ms = self.shard.now_ms()
        _may_close(p, ctx, now_ms)
        ended = end_events(p, of_session(p.tenant, ctx, now_ms), SESSION, "", now_ms)
        await self.shard.sequencer.commit(
            p.tenant,
            [
                *ended,
                noted(
                    lambda body: E.ContextClosed(
                        ms=now_ms, ctx=ctx.id, epoch=ctx.epoch + 1, agent=p.agent.id, person=p.rights.person, body=body
                    ),
                    message,
                    os.urandom(E.SALT_BYTES),
                ),
            ],
        )

    async def _stats(self, p: Principal, req: StatsRequest) -> Stats:
        t, c = p.tenant, p.tenant.columns
        memories = held = edges = 0
        for start in range(1, c.n, STATS_ROWS):  # in parts: a large tenant must not stop the others
            part = np.arange(start, min(start + STATS_ROWS, c.n), dtype=np.int32)
            seen = np.array(visible_rows(p, part[c.kind[part] >= 0]), np.int32)
            memories += len(seen)
            held += int(np.count_nonzero(c.held[seen]))
            edges += t.up.count(seen)
            await asyncio.sleep(0)
        agents = [a for a in t.agents.all if shares_project(p, a)]
        counts = {
            "memories": memories,
            "held": held,
            "edges": edges,
            "agents": len(agents),
            "cases_open": sum(1 for k in t.cases.values() if k.state == "open" and visible_rows(p, k.all_members())),
            "contexts": len({a.root for a in agents} & {x.root for x in t.contexts.values()}),
        }
        return Stats(agent=p.key, request_id=req.request_id, counts=counts, position=t.position)


def _share(confidence: int) -> float:
    return round(confidence / 255, 2)


def _edge(t: Tenant, parent: int, child: int, kind: int, confidence: int) -> Edge:
    """`confidence`: of 255."""
    return Edge(from_=t.memory_id(parent), to=t.memory_id(child), kind=E.EDGE_KINDS[kind], confidence=_share(confidence))


def _may_close(p: Principal, ctx: Context, now_ms: int) -> None:
    """A close sheds the labels of all that the context was served, and ends its notes: by who may see all of it."""
    if p.role == "supervisor":
        return
    t, at, labels = p.tenant, p.tenant.columns.at, ctx.labels
    projects = {name for a in t.agents.all if a.root == ctx.root for name in a.projects}
    projects |= {t.project_names[at.project[s]] for s in ctx.served}  # an agent's projects may have become fewer
    if MANY in labels.comp or len(labels_here(p, labels.comp)) < len(labels.comp):  # of what fell out of its window, too
        raise Refused("context_elsewhere", field="agent")
    notes = of_session(t, ctx, now_ms)
    seen = labels.cls <= p.rights.clearance and len(visible_rows(p, notes)) == len(notes)
    if not seen or not all(has_project(p, name) for name in projects):
        raise Refused("context_elsewhere", field="agent")


def _checked_selector(selector: list[str]) -> None:
    if len(selector) > SELECTOR_MAX:
        raise Refused("too_long", field="selector", limit=SELECTOR_MAX)
    for term in selector:
        text_ok(term, "selector", 2_048, 1)


def _cases_seen(p: Principal, cases: Iterable[bytes]) -> list[str]:
    """Those with a member that this operator may see."""
    known = p.tenant.cases
    return [known[x].text for x in sorted(cases) if x in known and visible_rows(p, known[x].all_members())]


def _checked_message(message: str) -> str:
    """A person's reason, checked, and without secrets: it is stored like any text."""
    if len(message) > MESSAGE_CHARS_MAX:
        raise Refused("too_long", field="message", limit=MESSAGE_CHARS_MAX)
    text_ok(message, "message", MESSAGE_CHARS_MAX * 4)
    return redact(message).text


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
