"""The streams of a shard: made once, at the first up of a home or by `cordon broker init`, and never again.

Invariant: a stream that is missing later, or is not the one that was made, is an error and not recreated: an empty ledger in the
place of a lost one would hide the loss.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import NotFoundError, ServerError

from bus.errors import ConfigError, Unavailable

from .home import Home, write_private

GIB = 1 << 30
STREAM_KINDS = ("LEDGER", "READS", "ERASED")
DAY_S = 86_400
DUPLICATE_WINDOW_S = 0.1  # the least the server takes: idempotency is the projection's, not the stream's
METADATA_KEY = "cordon"
LENT_KEY = "cordon.lent"  # bytes of its max_bytes that nobody set: they were lent
LENT_FROM_SHARE = 0.99  # the gatekeeper's mark and this look agree: gate/room.py
LENT_STEP_SHARE = 0.01  # of the size that a person set, 100 MiB of 10 GiB: a case of 8,192 members takes 30 KiB …
LENT_MAX_SHARE = 0.1  # … and no more than this in all
OWNER_BYTES = 64 << 20  # a lease and a registry, and room for the old beside the new


def stream_configs(shard: int, *, shared: bool = False, replicas: int = 1, reads_first: int = 1) -> list[StreamConfig]:
    """The streams, without ids. Limits: the project's defaults table. `max_age` in seconds (nats-py converts).

    shared: with the stream of the shard's owner, which several gatekeepers can be (gate/lease.py). replicas: 1, 3 or 5 servers.
    """
    ledger = _config(f"LEDGER_{shard}", f"ledger.{shard}.block")
    reads = _config(f"READS_{shard}", f"reads.{shard}.block")
    reads.max_age = 90 * DAY_S
    reads.first_seq = reads_first if reads_first > 1 else None
    erased = _config(f"ERASED_{shard}", f"erased.{shard}.*")
    erased.max_msgs_per_subject = 1
    made = [ledger, reads, erased]
    if shared:
        owner = _config(f"OWNER_{shard}", f"owner.{shard}.*")
        owner.max_msgs_per_subject, owner.discard, owner.max_bytes = 1, DiscardPolicy.OLD, OWNER_BYTES
        made.append(owner)
    for config in made:
        config.num_replicas = replicas
    return made


def _config(name: str, subject: str) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=[subject],
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,  # full = refuse, never forget
        max_bytes=10 * GIB,
        duplicate_window=DUPLICATE_WINDOW_S,
        allow_direct=True,
    )


_BYTES_MAX = 2**63 - 1  # what JetStream's own number holds


class StreamRoom(msgspec.Struct, frozen=True):
    """What a stream holds and may hold. `max_bytes` -1: without a limit. `lent`: how much of that is lent."""

    stream: str
    bytes: int
    max_bytes: int
    lent: int = 0

    @property
    def at_its_end(self) -> bool:
        return self.max_bytes > 0 and self.bytes >= LENT_FROM_SHARE * self.max_bytes


async def streams_room(client: Client, shard: int = 0, most: Mapping[str, int] = MappingProxyType({})) -> list[StreamRoom]:
    """How full each stream is, after those in `most` (by kind: ledger, reads, erased) were given so many bytes, at once.

    Raises ConfigError (stream_room) for less than a stream holds or more than the server grants; Unavailable.
    """
    js, found = client.jetstream(), []
    try:
        for kind in STREAM_KINDS:
            info = await js.stream_info(f"{kind}_{shard}")
            wanted = most.get(kind.lower())
            if wanted is not None:
                info = await _enlarge(js, info, wanted)
            found.append(_room(info))
    except (NatsError, TimeoutError) as e:
        raise _failed(e) from None
    return found


async def lend_ledger_room(client: Client, shard: int = 0) -> StreamRoom:
    """Give the ledger a hundredth more, or as many as it takes, if it is full to its last one: its room now, which is at its end
    only where nothing more may be lent.

    Raises ConfigError (stream_room) where the server has no more; Unavailable.
    """
    js = client.jetstream()
    try:
        info = await js.stream_info(f"LEDGER_{shard}")
        room = _room(info)
        size = room.max_bytes - room.lent
        step, most, lent = math.ceil(size * LENT_STEP_SHARE), int(size * LENT_MAX_SHARE), room.lent
        while lent < most and room.bytes >= LENT_FROM_SHARE * (size + lent):
            lent = min(lent + step, most)
        if lent > room.lent:
            room = _room(await _enlarge(js, info, size + lent, lent))
    except (NatsError, TimeoutError) as e:
        raise _failed(e) from None
    return room


def _room(info: StreamInfo) -> StreamRoom:
    lent = (info.config.metadata or {}).get(LENT_KEY, "0")
    return StreamRoom(info.config.name or "", info.state.bytes, info.config.max_bytes or -1, int(lent))


async def _enlarge(js: JetStreamContext, info: StreamInfo, wanted: int, lent: int = 0) -> StreamInfo:
    name, size = info.config.name or "", info.state.bytes
    if wanted <= size:
        raise _no_room(name, wanted, f"it holds {size:,} bytes")
    if wanted > _BYTES_MAX:
        raise _no_room(name, wanted, "no server has so much")
    metadata = {key: value for key, value in (info.config.metadata or {}).items() if key != LENT_KEY}
    if lent:
        metadata[LENT_KEY] = str(lent)
    try:
        return await js.update_stream(info.config.evolve(max_bytes=wanted, metadata=metadata))
    except ServerError as e:
        raise _no_room(name, wanted, f"the server says: {e.description}") from None


def _no_room(stream: str, wanted: int, why: str) -> ConfigError:
    return ConfigError(
        f"{stream} can't have {wanted:,} bytes: {why}.",
        reason="stream_room",
        advice="Name more than it holds and no more than `max_file` in the server's configuration.",
    )


def _failed(e: Exception) -> Unavailable:
    return Unavailable(f"JetStream refused or gave no answer: {e}.", reason="jetstream_failed", advice="See the broker's log.")


async def ensure_streams(
    client: Client, home: Home, shard: int = 0, *, shared: bool = False, replicas: int = 1, reads_first: int = 0
) -> dict[str, str]:
    """Stream name → the random id in its metadata. Makes the streams at the first up only; `client` is the admin's.
    `reads_first`: of a copy, the number of its first READS block. Any other home that has had tenants has had its streams.

    Raises ConfigError (stream_missing, stream_replaced) or Unavailable (JetStream doesn't answer).
    """
    marker = home.streams(shard)
    try:
        if marker.exists():
            return await _check(client.jetstream(), _known(marker))
        ids = {
            config.name or "": await _create(client.jetstream(), config, lost=not reads_first and home.had_tenants)
            for config in stream_configs(shard, shared=shared, replicas=replicas, reads_first=reads_first)
        }
    except (NatsError, TimeoutError) as e:
        raise _failed(e) from None
    write_private(marker, msgspec.json.encode(ids).decode())
    return ids


def _known(marker: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(marker.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError) as e:
        raise ConfigError(
            f"{marker} can't be read ({e}): it names the home's streams.",
            reason="streams_unknown",
            advice="Put it back from a copy. If the broker's data is this home's own, remove it: the streams there are taken.",
        ) from None


async def _create(js: JetStreamContext, config: StreamConfig, *, lost: bool) -> str:
    """Make a stream, or adopt the one that a first up made before it was killed. `lost`: one that isn't there was."""
    id_ = await _stream_id(js, config.name or "")
    if id_ is None and lost:
        raise _gone(config.name or "", "missing", "stream_missing")
    if id_ is None:
        id_ = os.urandom(16).hex()
        config.metadata = {METADATA_KEY: id_}
        await js.add_stream(config)
    return id_


async def _check(js: JetStreamContext, ids: dict[str, str]) -> dict[str, str]:
    for name, expected in ids.items():
        found = await _stream_id(js, name)
        if found != expected:
            if found is None:
                raise _gone(name, "missing", "stream_missing")
            raise _gone(name, "not the one that this home made", "stream_replaced")
    return ids


def _gone(name: str, how: str, reason: str) -> ConfigError:
    return ConfigError(
        f"Stream {name} is {how}: its content is lost or elsewhere.",
        reason=reason,
        advice="Restore broker/js from a backup. Nothing is recreated by itself, because that would hide the loss.",
    )


async def _stream_id(js: JetStreamContext, name: str) -> str | None:
    """None if there is no such stream; empty if it carries no id of ours."""
    try:
        info = await js.stream_info(name)
    except NotFoundError:
        return None
    return (info.config.metadata or {}).get(METADATA_KEY, "")
