"""Which part of a copy is restored: one tenant, and of its memories those of a project, an end user or an agent. Pure.

Of what is left out the text stays behind; its place, labels and edges come along, so ids, positions, lineage and the tenant's
chain are as they were, and a parent that isn't among what was asked for is there by its id. Other tenants aren't there at all:
their sections are left out, and blocks get new headers.

Invariant: what is asked for and isn't there is refused, never taken for everything.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bus.errors import Rejected
from bus.identity import user_token
from bus.subjects import is_user_token
from gate import ids
from gate.ledger import events as E
from gate.ledger.block import Block, ReadsBlock, Section, encode, encode_reads


class Only(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. `tenant` by name, empty = the only one; the others narrow it, all that are given must fit.

    `user`: an end user's id, or the token that stands for it; `agent`: a name or id, and all that it delegated.
    """

    tenant: str = ""
    project: str = ""
    user: str = ""
    agent: str = ""

    def __str__(self) -> str:
        """For people, without a user's id."""
        shown = {"tenant": self.tenant, "project": self.project, "user": "…" if self.user else "", "agent": self.agent}
        return ", ".join(f"{name} {value}" for name, value in shown.items() if value)


class Chosen:
    """Feed `then` with every section up to the cut, in order, then `settle`. `user_key`: (tenant, account) → its key."""

    def __init__(self, only: Only, user_key: Callable[[str, str], bytes]) -> None:
        self._only, self._user_key = only, user_key
        self.account = ""
        self.left_out: set[int] = set()  # memories of the account whose text stays behind
        self.kept = 0  # the others
        self._tenants: dict[str, str] = {}  # account → name
        self._part = E.Part()
        self._found = {"project": not only.project, "agent": not only.agent}

    def is_of(self, account: str) -> bool:
        return account == self.account

    @property
    def part(self) -> E.Part:
        return self._part

    def then(self, section: Section) -> None:
        for seq, (meta, _) in enumerate(section.events, section.seq):
            event = E.decode_event(meta)
            if isinstance(event, E.TenantAdded):
                self._tenant(section.tenant, event.name)
            if not self.is_of(section.tenant):
                continue
            match event:
                case E.ProjectChanged():
                    self._found["project"] |= event.name == self._only.project
                case E.AgentIssued() | E.AgentDelegated():
                    self._agent(event)
                case E.MemoryWritten():
                    if self._found["agent"] and self._part.fits(event):
                        self.kept += 1
                    else:
                        self.left_out.add(seq)

    def _tenant(self, account: str, name: str) -> None:
        self._tenants[account] = name
        if name != self._only.tenant and (self._only.tenant or self.account):
            return
        user = self._only.user
        if user and not is_user_token(user):
            user = user_token(self._user_key(name, account), user)
        self.account, self._part = account, E.Part(project=self._only.project, user=user)

    def _agent(self, event: E.AgentIssued | E.AgentDelegated) -> None:
        wanted, family = self._only.agent, self._part.agents
        named = wanted and wanted in (event.name, ids.text("agt_", event.agent))
        if named or (isinstance(event, E.AgentDelegated) and event.parent in family):
            if event.agent not in family:
                self._part = msgspec.structs.replace(self._part, agents=[*family, event.agent])
            self._found["agent"] = True

    def settle(self, block: int) -> None:
        """Raises Rejected (part_tenant_missing, part_empty) unless a memory fits."""
        if not self._only.tenant and len(self._tenants) > 1:
            raise Rejected(
                "The copy has several tenants.",
                reason="part_tenant_missing",
                field="tenant",
                advice=f"Say with --tenant whose memories are meant: {', '.join(sorted(self._tenants.values()))}.",
            )
        known = {"tenant": bool(self.account), **self._found}
        for name, value in (("tenant", self._only.tenant), ("project", self._only.project), ("agent", self._only.agent)):
            if not known[name]:
                raise _empty(f"The copy has no {name} {value!r} up to block {block}.", name)
        if not self.kept:
            raise _empty(f"No memory up to block {block} of the copy is of {self._only}.", "user" if self._only.user else "")

    # --- what is poured ---------------------------------------------------------------------------
    def block(self, block: Block, data: bytes, prev: bytes) -> bytes:
        """The block with this tenant's section alone, behind `prev`; as it is stored where that changes nothing.

        A section's hash is made of its head and metas, which are encoded as they were: its own chain proves it.
        """
        sections = [s for s in block.sections if self.is_of(s.tenant)]
        if len(sections) == len(block.sections) and block.header.prev_block == prev:
            return data
        return encode(msgspec.structs.replace(block.header, prev_block=prev, sections=len(sections)), sections)[1]

    def reads(self, block: ReadsBlock, data: bytes, prev: bytes | None) -> bytes:
        """The same for a block of READS; `prev` None: it is the first."""
        prev = block.header.prev_block if prev is None else prev
        records = [r for r in block.records if self.is_of(r.tenant)]
        if len(records) == len(block.records) and block.header.prev_block == prev:
            return data
        return encode_reads(msgspec.structs.replace(block.header, prev_block=prev, records=len(records)), records)[1]


def _empty(message: str, field: str) -> Rejected:
    return Rejected(
        message, reason="part_empty", field=field, advice="Nothing was restored. Name what is there, or leave that option out."
    )
