"""What a principal may know of a memory by its id: the one answer for parents, superseded ones and ids shown beside an item."""

from __future__ import annotations

from gate.identify import Principal


def readable(p: Principal, s: int, now_ms: int) -> bool:
    """Whether the principal could be served this memory in its project, holds and successors set aside."""
    t, at = p.tenant, p.tenant.columns.at
    if at.kind[s] < 0 or at.project[s] != t.projects[p.project].number or at.cls[s] > p.rights.clearance:
        return False
    clauses = t.readers[at.readers[s]]
    if clauses:
        me = {f"agent:{p.agent.name}", f"role:{p.role}"} | ({f"user:{p.user_hash}"} if p.user_hash else set())
        if any(clause.isdisjoint(me) for clause in clauses):
            return False
    own = at.actor[s] == p.agent.number
    if at.scope[s] == 1 and not own and t.users[at.user[s]] != p.user_hash:
        return False
    return (own or not at.opt_out[s]) and at.expires[s] > now_ms
