"""Agents of a tenant as the ledger knows them: stable ids, their keys and names. A name is never reused."""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.frames import Actor
from gate import ids
from gate.ledger.events import AgentIssued, AgentRevoked
from gate.quotas import AGENT_READS, AGENT_WRITES, Bucket


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
    revoked: set[str] = field(default_factory=set)  # keys of its own that speak for it no more
    whole: bool = False  # revoked itself: no key speaks for it
    held: int = 0  # how many of its memories are held now
    in_flight: int = 0
    writes: Bucket = field(default_factory=lambda: Bucket(AGENT_WRITES))
    reads: Bucket = field(default_factory=lambda: Bucket(AGENT_READS))
    text: str = field(init=False)
    _actors: dict[str, Actor] = field(default_factory=dict)  # by key: the same in every answer

    def __post_init__(self) -> None:
        self.text = ids.text("agt_", self.id)

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

    def issue(self, e: AgentIssued) -> Agent:
        """Apply agent_issued: a new agent, or (known id) a new key and projects of the same one."""
        agent = self.by_id.get(e.agent)
        if agent is None:
            number = len(self.all)
            parent = self.by_id.get(e.parent) if e.parent else None
            agent = Agent(number, e.agent, e.name, e.role, [e.key], tuple(e.projects), e.person)
            agent.root = parent.root if parent else number
            agent.chain = (*parent.chain, parent.id) if parent else ()
            self.all.append(agent)
            self.by_id[e.agent] = agent
            self.by_name[e.name] = agent
        else:
            if e.key not in agent.keys:
                agent.keys.append(e.key)
            agent.projects = tuple(e.projects)
        self.by_key[e.key] = agent
        return agent

    def revoke(self, e: AgentRevoked) -> None:
        """Apply agent_revoked."""
        agent = self.by_id[e.agent]
        agent.revoked.update(e.keys)
        agent.whole = agent.whole or e.whole
