"""The broker in memory: subjects, permissions and the broker's word on who asks; and the client's transport over it.

Invariants: those of bus.transport. A client may live on any loop and thread: what comes for it is handed to its loop, in the
order in which the gatekeeper sent it, as over one connection.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from .. import limits
from ..errors import Closed, CordonError
from ..identity import Credential
from ..queue import FrameQueue, Gap
from ..subjects import inbox
from ..transport import Accept, check_size, unavailable, violation
from .faults import FaultPlan

R = TypeVar("R")
Put = Callable[[bytes | CordonError], None]
HEADER: Final = "Nats-Request-Info"


def covers(pattern: str, subject: str) -> bool:
    """Whether all that `subject` (perhaps a pattern too) can mean is within `pattern`: `*` is one token, a last `>` the rest."""
    wanted, given = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return i < len(given)
        if i >= len(given) or given[i] == ">" or token not in ("*", given[i]):
            return False
    return len(wanted) == len(given)


@dataclass(frozen=True)
class Permit:
    """What the broker knows of a credential: subjects it may use, and what it tells the gatekeeper about it (JSON)."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    info: str


class Message(NamedTuple):
    """A request as the gatekeeper reads it; the shape of a message of nats-py."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str]


@dataclass(frozen=True, eq=False)
class _Listening:
    patterns: tuple[str, ...]
    put: Put


class Broker:
    """One tenant's account: `mem.<tenant>.` becomes `in.0.<account>.`, `feed.<account>.` becomes `feed.<tenant>.`, and so on."""

    def __init__(self, tenant: str, account: str, deliver: Callable[[Message], None]) -> None:
        self._deliver = deliver
        self._inward = {f"mem.{tenant}.": f"in.0.{account}.", f"ops.{tenant}.": f"op.0.{account}."}
        self._outward = {f"{kind}.{account}.": f"{kind}.{tenant}." for kind in ("feed", "notice")}
        self._listening: tuple[_Listening, ...] = ()
        self._lock = threading.Lock()
        self.closed = False

    def publish(self, permit: Permit, subject: str, reply: str, data: bytes) -> None:
        """A client's request, with the broker's word on who it is."""
        self._deliver(Message(_renamed(subject, self._inward), reply, data, {HEADER: permit.info}))

    def send(self, subject: str, data: bytes) -> None:
        """The gatekeeper's answer or push, to all who listen."""
        subject = _renamed(subject, self._outward)
        for listening in self._listening:
            if any(covers(p, subject) for p in listening.patterns):
                listening.put(data)

    def listen(self, patterns: Sequence[str], put: Put) -> Callable[[], None]:
        """Hand what comes on `patterns` to `put`, on any thread. Returns what ends it."""
        mine = _Listening(tuple(patterns), put)
        with self._lock:
            self._listening = (*self._listening, mine)

        def stop() -> None:
            with self._lock:
                self._listening = tuple(x for x in self._listening if x is not mine)

        return stop

    def close(self) -> None:
        """Nobody answers any more: who waits learns it."""
        self.closed = True
        for listening in self._listening:
            listening.put(_closed())


def _renamed(subject: str, names: dict[str, str]) -> str:
    for prefix, other in names.items():
        if subject.startswith(prefix):
            return other + subject.removeprefix(prefix)
    return subject


def _closed() -> Closed:
    return Closed("The bus is closed.", reason="closed", advice="Use it inside its `with`.")


def _here(put: Put) -> Put:
    """`put` as a call from any thread: it runs on the loop that runs now. A loop that has ended wants nothing any more."""
    loop = asyncio.get_running_loop()

    def put_there(data: bytes | CordonError) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(put, data)

    return put_there


class _Reply:
    """A request that waits for its answer. The first that `accept` takes counts."""

    def __init__(self, accept: Accept[Any]) -> None:
        self.accept = accept
        self.done = anyio.Event()
        self.answer: Any = None
        self.error: CordonError | None = None

    def put(self, data: bytes | CordonError) -> None:
        if self.done.is_set():
            return
        if isinstance(data, CordonError):
            self.error = data
        else:
            self.answer = self.accept(data)
        if self.error or self.answer is not None:
            self.done.set()


class _Listener:
    """A bounded queue that the broker fills until it is closed."""

    def __init__(self, broker: Broker, patterns: Sequence[str], capacity: int, forget: Callable[[_Listener], None]) -> None:
        self._queue = FrameQueue(capacity, limits.PENDING_BYTES_MAX)
        self._forget = forget
        self._stop = broker.listen(patterns, _here(self.put))

    def put(self, data: bytes | CordonError) -> None:
        if isinstance(data, CordonError):
            self._queue.fail(data)
        else:
            self._queue.put(data)

    async def receive(self) -> bytes | Gap:
        return await self._queue.get()

    async def aclose(self) -> None:
        self._stop()
        self._forget(self)
        self.put(Closed("This subscription is closed.", reason="closed"))


class MemoryTransport:
    """A connection of one credential to the broker in memory, with the faults that a test has planned."""

    def __init__(self, broker: Broker, credential: Credential, permit: Permit, faults: FaultPlan) -> None:
        self._broker, self._credential, self._permit, self._faults = broker, credential, permit, faults
        self._waiting: set[_Reply | _Listener] = set()
        self._open = True

    async def request(self, subject: str, payload: bytes, accept: Accept[R], timeout_s: float) -> R:
        self._check_open()
        check_size(payload, limits.PAYLOAD_BYTES_MAX)
        fault = self._faults.take(subject.split(".")[-2], self._credential.name)
        kind = fault.kind if fault else ""
        if kind == "deny" or not any(covers(p, subject) for p in self._permit.publish):
            raise violation("publish", subject)
        if kind == "unavailable":
            raise unavailable("no_responders", "The gatekeeper is not there.")
        with anyio.move_on_after(timeout_s):
            answer: R = await self._answered(subject, payload, accept, copies=2 if kind == "duplicate" else 1)
            if fault and kind == "delay":
                await anyio.sleep(fault.seconds)
            if kind != "drop_reply":
                return answer
        raise unavailable("timeout", f"No answer within {timeout_s:.3g} s.")

    async def _answered(self, subject: str, payload: bytes, accept: Accept[R], copies: int) -> R:
        reply = _Reply(accept)
        to = f"{inbox(self._credential.key)}.{secrets.token_hex(8)}"
        stop = self._broker.listen([to], _here(reply.put))
        self._waiting.add(reply)
        try:
            self._check_open()  # again: from now on a close is told
            for _ in range(copies):
                self._broker.publish(self._permit, subject, to, payload)
            await reply.done.wait()
        finally:
            stop()
            self._waiting.discard(reply)
        if reply.error:
            raise reply.error
        answer: R = reply.answer
        return answer

    async def subscribe(self, subjects: Sequence[str], capacity: int) -> _Listener:
        listener = _Listener(self._broker, subjects, capacity, self._waiting.discard)
        self._waiting.add(listener)
        self._check_open()
        for subject in subjects:
            if not any(covers(p, subject) for p in self._permit.subscribe):
                listener.put(violation("subscription", subject))
        return listener

    async def aclose(self) -> None:
        self._open = False
        for waiting in list(self._waiting):
            waiting.put(_closed())

    def _check_open(self) -> None:
        if not self._open or self._broker.closed:
            raise _closed()
