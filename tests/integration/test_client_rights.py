"""The client against a broker in operator mode, with the real trust tree: what the broker forbids is Denied at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import nats
import pytest
from nats.aio.msg import Msg

import bus
from broker_config.connection import connected
from broker_config.home import Home, free_port
from broker_config.server import start_server, stop_server
from broker_config.trust import AgentRequest, Tenant, Trust
from bus.frames import MemoryRequest, OpsRequest, Recall, Stats, encode
from bus.identity import Credential, Keypair, creds_text, encode_jwt, keypair, parse_creds, verify_jwt
from bus.subjects import inbox, parse_inbound

from .rim import creds, settle

AT_ONCE_S = 3.0  # well below the 5 s of a request that merely times out


class World:
    """A running broker with tenant acme, and what it takes to give out and take back credentials."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.trust = Trust(home, time.time)
        self.trust.create()
        self.tenant: Tenant = self.trust.make_tenant("acme")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.home.settings().port}"

    def creds(self, name: str, role: str = "agent", ttl_s: int | None = None) -> str:
        user = keypair("user")
        request = AgentRequest(tenant="acme", name=name, role=role, projects=("p1",), ttl_s=ttl_s)
        return creds_text(self.trust.agent_jwt(request, user.public), user)

    async def push(self, jwt: str) -> None:
        async with connected(self.url, self.home.sys_creds) as system:
            answer = await system.request("$SYS.REQ.CLAIMS.UPDATE", jwt.encode(), timeout=5)
            assert b'"code":200' in answer.data, answer.data

    async def revoke(self, credential: Credential) -> None:
        """The tenant's account as it is, and a revocation of that key."""
        account = verify_jwt(self.trust.tenant_jwt(self.tenant))
        now = int(time.time())
        nats_claims = {**msgspec.json.decode(account.nats), "revocations": {credential.key: now + 1}}
        operator = Keypair(self.home.operator_signing_seed.read_text().strip())
        await self.push(encode_jwt({"sub": account.subject, "name": account.name, "nats": nats_claims}, operator, now))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    home = Home(tmp_path / "home")
    home.config.parent.mkdir(parents=True)
    home.config.write_text(f"port = {free_port()}\n")
    made = World(home)
    child = start_server(home)
    try:
        yield made
    finally:
        stop_server(child, home)


@asynccontextmanager
async def core(world: World) -> AsyncIterator[None]:
    """The gatekeeper's connection, with the gatekeeper's own credential: answers queries and stats with nothing."""
    path = world.home.core_creds("gatekeeper")
    key = parse_creds(path.read_text()).key
    client = await nats.connect(world.url, user_credentials=str(path), inbox_prefix=inbox(key).encode())

    async def answer(msg: Msg) -> None:
        asked = parse_inbound(msg.subject)
        assert asked is not None
        request = msgspec.json.decode(msg.data, type=MemoryRequest | OpsRequest)
        stamps = {"request_id": request.request_id, "agent": asked.key, "project": asked.project}
        empty = Recall(recall_id="rec_1", **stamps) if asked.project else Stats(counts={}, **stamps)
        await client.publish(msg.reply, encode(empty))

    try:
        for pattern in ("in.0.>", "op.0.>"):
            await client.subscribe(pattern, cb=answer)
        await settle(client)
        await world.push(world.trust.tenant_jwt(world.tenant))
        yield
    finally:
        await client.close()


def test_a_verb_outside_the_role_is_denied_at_once_and_one_inside_is_answered(world: World) -> None:
    async def scenario() -> None:
        async with core(world), bus.connect(world.url, world.creds("ops", role="operator")) as memory:
            assert (await memory.get("mem_1")).recall_id == "rec_1"
            began = time.monotonic()
            with pytest.raises(bus.Denied) as denied:
                await memory.query("q")
            assert denied.value.reason == "permission_violation"
            assert time.monotonic() - began < AT_ONCE_S
            assert (await memory.get("mem_1")).recall_id == "rec_1"

    asyncio.run(scenario())


