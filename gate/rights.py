"""Who may do what, on which verb, to what: the one table, and the one function that is asked.

A request is let in when the table lists its role for its verb *and* the signed credential carries that verb (`allow`). From then
on `decide` says of each memory or agent, by the row of the request's verb, whether this principal may name it or be told of it.
What the table doesn't list is denied. A test holds it against what each role's key is granted at the broker
(broker_config/roles.py), and against every verb of the grammar.

The questions of many rows at once have the same answers over columns: `visible_rows` here, `gate.reading.retrieve.visible` for
recalls, whose policy then says what is admitted.

Projects: a `project:` tag grants only inside membership, which is the ledger's (`has_project`), and what the project's state and
audience leave of it (`enter`). A project that is shared lends another one's agents its plain memories (`lent_rows`): no setting
widens that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bus.delegation import STEWARDS
from bus.frames import CLASSIFICATIONS, SCOPES
from bus.limits import NAME_CHARS_MAX

from .refusals import Refused
from .state.principals import Agent
from .state.projects import Project

if TYPE_CHECKING:
    from .identify import Principal
    from .state.tenant import Tenant

Tree = Literal["mem", "ops", "adm"]
PROJECT_SCOPE: Final = SCOPES.index("project")
USER_SCOPE: Final = SCOPES.index("user")
TASK_SCOPE: Final = SCOPES.index("task")
RESTRICTED: Final = CLASSIFICATIONS.index("restricted")
Mask = npt.NDArray[np.bool_]


# --- standing -------------------------------------------------------------------------------------------
def check_standing(t: Tenant, agent: Agent, key: str, now_ms: int) -> None:
    """Raises Refused unless the key still speaks for its agent, in a tenant that is served."""
    if not agent.stands(key, now_ms):
        if agent.whole or key in agent.revoked:
            raise Refused("credential_revoked")
        raise Refused("credential_expired" if agent.expires_ms and agent.expires_ms <= now_ms else "parent_revoked")
    if t.suspended:
        raise Refused("tenant_suspended")


def remain(p: Principal, now_ms: int) -> None:
    """Ask again, when a write is decided and when an answer leaves: whoever was revoked or has left meanwhile is refused, or
    whose project was closed. So nothing of an agent comes after its revocation, or past a hold of all that it wrote.
    """
    check_standing(p.tenant, p.agent, p.key, now_ms)
    enter(p)


# --- projects -------------------------------------------------------------------------------------------
def has_project(p: Principal, name: str) -> bool:
    """Its credential carries the project, and it and all above it in its delegation chain are members of it."""
    known = p.tenant.agents.by_id
    return name in p.rights.projects and all(name in agent.projects for agent in (p.agent, *(known[a] for a in p.agent.chain)))


def enter(p: Principal) -> Project:
    """The request's project, if it is open to this principal for its verb; raises Refused."""
    if p.tenant.deleted:
        raise Refused("tenant_deleted")
    projects = p.tenant.projects
    project = projects.get(p.project) if has_project(p, p.project) else None
    if project is None:
        known = sorted(n for n in p.rights.projects if n in projects and projects[n].state != "deleted" and has_project(p, n))
        nearest = get_close_matches(p.project[:NAME_CHARS_MAX], known, n=1, cutoff=0.0)
        raise Refused("project_unknown", detail={"nearest": nearest[0]} if nearest else {})
    if project.state == "deleted":
        raise Refused("project_deleted")
    if project.state == "archived" and p.row.stores:
        raise Refused("project_archived")
    if p.row.recalls and not in_audience(p, project):
        raise Refused("not_in_audience")
    return project


def roles_of(p: Principal) -> frozenset[str]:
    """Its role, and those that it works for: a child reads what a role may read only if its parents' roles may too. Gateways and
    supervisors read nothing themselves, so theirs don't count.
    """
    return frozenset({p.role, *(a.role for a in p.agent.links() if a.role not in STEWARDS)})


def in_audience(p: Principal, project: Project) -> bool:
    """Whether the project's memories are for this role."""
    return not project.settings.audience or roles_of(p) <= frozenset(project.settings.audience)


def is_reader(p: Principal) -> Callable[[Iterable[frozenset[str]]], bool]:
    """Whether this principal is in every one of some clauses: by its name or its user, or by all its roles."""
    names = {f"agent:{p.agent.name}"} | ({f"user:{p.user_hash}"} if p.user_hash else set())
    roles = {f"role:{role}" for role in roles_of(p)}
    return lambda clauses: all(not clause.isdisjoint(names) or roles <= clause for clause in clauses)


def lenders(p: Principal) -> list[Project]:
    """The projects that lend their memories to the one that this is asked in."""
    return [
        x for x in list(p.tenant.projects.values()) if p.project in x.shared_with and x.state != "deleted" and in_audience(p, x)
    ]


def lent_by(p: Principal, lender: Project, seqs: npt.NDArray[np.int32]) -> Mask:
    """Which of many memories a project lends: those of project scope, not restricted, for all its members, and made of nothing
    of another project or of a user. Only its labels count here, no setting.
    """
    t, c = p.tenant, p.tenant.columns
    own = t.comps.find(frozenset({f"project:{lender.name}"}))
    mask: Mask = (c.project[seqs] == lender.number) & (c.scope[seqs] == PROJECT_SCOPE) & (c.cls[seqs] < RESTRICTED)
    mask &= (c.readers[seqs] == 0) & ~c.opt_out[seqs] & (c.comp[seqs] == (-1 if own is None else own))
    return mask & (c.cls[seqs] <= p.rights.clearance)


