"""Connections of the home's own tools (admin, system) to its broker: short-lived, never reconnecting, bounded in time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.client import Client
from nats.errors import Error as NatsError

from bus.errors import ConfigError, Unavailable
from bus.identity import parse_creds
from bus.limits import CONNECT_TIMEOUT_S
from bus.subjects import inbox


@asynccontextmanager
async def connected(url: str, creds: Path) -> AsyncIterator[Client]:
    """A connection with the credentials in `creds`, closed on exit. `Unavailable` if the broker isn't there or refuses them."""
    key, client = _own_key(creds), Client()
    try:
        try:
            await client.connect(
                url,
                user_credentials=str(creds),
                inbox_prefix=inbox(key).encode(),
                connect_timeout=int(CONNECT_TIMEOUT_S),
                allow_reconnect=False,
                error_cb=_ignore,
            )
        except (NatsError, OSError) as e:
            raise Unavailable(
                f"The broker at {url} can't be reached ({type(e).__name__}).",
                reason="broker_unreachable",
                advice="Start it with `cordon up`.",
            ) from None
        yield client
    finally:
        await client.close()  # also after a refused connect, which leaves a socket open


async def _ignore(error: Exception) -> None:
    """The request that caused an asynchronous error times out by itself; nats-py would print a traceback."""


def _own_key(creds: Path) -> str:
    try:
        return parse_creds(creds.read_text()).key
    except OSError:
        raise ConfigError(
            f"{creds} can't be read.", reason="creds_missing", advice="Run this as the owner of the home."
        ) from None
