"""The registry of signing keys where several gatekeepers may serve: the owner keeps the newest one in the stream OWNER_<shard>.

    owner.<shard>.registry   the registry's JWT

Invariant: a registry that was acknowledged to the home is there for the next owner; one counts only when a signing key of the
operator signed it, and one that is older than what a gatekeeper has is not taken back.
"""

from __future__ import annotations

import os

import msgspec
from nats.aio.client import Client

from bus.errors import ConfigError
from bus.identity import verify_jwt, verify_registry
from gate.ledger.jetstream import ApiError, Unanswered, last_of, request
from gate.paths import Paths
from gate.refusals import Refused


class _Ack(msgspec.Struct):
    error: ApiError | None = None


async def publish_registry(nc: Client, shard: int, jwt: str) -> None:
    """Keep it for the next owner, unless a newer one is there. Refused (ledger_unreachable) when the servers don't confirm it."""
    subject = f"owner.{shard}.registry"
    try:
        seq, there = await last_of(nc, f"OWNER_{shard}", subject) or (0, b"")
        if there and _newer(there.decode(), jwt):
            return
        headers = {"Nats-Expected-Last-Subject-Sequence": str(seq)}
        ack = msgspec.json.decode(await request(nc, subject, jwt.encode(), headers=headers), type=_Ack)
    except (Unanswered, msgspec.MsgspecError):
        raise Refused("ledger_unreachable") from None
    if ack.error is not None:  # another was faster, or there is no leader now: the home asks again
        raise Refused("ledger_unreachable")


def _newer(one: str, other: str) -> bool:
    return verify_jwt(one).issued_at > verify_jwt(other).issued_at


async def fetch_registry(nc: Client, paths: Paths) -> None:
    """Write the newest registry to this gatekeeper's own file. `ConfigError` if the one in the stream isn't the operator's."""
    there = await _latest(nc, paths.shard)
    if not there:
        return
    verify_registry(there, paths.operator_jwt.read_text().strip())
    held = paths.registry.read_text().strip() if paths.registry.exists() else ""
    if held and _newer(held, there):
        return
    new = paths.registry.with_name(f".registry.{os.getpid()}")
    new.write_text(there)
    new.replace(paths.registry)


async def _latest(nc: Client, shard: int) -> str:
    try:
        _, there = await last_of(nc, f"OWNER_{shard}", f"owner.{shard}.registry") or (0, b"")
        return there.decode()
    except (Unanswered, UnicodeDecodeError) as e:
        raise ConfigError(
            f"The registry can't be read from the servers: {e}.",
            reason="registry_unreadable",
            advice="Check the servers, then start again.",
        ) from None
