"""What a nats-server's configuration must be like for Cordon to keep its promises. Each rule yields what is wrong, by name.

One set for all: `cordon doctor security` asks them of a home's own broker, `cordon broker check` of any server's file.
"""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from bus.errors import ConfigError
from bus.identity import OperatorNats, verify_jwt

from .server import find_server
from .server_file import Block, Value

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
LISTENERS: Final = ("leafnodes", "cluster", "gateway", "websocket", "mqtt")
MUTUAL: Final = ("cluster", "gateway")  # servers that join: each must prove itself to the other
MONITORS: Final = ("http", "http_port", "https", "https_port", "monitor_port", "profile", "prof_port")
ANONYMOUS: Final = ("no_auth_user", "authorization", "accounts", "allow_non_tls")
SYNC_ALWAYS: Final = "always"
TLS_LEAST: Final = "1.3"
EVERYTHING: Final = frozenset({">", "*", "*.>", "_INBOX.>"})  # an inbox is its owner's: the subject names the key


# --- files ------------------------------------------------------------------------------------------
def exposed(paths: Iterable[Path]) -> Iterator[str]:
    """Paths that others than the owner may read, write or enter."""
    for path in paths:
        if path.exists() and path.stat().st_mode & OTHERS:
            yield f"{path} has mode {stat.S_IMODE(path.stat().st_mode):04o}"


def key_files(block: Block) -> Iterator[Path]:
    """The files with private keys and credentials that a configuration names, wherever in it."""
    for name, value in _settings(block):
        if name in ("key_file", "credentials") and isinstance(value, str):
            yield Path(value)


def _settings(value: Value) -> Iterator[tuple[str, Value]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from _settings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _settings(inner)


# --- the program --------------------------------------------------------------------------------------
def version() -> Iterator[str]:
    """A nats-server that is missing or too old."""
    try:
        find_server()
    except ConfigError as e:
        yield e.message


# --- listeners ----------------------------------------------------------------------------------------
def listen(block: Block) -> Iterator[str]:
    """Addresses beyond loopback without TLS or with an old one, and monitoring ports beyond loopback."""
    for where, inner in [("the server", block), *((name, block.get(name)) for name in LISTENERS)]:
        if not isinstance(inner, dict):
            continue
        if where == "the server" or "listen" in inner or "port" in inner or "host" in inner:
            address = _address(inner)
            if not is_loopback(address) and "tls" not in inner:
                yield f"{where} listens on {address or 'every address'} without TLS"
        tls = inner.get("tls")
        if isinstance(tls, dict) and tls.get("min_version", "1.2") != TLS_LEAST:
            yield f"{where} takes TLS older than {TLS_LEAST}"
    for name in MONITORS:
        value = block.get(name)
        if isinstance(value, str) and not is_loopback(_host(value)):
            yield f"{name} serves {value} to whoever can reach it"


def _address(block: Block) -> str:
    listen, host = block.get("listen", ""), block.get("host", block.get("net", ""))
    return _host(str(listen)) if listen else str(host)


def _host(listen: str) -> str:
    """The host of HOST:PORT, :PORT or PORT; empty = every address."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]") if port.isdigit() or port == "-1" else listen


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def routes(block: Block) -> Iterator[str]:
    """Servers that may join without a certificate that is verified: a route sees and sends everything."""
    for name in MUTUAL:
        inner = block.get(name)
        if not isinstance(inner, dict):
            continue
        tls = inner.get("tls")
        if not isinstance(tls, dict):
            yield f"{name} has no TLS: whoever reaches it joins"
        elif tls.get("verify") != "true" or not tls.get("ca_file"):
            yield f"{name} doesn't verify who joins (verify and ca_file)"


# --- who may connect, and do what -----------------------------------------------------------------------
def anonymous(block: Block) -> Iterator[str]:
    """Settings that let somebody in without a credential of the operator's accounts."""
    yield from (f"{name} is set" for name in ANONYMOUS if name in block)
    for where in LISTENERS:
        inner = block.get(where)
        if isinstance(inner, dict):
            yield from (f"{where} has {name}" for name in ("no_auth_user", "authorization") if name in inner)
    if not isinstance(block.get("operator"), str) or not block.get("operator"):
        yield "no operator is set"


def permissions(block: Block) -> Iterator[str]:
    """Accounts that the operator has not signed, or whose keys and defaults leave permissions open."""
    if not isinstance(block.get("operator"), str):
        return  # `anonymous` says it
    signers = verify_jwt(str(block["operator"])).body("operator", OperatorNats).signing_keys
    preload = block.get("resolver_preload", {})
    for key, jwt in preload.items() if isinstance(preload, dict) else ():
        claims = verify_jwt(str(jwt))
        nats: dict[str, Any] = msgspec.json.decode(claims.nats)
        who = f"account {claims.name or key}"
        if claims.issuer not in signers or claims.subject.lower() != key.lower():
            yield f"{who} is not signed by a signing key of the operator"
        yield from (f"{who} lets any user {what}" for what in open_sides(nats.get("default_permissions", {})))
        for signing in nats.get("signing_keys", []):
            if isinstance(signing, dict):
                template = signing.get("template", {})
                yield from (f"{who}: its {signing.get('role', '')} key may {what}" for what in open_sides(template))


def open_sides(given: Mapping[str, Any]) -> Iterator[str]:
    """What a set of permissions opens to all subjects."""
    for side, verb in (("pub", "publish to"), ("sub", "subscribe to")):
        yield from (f"{verb} {subject}" for subject in given.get(side, {}).get("allow", []) if subject in EVERYTHING)


# --- durability -----------------------------------------------------------------------------------------
def sync(block: Block) -> Iterator[str]:
    """A JetStream that acknowledges before the disk has it."""
    jetstream = block.get("jetstream")
    set_to = jetstream.get("sync_interval", "2m") if isinstance(jetstream, dict) else "unset: JetStream is off"
    if set_to != SYNC_ALWAYS:
        yield f"sync_interval is {set_to}"
