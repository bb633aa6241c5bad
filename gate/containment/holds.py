"""Holding and releasing: plans, the hold itself, release, review, and who is told.

Orders (fail closed both ways): hold = drain, compute, set the holds in memory, append, answer; release = append, apply, then clear the
memory. A hold of unknown outcome stays held, its case `pending`. Runs inside the sequencer, as operations.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt

from bus.frames import KINDS, Case, FeedKind, Hold, Member, Notice, NoticeKind, Plan, Review
from bus.limits import GET_IDS_MAX, PAGE_ITEMS_MAX
from gate import ids
from gate.config import PLAN_MS, SUSPECT_HOLD_MS
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.block import members_digest, pack_members
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.state.cases import CaseState
from gate.state.columns import REVIEW_PENDING, REVIEW_REJECTED
from gate.state.principals import Agent
from gate.state.tenant import Tenant
from gate.writing.sequencer import Stored, noted

from .closure import Closure

if TYPE_CHECKING:
    from gate.shard import Shard

CLOSURE_KINDS: Final = (E.DECLARED, E.COPIED, E.EDGE_KINDS.index("via_resource"))  # exposed isn't infected
SUSPECT_CONFIDENCE: Final = 128  # of 255
DRIFT_MIN: Final = 100
DRIFT_SHARE: Final = 0.10
OFF_LOOP_NODES: Final = 20_000
NOTICE_IDS_MAX: Final = GET_IDS_MAX

Nodes = npt.NDArray[np.int32]


class PlanRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a plan for its 60 minutes, in the tenant's catalog."""

    roots: list[int]
    members: bytes  # int32 little endian, ascending
    suspects: list[int]
    policy: int
    generation: int
    agent: bytes


_encode_plan = msgspec.msgpack.Encoder().encode
_decode_plan = msgspec.msgpack.Decoder(PlanRecord).decode


