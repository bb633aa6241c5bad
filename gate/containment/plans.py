"""Plans: what a hold would do, kept for an hour, and whether it still says the truth when it is applied."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt

from bus.frames import KINDS, Hold, Member, Plan, PlanKind
from bus.limits import PAGE_ITEMS_MAX
from gate import ids
from gate.config import PLAN_MS
from gate.identify import Principal
from gate.ledger import events as E
from gate.pages import following
from gate.plan_kinds import refuse_other
from gate.projections import ProjectionUnwritable
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import counted_rows, decide, decide_all, visible_rows
from gate.state.principals import Agent
from gate.state.tenant import Tenant
from gate.steps import in_parts

from .closure import Closure
from .rollback import current_again, written_since
from .selection import find_sources, names_of, select

if TYPE_CHECKING:
    from gate.shard import Shard

CLOSURE_KINDS: Final = (E.DECLARED, E.COPIED, E.EDGE_KINDS.index("via_resource"))  # exposed isn't infected
SUSPECT_CONFIDENCE: Final = 128  # of 255
DRIFT_MIN: Final = 100
DRIFT_SHARE: Final = 0.10
KEPT_MAX: Final = 32  # plans at hand: applying a fresh one waits for no index thread
OFF_LOOP_EDGES: Final = 20_000  # a graph this small is walked in well under a millisecond
PART: Final = 512  # nodes of a closure that are looked at before others are served: a few milliseconds
SHOWN: Final = 64  # the same of a page's members
EDGES: Final = 2_048  # the same of edges: one node may have as many as there are

Nodes = npt.NDArray[np.int32]


class PlanRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a plan for its 60 minutes, in the tenant's catalog."""

    roots: list[int]
    members: bytes  # int32 little endian, ascending
    suspects: list[int]
    policy: int
    generation: int
    agent: bytes
    rollback: bytes = b""  # the case that it goes back before

    @property
    def kind(self) -> PlanKind:
        return "rollback" if self.rollback else "hold"


_encode_plan = msgspec.msgpack.Encoder().encode
_decode_plan = msgspec.msgpack.Decoder(PlanRecord).decode


