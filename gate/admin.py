"""The home's control plane inside CORE: tenants, projects, agents, registry, status, verify. The literal key in the subject
is the identity.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bus.delegation import JOINT
from bus.errors import ConfigError
from bus.frames import AdmAgent, AdmErased, AdminRequest, AdmProject, AdmRegistry, AdmStatus, AdmTenant, AdmVerify, Done
from bus.identity import verify_registry
from bus.subjects import is_key, is_token
from gate import ids
from gate.admin_projects import ADMIN, Projects, known_projects
from gate.admin_tenants import Tenants
from gate.ledger import events as E
from gate.pages import filled, following
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.rights import ROLES
from gate.state.principals import Agent
from gate.state.tenant import Tenant
from gate.writing.sequencer import Stored

if TYPE_CHECKING:
    from gate.shard import Shard

_PERSON: Final = re.compile(r"[a-z0-9_-]{0,64}\Z")


class Admin:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.projects, self.tenants = Projects(self), Tenants(shard)
        self.publish_registry: Callable[[str], Awaitable[None]] | None = None  # where the next owner finds it

    async def answer(self, req: AdminRequest) -> Done:
        """The answer to one request of the control plane. Raises Refused."""
        match req:
            case AdmStatus():
                return Done(request_id=req.request_id, result=self.shard.status())
            case AdmVerify():
                return Done(request_id=req.request_id, result=await self.shard.verifying.answer(req))
            case AdmErased():
                return Done(request_id=req.request_id, result=await self.shard.erasures.work(req.done, req.trouble))
            case AdmRegistry():
                return await self._registry(req)
            case AdmTenant():
                return await self._tenant(req)
            case AdmProject():
                return await self.projects.answer(self._known(req.account), req)
            case AdmAgent():
                return await self._agent(req)
        raise Refused("verb_not_available")

    async def commit(self, t: Tenant, make: Callable[[], list[E.AnyEvent]]) -> None:
        """Append what `make` gives, which looks at the state again when its turn has come. It may raise Refused."""

        async def run() -> None:
            await self.shard.sequencer.commit(t, [Stored(e) for e in make()])

        await self.shard.operators.barrier(t, run)

    async def _registry(self, req: AdmRegistry) -> Done:
        try:
            entries = verify_registry(req.jwt, self.shard.operator_jwt)
        except ConfigError:
            raise Refused("issuer_unknown", field="jwt") from None
        if self.publish_registry is not None:
            await self.publish_registry(req.jwt)
        self.shard.identifier.use_registry(entries)
        return Done(
            request_id=req.request_id, result={"entries": len(entries), "hash": hashlib.sha256(req.jwt.encode()).hexdigest()}
        )

    async def _tenant(self, req: AdmTenant) -> Done:
        s = self.shard
        if req.action == "list":
            start = max(0, req.cursor)
            rows = (
                {
                    "name": t.name,
                    "account": t.account,
                    "projects": len(t.projects),
                    "agents": len(t.agents.all),
                    "memories": t.memories,
                    "position": t.position,
                    "held": t.held_total,
                    "review": t.review_total,
                    "bytes": t.bytes,
                    "quotas": msgspec.to_builtins(t.quotas),
                    "state": "deleted" if t.deleted else "suspended" if t.suspended else "active",
                }
                for t in sorted(s.tenants.values(), key=lambda t: t.name)[start:]
            )
            page = filled(rows)
            return Done(request_id=req.request_id, result={"tenants": page, "next": following(start, len(page), len(s.tenants))})
        if req.action in ("suspend", "resume"):
            return await self._suspend(self._known(req.account), req)
        if req.action == "export":
            return await self.tenants.export(self._known(req.account), req)
        if req.action == "consent":
            return self.tenants.consent(self._known(req.account), req)
        if req.action == "delete":
            return await self.tenants.delete(self._known(req.account, deleted=True), req)
        if not is_key(req.account) or not is_token(req.name):
            raise Refused("bad_name", field="name")
        if any(t.name == req.name and (t.account != req.account or t.deleted) for t in s.tenants.values()):
            raise Refused("name_taken", field="name")
        t = s.tenants.get(req.account)
        if t is None:
            try:
                key = bytes.fromhex(req.user_key)
            except ValueError:
                key = b""
            if len(key) < 16 or (s.lease is not None and not s.paths.can_give(req.name, req.account, key)):
                raise Refused("bad_field", field="user_key")
            t = await s.add_tenant(req.account, req.name, key)
        await self.commit(t, lambda: [] if t.position else [E.TenantAdded(ms=s.now_ms(), name=req.name, by=ADMIN)])
        return Done(request_id=req.request_id, result={"name": t.name, "account": t.account}, position=t.position)

    async def _suspend(self, t: Tenant, req: AdmTenant) -> Done:
        state = "suspended" if req.action == "suspend" else "active"
        changes = t.suspended != (state == "suspended")
        await self.commit(t, lambda: [E.TenantChanged(ms=self.shard.now_ms(), state=state, by=ADMIN)] if changes else [])
        return Done(request_id=req.request_id, result={"name": t.name, "state": state}, position=t.position)

    def _known(self, account: str, *, deleted: bool = False) -> Tenant:
        t = self.shard.tenants.get(account)
        if t is None:
            raise Refused("tenant_unknown", field="account")
        if t.deleted and not deleted:
            raise Refused("tenant_deleted", field="account")
        return t

    async def _agent(self, req: AdmAgent) -> Done:
        t = self._known(req.account)
        if req.action == "list":
            return self._agents(t, req)
        if not is_token(req.name):
            raise Refused("bad_name", field="name")
        if req.action == "add" and JOINT in req.name:
            raise Refused("bad_name", field="name")
        if req.action in ("rotate", "revoke"):
            agent = t.agents.by_name.get(req.name)
            if agent is None:
                raise Refused("agent_unknown", field="name")
            await self.commit(t, lambda: self._rotated(t, agent, req) if req.action == "rotate" else self._revoked(agent, req))
            return Done(request_id=req.request_id, result=self._shown(agent), position=t.position)
        fits = {"key": is_key(req.key), "role": req.role in ROLES, "person": _PERSON.match(req.person)}
        fits["user"] = not req.user or is_token(req.user)
        for field, good in fits.items():
            if not good:
                raise Refused("bad_field", field=field)
        known_projects(t, req.projects)

        def events() -> list[E.AnyEvent]:
            if req.key in t.agents.by_key:  # a retry
                return []
            if req.name in t.agents.by_name:
                raise Refused("name_taken", field="name")
            now_ms = self.shard.now_ms()
            return [
                E.AgentIssued(
                    ms=now_ms,
                    agent=ids.new_raw(now_ms),
                    name=req.name,
                    key=req.key,
                    role=req.role,
                    projects=req.projects,
                    person=req.person,
                    by=ADMIN,
                    user=t.user_of(req.user),
                )
            ]

        await self.commit(t, events)
        return Done(request_id=req.request_id, result=self._shown(t.agents.by_key[req.key]), position=t.position)

    def _agents(self, t: Tenant, req: AdmAgent) -> Done:
        """A page of those that the home issued, by name; with a name of that one and those that it delegated, directly or not."""
        if req.name:
            agent = t.agents.by_name.get(req.name)
            if agent is None:
                raise Refused("agent_unknown", field="name")
            found = [agent, *agent.below(self.shard.now_ms())]
        else:
            found = sorted((a for a in t.agents.all if a.parent is None), key=lambda a: a.name)
        start = max(0, req.cursor)
        rows = filled(self._shown(a) for a in found[start:])
        result = {"tenant": t.name, "agents": rows, "next": following(start, len(rows), len(found))}
        return Done(request_id=req.request_id, result=result)

    def _rotated(self, t: Tenant, agent: Agent, req: AdmAgent) -> list[E.AnyEvent]:
        """One more key, and perhaps other projects, for the same agent: its id, context, notices and idempotency keys stay."""
        if agent.whole:
            raise Refused("agent_revoked", field="name")
        if agent.parent is not None:
            raise Refused("delegated_not_rotated", field="name")
        if not is_key(req.key) or t.agents.by_key.get(req.key, agent) is not agent or req.key in agent.revoked:
            raise Refused("bad_field", field="key")
        known_projects(t, req.projects)
        projects = req.projects or list(agent.projects)
        if req.key in agent.keys and projects == list(agent.projects):  # a retry
            return []
        return [
            E.AgentIssued(
                ms=self.shard.now_ms(),
                agent=agent.id,
                name=agent.name,
                key=req.key,
                role=agent.role,
                projects=projects,
                person=agent.person,
                by=ADMIN,
            )
        ]

    def _revoked(self, agent: Agent, req: AdmAgent) -> list[E.AnyEvent]:
        if not set(req.revoked) <= set(agent.keys):
            raise Refused("bad_field", field="revoked")
        whole = not req.revoked
        keys = [k for k in req.revoked or agent.keys if k not in agent.revoked]
        if not keys and agent.whole >= whole:
            return []
        return [E.AgentRevoked(ms=self.shard.now_ms(), agent=agent.id, keys=keys, whole=whole, by=ADMIN)]

    def _fell(self, agent: Agent, key: str) -> bool:
        return not agent.stands(key, self.shard.now_ms())

    def _shown(self, a: Agent) -> dict[str, Any]:
        return {
            "agent_id": a.text,
            "name": a.name,
            "role": a.role,
            "key": a.keys[-1],
            "keys": list(a.keys),
            "projects": list(a.projects),
            "person": a.person,
            "revoked": sorted(a.revoked),
            "shared": [
                {"key": key, "hosts": sorted(s.hosts), "first_at": rfc3339(s.first_ms), "last_at": rfc3339(s.last_ms)}
                for key, seats in a.seats.items()
                if (s := seats.sharing)
            ],
            "held": a.held,
            "review": a.review,
            "bytes": a.bytes,
            "state": "revoked" if a.whole else "active" if any(not self._fell(a, k) for k in a.keys) else self._over(a),
            "chain": [ids.text("agt_", x) for x in a.chain],
            "parent": a.parent.name if a.parent else "",
            "below": sum(1 for _ in a.below(self.shard.now_ms())),
            "expires_at": rfc3339(a.expires_ms) if a.expires_ms else None,
        }

    def _over(self, a: Agent) -> str:
        """Why no key speaks for an agent that was not revoked itself."""
        return "expired" if a.expires_ms and a.expires_ms <= self.shard.now_ms() else "ended"
