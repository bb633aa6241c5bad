"""Credentials that carry more than their key grants, that somebody else signed, that are over, or that are not the bearer's."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import nats
import pytest
from nats.errors import Error as NatsError

from broker_config.claims import Import, account_jwt
from broker_config.control import Control
from broker_config.home import Home, free_port, write_private
from broker_config.processes import spawn, stop_child
from broker_config.roles import ROLES, scope
from broker_config.server import find_server, render, start_server, stop_server
from broker_config.trust import AgentRequest, Trust
from bus.errors import ConfigError, Conflict
from bus.identity import Keypair, creds_text, encode_jwt, keypair, verify_jwt
from bus.subjects import MEMORY_VERBS

from .arena import ISSUED_AT, KEEP, OURS, SIEGE, THEIRS, Arena, Peer

DRAFT: Final = {"type": "draft", "content": "Whoever signed me, the gate is shut"}

# --- tags above the key's maximum ---------------------------------------------------------------------
# role of the key that signs, tags beside project:siege, reason
TAGS: Final = [
    ("agent", ("role:operator",), "tag_invalid"),
    ("agent", ("role:operator", "ceiling:system"), "tag_invalid"),
    ("agent", ("ceiling:system",), "tag_invalid"),
    ("agent", ("ceiling:human_reviewed",), "tag_invalid"),
    ("agent", ("ceiling:tool_result",), "tag_invalid"),
    ("agent", ("ceiling:EXTERNAL",), "tag_invalid"),
    ("agent", ("ceiling:external", "ceiling:agent_inferred"), "tag_invalid"),
    ("agent", ("ceiling:agent_inferred", "ceiling:agent_inferred"), "tag_invalid"),
    ("agent", ("project:siege",), "tag_invalid"),
    ("agent", ("project:*",), "tag_invalid"),
    ("agent", ("project:>",), "tag_invalid"),
    ("agent", ("project:siege.keep",), "tag_invalid"),
    ("agent", ("project:Keep",), "tag_invalid"),
    ("agent", ("see:*",), "tag_invalid"),
    ("agent", ("see:secret",), "tag_invalid"),
    ("agent", ("see:public", "see:public"), "tag_invalid"),
    ("agent", ("verb:hold",), "tag_invalid"),
    ("agent", ("verb:*",), "tag_invalid"),
    ("agent", ("user:ann", "user:bob"), "tag_invalid"),
    ("agent", ("tenant:acme", "tenant:acme-corp"), "tag_invalid"),
    ("agent", ("admin:yes",), "tag_invalid"),
    ("agent", ("person:Ann B",), "tag_invalid"),
    ("agent", ("",), "tag_invalid"),
    ("agent", (":",), "tag_invalid"),
    ("agent", ("ceiling",), "tag_invalid"),
    ("agent", ("see:restricted ",), "tag_invalid"),
    ("agent", ("tool:" + "x" * 65,), "tag_invalid"),
    ("ingest", ("see:restricted",), "tag_invalid"),
    ("ingest", ("ceiling:agent_inferred",), "tag_invalid"),
    ("ingest", ("verb:query",), "tag_invalid"),
    ("user_session", (), "tag_invalid"),
    ("user_session", ("user:ann", "user:ann"), "tag_invalid"),
    ("user_session", ("user:ann", "ceiling:human_reviewed"), "tag_invalid"),
]  # fmt: skip
PLAIN: Final = {"user_session": ("user:ann",)}


@pytest.mark.parametrize(("role", "tags", "reason"), TAGS, ids=[f"{role}: {' '.join(tags)}" for role, tags, _ in TAGS])
def test_a_tag_never_widens(arena: Arena, role: str, tags: tuple[str, ...], reason: str) -> None:
    async def attack() -> None:
        async with arena.minted(f"project:{SIEGE}", *tags, role=role) as peer:
            answer = await peer.ask("write", DRAFT)
            assert (answer["type"], answer.get("reason"), answer.get("error")) == ("refusal", reason, "denied"), answer
            assert answer["advice"]
        async with arena.minted(f"project:{SIEGE}", *PLAIN.get(role, ()), role=role) as peer:
            assert (await peer.ask("write", DRAFT))["type"] == "receipt"

    arena.run(attack())


@pytest.mark.parametrize("verb", MEMORY_VERBS)
def test_a_credential_for_one_verb_is_for_that_verb(arena: Arena, verb: str) -> None:
    """The broker lets it publish: the tag is the gatekeeper's to enforce."""
    allowed = "query" if verb == "write" else "write"
    good: dict[str, Any] = DRAFT if allowed == "write" else {"type": "query", "text": "gate"}

    async def attack() -> None:
        async with arena.minted(f"project:{SIEGE}", f"verb:{allowed}") as peer:
            answer = await peer.ask(verb, DRAFT)
            assert (answer["type"], answer.get("reason")) == ("refusal", "verb_denied")
            assert (await peer.ask(allowed, good))["type"] in ("receipt", "recall")

    arena.run(attack())


