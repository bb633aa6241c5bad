"""A broker in memory: subjects, and of JetStream what a ledger rests on. Deterministic; its faults are drawn by who owns it.

Semantics are nats-server's, to which test_broker_contract holds it: a message is stored with the next sequence, or not at all; an
expectation that doesn't fit is error 10071; a stream without room refuses (10077, discard new) and keeps what it has; deleted
sequences stay gaps; a pull consumer delivers in order. A connection is one FIFO each way: what was sent on it arrives in order
or, when it is cut, not at all; what is published while it is down leaves when it is up again, as nats-py does it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from nats import errors as nats_errors

from bus import limits
from bus.testing.transport import covers

Fate = Literal["", "lost", "unanswered", "late", "twice", "busy", "kill before", "kill after"]
Inward = Callable[["Message"], Awaitable[None]]
WRONG_LAST: Final = {"code": 400, "err_code": 10071, "description": "wrong last sequence"}
NO_ROOM: Final = {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}
NO_STREAM: Final = {"code": 404, "err_code": 10059, "description": "stream not found"}
NO_MESSAGE: Final = {"code": 404, "err_code": 10037, "description": "no message found"}
PULL_ENDED: Final = {"Status": "408", "Description": "Request Timeout"}
PULL_FULL: Final = {"Status": "409", "Description": "Batch Completed"}
LAST_ONLY: Final = ("ERASED", "OWNER")  # max_msgs_per_subject: 1, as broker_config.streams makes them
BUSY: Final = {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}


class Message(NamedTuple):
    """The shape of a message of nats-py."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None = None


class Stored(NamedTuple):
    subject: str
    data: bytes


