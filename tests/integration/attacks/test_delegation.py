"""Children that want more than their parents, requests that nobody made, and heads that are to be emptied by another's hand."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import nats
import pytest
from nats.errors import Error as NatsError

from broker_config.control import Control
from bus.delegation import signed
from bus.errors import Rejected
from bus.frames import Delegate, Sign, Signed, encode
from bus.identity import Credential, Keypair, creds_text, encode_jwt, keypair, parse_creds
from bus.subjects import sign

from ..scenes import add_project
from ..world import until
from .arena import KEEP, OURS, SIEGE, THEIRS, Arena, Peer, ids

HOUR_S: Final = 3_600
EXTERNAL: Final = 0.25
CUT_S: Final = 1.0
WRITE: Final = {"type": "draft", "content": "The children play at the gate"}
_fresh = itertools.count()


async def join(arena: Arena, creds: str) -> Peer:
    return await arena.guest(parse_creds(creds))


async def parent(arena: Arena, **rights: Any) -> Peer:
    """A new agent that may delegate, of project siege unless told otherwise."""
    given, name = {"projects": (SIEGE,), **rights}, f"chief-{next(_fresh)}"
    await arena.world.add(name, *given.pop("projects"), **given)
    return await join(arena, Path(arena.world.creds(name)).read_text())


def wish(peer: Peer, signer: Keypair | None = None, **fields: Any) -> dict[str, Any]:
    """A request for a child as its client makes it; `signer` instead of the parent's own key."""
    given = {"name": f"kid-{next(_fresh)}", "key": keypair("user").public, "at": int(time.time()), **fields}
    made = signed(msgspec.convert(given, Delegate), signer or Keypair(peer.credential.seed))
    decoded: dict[str, Any] = json.loads(encode(made))
    return decoded


async def delegated(arena: Arena, by: Peer, *, project: str = SIEGE, **fields: Any) -> Peer:
    """A child of `by`, connected."""
    key = keypair("user")
    answer = await by.ask("delegate", wish(by, key=key.public, **fields), project)
    assert answer["type"] == "delegated", answer
    return await join(arena, creds_text(answer["jwt"], key))


async def refused(by: Peer, frame: dict[str, Any], project: str = SIEGE) -> tuple[str, str]:
    answer = await by.ask("delegate", frame, project)
    assert answer["type"] == "refusal", answer
    return answer["reason"], answer["field"]


# --- wider than its parent -----------------------------------------------------------------------------
PARENT: Final[dict[str, Any]] = {"tools": ("erp",), "see": ("public", "internal"), "ttl": HOUR_S}
WIDER: Final[dict[str, dict[str, Any]]] = {
    "projects: another": {"projects": [KEEP]},
    "projects: one more": {"projects": [SIEGE, KEEP]},
    "projects: one that is not there": {"projects": ["nowhere"]},
    "projects: a wildcard": {"projects": ["*"]},
    "projects: the rest": {"projects": [">"]},
    "clearance: restricted": {"clearance": "restricted"},
    "verbs: an operator's": {"verbs": ["query", "hold"]},
    "verbs: a wildcard": {"verbs": ["*"]},
    "tools: another": {"tools": ["erp", "shell"]},
    "ceiling: tool_result": {"ceiling": "tool_result"},
    "ceiling: system": {"ceiling": "system"},
    "user: somebody": {"user": "ann"},
    "ttl: longer than its parent's": {"ttl": HOUR_S + 60},
    "ttl: none at all": {"ttl": 0},
    "ttl: before now": {"ttl": -1},
    "role: operator": {"role": "operator"},
    "role: supervisor": {"role": "supervisor"},
    "role: user_session": {"role": "user_session", "user": "ann"},
    "role: ingest": {"role": "ingest"},
    "role: user_gateway": {"role": "user_gateway"},
}


