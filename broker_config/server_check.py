"""Any nats-server's configuration against the server itself and against Cordon's rules, wherever its folder lies.

Changes nothing. A check that can't be made is a fault, never a pass.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from bus.errors import ConfigError
from bus.identity import parse_creds, verify_jwt

from . import server_file
from . import server_rules as rules
from .doctor import Check, Finding, judged
from .server import READY_TIMEOUT_S, find_server

SERVER_CONF: Final = "server.conf"
SECRETS: Final = ("*.nk", "*.key", "*.creds")


class Examined:
    """One configuration file and the folder that it lies in."""

    def __init__(self, conf: Path) -> None:
        self.conf = conf

    @cached_property
    def server(self) -> server_file.Block:
        return server_file.read(self.conf)


def accepted(x: Examined) -> Iterator[str]:
    """What the server itself says against it."""
    tried = subprocess.run(
        [find_server(), "-t", "-c", x.conf], capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False
    )  # fmt: skip
    if tried.returncode != 0:
        yield " ".join((tried.stderr or tried.stdout).strip().splitlines()[-1:]) or f"it ends with {tried.returncode}"


def secrets(x: Examined) -> Iterator[str]:
    """Keys and credentials beside the file, or named in it, that others than the owner may read."""
    beside = [path for pattern in SECRETS for path in sorted(x.conf.parent.rglob(pattern))]
    yield from rules.exposed(dict.fromkeys([*beside, *rules.key_files(x.server)]))


def stored(x: Examined) -> Iterator[str]:
    """A server that stores and acknowledges before the disk has it. A leaf node stores nothing."""
    return rules.sync(x.server) if "jetstream" in x.server else iter(())


def permissions(x: Examined) -> Iterator[str]:
    """Accounts that leave permissions open, and credentials beside the file that do."""
    yield from rules.permissions(x.server)
    for path in sorted(x.conf.parent.rglob("*.creds")):
        nats: dict[str, Any] = msgspec.json.decode(verify_jwt(parse_creds(path.read_text()).jwt).nats)
        yield from (f"{path} may {what}" for what in rules.open_sides(nats))


CHECKS: Final[tuple[Check[Examined], ...]] = (
    Check(
        "server_version", "the nats-server is one that protects who asks",
        "Install the `gate` extra anew, or set NATS_SERVER_BIN to the server that you run.", lambda x: rules.version(),
    ),
    Check("server_accepts", "the server itself accepts the configuration", "Mend what it names.", accepted),
    Check("server_listen", "every listener is on loopback, or has TLS 1.3", "Add a `tls` block with min_version 1.3.",
          lambda x: rules.listen(x.server)),
    Check("server_routes", "servers that join prove themselves", "Set verify and ca_file in the tls block of `cluster`.",
          lambda x: rules.routes(x.server)),
    Check("server_anonymous", "nobody connects without a credential of the operator's", "Take that setting out.",
          lambda x: rules.anonymous(x.server)),
    Check("server_permissions", "no account or credential is open to all subjects", "Render the folder again.", permissions),
    Check("server_sync", "an acknowledgement means on disk", "Set `sync_interval: always`.", stored),
    Check("secret_files", "keys and credentials are for their owner alone",
          "Its keys may be known: render anew, or `chmod go= FILE`.", secrets),
)  # fmt: skip


def configurations(path: Path) -> list[Path]:
    """The configuration files meant by `path`: itself, or each server.conf below it. `ConfigError` if there is none."""
    found = sorted(path.rglob(SERVER_CONF)) if path.is_dir() else [path]
    if not found or not path.exists():
        raise ConfigError(
            f"There is no {SERVER_CONF} at {path}.", reason="server_config", advice="Name a server's file, or a rendered folder."
        )
    return found


def examine(conf: Path) -> list[Finding]:
    """Every check of CHECKS with its verdict, in order."""
    x = Examined(conf)
    return [judged(check, x) for check in CHECKS]
