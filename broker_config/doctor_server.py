"""Checks of a home's files and of its server. Each yields what is wrong, by name; nothing = all is well."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from bus.errors import ConfigError

from . import server_file
from .examined import Examined
from .server import find_server

OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
LISTENERS: Final = ("leafnodes", "cluster", "gateway", "websocket", "mqtt")
MONITORS: Final = ("http", "http_port", "https", "https_port", "monitor_port", "profile", "prof_port")
ANONYMOUS: Final = ("no_auth_user", "authorization", "accounts", "allow_non_tls")
SYNC_ALWAYS: Final = "always"


# --- files --------------------------------------------------------------------------------------------
def _exposed(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        if path.exists() and path.stat().st_mode & OTHERS:
            yield f"{path} has mode {stat.S_IMODE(path.stat().st_mode):04o}"


def secret_files(x: Examined) -> Iterator[str]:
    """Seeds and credentials that others than the owner may read or write."""
    return _exposed(x.home.secrets())


def secret_folders(x: Examined) -> Iterator[str]:
    """Folders of trust and creds that others may enter."""
    for top in (x.home.trust, x.home.creds):
        yield from _exposed([top, *(p for p in sorted(top.rglob("*")) if p.is_dir())])


def store_folders(x: Examined) -> Iterator[str]:
    """The home, ledger and projection folders that others may enter. What lies in them is as private as they are."""
    home, shards = x.home, x.home.shard(x.shard).parent
    return _exposed(
        [home.path, home.broker, home.broker_js, home.broker_jwt, shards, *sorted(shards.glob("*")), home.logs, home.run]
    )


# --- the server -----------------------------------------------------------------------------------------
def server_version(x: Examined) -> Iterator[str]:
    """A nats-server that is missing or too old."""
    try:
        find_server()
    except ConfigError as e:
        yield e.message


def server_listen(x: Examined) -> Iterator[str]:
    """Addresses beyond loopback without TLS, and monitoring ports beyond loopback."""
    plain = "tls" not in x.server
    for where, block in [("the server", x.server), *((name, x.server.get(name)) for name in LISTENERS)]:
        if not isinstance(block, dict):
            continue
        if where == "the server" or "listen" in block or "port" in block or "host" in block:
            address = _address(block)
            if not _is_loopback(address) and ("tls" not in block if where != "the server" else plain):
                yield f"{where} listens on {address or 'every address'} without TLS"
    for name in MONITORS:
        value = x.server.get(name)
        if isinstance(value, str) and not _is_loopback(_host(value)):
            yield f"{name} serves {value} to whoever can reach it"


def _address(block: server_file.Block) -> str:
    listen, host = block.get("listen", ""), block.get("host", block.get("net", ""))
    return _host(str(listen)) if listen else str(host)


def _host(listen: str) -> str:
    """The host of HOST:PORT, :PORT or PORT; empty = every address."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]") if port.isdigit() or port == "-1" else listen


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def server_anonymous(x: Examined) -> Iterator[str]:
    """Settings that let somebody in without a credential of this home."""
    yield from (f"{name} is set" for name in ANONYMOUS if name in x.server)
    if x.server.get("operator", "").__class__ is not str or not x.server.get("operator"):
        yield "no operator is set"
    elif x.server["operator"] != x.home.operator_jwt.read_text():
        yield "the operator is not this home's"


def server_sync(x: Examined) -> Iterator[str]:
    """A JetStream that acknowledges before the disk has it."""
    jetstream = x.server.get("jetstream")
    set_to = jetstream.get("sync_interval", "2m") if isinstance(jetstream, dict) else "unset: JetStream is off"
    if set_to != SYNC_ALWAYS:
        yield f"sync_interval is {set_to}"
