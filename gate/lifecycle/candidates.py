"""Which memories nobody needs any more: of a project what is old, sourceless and unread, of a finished task all but what counts.

Pure over live state. Invariant: what is held, under a legal hold, waits for a review or was accepted in one, was stated by a
person, or is a rule, decision or constraint, is never chosen, whatever else speaks for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bus.frames import KINDS, ORIGINS, TASK_STATES
from gate.ledger.members import PART_MEMBERS_MAX
from gate.refusals import Refused
from gate.rights import TASK_SCOPE
from gate.state.columns import REVIEW_NONE
from gate.state.tenant import Tenant

from .promotion import lives_on

ENDED_MAX: Final = PART_MEMBERS_MAX  # of one plan: they stand in one event, so it is in force whole or not at all
LOOKED_AT: Final = 2_048  # rows before others are served: a few milliseconds
LASTING: Final = tuple(KINDS.index(k) for k in ("rule", "decision", "constraint"))  # no time to live by default
STATED: Final = ORIGINS.index("user_stated")
ACTIVE: Final = TASK_STATES.index("active")
# Why a memory is kept, in the order in which one is named.
HELD, LEGAL_HOLD, REVIEWED, PERSON, KIND, CLOSING = (
    "held",
    "legal_hold",
    "reviewed",
    "stated_by_person",
    "lasting_kind",
    "closes_task",
)
SOURCED, READ, USED = "has_source", "read", "has_descendants"

Rows = npt.NDArray[np.int32]


class Asked(NamedTuple):
    """What an operator is after. `kinds` empty = all. `task`: its hash, for a compaction; else a pruning of what is older."""

    project: int
    kinds: frozenset[int]
    before_ms: int
    task: int = 0
    closing: int = 0


class Chosen(NamedTuple):
    """Ascending, at most ENDED_MAX; `more` there would be beyond that. `kept`: how many of those asked about, by reason."""

    members: list[int]
    more: int
    kept: dict[str, int]


async def choose(t: Tenant, asked: Asked, seen: Callable[[Rows], list[int]], now_ms: int) -> Chosen:
    """Look through the project, a part at a time. `seen`: those of some rows that the operator may see."""
    members: list[int] = []
    kept = Counter[str]()
    more, legal = 0, legally_held(t)
    for start in range(1, t.columns.n, LOOKED_AT):
        rows = _asked_about(t, np.arange(start, min(start + LOOKED_AT, t.columns.n), dtype=np.int32), asked, now_ms)
        for s in seen(rows) if len(rows) else ():
            why = reason_to_keep(t, s, asked, legal, now_ms)
            if why:
                kept[why] += 1
            elif len(members) < ENDED_MAX:
                members.append(s)
            else:
                more += 1
        await asyncio.sleep(0)
    return Chosen(members, more, dict(kept))


def _asked_about(t: Tenant, rows: Rows, asked: Asked, now_ms: int) -> Rows:
    """Those that are still to be read, and fit what was asked for."""
    c = t.columns
    fits = (c.kind[rows] >= 0) & (c.project[rows] == asked.project) & (c.written[rows] <= asked.before_ms)
    fits &= (c.erased[rows] == 0) & (c.expires[rows] > now_ms) & (c.ended[rows] == 0) & (c.valid_until[rows] > now_ms)
    if asked.task:
        fits &= (c.scope[rows] == TASK_SCOPE) & (c.task[rows] == asked.task)
    if asked.kinds:
        fits &= np.isin(c.kind[rows], list(asked.kinds))
    found: Rows = rows[fits]
    return found


def reason_to_keep(t: Tenant, s: int, asked: Asked, legal: frozenset[int], now_ms: int) -> str:
    """Empty if it may end."""
    at = t.columns.at
    if at.held[s]:
        return HELD
    if s in legal:
        return LEGAL_HOLD
    if asked.task and lives_on(t, s, now_ms):
        return ""  # what it says is the project's now
    if at.review[s] != REVIEW_NONE:
        return REVIEWED
    if at.origin[s] >= STATED:
        return PERSON
    if at.kind[s] in LASTING and at.kind[s] not in asked.kinds:
        return KIND
    return _of_a_task(s, asked) if asked.task else _still_of_use(t, s)


def _of_a_task(s: int, asked: Asked) -> str:
    return CLOSING if s == asked.closing else ""


def _still_of_use(t: Tenant, s: int) -> str:
    if not t.columns.at.nosrc[s]:
        return SOURCED
    if t.served_to.count(s):
        return READ
    return USED if t.down.edges_of(s) else ""


def legally_held(t: Tenant) -> frozenset[int]:
    held = [h.members for h in t.legal_holds.values() if not h.lifted_ms]
    return frozenset(np.concatenate(held).tolist()) if held else frozenset()


def closing_of(t: Tenant, project: int, task: int, seen: Callable[[Rows], list[int]]) -> int:
    """The memory that says that a task is over: the newest in force that says anything about its state. Refuses if none does.

    Only of what the operator sees (`seen`): else these refusals would tell of a task that only restricted memories name.
    """
    c, n = t.columns, t.columns.n
    named = (c.task[:n] == task) & (c.project[:n] == project) & (c.kind[:n] >= 0) & (c.erased[:n] == 0)
    said = np.array(seen(np.flatnonzero(named).astype(np.int32)), np.int32)
    if not len(said):
        raise Refused("task_unknown", field="task")
    said = said[(c.task_state[said] >= ACTIVE) & (c.held[said] == 0)]
    if not len(said) or c.task_state[said[-1]] == ACTIVE:
        raise Refused("task_open", field="task")
    return int(said[-1])
