"""The home's control plane from outside: adds tenants, projects and agents to a running home, and asks its gatekeeper for status.

Invariants: every step can be repeated, so a call that was cut short is simply made again; an agent's credential appears under its
final name only after the gatekeeper has it in the ledger; one process at a time changes the trust tree.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import anyio
import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from bus import frames, subjects
from bus.delegation import JOINT
from bus.errors import Closed, ConfigError, Conflict, CordonError, Denied, Rejected, Unavailable
from bus.frames import AdmAgent, AdmProject, AdmRegistry, AdmStatus, AdmTenant, Done, Refusal
from bus.identity import Keypair, creds_text, keypair, parse_creds, parse_tags
from bus.limits import REQUEST_TIMEOUT_S

from .connection import connected
from .control_projects import Projects, deleted, no_project
from .control_tenants import Tenants
from .home import Home, write_private
from .processes import try_lock
from .streams import StreamRoom, ensure_streams, lend_ledger_room, streams_room
from .trust import EVERYBODY, AgentRequest, Tenant, Trust, nearest

LOCK_TIMEOUT_S: Final = 30.0
LOCK_POLL_S: Final = 0.02


class Control:
    """`async with Control(home) as control`: connections of the admin and the system user of a home that is up.

    Raises Rejected, Conflict, Denied (don't retry), Unavailable (retry) and ConfigError (the home is missing or unsafe).
    """

    def __init__(self, home: Home, *, shard: int = 0, clock: Callable[[], float] = time.time) -> None:
        self.home, self.shard = home, shard
        self.trust = Trust(home, clock, shard)
        self.projects, self.tenants = Projects(self), Tenants(self)
        self._stack = AsyncExitStack()
        self._admin: Client | None = None
        self._admin_key = ""

    async def __aenter__(self) -> Control:
        self.home.check_private()
        url, creds = self.home.url, self.home.core_creds("admin")
        self._admin = await self._stack.enter_async_context(connected(url, creds, self.home.ca_file))
        self._admin_key = parse_creds(creds.read_text()).key
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._admin = None
        await self._stack.aclose()

    # --- tenants
    async def tenant_add(self, name: str) -> dict[str, Any]:
        """Keys, account, registry, ledger, in this order: what is in the ledger is complete. Repeating it is harmless.

        Where the gatekeeper doesn't serve nothing is made: keys of a tenant that isn't there would only be in the way.
        """
        async with self._changing_trust():
            self._check_not_lost(name, await self.tenant_list())
            tenant = self.trust.make_tenant(name)
            await self.push_account(self.trust.tenant_jwt(tenant))
            await self._ask(AdmRegistry(jwt=self.trust.write_registry()))
            return await self._ask(
                AdmTenant(action="add", account=tenant.account, name=tenant.name, user_key=tenant.user_key)
            )  # fmt: skip

    def _check_not_lost(self, name: str, known: list[dict[str, Any]]) -> None:
        """New keys in the place of lost ones would be another tenant's, and the key of its end users' ids be gone for good."""
        if name not in self.trust.tenant_names() and any(r["name"] == name and r["state"] != "deleted" for r in known):
            raise ConfigError(
                f"The ledger has tenant {name}, and {self.home.tenant_trust(name)} hasn't its account's key.",
                reason="trust_lost",
                advice="Put that folder back from a copy that was made --with-keys.",
            )

    async def tenant_list(self) -> list[dict[str, Any]]:
        return [row async for row in self._pages(AdmTenant(), "tenants")]

    async def tenant_suspend(self, name: str) -> dict[str, Any]:
        """Cut every connection of the tenant and refuse its credentials until `tenant_resume`. Nothing of it is lost."""
        async with self._changing_trust():
            tenant = self.trust.tenant(name)
            self.trust.revoke(tenant, [EVERYBODY])
            await self.push_account(self.trust.tenant_jwt(tenant))
            return await self._ask(AdmTenant(action="suspend", account=tenant.account))

    async def tenant_resume(self, name: str) -> dict[str, Any]:
        """Its credentials count again, but for those that were revoked singly."""
        async with self._changing_trust():
            tenant = self.trust.tenant(name)
            done = await self._ask(AdmTenant(action="resume", account=tenant.account))
            self.trust.restore(tenant)
            await self.push_account(self.trust.tenant_jwt(tenant))
            return done

    # --- projects
    async def project_add(
        self, tenant: str, name: str, settings: Mapping[str, Any] | None = None, *, display: str | None = None, by: str = ""
    ) -> dict[str, Any]:
        subjects.token(name, "project")
        account = self.trust.tenant(tenant).account
        frame = AdmProject(action="add", account=account, name=name, settings=dict(settings or {}), display=display, by=by)
        return await self._ask(frame)

    async def project_list(self, tenant: str) -> list[dict[str, Any]]:
        return [row async for row in self._pages(AdmProject(account=self.trust.tenant(tenant).account), "projects")]

    # --- agents
    async def agent_add(
        self,
        tenant: str,
        name: str,
        role: str = "agent",
        projects: Sequence[str] = (),
        see: Sequence[str] = (),
        tools: Sequence[str] = (),
        person: str = "",
        ttl: int | None = None,
        user: str = "",
    ) -> dict[str, Any]:
        """Issue a credential: {agent_id, key, creds (absolute path), name, role, projects, tenant}. `ttl` in seconds.

        `user`: an end user's id in any form.

        A name that is taken is a Conflict and leaves no file; an unknown tenant or project is Rejected with the nearest name.
        """
        request = AgentRequest(tenant, name, role, tuple(projects), tuple(see), tuple(tools), person, user, ttl)
        async with self._changing_trust():
            creds = self.home.agent_creds(tenant, _root_name(name))
            _check_free(creds, tenant, name)
            owner = self.trust.tenant(tenant)
            self._check_active(owner)
            await self._check_projects(owner, request.projects)
            pending, key = self._write_pending(creds, request)
            try:
                done = await self._register(owner, request, key)
            except Rejected:
                pending.unlink()
                raise
            pending.rename(creds)
        shown = {name: done.get(name) for name in ("agent_id", "key", "name", "role", "projects")}
        return {**shown, "tenant": tenant, "creds": str(creds)}

    async def agent_list(self, tenant: str) -> list[dict[str, Any]]:
        return [row async for row in self._pages(AdmAgent(account=self.trust.tenant(tenant).account), "agents")]

    async def agent_show(self, tenant: str, name: str) -> dict[str, Any]:
        """One row of `agent_list`. `Rejected` (agent_unknown) with the nearest name."""
        try:
            return await anext(self._family(self.trust.tenant(tenant), name))
        except Rejected as e:
            if e.reason != "agent_unknown":
                raise
        known = sorted(str(row["name"]) for row in await self.agent_list(tenant))
        raise Rejected(
            f"Tenant {tenant} has no agent {name!r}.",
            reason="agent_unknown",
            field="name",
            advice=nearest(name, known, "agent"),
        )

    async def agent_family(self, tenant: str, name: str) -> list[dict[str, Any]]:
        """An agent, and all below it whose time isn't over, each parent before its children."""
        return [row async for row in self._family(self.trust.tenant(tenant), name)]

    def _family(self, tenant: Tenant, name: str) -> AsyncIterator[dict[str, Any]]:
        return self._pages(AdmAgent(account=tenant.account, name=name), "agents")

    async def _pages(self, frame: AdmTenant | AdmProject | AdmAgent, rows: str) -> AsyncIterator[dict[str, Any]]:
        """The rows of a list, a page after the other."""
        cursor: int | None = 0
        while cursor is not None:
            page = await self._ask(msgspec.structs.replace(frame, cursor=cursor))
            for row in page[rows]:
                yield row
            cursor = page["next"]

    async def agent_revoke(self, tenant: str, name: str) -> dict[str, Any]:
        """Cut the agent, and all that it delegated, within a second and for ever. What they wrote stays, attributed to them;
        their names are not used again.
        """
        async with self._changing_trust():
            owner, agent = self.trust.tenant(tenant), await self.agent_show(tenant, name)
            await self._cut(owner, agent["keys"], _ends([agent]))
            done = await self._ask(AdmAgent(action="revoke", account=owner.account, name=name))
            done["fallen"] = await self._cut_below(owner, name)
            creds = self.home.agent_creds(tenant, name)
            for path in (creds, creds.with_suffix(".pending")):
                path.unlink(missing_ok=True)
            return done

    async def agent_rotate(
        self, tenant: str, name: str, ttl: int | None = None, keep_old: bool = False, projects: Sequence[str] = ()
    ) -> dict[str, Any]:
        """A new key and credential file for the same agent, with the same rights; the old key is cut (unless `keep_old`).

        The agent keeps its id, context, notices and idempotency keys; what the old key delegated is cut with it. `ttl` in
        seconds, None = the role's default. `projects` take the place of those it had; none = it keeps them. An unknown one is
        Rejected, and nothing is changed.
        """
        async with self._changing_trust():
            owner, agent = self.trust.tenant(tenant), await self.agent_show(tenant, name)
            self._check_active(owner)
            if keep_old and projects:
                raise Rejected(
                    "An old credential can't be kept with other projects: it would still write into the old ones.",
                    reason="keep_old_not_allowed",
                    field="keep_old",
                    advice="Rotate twice: first with other projects, then keeping the old one.",
                )
            creds = self.home.agent_creds(tenant, name)
            request = _same_rights(tenant, agent, creds, ttl)
            if projects:
                await self._check_projects(owner, projects)
                request = replace(request, projects=tuple(dict.fromkeys(projects)))
            pending, key = self._write_pending(creds, request)
            try:
                done = await self._ask(
                    AdmAgent(
                        action="rotate", account=owner.account, name=name, key=key.public, projects=list(request.projects)
                    )
                )  # fmt: skip
            except (Rejected, Denied):
                pending.unlink()
                raise
            old = [k for k in done["keys"] if k != key.public and k not in done["revoked"]]
            pending.rename(creds)
            if old and not keep_old:
                await self._cut(owner, old)
                done = await self._ask(AdmAgent(action="revoke", account=owner.account, name=name, revoked=old))
                await self._cut_below(owner, name)
        return {**done, "key": key.public, "tenant": tenant, "creds": str(creds)}

    def _check_active(self, tenant: Tenant) -> None:
        """A suspension voids what was issued before it, so nothing is issued during it."""
        if EVERYBODY in self.trust.revocations(tenant.name):
            raise Conflict(
                f"Tenant {tenant.name} is suspended: nothing is issued in it.",
                reason="tenant_suspended",
                advice=f"Resume it first: cordon tenant resume {tenant.name}",
            )

    async def _cut(self, tenant: Tenant, keys: Sequence[str], ends: Mapping[str, int] | None = None) -> None:
        """The broker first: it closes the connections of these keys at once. `ends`: when their credentials are over anyway."""
        self.trust.revoke(tenant, keys, ends)
        await self.push_account(self.trust.tenant_jwt(tenant))

    async def _cut_keys(self, tenant: Tenant, agent: Mapping[str, Any]) -> None:
        """All keys of an agent, and what they delegated; the agent itself isn't revoked. `agent`: its row."""
        keys = [key for key in agent["keys"] if key not in agent["revoked"]]
        async with self._changing_trust():
            await self._cut(tenant, keys, _ends([agent]))
            if keys:  # none would mean the whole agent
                await self._ask(AdmAgent(action="revoke", account=tenant.account, name=str(agent["name"]), revoked=keys))
            await self._cut_below(tenant, str(agent["name"]))

    async def _cut_below(self, tenant: Tenant, name: str) -> list[str]:
        """Names of what keys that were cut had delegated: the gatekeeper refuses it already, now the broker closes it too."""
        fallen = [row async for row in self._family(tenant, name) if row["state"] == "ended"]
        if fallen:
            await self._cut(tenant, [key for row in fallen for key in row["keys"]], _ends(fallen))
        return [str(row["name"]) for row in fallen]

    async def _check_projects(self, tenant: Tenant, projects: Sequence[str]) -> None:
        rows = await self.project_list(tenant.name) if projects else []
        gone = {str(p["name"]) for p in rows if p.get("state") == "deleted"}
        known = [str(p["name"]) for p in rows if p["name"] not in gone]
        for name in projects:
            if name in gone:
                raise deleted(tenant.name, name)
            if name not in known:
                raise no_project(tenant.name, name, known)

    def _write_pending(self, creds: Path, request: AgentRequest) -> tuple[Path, Keypair]:
        """The credential under a name that no client looks for. A call that was cut short left its key here: use that again."""
        pending = creds.with_suffix(".pending")
        key = Keypair(parse_creds(pending.read_text()).seed) if pending.exists() else keypair("user")
        write_private(pending, creds_text(self.trust.agent_jwt(request, key.public), key))
        return pending, key

    async def _register(self, tenant: Tenant, request: AgentRequest, key: Keypair) -> dict[str, Any]:
        done = await self._ask(
            AdmAgent(
                action="add", account=tenant.account, name=request.name, key=key.public, role=request.role,
                projects=list(request.projects), person=request.person, user=self.trust.user_of(request),
            )
        )  # fmt: skip
        was = (done.get("role"), sorted(done.get("projects") or ()), done.get("person") or "")
        if was != (request.role, sorted(request.projects), request.person):
            raise Conflict(
                f"A call that was cut short registered {request.name!r} as {was[0]} of {', '.join(was[1]) or 'no project'}.",
                reason="name_taken",
                advice="Repeat that call as it was, or choose another name.",
            )
        return done

    # --- health
    async def status(self) -> dict[str, Any]:
        return await self._ask(AdmStatus())

    async def ensure_streams(self) -> dict[str, str]:
        """See streams.ensure_streams."""
        return await ensure_streams(self._client(), self.home, self.shard)

    async def make_shared_streams(self, replicas: int) -> dict[str, str]:
        """The same, and the owner's stream, on servers that several gatekeepers use. See streams.ensure_streams."""
        return await ensure_streams(self._client(), self.home, self.shard, shared=True, replicas=replicas)

    async def streams_room(self, most: Mapping[str, int]) -> list[StreamRoom]:
        """See streams.streams_room."""
        return await streams_room(self._client(), self.shard, most)

    async def lend_ledger_room(self) -> StreamRoom:
        """See streams.lend_ledger_room."""
        return await lend_ledger_room(self._client(), self.shard)

    # --- the broker
    async def push_account(self, jwt: str) -> None:
        """Give the broker an account, new or changed; it takes effect at once."""
        async with connected(self.home.url, self.home.sys_creds, self.home.ca_file) as system:
            answer = await _request(system, "$SYS.REQ.CLAIMS.UPDATE", jwt.encode(), REQUEST_TIMEOUT_S)
        if msgspec.json.decode(answer, type=_ClaimsAnswer).data.code != 200:
            raise ConfigError(
                "The broker refuses the account.", reason="account_refused", advice=f"See {self.home.log('broker')}."
            )  # fmt: skip

    def _client(self) -> Client:
        if self._admin is None:
            raise Closed("Control is used outside its `async with`.", reason="closed")
        return self._admin

    async def _ask(self, frame: frames.Frame, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, Any]:
        request = msgspec.structs.replace(frame, request_id=secrets.token_hex(8))
        subject = subjects.admin(self.shard, frames.VERB_OF[type(frame)], self._admin_key)
        answer = frames.decode_reply(await _request(self._client(), subject, frames.encode(request), timeout_s))
        if isinstance(answer, Refusal):
            raise frames.raise_refusal(answer, type(frame))
        if not isinstance(answer, Done) or answer.request_id != request.request_id:
            raise CordonError("The gatekeeper's answer belongs to another request.", reason="foreign_answer", advice="Try again.")
        return answer.result

    @asynccontextmanager
    async def _changing_trust(self) -> AsyncIterator[None]:
        """Keeps other processes (and other calls of this one) from changing the trust tree meanwhile."""
        fd = os.open(self.home.trust_lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            await _lock(fd)
            yield
        finally:
            os.close(fd)


class _ClaimsData(msgspec.Struct, frozen=True):
    code: int = 0


class _ClaimsAnswer(msgspec.Struct, frozen=True):
    """What the server says to a claims request; an error has no `data`."""

    data: _ClaimsData = _ClaimsData()


async def _request(client: Client, subject: str, data: bytes, timeout_s: float) -> bytes:
    try:
        return (await client.request(subject, data, timeout=timeout_s)).data
    except NoRespondersError:
        raise Unavailable(
            "The gatekeeper doesn't serve now.", reason="gatekeeper_unreachable", advice="See `cordon status`, then try again."
        ) from None
    except (NatsError, TimeoutError) as e:
        raise Unavailable(
            f"No answer within {timeout_s:g} s ({type(e).__name__}).",
            reason="no_answer",
            advice="The outcome is unknown: try again.",
        ) from None


def _ends(agents: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Key → the unix second in which its credentials are over, for those of delegated agents."""
    return {
        key: int(datetime.fromisoformat(row["expires_at"]).timestamp()) + 1
        for row in agents
        for key in row["keys"]
        if row["expires_at"]
    }


def _same_rights(tenant: str, agent: Mapping[str, Any], creds: Path, ttl: int | None) -> AgentRequest:
    """What the agent's credential file grants, to be granted again. `Rejected` when the file is gone, or isn't its own."""
    if agent["parent"]:
        raise Conflict(
            f"Agent {tenant}/{agent['name']} was delegated by {agent['parent']}: it is not rotated.",
            reason="delegated_not_rotated",
            advice="Delegate a new one; revoke this one if its key is known to others.",
        )
    if agent["state"] == "revoked":
        raise Denied(
            f"Agent {tenant}/{agent['name']} was revoked.", reason="agent_revoked", advice="Add an agent with another name."
        )
    try:
        held = parse_creds(creds.read_text())
    except FileNotFoundError:
        raise Rejected(
            f"The credential file of {tenant}/{agent['name']} is not at {creds}, so its rights are not known.",
            reason="creds_missing",
            field="name",
            advice="Put the file back, or revoke the agent and add another.",
        ) from None
    if held.key not in set(agent["keys"]) - set(agent["revoked"]):
        raise Rejected(
            f"The credential file at {creds} is not a valid one of {tenant}/{agent['name']}.",
            reason="creds_foreign",
            field="name",
            advice="Put the agent's own file back, or revoke the agent and add another.",
        )
    tags = parse_tags(held.tags)
    see, tool = (tags.get(kind, ()) for kind in ("see", "tool"))
    person, user = ("".join(tags.get(kind, ())) for kind in ("person", "user"))
    return AgentRequest(
        tenant, str(agent["name"]), str(agent["role"]), tuple(agent["projects"]), see, tool, person, "", ttl, user
    )


def _root_name(name: str) -> str:
    if JOINT in subjects.token(name, "agent"):
        raise Rejected(
            f"Agent name {name!r} is not allowed: {JOINT!r} stands between an agent's name and its child's.",
            reason="bad_name",
            field="agent",
            advice="Use single dashes.",
        )
    return name


def _check_free(creds: Path, tenant: str, name: str) -> None:
    if creds.exists():
        raise Conflict(
            f"Tenant {tenant} has an agent {name!r} already.",
            reason="name_taken",
            advice="Names are never reused: choose another.",
        )


async def _lock(fd: int) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while not try_lock(fd):
        if time.monotonic() > deadline:
            raise Unavailable(
                "Another process is changing this home's tenants or agents.", reason="trust_locked", advice="Try again."
            )
        await anyio.sleep(LOCK_POLL_S)
