"""A real broker without accounts, and a scripted gatekeeper on it: what the client's tests talk to.

The rim speaks the frames and remembers what it was asked. A test replaces the answer of a verb by a function of its own.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import anyio
import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from broker_config.home import free_port
from broker_config.processes import spawn, stop_child
from broker_config.server import find_server
from bus import subjects
from bus.frames import Ack, Actor, Draft, Frame, Get, MemoryRequest, OpsRequest, Query, Recall, Receipt, Synced, encode
from bus.identity import Keypair, creds_text, encode_jwt, keypair

ISSUED_AT = 1_700_000_000

Respond = Callable[[Frame | bytes], Awaitable[None]]
Answer = Callable[[Any, Respond], Awaitable[None]]


class Broker:
    """A nats-server on one port; it can be killed and started again there."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.port = free_port()
        self._folder = folder
        self._config = folder / f"server-{self.port}.conf"
        self._config.write_text(f'listen: "127.0.0.1:{self.port}"\n{config}\n')
        self._child: Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._child = spawn([str(find_server()), "-c", str(self._config)], self._folder / f"server-{self.port}.log")
        deadline = time.monotonic() + 10
        while not self._greets():
            assert time.monotonic() < deadline, "the server didn't start"
            time.sleep(0.01)

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.5) as s:
                return s.recv(5) == b"INFO "
        except OSError:
            return False

    def kill(self) -> None:
        assert self._child is not None
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        if self._child is not None:
            stop_child(self._child, 5)


@contextmanager
def broker(folder: Path, config: str = "") -> Iterator[Broker]:
    server = Broker(folder, config)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def creds(*tags: str, user: Keypair | None = None, name: str = "writer", expires_at: int | None = None) -> str:
    """The text of a credential of tenant acme, signed by a throw-away key: a broker without accounts doesn't look at it."""
    user = user or keypair("user")
    claims: dict[str, Any] = {"sub": user.public, "name": name}
    claims["nats"] = {"type": "user", "version": 2, "tags": ["tenant:acme", *tags]}
    if expires_at is not None:
        claims["exp"] = expires_at
    return creds_text(encode_jwt(claims, keypair("account"), ISSUED_AT), user)


def receipt(request: Draft, **fields: Any) -> Receipt:
    return Receipt(
        **{
            "request_id": request.request_id, "project": "p1", "id": "mem_1", "state": "active", "trust": 0.5, "trust_floor": 0.5,
            "origin": "agent_inferred", "actor": Actor(id="agt_1", name="writer"), "position": 1, **fields,
        }
    )  # fmt: skip


class Rim:
    """Answers as a gatekeeper would, from memory. `seen` are the requests in order, `stored` the receipts by idempotency key."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen: list[tuple[str, Any]] = []
        self.stored: dict[str, Receipt] = {}
        self.open_notices: list[Any] = []
        self.answers: dict[str, Answer] = {
            "write": self._write, "query": self._read, "get": self._read, "ack": self._ack, "sync": self._sync,
        }  # fmt: skip

    def requests(self, verb: str) -> list[Any]:
        return [frame for seen, frame in self.seen if seen == verb]

    async def on_message(self, msg: Msg) -> None:
        verb, key = msg.subject.split(".")[-2:]
        request = msgspec.json.decode(msg.data, type=MemoryRequest | OpsRequest)
        self.seen.append((verb, request))
        project = msg.subject.split(".")[2] if msg.subject.startswith("mem.") else ""

        async def respond(answer: Frame | bytes) -> None:
            if isinstance(answer, Frame):
                stamps = {"request_id": request.request_id, "agent": key, "project": project}
                known = {f: v for f, v in stamps.items() if not getattr(answer, f)}
                answer = encode(msgspec.structs.replace(answer, **known))
            await self.client.publish(msg.reply, answer)

        await self.answers[verb](request, respond)

    async def push(self, frame: Frame, subject: str) -> None:
        await self.client.publish(subject, encode(frame))
        await settle(self.client)

    async def _write(self, draft: Draft, respond: Respond) -> None:
        first = self.stored.get(draft.idempotency_key)
        made = receipt(draft, project="", id=f"mem_{len(self.stored)}", position=len(self.stored) + 1)
        self.stored.setdefault(draft.idempotency_key, made)
        await respond(msgspec.structs.replace(first, request_id="", duplicate=True) if first else made)

    async def _read(self, request: Query | Get, respond: Respond) -> None:
        await respond(Recall(recall_id="rec_000000000000", why_empty="nothing matched", position=len(self.stored)))

    async def _ack(self, ack: Ack, respond: Respond) -> None:
        self.open_notices = [n for n in self.open_notices if n.notice not in ack.notices]
        await respond(Synced(notices=self.open_notices))

    async def _sync(self, _sync: Frame, respond: Respond) -> None:
        await respond(Synced(notices=self.open_notices))


@asynccontextmanager
async def gatekeeper(url: str, **connect: Any) -> AsyncIterator[Rim]:
    """A rim on `url`, listening when this is entered."""
    client = await nats.connect(url, error_cb=_ignore, max_reconnect_attempts=-1, reconnect_time_wait=0, **connect)
    try:
        rim = Rim(client)
        for pattern in ("mem.>", "ops.>"):
            await client.subscribe(pattern, cb=rim.on_message)
        await settle(client)
        yield rim
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


async def _ignore(_error: Exception) -> None:
    """nats-py would log a traceback for a broken connection, which tests make on purpose."""


async def settle(client: Client) -> None:
    """Return when the broker has read all that was sent so far. One flush of nats-py overtakes what is still in its buffer."""
    await client.flush()
    await client.flush()


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for a condition, or fail."""
    with anyio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - conditions of any kind, another process's too
            await anyio.sleep(0.005)


def feed_subject(project: str = "p1", classification: str = "internal", kind: str = "memory") -> str:
    return subjects.feed("acme", project, classification, kind)
