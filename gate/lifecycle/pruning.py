"""Ending what nobody needs, as a plan that an operator applies, and may have undone: pruning a project, compacting a task.

Invariants: a plan changes nothing; it is used once, within an hour, by who may see all its members; each member is looked at
again within the barrier, so what was read, held or promoted meanwhile stays.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from bus.frames import KINDS, Member, Prune, Pruned, Prunings
from bus.limits import LABEL_BYTES_MAX, PAGE_ITEMS_MAX, TTL_SECONDS_MAX
from gate import ids
from gate.config import PLAN_MS
from gate.containment.selection import resolve_tail
from gate.identify import Principal
from gate.ledger import events as E
from gate.pages import Page, following_older, newest_first
from gate.plan_kinds import refuse_other
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import decide_all, has_project, visible_rows
from gate.state.lives import Ended
from gate.state.tenant import Tenant
from gate.writing.sequencer import noted
from gate.writing.validate import text_ok

from .candidates import LOOKED_AT, Asked, Chosen, Rows, choose, closing_of, legally_held, reason_to_keep
from .ends import PRUNED, TASK, end_events
from .promotion import lives_on

if TYPE_CHECKING:
    from gate.shard import Shard


LISTED_MAX: Final = 100


class Kept(msgspec.Struct, frozen=True, array_like=True, tag="prune"):
    """A plan in the catalog's plan table, for an hour."""

    members: list[int]
    project: int
    kinds: list[int]
    before_ms: int
    task: int
    closing: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode


