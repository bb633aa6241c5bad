"""What agents report was of use to them: it lives on, up to its kind's most.

Invariant: only who was served a memory moves its end, never beyond what its kind may have (gate/writing/lifetime.py), and never
that of one which is held, over, replaced or erased. Retrieval moves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus.frames import Report, Reported
from bus.limits import GET_IDS_MAX
from gate.identify import Principal
from gate.ledger import events as E
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import decide, enter
from gate.writing.lifetime import extended
from gate.writing.sequencer import Stored

if TYPE_CHECKING:
    from gate.shard import Shard


async def report(shard: Shard, p: Principal, req: Report) -> Reported:
    """Move the ends that are worth an event; the ledger has it when this returns. Raises Refused."""
    t = p.tenant
    used = _served(p, req.used)
    moved: list[tuple[int, int]] = []

    async def run() -> None:
        enter(p)
        moved.extend(_moves(p, used, shard.now_ms()))
        if moved:
            await shard.sequencer.commit(t, [Stored(E.LifeExtended(ms=shard.now_ms(), agent=p.agent.id, items=moved))])

    if _moves(p, used, shard.now_ms()):  # mostly there are none: no barrier then
        await shard.operators.barrier(t, run)
    ends = {t.memory_id(s): rfc3339(end) for s, end in moved}
    return Reported(agent=p.key, project=p.project, request_id=req.request_id, extended=ends, position=t.position)


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


def _moves(p: Principal, used: list[int], now_ms: int) -> list[tuple[int, int]]:
    """(tenant_seq, new end) of those whose end moves now."""
    t, at = p.tenant, p.tenant.columns.at
    alive = [s for s in used if decide(p, s, now_ms) and t.current(s, now_ms) == "active"]
    return [(s, end) for s in alive if (end := extended(at, s, now_ms))]