@pytest.mark.parametrize("how", WIDER)
def test_a_child_is_wider_in_no_dimension_and_is_told_in_which(arena: Arena, how: str) -> None:
    async def attack() -> None:
        chief = await parent(arena, **PARENT)
        assert await refused(chief, wish(chief, **WIDER[how])) == ("delegation_too_wide", how.partition(":")[0])
        child = await delegated(
            arena,
            chief,
            projects=[SIEGE],
            clearance="public",
            verbs=["write"],
            tools=["erp"],
            ceiling="external",
            ttl=HOUR_S // 2,
        )
        receipt = await child.write(WRITE["content"])
        assert receipt["origin"] == "external"
        assert receipt["actor"]["chain"] == [(await chief.write("I am up here"))["actor"]["id"]]

    arena.run(attack())


NARROWER: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {  # what the child has, what its child asks
    "projects": ({"projects": [SIEGE]}, {"projects": [KEEP]}),
    "clearance": ({"clearance": "public"}, {"clearance": "internal"}),
    "verbs": ({"verbs": ["delegate", "query"]}, {"verbs": ["write"]}),
    "tools": ({"tools": []}, {"tools": ["erp"]}),
    "ceiling": ({"ceiling": "external"}, {"ceiling": "agent_inferred"}),
    "ttl": ({"ttl": 600}, {"ttl": 1_200}),
}


@pytest.mark.parametrize("dimension", NARROWER)
def test_a_grandchild_gets_back_nothing_that_its_parent_lacks(arena: Arena, dimension: str) -> None:
    async def attack() -> None:
        chief = await parent(arena, **{**PARENT, "projects": (SIEGE, KEEP)})
        has, asks = NARROWER[dimension]
        child = await delegated(arena, chief, **{"verbs": ["delegate", "query", "write"], **has})
        assert await refused(child, wish(child, **asks)) == ("delegation_too_wide", dimension)
        grandchild = await delegated(arena, child, verbs=["query"])
        assert (await grandchild.query("gate"))["type"] == "recall"
        await delegated(arena, chief, **asks)  # what the child may not, its parent may

    arena.run(attack())


def test_a_chain_ends_at_three_links(arena: Arena) -> None:
    async def attack() -> None:
        last, chain = await parent(arena), []
        for _ in range(3):
            last = await delegated(arena, last, verbs=["write", "delegate"])
            chain = (await last.write(WRITE["content"]))["actor"]["chain"]
        assert len(chain) == 3
        assert await refused(last, wish(last, verbs=["write"])) == ("delegation_too_deep", "depth")

    arena.run(attack())


def test_a_child_delegates_on_only_if_it_was_told_so(arena: Arena) -> None:
    async def attack() -> None:
        chief = await parent(arena)
        child = await delegated(arena, chief)
        assert await child.gets_no_answer(f"mem.{OURS}.{SIEGE}.delegate.{child.key}", json.dumps(wish(child)).encode())
        await delegated(arena, await delegated(arena, chief, verbs=["write", "delegate"]), verbs=["write"])

    arena.run(attack())


def test_one_agent_has_so_many_children_and_no_more(arena: Arena) -> None:
    async def attack() -> None:
        chief = await parent(arena)
        for _ in range(64):
            assert (await chief.ask("delegate", wish(chief)))["type"] == "delegated"
        answer = await chief.ask("delegate", wish(chief))
        assert (answer["reason"], answer["field"], answer["limit"]) == ("too_many_children", "children", 64)
        await delegated(arena, await parent(arena))

    arena.run(attack())


