"""The real gatekeeper in this process, on a broker and a ledger in memory: what decides in a twin.

The one module under `bus` that imports the gate, loaded when a twin is started and not before. It decides nothing itself:
writes, recalls, holds and refusals come from gate.shard and what is behind it. In memory are only the broker's connection, the
two streams (counted, not kept: a twin has no restart) and the clock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
from anyio.abc import TaskStatus

from broker_config.home import Home
from broker_config.issuer import Issuer, decode_request
from broker_config.roles import scope
from broker_config.trust import AgentRequest, Trust
from gate.ledger.committer import Committer
from gate.model.embedder import StaticEmbedder
from gate.outbox import Outbox
from gate.paths import Paths
from gate.refusals import Refused
from gate.service import admission, open_lineage
from gate.shard import Shard

from .. import limits
from ..errors import ConfigError
from ..frames import AdmAgent, AdminRequest, AdmProject, AdmTenant, encode, raise_refusal
from ..identity import Credential, UserNats, creds_text, keypair, parse_creds, verify_jwt, verify_registry
from ..subjects import sign
from .rights import TENANT, Rights
from .transport import Broker, Message, Permit

STREAMS: Final = {"ledger.0.block": "LEDGER_0", "reads.0.block": "READS_0"}
ANY_PORT: Final = 1  # of a home whose broker is never started


class _Ack(NamedTuple):
    data: bytes


class _Connection:
    """What the gatekeeper uses of its connection to the broker: replies and pushes go out at once, appends always succeed."""

    is_connected, is_closed, is_draining = True, False, False
    pending_data_size = 0
    max_payload = limits.PAYLOAD_BYTES_MAX

    def __init__(self, broker: Broker, issuer: Issuer) -> None:
        self._broker, self._issuer = broker, issuer
        self._last = dict.fromkeys(STREAMS, 0)
        self.stats = {"reconnects": 0}

    async def publish(self, subject: str, data: bytes) -> None:
        self._broker.send(subject, data)

    async def request(self, subject: str, data: bytes, **_: Any) -> _Ack:
        if subject == sign(0):
            return _Ack(encode(self._issuer.answer(decode_request(data))))
        self._last[subject] += 1
        return _Ack(json.dumps({"stream": STREAMS[subject], "seq": self._last[subject]}).encode())


class Gatekeeper:
    """Serves one tenant in `folder`. `run` on a loop of its own; the other methods are called on that loop."""

    def __init__(self, folder: Path, now_ms: Callable[[], int]) -> None:
        self._home, self._now_ms = Home(folder), now_ms
        self._home.create(ANY_PORT)
        self._trust = Trust(self._home, lambda: now_ms() / 1000)
        self._trust.create()
        self._tenant = self._trust.make_tenant(TENANT)
        self._trust.write_registry()
        self._issuer = Issuer(self._home, lambda: now_ms() / 1000, fresh_s=inf)  # its clients' clock is the real one
        self._stop = asyncio.Event()
        self._shard: Shard
        self.broker: Broker

    # --- serving ----------------------------------------------------------------------------------
    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Until `stop`. Raises what the gatekeeper failed of."""
        loop = asyncio.get_running_loop()
        inbound: asyncio.Queue[Message] = asyncio.Queue()  # bounded by its clients: each request waits for its answer

        def deliver(message: Message) -> None:
            loop.call_soon_threadsafe(inbound.put_nowait, message)

        self.broker = Broker(TENANT, self._tenant.account, deliver)
        shard = self._shard = self._made(loop)
        shard.index.start()
        try:
            async with anyio.create_task_group() as tasks:
                for pump in (shard.writes, shard.sequencer):
                    tasks.start_soon(pump.run)
                for run in (shard.recalls.run_asks, shard.recalls.run_records, shard.erasures.run):
                    tasks.start_soon(run)
                tasks.start_soon(self._serve, inbound)
                tasks.start_soon(self._fail)
                await self._add_tenant()
                shard.state, shard.intake.open = "ready", True
                task_status.started()
                await self._stop.wait()
                tasks.cancel_scope.cancel()
        finally:
            self.broker.close()
            with anyio.CancelScope(shield=True):
                await asyncio.to_thread(self._close)

    def stop(self) -> None:
        self._stop.set()

    def _made(self, loop: asyncio.AbstractEventLoop) -> Shard:
        """As gate.service opens it, on the broker in memory and an empty ledger."""
        paths = Paths(self._home.path)
        operator = self._home.operator_jwt.read_text().strip()
        shard = Shard(
            paths=paths,
            loop=loop,
            core_account="",
            registry=verify_registry(self._home.registry.read_text().strip(), operator),
            operator_jwt=operator,
            admission=admission(StaticEmbedder()),
            lineage=open_lineage(paths, {"LEDGER": "twin", "READS": "twin"}),
            stream_identity="twin",
            now_ms=self._now_ms,
        )
        connection: Any = _Connection(self.broker, self._issuer)
        shard.ledger, shard.reads = (Committer(connection, stream, subject, 0) for subject, stream in STREAMS.items())
        shard.outbox = Outbox(connection)
        return shard

    async def _serve(self, inbound: asyncio.Queue[Message]) -> None:
        """Requests in their order. What the clock has made due is done before each."""
        shard = self._shard
        handlers: dict[str, Callable[[Any], Any]] = {"in": shard.intake.on_memory, "op": shard.intake.on_operator}
        while True:
            message = await inbound.get()
            for tenant in list(shard.tenants.values()):
                await shard.holds.tend(tenant)
            await handlers[message.subject.partition(".")[0]](message)

    async def _fail(self) -> None:
        await self._shard.failed.wait()
        raise self._shard.failure or RuntimeError("the gatekeeper failed")

    def _close(self) -> None:
        self._shard.index.stop()
        for index in self._shard.indexes.values():
            index.close()
        self._shard.lineage.close()

    # --- the control plane ------------------------------------------------------------------------
    async def administer(self, request: AdminRequest) -> None:
        """One request of the home's control plane. Raises Rejected or Conflict."""
        try:
            await self._shard.admin.answer(request)
        except Refused as e:
            raise raise_refusal(e.frame(), type(request)) from None

    async def _add_tenant(self) -> None:
        t = self._tenant
        await self.administer(AdmTenant(action="add", account=t.account, name=t.name, user_key=t.user_key))

    async def add_project(self, name: str, settings: Mapping[str, Any]) -> None:
        await self.administer(AdmProject(action="add", account=self._tenant.account, name=name, settings=dict(settings)))

    async def issue(self, name: str, rights: Rights) -> tuple[Credential, Permit]:
        """A new agent: registered in the ledger, with a credential of the trust tree and what the broker makes of it."""
        request = AgentRequest(
            tenant=TENANT, name=name, role=rights["role"], projects=tuple(rights.get("projects", ())),
            see=tuple(rights.get("see", ())), tools=tuple(rights.get("tools", ())),
            person=rights.get("person", ""), user=rights.get("user", ""),
        )  # fmt: skip
        user = keypair("user")
        jwt = self._trust.agent_jwt(request, user.public)
        await self.administer(
            AdmAgent(
                action="add", account=self._tenant.account, name=name, key=user.public, role=request.role,
                projects=list(request.projects), person=request.person, user=request.user,
            )
        )  # fmt: skip
        return self.admitted(creds_text(jwt, user))

    def admitted(self, creds: str) -> tuple[Credential, Permit]:
        """What the broker makes of a credential: the template of the key that signed it, filled in from its tags.

        ConfigError for one that no key of this tenant signed.
        """
        credential = parse_creds(creds)
        claims = verify_jwt(credential.jwt)
        role = self._trust.role_keys(TENANT).get(claims.issuer)
        if role is None:
            raise ConfigError("The credential is not of this bus.", reason="creds_foreign", advice="Use one that it issued.")
        template = scope(role, "", TENANT).template
        said = {
            "acc": claims.body("user", UserNats).issuer_account, "user": credential.key, "kind": "Client",
            "tags": list(credential.tags), "issuer_key": claims.issuer, "jwt": credential.jwt,
        }  # fmt: skip
        publish, subscribe = (_filled(allowed.allow, credential) for allowed in (template.pub, template.sub))
        return credential, Permit(publish, subscribe, json.dumps(said))


def _filled(patterns: list[str], c: Credential) -> tuple[str, ...]:
    """A pattern with a tag becomes one for each value of it, none without."""
    verbs = tuple(tag.removeprefix("verb:") for tag in c.tags if tag.startswith("verb:"))
    filled = []
    for pattern, project, see, verb in product(patterns, c.projects or ("",), c.classifications or ("",), verbs or ("",)):
        text = pattern.replace("{{tag(project)}}", project).replace("{{tag(see)}}", see).replace("{{tag(verb)}}", verb)
        text = text.replace("{{subject()}}", c.key)
        if ".." not in text:
            filled.append(text)
    return tuple(dict.fromkeys(filled))
