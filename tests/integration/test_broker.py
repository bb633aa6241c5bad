"""The trust tree on a real nats-server: what each key may do beside what it may not; and the control plane while it runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from broker_config.connection import connected
from broker_config.control import Control
from broker_config.home import Home, write_private
from broker_config.processes import live_pid, write_pid
from broker_config.roles import ROLES
from broker_config.server import find_server, start_server, stop_server
from broker_config.trust import AgentRequest, Trust
from bus import frames
from bus.errors import ConfigError, Conflict, Rejected, Unavailable
from bus.frames import AdmAgent, AdminRequest, AdmProject, AdmRegistry, AdmTenant, Done, Refusal
from bus.identity import creds_text, keypair, parse_creds, verify_registry

DEADLINE_S = 10.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


async def settle(client: Client) -> None:
    """What was sent has reached the broker, and its complaints are here.

    One flush isn't enough: nats-py writes its ping ahead of what it still buffers.
    """
    await client.flush()
    await client.flush()


# --- a world: one server, two tenants, a user of every role -------------------------------------------
@dataclass(frozen=True)
class World:
    home: Home
    trust: Trust
    accounts: dict[str, str]

    def creds(self, user: str) -> Path:
        """`user`: TENANT/AGENT, _core/NAME or _sys/admin."""
        folder, name = user.split("/")
        return self.home.agent_creds(folder, name)

    def key(self, user: str) -> str:
        return parse_creds(self.creds(user).read_text()).key


def mint(trust: Trust, request: AgentRequest) -> None:
    user = keypair("user")
    creds = creds_text(trust.agent_jwt(request, user.public), user)
    write_private(trust.home.agent_creds(request.tenant, request.name), creds)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = Home(tmp_path_factory.mktemp("broker") / "home")
    home.create()
    trust = Trust(home, time.time)
    trust.create()
    server = start_server(home)
    try:
        asyncio.run(push(home, []))
        tenants = [trust.make_tenant(name) for name in ("acme", "globex")]
        for role in ROLES:
            mint(trust, AgentRequest("acme", role, role, ("p1",), user="ann" if ROLES[role].needs_user else ""))
        mint(trust, AgentRequest("acme", "second", "agent", ("p1", "p2"), see=("public", "internal", "restricted")))
        mint(trust, AgentRequest("globex", "agent", "agent", ("p1",)))
        asyncio.run(push(home, [trust.tenant_jwt(t) for t in tenants]))
        yield World(home, trust, {t.name: t.account for t in tenants})
    finally:
        stop_server(server, home)


async def push(home: Home, accounts: list[str]) -> None:
    async with Control(home) as control:
        await control.ensure_streams()
        for jwt in accounts:
            await control.push_account(jwt)


class Probe:
    """A plain NATS client that keeps the violations which the broker reports."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.client = Client()

    async def _on_error(self, error: Exception) -> None:
        self.violations.append(str(error))

    async def open(self, world: World, user: str) -> None:
        await self.client.connect(
            world.home.url,
            user_credentials=str(world.creds(user)),
            inbox_prefix=f"_INBOX.{world.key(user)}".encode(),
            error_cb=self._on_error,
            allow_reconnect=False,
        )

    async def may_publish(self, subject: str) -> bool:
        """The broker reports a violation before it answers the ping of flush."""
        before = len(self.violations)
        await self.client.publish(subject, b"{}")
        await settle(self.client)
        return len(self.violations) == before

    async def may_subscribe(self, subject: str) -> bool:
        before = len(self.violations)
        await self.client.subscribe(subject)
        await settle(self.client)
        return len(self.violations) == before


@asynccontextmanager
async def probe(world: World, user: str) -> AsyncIterator[Probe]:
    made = Probe()
    await made.open(world, user)
    try:
        yield made
    finally:
        await made.client.close()


