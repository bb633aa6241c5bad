"""Where the bus is, and how its servers prove who they are: URLs, the CA that is believed, the options of a nats-py connection.

Invariant: with a CA file or a `tls://` URL nothing is sent to a server that doesn't prove its name by TLS. nats-py alone would
follow a server that says it has no TLS, so whoever sits on the line could switch it off.
"""

from __future__ import annotations

import base64
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from .errors import ConfigError
from .identity import Credential, Keypair, parse_creds
from .limits import RECONNECT_FIRST_S
from .subjects import inbox

URL_VARIABLE: Final = "CORDON_URL"
CA_VARIABLE: Final = "CORDON_CA"
SERVERS_MAX: Final = 16
TROUBLE_AGAIN_S: Final = 60.0
KEPT_PING_S: Final = 5  # of the home's own processes: a connection that died without a word is made anew in 15 s, not six minutes
SERVER_VERSION_MIN: Final = (2, 12, 7)  # older ones let a leaf node spoof Nats-Request-Info
_SCHEMES: Final = {"nats": False, "tls": True, "ws": False, "wss": True}  # whether it says TLS


class NoTls(nats.errors.Error):
    """A server that should prove its name offers no TLS."""

    def __str__(self) -> str:
        return "nats: the server offers no TLS, which this address or a CA file asks for"


class _QuietEnd(logging.Filter):
    """asyncio warns at each end of a connection that nats-py has turned into a TLS one: nothing that anybody could mend."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "eof_received() has no effect when using ssl" not in str(record.msg)


class _ClosingClient(Client):
    """Ends connections that failed. nats-py drops a try to connect with its socket open, and waits for a dead peer's goodbye."""

    async def _connect_to_server(self, s: Any) -> None:  # nats-py has no public place for it either
        """A try that failed is closed before the next."""
        if self._transport:
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def _process_op_err(self, e: Exception) -> None:  # nor here
        """What failed is dropped at once: over TLS it would wait half a minute."""
        writer = getattr(self._transport, "_io_writer", None)  # a WebSocket has none
        if writer is not None and not (self.is_closed or self.is_reconnecting):
            writer.transport.abort()
        await super()._process_op_err(e)


class _ProvingClient(_ClosingClient):
    """Says nothing to a server without TLS. A CONNECT is the first that a client sends, on every connection."""

    def _connect_command(self) -> bytes:  # nats-py has no public place for it; a test holds on to this one
        if not self._server_info.get("tls_required"):
            raise NoTls
        command: bytes = super()._connect_command()
        return command


_QUIET_END: Final = _QuietEnd()  # one, so that adding it again changes nothing


@dataclass(frozen=True)
class Servers:
    """One cluster: any of `urls` will do. `tls` None = plain connections are meant (loopback)."""

    urls: tuple[str, ...]
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return ",".join(self.urls)

    def client(self) -> Client:
        """A client, not yet connected, that these servers' proofs satisfy."""
        if self.tls is None or self.urls[0].startswith("ws"):
            return _ClosingClient()
        logging.getLogger("asyncio").addFilter(_QUIET_END)
        return _ProvingClient()

    def options(self, credential: Credential) -> dict[str, Any]:
        """What the client's `connect` is to be called with: servers, TLS and who one is."""
        keypair = Keypair(credential.seed)
        return {
            "servers": list(self.urls),
            "tls": self.tls,
            "user_jwt_cb": credential.jwt.encode,
            "signature_cb": lambda nonce: base64.b64encode(keypair.sign(nonce.encode())),
        }

    async def kept(self, creds: Path, name: str) -> Client:
        """A connection of one of the home's own processes: it comes back by itself for ever. `name` is what the servers list.

        It waits for a server at the start, too. `ConfigError` for credentials that can't be read.
        """
        credential = parse_creds(creds.read_text())  # noqa: ASYNC240 - once, at the start
        client = self.client()
        await client.connect(
            **self.options(credential),
            inbox_prefix=inbox(credential.key).encode(),
            error_cb=Troubles(logging.getLogger(name)).told,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_FIRST_S,  # type: ignore[arg-type]  # seconds of any kind, it sleeps for them
            ping_interval=KEPT_PING_S,
            name=name,
        )
        return client


class Troubles:
    """`told` is an `error_cb` that logs what is wrong with a connection: the same trouble again only after `TROUBLE_AGAIN_S`.

    A server that is away is tried four times a second: every try in the log would fill a disk overnight.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._said, self._again_at = "", 0.0

    async def told(self, error: Exception) -> None:
        text, now = str(error) or type(error).__name__, self._clock()
        if text != self._said or now >= self._again_at:
            self._said, self._again_at = text, now + TROUBLE_AGAIN_S
            self._log.warning("broker: %s", text)


def servers(url: str | Sequence[str], ca_file: str | None = None) -> Servers:
    """The servers named in `url`: one, several, or several in one string with commas between.

    `ca_file`: PEM of a private CA; without it those of the system are believed. `ConfigError` (url_missing, url_invalid,
    ca_invalid).
    """
    text = url.split(",") if isinstance(url, str) else list(url)
    urls = tuple(stripped for part in text if (stripped := part.strip()))
    if not urls:
        raise ConfigError(
            "No address of the bus was given.",
            reason="url_missing",
            advice=f"Start the home with `cordon up`, give url= or set {URL_VARIABLE} (nats://host:port).",
        )
    says_tls = [_says_tls(one) for one in urls]
    websockets = {one.startswith("ws") for one in urls}
    wants_tls = bool(ca_file) or any(says_tls)
    if len(urls) > SERVERS_MAX or len(websockets) > 1 or (websockets == {True} and wants_tls and not all(says_tls)):
        raise _not_a_url("These addresses can't be servers of one bus.")
    return Servers(urls, _context(ca_file) if wants_tls else None)


def _says_tls(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if parts.scheme in _SCHEMES and parts.hostname and parts.port != 0:
            return _SCHEMES[parts.scheme]
    except ValueError:
        pass
    raise _not_a_url("The address of the bus is not a URL.")


def _not_a_url(message: str) -> ConfigError:
    advice = "Write it as nats://host:port; several servers of one cluster with commas between."
    return ConfigError(message, reason="url_invalid", advice=advice)


def _context(ca_file: str | None) -> ssl.SSLContext:
    """Verifies the server's chain and its name (the library's default)."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as e:
        raise ConfigError(
            f"The CA file {ca_file} can't be read: {e}.",
            reason="ca_invalid",
            advice="Give the PEM file of the CA that signed the servers.",
        ) from None
