"""What an operator may name and see: memories by id or selector, agents by name.

Full records in its projects, only counts elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from bus.frames import TAIL_CHARS
from gate.config import CASE_ROOTS_MAX
from gate.identify import Principal
from gate.projections.catalog import cited_names
from gate.refusals import Refused
from gate.rights import decide, decide_rows, shares_project
from gate.state.principals import Agent
from gate.state.tenant import Tenant
from gate.steps import in_parts

if TYPE_CHECKING:
    from gate.shard import Shard


NAMED_AT_ONCE: Final = 1_024  # agents: a millisecond or two of the loop


class Sources(NamedTuple):
    """What `source:` terms name, as far as the catalog had come: memories up to tenant_seq `upto`."""

    upto: int
    seqs: frozenset[int]


async def find_sources(shard: Shard, p: Principal, selector: Iterable[str]) -> Sources:
    """Ask the catalog what `source:` terms name: on the index thread, so never inside a barrier."""
    wanted = [value for kind, _, value in (term.partition(":") for term in selector) if kind == "source" and value]
    if not wanted:
        return Sources(0, frozenset())
    catalog = shard.indexes[p.tenant.account].catalog

    def look() -> Sources:
        upto = catalog.position.tenant_seq if catalog.position else 0
        return Sources(upto, frozenset(seq for value in wanted for seq in catalog.find_source(value)))

    found: Sources = await shard.index.call(look)
    return found


def select(p: Principal, selector: Iterable[str], sources: Sources) -> list[int]:
    """tenant_seqs that a selector names now: ids, agent:NAME (and all that it ever delegated), user:ID, run:LABEL, source:URI.
    Only in this operator's projects.
    """
    t, c = p.tenant, p.tenant.columns
    found: set[int] = set()
    n = c.n
    for term in selector:
        kind, _, value = term.partition(":")
        if kind == "agent" and value:
            agent = known_agent(p, value)
            family = t.agents.with_descendants(agent)
            found |= set(np.flatnonzero(np.isin(c.actor[:n], family) & (c.kind[:n] >= 0)).tolist())
        elif kind == "user" and value:
            user = t.users.find(t.user_hash(value))
            if user is not None:
                found |= set(np.flatnonzero((c.user[:n] == user) & (c.kind[:n] >= 0)).tolist())
        elif kind == "run" and value:
            run = int.from_bytes(t.label_hash(value), "big", signed=True)
            found |= set(np.flatnonzero((c.run[:n] == run) & (c.kind[:n] >= 0)).tolist())
        elif kind == "source" and value:
            found |= sources.seqs
            found |= {seq for seq, evidence in t.cited if seq > sources.upto and value in cited_names(evidence)}
        elif ":" in term:  # no id: a kind that isn't known, or one without a value
            raise Refused("selector_empty", field="selector")
        else:
            found.add(resolve(p, term))
    named = decide_rows(p, sorted(found))
    if not named:
        raise Refused("selector_empty", field="selector")
    if len(named) > CASE_ROOTS_MAX:
        raise Refused("too_long", field="selector", limit=CASE_ROOTS_MAX)
    return named


def resolve(p: Principal, id_: str) -> int:
    """tenant_seq of a memory that this operator may see, by its id or at least its last 8 characters."""
    t = p.tenant
    s = t.find(id_)
    if not s:
        found = [x for x in t.find_short(id_) if decide(p, x)]
        if len(found) > 1:
            raise Refused("id_ambiguous", field="id")
        s = found[0] if found else 0
    if not s or not decide(p, s):
        raise Refused("memory_unknown", field="id")
    return s


class _Identified(Protocol):
    @property
    def text(self) -> str: ...


Named = TypeVar("Named", bound=_Identified)


def resolve_tail(known: Iterable[Named], id_: str, prefix: str) -> list[Named]:
    """Those of `known` with this id, or whose id ends with at least its last 8 characters."""
    bare = id_.removeprefix(prefix)
    return [x for x in known if x.text == id_ or (len(bare) >= TAIL_CHARS and x.text.endswith(bare))]


async def names_of(p: Principal, agents: Sequence[Agent]) -> list[str]:
    """Names of the agents that share a project with this operator. A crowd is looked through in parts: never inside a barrier."""
    names: list[str] = []
    async for some in in_parts(agents, NAMED_AT_ONCE):
        names += [a.name for a in some if shares_project(p, a)]
    return names


def known_agent(p: Principal, name: str) -> Agent:
    """An agent that this request may name. Others are unknown to it."""
    agent = find_agent(p.tenant, name)
    if not decide(p, agent):
        raise Refused("agent_unknown", field="agent")
    return agent


def find_agent(t: Tenant, name: str) -> Agent:
    """An agent by name, id or the end of its id."""
    agent = t.agents.by_name.get(name) or t.agents.by_key.get(name)
    if agent is None and len(name) >= TAIL_CHARS:
        found = t.agents.ending(name)
        agent = found[0] if len(found) == 1 else None
    if agent is None:
        raise Refused("agent_unknown", field="agent")
    return agent
