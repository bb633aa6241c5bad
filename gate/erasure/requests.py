"""What operators ask about erasures: what one would erase, the request, a second person's yes, receipts, legal holds.

Erasing can't be undone. Invariants: nobody erases what they may not see; where an open case or a legal hold has a memory, two
different persons (`person:` of their credentials) have agreed, on exactly these memories, within an hour; what holds is looked at
again within the barrier, just before the event.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np

from bus.frames import Erase, Erasure, ErasureQuery, Erasures, LegalHold, LegalHoldRequest, LegalHolds, Store
from bus.limits import PAGE_ITEMS_MAX
from gate import ids
from gate.config import PLAN_MS
from gate.containment.plans import CLOSURE_KINDS
from gate.containment.selection import find_sources, resolve_tail, select
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.members import PART_MEMBERS_MAX, pack_members
from gate.pages import filled, following, following_older, newest_first
from gate.plan_kinds import refuse_other
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import counted_rows, decide_all, visible_rows
from gate.state import erasures as state
from gate.state.cases import CaseState
from gate.state.tenant import Tenant
from gate.writing.sequencer import Stored, noted

from .stores import STORES, WITHOUT_TEXT

if TYPE_CHECKING:
    from gate.shard import Shard

ERASE_MAX: Final = PART_MEMBERS_MAX  # of one request: they stand in one event, so it is in force whole or not at all
WAIT_S: Final = 2.0  # a receipt waits so long for the stores, well within a client's time-out
LISTED_MAX: Final = 100
_by_position: Final = attrgetter("position")
COPIES: Final = "copies that were made elsewhere before (backups, snapshots in other folders): this home can't reach them"
RAFT: Final = "raft logs of the broker's {} replicas keep the original until these compact them, in some three minutes"


class Asked(msgspec.Struct, frozen=True, array_like=True, tag="erase"):
    """A request that waits for a second person, in the catalog's plan table for an hour."""

    members: list[int]
    derived: int
    agent: bytes
    person: str
    message: str


class Chosen(msgspec.Struct, frozen=True):
    """What a request names. `derived`: members that only derive from it; `left`: those that stay."""

    members: list[int]
    derived: int
    left: list[int]
    elsewhere: int  # that derive from it where this operator may not look


class Consent(msgspec.Struct, frozen=True):
    """The other person's yes."""

    agent: bytes
    person: str


OfMembers = TypeVar("OfMembers", state.Erasure, state.LegalHold)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Asked).decode


