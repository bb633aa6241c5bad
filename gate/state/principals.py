"""Agents of a tenant as the ledger knows them: stable ids, their keys and names. A name is never reused."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from bus.frames import Actor
from gate import ids
from gate.ledger.events import AgentDelegated, AgentIssued, AgentRevoked
from gate.quotas import AGENT_READS, AGENT_WRITES, DELEGATIONS, SESSIONS, Aging, Bucket, Limit
from gate.turns import Crowding

from .seats import Seats

OWN_CONTEXT_FOR: Final = "user_gateway"  # whose children begin a context for each user
CHILDREN_KEPT: Final = 64


class Bounds(NamedTuple):
    """How far a delegated agent may go, whatever its credential says. `clearance`, `ceiling`: indexes; `user`: keyed hash."""

    role: str
    projects: frozenset[str]
    verbs: frozenset[str]
    tools: frozenset[str]
    clearance: int
    ceiling: int
    user: str


@dataclass(slots=True)
class Agent:
    number: int
    id: bytes
    name: str
    role: str
    keys: list[str]
    projects: tuple[str, ...]
    person: str = ""
    root: int = 0  # agent number of the root of its delegation chain: whose context it shares
    chain: tuple[bytes, ...] = ()
    parent: Agent | None = None
    via: str = ""  # the parent's key that made it
    bounds: Bounds | None = None  # of a delegated one
    expires_ms: int = 0  # 0 = its credentials alone say when
    user: str = ""  # keyed hash of the one user that it speaks for
    family: set[int] = field(default_factory=set)  # numbers of all that ever shared its context: one set for them all
    children: list[Agent] = field(default_factory=list)  # but for some that were over when one came
    tidied_at: int = CHILDREN_KEPT  # with so many children those that are over are let go
    revoked: frozenset[str] = frozenset()  # keys of its own that speak for it no more
    whole: bool = False  # revoked itself: no key speaks for it
    held: int = 0  # how many of its memories are held now; of the root of a chain those of all in it count too
    review: int = 0  # how many of them wait for one
    bytes: int = 0  # of its memories in the ledger
    readers: int = 0  # entries of the `readers` that its memories were the first to have
    recorded: Aging | None = None  # bytes in READS, once there are some: of the root of a chain those of all in it
    in_flight: int = 0
    crowding: Crowding = field(default_factory=Crowding)
    seats: defaultdict[str, Seats] = field(default_factory=lambda: defaultdict(Seats))  # by key
    text: str = field(init=False)
    _buckets: dict[str, Bucket] = field(default_factory=dict)  # by what they limit, once it asked for that
    _actors: dict[str, Actor] = field(default_factory=dict)  # by key: the same in every answer

    def __post_init__(self) -> None:
        self.text = ids.text("agt_", self.id)

    @property
    def writes(self) -> Bucket:
        return self._bucket("writes", AGENT_WRITES)

    @property
    def reads(self) -> Bucket:
        return self._bucket("reads", AGENT_READS)

    @property
    def delegations(self) -> Bucket:
        return self._bucket("delegations", SESSIONS if self.role == OWN_CONTEXT_FOR else DELEGATIONS)

    def _bucket(self, of: str, limit: Limit) -> Bucket:
        bucket = self._buckets.get(of)
        if bucket is None:
            bucket = self._buckets[of] = Bucket(limit)
        return bucket

    def rest(self) -> None:
        """It is over: what only its requests needed goes. A gateway makes some hundred thousand of them a day."""
        self.seats.clear()
        self._actors.clear()

    def links(self) -> Iterator[Agent]:
        """Itself, and who is above it, the root last."""
        link: Agent | None = self
        while link is not None:
            yield link
            link = link.parent

    def stands(self, key: str, now_ms: int) -> bool:
        """Whether its own `key` still speaks for it: neither that, nor it, nor a link above was revoked or is over."""
        if self.whole or key in self.revoked or (self.expires_ms and self.expires_ms <= now_ms):
            return False
        return self.parent is None or self.parent.stands(self.via, now_ms)

    def below(self, now_ms: int) -> Iterator[Agent]:
        """All agents below it that are not over by themselves, each parent before its children."""
        for child in self.children:
            if not child.whole and child.expires_ms > now_ms:
                yield child
                yield from child.below(now_ms)

    def actor(self, key: str = "") -> Actor:
        """Who wrote with this key (one of its own; empty = the newest)."""
        found = self._actors.get(key)
        if found is None:
            shown = key or (self.keys[-1] if self.keys else "")
            chain = [ids.text("agt_", c) for c in self.chain]
            found = Actor(id=self.text, key=shown, name=self.name, type=self.role, chain=chain)
            if key:
                self._actors[key] = found
        return found


class Agents:
    """Agents by number, id, key and name."""

    def __init__(self) -> None:
        self.all: list[Agent] = []
        self.by_key: dict[str, Agent] = {}
        self.by_id: dict[bytes, Agent] = {}
        self.by_name: dict[str, Agent] = {}
        self._tails = array("q")  # by number: ids.ending
        self._made: dict[int, array[int]] = {}  # number → of those that it delegated, all that there ever were
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        self._first: dict[tuple[int, str], int] = {}  # (user gateway, user) → its first session, whose context all have

    def payer(self, agent: Agent) -> Agent:
        """Whose quotas it uses up: those of the root of its chain, or an agent would multiply its own by delegating."""
        return self.all[agent.root]

    def counted(self, agent: Agent) -> tuple[Agent, ...]:
        """Whom its memories count for: itself, and who pays."""
        return (agent,) if agent.root == agent.number else (agent, self.all[agent.root])

    def issue(self, e: AgentIssued) -> Agent:
        """Apply agent_issued: a new agent, or (known id) a new key and projects of the same one."""
        agent = self.by_id.get(e.agent)
        if agent is None:
            agent = self._added(Agent(len(self.all), e.agent, e.name, e.role, [e.key], tuple(e.projects), e.person))
            agent.user = e.user
        else:
            if e.key not in agent.keys:
                agent.keys.append(e.key)
            agent.projects = tuple(e.projects)
        self.by_key[e.key] = agent
        return agent

    def delegate(self, e: AgentDelegated) -> Agent:
        """Apply agent_delegated: a child shares the context of its parent, but a user gateway's that of its user's other
        sessions: a new session must not shed what the one before was served.
        """
        parent = self.by_id[e.parent]
        agent = self._added(Agent(len(self.all), e.agent, e.name, e.role, [e.key], tuple(e.projects), e.person))
        agent.parent, agent.via, agent.chain = parent, e.via, (*parent.chain, parent.id)
        own = parent.role == OWN_CONTEXT_FOR
        agent.root = self._first.setdefault((parent.number, e.user), agent.number) if own else parent.root
        if agent.root != agent.number:
            agent.family = self.all[agent.root].family
            agent.family.add(agent.number)
        agent.expires_ms, agent.user = e.expires, e.user
        projects, verbs, tools = (self._same(frozenset(x)) for x in (e.projects, e.verbs, e.tools))
        agent.bounds = Bounds(e.role, projects, verbs, tools, e.clearance, e.ceiling, e.user)
        if (
            len(parent.children) >= parent.tidied_at
        ):  # twice as many as were left then: each child is looked at a few times in all
            over = [c for c in parent.children if c.whole or c.expires_ms <= e.ms]
            for child in over:
                child.rest()
            parent.children = [c for c in parent.children if not c.whole and c.expires_ms > e.ms]
            parent.tidied_at = max(CHILDREN_KEPT, 2 * len(parent.children))
        parent.children.append(agent)
        self._made.setdefault(parent.number, array("i")).append(agent.number)
        self.by_key[e.key] = agent
        return agent

    def with_descendants(self, agent: Agent) -> list[int]:
        """Numbers of an agent and of all that it ever delegated, directly or not. There may be millions, below a gateway; of all
        others this takes as long as they are.
        """
        found = [agent.number]
        for number in found:
            found += self._made.get(number, ())
        return found

    def ending(self, tail: str) -> list[Agent]:
        """Those whose id ends so: at least bus.frames.TAIL_CHARS characters. No walk through all: it is asked of the loop."""
        end = ids.ending_of(tail)
        if end is None:
            return []
        found = np.flatnonzero(np.frombuffer(self._tails, np.int64) == end).tolist()
        return [a for number in found if (a := self.all[number]).text.endswith(tail)]

    def _same(self, names: frozenset[str]) -> frozenset[str]:
        """One object for equal sets: a gateway's sessions have the same."""
        return self._sets.setdefault(names, names)

    def _added(self, agent: Agent) -> Agent:
        agent.root, agent.family = agent.number, {agent.number}
        self.all.append(agent)
        self._tails.append(ids.ending(agent.id))
        self.by_id[agent.id] = self.by_name[agent.name] = agent
        return agent

    def revoke(self, e: AgentRevoked) -> None:
        """Apply agent_revoked."""
        agent = self.by_id[e.agent]
        agent.revoked |= set(e.keys)
        agent.whole = agent.whole or e.whole
