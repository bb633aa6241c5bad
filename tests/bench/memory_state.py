"""A tenant in this process, made of events as a replay makes one: for benches that need no broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from bus.frames import CLASSIFICATIONS
from gate.identify import Principal, Rights
from gate.ledger import events as E
from gate.model.embedder import StaticEmbedder
from gate.projections.lexical import terms
from gate.reading.ask import Ask
from gate.reading.retrieve import ProjectIndex
from gate.rights import TABLE
from gate.state.projects import Project
from gate.state.tenant import Tenant

AGENT_ID: Final = bytes(15) + b"\1"


class InMemory:
    """Projects of one tenant, one agent that may read them all, and their indexes."""

    def __init__(self, embedder: StaticEmbedder) -> None:
        self.embedder = embedder
        self.tenant = Tenant("A" * 56, "t0", bytes(32))
        self.indexes: dict[str, ProjectIndex] = {}
        self.now_ms = int(time.time() * 1000)
        self._apply(E.AgentIssued(ms=self.now_ms, agent=AGENT_ID, name="a0", key="U" * 56, role="agent", projects=["p1"]))

    def _apply(self, event: E.AnyEvent) -> None:
        self.tenant.apply(self.tenant.position + 1, event)

    def add(self, name: str, texts: Sequence[str]) -> tuple[Project, ProjectIndex]:
        """A new project that holds these memories."""
        self._apply(E.ProjectChanged(ms=self.now_ms, name=name))
        first = self.tenant.position + 1
        for i in range(len(texts)):
            self._apply(
                E.MemoryWritten(
                    ms=self.now_ms - len(texts) + i,
                    id=(first + i).to_bytes(16, "big"),
                    project=name,
                    agent=AGENT_ID,
                    key="U" * 56,
                    role="agent",
                    origin=1,
                    trust=400,
                    floor=400,
                    comp=[f"project:{name}"],
                    nosrc=True,
                    ctx=AGENT_ID,
                    body=bytes(32),
                )
            )
        index = self.indexes[name] = ProjectIndex()
        vectors = self.embedder.encode(list(texts)).astype(np.float16).astype(np.float32)
        index.add(list(range(first, first + len(texts))), [frozenset(terms(t)) for t in texts], vectors)
        return self.tenant.projects[name], index

    def ask(self, project: str, text: str, k: int = 8) -> Ask:
        rights = Rights("agent", 1, 1, CLASSIFICATIONS.index("internal"), frozenset([project]), "", frozenset(), frozenset(), "")
        agent = self.tenant.agents.all[0]
        principal = Principal(self.tenant, agent, agent.keys[0], project, rights, row=TABLE["mem"]["query"])
        return Ask(principal, "query", self.tenant.context_of(agent), "", "", self.now_ms, text=text, k=k)