# --- who may do what: K own key, O another's key, A the tenant's account ------------------------------
AGENT = {
    "pub": ["mem.acme.p1.write.K", "mem.acme.p1.query.K", "mem.acme.p1.ack.K"],
    "sub": ["_INBOX.K.>", "feed.acme.p1.public.>", "feed.acme.p1.internal.held", "notice.acme.K"],
    "no pub": [
        "mem.acme.p2.write.K", "mem.acme.p1.write.O", "mem.globex.p1.write.K", "mem.acme.p1.write.K.x", "mem.acme.p1.write",
        "ops.acme.why.K", "ops.acme.hold.K", "in.0.A.p1.write.K", "op.0.A.hold.K", "adm.0.status.K", "iss.0.sign",
        "feed.acme.p1.internal.memory", "notice.acme.K", "_INBOX.O.x", "ledger.0.block", "reads.0.block", "$JS.API.INFO",
        "$JS.API.STREAM.INFO.LEDGER_0", "$JS.API.STREAM.NAMES", "$SYS.REQ.CLAIMS.LIST", "$SYS.REQ.USER.INFO",
    ],
    "no sub": [
        ">", "_INBOX.>", "_INBOX.O.>", "mem.>", "mem.acme.p1.write.K", "feed.acme.>", "feed.acme.p2.internal.>",
        "feed.acme.p1.restricted.>", "feed.acme.p1.*.>", "notice.acme.O", "notice.acme.*", "notice.>", "in.>", "$SYS.>", "$JS.>",
    ],
}  # fmt: skip
GRANTS: dict[str, dict[str, list[str]]] = {
    "acme/agent": AGENT,
    "acme/user_session": AGENT,
    "acme/second": {
        "pub": ["mem.acme.p1.write.K", "mem.acme.p2.write.K"],
        "sub": ["feed.acme.p2.restricted.>"],
        "no pub": ["mem.acme.p3.write.K"],
        "no sub": ["feed.acme.p3.internal.>"],
    },
    "acme/ingest": {
        "pub": ["mem.acme.p1.write.K", "mem.acme.p1.forget.K"],
        "sub": ["_INBOX.K.>", "notice.acme.K"],
        "no pub": ["mem.acme.p1.query.K", "mem.acme.p1.get.K", "mem.acme.p2.write.K", "ops.acme.why.K"],
        "no sub": ["feed.acme.p1.internal.>", "_INBOX.O.>"],
    },
    "acme/user_gateway": {
        "pub": ["mem.acme.p1.delegate.K"],
        "sub": ["_INBOX.K.>"],
        "no pub": ["mem.acme.p1.write.K", "mem.acme.p1.query.K", "ops.acme.why.K"],
        "no sub": ["feed.acme.p1.internal.>", "notice.acme.K"],
    },
    "acme/supervisor": {
        "pub": ["mem.acme.p1.delegate.K", "ops.acme.context.K"],
        "sub": ["_INBOX.K.>"],
        "no pub": ["ops.acme.hold.K", "mem.acme.p1.write.K", "ops.acme.context.O"],
        "no sub": ["feed.acme.p1.internal.>", "notice.acme.K"],
    },
    "acme/operator": {
        "pub": ["ops.acme.why.K", "ops.acme.hold.K", "mem.acme.p1.get.K", "mem.acme.p1.forget.K"],
        "sub": ["_INBOX.K.>", "feed.acme.p1.internal.>", "notice.acme.K"],
        "no pub": [
            "ops.acme.why.O", "ops.globex.why.K", "mem.acme.p1.write.K", "mem.acme.p2.get.K", "adm.0.status.K", "$JS.API.INFO",
        ],
        "no sub": ["feed.acme.p2.internal.>", "_INBOX.>", "ops.>"],
    },
    "acme/auditor": {
        "pub": ["ops.acme.why.K", "ops.acme.audit.K", "ops.acme.stats.K"],
        "sub": ["_INBOX.K.>"],
        "no pub": ["ops.acme.hold.K", "ops.acme.release.K", "mem.acme.p1.get.K", "ops.acme.why.O"],
        "no sub": ["feed.acme.p1.internal.>", "notice.acme.K"],
    },
    "_core/gatekeeper": {
        "pub": [
            "ledger.0.block", "reads.0.block", "feed.A.p1.internal.memory", "notice.A.O", "iss.0.sign",
            "$JS.API.STREAM.INFO.LEDGER_0", "$JS.API.STREAM.MSG.GET.READS_0", "$JS.API.DIRECT.GET.ERASED_0",
            "$JS.API.CONSUMER.CREATE.LEDGER_0.c1", "$JS.API.CONSUMER.MSG.NEXT.LEDGER_0.c1", "$JS.API.CONSUMER.DELETE.LEDGER_0.c1",
        ],
        "sub": ["in.0.*.*.write.*", "op.0.>", "adm.0.>", "_INBOX.K.>"],
        "no pub": [
            "ledger.1.block", "ledger.0.other", "erased.0.7", "adm.0.status.K", "$JS.API.STREAM.CREATE.LEDGER_0",
            "$JS.API.STREAM.UPDATE.LEDGER_0", "$JS.API.STREAM.DELETE.LEDGER_0", "$JS.API.STREAM.PURGE.LEDGER_0",
            "$JS.API.STREAM.MSG.DELETE.LEDGER_0", "$JS.API.STREAM.MSG.DELETE.READS_0", "$JS.API.STREAM.MSG.DELETE.ERASED_0",
            "$JS.API.STREAM.PURGE.READS_0", "$JS.API.STREAM.PURGE.ERASED_0", "$JS.API.STREAM.UPDATE.ERASED_0",
            "erased.0.7-b", "$JS.API.STREAM.INFO.OTHER", "$JS.API.STREAM.NAMES", "$SYS.REQ.CLAIMS.LIST",
        ],
        "no sub": ["in.1.>", ">", "ledger.>", "_INBOX.>", "iss.0.sign"],
    },
    "_core/admin": {
        "pub": ["adm.0.status.K", "adm.0.tenant.K", "$JS.API.STREAM.CREATE.LEDGER_0", "$JS.API.STREAM.INFO.READS_0"],
        "sub": ["_INBOX.K.>"],
        "no pub": [
            "adm.0.status.O", "adm.1.status.K", "ledger.0.block", "in.0.A.p1.write.K", "feed.A.p1.internal.memory",
            "$JS.API.STREAM.DELETE.LEDGER_0", "$JS.API.STREAM.CREATE.OTHER", "$JS.API.STREAM.PURGE.LEDGER_0",
            "$JS.API.STREAM.MSG.GET.LEDGER_0",
        ],
        "no sub": ["adm.>", "in.>", "_INBOX.>"],
    },
    "_core/issuer": {
        "pub": [],
        "sub": ["iss.0.sign", "_INBOX.K.>"],
        "no pub": ["ledger.0.block", "iss.0.sign", "adm.0.agent.K", "_INBOX.O.x", "$JS.API.INFO"],
        "no sub": ["in.>", "adm.>"],
    },
    "_core/janitor": {
        "pub": [
            "erased.0.7", "erased.0.7-b", "adm.0.erased.K", "$JS.API.STREAM.MSG.GET.LEDGER_0", "$JS.API.STREAM.MSG.GET.ERASED_0",
            "$JS.API.STREAM.MSG.DELETE.LEDGER_0", "$JS.API.STREAM.MSG.DELETE.ERASED_0",
        ],
        "sub": ["_INBOX.K.>"],
        "no pub": [
            "ledger.0.block", "reads.0.block", "feed.A.p1.internal.erased", "notice.A.O", "in.0.A.p1.write.K", "iss.0.sign",
            "adm.0.agent.K", "adm.0.status.K", "adm.0.erased.O", "erased.1.7", "erased.0.7.8",
            "$JS.API.STREAM.PURGE.LEDGER_0", "$JS.API.STREAM.PURGE.ERASED_0", "$JS.API.STREAM.DELETE.LEDGER_0",
            "$JS.API.STREAM.CREATE.ERASED_0", "$JS.API.STREAM.UPDATE.LEDGER_0", "$JS.API.STREAM.MSG.DELETE.READS_0",
            "$JS.API.STREAM.MSG.GET.READS_0", "$JS.API.CONSUMER.CREATE.LEDGER_0.c1", "$SYS.REQ.CLAIMS.LIST",
        ],
        "no sub": ["in.>", "adm.>", "ledger.>", "erased.>", ">", "_INBOX.>"],
    },
    "_sys/admin": {
        "pub": ["$SYS.REQ.CLAIMS.LIST"],
        "sub": ["_INBOX.K.>"],
        "no pub": ["$SYS.REQ.SERVER.PING", "ledger.0.block", "adm.0.status.K"],
        "no sub": ["$SYS.>", "$SYS.ACCOUNT.>"],
    },
}  # fmt: skip