def test_operators_verbs_are_for_operators(world: World) -> None:
    async def scenario() -> None:
        async with core(world):
            async with bus.connect_operator(world.url, world.creds("ops", role="operator")) as desk:
                assert (await desk.stats()).counts == {}
            async with bus.connect_operator(world.url, world.creds("writer")) as desk:
                began = time.monotonic()
                with pytest.raises(bus.Denied):
                    await desk.stats()
                assert time.monotonic() - began < AT_ONCE_S

    asyncio.run(scenario())


def test_a_violation_fails_its_own_request_and_no_other(world: World) -> None:
    async def scenario() -> None:
        async with core(world), bus.connect(world.url, world.creds("ops", role="operator")) as memory:
            outcomes: list[str] = []

            async def query() -> None:
                with pytest.raises(bus.Denied):
                    await memory.query("q")
                outcomes.append("denied")

            async def get() -> None:
                await memory.get("mem_1")
                outcomes.append("answered")

            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(query)
                    tasks.start_soon(get)
            assert sorted(outcomes) == ["answered"] * 4 + ["denied"] * 4

    asyncio.run(scenario())


def test_a_feed_that_the_role_may_not_hear_is_denied_and_an_agents_is_not(world: World) -> None:
    async def scenario() -> None:
        async with core(world):
            async with bus.connect(world.url, world.creds("writer")) as memory, memory.feed(), memory.notices():
                await memory.query("q")
            async with bus.connect(world.url, world.creds("scraper", role="ingest")) as memory:
                with anyio.fail_after(AT_ONCE_S), pytest.raises(bus.Denied):
                    async for _ in memory.feed():
                        pass

    asyncio.run(scenario())


def test_a_violation_names_the_subject_as_it_was_written(world: World) -> None:
    async def scenario() -> None:
        text = world.creds("scraper", role="ingest")
        async with core(world), bus.connect(world.url, text) as memory:
            with pytest.raises(bus.Denied) as sent:
                await memory.query("q")
            assert sent.value.message.endswith(f" send to mem.acme.p1.query.{parse_creds(text).key}.")
            with pytest.raises(bus.Denied) as heard:
                async for _ in memory.feed():
                    pass
            assert " listen to feed.acme.p1." in heard.value.message

    asyncio.run(scenario())


def test_a_credential_of_another_home_is_refused_and_not_tried_until_the_time_is_up(world: World) -> None:
    async def scenario() -> None:
        patient = bus.Timing(connect_s=30.0)
        with anyio.fail_after(20), pytest.raises(bus.Denied) as denied:  # the broker looks for the account for 2 s
            async with bus.connect(world.url, creds("project:p1"), timing=patient):
                pass
        assert denied.value.reason == "credential_refused"

    asyncio.run(scenario())


def test_a_credential_that_is_revoked_while_it_is_used_is_denied_from_then_on(world: World) -> None:
    text = world.creds("writer")

    async def scenario() -> None:
        async with (
            core(world),
            bus.connect(world.url, text) as memory,
            memory.feed() as frames,
        ):
            await memory.query("q")
            await world.revoke(parse_creds(text))
            with anyio.fail_after(20), pytest.raises(bus.CordonError) as ended:
                async for _ in frames:
                    pass
            assert isinstance(ended.value, bus.Denied)
            with pytest.raises(bus.Denied) as denied:
                await memory.query("q")
            assert denied.value.reason == "credential_refused"

    asyncio.run(scenario())


def test_a_credential_that_expires_while_it_is_used_is_denied_from_then_on(world: World) -> None:
    async def scenario() -> None:
        async with core(world), bus.connect(world.url, world.creds("child", ttl_s=3)) as memory, memory.feed() as frames:
            await memory.query("q")
            with anyio.fail_after(20), pytest.raises(bus.Denied) as ended:
                async for _ in frames:
                    pass
            assert ended.value.reason == "credential_refused"

    asyncio.run(scenario())
