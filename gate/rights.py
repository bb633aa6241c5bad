"""Who may do what, on which verb, to what: the one table, and the one function that is asked.

A request is let in when the table lists its role for its verb *and* the signed credential carries that verb (`allow`). From then
on `decide` says of each memory or agent, by the row of the request's verb, whether this principal may name it or be told of it.
What the table doesn't list is denied. A test holds it against what each role's key is granted at the broker
(broker_config/roles.py), and against every verb of the grammar.

The questions of many rows at once have the same answers over columns: `visible_rows` here, `gate.reading.retrieve.visible` for
recalls, whose policy then says what is admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .refusals import Refused
from .state.principals import Agent

if TYPE_CHECKING:
    from .identify import Principal

Tree = Literal["mem", "ops", "adm"]
USER_SCOPE: Final = 1


# --- what a verb may reach ------------------------------------------------------------------------------
def readable(p: Principal, s: int, now_ms: int) -> bool:
    """A memory that it could be served in the request's project, holds and successors set aside."""
    t, at = p.tenant, p.tenant.columns.at
    if at.kind[s] < 0 or at.project[s] != t.projects[p.project].number or at.cls[s] > p.rights.clearance:
        return False
    clauses = t.readers[at.readers[s]]
    if clauses:
        me = {f"agent:{p.agent.name}", f"role:{p.role}"} | ({f"user:{p.user_hash}"} if p.user_hash else set())
        if any(clause.isdisjoint(me) for clause in clauses):
            return False
    own = at.actor[s] == p.agent.number
    if at.scope[s] == USER_SCOPE and not own and t.users[at.user[s]] != p.user_hash:
        return False
    return (own or not at.opt_out[s]) and at.expires[s] > now_ms and not at.erased[s]


def visible(p: Principal, s: int, now_ms: int) -> bool:
    """A record of one of its projects, up to its clearance, whatever its state. Of all others operators learn only counts."""
    t, at = p.tenant, p.tenant.columns.at
    return t.project_names[at.project[s]] in p.rights.projects and at.cls[s] <= p.rights.clearance


def visible_rows(p: Principal, seqs: npt.NDArray[np.int32]) -> list[int]:
    """Those of many that are `visible`, in their order."""
    t, c = p.tenant, p.tenant.columns
    mine = [project.number for name, project in t.projects.items() if name in p.rights.projects]
    found: list[int] = seqs[np.isin(c.project[seqs], mine) & (c.cls[seqs] <= p.rights.clearance)].tolist()
    return found


def colleague(p: Principal, agent: Agent) -> bool:
    """An agent that shares a project with it, or itself."""
    return agent is p.agent or not p.rights.projects.isdisjoint(agent.projects)


def supervised(p: Principal, agent: Agent) -> bool:
    """A colleague; for a supervisor, who reads nothing, any agent of the tenant."""
    return p.role == "supervisor" or colleague(p, agent)


def _no_memory(p: Principal, s: int, now_ms: int) -> bool:
    return False


def _no_agent(p: Principal, agent: Agent) -> bool:
    return False


# --- the table ------------------------------------------------------------------------------------------
class Row(NamedTuple):
    """One verb: who may use it, which memories and agents it may name, and whether this version serves it."""

    roles: frozenset[str]
    memories: Callable[[Principal, int, int], bool] = _no_memory
    agents: Callable[[Principal, Agent], bool] = _no_agent
    served: bool = True


LATER: Final = False


def _of(*roles: str) -> frozenset[str]:
    return frozenset(roles)


READERS: Final = _of("agent", "user_session")
WRITERS: Final = READERS | _of("ingest")
AUDITORS: Final = _of("operator", "auditor")
OPERATORS: Final = _of("operator")
ADMIN: Final = _of("admin")  # the home's own key, inside CORE; its literal key in the grant is the identity

TABLE: Final[dict[Tree, dict[str, Row]]] = {
    "mem": {
        "write": Row(WRITERS, readable),
        "query": Row(READERS, readable),
        "get": Row(READERS | OPERATORS, readable),
        "ack": Row(WRITERS | OPERATORS),  # its own notices
        "sync": Row(WRITERS | OPERATORS),
        "bind": Row(READERS, readable, served=LATER),
        "report": Row(READERS, readable, served=LATER),
        "feedback": Row(READERS, readable, served=LATER),
        "correct": Row(WRITERS | OPERATORS, readable, served=LATER),
        "forget": Row(WRITERS | OPERATORS, readable, served=LATER),
        "delegate": Row(READERS | _of("user_gateway", "supervisor")),
    },
    "ops": {
        "why": Row(AUDITORS, visible),
        "trace": Row(AUDITORS, visible),
        "stats": Row(AUDITORS, visible),
        "hold": Row(OPERATORS, visible, colleague),
        "release": Row(OPERATORS, visible),
        "review": Row(OPERATORS, visible),
        "case": Row(OPERATORS, visible),
        "context": Row(OPERATORS | _of("supervisor"), agents=supervised),
        "root": Row(AUDITORS, visible, served=LATER),
        "exposure": Row(AUDITORS, visible, colleague, served=LATER),
        "audit": Row(AUDITORS, visible, colleague, served=LATER),
        "verify": Row(AUDITORS, served=LATER),
        "freeze": Row(OPERATORS, agents=colleague, served=LATER),
        "thaw": Row(OPERATORS, agents=colleague, served=LATER),
        "scan": Row(OPERATORS, visible, served=LATER),
        "erase": Row(OPERATORS, visible, colleague),
    },
    "adm": {
        "tenant": Row(ADMIN),
        "project": Row(ADMIN),
        "agent": Row(ADMIN),
        "registry": Row(ADMIN),
        "verify": Row(ADMIN),
        "status": Row(ADMIN),
        "policy": Row(ADMIN, served=LATER),
        "quiesce": Row(ADMIN, served=LATER),
        "erased": Row(ADMIN | _of("janitor")),
    },
}
ROLES: Final = frozenset[str]().union(*(row.roles for row in (*TABLE["mem"].values(), *TABLE["ops"].values())))  # of tenants


def served(tree: Tree) -> frozenset[str]:
    """The verbs of a tree that this version answers."""
    return frozenset(verb for verb, row in TABLE[tree].items() if row.served)


# --- the questions --------------------------------------------------------------------------------------
def allow(tree: Tree, verb: str, role: str, carried: frozenset[str]) -> Row:
    """The row of a verb for who may use it: its role is listed and its credential carries the verb. Raises Refused."""
    row = TABLE[tree].get(verb)
    if row is None:
        raise Refused("verb_unknown")
    if role not in row.roles or verb not in carried:
        raise Refused("verb_denied")
    return row


def decide(p: Principal, resource: int | Agent, now_ms: int = 0) -> bool:
    """Whether the principal may, on its request's verb, name or be told of a memory (by tenant_seq) or an agent."""
    if isinstance(resource, Agent):
        return p.row.agents(p, resource)
    return p.row.memories(p, resource, now_ms)


def decide_all(p: Principal, memories: list[int]) -> bool:
    """Whether that holds for each of several: what it takes to act on a plan or case of somebody else."""
    return all(decide(p, s) for s in memories)


NOTHING: Final = Row(frozenset())
