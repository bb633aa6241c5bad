"""What agents report was of use to them: it lives on, up to its kind's most.

Invariant: only who was served a memory moves its end, never beyond what its kind may have (gate/writing/lifetime.py), and never
that of one which is held, over, replaced or erased. Retrieval moves nothing. All reports of a tenant that wait are one barrier
and one block: a storm of them stops no writes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bus.frames import Report, Reported
from bus.limits import GET_IDS_MAX
from gate.identify import Principal
from gate.ledger import events as E
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import decide, remain
from gate.state.tenant import Tenant
from gate.writing.lifetime import extended
from gate.writing.sequencer import Stored

if TYPE_CHECKING:
    from gate.shard import Shard


@dataclass(slots=True)
class _Told:
    """One report, and what comes of it. `used`: tenant_seqs."""

    principal: Principal
    used: list[int]
    moved: list[tuple[int, int]] = field(default_factory=list)
    refused: Refused | None = None


@dataclass(slots=True)
class _Round:
    """Reports that wait for the same barrier; as many as may be in flight."""

    told: list[_Told]
    done: asyncio.Task[None] | None = None


class Reports:
    """All methods run on the loop."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._rounds: dict[str, _Round] = {}  # by tenant: the one that has yet to begin

    async def answer(self, p: Principal, req: Report) -> Reported:
        """Move the ends that are worth an event; the ledger has it when this returns. Raises Refused."""
        t, told = p.tenant, _Told(p, _served(p, req.used))
        if _moves(told, self.shard.now_ms()):  # mostly there are none: no barrier then
            await self._barrier(t, told)
        if told.refused is not None:
            raise told.refused
        ends = {t.memory_id(s): rfc3339(end) for s, end in told.moved}
        return Reported(agent=p.key, project=p.project, request_id=req.request_id, extended=ends, position=t.position)

    async def _barrier(self, t: Tenant, told: _Told) -> None:
        found = self._rounds.get(t.account)
        if found is None:
            found = self._rounds[t.account] = _Round([])
            found.done = asyncio.create_task(self._wait(t, found))
        found.told.append(told)
        assert found.done is not None
        await asyncio.shield(found.done)  # one that is given up ends no other

    async def _wait(self, t: Tenant, round_: _Round) -> None:
        try:
            await self.shard.operators.barrier(t, lambda: self._run(t, round_))
        finally:
            self._close(t, round_)

    def _close(self, t: Tenant, round_: _Round) -> None:
        """Whoever reports from now on is of the next one."""
        if self._rounds.get(t.account) is round_:
            del self._rounds[t.account]

    async def _run(self, t: Tenant, round_: _Round) -> None:
        self._close(t, round_)
        now_ms, seen = self.shard.now_ms(), set[int]()
        events = []
        for told in round_.told:
            try:
                remain(told.principal, now_ms)
            except Refused as e:
                told.refused = e
                continue
            told.moved = [(s, end) for s, end in _moves(told, now_ms) if s not in seen]
            seen.update(s for s, _ in told.moved)
            if told.moved:
                events.append(Stored(E.LifeExtended(ms=now_ms, agent=told.principal.agent.id, items=told.moved)))
        if events:
            await self.shard.sequencer.commit(t, events)


def _served(p: Principal, used: list[str]) -> list[int]:
    """tenant_seqs of ids that this agent was served; one code for unknown, foreign and never served ones."""
    if not 1 <= len(used) <= GET_IDS_MAX:
        raise Refused("too_long" if used else "too_short", field="used", limit=GET_IDS_MAX)
    found = list(dict.fromkeys(_one_served(p, x) for x in used))
    if 0 in found:
        raise Refused("used_unknown", field="used")
    return found


def _one_served(p: Principal, id_: str) -> int:
    """By the id or its last 8 characters; 0 if it isn't exactly one."""
    t = p.tenant
    exact = t.find(id_)
    found = [s for s in ([exact] if exact else t.find_short(id_)) if t.was_served(p.agent, s)]
    return found[0] if len(found) == 1 else 0


def _moves(told: _Told, now_ms: int) -> list[tuple[int, int]]:
    """(tenant_seq, new end) of those whose end moves now."""
    p = told.principal
    t, at = p.tenant, p.tenant.columns.at
    alive = [s for s in told.used if decide(p, s, now_ms) and t.current(s, now_ms) == "active"]
    return [(s, end) for s in alive if (end := extended(at, s, now_ms))]
