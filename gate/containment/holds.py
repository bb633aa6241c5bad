"""Holding and releasing: the hold itself, release, review.

Orders (fail closed both ways): hold = drain, compute, set the holds in memory, append, answer; release = append, apply, then
clear the memory. A hold of unknown outcome stays held, its case `pending`. Runs inside the sequencer, as operations.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from bus.frames import Case, Hold, Member, Review
from bus.limits import PAGE_ITEMS_MAX
from gate import ids
from gate.config import CASE_ROOTS_MAX, SUSPECT_HOLD_MS
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.block import members_digest, pack_members
from gate.ledger.errors import LedgerFull
from gate.pages import following
from gate.plan_kinds import check_kind
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import counted_rows, decide, decide_all, visible_rows
from gate.state.cases import CaseState
from gate.state.columns import REVIEW_PENDING, REVIEW_REJECTED
from gate.state.principals import Agent
from gate.state.tenant import Tenant
from gate.steps import in_parts
from gate.writing.sequencer import Stored, noted

from .closure import Closure
from .notices import Notices, notices_of
from .plans import CLOSURE_KINDS, Nodes, PlanRecord, Plans, agents_served
from .rollback import written_since
from .selection import Sources, find_sources, names_of, resolve, select

if TYPE_CHECKING:
    from gate.shard import Shard


CONTEXTS: Final = 64  # that are marked before others are served: at most 2,048 look-ups each


class Named(NamedTuple):
    """What a hold names: a plan, or what was found of its sources."""

    plan_id: bytes = b""
    plan: PlanRecord | None = None
    sources: Sources = Sources(0, frozenset())


class Held(NamedTuple):
    """A case as it was opened. `added`: descendants that came after its plan."""

    case: CaseState
    added: list[int]
    closure: Closure
    closure_ms: float
    hold_ms: float


class Holds:
    """Cases of a shard's tenants. All methods run on the loop."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.plans = Plans(shard)
        self.notices = Notices(shard)
        self._waiting: list[tuple[Principal, CaseState, bytes, str]] = []

    # --- hold -------------------------------------------------------------------------------------
    async def named(self, p: Principal, req: Hold) -> Named:
        """What a hold names, as far as only the index thread knows: before the barrier, so that nobody waits for it there."""
        if not req.message.strip():
            raise Refused("message_missing", field="message")
        if req.plan:
            plan_id, plan = await self.plans.load(p, req.plan)
            check_kind(plan.kind, req.kind)
            return Named(plan_id, plan)
        sources = await find_sources(self.shard, p, req.selector)
        select(p, req.selector, sources)  # what can't be held is refused before anything stands still
        return Named(sources=sources)

    async def hold(self, p: Principal, req: Hold, named: Named, in_force: asyncio.Future[Held]) -> Held:
        """Apply a plan, or plan and apply at once. Runs as an operation: the sequencer is drained and stands still. `in_force` is
        told of it before it is written.
        """
        t, message = p.tenant, req.message
        added: list[int] = []
        if named.plan is not None:
            roots, unseen = list(named.plan.roots), list[int]()
            before = t.cases.get(named.plan.rollback)
            if before is not None:
                roots, unseen = written_since(p, before)  # by now more may have been
                message = f"back to before {before.text}: {req.message}"
            closure, ms = await self.plans.closure(t, roots + unseen)
            added = self.plans.drift(p, named.plan, closure)
            extra = named.plan.suspects
            self.plans.use(p, named.plan_id, named.plan)
        else:
            roots = select(p, req.selector, named.sources)
            closure, ms = await self.plans.closure(t, roots)
            extra = await self.plans.suspects(t, closure.nodes) if req.suspects else []
        start = time.perf_counter()
        case = await self._set(p, roots, closure.nodes, message)
        in_force.set_result(Held(case, added, closure, ms, 0.0))
        await self._seal_or_wait(p, case, named.plan_id, message)
        held_ms = (time.perf_counter() - start) * 1e3
        for i in range(0, len(extra), CASE_ROOTS_MAX):
            await self._hold_suspects(p, case, extra[i : i + CASE_ROOTS_MAX], req.message)
        return Held(case, added, closure, ms, held_ms)

    async def _hold_suspects(self, p: Principal, case: CaseState, extra: list[int], message: str) -> None:
        """Suspects are a case of their own with a time limit, so that releasing them leaves the main case alone."""
        closure, _ = await self.plans.closure(p.tenant, extra)
        suspects = await self._set(
            p, extra, closure.nodes, f"suspects of {case.text}: {message}", until_ms=self.shard.now_ms() + SUSPECT_HOLD_MS
        )
        await self._seal_or_wait(p, suspects, b"", suspects.why)

    async def _set(self, p: Principal, roots: list[int], members: Nodes, why: str, until_ms: int = 0) -> CaseState:
        """In memory first: from here on no read or write gets past it. All members at one moment; then contexts are marked in
        parts: writes wait for the end of the operation, and what is read meanwhile marks its context itself (`expose_to_held`).
        """
        t, now_ms = p.tenant, self.shard.now_ms()
        case = CaseState(
            ids.new_raw(now_ms), p.agent.number, p.rights.person, why, array("i", roots), members, now_ms, CLOSURE_KINDS,
            until_ms=until_ms,
        )  # fmt: skip
        t.cases[case.id] = case
        t.raise_holds(members)
        held = set(members.tolist())
        async for some in in_parts(list(t.contexts.values()), CONTEXTS):
            t.expose(case, held, some)
        return case

    async def _seal_or_wait(self, p: Principal, case: CaseState, plan_id: bytes, why: str) -> None:
        """Write the case. Where the ledger has no room the hold is in force all the same, `pending`, and written when it has."""
        try:
            await self._seal(p, case, plan_id, why)
        except LedgerFull:
            self._waiting.append((p, case, plan_id, why))

    async def _seal(self, p: Principal, case: CaseState, plan_id: bytes, why: str) -> None:
        """Write what of the case isn't in the ledger yet: there may have been no room left in the middle of it."""
        t, now_ms = p.tenant, case.opened_ms
        if case.state == "released":
            return
        told = await agents_served(t, case.members)
        stored = self._parts_and_seal(p, case, plan_id, why) if case.state == "pending" else []
        stored += notices_of(case, "recall", told, now_ms)
        await self.shard.sequencer.commit(t, stored)
        self.notices.tell(t, case, "recall")
        self.notices.feed(t, case, "held")

    def _parts_and_seal(self, p: Principal, case: CaseState, plan_id: bytes, why: str) -> list[Stored]:
        t, now_ms = p.tenant, case.opened_ms
        parts, there = pack_members(case.members), t.parts.get(case.id, {})
        stored = [
            Stored(E.CasePart(ms=now_ms, case=case.id, part=i, count=count, deltas=deltas))
            for i, (count, deltas) in enumerate(parts)
            if i not in there
        ]

        def seal(body: bytes) -> E.CaseOpened:
            return E.CaseOpened(
                ms=now_ms,
                case=case.id,
                agent=p.agent.id,
                person=p.rights.person,
                roots=list(case.roots),
                parts=len(parts),
                count=len(case.members),
                digest=members_digest(case.members),
                plan=plan_id,
                policy=t.policy,
                edges=list(CLOSURE_KINDS),
                until=case.until_ms,
                body=body,
            )

        return [*stored, noted(seal, why, os.urandom(E.SALT_BYTES))]

    # --- release and review -----------------------------------------------------------------------
    async def release(self, p: Principal, case_id: str, message: str) -> CaseState:
        """Remove exactly this case's holds. Runs as an operation."""
        if not message.strip():
            raise Refused("message_missing", field="message")
        t, case = p.tenant, self.find(p, case_id)
        if case.state == "released":
            raise Refused("case_closed", field="case")
        if case.state == "pending":
            raise Refused("case_pending", field="case")
        # Of suspects some may be elsewhere: who opened that case ends it, as long as there is anything of it that it may see.
        opened = case.agent == p.agent.number and bool(visible_rows(p, case.all_members()))
        if not opened and not decide_all(p, case.roots):
            raise Refused("case_elsewhere", field="case")
        now_ms = self.shard.now_ms()
        stored = [
            noted(
                lambda body: E.CaseReleased(ms=now_ms, case=case.id, agent=p.agent.id, person=p.rights.person, body=body),
                message,
                os.urandom(E.SALT_BYTES),
            )
        ]
        stored += notices_of(case, "released", [t.agents.all[n] for n in sorted(case.told)], now_ms)
        await self.shard.sequencer.commit(t, stored)
        self.notices.tell(t, case, "released")
        self.notices.feed(t, case, "released")
        return case

    async def tend(self, t: Tenant) -> None:
        """What time brings: cases that the ledger had no room for are written; suspects' holds end when their time is over."""
        for waiting in [w for w in self._waiting if w[0].tenant is t]:
            try:
                await self.shard.operators.barrier(t, lambda waiting=waiting: self._seal(*waiting))
            except Refused:
                break  # still no room
            self._waiting.remove(waiting)
        now_ms, unseen_ms = self.shard.now_ms(), self.shard.unseen_ms
        over = [k for k in t.cases.values() if k.until_ms and k.state == "open" and k.until_ms <= now_ms]
        for case in [k for k in over if k.until_ms + unseen_ms(k.opened_ms) <= now_ms]:
            with suppress(Refused):  # no room: it stays held until there is
                await self.shard.operators.barrier(t, lambda case=case: self._overdue(t, case))

    async def _overdue(self, t: Tenant, case: CaseState) -> None:
        if case.state != "open":
            return
        now_ms, by = self.shard.now_ms(), t.agents.all[case.agent].id
        stored = [Stored(E.CaseReleased(ms=now_ms, case=case.id, agent=by))]
        stored += notices_of(case, "released", [t.agents.all[n] for n in sorted(case.told)], now_ms)
        await self.shard.sequencer.commit(t, stored)
        self.notices.tell(t, case, "released")
        self.notices.feed(t, case, "released")

    async def review(self, p: Principal, req: Review) -> int:
        """Accept or reject a memory that was held at write. The tenant_seq of the memory."""
        if not req.message.strip():
            raise Refused("message_missing", field="message")
        t = p.tenant
        s = resolve(p, req.id)
        state = int(t.columns.review[s])
        if state not in (REVIEW_PENDING, REVIEW_REJECTED):
            raise Refused("nothing_to_review", field="id")
        now_ms = self.shard.now_ms()
        await self.shard.sequencer.commit(
            t,
            [
                noted(
                    lambda body: E.MemoryReviewed(
                        ms=now_ms, memory=s, verdict=req.verdict, agent=p.agent.id, person=p.rights.person, body=body
                    ),
                    req.message,
                    os.urandom(E.SALT_BYTES),
                )
            ],
        )
        return s

    # --- showing ----------------------------------------------------------------------------------
    def find(self, p: Principal, case_id: str) -> CaseState:
        """A case by its id or the end of it."""
        t = p.tenant
        raw = ids.raw(case_id) if case_id.startswith("case_") else None
        bare = case_id.removeprefix("case_")
        named = [t.cases[raw]] if raw in t.cases else [k for k in t.cases.values() if len(bare) >= 8 and k.text.endswith(bare)]
        found = [k for k in named if self.is_told_of(p, k)]
        if len(found) > 1:
            raise Refused("id_ambiguous", field="case")
        if not found:
            raise Refused("case_unknown", field="case")
        return found[0]

    def is_told_of(self, p: Principal, case: CaseState) -> bool:
        """Whether a case is there for a principal: one of memories above its clearance alone is not."""
        return len(counted_rows(p, case.all_members())) > 0

    async def shown(self, p: Principal, case: CaseState, request_id: str, *, cursor: int = 0, held: Held | None = None) -> Case:
        """A case with a page of its members. `held`: it was just opened. Not inside a barrier: a large graph takes a while."""
        t, everyone = p.tenant, case.all_members()
        listed = await self.listed(p, case, cursor)
        seen = visible_rows(p, everyone)
        page = seen[cursor : cursor + PAGE_ITEMS_MAX]
        added = [s for s in held.added if decide(p, s)] if held else []
        return msgspec.structs.replace(
            listed,
            request_id=request_id,
            members=await self._members(t, case, page, held.closure if held else None),
            next=following(cursor, PAGE_ITEMS_MAX, max(len(seen), listed.roots_count, listed.told_count, listed.acked_count)),
            added=[t.memory_id(s) for s in added[:PAGE_ITEMS_MAX]],
            added_count=len(added),
            closure_ms=round(held.closure_ms, 3) if held else 0.0,
            hold_ms=round(held.hold_ms, 3) if held else 0.0,
        )

    async def _members(self, t: Tenant, case: CaseState, page: list[int], closure: Closure | None) -> list[Member]:
        if not page:  # of a case of few memories many may have been told
            return []
        if closure is None:
            closure, _ = await self.plans.closure(t, case.roots, case.kinds)
        hops, members = _hops(t, case, closure, page), set(case.all_members().tolist())
        return await self.plans.members(t, page, hops, members)

    async def listed(self, p: Principal, case: CaseState, cursor: int = 0) -> Case:
        """A case without its members, with a page of its roots and of whom it was told."""
        t, page = p.tenant, slice(cursor, cursor + PAGE_ITEMS_MAX)
        everyone = counted_rows(p, case.all_members())
        crowd = await _told_of(t, case, everyone)
        told = await names_of(p, crowd)
        acked = await names_of(p, [a for a in crowd if a.number in case.acked])
        seen = visible_rows(p, everyone)
        roots = visible_rows(p, np.array(case.roots, np.int32))
        text = bool(seen or roots) or case.agent == p.agent.number  # of a case elsewhere only counts are told, and whom to ask
        return Case(
            agent=p.key,
            case=case.text,
            state=case.state,
            by=t.agents.all[case.agent].name,
            person=case.person if text else "",
            why=case.why if text else "",
            roots=[t.memory_id(r) for r in roots[page]],
            roots_count=len(roots),
            count=len(everyone),
            joined=len(counted_rows(p, np.array(case.joined, np.int32))),
            elsewhere=len(everyone) - len(seen),
            told=told[page],
            told_count=len(told),
            acked=acked[page],
            acked_count=len(acked),
            told_elsewhere=len(crowd) - len(told),
            opened_at=rfc3339(case.opened_ms),
            released_at=rfc3339(case.released_ms) if case.released_ms else None,
            released_by=t.agents.all[case.released_by].name if case.released_by >= 0 else "",
            position=t.position,
        )


