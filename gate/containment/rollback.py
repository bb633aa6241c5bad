"""A project as it was before a case's first root: a hold of all that was written into it since, and what that brings back.

Nothing is undone: the hold is a case like any other, so releasing it gives back exactly what it took. What doesn't come back:
erased text, settings, memberships, reviews, and what has expired meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gate.config import CASE_ROOTS_MAX
from gate.identify import Principal
from gate.refusals import Refused
from gate.rights import decide_all, visible_rows
from gate.state.cases import CaseState
from gate.state.succession import superseded
from gate.state.tenant import Tenant

Nodes = npt.NDArray[np.int32]


class Since(NamedTuple):
    """tenant_seqs, ascending. `roots`: those that the operator sees. `unseen`: those above its clearance, held as well and never
    told of: a rollback that leaves some behind is none, and one that is refused for them would tell that they are there.
    """

    roots: list[int]
    unseen: list[int]


def written_since(p: Principal, case: CaseState) -> Since:
    """The memories in the projects of a case's roots, from its first root on; those that are erased aside."""
    c, first = p.tenant.columns, min(case.roots)
    if not decide_all(p, case.roots):
        raise Refused("case_elsewhere", field="case")
    rows = np.arange(first, c.n, dtype=np.int32)
    here = np.isin(c.project[rows], np.unique(c.project[case.roots]))
    since = rows[here & (c.kind[rows] >= 0) & (c.erased[rows] == 0)]
    roots = visible_rows(p, since)  # the roots are seen, so the projects are; what isn't is above the clearance
    if not roots:
        raise Refused("selector_empty", field="rollback")
    if len(roots) > CASE_ROOTS_MAX:
        raise Refused("too_long", field="rollback", limit=CASE_ROOTS_MAX)
    return Since(roots, np.setdiff1d(since, np.array(roots, np.int32)).tolist())


def current_again(t: Tenant, members: Nodes, now_ms: int) -> list[int]:
    """Memories that are superseded now and, if `members` are held, no more: they are served again."""
    c, n = t.columns, t.columns.n
    there = (c.superseded[:n] != 0) & (c.held[:n] == 0) & (c.erased[:n] == 0)
    there &= (c.expires[:n] > now_ms) & (c.valid_until[:n] > now_ms)
    there[members] = False
    seqs = np.flatnonzero(there).astype(np.int32)
    held = c.held[:n].copy()
    held[members] = 1
    now = np.full(len(seqs), now_ms, np.int64)
    found: list[int] = seqs[superseded(c, seqs, now) & ~superseded(c, seqs, now, held)].tolist()
    return found