@pytest.mark.parametrize("name", ["siege-2", "sieg", "nowhere"])
def test_a_project_that_is_not_there_is_refused_with_the_nearest_of_the_credentials_own(arena: Arena, name: str) -> None:
    async def attack() -> None:
        async with arena.minted(f"project:{SIEGE}", f"project:{name}") as peer:
            answer = await peer.ask("write", DRAFT, project=name)
            assert (answer["reason"], answer["detail"]) == (
                "project_unknown",
                {"nearest": SIEGE},
            )  # never keep, which isn't its own
            assert (await peer.ask("write", DRAFT))["type"] == "receipt"

    arena.run(attack())


# --- who the ledger says it is --------------------------------------------------------------------------
STANDING: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "never registered": ({"lists": None}, "agent_unregistered"),
    "registered as an operator": ({"lists": "operator"}, "identity_mismatch"),
    "registered as an ingest": ({"lists": "ingest"}, "identity_mismatch"),
    "an operator's key, registered as an agent": ({"role": "operator", "lists": "agent", "verb": "get"}, "identity_mismatch"),
    "a tool key, registered as an agent": ({"role": "ingest", "lists": "agent"}, "identity_mismatch"),
}  # fmt: skip


@pytest.mark.parametrize("how", STANDING)
def test_a_key_is_what_the_ledger_lists_it_as(arena: Arena, how: str) -> None:
    given, reason = STANDING[how]
    given = dict(given)
    verb = str(given.pop("verb", "write"))

    async def attack() -> None:
        async with arena.minted(f"project:{SIEGE}", **given) as peer:
            answer = await peer.ask(verb, DRAFT)
            assert (answer["type"], answer.get("reason")) == ("refusal", reason)
        async with arena.minted(f"project:{SIEGE}") as peer:
            assert (await peer.ask("write", DRAFT))["type"] == "receipt"

    arena.run(attack())


# --- signed by somebody else ----------------------------------------------------------------------------
def _core(arena: Arena, name: str) -> Keypair:
    return Keypair((arena.world.home.core_trust / f"{name}.nk").read_text().strip())


SIGNERS: Final[dict[str, Callable[[Arena], Keypair]]] = {
    "a key of nobody": lambda _: keypair("account"),
    "the tenant's own identity key": lambda a: Keypair((a.world.home.tenant_trust(OURS) / "account.nk").read_text().strip()),
    "the same role of another tenant": lambda a: a.role_key("agent", THEIRS),
    "the operator role of another tenant": lambda a: a.role_key("operator", THEIRS),
    "the operator": lambda a: Keypair(a.world.home.operator_seed.read_text().strip()),
    "the operator's signing key": lambda a: Keypair(a.world.home.operator_signing_seed.read_text().strip()),
    "the core's signing key": lambda a: _core(a, "signing"),
    "an agent": lambda a: Keypair(a["mallory"].credential.seed),
}