@dataclass
class Stream:
    """`max_bytes` 0 = no limit. `last_only`: of each subject."""

    name: str
    pattern: str
    messages: dict[int, Stored] = field(default_factory=dict)
    last: int = 0
    size: int = 0
    max_bytes: int = 0
    last_only: bool = False
    proposed: int = 0  # appends that a leader without a majority has taken on, and may yet store

    def append(self, subject: str, data: bytes, headers: dict[str, str]) -> dict[str, Any]:
        """The acknowledgement, as JetStream gives it."""
        expected = headers.get("Nats-Expected-Last-Sequence")
        if expected is not None and (int(expected) != self.last or self.proposed):
            return {"error": WRONG_LAST}
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None and int(expected) != self._last_of(subject):
            return {"error": WRONG_LAST}
        if self.max_bytes and self.size + len(data) > self.max_bytes:
            return {"error": NO_ROOM}
        if self.last_only:
            self.delete(self._last_of(subject))
        self.last += 1
        self.messages[self.last] = Stored(subject, data)
        self.size += len(data)
        return {"stream": self.name, "seq": self.last}

    def append_late(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        self.proposed -= 1
        self.append(subject, data, headers)

    def delete(self, seq: int) -> bool:
        gone = self.messages.pop(seq, None)
        if gone is not None:
            self.size -= len(gone.data)
        return gone is not None

    def _last_of(self, subject: str) -> int:
        return next((seq for seq in sorted(self.messages, reverse=True) if self.messages[seq].subject == subject), 0)

    # --- the API ----------------------------------------------------------------------------------
    def info(self) -> dict[str, Any]:
        state = {
            "first_seq": min(self.messages, default=self.last + 1 if self.last else 0), "last_seq": self.last,
            "messages": len(self.messages), "bytes": self.size,
        }  # fmt: skip
        config = {"max_bytes": self.max_bytes or -1, "metadata": {"cordon": f"id of {self.name}"}, "num_replicas": 1}
        return {"state": state, "config": config, "created": "2026-05-28T00:00:00Z"}

    def get(self, ask: dict[str, Any]) -> dict[str, Any]:
        seq = int(ask["seq"]) if "seq" in ask else self._last_of(ask["last_by_subj"])
        found = self.messages.get(seq)
        if found is None:
            return {"error": NO_MESSAGE}
        return {"message": {"seq": seq, "subject": found.subject, "data": base64.b64encode(found.data).decode()}}


class Broker:
    """`fate` is asked for each message to a stream. `seen` gets what a gatekeeper publishes, in the order of the wire."""

    def __init__(self, streams: dict[str, str], chance: random.Random, latency_s: float) -> None:
        self.streams = {name: Stream(name, pattern, last_only=name.startswith(LAST_ONLY)) for name, pattern in streams.items()}
        self.chance, self.latency_s = chance, latency_s
        self.loop = asyncio.get_running_loop()
        self.connections: list[Connection] = []
        self.fate: Callable[[Connection, str], Fate] = lambda connection, stream: ""
        self.seen: Callable[[str, bytes, int], None] = lambda subject, data, wire: None
        self.wire = 0
        self._consumers: dict[str, tuple[Stream, int]] = {}
        self._inboxes: dict[str, Callable[[bytes, int], None]] = {}

    # --- clients ----------------------------------------------------------------------------------
    def listen(self, pattern: str, put: Callable[[bytes, int], None]) -> None:
        self._inboxes[pattern] = put

    def forget(self, pattern: str) -> None:
        self._inboxes.pop(pattern, None)

    def request(self, message: Message) -> bool:
        """A client's request reaches whoever serves its subject; False: nobody does, and the client is told."""
        reached = [connection.receive(message) for connection in list(self.connections)]
        return any(reached)

    def _publish(self, subject: str, data: bytes) -> bool:
        """An answer or a push of a gatekeeper; whether anybody hears it."""
        self.wire += 1
        self.seen(subject, data, self.wire)
        heard = [put for pattern, put in list(self._inboxes.items()) if covers(pattern, subject)]
        for put in heard:
            put(data, self.wire)
        asked = [connection.answer_to(subject, data) for connection in list(self.connections)]
        return bool(heard) or any(asked)

    # --- a gatekeeper's side ----------------------------------------------------------------------
    def take(self, connection: Connection, subject: str, data: bytes, headers: dict[str, str] | None, reply: str) -> None:
        """Something that has arrived on a connection."""
        if subject.startswith("$JS.API."):
            verb, _, rest = subject.removeprefix("$JS.API.").partition(".")
            self._api(connection, f"{verb}.{rest}", json.loads(data or b"{}"), reply)
            return
        stream = next((s for s in self.streams.values() if covers(s.pattern, subject)), None)
        if stream is None:
            heard = [self._publish(subject, data), self.request(Message(subject, reply, data, headers))]
            if reply and not any(heard):
                connection.no_responders(reply)
        else:
            self._append(connection, stream, Message(subject, reply, data, headers))

    def _append(self, connection: Connection, stream: Stream, m: Message) -> None:
        fate = self.fate(connection, stream.name)
        if fate == "kill before":
            connection.owner.kill_soon()
        if fate in ("lost", "kill before"):
            return
        if fate == "busy":
            connection.answer(m.reply, {"error": BUSY})
            return
        if fate == "late":
            stream.proposed += 1
            self.loop.call_later(self.chance.uniform(1, 12), stream.append_late, m.subject, m.data, m.headers or {})
            return
        ack = stream.append(m.subject, m.data, m.headers or {})
        if fate == "kill after":
            connection.owner.kill_soon()
        elif fate != "unanswered":
            connection.answer(m.reply, ack)
        if fate == "twice":
            stream.append(m.subject, m.data, m.headers or {})

    def _api(self, connection: Connection, subject: str, ask: dict[str, Any], reply: str) -> None:
        parts = subject.split(".")
        verb, name = ".".join(parts[:2]) if parts[1] != "MSG" else ".".join(parts[:3]), parts[2 if parts[1] != "MSG" else 3]
        stream = self.streams.get(name)
        if stream is None:
            connection.answer(reply, {"error": NO_STREAM})
        elif verb == "STREAM.INFO":
            connection.answer(reply, stream.info())
        elif verb == "STREAM.MSG.GET":
            connection.answer(reply, stream.get(ask))
        elif verb == "STREAM.MSG.DELETE":
            connection.answer(reply, {"success": True} if stream.delete(int(ask["seq"])) else {"error": NO_MESSAGE})
        elif verb == "CONSUMER.CREATE":
            start = int(ask["config"]["opt_start_seq"])
            self._consumers[parts[3]] = (stream, start)
            connection.answer(reply, {"num_pending": sum(1 for seq in stream.messages if seq >= start)})
        elif verb == "CONSUMER.MSG.NEXT":
            self._next(connection, parts[4], ask, reply)
        elif verb == "CONSUMER.DELETE":
            self._consumers.pop(parts[3], None)
            connection.answer(reply, {"success": True})
        else:
            raise NotImplementedError(subject)

    def _next(self, connection: Connection, name: str, ask: dict[str, Any], reply: str) -> None:
        if name not in self._consumers:
            return
        stream, start = self._consumers[name]
        there = sorted(seq for seq in stream.messages if seq >= start)
        for at, seq in enumerate(there[: int(ask["batch"])]):
            ack = f"$JS.ACK.{stream.name}.{name}.1.{seq}.{at + 1}.0.{len(there) - at - 1}"
            connection.deliver(reply, Message(stream.messages[seq].subject, ack, stream.messages[seq].data))
            self._consumers[name] = (stream, seq + 1)
        full = len(there) >= int(ask["batch"])  # else it waits, and what comes in the meantime is the next pull's
        end = Message(reply, "", b"", dict(PULL_FULL if full else PULL_ENDED))
        self.loop.call_later(0 if full else ask["expires"] / 1e9, connection.deliver, reply, end)


class _Answer(NamedTuple):
    data: bytes


class Owner(Protocol):
    """The process behind a connection."""

    def kill_soon(self) -> None: ...


class Connection:
    """What a gatekeeper uses of nats-py's client."""

    is_draining = False
    pending_data_size = 0
    max_payload = limits.PAYLOAD_BYTES_MAX

    def __init__(self, broker: Broker, owner: Owner) -> None:
        self.owner = owner
        self.is_connected, self.is_closed = True, False
        self.stats = {"reconnects": 0}
        self._broker, self._loop = broker, broker.loop
        self._subscriptions: dict[str, Inward] = {}
        self._waiting: dict[str, asyncio.Future[_Answer]] = {}
        self._buffered: list[tuple[str, bytes, dict[str, str] | None, str]] = []
        self._number = 0
        self._out_at = self._in_at = 0.0
        self._life = 0  # counts cuts: what was under way before one is lost
        self._until = float("inf")  # its process is gone: what comes later was still in its memory
        broker.connections.append(self)

    # --- nats-py's ----------------------------------------------------------------------------------
    async def request(
        self, subject: str, payload: bytes = b"", timeout: float = 0.5, headers: dict[str, str] | None = None
    ) -> _Answer:  # fmt: skip
        reply = self.new_inbox()
        future = self._waiting[reply] = self._loop.create_future()
        self._send(subject, payload, headers, reply)
        try:
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise nats_errors.TimeoutError from None
        finally:
            self._waiting.pop(reply, None)

    async def publish(self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None) -> None:
        if self.is_closed:
            raise nats_errors.ConnectionClosedError
        self._send(subject, payload, headers, reply)

    async def subscribe(self, subject: str, cb: Inward, **_: Any) -> _Subscription:
        self._subscriptions[subject] = cb
        return _Subscription(self._subscriptions, subject)

    def new_inbox(self) -> str:
        self._number += 1
        return f"_R.{id(self)}.{self._number}"

    async def flush(self, timeout: int = 10) -> None:
        await asyncio.sleep(self._broker.latency_s)

    async def close(self) -> None:
        self.is_closed, self.is_connected = True, False
        if self in self._broker.connections:
            self._broker.connections.remove(self)

    # --- the line -----------------------------------------------------------------------------------
    def _send(self, subject: str, data: bytes, headers: dict[str, str] | None, reply: str) -> None:
        if not self.is_connected:
            self._buffered.append((subject, data, headers, reply))
            return
        self._out_at = self._after(self._out_at)
        self._loop.call_at(self._out_at, self._arrive, self._life, subject, data, headers, reply)

    def _arrive(self, life: int, subject: str, data: bytes, headers: dict[str, str] | None, reply: str) -> None:
        if life == self._life and self._loop.time() <= self._until:
            self._broker.take(self, subject, data, headers, reply)

    def _after(self, last: float) -> float:
        """When what is sent now arrives: after all that was sent before."""
        return max(last + 1e-7, self._loop.time() + self._broker.chance.uniform(0.5, 1.5) * self._broker.latency_s)

    def answer(self, reply: str, body: dict[str, Any]) -> None:
        self._hand(lambda: self._answered(reply, json.dumps(body).encode()))

    def answer_to(self, reply: str, data: bytes) -> bool:
        """An answer of another, if this one has asked."""
        if reply in self._waiting:
            self._hand(lambda: self._answered(reply, data))
        return reply in self._waiting

    def _answered(self, reply: str, answer: bytes | nats_errors.Error) -> None:
        future = self._waiting.get(reply)
        if future is None or future.done():
            return
        if isinstance(answer, bytes):
            future.set_result(_Answer(answer))
        else:
            future.set_exception(answer)

    def no_responders(self, reply: str) -> None:
        self._hand(lambda: self._answered(reply, nats_errors.NoRespondersError()))

    def deliver(self, inbox: str, message: Message) -> None:
        self._hand(lambda: self._called(self._subscriptions.get(inbox), message))

    def receive(self, message: Message) -> bool:
        """A client's request, if anything here is subscribed to it; whether it is."""
        cb = next((cb for pattern, cb in self._subscriptions.items() if covers(pattern, message.subject)), None)
        if cb is not None:
            self._hand(lambda: self._called(cb, message))
        return cb is not None and self.is_connected

    @staticmethod
    def _called(cb: Inward | None, message: Message) -> None:
        """Nothing that subscribes here ever suspends."""
        if cb is not None:
            call: Any = cb(message)
            try:
                call.send(None)
            except StopIteration:
                return
            raise AssertionError("a callback of a subscription waited")

    def _hand(self, what: Callable[[], None]) -> None:
        if not self.is_connected:
            return
        self._in_at = self._after(self._in_at)
        life = self._life
        self._loop.call_at(self._in_at, lambda: what() if life == self._life else None)

    # --- faults -------------------------------------------------------------------------------------
    def stall(self, seconds: float) -> None:
        """Nothing moves for so long, then all of it comes."""
        self._out_at = self._in_at = max(self._out_at, self._in_at, self._loop.time() + seconds)

    def cut(self, seconds: float) -> None:
        """What is under way is lost; `seconds` later it is connected again."""
        if not self.is_connected:
            return
        self._life += 1
        self.is_connected = False
        self._loop.call_later(seconds, self._again)

    def _again(self) -> None:
        if self.is_closed:
            return
        self.is_connected = True
        self.stats["reconnects"] += 1
        buffered, self._buffered = self._buffered, []
        for one in buffered:
            self._send(*one)

    def drop(self) -> None:
        """Its process is gone, or it is: what is on the wire still arrives, nothing comes back."""
        self.is_closed, self.is_connected = True, False
        self._until = self._loop.time() + 2 * self._broker.latency_s
        if self in self._broker.connections:
            self._broker.connections.remove(self)


class _Subscription:
    def __init__(self, subscriptions: dict[str, Inward], subject: str) -> None:
        self._subscriptions, self._subject = subscriptions, subject

    async def unsubscribe(self) -> None:
        self._subscriptions.pop(self._subject, None)