# --- requests that nobody made -------------------------------------------------------------------------
Forged = Callable[[Arena, Peer], dict[str, Any]]
FORGED: Final[dict[str, tuple[Forged, str]]] = {
    "not signed": (lambda a, p: {**wish(p), "proof": ""}, "delegation_unproven"),
    "signed by nobody": (lambda a, p: {**wish(p), "proof": "AAAA"}, "delegation_unproven"),
    "no base64": (lambda a, p: {**wish(p), "proof": "\u00e9"}, "delegation_unproven"),
    "signed by the child": (lambda a, p: wish(p, signer=keypair("user")), "delegation_unproven"),
    "signed by another agent": (lambda a, p: wish(p, signer=Keypair(a["victim"].credential.seed)), "delegation_unproven"),
    "another's request": (lambda a, p: wish(a["victim"]), "delegation_unproven"),
    "another name than was signed": (lambda a, p: {**wish(p), "name": "other"}, "delegation_unproven"),
    "another key than was signed": (lambda a, p: {**wish(p), "key": keypair("user").public}, "delegation_unproven"),
    "more verbs than were signed": (lambda a, p: {**wish(p, verbs=["get"]), "verbs": ["get", "write"]}, "delegation_unproven"),
    "an hour longer than was signed": (lambda a, p: {**wish(p, ttl=60), "ttl": HOUR_S}, "delegation_unproven"),
    "of an hour ago": (lambda a, p: wish(p, at=int(time.time()) - HOUR_S), "delegation_stale"),
    "of an hour from now": (lambda a, p: wish(p, at=int(time.time()) + HOUR_S), "delegation_stale"),
    "for the key of another agent": (lambda a, p: wish(p, key=a["victim"].key), "key_taken"),
    "for its own key": (lambda a, p: wish(p, key=p.key), "key_taken"),
    "for the key of an account": (lambda a, p: wish(p, key=a.account[OURS]), "bad_field"),
    "for no key": (lambda a, p: wish(p, key="U" + "A" * 55), "bad_field"),
    "with a name of two parts": (lambda a, p: wish(p, name="a--b"), "bad_name"),
    "with a dot in its name": (lambda a, p: wish(p, name="a.b"), "bad_name"),
    "with a name that is too long": (lambda a, p: wish(p, name="x" * 60), "too_long"),
    "with no project at all": (lambda a, p: wish(p, projects=[]), "too_short"),
    "with no verb at all": (lambda a, p: wish(p, verbs=[]), "too_short"),
    "with a project twice": (lambda a, p: wish(p, projects=[SIEGE, SIEGE]), "bad_field"),
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED)
def test_a_request_counts_as_its_parent_signed_it(arena: Arena, forged: str) -> None:
    async def attack() -> None:
        make, reason = FORGED[forged]
        chief = await parent(arena)
        assert (await refused(chief, make(arena, chief)))[0] == reason
        await delegated(arena, chief)

    arena.run(attack())


def test_a_replayed_delegation_is_the_same_child_with_the_same_end_and_nothing_after_it_was_revoked(arena: Arena) -> None:
    async def attack() -> None:
        chief = await parent(arena)
        frame = wish(chief, ttl=600)
        first, again = await chief.ask("delegate", frame), await chief.ask("delegate", frame)
        assert (first["duplicate"], again["duplicate"]) == (False, True)
        assert [first[x] for x in ("id", "expires_at", "chain")] == [again[x] for x in ("id", "expires_at", "chain")]
        other = {**wish(chief, key=first["key"], ttl=600, name=frame["name"], verbs=["query"])}
        assert await refused(chief, other) == ("key_taken", "key")
        assert await refused(chief, wish(chief, name=frame["name"])) == ("name_taken", "name")
        async with Control(arena.world.home) as control:
            await control.agent_revoke(OURS, first["name"])
        assert await refused(chief, frame) == ("key_taken", "key")
        await delegated(arena, chief)

    arena.run(attack())


def test_a_tenants_request_is_nothing_in_another(arena: Arena) -> None:
    async def attack() -> None:
        twin, chief = arena["twin"], await parent(arena)
        assert await twin.gets_no_answer(f"mem.{OURS}.{SIEGE}.delegate.{chief.key}", json.dumps(wish(chief)).encode())
        answer = await twin.ask("delegate", wish(twin, clearance="public"))
        assert (answer["type"], answer["name"].partition("--")[0]) == ("delegated", "mallory")

    arena.run(attack())


# --- credentials that the issuer would never sign ------------------------------------------------------------
@asynccontextmanager
async def presented(arena: Arena, signer: Keypair, key: Keypair, *tags: str) -> Any:
    """A connection with a credential for `key`, signed by `signer`."""
    nats_part = {"type": "user", "version": 2, "issuer_account": arena.account[OURS], "tags": list(tags)}
    jwt = encode_jwt({"sub": key.public, "name": "minted", "nats": nats_part}, signer, int(time.time()))
    credential = Credential(jwt, key.seed, key.public, OURS, "minted", (), (), tuple(tags), None)
    peer = await arena._open(creds_text(jwt, key), credential, OURS)
    try:
        yield peer
    finally:
        await peer.nc.close()


