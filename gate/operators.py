"""Answers to operators' questions: trace, case, context, stats; gate/why.py has why. Full records in their own projects, only
counts elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from bus.frames import (
    CLASSIFICATIONS,
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
)
from bus.limits import MESSAGE_CHARS_MAX, PAGE_ITEMS_MAX
from gate import ids
from gate.containment.holds import Held, Named
from gate.containment.plans import counted_of, seen_of
from gate.containment.selection import NAMED_AT_ONCE, known_agent, resolve
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.errors import LedgerFull
from gate.lifecycle.ends import SESSION, end_events, of_session
from gate.pages import Page, following, following_older, newest_first
from gate.quotas import full
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import check_standing, counted_rows, decide, has_project, labels_here, shares_project, visible_rows
from gate.state.compartments import MANY
from gate.state.contexts import Context
from gate.state.tenant import Tenant
from gate.steps import in_parts
from gate.why import Whys, cases_seen, edge
from gate.writing.redact import redact
from gate.writing.sequencer import Operation, noted
from gate.writing.validate import text_ok

if TYPE_CHECKING:
    from gate.shard import Shard

HOLD_ANSWER_S: Final = 4.0  # for its turn, and again for its receipt; both together are less than a client's patience
CASES_MAX: Final = 100  # of a page, which may be full before
_by_place: Final = attrgetter("place")
STATS_ROWS: Final = 1 << 15  # counted at once: about 2 ms
SELECTOR_MAX: Final = 64
HOPS_MAX: Final = 1_000_000


class Operators:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.whys = Whys(shard)

    async def answer(self, p: Principal, req: Frame) -> Frame:
        """The answer to one operator request. Raises Refused."""
        if isinstance(req, Hold | Release | Review | ContextRequest | Erase | LegalHoldRequest | Prune):
            req = msgspec.structs.replace(req, message=_checked_message(req.message))
        match req:
            case Hold():
                return await self._hold(p, req)
            case Release():
                released = await self.acting(p, lambda: self.shard.holds.release(p, req.case, req.message))
                return await self.shard.holds.shown(p, released, req.request_id)
            case Review():
                await self.acting(p, lambda: self.shard.holds.review(p, req))
                return await self.whys.answer(p, Why(id=req.id, request_id=req.request_id))
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
                return await self.whys.answer(p, req)
            case ContextRequest():
                return await self._context(p, req)
            case StatsRequest():
                return await self._stats(p, req)
        raise Refused("verb_not_available")

    async def barrier(self, tenant: Tenant, make: Any, *, deleted: bool = False) -> Any:
        """Run something as an operation of the sequencer and wait for its result. `deleted`: of a deleted tenant, too."""
        done = self.shard.loop.create_future()

        async def run() -> None:
            try:
                if tenant.deleted and not deleted:
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

    async def acting(self, p: Principal, make: Any) -> Any:
        """The same for a principal: nothing is done for one that was revoked before its turn came, nor in a tenant that has used
        up what it may add to the ledger beyond its memories: one operator's holds would fill it for all tenants.
        """

        async def run() -> Any:
            check_standing(p.tenant, p.agent, p.key, self.shard.now_ms())
            most = p.tenant.quotas.tenant_bytes + p.tenant.quotas.tenant_reserve
            if p.tenant.bytes >= most:
                raise full("bytes", "tenant", most, p.tenant.bytes)
            return await make()

        return await self.barrier(p.tenant, run)

    async def _hold(self, p: Principal, req: Hold) -> Frame:
        _checked_selector(req.selector)
        if req.dry_run or not (req.plan or req.now):
            return await self.shard.holds.plans.plan(p, req)
        holds = self.shard.holds
        named = await holds.named(p, req)
        held = await self._held(p, req, named)
        shown = await holds.shown(p, held.case, req.request_id, held=held)
        # Where nothing is confirmed no further page would be answered, and who asks for one would take all for refused.
        return shown if shown.state == "open" else msgspec.structs.replace(shown, next=None)

    async def _held(self, p: Principal, req: Hold, named: Named) -> Held:
        """The hold as it is written; or, where the ledger confirms nothing, as it is in force, its case `pending`. One whose turn
        didn't come is withdrawn: what was refused happens no more.
        """
        in_force: asyncio.Future[Held] = self.shard.loop.create_future()
        begun = withdrawn = False

        async def run() -> Held:
            nonlocal begun
            if withdrawn:
                raise Refused("ledger_unreachable")
            begun = True
            return await self.shard.holds.hold(p, req, named, in_force)

        written = asyncio.ensure_future(self.acting(p, run))
        written.add_done_callback(lambda done: done.cancelled() or done.exception())  # whether or not anybody still waits
        await asyncio.wait([written, in_force], timeout=HOLD_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if not begun and not written.done():
            withdrawn = True
            raise Refused("ledger_unreachable")
        await asyncio.wait([written, in_force], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([written], timeout=HOLD_ANSWER_S)
        held: Held = written.result() if written.done() else in_force.result()
        return held

    async def _cases(self, p: Principal, req: CaseQuery) -> Frame:
        t, holds = p.tenant, self.shard.holds
        if req.case:
            return await holds.shown(p, holds.find(p, req.case), req.request_id, cursor=max(0, req.cursor))
        newest = newest_first(t.cases.values(), req.cursor, _by_place)
        page, looked_at = Page[Case](), 0
        for case in newest[:CASES_MAX]:
            if holds.is_told_of(p, case) and not page.add(await holds.listed(p, case)):
                break
            looked_at += 1
            await asyncio.sleep(0)  # a case of thousands takes a millisecond or two
        more = following_older(newest, looked_at, _by_place)
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
            edges = [edge(t, e.node, s, e.kind, e.confidence) for e in above]  # of one node there may be 128
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

    # --- context ----------------------------------------------------------------------------------
    async def _context(self, p: Principal, req: ContextRequest) -> ContextAnswer:
        t = p.tenant
        agent = known_agent(p, req.agent)
        ctx = t.context_of(agent)
        if req.action == "close":
            if not req.message.strip():
                raise Refused("message_missing", field="message")
            await self._close(p, ctx, req.message)
        labels, exposed = ctx.labels, cases_seen(p, ctx.exposed)
        shown = labels_here(p, labels.comp)
        return ContextAnswer(
            agent=p.key,
            request_id=req.request_id,
            context=ids.text("ctx_", ctx.id),
            root=t.agents.all[ctx.root].name,
            epoch=ctx.epoch,
            recalls=ctx.recalls,
            served=len(counted_rows(p, np.fromiter(ctx.served, np.int32))),
            trust_floor=labels.floor / 1000,
            classification=CLASSIFICATIONS[min(labels.cls, p.rights.clearance)],  # of what is above it nothing is told
            compartments=shown,
            elsewhere=len(labels.comp) - len(shown),
            exposed=exposed[-PAGE_ITEMS_MAX:],
            exposed_count=len(exposed),
            last_read_at=rfc3339(ctx.last_read_ms) if ctx.last_read_ms else None,
            closed=req.action == "close",
            position=t.position,
        )

    async def _close(self, p: Principal, ctx: Context, message: str) -> None:
        """One moment for reads and writes: what is served later is in the new head, what was sent before is of the old."""
        _may_close(p, ctx, self.shard.now_ms())  # who may not makes no read wait
        ctx.closing += 1
        try:
            await self.shard.writes.prepared((p.tenant.account, ctx.id))
            await self.acting(p, lambda: self._end(p, ctx, message))
        finally:
            ctx.closing -= 1

    async def _end(self, p: Principal, ctx: Context, message: str) -> None:
        now_ms, epoch = self.shard.now_ms(), ctx.epoch
        _may_close(p, ctx, now_ms)
        ended = end_events(p, of_session(p.tenant, ctx, now_ms), SESSION, "", now_ms)
        await self.shard.sequencer.commit(
            p.tenant,
            [
                *ended,
                noted(
                    lambda body: E.ContextClosed(
                        ms=now_ms, ctx=ctx.id, epoch=epoch + 1, agent=p.agent.id, person=p.rights.person, body=body
                    ),
                    message,
                    os.urandom(E.SALT_BYTES),
                ),
            ],
        )
        self.shard.index_later(self.shard.context_texts.end, p.tenant.account, [(ctx.id, epoch)])

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
        agents, roots = 0, set[int]()
        async for some in in_parts(t.agents.all, NAMED_AT_ONCE):
            here = [a for a in some if shares_project(p, a)]
            agents += len(here)
            roots.update(a.root for a in here)
        counts = {
            "memories": memories,
            "held": held,
            "edges": edges,
            "agents": agents,
            "cases_open": sum(1 for k in t.cases.values() if k.state == "open" and visible_rows(p, k.all_members())),
            "contexts": sum(1 for root in roots if t.agents.all[root].id in t.contexts),
        }
        return Stats(agent=p.key, request_id=req.request_id, counts=counts, position=t.position)


def _may_close(p: Principal, ctx: Context, now_ms: int) -> None:
    """A close sheds the labels of all that the context was served, and ends its notes: by who may see all of it."""
    if p.role == "supervisor":
        return
    t, at, labels = p.tenant, p.tenant.columns.at, ctx.labels
    projects = {name for number in ctx.family for name in t.agents.all[number].projects}
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


def _checked_message(message: str) -> str:
    """A person's reason, checked, and without secrets: it is stored like any text."""
    if len(message) > MESSAGE_CHARS_MAX:
        raise Refused("too_long", field="message", limit=MESSAGE_CHARS_MAX)
    text_ok(message, "message", MESSAGE_CHARS_MAX * 4)
    return redact(message).text