class Holds:
    """Plans and cases of a shard's tenants. All methods run on the loop."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    # --- what a selector means --------------------------------------------------------------------
    async def roots(self, p: Principal, selector: Iterable[str]) -> list[int]:
        """tenant_seqs that a selector names: ids, agent:NAME, run:LABEL, source:URI. Only in this operator's projects."""
        t, c = p.tenant, p.tenant.columns
        found: set[int] = set()
        n = c.n
        for term in selector:
            kind, _, value = term.partition(":")
            if kind == "agent" and value:
                agent = find_agent(t, value)
                found |= set(np.flatnonzero((c.actor[:n] == agent.number) & (c.kind[:n] >= 0)).tolist())
            elif kind == "run" and value:
                run = int.from_bytes(t.label_hash(value), "big", signed=True)
                found |= set(np.flatnonzero((c.run[:n] == run) & (c.kind[:n] >= 0)).tolist())
            elif kind == "source" and value:
                found |= set(await self.shard.index.call(self.shard.indexes[t.account].catalog.find_source, value))
            else:
                found.add(resolve(p, term))
        found = {s for s in found if may_see(p, s)}
        if not found:
            raise Refused("selector_empty", field="selector")
        return sorted(found)

    def _closure(self, t: Tenant, roots: list[int]) -> tuple[Closure, float]:
        start = time.perf_counter()
        closure = t.down.closure(roots, CLOSURE_KINDS)
        return closure, (time.perf_counter() - start) * 1e3

    def suspects(self, t: Tenant, members: Nodes) -> list[int]:
        """Children by a served edge over the threshold that are not members themselves."""
        known = set(members.tolist())
        out = {
            edge.node
            for m in members.tolist()
            for edge in t.down.edges_of(m)
            if edge.kind == E.SERVED and edge.confidence >= SUSPECT_CONFIDENCE and edge.node not in known
        }
        return sorted(out)

    # --- plan -------------------------------------------------------------------------------------
    async def plan(self, p: Principal, req: Hold) -> Plan:
        """Show what a hold would do and keep it for an hour. Changes nothing."""
        if req.plan:
            record = await self._load(p, req.plan, use=False)
            plan_id = ids.raw(req.plan) or b""
            closure = p.tenant.down.closure(record.roots, CLOSURE_KINDS)
            return self._shown(p, plan_id, record, closure, 0.0, req)
        roots = await self.roots(p, req.selector)
        t = p.tenant
        closure, ms = self._closure(t, roots)
        suspects = self.suspects(t, closure.nodes)
        record = PlanRecord(roots, closure.nodes.astype("<i4").tobytes(), suspects if req.suspects else [], t.policy, t.generation, p.agent.id)
        plan_id = ids.new_raw(self.shard.now_ms())
        catalog = self.shard.indexes[t.account].catalog
        await self.shard.index.call(catalog.save_plan, plan_id, _encode_plan(record), self.shard.now_ms() + PLAN_MS)
        return self._shown(p, plan_id, record, closure, ms, req)

    def _shown(self, p: Principal, plan_id: bytes, record: PlanRecord, closure: Closure, ms: float, req: Hold) -> Plan:
        t, c = p.tenant, p.tenant.columns
        nodes, depth = closure.nodes.tolist(), closure.depth.tolist()
        order = sorted(range(len(nodes)), key=lambda i: (depth[i], nodes[i]))
        seen = [i for i in order if may_see(p, nodes[i])]
        page = seen[req.cursor : req.cursor + PAGE_ITEMS_MAX]
        members = set(nodes)
        exposed = sum(1 for ctx in t.contexts.values() if not members.isdisjoint(ctx.served))
        hidden = len(nodes) - len(seen)
        visible = [nodes[i] for i in seen]
        return Plan(
            agent=p.key, request_id=req.request_id, plan=ids.text("plan_", plan_id), roots=[t.memory_id(r) for r in record.roots],
            members=[self.member(t, nodes[i], depth[i], members) for i in page], count=len(nodes), elsewhere=hidden,
            by_agent=_counted(t.agents.all[int(c.actor[s])].name for s in visible), by_project=_counted(t.project_names[int(c.project[s])] for s in visible),
            by_kind=_counted(KINDS[int(c.kind[s])] for s in visible), by_depth=_counted(str(depth[i]) for i in seen),
            suspects=[self.member(t, s, 0, members) for s in self.suspects(t, closure.nodes) if may_see(p, s)][:PAGE_ITEMS_MAX],
            mixed=sum(1 for s in visible if self._mixed(t, s, members)), already_held=int(np.count_nonzero(c.held[closure.nodes])),
            contexts_exposed=exposed, agents_to_tell=[a.name for a in t.served_agents(nodes)],
            reads_lost=sum(t.served_to[s].bit_count() for s in nodes), expires_at=rfc3339(self.shard.now_ms() + PLAN_MS), position=t.position,
            next=req.cursor + PAGE_ITEMS_MAX if req.cursor + PAGE_ITEMS_MAX < len(seen) else None, closure_ms=round(ms, 3),
        )  # fmt: skip

    def _mixed(self, t: Tenant, seq: int, members: set[int]) -> bool:
        """Whether it also derives from something that is not a member."""
        parents = [e.node for e in t.up.edges_of(seq) if e.kind in CLOSURE_KINDS]
        return any(parent in members for parent in parents) and any(parent not in members for parent in parents)

    def member(self, t: Tenant, seq: int, hops: int, members: set[int] | None = None) -> Member:
        c = t.columns
        return Member(
            id=t.memory_id(seq), agent=t.agents.all[int(c.actor[seq])].name, project=t.project_names[int(c.project[seq])],
            kind=KINDS[int(c.kind[seq])], hops=hops, state=t.current(seq, self.shard.now_ms()),
            mixed=self._mixed(t, seq, members) if members else False,
        )  # fmt: skip

    async def _load(self, p: Principal, plan: str, *, use: bool) -> PlanRecord:
        raw = ids.raw(plan) if plan.startswith("plan_") else None
        catalog, now_ms = self.shard.indexes[p.tenant.account].catalog, self.shard.now_ms()
        blob = await self.shard.index.call(catalog.load_plan, raw, now_ms) if raw else None
        if blob is None or raw is None:
            raise Refused("plan_unknown", field="plan")
        if use:
            await self.shard.index.call(catalog.use_plan, raw, now_ms)
        return _decode_plan(blob)

    # --- hold -------------------------------------------------------------------------------------
    async def hold(self, p: Principal, req: Hold) -> Case:
        """Apply a plan, or plan and apply at once. Runs as an operation: the sequencer is drained and stands still."""
        if not req.message.strip():
            raise Refused("message_missing", field="message")
        t = p.tenant
        plan_id = b""
        added: list[int] = []
        if req.plan:
            record = await self._load(p, req.plan, use=False)
            roots, plan_id = list(record.roots), ids.raw(req.plan) or b""
            closure, ms = self._closure(t, roots)
            added = self._drift(t, record, closure)
            extra = record.suspects
            await self._load(p, req.plan, use=True)
        else:
            roots = await self.roots(p, req.selector)
            closure, ms = self._closure(t, roots)
            extra = self.suspects(t, closure.nodes) if req.suspects else []
        start = time.perf_counter()
        case = self._set(p, roots, closure.nodes, req.message)
        await self._seal(p, case, plan_id, req.message)
        held_ms = (time.perf_counter() - start) * 1e3
        if extra:
            await self._hold_suspects(p, case, extra, req.message)
        self.tell(t, case, "recall")
        self._feed(t, case, "held")
        return self.shown(p, case, added=[t.memory_id(s) for s in added[:PAGE_ITEMS_MAX]], closure_ms=ms, hold_ms=held_ms, request_id=req.request_id)

    async def _hold_suspects(self, p: Principal, case: CaseState, extra: list[int], message: str) -> None:
        """Suspects are a case of their own with a time limit, so that releasing them leaves the main case alone."""
        t = p.tenant
        members = p.tenant.down.closure(extra, CLOSURE_KINDS).nodes
        suspects = self._set(p, extra, members, f"suspects of {case.text}: {message}", until_ms=self.shard.now_ms() + SUSPECT_HOLD_MS)
        await self._seal(p, suspects, b"", suspects.why)
        self.tell(t, suspects, "recall")
        self._feed(t, suspects, "held")

    def _drift(self, t: Tenant, record: PlanRecord, closure: Closure) -> list[int]:
        """New descendants since the plan (included, named). Refuses when a root was released or reviewed, policy changed or it grew too much."""
        planned = np.frombuffer(record.members, "<i4")
        added: list[int] = np.setdiff1d(closure.nodes, planned).tolist()
        changed = []
        if record.policy != t.policy:
            changed.append("policy")
        roots = set(record.roots)
        if any(k.released_position > record.generation and not roots.isdisjoint(k.roots) for k in t.cases.values()):
            changed.append("root_released")
        if any(t.reviewed_at.get(r, 0) > record.generation for r in roots):
            changed.append("root_reviewed")
        if len(added) > max(DRIFT_MIN, DRIFT_SHARE * len(planned)):
            changed.append("growth")
        if changed:
            raise Refused("plan_stale", reasons=("plan_stale", *changed), detail={"added": len(added), "planned": len(planned), "changed": changed})
        return added

    def _set(self, p: Principal, roots: list[int], members: Nodes, why: str, until_ms: int = 0) -> CaseState:
        """In memory first: from here on no read or write gets past it."""
        t, now_ms = p.tenant, self.shard.now_ms()
        case = CaseState(ids.new_raw(now_ms), p.agent.number, p.rights.person, why, roots, members, now_ms, CLOSURE_KINDS, until_ms=until_ms)
        t.cases[case.id] = case
        t.raise_holds(members)
        t.expose(case)
        return case

    async def _seal(self, p: Principal, case: CaseState, plan_id: bytes, why: str) -> None:
        t, now_ms = p.tenant, case.opened_ms
        parts = pack_members(case.members)
        stored: list[Stored] = [
            Stored(E.CasePart(ms=now_ms, case=case.id, part=i, count=count, deltas=deltas)) for i, (count, deltas) in enumerate(parts)
        ]
        told = t.served_agents(case.members.tolist())

        def seal(body: bytes) -> E.CaseOpened:
            return E.CaseOpened(
                ms=now_ms, case=case.id, agent=p.agent.id, person=p.rights.person, roots=case.roots, parts=len(parts), count=len(case.members),
                digest=members_digest(case.members), plan=plan_id, policy=t.policy, edges=list(CLOSURE_KINDS), until=case.until_ms, body=body,
            )  # fmt: skip

        stored.append(noted(seal, why, os.urandom(E.SALT_BYTES)))
        if told:
            stored.append(Stored(E.NoticeSent(ms=now_ms, case=case.id, kind="recall", agents=[a.id for a in told])))
        await self.shard.sequencer.commit(t, stored)

    # --- release and review -----------------------------------------------------------------------
    async def release(self, p: Principal, case_id: str, message: str, request_id: str) -> Case:
        """Remove exactly this case's holds. Runs as an operation."""
        if not message.strip():
            raise Refused("message_missing", field="message")
        t, case = p.tenant, self.find(p, case_id)
        if case.state == "released":
            raise Refused("case_closed", field="case")
        if case.state == "pending":
            raise Refused("case_pending", field="case")
        now_ms = self.shard.now_ms()
        stored = [
            noted(
                lambda body: E.CaseReleased(ms=now_ms, case=case.id, agent=p.agent.id, person=p.rights.person, body=body),
                message, os.urandom(E.SALT_BYTES),
            )
        ]  # fmt: skip
        if case.told:
            stored.append(Stored(E.NoticeSent(ms=now_ms, case=case.id, kind="released", agents=[t.agents.all[n].id for n in sorted(case.told)])))
        await self.shard.sequencer.commit(t, stored)
        self.tell(t, case, "released")
        self._feed(t, case, "released")
        return self.shown(p, case, request_id=request_id)

    async def release_overdue(self, t: Tenant) -> None:
        """Suspects' holds end by themselves when their time is over."""
        now_ms = self.shard.now_ms()
        for case in [k for k in t.cases.values() if k.until_ms and k.state == "open" and k.until_ms <= now_ms]:
            await self.shard.operators.barrier(t, lambda case=case: self._overdue(t, case))

    async def _overdue(self, t: Tenant, case: CaseState) -> None:
        if case.state != "open":
            return
        now_ms, by = self.shard.now_ms(), t.agents.all[case.agent].id
        stored = [Stored(E.CaseReleased(ms=now_ms, case=case.id, agent=by))]
        if case.told:
            stored.append(Stored(E.NoticeSent(ms=now_ms, case=case.id, kind="released", agents=[t.agents.all[n].id for n in sorted(case.told)])))
        await self.shard.sequencer.commit(t, stored)
        self.tell(t, case, "released")
        self._feed(t, case, "released")

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
                    lambda body: E.MemoryReviewed(ms=now_ms, memory=s, verdict=req.verdict, agent=p.agent.id, person=p.rights.person, body=body),
                    req.message, os.urandom(E.SALT_BYTES),
                )
            ],
        )  # fmt: skip
        return s

    # --- telling ----------------------------------------------------------------------------------
    def notice(self, t: Tenant, case: CaseState, kind: NoticeKind, agent: Agent) -> Notice:
        """What one agent is told: only ids that it was served itself."""
        bit = 1 << agent.number
        mine = [s for s in case.all_members().tolist() if t.served_to[s] & bit]
        return Notice(
            notice=f"{case.text}.{kind}", kind=kind, agent=agent.keys[-1], case=case.text, ids=[t.memory_id(s) for s in mine[:NOTICE_IDS_MAX]],
            total=len(mine), position=t.position,
        )  # fmt: skip

    def tell(self, t: Tenant, case: CaseState, kind: NoticeKind) -> None:
        for number in sorted(case.told):
            agent = t.agents.all[number]
            if (case.id, kind) in t.notices.get(number, {}):
                frame = self.notice(t, case, kind, agent)
                for key in agent.keys:
                    self.shard.push_notice(t, key, frame)

    def _feed(self, t: Tenant, case: CaseState, kind: FeedKind) -> None:
        c = t.columns
        groups: dict[tuple[str, int], list[str]] = {}
        for s in case.all_members().tolist():
            if not int(c.user[s]):
                groups.setdefault((t.project_names[int(c.project[s])], int(c.cls[s])), []).append(t.memory_id(s))
        for (project, cls), found in groups.items():
            for i in range(0, len(found), PAGE_ITEMS_MAX):
                self.shard.feed(t, project, cls, kind, found[i : i + PAGE_ITEMS_MAX])

    # --- showing ----------------------------------------------------------------------------------
    def find(self, p: Principal, case_id: str) -> CaseState:
        """A case by its id or the end of it."""
        t = p.tenant
        raw = ids.raw(case_id) if case_id.startswith("case_") else None
        if raw is not None and raw in t.cases:
            return t.cases[raw]
        bare = case_id.removeprefix("case_")
        found = [k for k in t.cases.values() if len(bare) >= 8 and k.text.endswith(bare)]
        if len(found) > 1:
            raise Refused("id_ambiguous", field="case")
        if not found:
            raise Refused("case_unknown", field="case")
        return found[0]

    def shown(
        self, p: Principal, case: CaseState, *, cursor: int = 0, added: list[str] | None = None, closure_ms: float = 0.0, hold_ms: float = 0.0,
        request_id: str = "", members: bool = True,
    ) -> Case:  # fmt: skip
        t = p.tenant
        everyone = case.all_members().tolist()
        seen = [s for s in everyone if may_see(p, s)]
        page = seen[cursor : cursor + PAGE_ITEMS_MAX] if members else []
        return Case(
            agent=p.key, request_id=request_id, case=case.text, state=case.state, by=t.agents.all[case.agent].name, person=case.person,
            why=case.why, roots=[t.memory_id(r) for r in case.roots if may_see(p, r)], count=len(everyone), joined=len(case.joined),
            added=added or [], members=[self.member(t, s, 0) for s in page], elsewhere=len(everyone) - len(seen),
            told=[t.agents.all[n].name for n in sorted(case.told)], acked=[t.agents.all[n].name for n in sorted(case.acked)],
            opened_at=rfc3339(case.opened_ms), released_at=rfc3339(case.released_ms) if case.released_ms else None,
            released_by=t.agents.all[case.released_by].name if case.released_by >= 0 else "", position=t.position,
            next=cursor + PAGE_ITEMS_MAX if members and cursor + PAGE_ITEMS_MAX < len(seen) else None,
            closure_ms=round(closure_ms, 3), hold_ms=round(hold_ms, 3),
        )  # fmt: skip


def may_see(p: Principal, seq: int) -> bool:
    """Operators see full records in their projects and up to their clearance, only counts elsewhere."""
    c = p.tenant.columns
    return p.tenant.project_names[int(c.project[seq])] in p.rights.projects and int(c.cls[seq]) <= p.rights.clearance


def resolve(p: Principal, id_: str) -> int:
    """tenant_seq of a memory that this operator may see, by its id or at least its last 8 characters."""
    t = p.tenant
    s = t.find(id_)
    if not s:
        found = [x for x in t.find_short(id_) if may_see(p, x)]
        if len(found) > 1:
            raise Refused("id_ambiguous", field="id")
        s = found[0] if found else 0
    if not s or not may_see(p, s):
        raise Refused("memory_unknown", field="id")
    return s


def find_agent(t: Tenant, name: str) -> Agent:
    """An agent by name, id or the end of its id."""
    agent = t.agents.by_name.get(name) or t.agents.by_key.get(name)
    if agent is None and len(name) >= 8:
        found = [a for a in t.agents.all if a.text.endswith(name)]
        agent = found[0] if len(found) == 1 else None
    if agent is None:
        raise Refused("agent_unknown", field="agent")
    return agent


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common(100))