class Requests:
    """All methods run on the loop. Raise Refused."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    # --- erase ----------------------------------------------------------------------------------------
    async def erase(self, p: Principal, req: Erase) -> Erasure:
        """A plan (dry run), a request that needs nobody else, or the second person's yes to one that does."""
        if req.agree:
            return await self._agree(p, req)
        if not req.dry_run and not req.message.strip():
            raise Refused("message_missing", field="message")
        chosen = await self._chosen(p, req)
        if req.dry_run:
            return self._planned(p, chosen, req.request_id)
        if len(chosen.members) > ERASE_MAX:
            raise Refused("too_long", field="selector", limit=ERASE_MAX)
        asked = Asked(chosen.members, chosen.derived, p.agent.id, p.rights.person, req.message)
        if self._contested(p.tenant, chosen.members):
            raise await self._needs_second(p, asked)
        return await self._carry_out(p, asked, None, req.request_id)

    async def _chosen(self, p: Principal, req: Erase) -> Chosen:
        """What is named and not erased yet, and what derives from it."""
        t = p.tenant
        erased = t.columns.erased
        roots = select(p, req.selector, await find_sources(self.shard, p, req.selector))
        closure, _ = await self.shard.holds.plans.closure(t, roots, CLOSURE_KINDS)
        below = closure.nodes[erased[closure.nodes] == 0]
        below = counted_rows(p, below[~np.isin(below, roots)])
        seen = visible_rows(p, below)
        members = [s for s in roots if not erased[s]]
        named = len(members)
        if req.derived:
            members = sorted({*members, *seen})
        if not members and not seen:
            raise Refused("erased_already", field="selector")
        return Chosen(members, len(members) - named, [] if req.derived else seen, len(below) - len(seen))

    async def _needs_second(self, p: Principal, asked: Asked) -> Refused:
        """Keep the request for an hour, and say who must agree to it."""
        if not p.rights.person:
            return Refused("person_missing")
        t = p.tenant
        catalog, now_ms = self.shard.indexes[t.account].catalog, self.shard.now_ms()
        request = ids.new_raw(now_ms)
        await self.shard.index.call(catalog.save_plan, request, _encode(asked), now_ms + PLAN_MS, now_ms)
        cases, holds = _cases(t, asked.members), _legal_holds(t, asked.members)
        detail = {
            "request": ids.text("plan_", request),
            "cases": [k.text for k in cases[:LISTED_MAX]],
            "cases_count": len(cases),
            "legal_holds": [h.text for h in holds[:LISTED_MAX]],
            "legal_holds_count": len(holds),
            "memories": len(asked.members),
        }
        return Refused("erasure_contested", detail=detail)

    async def _agree(self, p: Principal, req: Erase) -> Erasure:
        t, now_ms = p.tenant, self.shard.now_ms()
        catalog = self.shard.indexes[t.account].catalog
        raw = ids.raw(req.agree) or await self._ending(t, req.agree)
        blob = await self.shard.index.call(catalog.load_plan, raw, now_ms) if raw else None
        asked = _asked(p, blob) if blob else None
        if raw is None or asked is None or not decide_all(p, asked.members) or asked.agent not in t.agents.by_id:
            raise Refused("erasure_request_unknown", field="agree")
        if not p.rights.person:
            raise Refused("person_missing")
        if p.rights.person == asked.person or p.agent.id == asked.agent:
            raise Refused("second_person_needed", field="agree")
        if t.agents.by_id[asked.agent].whole or not await self.shard.index.call(catalog.use_plan, raw, now_ms):
            raise Refused("erasure_request_unknown", field="agree")
        return await self._carry_out(p, asked, Consent(p.agent.id, p.rights.person), req.request_id)

    async def _ending(self, t: Tenant, tail: str) -> bytes | None:
        """A request by the end of its id."""
        bare = tail.removeprefix("plan_")
        if not 8 <= len(bare) <= ids.ID_CHARS:
            return None
        known = await self.shard.index.call(self.shard.indexes[t.account].catalog.plan_ids, self.shard.now_ms())
        found = [x for x in known if ids.text("", x).endswith(bare)]
        return found[0] if len(found) == 1 else None

    def _contested(self, t: Tenant, members: list[int]) -> bool:
        return bool(_cases(t, members) or _legal_holds(t, members))

    async def _carry_out(self, p: Principal, asked: Asked, second: Consent | None, request_id: str) -> Erasure:
        t, id_ = p.tenant, ids.new_raw(self.shard.now_ms())

        async def run() -> None:
            members = [s for s in asked.members if not t.columns.at.erased[s]]
            if not members:
                raise Refused("erased_already")
            if second is None and self._contested(t, members):
                raise Refused("erasure_contested")  # since it was looked at: ask again, and it is kept for a second person
            derived = min(asked.derived, len(members))
            await self.shard.sequencer.commit(t, [self._event(id_, asked, members, derived, second)])

        await self.shard.operators.acting(p, run)
        erasure = t.erasures[id_]
        self.shard.holds.notices.feed_members(t, erasure.members, "erased")
        self.shard.erasures.wake.set()
        await self.shard.erasures.done(erasure, WAIT_S)
        return self._shown(p, erasure, request_id)

    def _event(self, id_: bytes, asked: Asked, members: list[int], derived: int, second: Consent | None) -> Stored:
        [(count, deltas)] = pack_members(members)

        def event(body: bytes) -> E.AnyEvent:
            return E.MemoryErased(
                ms=self.shard.now_ms(),
                erasure=id_,
                agent=asked.agent,
                person=asked.person,
                second=second.person if second else "",
                second_agent=second.agent if second else b"",
                count=count,
                deltas=deltas,
                derived=derived,
                body=body,
            )

        return noted(event, asked.message, os.urandom(E.SALT_BYTES))

    # --- receipts -------------------------------------------------------------------------------------
    def receipts(self, p: Principal, req: ErasureQuery) -> Erasure | Erasures:
        """One receipt with a page of its members, or (erasure empty) a page of all, newest first, without members."""
        t = p.tenant
        if req.erasure:
            found = resolve_tail(_told_of(p, t.erasures.values()), req.erasure, "era_")
            if len(found) != 1:
                raise Refused("id_ambiguous" if found else "erasure_unknown", field="erasure")
            return self._shown(p, found[0], req.request_id, max(0, req.cursor))
        newest = newest_first(_told_of(p, t.erasures.values()), req.cursor, _by_position)
        page = filled((msgspec.structs.replace(self._shown(p, e, ""), members=[], next=None) for e in newest), LISTED_MAX)
        more = following_older(newest, len(page), _by_position)
        return Erasures(agent=p.key, request_id=req.request_id, erasures=page, position=t.position, next=more)

    def _shown(self, p: Principal, e: state.Erasure, request_id: str, cursor: int = 0) -> Erasure:
        t = p.tenant
        seen = visible_rows(p, e.members)
        page = seen[cursor : cursor + PAGE_ITEMS_MAX]
        text = bool(seen) or e.agent == p.agent.number  # of an erasure elsewhere only counts are told
        count = len(counted_rows(p, e.members))
        most = count if count < len(e.members) else sys.maxsize
        return Erasure(
            agent=p.key,
            request_id=request_id,
            erasure=e.text,
            state="done" if e.done_ms else "erasing",
            by=t.agents.all[e.agent].name,
            person=e.person if text else "",
            second=e.second if text else "",
            why=e.why if text else "",
            members=[self.shard.holds.plans.member(t, s, 0) for s in page],
            count=count,
            derived=min(e.derived, count),
            elsewhere=count - len(seen),
            stores=stores_of(e, most),
            pending=[] if e.done_ms else self.shard.erasures.pending(e, most),
            out_of_reach=self.out_of_reach(),
            erased_at=rfc3339(e.ms),
            done_at=rfc3339(e.done_ms) if e.done_ms else None,
            position=t.position,
            next=following(cursor, PAGE_ITEMS_MAX, len(seen)),
        )

    def _planned(self, p: Principal, chosen: Chosen, request_id: str) -> Erasure:
        t, member = p.tenant, self.shard.holds.plans.member
        cases, holds = _cases(t, chosen.members), _legal_holds(t, chosen.members)
        return Erasure(
            agent=p.key,
            request_id=request_id,
            state="plan",
            members=[member(t, s, 0) for s in chosen.members[:PAGE_ITEMS_MAX]],
            count=len(chosen.members),
            derived=chosen.derived,
            left=[member(t, s, 0) for s in chosen.left[:PAGE_ITEMS_MAX]],
            left_count=len(chosen.left),
            elsewhere=chosen.elsewhere,
            cases=[k.text for k in cases[:LISTED_MAX]],
            cases_count=len(cases),
            legal_holds=[h.text for h in holds[:LISTED_MAX]],
            legal_holds_count=len(holds),
            out_of_reach=self.out_of_reach(),
            position=t.position,
        )

    def out_of_reach(self) -> list[str]:
        """Where text may be that no erasure of this home gets at."""
        replicas = self.shard.ledger_replicas
        return [COPIES, *([RAFT.format(replicas)] if replicas > 1 else [])]

    # --- legal holds ----------------------------------------------------------------------------------
    async def legal_hold(self, p: Principal, req: LegalHoldRequest) -> LegalHolds:
        """Place one, lift one, or list them all."""
        t = p.tenant
        placed: state.LegalHold | None = None
        if req.selector or req.lift:
            if not req.message.strip():
                raise Refused("message_missing", field="message")
            if not p.rights.person:
                raise Refused("person_missing")
            placed = await (self._lift(p, req) if req.lift else self._place(p, req))
        shown = [placed] if placed else newest_first(_told_of(p, t.legal_holds.values()), req.cursor, _by_position)
        holds = filled((self._legal_hold_shown(p, h) for h in shown), LISTED_MAX)
        more = following_older(shown, len(holds), _by_position)
        return LegalHolds(agent=p.key, request_id=req.request_id, holds=holds, position=t.position, next=more)

    async def _place(self, p: Principal, req: LegalHoldRequest) -> state.LegalHold:
        t, id_ = p.tenant, ids.new_raw(self.shard.now_ms())
        found = select(p, req.selector, await find_sources(self.shard, p, req.selector))
        if len(found) > ERASE_MAX:
            raise Refused("too_long", field="selector", limit=ERASE_MAX)

        async def run() -> None:
            members = [s for s in found if not t.columns.at.erased[s]]
            if not members:
                raise Refused("erased_already", field="selector")
            [(count, deltas)] = pack_members(members)
            now_ms, by, person = self.shard.now_ms(), p.agent.id, p.rights.person
            event = noted(
                lambda body: E.LegalHoldPlaced(
                    ms=now_ms, hold=id_, agent=by, person=person, count=count, deltas=deltas, body=body
                ),
                req.message,
                os.urandom(E.SALT_BYTES),
            )
            await self.shard.sequencer.commit(t, [event])

        await self.shard.operators.acting(p, run)
        return t.legal_holds[id_]

    async def _lift(self, p: Principal, req: LegalHoldRequest) -> state.LegalHold:
        t = p.tenant
        found = resolve_tail(_told_of(p, t.legal_holds.values()), req.lift, "lgl_")
        if len(found) != 1:
            raise Refused("id_ambiguous" if found else "legal_hold_unknown", field="lift")
        hold = found[0]
        if hold.person != p.rights.person:
            raise Refused("legal_hold_of_another", field="lift")
        if not decide_all(p, hold.members.tolist()):  # placed with another credential, or before this one lost a project
            raise Refused("legal_hold_elsewhere", field="lift")

        async def run() -> None:
            if hold.lifted_ms:
                raise Refused("legal_hold_lifted", field="lift")
            now_ms, by, person = self.shard.now_ms(), p.agent.id, p.rights.person
            event = noted(
                lambda body: E.LegalHoldLifted(ms=now_ms, hold=hold.id, agent=by, person=person, body=body),
                req.message,
                os.urandom(E.SALT_BYTES),
            )
            await self.shard.sequencer.commit(t, [event])

        await self.shard.operators.acting(p, run)
        return hold

    def _legal_hold_shown(self, p: Principal, h: state.LegalHold) -> LegalHold:
        seen = visible_rows(p, h.members)
        text = bool(seen) or h.agent == p.agent.number
        return LegalHold(
            hold=h.text,
            by=p.tenant.agents.all[h.agent].name,
            person=h.person if text else "",
            why=h.why if text else "",
            ids=[p.tenant.memory_id(s) for s in seen[:PAGE_ITEMS_MAX]],
            count=(count := len(counted_rows(p, h.members))),
            elsewhere=count - len(seen),
            placed_at=rfc3339(h.ms),
            lifted_at=rfc3339(h.lifted_ms) if h.lifted_ms else None,
        )