class Pruning:
    """All methods run on the loop. Raise Refused."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    async def answer(self, p: Principal, req: Prune) -> Pruned | Prunings:
        match req.action:
            case "plan":
                return await self._plan(p, req)
            case "apply":
                return await self._apply(p, req)
            case "undo":
                return await self._undo(p, req)
        return await self._list(p, req)

    # --- plan -----------------------------------------------------------------------------------------
    async def _plan(self, p: Principal, req: Prune) -> Pruned:
        t, now_ms = p.tenant, self.shard.now_ms()
        asked = _asked(p, req, now_ms)
        chosen = await choose(t, asked, _seen_by(p), now_ms)
        plan, until = ids.new_raw(now_ms), now_ms + PLAN_MS
        kept = Kept(chosen.members, asked.project, sorted(asked.kinds), asked.before_ms, asked.task, asked.closing)
        if chosen.members:
            catalog = self.shard.indexes[t.account].catalog
            await self.shard.index.call(catalog.save_plan, plan, _encode(kept), until, now_ms)
        return self._planned(p, plan if chosen.members else b"", until, chosen, asked, req.request_id)

    def _planned(self, p: Principal, plan: bytes, until: int, chosen: Chosen, asked: Asked, request_id: str) -> Pruned:
        t, at = p.tenant, p.tenant.columns.at
        return Pruned(
            agent=p.key,
            request_id=request_id,
            project=t.project_names[asked.project],
            plan=ids.text("plan_", plan) if plan else "",
            state="plan",
            why=TASK if asked.task else PRUNED,
            members=self._members(t, chosen.members[:PAGE_ITEMS_MAX]),
            count=len(chosen.members),
            more=chosen.more,
            promoted=sum(lives_on(t, s, self.shard.now_ms()) for s in chosen.members) if asked.task else 0,
            by_kind=dict(Counter(KINDS[at.kind[s]] for s in chosen.members)),
            by_agent=dict(Counter(t.agents.all[at.actor[s]].name for s in chosen.members).most_common(100)),
            kept=chosen.kept,
            until=rfc3339(until) if plan else "",
            position=t.position,
        )

    # --- apply ----------------------------------------------------------------------------------------
    async def _apply(self, p: Principal, req: Prune) -> Pruned:
        _must_say_why(req)
        t = p.tenant
        plan, kept = await self._load(p, req.plan)

        async def run() -> bytes:
            now_ms = self.shard.now_ms()
            if plan in t.plans_used:
                raise Refused("plan_unknown", field="plan")
            members = await _still(p, kept, now_ms)
            if not members:
                raise Refused("prune_nothing", field="plan")
            [event] = end_events(p, np.array(members, np.int32), TASK if kept.task else PRUNED, req.message, now_ms, plan)
            await self.shard.sequencer.commit(t, [event])
            self.shard.index_later(self.shard.indexes[t.account].catalog.use_plan, plan, now_ms)
            assert isinstance(event.event, E.LifeEnded)
            return event.event.end

        end = t.ends[await self.shard.operators.acting(p, run)]
        return self._shown(p, end, req.request_id, left=len(kept.members) - len(end.members))

    async def _load(self, p: Principal, plan: str) -> tuple[bytes, Kept]:
        t, now_ms = p.tenant, self.shard.now_ms()
        catalog = self.shard.indexes[t.account].catalog
        bare = plan.removeprefix("plan_")
        known = await self.shard.index.call(catalog.plan_ids, now_ms) if 8 <= len(bare) <= ids.ID_CHARS else []
        found = [x for x in known if ids.text("", x).endswith(bare)]
        blob = await self.shard.index.call(catalog.load_plan, found[0], now_ms) if len(found) == 1 else None
        kept = _kept(p, blob) if blob else None
        if kept is None or found[0] in t.plans_used or not decide_all(p, kept.members):
            raise Refused("plan_unknown", field="plan")
        return found[0], kept

    # --- undo and list --------------------------------------------------------------------------------
    async def _undo(self, p: Principal, req: Prune) -> Pruned:
        _must_say_why(req)
        t = p.tenant
        found = [x for x in resolve_tail(t.ends.values(), req.end, "end_") if decide_all(p, x.members.tolist())]
        if len(found) != 1:
            raise Refused("id_ambiguous" if found else "end_unknown", field="end")
        end = found[0]

        async def run() -> None:
            if end.resumed_ms:
                raise Refused("end_undone", field="end")
            now_ms, by, person = self.shard.now_ms(), p.agent.id, p.rights.person
            event = noted(
                lambda body: E.LifeResumed(ms=now_ms, end=end.id, agent=by, person=person, body=body),
                req.message,
                os.urandom(E.SALT_BYTES),
            )
            await self.shard.sequencer.commit(t, [event])

        await self.shard.operators.acting(p, run)
        return self._shown(p, end, req.request_id)

    async def _list(self, p: Principal, req: Prune) -> Prunings:
        """Newest first, without members; of those elsewhere nothing is told."""
        t, place = p.tenant, attrgetter("position")
        ends, page, looked_at = newest_first(t.ends.values(), req.cursor, place), Page[Pruned](), 0
        for x in ends[:LISTED_MAX]:
            if (seen := visible_rows(p, x.members)) and not page.add(self._told(p, x, "", seen)):
                break
            looked_at += 1
            await asyncio.sleep(0)
        more = following_older(ends, looked_at, place)
        return Prunings(agent=p.key, request_id=req.request_id, ends=page.items, position=t.position, next=more)

    def _shown(self, p: Principal, end: Ended, request_id: str, left: int = 0) -> Pruned:
        seen = visible_rows(p, end.members)
        told, members = self._told(p, end, request_id, seen), self._members(p.tenant, seen[:PAGE_ITEMS_MAX])
        return msgspec.structs.replace(told, members=members, left=left)

    def _told(self, p: Principal, end: Ended, request_id: str, seen: list[int]) -> Pruned:
        t = p.tenant
        return Pruned(
            agent=p.key,
            request_id=request_id,
            end=end.text,
            state="undone" if end.resumed_ms else "ended",
            why=end.why,
            message=end.note,
            by=t.agents.all[end.agent].name,
            count=len(seen),
            ended_at=rfc3339(end.ms),
            undone_at=rfc3339(end.resumed_ms) if end.resumed_ms else None,
            position=t.position,
        )

    def _members(self, t: Tenant, seqs: list[int]) -> list[Member]:
        return [self.shard.holds.plans.member(t, s, 0) for s in seqs]


def _seen_by(p: Principal) -> Callable[[Rows], list[int]]:
    return lambda rows: visible_rows(p, rows)


def _asked(p: Principal, req: Prune, now_ms: int) -> Asked:
    t = p.tenant
    project = t.projects.get(req.project) if has_project(p, req.project) else None
    if project is None:
        raise Refused("project_unknown", field="project")
    if not 0 <= req.older_than <= TTL_SECONDS_MAX:
        raise Refused("out_of_range", field="older_than", limit=TTL_SECONDS_MAX)
    kinds = frozenset(KINDS.index(k) for k in req.kinds)
    before_ms = now_ms - req.older_than * 1_000
    if not req.task:
        return Asked(project.number, kinds, before_ms)
    text_ok(req.task, "task", LABEL_BYTES_MAX)
    task = int.from_bytes(t.label_hash(req.task), "big", signed=True)
    return Asked(project.number, kinds, before_ms, task, closing_of(t, project.number, task, _seen_by(p)))


async def _still(p: Principal, kept: Kept, now_ms: int) -> list[int]:
    """Members of a plan that may end now. Refuses for a task that was taken up again."""
    t, at = p.tenant, p.tenant.columns.at
    asked = Asked(kept.project, frozenset(kept.kinds), kept.before_ms, kept.task, kept.closing)
    if kept.task:
        closing_of(t, kept.project, kept.task, _seen_by(p))
    legal = legally_held(t)
    found: list[int] = []
    for start in range(0, len(kept.members), LOOKED_AT):
        alive = [
            s for s in kept.members[start : start + LOOKED_AT] if not (at.erased[s] or at.ended[s]) and at.expires[s] > now_ms
        ]
        found += [s for s in alive if not reason_to_keep(t, s, asked, legal, now_ms)]
        await asyncio.sleep(0)
    return found


def _kept(p: Principal, blob: bytes) -> Kept | None:
    try:
        return _decode(blob)
    except msgspec.MsgspecError:
        refuse_other(p, blob)
        return None


def _must_say_why(req: Prune) -> None:
    if not req.message.strip():
        raise Refused("message_missing", field="message")