def issuer_key(arena: Arena, role: str = "agent") -> Keypair:
    return Keypair((arena.world.home.issuer_trust(OURS) / f"role-{role}.nk").read_text().strip())


OWN: Final = (f"project:{SIEGE}", "see:internal", "verb:write", "verb:query", "ceiling:external", "depth:1")
BEYOND: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "projects": ((*OWN, f"project:{KEEP}"), "delegation_exceeded"),
    "clearance": ((*OWN, "see:restricted"), "delegation_exceeded"),
    "verbs": ((*OWN, "verb:get"), "delegation_exceeded"),
    "tools": ((*OWN, "tool:shell"), "delegation_exceeded"),
    "ceiling": ((*OWN[:4], "ceiling:agent_inferred", "depth:1"), "delegation_exceeded"),
    "user": ((*OWN, "user:ann"), "delegation_exceeded"),
    "depth": ((*OWN[:5], "depth:2"), "delegation_exceeded"),
    "no depth": (OWN[:5], "tag_invalid"),
    "depth of a root": ((*OWN[:5], "depth:0"), "tag_invalid"),
    "depth beyond the last": ((*OWN[:5], "depth:4"), "tag_invalid"),
}


@pytest.mark.parametrize("what", BEYOND)
def test_an_issuer_in_other_hands_widens_nobody(arena: Arena, what: str) -> None:
    """The delegation key itself signs more for a child that the ledger knows."""

    async def attack() -> None:
        chief, key = await parent(arena), keypair("user")
        made = await chief.ask("delegate", wish(chief, key=key.public, verbs=["write", "query"], ceiling="external"))
        assert made["type"] == "delegated"
        tags, reason = BEYOND[what]
        async with presented(arena, issuer_key(arena), key, *tags) as peer:
            answer = await peer.ask("write", WRITE)
            assert (answer["type"], answer["reason"]) == ("refusal", reason)
        async with presented(arena, issuer_key(arena), key, *OWN) as peer:
            assert (await peer.ask("write", WRITE))["type"] == "receipt"

    arena.run(attack())


def test_the_delegation_key_is_for_children_and_a_role_key_for_none(arena: Arena) -> None:
    async def attack() -> None:
        chief, key = await parent(arena), keypair("user")
        root = Keypair(chief.credential.seed)
        async with presented(arena, issuer_key(arena), root, *OWN) as peer:
            assert (await peer.ask("write", WRITE))["reason"] == "delegation_exceeded"
        async with presented(arena, issuer_key(arena), key, *OWN) as peer:
            assert (await peer.ask("write", WRITE))["reason"] == "agent_unregistered"
        assert (await chief.ask("delegate", wish(chief, key=key.public)))["type"] == "delegated"
        async with presented(arena, arena.role_key("agent"), key, f"project:{SIEGE}") as peer:
            assert (await peer.ask("write", WRITE))["reason"] == "delegation_exceeded"
        with pytest.raises(NatsError):
            async with presented(arena, root, key, *OWN):
                pass
        assert (await chief.ask("write", WRITE))["type"] == "receipt"

    arena.run(attack())


# --- a gatekeeper in other hands -------------------------------------------------------------------------
Ask = Callable[[Arena, Peer], dict[str, Any]]


def _wished(peer: Peer, signer: Keypair | None = None, **fields: Any) -> Delegate:
    return msgspec.convert({**wish(peer, signer, **fields)}, Delegate)


def _sign_request(arena: Arena, peer: Peer, made: Delegate, **changes: Any) -> Sign:
    given: dict[str, Any] = {
        "account": arena.account[OURS], "parent": peer.credential.jwt, "wish": made,
        "name": f"{peer.credential.name}--{made.name}", "expires_at": int(time.time()) + 600,
    }  # fmt: skip
    return Sign(**(given | changes))


