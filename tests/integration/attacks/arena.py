"""One home under attack, shared by the whole suite: two tenants with equal names, a principal of every role, and hidden memories.

Connections stay open from test to test on one event loop, so that an attack costs milliseconds. `mallory` is the attacker: an
ordinary agent of project `siege`. Everything else is somebody whose rights it would like to have.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import nats
from nats.aio.client import Client, RawCredentials
from nats.errors import NoRespondersError

from broker_config.control import Control
from bus import subjects
from bus.frames import AdmAgent, encode
from bus.identity import Credential, Keypair, creds_text, encode_jwt, keypair, parse_creds, user_token

from ..rooms import ALL
from ..scenes import add_project
from ..world import World

R = TypeVar("R")
OURS, THEIRS = "acme", "acme-corp"  # one name begins with the other
SIEGE, KEEP = "siege", "keep"
ANSWER_S: Final = 20.0
SILENCE_S: Final = 0.15  # how long an answer that must not come is waited for; a real one takes a few milliseconds
ISSUED_AT: Final = 1_700_000_000
MISSING = "mem_00000000000000000000000000"
PEOPLE: Final[dict[str, dict[str, Any]]] = {
    "mallory": {},
    "victim": {"see": ALL},
    "keeper": {"projects": (KEEP,), "see": ALL},
    "both": {"projects": (SIEGE, KEEP), "see": ALL},
    "guest": {"see": ("public",)},
    "ingest": {"role": "ingest"},
    "gateway": {"role": "user_gateway"},
    "session-ann": {"role": "user_session", "user": "ann", "ttl": 3_600},
    "session-bob": {"role": "user_session", "user": "bob", "ttl": 3_600},
    "supervisor": {"role": "supervisor"},
    "operator": {"role": "operator"},
    "operator-all": {"role": "operator", "projects": (SIEGE, KEEP), "see": ALL},
    "operator-keep": {"role": "operator", "projects": (KEEP,), "see": ALL},
    "auditor": {"role": "auditor"},
}
_fresh = itertools.count()


@dataclass
class Peer:
    """A plain NATS connection with somebody's credential, and what the broker forbade it."""

    nc: Client
    credential: Credential
    tenant: str
    violations: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.credential.key

    async def settle(self) -> None:
        """What was sent has reached the broker, and its complaints are here. nats-py would write its ping ahead of its buffer."""
        await self.nc._flush_pending(force_flush=True)
        await self.nc.flush()

    async def may_publish(self, subject: str, data: bytes = b"{}") -> bool:
        before = len(self.violations)
        await self.nc.publish(subject, data)
        await self.settle()
        return len(self.violations) == before

    async def may_subscribe(self, subject: str, queue: str = "") -> bool:
        before = len(self.violations)
        sub = await self.nc.subscribe(subject, queue)
        await self.settle()
        if len(self.violations) > before:
            return False
        await sub.unsubscribe()
        return True

    async def raw(self, line: bytes, payload: bytes = b"") -> None:
        """Protocol bytes as they are: a client would tidy them."""
        await self.nc._send_command(line + payload + b"\r\n" if payload else line)
        await self.nc._flush_pending()

    async def ask(self, verb: str, frame: Mapping[str, Any] | bytes, project: str = SIEGE) -> dict[str, Any]:
        """One request on mem.…: the answer as a dict."""
        return await self.request(f"mem.{self.tenant}.{project}.{verb}.{self.key}", frame)

    async def operate(self, verb: str, frame: Mapping[str, Any] | bytes) -> dict[str, Any]:
        """One request on ops.…"""
        return await self.request(f"ops.{self.tenant}.{verb}.{self.key}", frame)

    async def request(
        self, subject: str, frame: Mapping[str, Any] | bytes, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        data = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
        answer: dict[str, Any] = json.loads((await self.nc.request(subject, data, timeout=ANSWER_S, headers=headers)).data)
        return answer

    async def gets_no_answer(self, subject: str, frame: bytes = b"{}") -> bool:
        """Whether a request is forbidden by the broker, or nobody is there for it."""
        before = len(self.violations)
        try:
            await self.nc.request(subject, frame, timeout=SILENCE_S)
        except (TimeoutError, NoRespondersError):
            await self.settle()
            return True
        return len(self.violations) > before

    async def write(self, content: str, project: str = SIEGE, **fields: Any) -> dict[str, Any]:
        """A memory that must be stored."""
        receipt = await self.ask("write", {"type": "draft", "content": content, **fields}, project)
        assert receipt["type"] == "receipt", receipt
        return receipt

    async def query(self, text: str, project: str = SIEGE, **fields: Any) -> dict[str, Any]:
        recall = await self.ask("query", {"type": "query", "text": text, "k": 64, **fields}, project)
        assert recall["type"] == "recall", recall
        return recall

    async def get(self, *ids: str, project: str = SIEGE) -> dict[str, Any]:
        return await self.ask("get", {"type": "get", "ids": list(ids)}, project)


def ids(recall: Mapping[str, Any]) -> list[str]:
    return [item["memory"]["id"] for item in recall["admitted"]]


def fact(said: Mapping[str, Any]) -> str:
    """An answer without what differs by itself from question to question."""
    return json.dumps(
        {k: v for k, v in said.items() if k not in ("recall_id", "position", "generation", "request_id")}, sort_keys=True
    )


class Arena:
    """The home, its event loop, and everybody's connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runner = asyncio.Runner()
        self.peers: dict[str, Peer] = {}
        self.guests: list[Peer] = []  # of one test
        self.account: dict[str, str] = {}
        self.hidden: dict[str, str] = {}
        self.note = ""
        self.admin: Client

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return self.runner.run(work)

    def __getitem__(self, name: str) -> Peer:
        return self.peers[name]

    # --- building it --------------------------------------------------------------------------------
    async def build(self) -> None:
        world = self.world
        async with Control(world.home) as control:
            await control.tenant_add(THEIRS)
            await control.project_add(THEIRS, SIEGE)
            self.account = {name: control.trust.tenant(name).account for name in (OURS, THEIRS)}
        await add_project(world, SIEGE)
        await add_project(world, KEEP)
        for name, rights in PEOPLE.items():
            given = {"projects": (SIEGE,), **rights}
            self.peers[name] = await self.join(await world.add(name, *given.pop("projects"), **given))
        self.peers["twin"] = await self.join(await world.add("mallory", SIEGE, tenant=THEIRS, see=ALL), THEIRS)
        creds = world.home.core_creds("admin")
        self.admin_key = parse_creds(creds.read_text()).key
        self.admin = await nats.connect(
            world.home.url, user_credentials=str(creds), inbox_prefix=f"_INBOX.{self.admin_key}".encode()
        )
        await self._hide()

    async def join(self, credential: Credential, tenant: str = OURS) -> Peer:
        """A connection with a credential of the home's."""
        return await self._open(creds_text(credential.jwt, Keypair(credential.seed)), credential, tenant)

    async def guest(self, credential: Credential) -> Peer:
        """The same for one test: it leaves at its end."""
        self.guests.append(await self.join(credential))
        return self.guests[-1]

    async def see_off(self) -> None:
        while self.guests:
            await self.guests.pop().nc.close()

    async def reconnect(self, peer: Peer) -> Peer:
        """Another connection with the same credential. `NatsError` if the broker refuses it."""
        return await self._open(creds_text(peer.credential.jwt, Keypair(peer.credential.seed)), peer.credential, peer.tenant)

    async def _open(self, creds: str, credential: Credential, tenant: str) -> Peer:
        violations: list[str] = []

        async def on_error(e: Exception) -> None:
            violations.append(str(e))

        nc = Client()
        try:
            await nc.connect(
                self.world.home.url, user_credentials=RawCredentials(creds), inbox_prefix=f"_INBOX.{credential.key}".encode(),
                error_cb=on_error, allow_reconnect=False,
            )  # fmt: skip
        except BaseException:
            await nc.close()  # a refused connect leaves a socket open
            raise
        return Peer(nc, credential, tenant, violations)

    async def _hide(self) -> None:
        """Memories that mallory may not know of, by why; and one that it may (`note`)."""
        victim = self["victim"]
        self.note = (await victim.write("The portcullis is greased on Mondays"))["id"]
        self.hidden = {
            "another tenant": (await self["twin"].write("Twin's portcullis is greased on Fridays"))["id"],
            "another project": (await self["keeper"].write("Keep's portcullis is greased on Sundays", KEEP))["id"],
            "restricted": (await victim.write("Restricted: the portcullis chain is weak", classification="restricted"))["id"],
            "for other readers": (await victim.write("For nobody: the portcullis rope", readers=[["agent:nobody"]]))["id"],
            "for another role": (await victim.write("For auditors: the portcullis", readers=[["role:auditor"]]))["id"],
            "opted out": (await victim.write("Victim's own portcullis diary", opt_out=True))["id"],
            "another user's": (await self["session-ann"].write("Ann's portcullis", scope="user", scope_id="ann"))["id"],
        }

    async def close(self) -> None:
        for peer in self.peers.values():
            await peer.nc.close()
        await self.admin.close()

    # --- credentials that the home would never issue ------------------------------------------------------
    def role_key(self, role: str, tenant: str = OURS) -> Keypair:
        return Keypair((self.world.home.tenant_trust(tenant) / f"role-{role}.nk").read_text().strip())

    async def register(self, key: str, role: str, tenant: str = OURS) -> None:
        name = f"minted-{next(_fresh)}"
        frame = AdmAgent(action="add", account=self.account[tenant], name=name, key=key, role=role, projects=[SIEGE])
        subject = subjects.admin(0, "agent", self.admin_key)
        answer = json.loads((await self.admin.request(subject, encode(frame), timeout=ANSWER_S)).data)
        assert answer["type"] == "done", answer

    @asynccontextmanager
    async def minted(
        self,
        *tags: str,
        role: str = "agent",
        lists: str | None = "",
        signer: Keypair | None = None,
        issuer_account: str = "",
        tenant: str = OURS,
        expires_in_s: float | None = None,
        claims: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Peer]:
        """A connection with any tags, signed by any key: the tenant's real key of `role` by default. A `user:` tag takes an id.

        `lists`: the role under which its key stands in the ledger; empty = `role`, None = not at all. `claims`: more of them.
        """
        user, key = keypair("user"), bytes.fromhex((self.world.home.tenant_trust(tenant) / "user-ids.key").read_text())
        tags = tuple(f"user:{user_token(key, tag[5:])}" if tag.startswith("user:") else tag for tag in tags)
        if lists is not None:
            await self.register(user.public, lists or role, tenant)
        body = {"type": "user", "version": 2, "issuer_account": issuer_account or self.account[tenant], "tags": list(tags)}
        outer: dict[str, Any] = {"sub": user.public, "name": "minted", "nats": {**body, **(claims or {})}}
        if expires_in_s is not None:
            outer["exp"] = int(time.time() + expires_in_s)
        jwt = encode_jwt(outer, signer or self.role_key(role, tenant), ISSUED_AT)
        credential = Credential(jwt, user.seed, user.public, tenant, "minted", (), (), tuple(tags), None)
        peer = await self._open(creds_text(jwt, user), credential, tenant)
        try:
            yield peer
        finally:
            await peer.nc.close()