async def _told_of(t: Tenant, case: CaseState, members: Nodes) -> list[Agent]:
    """Those who were told, of these members at least."""
    if len(members) == len(case.members) + len(case.joined):
        return [t.agents.all[n] for n in sorted(case.told)]
    return [a for a in await agents_served(t, members) if a.number in case.told]


def _hops(t: Tenant, case: CaseState, closure: Closure, page: list[int]) -> list[int]:
    """How far the members of a page are from the roots. A copy that another member accounts for joined without an edge that the
    closure follows, and so did what derives from it: it is one hop below the nearest that it has any edge from. What a rollback
    took that its operator doesn't see is none of its roots: it has 0.
    """
    joined = np.array(case.joined, np.int32)
    hops: dict[int, int] = {}
    for s in joined[~np.isin(joined, closure.nodes)].tolist():  # as they were written: parents come first
        above = [e.node for e in t.up.edges_of(s) if e.node in case]
        hops[s] = 1 + min((hops[p] if p in hops else _depth(closure, p) for p in above), default=0)
    at = np.minimum(np.searchsorted(closure.nodes, page), len(closure.nodes) - 1)
    depths = np.where(closure.nodes[at] == page, closure.depth[at], 0).tolist()
    return [hops.get(s, depth) for s, depth in zip(page, depths, strict=True)]


def _depth(closure: Closure, seq: int) -> int:
    i = int(np.searchsorted(closure.nodes, seq))
    return int(closure.depth[i]) if i < len(closure.nodes) and closure.nodes[i] == seq else 0