GATEKEEPERS: Final[dict[str, tuple[Callable[[Arena, Peer], Sign], str, str]]] = {
    "a wish that nobody made": (
        lambda a, p: _sign_request(a, p, _wished(p, keypair("user"))), "unproven", "",
    ),
    "a parent that it made up": (lambda a, p: _sign_request(a, p, _wished(p), parent="e30.e30.e30"), "unproven", ""),
    "a parent that it signed itself": (
        lambda a, p: _sign_request(a, p, _wished(p), parent=_self_signed(a, p)), "unproven", "",
    ),
    "another tenant": (lambda a, p: _sign_request(a, p, _wished(p), account=a.account[THEIRS]), "unproven", ""),
    "another name": (lambda a, p: _sign_request(a, p, _wished(p), name="victim--kid"), "unproven", ""),
    "a longer life": (
        lambda a, p: _sign_request(a, p, _wished(p, ttl=600), expires_at=int(time.time()) + HOUR_S), "too_wide", "ttl",
    ),
    "a life that is over": (lambda a, p: _sign_request(a, p, _wished(p), expires_at=1), "too_wide", "ttl"),
    "a wish that is too wide": (lambda a, p: _sign_request(a, p, _wished(p, projects=[KEEP])), "too_wide", "projects"),
    "an old wish": (lambda a, p: _sign_request(a, p, _wished(p, at=int(time.time()) - HOUR_S)), "stale", ""),
}  # fmt: skip


def _self_signed(arena: Arena, peer: Peer) -> str:
    nats_part = {
        "type": "user",
        "version": 2,
        "issuer_account": arena.account[OURS],
        "tags": [f"tenant:{OURS}", f"project:{KEEP}"],
    }
    return encode_jwt({"sub": peer.key, "name": peer.credential.name, "nats": nats_part}, keypair("account"), int(time.time()))


@pytest.mark.parametrize("lie", GATEKEEPERS)
def test_a_gatekeeper_in_other_hands_has_nothing_signed_that_no_parent_asked_for(arena: Arena, lie: str) -> None:
    async def attack() -> None:
        make, reason, field = GATEKEEPERS[lie]
        chief, creds = await parent(arena), arena.world.home.core_creds("gatekeeper")
        gate = await nats.connect(
            arena.world.home.url,
            user_credentials=str(creds),
            inbox_prefix=f"_INBOX.{parse_creds(creds.read_text()).key}".encode(),
        )
        try:

            async def asked(request: Sign) -> Signed:
                return msgspec.json.decode((await gate.request(sign(0), encode(request), timeout=5)).data, type=Signed)

            answer = await asked(make(arena, chief))
            assert (answer.jwt, answer.reason, answer.field) == ("", reason, field)
            assert (await asked(_sign_request(arena, chief, _wished(chief)))).jwt
        finally:
            await gate.close()

    arena.run(attack())


# --- what falls with a parent ------------------------------------------------------------------------------
async def is_cut(peer: Peer) -> bool:
    """The broker has closed its connection, within a second of now, and takes the credential no more."""
    await until(lambda: peer.nc.is_closed, "the connection is closed", CUT_S)
    return peer.nc.is_closed


def test_whoever_is_below_a_revoked_parent_is_cut_with_it(arena: Arena) -> None:
    async def attack() -> None:
        chief, other = await parent(arena), await parent(arena)
        child = await delegated(arena, chief, verbs=["write", "delegate"])
        grandchild, stranger = await delegated(arena, child, verbs=["write"]), await delegated(arena, other)
        written = (await grandchild.write("A grandchild was here"))["id"]
        async with Control(arena.world.home) as control:
            shown = await control.agent_revoke(OURS, chief.credential.name)
            assert shown["fallen"] == [child.credential.name, grandchild.credential.name]
            for peer in (chief, child, grandchild):
                assert await is_cut(peer)
                with pytest.raises(NatsError):
                    await arena.reconnect(peer)
            family = await control.agent_family(OURS, chief.credential.name)
        assert [row["state"] for row in family] == ["revoked", "ended", "ended"]
        assert (await stranger.ask("write", WRITE))["type"] == "receipt"
        memory = (await arena["victim"].get(written))["admitted"][0]["memory"]
        assert memory["actor"]["name"] == grandchild.credential.name
        assert len(memory["actor"]["chain"]) == 2

    arena.run(attack())


