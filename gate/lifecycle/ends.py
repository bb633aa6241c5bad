"""Ending memories before their time, as facts in the ledger: a closed session's, a finished task's, what nobody needs.

Invariant: an end hides, it takes nothing away: lineage, attribution and text stay, and it can be undone. Nor does it bring
anything back: what an ended memory superseded stays superseded.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from gate import ids
from gate.identify import Principal
from gate.ledger import events as E
from gate.ledger.members import Members, pack_members
from gate.reading.surface import rfc3339
from gate.state.contexts import Context
from gate.state.lives import Why
from gate.state.tenant import Tenant
from gate.writing.lifetime import OPERATIONAL
from gate.writing.sequencer import Stored, noted

SESSION: Final = "session"
TASK: Final = "task"
PRUNED: Final = "pruned"
ENDED_BECAUSE: Final = {SESSION: "its session was closed", TASK: "its task was compacted", PRUNED: "it was pruned"}


def end_events(p: Principal, members: Members, why: Why, message: str, now_ms: int, plan: bytes = b"") -> list[Stored]:
    """The events that end these memories (ascending): one for each part of them, with an id of its own."""

    def event(count: int, deltas: bytes) -> Stored:
        return noted(
            lambda body: E.LifeEnded(
                ms=now_ms, end=ids.new_raw(now_ms), why=why, agent=p.agent.id, person=p.rights.person, count=count,
                deltas=deltas, plan=plan, body=body,
            ),
            message,
            os.urandom(E.SALT_BYTES),
        )  # fmt: skip

    return [event(count, deltas) for count, deltas in pack_members(members)]


def of_session(t: Tenant, ctx: Context, now_ms: int) -> Members:
    """Operational memories that a context's agents wrote and that are still to expire: its session's, they end with it."""
    c, n = t.columns, t.columns.n
    notes = (c.scope[:n] == OPERATIONAL) & (c.kind[:n] >= 0) & (c.ended[:n] == 0) & (c.expires[:n] > now_ms)
    alive = np.flatnonzero(notes).astype(np.int32)
    return alive[np.isin(c.actor[alive], list(ctx.family))]


def ended_by(t: Tenant, s: int) -> dict[str, str] | None:
    """What ended a memory before its time, for people: None if nothing did, or it lives on."""
    found = [x for x in t.ends.values() if t.columns.at.ended[s] == x.ms and s in x.members]
    return {"id": found[0].text, "why": found[0].why, "at": rfc3339(found[0].ms)} if found else None