def _told_of(p: Principal, known: Iterable[OfMembers]) -> list[OfMembers]:
    """Without those of memories above the principal's clearance alone."""
    return [x for x in known if len(counted_rows(p, x.members))]


def _asked(p: Principal, blob: bytes) -> Asked | None:
    try:
        return _decode(blob)
    except msgspec.MsgspecError:
        refuse_other(p, blob, "agree")
        return None


def _cases(t: Tenant, members: list[int]) -> list[CaseState]:
    """Cases that hold any of them."""
    return t.cases_of(members)


def _legal_holds(t: Tenant, members: list[int]) -> list[state.LegalHold]:
    wanted = np.array(members, np.int32)
    return [h for h in t.legal_holds.values() if not h.lifted_ms and np.isin(wanted, h.members, assume_unique=True).any()]


def stores_of(e: state.Erasure, most: int = sys.maxsize) -> list[Store]:
    """Every store: what was done there, or is still to be, or why there is nothing to do. `most`: what no count may go beyond,
    for who may not know of all that it erased.
    """
    done = set(e.stores) | ({"ledger"} if e.purged and not e.blocks else set())
    lines = [
        Store(name=n, count=min(e.stores.get(n, 0), most), state="done" if n in done else "pending", note=note)
        for n, note in STORES.items()
    ]
    return [*lines, *(Store(name=n, state="no_text", note=note) for n, note in WITHOUT_TEXT.items())]