@pytest.mark.parametrize("user", GRANTS)
def test_a_key_may_do_what_its_role_says_and_nothing_beside_it(world: World, user: str) -> None:
    other = world.key("globex/agent")

    def named(subject: str) -> str:
        names = {"K": world.key(user), "O": other, "A": world.accounts["acme"]}
        return ".".join(names.get(part, part) for part in subject.split("."))

    async def scenario() -> None:
        grant = GRANTS[user]
        async with probe(world, user) as p:
            seen = {
                "pub": [s for s in grant["pub"] if await p.may_publish(named(s))],
                "sub": [s for s in grant["sub"] if await p.may_subscribe(named(s))],
                "no pub": [s for s in grant["no pub"] if not await p.may_publish(named(s))],
                "no sub": [s for s in grant["no sub"] if not await p.may_subscribe(named(s))],
            }
        assert seen == grant

    asyncio.run(scenario())


# --- identity and isolation ---------------------------------------------------------------------------
def test_the_broker_says_who_asks_and_a_forged_header_is_replaced(world: World) -> None:
    async def scenario() -> None:
        async with probe(world, "_core/gatekeeper") as gate, probe(world, "acme/agent") as agent:
            got: list[Msg] = []

            async def answer(msg: Msg) -> None:
                got.append(msg)
                await msg.respond(b"seen")

            await gate.client.subscribe("in.0.*.*.write.*", cb=answer)
            await settle(gate.client)
            key, forged = world.key("acme/agent"), json.dumps({"acc": "X", "user": "Y", "issuer_key": "Z"})
            reply = await agent.client.request(
                f"mem.acme.p1.write.{key}", b"{}", timeout=5, headers={"Nats-Request-Info": forged}
            )
            assert reply.data == b"seen"
            assert got[0].subject == f"in.0.{world.accounts['acme']}.p1.write.{key}"
            info = json.loads((got[0].headers or {})["Nats-Request-Info"])
            assert (info["acc"], info["user"], info["name_tag"]) == (world.accounts["acme"], key, "agent")
            assert {"tenant:acme", "project:p1", "see:public", "see:internal"} == set(info["tags"])
            registry = verify_registry(world.trust.write_registry(), world.home.operator_jwt.read_text())
            entry = registry[info["issuer_key"]]
            assert (entry.tenant, entry.role, entry.origin) == (info["acc"], "agent", "agent_inferred")
            assert gate.violations == []

    asyncio.run(scenario())