def lent_rows(p: Principal, seqs: npt.NDArray[np.int32]) -> Mask:
    """Which of many memories are lent to the project that this is asked in, by whichever project."""
    mask: Mask = np.zeros(len(seqs), np.bool_)
    for lender in lenders(p):
        mask |= lent_by(p, lender, seqs)
    return mask


def lent(p: Principal, s: int) -> bool:
    return bool(lent_rows(p, np.array([s], np.int32))[0])


# --- what may be said of elsewhere ------------------------------------------------------------------------
def labels_here(p: Principal, labels: Iterable[str]) -> list[str]:
    """Compartments without those of projects elsewhere."""
    return sorted(x for x in labels if not x.startswith("project:") or has_project(p, x.removeprefix("project:")))


def code_here(p: Principal, code: str) -> str:
    """A reason of a hold at write, without the name of a project elsewhere."""
    label = code.removeprefix("flow_down:")
    return code if label == code or labels_here(p, [label]) else "flow_down:elsewhere"


def knows(p: Principal, s: int, now_ms: int) -> bool:
    """Whether a writer may be told that its text comes from this memory: its own, one that it was itself served, or could be.

    What only another of its delegation family was served counts for the labels, and is not named.
    """
    t = p.tenant
    return t.columns.at.actor[s] == p.agent.number or t.was_served(p.agent, s) or readable(p, s, now_ms)


# --- what a verb may reach ------------------------------------------------------------------------------
def readable(p: Principal, s: int, now_ms: int) -> bool:
    """A memory that it could be served in the request's project, holds and successors set aside."""
    t, at, home = p.tenant, p.tenant.columns.at, p.tenant.projects[p.project]
    if at.kind[s] < 0 or at.cls[s] > p.rights.clearance or (at.project[s] != home.number and not lent(p, s)):
        return False
    if home.settings.audience and at.actor[s] != p.agent.number and not in_audience(p, home):
        return False
    clauses = t.readers[at.readers[s]]
    if clauses and not is_reader(p)(clauses):
        return False
    own = at.actor[s] == p.agent.number
    if at.scope[s] == USER_SCOPE and not own and t.users[at.user[s]] != p.user_hash:
        return False
    return (own or not at.opt_out[s]) and at.expires[s] > now_ms and not (at.ended[s] or at.erased[s])


def visible(p: Principal, s: int, now_ms: int) -> bool:
    """A record of one of its projects, up to its clearance, whatever its state. Of all others operators learn only counts."""
    t, at = p.tenant, p.tenant.columns.at
    return at.cls[s] <= p.rights.clearance and has_project(p, t.project_names[at.project[s]])


def visible_rows(p: Principal, seqs: npt.NDArray[np.int32]) -> list[int]:
    """Those of many that are `visible`, in their order."""
    t, c = p.tenant, p.tenant.columns
    mine = [project.number for name, project in t.projects.items() if has_project(p, name)]
    found: list[int] = seqs[np.isin(c.project[seqs], mine) & (c.cls[seqs] <= p.rights.clearance)].tolist()
    return found


def counted_rows(p: Principal, seqs: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Those of many that count in what it is told: up to its clearance, in whatever project. Of what is above it nothing is told,
    not that it is there.
    """
    return seqs[p.tenant.columns.cls[seqs] <= p.rights.clearance]


def colleague(p: Principal, agent: Agent) -> bool:
    """An agent that shares a project with it, or itself."""
    return agent is p.agent or shares_project(p, agent)


def shares_project(p: Principal, agent: Agent) -> bool:
    return any(has_project(p, name) for name in agent.projects)


def supervised(p: Principal, agent: Agent) -> bool:
    """A colleague; for a supervisor, who reads nothing, any agent of the tenant."""
    return p.role == "supervisor" or colleague(p, agent)


def _no_memory(p: Principal, s: int, now_ms: int) -> bool:
    return False


def _no_agent(p: Principal, agent: Agent) -> bool:
    return False


# --- the table ------------------------------------------------------------------------------------------
class Row(NamedTuple):
    """One verb: who may use it, which memories and agents it may name, and whether this version serves it.

    `stores`: it adds to its project, so an archived one refuses it. `recalls`: it brings memories, so it is for the audience.
    """

    roles: frozenset[str]
    memories: Callable[[Principal, int, int], bool] = _no_memory
    agents: Callable[[Principal, Agent], bool] = _no_agent
    served: bool = True
    stores: bool = False
    recalls: bool = False


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
        "write": Row(WRITERS, readable, stores=True),
        "query": Row(READERS, readable, recalls=True),
        "get": Row(READERS | OPERATORS, readable, recalls=True),
        "ack": Row(WRITERS | OPERATORS),  # its own notices
        "sync": Row(WRITERS | OPERATORS),
        "bind": Row(READERS, readable, served=LATER),
        "report": Row(READERS, readable, stores=True),
        "feedback": Row(READERS, readable, served=LATER, stores=True),
        "correct": Row(WRITERS | OPERATORS, readable, served=LATER, stores=True),
        "forget": Row(WRITERS | OPERATORS, readable, served=LATER, stores=True),
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
        "prune": Row(OPERATORS, visible),
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


def decide_rows(p: Principal, memories: Iterable[int]) -> list[int]:
    """Those of many that it may name, in their order: `decide` of each. Tens of thousands, of what operators see, at once."""
    if p.row.memories is visible:
        return visible_rows(p, np.fromiter(memories, np.int32))
    return [s for s in memories if decide(p, s)]


def decide_all(p: Principal, memories: Collection[int]) -> bool:
    """Whether that holds for each of several: what it takes to act on a plan or case of somebody else."""
    return len(decide_rows(p, memories)) == len(memories)


NOTHING: Final = Row(frozenset())