def test_the_ledger_alone_ends_a_child_where_the_broker_has_not_heard_of_it(arena: Arena) -> None:
    """The parent's key is cut in the ledger; the broker is told nothing."""

    async def attack() -> None:
        from bus import subjects
        from bus.frames import AdmAgent

        chief = await parent(arena)
        child = await delegated(arena, chief, verbs=["write", "delegate"])
        grandchild = await delegated(arena, child, verbs=["write"])
        assert (await grandchild.ask("write", WRITE))["type"] == "receipt"
        frame = AdmAgent(action="revoke", account=arena.account[OURS], name=chief.credential.name)
        await arena.admin.request(subjects.admin(0, "agent", arena.admin_key), encode(frame), timeout=5)
        for peer in (child, grandchild):
            assert (await peer.ask("write", WRITE))["reason"] == "parent_revoked"
        assert (await child.ask("delegate", wish(child, verbs=["write"])))["reason"] == "parent_revoked"
        assert (await chief.ask("delegate", wish(chief)))["reason"] == "credential_revoked"

    arena.run(attack())


def test_a_stolen_key_s_children_fall_when_it_is_rotated(arena: Arena) -> None:
    async def attack() -> None:
        chief = await parent(arena)
        name, frame = chief.credential.name, wish(chief)
        stays = await chief.ask("delegate", frame)
        child = await delegated(arena, chief)
        async with Control(arena.world.home) as control:
            await control.agent_rotate(OURS, name, keep_old=True)
            assert (await child.ask("write", WRITE))["type"] == "receipt"
            await control.agent_rotate(OURS, name)
        assert await is_cut(child)
        new = await join(arena, Path(arena.world.creds(name)).read_text())
        assert await refused(new, frame) == ("key_taken", "key")  # signed by the old key
        assert await refused(new, wish(new, key=stays["key"], name=frame["name"])) == ("key_taken", "key")
        again = await delegated(arena, new)
        assert (await again.write(WRITE["content"]))["actor"]["chain"] == stays["chain"]

    arena.run(attack())


def test_a_delegated_agent_is_not_rotated_and_nobody_takes_its_name(arena: Arena) -> None:
    async def attack() -> None:
        chief = await parent(arena)
        child = await delegated(arena, chief)
        async with Control(arena.world.home) as control:
            with pytest.raises(Rejected) as rotated:
                await control.agent_rotate(OURS, child.credential.name)
            assert rotated.value.reason == "delegated_not_rotated"
            with pytest.raises(Rejected) as taken:
                await control.agent_add(OURS, f"{chief.credential.name}--kid", projects=[SIEGE])
            assert taken.value.reason == "bad_name"
        assert (await child.ask("write", WRITE))["type"] == "receipt"

    arena.run(attack())


# --- one head ----------------------------------------------------------------------------------------------
async def planted(arena: Arena) -> tuple[str, str]:
    """A record from outside (id, text) that nobody else has seen."""
    text = f"Vault number {next(_fresh)}7331 opens with the word Ozymandias and a silver coin"
    receipt = await arena["ingest"].write(text, evidence=["https://outside.example"])
    return receipt["id"], text


async def tainted(peer: Peer, source: str, text: str) -> bool:
    copy = await peer.write(text)
    return bool(copy["trust_floor"] <= EXTERNAL and copy["origin"] == "external" and source in copy["parents"])


@pytest.mark.parametrize("way", ["parent to child", "child to parent", "sibling to sibling", "to a child made afterwards"])
def test_no_hand_of_a_family_washes_what_another_read(arena: Arena, way: str) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        chief = await parent(arena)
        reader = chief if way.startswith(("parent", "to a")) else await delegated(arena, chief)
        early = await delegated(arena, chief) if way == "sibling to sibling" else None
        writer = early or chief
        if way == "parent to child":
            writer = await delegated(arena, chief)
        assert source in ids(await reader.query(text))
        if way == "to a child made afterwards":
            writer = await delegated(arena, chief)
        assert writer is not reader
        assert await tainted(writer, source, text)
        assert (await writer.write("The kettle is on again"))["trust_floor"] <= EXTERNAL
        clean = await parent(arena)
        assert not (await clean.write("The kettle is on"))["parents"]

    arena.run(attack())


