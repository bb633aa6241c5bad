"""Promotion: what a task learnt becomes a memory of its project, by the same way as any other write.

The gatekeeper takes text, evidence and kind of the task's memory; the promoter adds nothing to them. Invariant: the new memory
derives from the old one, so its labels are no better, it is valid and lives no longer than the old one's writer said, and it is
screened, decided and held like every write.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from bus.frames import KINDS, Draft
from gate.identify import Principal
from gate.refusals import Refused
from gate.rights import TASK_SCOPE, decide, shares_project
from gate.state.columns import NEVER_MS, REVIEW_ACCEPTED, REVIEW_NONE, REVIEW_PENDING, REVIEW_REJECTED
from gate.state.tenant import Tenant
from gate.writing.lifetime import End
from gate.writing.validate import Checked, check_draft


def check(p: Principal, s: int, now_ms: int) -> None:
    """Refuse what may not be promoted, at the door and again when the write is decided."""
    t, at = p.tenant, p.tenant.columns.at
    here = s and at.project[s] == t.projects[p.project].number and at.scope[s] == TASK_SCOPE
    if not here or not decide(p, s, now_ms) or t.current(s, now_ms) != "active":
        raise Refused("promotes_unknown", field="promotes")
    by = t.promoted.get(s, 0)  # one that this agent may not read keeps nobody from promoting it for the others
    if by and decide(p, by, now_ms) and _stands(p, by, now_ms):
        raise _promoted(p, by)


def _promoted(p: Principal, by: int) -> Refused:
    """Why it isn't promoted again: what it became, and where a review rejected that, who did, if the promoter may know."""
    t, detail = p.tenant, {"promoted_as": p.tenant.memory_id(by)}
    if by not in t.rejected_by:
        return Refused("promoted_already", field="promotes", detail=detail)
    reviewer = t.agents.all[t.rejected_by[by]]
    name = reviewer.name if shares_project(p, reviewer) else "an operator of another project"
    return Refused("promotion_rejected", field="promotes", detail={**detail, "rejected_by": name})


def _stands(p: Principal, by: int, now_ms: int) -> bool:
    """Whether a promotion keeps this promoter out: it is in force, or a case or a review took it out. Not what only waits for a
    review, or was rejected there, for what another promoter brought along (its parents, what it was to supersede).
    """
    t, at = p.tenant, p.tenant.columns.at
    state, theirs = t.current(by, now_ms), t.agents.all[at.actor[by]].root != p.agent.root
    rejected = at.review[by] == REVIEW_REJECTED and theirs and by in t.promoted_with
    passes = (at.review[by] == REVIEW_PENDING or rejected) and at.held[by] == 1
    return state == "active" or (state == "held" and not passes)


def lives_on(t: Tenant, s: int, now_ms: int) -> bool:
    """Whether what it was promoted to is in force in its place: for all who could read it, for as long, and worth as much."""
    by, at = t.promoted.get(s, 0), t.columns.at
    as_open = bool(by) and at.readers[by] in (0, at.readers[s]) and at.cls[by] <= at.cls[s] and at.opt_out[by] <= at.opt_out[s]
    as_trusted = at.eff[by] >= at.eff[s] and at.floor[by] >= at.floor[s] and at.origin[by] >= at.origin[s]
    as_usable = as_trusted and at.sens[by] <= at.sens[s]
    as_looked_at = at.review[s] == REVIEW_NONE or at.review[by] == REVIEW_ACCEPTED
    as_long = min(at.expires[by], at.valid_until[by]) >= min(at.expires[s], at.valid_until[s]) and at.valid_from[by] <= now_ms
    return as_open and as_usable and as_looked_at and as_long and t.current(by, now_ms) == "active"


def checked(p: Principal, d: Draft, s: int, now_ms: int) -> Checked:
    """The draft as checked, of the kind of the memory that it promotes."""
    return _within(check_draft(msgspec.structs.replace(d, kind=KINDS[p.tenant.columns.at.kind[s]]), now_ms), p, s)


def _within(c: Checked, p: Principal, s: int) -> Checked:
    """Valid no longer than the memory that it promotes, nor alive beyond a moment that its writer named."""
    at = p.tenant.columns.at
    until = min(c.until_ms or NEVER_MS, at.valid_until[s])
    end, named = c.end, at.expires[s] if not at.life[s] else NEVER_MS
    if named < (end.expires_ms or NEVER_MS):
        end = End(named, True, end.capped)
    return replace(c, from_ms=max(c.from_ms, at.valid_from[s]), until_ms=until if until < NEVER_MS else 0, end=end)