def test_the_gatekeeper_answers_a_request_once_and_only_there(world: World) -> None:
    async def scenario() -> None:
        async with probe(world, "_core/gatekeeper") as gate, probe(world, "_core/admin") as admin:
            inbox = f"_INBOX.{world.key('_core/admin')}.answers"
            answers = await admin.client.subscribe(inbox)
            asked = await gate.client.subscribe("adm.0.>")
            await settle(gate.client)
            await admin.client.publish(f"adm.0.status.{world.key('_core/admin')}", b"{}", reply=inbox)
            request = await asked.next_msg(timeout=5)
            assert not await gate.may_publish(f"_INBOX.{world.key('_core/admin')}.unasked")
            assert await gate.may_publish(request.reply)
            assert not await gate.may_publish(request.reply)
            assert (await answers.next_msg(timeout=5)).data == b"{}"

    asyncio.run(scenario())


def test_a_feed_reaches_the_project_of_its_own_tenant_alone(world: World) -> None:
    async def scenario() -> None:
        async with (
            probe(world, "_core/gatekeeper") as gate,
            probe(world, "acme/agent") as ours,
            probe(world, "globex/agent") as theirs,
        ):
            acme = await ours.client.subscribe("feed.acme.p1.internal.>")
            globex = await theirs.client.subscribe("feed.globex.p1.internal.>")
            await settle(ours.client)
            await settle(theirs.client)
            for tenant in ("acme", "globex"):
                await gate.client.publish(f"feed.{world.accounts[tenant]}.p1.internal.memory", tenant.encode())
            assert (await acme.next_msg(timeout=5)).data == b"acme"
            assert (await globex.next_msg(timeout=5)).data == b"globex"  # the first that it got: acme's came before

    asyncio.run(scenario())


