"""Whether a draft may take the place of a memory at once.

On one's own memories, and for an operator: yes. On another's only when nobody is left without: trust and origin are at least
the old one's, and whoever could be served the old one, in whatever question, can be served the new one, for as long. Agents that
go on correcting each other (A, B, A, B…) are stopped: the next one waits for a review.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from bus.frames import TASK_STATES
from gate.reading.policy import AUTHORITY_KINDS, AUTHORITY_ROLES, EXTERNAL_EFFECT, FLOORS, SUMMARY_BAND
from gate.refusals import Refused
from gate.rights import decide
from gate.state.columns import NEVER_MS, REVIEW_ACCEPTED
from gate.state.principals import Agent
from gate.state.succession import TURNS_KEPT, lapsed, successor, turns_after
from gate.state.tenant import Clauses, Tenant

from .trust import AGENT_INFERRED, Stamp

if TYPE_CHECKING:
    from .decide import Write

STRONGER: Final = "contradicts_stronger"
MORE_VISIBLE: Final = "contradicts_more_visible"
FLAPPING: Final = "contradicts_flapping"
# Agents that disagree end after so many returns. Who was first has the last word: it isn't stopped, or two others would use up
# the returns between them.
FLAPS_MAX: Final = 3
FLAP_WINDOW_MS: Final = 3_600_000
_CLOSED: Final = TASK_STATES.index("abandoned")
_PROJECT, _TASK = 0, 2
assert FLAPS_MAX < TURNS_KEPT
_EFFECTS_FROM: Final = int(np.min(FLOORS[:, EXTERNAL_EFFECT])) - SUMMARY_BAND  # below this no floor shows it for an effect anyway


def place(w: Write, stamp: Stamp, user: str, now_ms: int) -> tuple[int, int, str]:
    """(supersedes, contradicts, why it is held): at most one of the first two is set. Refuses where another was faster."""
    old = w.supersedes
    if not old:
        return 0, 0, ""
    p, t = w.principal, w.principal.tenant
    c = t.columns
    by = int(c.superseded[old])
    # The fact, not the state: a held or expired memory has one successor too. But a held or lapsed successor gives way.
    if by and not c.held[by]:
        newer = successor(c, old, now_ms)
        if newer or not lapsed(c, by, now_ms):
            by = newer or by
            raise Refused("supersede_conflict", detail={"superseded_by": t.memory_id(by)} if decide(p, by, now_ms) else {})
    if p.role == "operator" or (int(c.actor[old]) == p.agent.number and old not in t.turns):
        return old, 0, ""
    if stamp.trust < int(c.eff[old]) or stamp.origin < int(c.origin[old]):
        return 0, old, STRONGER
    if _turned_enough(t, p.agent, old, now_ms):
        return 0, old, FLAPPING
    return (old, 0, "") if _as_visible(w, stamp, user, now_ms) else (0, old, MORE_VISIBLE)


def _turned_enough(t: Tenant, agent: Agent, old: int, now_ms: int) -> bool:
    """Whether agents have put each other's word back in this line as often as they may within the window."""
    turns = turns_after(t.turns.get(old, ()), t.agents.all[t.columns.at.actor[old]], agent, now_ms)
    backs = [x for x in turns if x.back and x.ms > now_ms - FLAP_WINDOW_MS]
    return bool(turns) and turns[-1].back and turns[0].over != agent.root and len(backs) > FLAPS_MAX


def _as_visible(w: Write, stamp: Stamp, user: str, now_ms: int) -> bool:
    d, p, old = w.checked, w.principal, w.supersedes
    t, at = p.tenant, p.tenant.columns.at
    rule = d.kind in AUTHORITY_KINDS and p.role not in AUTHORITY_ROLES  # without review: it drives no change
    old_rule = t.agents.all[at.actor[old]].role not in AUTHORITY_ROLES and at.review[old] != REVIEW_ACCEPTED
    seen_for_effects = min(stamp.floor, stamp.trust) >= min(at.floor[old], at.eff[old])
    return (
        _audience_holds(stamp.readers, t.readers[at.readers[old]])
        and stamp.cls <= at.cls[old]
        and stamp.sens <= at.sens[old]
        and not stamp.opt_out
        and (d.scope == _PROJECT or _same_scope(w, user))
        and d.from_ms <= now_ms
        and min(d.until_ms or NEVER_MS, d.end.expires_ms or NEVER_MS) >= min(at.valid_until[old], at.expires[old])
        and d.kind == at.kind[old]
        and (not rule or bool(old_rule))
        and (d.task_state < _CLOSED or d.task_state == at.task_state[old])
        and (bool(w.evidence) or bool(at.nosrc[old]) or stamp.origin > AGENT_INFERRED)
        and (seen_for_effects or min(at.floor[old], at.eff[old]) < _EFFECTS_FROM)
    )


def _audience_holds(new: Clauses, old: Clauses) -> bool:
    """Whether all who match every clause of `old` match every clause of `new`, as far as the names tell."""
    return all(any(o <= n for o in old) for n in new)


def _same_scope(w: Write, user: str) -> bool:
    t, at, old = w.principal.tenant, w.principal.tenant.columns.at, w.supersedes
    same_task = w.checked.scope != _TASK or int.from_bytes(w.task, "big", signed=True) == at.task[old]
    return bool(w.checked.scope == at.scope[old] and t.users[at.user[old]] == user and same_task)