def test_a_child_of_fewer_projects_does_not_let_the_family_forget_sooner(arena: Arena) -> None:
    async def attack() -> None:
        chief = await parent(arena, projects=(SIEGE, KEEP))
        child = await delegated(arena, chief, projects=[SIEGE])
        shown = [
            await arena["operator-all"].operate("context", {"type": "context", "agent": peer.credential.name})
            for peer in (chief, child)
        ]
        assert shown[0]["context"] == shown[1]["context"]
        assert shown[1]["root"] == chief.credential.name

    arena.run(attack())


# --- gateways, sessions, supervisors -------------------------------------------------------------------------
def test_a_gateway_gives_each_user_a_head_of_its_own_and_reads_nothing_itself(arena: Arena) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        gateway = await parent(arena, role="user_gateway")
        ann, bob = await delegated(arena, gateway, user="ann"), await delegated(arena, gateway, user="bob")
        for verb, frame in (("query", {"type": "query", "text": text}), ("write", WRITE)):
            assert await gateway.gets_no_answer(f"mem.{OURS}.{SIEGE}.{verb}.{gateway.key}", json.dumps(frame).encode())
        assert source in ids(await ann.query(text))
        assert (await ann.write("I like the east tower"))["trust_floor"] <= EXTERNAL
        said = await bob.write("I like the west tower", scope="user", scope_id="bob")
        assert (said["origin"], said["trust_floor"] > EXTERNAL) == ("user_stated", True)
        assert (await bob.ask("write", {**WRITE, "scope": "user", "scope_id": "ann"}))["reason"] == "verb_denied"
        assert said["id"] not in ids(await ann.get(said["id"]))

    arena.run(attack())


SESSIONS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "no user": ({}, "user"),
    "a user that is no token": ({"user": "ann b"}, "user"),
    "two days": ({"user": "ann", "ttl": 2 * 86_400}, "ttl"),
    "an agent": ({"role": "agent"}, "role"),
    "a gateway": ({"role": "user_gateway"}, "role"),
}


@pytest.mark.parametrize("asked", SESSIONS)
def test_a_gateway_delegates_sessions_of_one_user_and_a_day_at_most(arena: Arena, asked: str) -> None:
    async def attack() -> None:
        gateway = await parent(arena, role="user_gateway")
        fields, dimension = SESSIONS[asked]
        assert await refused(gateway, wish(gateway, **fields)) == ("delegation_too_wide", dimension)
        assert (await (await delegated(arena, gateway, user="ann", ttl=86_400)).ask("write", WRITE))["type"] == "receipt"

    arena.run(attack())


def test_a_second_user_is_not_let_into_a_context(arena: Arena) -> None:
    async def attack() -> None:
        gateway = await parent(arena, role="user_gateway")
        ann = await delegated(arena, gateway, user="ann", verbs=["write", "query", "delegate"])
        assert await refused(ann, wish(ann, user="bob")) == ("delegation_too_wide", "user")
        helper = await delegated(arena, ann, verbs=["write"])
        assert (await helper.write("Ann's helper"))["origin"] == "agent_inferred"
        assert (await helper.ask("write", {**WRITE, "scope": "user", "scope_id": "bob"}))["reason"] == "verb_denied"
        session = arena["session-bob"]
        tags = [tag for tag in session.credential.tags if not tag.startswith("user:")]
        async with presented(arena, arena.role_key("user_session"), Keypair(session.credential.seed), *tags, "user:ann") as peer:
            assert (await peer.ask("write", WRITE))["reason"] == "second_user"
        assert (await session.ask("write", WRITE))["type"] == "receipt"

    arena.run(attack())