# --- requests for credentials -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (AgentRequest("acmee", "x"), "tenant_unknown"),
        (AgentRequest("acme", "x", role="root"), "role_unknown"),
        (AgentRequest("acme", "x", projects=("*",)), "bad_name"),
        (AgentRequest("acme", "X"), "bad_name"),
        (AgentRequest("acme", "x", see=("secret",)), "see_not_allowed"),
        (AgentRequest("acme", "x", role="ingest", see=("restricted",)), "see_not_allowed"),
        (AgentRequest("acme", "x", role="user_session"), "user_missing"),
        (AgentRequest("acme", "x", role="user_session", user="x" * 257), "user_invalid"),
        (AgentRequest("acme", "x", role="user_session", user_token="ann"), "user_missing"),
        (AgentRequest("acme", "x", role="user_session", user="ann", ttl_s=86_401), "ttl_not_allowed"),
        (AgentRequest("acme", "x", ttl_s=0), "ttl_not_allowed"),
        (AgentRequest("acme", "x", projects=("p1", "p1")), "tag_invalid"),
    ],
)
def test_a_credential_beyond_its_role_is_not_signed(world: World, request_: AgentRequest, reason: str) -> None:
    with pytest.raises(Rejected) as refused:
        world.trust.agent_jwt(request_, keypair("user").public)
    assert refused.value.reason == reason
    assert refused.value.advice


def test_a_user_session_ends_within_a_day(world: World) -> None:
    now = time.time()
    ends = parse_creds(world.creds("acme/user_session").read_text()).expires_at
    assert ends is not None
    assert now < ends <= now + 3_600


def test_the_nearest_tenant_is_named(world: World) -> None:
    assert world.trust.tenant("acme").name == "acme"
    with pytest.raises(Rejected, match="Did you mean 'acme'"):
        world.trust.tenant("acmee")


@pytest.mark.parametrize("name", ["_core", "_sys", "a.b", "*", ""])
def test_a_tenant_name_that_could_be_mistaken_is_refused(world: World, name: str) -> None:
    with pytest.raises(Rejected):
        world.trust.make_tenant(name)


