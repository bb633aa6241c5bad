"""The JetStream API as the ledger uses it: raw requests, so that the subjects a gatekeeper's key needs stand in one file.

Invariant: an answer is an answer. A time-out, a lost connection or a broker without responders is `Unanswered`: it says nothing
about whether the request was carried out.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, Final

import msgspec
from nats import errors as nats_errors
from nats.aio.client import Client

from bus.errors import Closed

from .errors import LedgerWentBack

API_TIMEOUT_S: Final = 3.0
LINK_POLL_S: Final = 0.1  # how soon a request on a lost connection is given up
_STREAM_NOT_FOUND, _MESSAGE_NOT_FOUND = 10059, 10037
_ALREADY_GONE: Final = frozenset({10037, 10043, 10057})  # of a delete: no such message, sequence not found, already deleted


class Unanswered(Exception):
    """Nothing came back. Ask again, or look."""


class StreamMissing(LedgerWentBack):
    """The broker has no such stream."""


class ApiError(msgspec.Struct, frozen=True):
    """`code` is HTTP-like, `err_code` JetStream's own."""

    code: int = 0
    err_code: int = 0
    description: str = ""

    def __str__(self) -> str:
        return f"{self.err_code} {self.description}"


class StreamState(msgspec.Struct, frozen=True):
    """`first` and `last` are sequences; an empty stream has first = last + 1, or 0. `identity`: metadata["cordon"] or ""."""

    first: int
    last: int
    messages: int
    bytes: int
    max_bytes: int
    created: str
    identity: str
    name: str = ""
    max_age_ms: int = 0  # 0 = kept for ever
    replicas: int = 1


class _State(msgspec.Struct):
    first_seq: int
    last_seq: int
    messages: int
    bytes: int


class _Config(msgspec.Struct):
    max_bytes: int = -1
    max_age: int = 0
    num_replicas: int = 1
    metadata: dict[str, str] = {}


class _Message(msgspec.Struct):
    data: str = ""
    seq: int = 0


class _Answer(msgspec.Struct):
    error: ApiError | None = None
    state: _State | None = None
    config: _Config = msgspec.field(default_factory=_Config)
    created: str = ""
    message: _Message | None = None
    num_pending: int = 0


_decode = msgspec.json.Decoder(_Answer).decode


async def request(
    nc: Client, subject: str, payload: bytes, *, timeout_s: float = API_TIMEOUT_S, headers: dict[str, str] | None = None
) -> bytes:
    """One request, one answer. `Unanswered` when none came; `Closed` when none can come any more on this connection.

    nats-py leaves a request pending when its connection drops, until the time-out: the task is there to give up at once.
    """
    if nc.is_closed or nc.is_draining:
        raise Closed("The connection to the broker is closed.", advice="Connect again; what was in flight is found by replay.")
    if not nc.is_connected:
        raise Unanswered(f"{subject}: not connected")
    reconnects = nc.stats["reconnects"]
    task = asyncio.ensure_future(nc.request(subject, payload, timeout=timeout_s, headers=headers))
    try:
        while not (await asyncio.wait({task}, timeout=LINK_POLL_S))[0]:
            if not nc.is_connected or nc.stats["reconnects"] != reconnects:
                raise Unanswered(f"{subject}: the connection was lost")
        return task.result().data
    except nats_errors.Error as e:
        raise Unanswered(f"{subject}: {e}") from e
    finally:
        task.cancel()


async def _api(nc: Client, verb: str, body: dict[str, Any] | None = None) -> _Answer:
    raw = await request(nc, f"$JS.API.{verb}", b"" if body is None else json.dumps(body).encode())
    try:
        return _decode(raw)
    except msgspec.MsgspecError as e:
        raise Unanswered(f"{verb}: a foreign answer ({e})") from e


def _check(stream: str, error: ApiError | None) -> None:
    """Raise what an API error means for a question about `stream`: it isn't there, or the broker can't or won't tell."""
    if error is not None and error.err_code == _STREAM_NOT_FOUND:
        raise StreamMissing(f"Stream {stream} doesn't exist on this broker.")
    if error is not None:
        raise Unanswered(str(error))


async def stream_state(nc: Client, stream: str) -> StreamState:
    """The stream as the broker sees it now. `LedgerWentBack` if it doesn't exist, `Unanswered` if nobody tells."""
    answer = await _api(nc, f"STREAM.INFO.{stream}")
    _check(stream, answer.error)
    if answer.state is None:
        raise Unanswered(f"STREAM.INFO.{stream}: no state in the answer")
    s, c = answer.state, answer.config
    return StreamState(
        s.first_seq,
        s.last_seq,
        s.messages,
        s.bytes,
        c.max_bytes,
        answer.created,
        c.metadata.get("cordon", ""),
        stream,
        c.max_age // 1_000_000,
        c.num_replicas,
    )


async def stored(nc: Client, stream: str, seq: int) -> bytes | None:
    """The payload at `seq`, asked of the stream's leader; None if there's nothing."""
    answer = await _api(nc, f"STREAM.MSG.GET.{stream}", {"seq": seq})
    if answer.error is not None and answer.error.err_code == _MESSAGE_NOT_FOUND:
        return None
    _check(stream, answer.error)
    return base64.b64decode(answer.message.data) if answer.message else None


async def last_of(nc: Client, stream: str, subject: str) -> tuple[int, bytes] | None:
    """(sequence, payload) of the newest message of a subject, asked of the stream's leader; None if there's none."""
    answer = await _api(nc, f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    if answer.error is not None and answer.error.err_code == _MESSAGE_NOT_FOUND:
        return None
    _check(stream, answer.error)
    return (answer.message.seq, base64.b64decode(answer.message.data)) if answer.message else None


async def secure_delete(nc: Client, stream: str, seq: int) -> None:
    """Overwrite a message on disk, on every replica. Harmless when it is gone already. `Unanswered` if it wasn't confirmed."""
    answer = await _api(nc, f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": False})
    if answer.error is not None and answer.error.err_code not in _ALREADY_GONE:
        _check(stream, answer.error)


async def create_consumer(nc: Client, stream: str, name: str, start: int, *, idle_s: float) -> int:
    """An ephemeral pull consumer from `start`, gone by itself after `idle_s` without a pull. Returns how many messages wait."""
    config = {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": start,
        "ack_policy": "none",
        "replay_policy": "instant",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(idle_s * 1e9),
    }
    answer = await _api(nc, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    _check(stream, answer.error)
    return answer.num_pending


async def pull(nc: Client, stream: str, name: str, inbox: str, *, messages: int, max_bytes: int, expires_s: float) -> None:
    """Ask for the next messages, to `inbox`. They come under the stream's subject: subscribe, don't request."""
    ask = json.dumps({"batch": messages, "max_bytes": max_bytes, "expires": int(expires_s * 1e9)}).encode()
    try:
        await nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", ask, reply=inbox)
    except nats_errors.Error as e:
        raise Unanswered(str(e)) from e


async def delete_consumer(nc: Client, stream: str, name: str) -> None:
    await _api(nc, f"CONSUMER.DELETE.{stream}.{name}")