def test_a_supervisor_delegates_and_closes_contexts_and_reads_nothing(arena: Arena) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        boss = await parent(arena, role="supervisor")
        worker = await delegated(arena, boss)
        query = json.dumps({"type": "query", "text": text}).encode()
        for verb in ("query", "get", "write"):
            assert await boss.gets_no_answer(f"mem.{OURS}.{SIEGE}.{verb}.{boss.key}", query)
        assert source in ids(await worker.query(text))
        assert await refused(boss, wish(boss, role="supervisor")) == ("delegation_too_wide", "role")
        close = {"type": "context", "agent": worker.credential.name, "action": "close", "message": "started anew"}
        closed = await boss.operate("context", close)
        assert (closed["closed"], closed["root"], closed["epoch"]) == (True, boss.credential.name, 1)

    arena.run(attack())


def test_a_users_next_session_washes_nothing_and_another_users_carries_nothing(arena: Arena) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        gateway = await parent(arena, role="user_gateway")
        first, bob = await delegated(arena, gateway, user="ann"), await delegated(arena, gateway, user="bob")
        assert source in ids(await first.query(text))
        after = await delegated(arena, gateway, user="ann")
        assert await tainted(after, source, text)
        assert (await after.write("The kettle of the lodge is on"))["trust_floor"] <= EXTERNAL
        assert (await bob.write("The kettle of the inn is on"))["trust_floor"] > EXTERNAL
        other = await parent(arena, role="user_gateway")
        assert (await (await delegated(arena, other, user="ann")).write("The kettle of the hut is on"))["trust_floor"] > EXTERNAL

    arena.run(attack())


@pytest.mark.parametrize("closed_to_sessions", ["audience", "readers"])
def test_a_sessions_child_reads_nothing_that_is_for_agents_alone(arena: Arena, closed_to_sessions: str) -> None:
    async def attack() -> None:
        room = f"vault-{next(_fresh)}"
        await add_project(arena.world, room, **({"audience": ["agent"]} if closed_to_sessions == "audience" else {}))
        both = (room, SIEGE)
        writer, gateway = await parent(arena, projects=both), await parent(arena, projects=both, role="user_gateway")
        readers = [["role:agent"]] if closed_to_sessions == "readers" else None
        said = await writer.write("The vault of Kelp stands open at noon", room, readers=readers)
        session = await delegated(arena, gateway, user="ann", verbs=["query", "get", "delegate"])
        helper = await delegated(arena, session, verbs=["query", "get"])
        for peer in (session, helper):
            for verb, frame in (("query", {"text": "vault of Kelp"}), ("get", {"ids": [said["id"]]})):
                answer = await peer.ask(verb, {"type": verb, **frame}, room)
                told = answer.get("reason"), answer.get("admitted"), answer.get("withheld")
                assert told == (("not_in_audience", None, None) if closed_to_sessions == "audience" else (None, [], {}))
        child = await delegated(arena, writer, verbs=["query"])
        assert ids(await child.query("vault of Kelp", room)) == [said["id"]]

    arena.run(attack())


def test_a_child_is_not_told_what_only_its_parent_was_served(arena: Arena) -> None:
    """Its text is held for what it repeats, and says neither which memory nor which project that is, at a retry neither."""

    async def attack() -> None:
        text = f"Operation Nightjar {next(_fresh)} begins on the ninth of October at Lundy"
        secret = await arena["keeper"].write(text, KEEP, classification="restricted")
        chief = await parent(arena, projects=(SIEGE, KEEP), see=("public", "internal", "restricted"))
        child = await delegated(arena, chief, projects=[SIEGE], clearance="public", verbs=["write", "query"])
        assert secret["id"] in ids(await chief.query(text, KEEP))
        for _ in range(2):
            told = await child.write(f"I guess: {text}", idempotency_key="guess")
            assert (told["state"], told["parents"]) == ("held", [])
            assert told["reasons"][0] == "flow_down:elsewhere"
            assert not {KEEP, f"flow_down:project:{KEEP}", secret["id"]} & {*told["reasons"], *told["parents"]}
        own = await chief.write(f"I know: {text}")
        assert (own["parents"], own["reasons"][0]) == ([secret["id"]], f"flow_down:project:{KEEP}")

    arena.run(attack())