class Plans:
    """Plans of a shard's tenants. Changes nothing but the plan table."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._kept: dict[tuple[str, bytes], tuple[PlanRecord, int]] = {}  # (account, id) → (plan, when it expires), newest last

    async def closure(
        self,
        t: Tenant,
        roots: Sequence[int],
        kinds: Collection[int] = CLOSURE_KINDS,
        *,
        up: bool = False,
        hops: int | None = None,
    ) -> tuple[Closure, float]:
        """The closure of `roots` and the milliseconds it took; a large graph is walked off the loop."""
        start, graph = time.perf_counter(), t.up if up else t.down
        if graph.edges > OFF_LOOP_EDGES:
            closure = await asyncio.to_thread(graph.closure, roots, kinds, hops)
        else:
            closure = graph.closure(roots, kinds, hops)
        return closure, (time.perf_counter() - start) * 1e3

    async def suspects(self, t: Tenant, members: Nodes) -> list[int]:
        """Children by a served edge over the threshold that are not members themselves."""
        known = set(members.tolist())
        edges = chain.from_iterable(map(t.down.each, members.tolist()))
        out = set[int]()
        while part := [*islice(edges, EDGES)]:
            out |= {e.node for e in part if e.kind == E.SERVED and e.confidence >= SUSPECT_CONFIDENCE and e.node not in known}
            await asyncio.sleep(0)
        return sorted(out)

    async def plan(self, p: Principal, req: Hold) -> Plan:
        """Show what a hold would do and keep it for an hour. Changes nothing."""
        if req.plan:
            plan_id, record = await self.load(p, req.plan)
            before = p.tenant.cases.get(record.rollback)
            above = written_since(p, before).unseen if before is not None else []  # what came of these may be seen
            closure, _ = await self.closure(p.tenant, record.roots + above)
            return await self._shown(p, plan_id, record, closure, await self.suspects(p.tenant, closure.nodes), 0.0, req)
        t, case = p.tenant, self.shard.holds.find(p, req.rollback) if req.rollback else None
        unseen: list[int] = []
        if case is not None:
            roots, unseen = written_since(p, case)
        else:
            roots = select(p, req.selector, await find_sources(self.shard, p, req.selector))
        policy, generation = t.policy, t.generation  # what comes while it is worked out is drift
        closure, ms = await self.closure(t, roots + unseen)
        suspects = await self.suspects(t, closure.nodes)
        record = PlanRecord(
            roots, closure.nodes.astype("<i4").tobytes(), suspects if req.suspects else [], policy, generation, p.agent.id,
            case.id if case is not None else b"",
        )  # fmt: skip
        now_ms = self.shard.now_ms()
        plan_id, expires_ms = ids.new_raw(now_ms), now_ms + PLAN_MS
        catalog = self.shard.indexes[t.account].catalog
        with suppress(ProjectionUnwritable):  # it is kept in memory as well
            await self.shard.index.call(catalog.save_plan, plan_id, _encode_plan(record), expires_ms, now_ms)
        self._kept[t.account, plan_id] = record, expires_ms
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return await self._shown(p, plan_id, record, closure, suspects, ms, req)

    async def _shown(
        self, p: Principal, plan_id: bytes, record: PlanRecord, closure: Closure, suspects: list[int], ms: float, req: Hold
    ) -> Plan:
        t, at = p.tenant, p.tenant.columns.at
        closure = counted_of(p, closure)
        nodes, seen = closure.nodes.tolist(), seen_of(p, closure)
        visible = seen.nodes.tolist()
        cursor = max(0, req.cursor)
        page = slice(cursor, cursor + PAGE_ITEMS_MAX)
        members = set(nodes)
        agents, projects, kinds = Counter[str](), Counter[str](), Counter[str]()
        mixed = reads = exposed = 0
        async for part in in_parts(visible, PART):
            agents.update(t.agents.all[at.actor[s]].name for s in part)
            projects.update(t.project_names[at.project[s]] for s in part)
            kinds.update(KINDS[at.kind[s]] for s in part)
            mixed += sum(1 for s in part if self._mixed(t, s, members))
        async for part in in_parts(nodes, PART):
            reads += sum(map(t.served_to.count, part))
        told = await agents_served(t, closure.nodes)
        async for some in in_parts(list(t.contexts.values()), PART):
            exposed += sum(1 for ctx in some if not members.isdisjoint(ctx.served))
        names = await names_of(p, told)
        roots = visible_rows(p, np.array(record.roots, np.int32))
        suspects = visible_rows(p, np.array(suspects, np.int32))
        again = [s for s in current_again(t, closure.nodes, self.shard.now_ms()) if decide(p, s)]
        return Plan(
            agent=p.key,
            request_id=req.request_id,
            plan=ids.text("plan_", plan_id),
            roots=[t.memory_id(r) for r in roots[page]],
            roots_count=len(roots),
            members=await self.members(t, visible[page], seen.depth[page].tolist(), members),
            count=len(nodes),
            elsewhere=len(nodes) - len(visible),
            by_agent=_most(agents),
            by_project=_most(projects),
            by_kind=_most(kinds),
            by_depth=_most(Counter(map(str, seen.depth.tolist()))),
            suspects=await self.members(t, suspects[page], [0] * len(suspects[page]), members),
            suspects_count=len(suspects),
            mixed=mixed,
            already_held=int(np.count_nonzero(t.columns.held[closure.nodes])),
            contexts_exposed=exposed,
            agents_to_tell=names[page],
            agents_to_tell_count=len(names),
            told_elsewhere=len(told) - len(names),
            reads_lost=reads,
            expires_at=rfc3339(ids.made_ms(plan_id) + PLAN_MS),
            position=t.position,
            next=following(cursor, PAGE_ITEMS_MAX, max(len(x) for x in (visible, roots, suspects, again, names))),
            closure_ms=round(ms, 3),
            again=await self.members(t, again[page], [0] * len(again[page])),
            again_count=len(again),
            rollback=ids.text("case_", record.rollback) if record.rollback else "",
        )

    def _mixed(self, t: Tenant, seq: int, members: set[int]) -> bool:
        """Whether it also derives from something that is not a member."""
        inside = [e.node in members for e in t.up.edges_of(seq) if e.kind in CLOSURE_KINDS]
        return any(inside) and not all(inside)

    async def members(self, t: Tenant, seqs: list[int], hops: list[int], members: set[int] | None = None) -> list[Member]:
        """A page of them, in parts: each may have 128 parents to look at."""
        shown: list[Member] = []
        async for part in in_parts([*zip(seqs, hops, strict=True)], SHOWN):
            shown += [self.member(t, s, n, members) for s, n in part]
        return shown

    def member(self, t: Tenant, seq: int, hops: int, members: set[int] | None = None) -> Member:
        """`members`: what it is a member of; None where it's a node of a trace, which is never mixed."""
        at = t.columns.at
        return Member(
            id=t.memory_id(seq),
            agent=t.agents.all[at.actor[seq]].name,
            project=t.project_names[at.project[seq]],
            kind=KINDS[at.kind[seq]],
            hops=hops,
            state=t.current(seq, self.shard.now_ms()),
            mixed=self._mixed(t, seq, members) if members else False,
        )

    async def load(self, p: Principal, plan: str) -> tuple[bytes, PlanRecord]:
        """A plan by its id or at least the last 8 characters of it. May wait for the index thread: never inside a barrier."""
        raw = ids.raw(plan) if plan.startswith("plan_") else None
        found = []
        for plan_id in [raw] if raw else await self._ending(p.tenant, plan.removeprefix("plan_")):
            record = await self._record(p, plan_id)
            if record is not None and self._usable(p, plan_id, record):
                found.append((plan_id, record))
        if len(found) > 1:
            raise Refused("id_ambiguous", field="plan")
        if not found:
            raise Refused("plan_unknown", field="plan")
        return found[0]

    def use(self, p: Principal, plan_id: bytes, record: PlanRecord) -> None:
        """Once: inside a barrier, where nobody else uses it meanwhile."""
        t = p.tenant
        if not self._usable(p, plan_id, record):
            raise Refused("plan_unknown", field="plan")
        t.plans_used.add(plan_id)
        self._kept.pop((t.account, plan_id), None)
        catalog, now_ms = self.shard.indexes[t.account].catalog, self.shard.now_ms()

        def note() -> None:
            with suppress(ProjectionUnwritable):  # `case_opened` names it, too
                catalog.use_plan(plan_id, now_ms)

        self.shard.index_later(note)

    def _usable(self, p: Principal, plan_id: bytes, record: PlanRecord) -> bool:
        """A plan may be handed on, to who could have made it."""
        return plan_id not in p.tenant.plans_used and decide_all(p, record.roots)

    async def _ending(self, t: Tenant, tail: str) -> list[bytes]:
        """Plans whose id ends so."""
        if not 8 <= len(tail) <= ids.ID_CHARS:
            return []

        def ending(known: Iterable[bytes]) -> list[bytes]:
            return [x for x in known if ids.text("", x).endswith(tail)]

        kept = ending(plan_id for account, plan_id in self._kept if account == t.account)
        if kept:
            return kept
        catalog, now_ms = self.shard.indexes[t.account].catalog, self.shard.now_ms()
        return ending(await self.shard.index.call(catalog.plan_ids, now_ms))

    async def _record(self, p: Principal, plan_id: bytes) -> PlanRecord | None:
        t, now_ms = p.tenant, self.shard.now_ms()
        kept = self._kept.get((t.account, plan_id))
        if kept is not None:
            return kept[0] if kept[1] > now_ms else None
        catalog = self.shard.indexes[t.account].catalog
        blob = await self.shard.index.call(catalog.load_plan, plan_id, now_ms)
        if blob is None:
            return None
        try:
            return _decode_plan(blob)
        except msgspec.MsgspecError:
            refuse_other(p, blob)
            return None

    def drift(self, p: Principal, record: PlanRecord, closure: Closure) -> list[int]:
        """New descendants since the plan (included, named). Refuses when a root was released or reviewed, policy changed or
        it grew too much, as far as it counts for the operator.
        """
        t, planned = p.tenant, counted_rows(p, np.frombuffer(record.members, "<i4"))
        added: list[int] = counted_rows(p, np.setdiff1d(closure.nodes, planned)).tolist()
        changed = []
        if record.policy != t.policy:
            changed.append("policy")
        roots = set(record.roots)
        if any(k.released_position > record.generation and not roots.isdisjoint(k.roots) for k in t.cases.values()):
            changed.append("root_released")
        if any(t.reviewed_at[r] > record.generation for r in t.reviewed_at.keys() & roots):
            changed.append("root_reviewed")
        if len(added) > max(DRIFT_MIN, DRIFT_SHARE * len(planned)):
            changed.append("growth")
        if changed:
            raise Refused(
                "plan_stale",
                reasons=("plan_stale", *changed),
                detail={"added": len(added), "planned": len(planned), "changed": changed},
            )
        return added


async def agents_served(t: Tenant, members: Nodes) -> list[Agent]:
    """Those that were ever served any of these memories, in order of number. Looked through in parts: who is served one meanwhile
    may be missing, so members of a hold are held before.
    """
    told = set[int]()
    async for part in in_parts(members.tolist(), PART):
        told.update(t.served_to.agents(part))
    return [t.agents.all[number] for number in sorted(told)]


def counted_of(p: Principal, closure: Closure) -> Closure:
    """What of a closure counts for an operator."""
    here = np.isin(closure.nodes, counted_rows(p, closure.nodes), assume_unique=True)
    return Closure(closure.nodes[here], closure.depth[here])


def seen_of(p: Principal, closure: Closure) -> Closure:
    """What of a closure an operator may see: the nearest first, of one depth the oldest."""
    here = np.isin(closure.nodes, np.array(visible_rows(p, closure.nodes), np.int32), assume_unique=True)
    nodes, depth = closure.nodes[here], closure.depth[here]
    order = np.lexsort((nodes, depth))
    return Closure(nodes[order], depth[order])


def _most(counted: Counter[str]) -> dict[str, int]:
    return dict(counted.most_common(100))
