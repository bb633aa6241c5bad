"""Connections of the home's own tools (admin, system) to its broker: short-lived, never reconnecting, bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.client import Client
from nats.errors import Error as NatsError

from bus.errors import ConfigError, Unavailable
from bus.identity import Credential, parse_creds
from bus.limits import CONNECT_TIMEOUT_S
from bus.servers import servers
from bus.subjects import inbox


@asynccontextmanager
async def connected(url: str, creds: Path, ca_file: str | None = None) -> AsyncIterator[Client]:
    """A connection with the credentials in `creds`, closed on exit. `Unavailable` if the broker isn't there or refuses them.

    Each server has `CONNECT_TIMEOUT_S`: left alone, nats-py tries each sixty times, two seconds apart, before it says so.
    """
    credential, where = _credential(creds), servers(url, ca_file)
    client = where.client()
    try:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S * len(where.urls)):
                await client.connect(
                    **where.options(credential),
                    inbox_prefix=inbox(credential.key).encode(),
                    connect_timeout=int(CONNECT_TIMEOUT_S),
                    allow_reconnect=False,
                    error_cb=_ignore,
                )
        except (NatsError, OSError) as e:  # a TimeoutError is an OSError
            raise Unavailable(
                f"The broker at {where} can't be reached ({type(client.last_error or e).__name__}).",
                reason="broker_unreachable",
                advice="See whether its server runs; `cordon up` starts a home's own.",
            ) from None
        yield client
    finally:
        await client.close()  # also after a refused connect, which leaves a socket open


async def _ignore(error: Exception) -> None:
    """The request that caused an asynchronous error times out by itself; nats-py would print a traceback."""


def _credential(creds: Path) -> Credential:
    try:
        return parse_creds(creds.read_text())
    except OSError:
        raise ConfigError(
            f"{creds} can't be read.", reason="creds_missing", advice="Run this as the owner of the home."
        ) from None