@pytest.mark.parametrize("signer", SIGNERS)
def test_a_credential_counts_only_from_a_key_of_its_own_tenant(arena: Arena, signer: str) -> None:
    async def attack() -> None:
        tags = (f"tenant:{OURS}", f"project:{SIEGE}")
        with pytest.raises(NatsError):
            async with arena.minted(*tags, signer=SIGNERS[signer](arena), lists=None):
                pass
        async with arena.minted(*tags) as peer:
            assert (await peer.ask("write", DRAFT))["type"] == "receipt"

    arena.run(attack())


def test_another_tenants_credential_with_our_names_stays_there(arena: Arena) -> None:
    async def attack() -> None:
        async with arena.minted(f"tenant:{OURS}", f"project:{SIEGE}", tenant=THEIRS) as peer:
            assert await peer.gets_no_answer(f"mem.{OURS}.{SIEGE}.write.{peer.key}")
            answer = await peer.get(arena.note)
            assert answer.get("admitted") == [], answer
            assert (await peer.ask("write", DRAFT))["type"] == "receipt"  # in its own tenant

    arena.run(attack())


# A scoped user may carry nothing of its own: what it adds is refused with the whole credential.
EXTRAS: Final[dict[str, dict[str, Any]]] = {
    "publish": {"pub": {"allow": [">"]}},
    "subscribe": {"sub": {"allow": [">"]}},
    "replies": {"resp": {"max": -1, "ttl": 0}},
    "no limits": {"subs": -1, "data": -1, "payload": -1},
    "a bearer token": {"bearer_token": True},
    "a leaf": {"allowed_connection_types": ["LEAFNODE"]},
    "from anywhere": {"src": ["0.0.0.0/0"]},
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_credential_with_permissions_of_its_own_is_refused(arena: Arena, extra: str) -> None:
    async def attack() -> None:
        with pytest.raises(NatsError):
            async with arena.minted(f"project:{SIEGE}", claims=EXTRAS[extra]):
                pass
        async with arena.minted(f"project:{SIEGE}") as peer:
            assert (await peer.ask("write", DRAFT))["type"] == "receipt"

    arena.run(attack())


# --- over -----------------------------------------------------------------------------------------------
def test_an_expired_credential_is_turned_away(arena: Arena) -> None:
    async def attack() -> None:
        with pytest.raises(NatsError):
            async with arena.minted(f"project:{SIEGE}", expires_in_s=-1):
                pass
        async with arena.minted(f"project:{SIEGE}", expires_in_s=60) as peer:
            assert (await peer.ask("write", DRAFT))["type"] == "receipt"

    arena.run(attack())


def test_a_credential_that_expires_is_cut_off(arena: Arena) -> None:
    async def attack() -> None:
        async with arena.minted(f"project:{SIEGE}", expires_in_s=4) as peer:
            assert (await peer.ask("write", DRAFT))["type"] == "receipt"
            deadline = time.monotonic() + 20
            while not peer.nc.is_closed:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    arena.run(attack())


def test_a_revoked_credential_is_cut_off_and_stays_out(arena: Arena) -> None:
    async def attack() -> None:
        home = arena.world.home
        async with (
            Control(home) as control,
            arena.minted(f"project:{SIEGE}") as revoked,
            arena.minted(f"project:{SIEGE}") as other,
        ):
            assert (await revoked.ask("write", DRAFT))["type"] == "receipt"
            account = verify_jwt(control.trust.tenant_jwt(control.trust.tenant(OURS)))
            claims = {**msgspec.json.decode(account.nats), "revocations": {revoked.key: int(time.time()) + 1}}
            signing = Keypair(home.operator_signing_seed.read_text().strip())
            await control.push_account(
                encode_jwt({"sub": account.subject, "name": OURS, "nats": claims}, signing, int(time.time()))
            )
            await _closed(revoked)
            with pytest.raises(NatsError):
                await arena.reconnect(revoked)
            assert (await other.ask("write", DRAFT))["type"] == "receipt"

    arena.run(attack())


def _issued_anew(peer: Peer, arena: Arena) -> Peer:
    """The same key with a credential of now, which the broker's revocation of what was issued before doesn't reach."""
    claims = {"type": "user", "version": 2, "issuer_account": arena.account[OURS], "tags": [f"tenant:{OURS}", f"project:{SIEGE}"]}
    body = {"sub": peer.key, "name": "anew", "nats": claims}
    jwt = encode_jwt(body, arena.role_key("agent"), int(time.time()) + 5)
    return replace(peer, credential=replace(peer.credential, jwt=jwt))


@pytest.mark.parametrize(
    "way", ["its old connection", "its old file", "a credential issued anew", "an old account put back", "its name"]
)
def test_a_revoked_agent_stays_out(arena: Arena, way: str) -> None:
    name = f"exile-{way.replace(' ', '-')}"

    async def attack() -> None:
        world = arena.world
        credential = await world.add(name, SIEGE)
        exile = await arena.join(credential)
        await exile.write("Before the exile")
        async with Control(world.home) as control:
            account = control.trust.tenant_jwt(control.trust.tenant(OURS))
            await control.agent_revoke(OURS, name)
            if way == "its name":
                with pytest.raises(Conflict):
                    await control.agent_add(OURS, name, projects=(SIEGE,))
            if way == "an old account put back":
                await control.push_account(account)
        if way == "its old connection":
            await _closed(exile)
        elif way == "its old file":
            with pytest.raises(NatsError):
                await arena.reconnect(exile)
        elif way != "its name":
            again = await arena.reconnect(_issued_anew(exile, arena))
            assert (await again.ask("write", DRAFT))["reason"] == "credential_revoked"
            await again.nc.close()
        await exile.nc.close()
        assert (await arena["mallory"].ask("write", DRAFT))["type"] == "receipt"

    arena.run(attack())


async def _closed(peer: Peer) -> None:
    for _ in range(100):  # cut within a second of this process's own: one that didn't run couldn't hear it
        if peer.nc.is_closed:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not cut within a second")


# --- not the bearer's: what a CONNECT may say ---------------------------------------------------------
Lie = Callable[[Peer, Peer, str], dict[str, Any]]  # mallory, victim, nonce


def _signed(seed: str, text: str) -> str:
    return base64.urlsafe_b64encode(Keypair(seed).sign(text.encode())).rstrip(b"=").decode()


def _altered(jwt: str, change: Callable[[dict[str, Any]], None], header: dict[str, str] | None = None) -> str:
    head, body, signature = jwt.split(".")

    def b64(data: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()

    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    change(claims)
    return f"{b64(header) if header else head}.{b64(claims)}.{signature}"


def _tagged(claims: dict[str, Any]) -> None:
    claims["nats"]["tags"].append(f"project:{KEEP}")


CONNECTS: Final[dict[str, Lie]] = {
    "nothing": lambda m, v, n: {},
    "a user and a password": lambda m, v, n: {"user": "victim", "pass": "victim"},
    "a token": lambda m, v, n: {"auth_token": v.key},
    "the victim's JWT without a signature": lambda m, v, n: {"jwt": v.credential.jwt},
    "the victim's JWT with an empty signature": lambda m, v, n: {"jwt": v.credential.jwt, "sig": ""},
    "the victim's JWT signed by mallory": lambda m, v, n: {"jwt": v.credential.jwt, "sig": _signed(m.credential.seed, n)},
    "the victim's JWT with a signature of an old nonce": lambda m, v, n: {
        "jwt": v.credential.jwt, "sig": _signed(v.credential.seed, "an-old-nonce"),
    },
    "the victim's key alone": lambda m, v, n: {"nkey": v.key, "sig": _signed(m.credential.seed, n)},
    "its own JWT with another project": lambda m, v, n: {
        "jwt": _altered(m.credential.jwt, _tagged), "sig": _signed(m.credential.seed, n),
    },
    "its own JWT without an algorithm": lambda m, v, n: {
        "jwt": _altered(m.credential.jwt, _tagged, {"typ": "JWT", "alg": "none"}), "sig": _signed(m.credential.seed, n),
    },
    "its own JWT with the victim's key": lambda m, v, n: {
        "jwt": _altered(m.credential.jwt, lambda c: c.update(sub=v.key)), "sig": _signed(m.credential.seed, n),
    },
    "a JWT that it signed itself": lambda m, v, n: {
        "jwt": _by_itself(m),
        "sig": _signed(m.credential.seed, n),
    },
}  # fmt: skip


def _by_itself(peer: Peer) -> str:
    claims = {"sub": peer.key, "name": "m", "nats": {"type": "user", "version": 2}}
    return encode_jwt(claims, Keypair(peer.credential.seed), ISSUED_AT)


async def _connected(url: str, said: Callable[[str], dict[str, Any]]) -> bool:
    """Whether the broker answers a ping after this CONNECT."""
    host, port = url.removeprefix("nats://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        options = {"verbose": False, "pedantic": True, "lang": "raw", "version": "0", "protocol": 1, **said(info["nonce"])}
        writer.write(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        await writer.drain()
        return (await asyncio.wait_for(reader.readline(), 5)).startswith(b"PONG")
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("lie", CONNECTS)
def test_nobody_connects_with_what_is_not_his(arena: Arena, lie: str) -> None:
    async def attack() -> None:
        mallory, victim, url = arena["mallory"], arena["victim"], arena.world.home.url
        assert not await _connected(url, lambda nonce: CONNECTS[lie](mallory, victim, nonce))
        seed = mallory.credential.seed
        assert await _connected(url, lambda nonce: {"jwt": mallory.credential.jwt, "sig": _signed(seed, nonce)})

    arena.run(attack())


# --- a tenant that imports what is not its own --------------------------------------------------------
# Even an account that the operator signed by mistake: the broker compares the account with its place in the subject.
Kind = Literal["service", "stream"]
IMPORTS: Final[dict[str, tuple[str, str, Kind, bool]]] = {
    "the position of another tenant": ("in.0.{theirs}.>", "mem.{name}.>", "service", True),
    "another tenant's operators": ("op.0.{theirs}.>", "ops.{name}.>", "service", True),
    "another tenant's feed": ("feed.{theirs}.>", "feed.{name}.>", "stream", False),
    "another tenant's notices": ("notice.{theirs}.>", "notice.{name}.>", "stream", False),
    "without sharing who asks": ("in.0.{ours}.>", "mem.{name}.>", "service", False),
}


def test_a_tenant_that_imports_every_position_is_no_account(arena: Arena) -> None:
    async def attack() -> None:
        with pytest.raises(ConfigError) as refused:
            async with _thief(arena, "thief", ("in.0.*.>", "mem.{name}.>", "service", True)):
                pass
        assert refused.value.reason == "account_refused"
        async with arena.minted(f"tenant:{OURS}", f"project:{SIEGE}") as peer:
            await peer.write("Our own import is untouched")

    arena.run(attack())


@asynccontextmanager
async def _thief(arena: Arena, name: str, imported: tuple[str, str, Kind, bool]) -> AsyncIterator[Peer]:
    home = arena.world.home
    async with Control(home) as control:
        await control.tenant_add(name)
        await control.project_add(name, SIEGE)
        tenant = control.trust.tenant(name)
        arena.account[name] = tenant.account
        subject, local, kind, share = imported
        names = {"theirs": arena.account[OURS], "ours": tenant.account, "name": name}
        core = Keypair((home.core_trust / "account.nk").read_text().strip()).public
        stolen = Import(
            name="stolen",
            subject=subject.format(**names),
            local_subject=local.format(**names),
            account=core,
            type=kind,
            share=share,
        )
        scopes = [scope(role, arena.role_key(role.name, name).public, name) for role in ROLES.values()]
        signing = Keypair(home.operator_signing_seed.read_text().strip())
        await control.push_account(
            account_jwt(tenant.account, name, signing, int(time.time()), imports=[stolen], signing_keys=scopes)
        )
        role = "operator" if local.startswith("ops") else "agent"
        async with arena.minted(f"tenant:{name}", f"project:{SIEGE}", "see:internal", role=role, tenant=name) as peer:
            yield peer
        await control.push_account(control.trust.tenant_jwt(tenant))
        async with arena.minted(f"tenant:{name}", f"project:{SIEGE}", tenant=name) as honest:
            await honest.write("Its own import again")


@pytest.mark.parametrize("what", IMPORTS)
def test_a_tenant_hears_and_says_nothing_in_the_place_of_another(arena: Arena, what: str) -> None:
    name = f"thief-{list(IMPORTS).index(what)}"

    async def attack() -> None:
        async with _thief(arena, name, IMPORTS[what]) as peer:
            heard = await peer.nc.subscribe(f"feed.{name}.{SIEGE}.internal.>")
            told = await peer.nc.subscribe(f"notice.{name}.{peer.key}")
            await peer.settle()
            await arena["mallory"].write("A note for our own feed")
            if what == "without sharing who asks":
                answer = await peer.ask("write", DRAFT)
                assert answer.get("reason") in ("identity_missing", "identity_mismatch"), answer
            else:
                assert await peer.gets_no_answer(f"mem.{name}.{SIEGE}.write.{peer.key}", json.dumps(DRAFT).encode())
                assert await peer.gets_no_answer(f"ops.{name}.stats.{peer.key}", b'{"type":"stats_query"}')
            await peer.settle()
            assert (heard._pending_queue.qsize(), told._pending_queue.qsize()) == (0, 0)

    arena.run(attack())


# --- a leaf -----------------------------------------------------------------------------------------------
def test_a_leaf_can_not_claim_an_agent(tmp_path: Path) -> None:
    """A credential is for an ordinary connection: even a broker that takes leaves takes none with it."""
    home = Home(tmp_path / "home")
    home.create()
    trust = Trust(home, time.time)
    trust.create()
    leaf_port, local_port = free_port(), free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broker_config.server.render", lambda h: f'{render(h)}\nleafnodes {{ listen: "127.0.0.1:{leaf_port}" }}\n')
        server = start_server(home)
    try:
        tenant = trust.make_tenant(OURS)
        user = keypair("user")
        creds = tmp_path / "agent.creds"
        write_private(creds, creds_text(trust.agent_jwt(AgentRequest(OURS, "agent", projects=(SIEGE,)), user.public), user))
        asyncio.run(_push(home, trust.tenant_jwt(tenant)))
        conf, log = tmp_path / "leaf.conf", tmp_path / "leaf.log"
        remote = f'{{ url: "nats://127.0.0.1:{leaf_port}", credentials: "{creds}" }}'
        conf.write_text(f'listen: "127.0.0.1:{local_port}"\nleafnodes {{ remotes: [ {remote} ] }}\n')
        leaf = spawn([str(find_server()), "-c", str(conf)], log)
        try:
            deadline = time.monotonic() + 10
            while "uthoriz" not in log.read_text() and "uthent" not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
        finally:
            stop_child(leaf, 5)
        asyncio.run(_connects(home, creds))
    finally:
        stop_server(server, home)


async def _push(home: Home, jwt: str) -> None:
    async with Control(home) as control:
        await control.push_account(jwt)


async def _connects(home: Home, creds: Path) -> None:
    nc = await nats.connect(home.url, user_credentials=str(creds))
    assert nc.is_connected
    await nc.close()
