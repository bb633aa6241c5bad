"""A tenant told event by event, for tests of pure parts: everything in it came through `Tenant.apply`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bus.frames import Draft
from bus.identity import RegistryEntry
from bus.subjects import MEMORY_VERBS, OPS_VERBS
from gate.config import ProjectSettings, encode_settings
from gate.identify import Principal, rights_of
from gate.ledger import events as E
from gate.ledger.block import members_digest, pack_members
from gate.rights import TABLE
from gate.state.contexts import Context
from gate.state.tenant import Tenant
from gate.writing.decide import Write
from gate.writing.lineage import NO_EVIDENCE, Evidence
from gate.writing.redact import redact
from gate.writing.screen import Screening
from gate.writing.validate import check_draft

ACCOUNT = "A" * 56
HIGHEST = {
    "supervisor": "agent_inferred",
    "agent": "agent_inferred",
    "ingest": "external",
    "operator": "human_reviewed",
    "user_session": "user_stated",
}
CLEAN = Screening(0, ())


class Story:
    """Time stands still unless a test moves `ms`."""

    def __init__(self, *projects: str) -> None:
        self.t = Tenant(ACCOUNT, "acme", b"k" * 32)
        self.ms = 1_700_000_000_000
        self.told: list[E.AnyEvent] = []
        self.principals: dict[str, Principal] = {}
        self.apply(E.TenantAdded(ms=self.ms, name="acme", by="admin"))
        for name in projects or ("p1",):
            self.project(name)

    def apply(self, event: E.AnyEvent) -> int:
        seq = self.t.position + 1
        self.t.apply(seq, event)
        self.told.append(event)
        return seq

    def project(self, name: str, **settings: Any) -> None:
        self.apply(E.ProjectChanged(ms=self.ms, name=name, settings=encode_settings(ProjectSettings(**settings))))

    def agent(
        self, name: str, role: str = "agent", *, tags: Sequence[str] = (), project: str = "p1", projects: Sequence[str] = ()
    ) -> Principal:
        """A new agent of all projects so far unless some are named, as it asks in `project`. A `user:` tag takes an id."""
        tags = [f"user:{self.t.user_hash(tag[5:])}" if tag.startswith("user:") else tag for tag in tags]
        t, projects = self.t, list(projects or self.t.projects)
        self.apply(E.AgentIssued(ms=self.ms, agent=_id(name), name=name, key=f"U{name}", role=role, projects=projects))
        verbs = [*MEMORY_VERBS, *OPS_VERBS]
        entry = RegistryEntry(tenant=ACCOUNT, role=role, origin=HIGHEST.get(role, ""), classification="restricted", verbs=verbs)
        rights = rights_of(entry, [*(f"project:{p}" for p in projects), "see:internal", *tags])
        self.principals[name] = Principal(
            t, t.agents.by_name[name], f"U{name}", project, rights, rights.user, TABLE["mem"]["write"]
        )
        return self.principals[name]

    def memory(self, by: Principal, **facts: Any) -> int:
        """A memory as the ledger might hold it, whatever would have been decided."""
        return self.apply(self.written(by, **facts))

    def written(self, by: Principal, **facts: Any) -> E.MemoryWritten:
        """Its event."""
        stamp = {
            "project": by.project,
            "comp": [f"project:{facts.get('project', by.project)}"],
            "origin": 1,
            "trust": 500,
            "floor": 500,
        }
        return E.MemoryWritten(
            **{
                "ms": self.ms, "id": _id(f"memory {self.t.position}"), "agent": by.agent.id, "key": by.key, "role": by.role,
                "ctx": by.agent.id, "body": b"h" * 32, **stamp, **facts,
            }
        )  # fmt: skip

    def case(self, by: Principal, *members: int, roots: Sequence[int] = ()) -> bytes:
        """An open case with these members, as a replay meets it."""
        id_, sorted_ = _id(f"case {self.t.position}"), np.array(sorted(members), np.int32)
        parts = pack_members(sorted_)
        for i, (count, deltas) in enumerate(parts):
            self.apply(E.CasePart(ms=self.ms, case=id_, part=i, count=count, deltas=deltas))
        self.apply(
            E.CaseOpened(
                ms=self.ms, case=id_, agent=by.agent.id, roots=list(roots or members), parts=len(parts), count=len(members),
                digest=members_digest(sorted_), edges=[0, 1, 4],
            )
        )  # fmt: skip
        return id_

    def release(self, by: Principal, case: bytes) -> None:
        self.apply(E.CaseReleased(ms=self.ms, case=case, agent=by.agent.id))

    def context(self, of: Principal) -> Context:
        return self.t.context_of(of.agent)

    def serve(self, to: Principal, *seqs: int) -> int:
        """What the read pump does when it is about to serve these; the number of the recall."""
        ctx = self.context(to)
        number = ctx.register(self.t.columns, self.t.comps, seqs, self.ms, b"", b"")
        self.t.note_served(to.agent, seqs)
        self.t.expose_to_held(ctx, seqs)
        return number

    def draft(
        self, by: Principal, content: str = "something", *, declared: Sequence[int] = (), supersedes: int = 0,
        lineage: Evidence = NO_EVIDENCE, screening: Screening = CLEAN, sourced: bool = True, **fields: Any,
    ) -> Write:  # fmt: skip
        """A write as the sequencer gets it from the index thread."""
        return Write(
            by, check_draft(Draft(content=content, **fields), self.ms), self.context(by), list(declared), supersedes, "", "",
            self.ms, redacted=redact(content), evidence=("https://source",) if sourced else (), screening=screening,
            lineage=lineage, body_hash=b"h" * 32,
        )  # fmt: skip


def _id(name: str) -> bytes:
    """16 bytes that tell names apart."""
    return hashlib.blake2b(name.encode(), digest_size=16).digest()