# --- the control plane, against a gatekeeper of a few lines -------------------------------------------
class Desk:
    """Stands where the gatekeeper does: keeps tenants, projects and agents, and can be told to fail once."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.agents: dict[str, AdmAgent] = {}
        self.projects: set[str] = set()
        self.lose_answer_to = ""

    async def serve(self, msg: Msg) -> None:
        request: AdminRequest = msgspec.json.decode(msg.data, type=AdminRequest)
        self.seen.append(msg.subject.split(".")[2])
        answer = self.answer(request)
        if self.lose_answer_to == self.seen[-1]:
            self.lose_answer_to = ""
            return
        await msg.respond(frames.encode(msgspec.structs.replace(answer, request_id=request.request_id)))

    def answer(self, request: AdminRequest) -> Done | Refusal:
        match request:
            case AdmProject(action="add"):
                self.projects.add(request.name)
            case AdmProject():
                return Done(result={"projects": [{"name": p} for p in sorted(self.projects)], "next": None})
            case AdmAgent(action="add"):
                old = self.agents.setdefault(request.name, request)
                if old.key != request.key:
                    return Refusal(error="conflict", reason="name_taken", message="This name is taken.", advice="Choose another.")
                return Done(
                    result={"agent_id": "agt_1", "key": old.key, "name": old.name, "role": old.role, "projects": old.projects}
                )
            case AdmTenant(action="list"):
                return Done(result={"tenants": [], "next": None})
            case AdmRegistry() | AdmTenant():
                return Done(result={"name": getattr(request, "name", "")})
        return Done(result={})


@asynccontextmanager
async def desk(world: World) -> AsyncIterator[tuple[Desk, Control]]:
    made = Desk()
    async with connected(world.home.url, world.creds("_core/gatekeeper")) as gate, Control(world.home) as control:
        await gate.subscribe("adm.0.>", cb=made.serve)
        await settle(gate)
        yield made, control


def test_a_tenant_and_an_agent_are_added_while_the_broker_runs(world: World) -> None:
    async def scenario() -> None:
        async with desk(world) as (gate, control):
            await control.tenant_add("initech")
            assert gate.seen == ["tenant", "registry", "tenant"], "it is asked whether it serves before anything is made"
            await control.project_add("initech", "p1")
            added = await control.agent_add("initech", "writer", projects=["p1"])
            creds = world.creds("initech/writer")
            assert added["creds"] == str(creds)
            assert [p.name for p in world.home.creds.glob("initech/*")] == ["writer.creds"]
            assert creds.stat().st_mode & 0o777 == 0o600
            assert world.key("initech/writer") == added["key"]
            async with probe(world, "initech/writer") as writer:
                assert await writer.may_publish(f"mem.initech.p1.write.{added['key']}")
                assert not await writer.may_publish(f"mem.initech.p2.write.{added['key']}")
            registry = verify_registry(world.home.registry.read_text(), world.home.operator_jwt.read_text())
            assert len({e.tenant for e in registry.values()}) == len(world.trust.tenant_names())

    asyncio.run(scenario())


def test_a_tenant_that_nobody_could_take_in_leaves_no_key_and_is_added_when_somebody_can(world: World) -> None:
    async def scenario() -> None:
        before = {path.name for path in world.home.broker_jwt.iterdir()}, world.home.registry.read_text()
        async with Control(world.home) as control:  # no gatekeeper: a home that is degraded
            with pytest.raises(Unavailable):
                await control.tenant_add("umbra")
        assert not world.home.tenant_trust("umbra").exists()
        assert "umbra" not in world.trust.tenant_names()
        assert ({path.name for path in world.home.broker_jwt.iterdir()}, world.home.registry.read_text()) == before
        async with desk(world) as (_, control):
            await control.tenant_add("umbra")
        assert "umbra" in world.trust.tenant_names()

    asyncio.run(scenario())


def test_adding_a_tenant_again_changes_no_key(world: World) -> None:
    async def scenario() -> None:
        async with desk(world) as (_, control):
            await control.tenant_add("hooli")
            before = {p.name: p.read_bytes() for p in world.home.tenant_trust("hooli").iterdir()}
            await control.tenant_add("hooli")
            assert {p.name: p.read_bytes() for p in world.home.tenant_trust("hooli").iterdir()} == before

    asyncio.run(scenario())


def test_a_name_that_is_taken_is_a_conflict_and_leaves_no_file(world: World) -> None:
    async def scenario() -> None:
        async with desk(world) as (gate, control):
            first = await control.agent_add("acme", "taken")
            with pytest.raises(Conflict) as refused:
                await control.agent_add("acme", "taken")
            assert refused.value.reason == "name_taken"
            assert world.key("acme/taken") == first["key"]
            gate.agents["elsewhere"] = AdmAgent(account="", key="U")
            with pytest.raises(Conflict):
                await control.agent_add("acme", "elsewhere")
            assert [p.name for p in world.home.creds.rglob("elsewhere*")] == []

    asyncio.run(scenario())


def test_an_agent_whose_answer_was_lost_keeps_its_key_when_it_is_added_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_config.control.REQUEST_TIMEOUT_S", 0.3)

    async def scenario() -> None:
        async with desk(world) as (gate, control):
            gate.lose_answer_to = "agent"
            with pytest.raises(Unavailable):
                await control.agent_add("acme", "unlucky")
            assert not world.home.agent_creds("acme", "unlucky").exists()
            added = await control.agent_add("acme", "unlucky")
            assert added["key"] == gate.agents["unlucky"].key == world.key("acme/unlucky")
            gate.lose_answer_to = "agent"
            with pytest.raises(Unavailable):
                await control.agent_add("acme", "unluckier")
            await control.project_add("acme", "elsewhere")
            with pytest.raises(Conflict, match="as agent of no project") as other:  # its credential would say more
                await control.agent_add("acme", "unluckier", projects=["elsewhere"])
            assert other.value.reason == "name_taken"
            assert not world.home.agent_creds("acme", "unluckier").exists()

    asyncio.run(scenario())


def test_an_unknown_project_is_refused_and_the_nearest_named(world: World) -> None:
    async def scenario() -> None:
        async with desk(world) as (_, control):
            await control.project_add("acme", "billing")
            assert (await control.agent_add("acme", "biller", projects=["billing"]))["projects"] == ["billing"]
            with pytest.raises(Rejected, match="Did you mean 'billing'") as refused:
                await control.agent_add("acme", "biler", projects=["biling"])
            assert refused.value.reason == "project_unknown"

    asyncio.run(scenario())


def test_without_a_gatekeeper_the_control_plane_says_so(world: World) -> None:
    async def scenario() -> None:
        async with Control(world.home) as control:
            with pytest.raises(Unavailable) as refused:
                await control.status()
            assert refused.value.reason == "gatekeeper_unreachable"

    asyncio.run(scenario())


# --- a home of one's own ------------------------------------------------------------------------------
@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "a home with 'quotes\" and $signs")
    made.create()
    Trust(made, time.time).create()
    return made


def test_a_home_is_private_and_one_that_is_not_is_refused(home: Home) -> None:
    assert {p.stat().st_mode & 0o077 for p in home.path.rglob("*")} == {0}
    home.check_private()
    home.core_creds("admin").chmod(0o640)
    with pytest.raises(ConfigError) as refused:
        home.check_private()
    assert refused.value.reason == "seeds_exposed"


def test_the_trust_tree_is_made_once(home: Home) -> None:
    before = {p: p.read_bytes() for p in home.trust.rglob("*") if p.is_file()}
    Trust(home, time.time).create()
    assert {p: p.read_bytes() for p in home.trust.rglob("*") if p.is_file()} == before


def test_a_first_up_that_was_cut_short_starts_over(home: Home) -> None:
    home.operator_jwt.unlink()
    home.core_creds("janitor").unlink()
    Trust(home, time.time).create()
    assert home.core_creds("janitor").exists()
    stop_server(start_server(home), home)


def ensure(home: Home) -> dict[str, str]:
    async def scenario() -> dict[str, str]:
        async with Control(home) as control:
            return await control.ensure_streams()

    return asyncio.run(scenario())


def test_streams_are_made_once_and_a_lost_one_is_not_made_again(home: Home) -> None:
    server = start_server(home)
    made = ensure(home)
    stop_server(server, home)
    server = start_server(home)
    assert ensure(home) == made
    stop_server(server, home)
    for stream in home.broker_js.rglob("LEDGER_0"):
        shutil.rmtree(stream)
    server = start_server(home)
    try:
        for _ in range(2):
            with pytest.raises(ConfigError, match="LEDGER_0 is missing") as refused:
                ensure(home)
            assert refused.value.reason == "stream_missing"
    finally:
        stop_server(server, home)


def test_a_stream_that_took_the_place_of_another_is_refused(home: Home) -> None:
    server = start_server(home)
    try:
        ensure(home)
        marker = json.loads(home.streams(0).read_text())
        write_private(home.streams(0), json.dumps({**marker, "READS_0": "0" * 32}))
        with pytest.raises(ConfigError) as refused:
            ensure(home)
        assert refused.value.reason == "stream_replaced"
    finally:
        stop_server(server, home)


def test_the_streams_have_the_limits_of_the_defaults(world: World) -> None:
    async def scenario() -> dict[str, Any]:
        async with connected(world.home.url, world.creds("_core/admin")) as admin:
            return {n: (await admin.jetstream().stream_info(n)).config for n in ("LEDGER_0", "READS_0", "ERASED_0")}

    got = asyncio.run(scenario())
    assert {c.max_bytes for c in got.values()} == {10 << 30}
    assert {str(c.discard) for c in got.values()} == {"new"}
    assert {str(c.storage) for c in got.values()} == {"file"}
    assert (got["LEDGER_0"].max_age or 0, got["READS_0"].max_age, got["ERASED_0"].max_msgs_per_subject) == (0, 90 * 86_400, 1)
    assert all(len((c.metadata or {})["cordon"]) == 32 for c in got.values())


def test_a_taken_port_is_named_and_a_free_one_serves(home: Home) -> None:
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", home.settings().port))
        squatter.listen()
        with pytest.raises(ConfigError, match=str(home.settings().port)) as refused:
            start_server(home)
        assert refused.value.reason == "port_taken"
    stop_server(start_server(home), home)


def test_a_stale_pid_file_doesnt_hinder_and_points_at_nobody(home: Home) -> None:
    write_pid(home.pid_file("broker"), os.getpid())
    assert live_pid(home, "broker") is None
    server = start_server(home)
    assert live_pid(home, "broker") == server.pid
    stop_server(server, home)
    assert not home.pid_file("broker").exists()


def test_a_broken_configuration_is_refused_in_the_servers_words(home: Home) -> None:
    core = home.core_trust / "account.jwt"
    write_private(home.sys_trust / "account.jwt", core.read_text())
    with pytest.raises((ConfigError, Unavailable)):
        start_server(home)
    assert live_pid(home, "broker") is None


@pytest.mark.parametrize(("version", "accepted"), [("v2.12.6", False), ("v2.12.7", True), ("v3.0.0", True), ("nothing", False)])
def test_a_server_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, accepted: bool
) -> None:
    program = tmp_path / "nats-server"
    program.write_text(f"#!/bin/sh\necho nats-server: {version}\n")
    program.chmod(0o755)
    monkeypatch.setenv("NATS_SERVER_BIN", str(program))
    if accepted:
        assert find_server() == program
    else:
        with pytest.raises(ConfigError):
            find_server()


def test_a_missing_server_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_server().name == "nats-server"
    monkeypatch.setenv("NATS_SERVER_BIN", str(tmp_path / "none"))
    with pytest.raises(ConfigError) as refused:
        find_server()
    assert refused.value.reason == "server_missing"


def test_a_killed_parent_leaves_no_orphan_server(home: Home) -> None:
    code = (
        "import sys, time; from broker_config.home import Home; from broker_config.server import start_server;"
        "start_server(Home(sys.argv[1])); print('up', flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(home.path)], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        assert live_pid(home, "broker") is not None
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    until(lambda: live_pid(home, "broker") is None)


def test_a_client_that_presents_no_credential_is_turned_away(world: World) -> None:
    async def scenario() -> None:
        client = Client()
        with pytest.raises(NatsError):
            await client.connect(world.home.url, allow_reconnect=False, connect_timeout=2)
        await client.close()

    asyncio.run(scenario())
