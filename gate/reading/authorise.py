"""What a principal may know of a memory by its id: the one answer for parents, superseded ones and ids shown beside an item."""

from __future__ import annotations

from gate.identify import Principal


def readable(p: Principal, s: int, now_ms: int) -> bool:
    """Whether the principal could be served this memory in its project, holds and successors set aside."""
    t, c = p.tenant, p.tenant.columns
    if c.kind[s] < 0 or c.project[s] != t.projects[p.project].number or c.cls[s] > p.rights.clearance:
        return False
    me = {f"agent:{p.agent.name}", f"role:{p.role}"} | ({f"user:{p.user_hash}"} if p.user_hash else set())
    if any(clause.isdisjoint(me) for clause in t.readers[int(c.readers[s])]):
        return False
    own = int(c.actor[s]) == p.agent.number
    if c.scope[s] == 1 and not own and t.users[int(c.user[s])] != p.user_hash:
        return False
    return bool(own or not c.opt_out[s]) and bool(c.expires[s] > now_ms)
