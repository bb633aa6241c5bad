"""One run of the gatekeeper's program that ends: a rebuild or a verification, with what it says on the way.

Invariant: the child ends with whoever started it, and what it printed last is its result or its refusal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from .home import Home
from .processes import die_with_parent, stop_child
from .server import start_server, stop_server
from .status import not_serving, read_status
from .supervision import GATEKEEPER_ENV
from .supervisor import locked

STOP_S: Final = 2.0


class Ended(NamedTuple):
    """`last`: the JSON of the last line; {} if there is none."""

    code: int
    last: dict[str, Any]


def run_gate(home: Home, *mode: str, say: Callable[[dict[str, Any]], None] = lambda _: None, keep: tuple[int, ...] = ()) -> Ended:
    """`python -m gate` in a mode that ends, beside a broker that runs. `say` is told its progress; `keep`: descriptors for it."""
    parent = os.getpid()
    said = home.settings().clock if home.config.exists() else ""
    clock = ["--clock", said] if said else []
    home.logs.mkdir(exist_ok=True)
    with home.log("gatekeeper").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "gate", "--home", str(home.path), "--shard", "0", *mode, *clock],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **GATEKEEPER_ENV, "CORDON_URL": home.url, "CORDON_CA": home.ca_file or ""},
            pass_fds=keep,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )
    last: dict[str, Any] = {}
    try:
        assert child.stdout is not None
        with child.stdout as lines:
            for line in lines:
                last = _decoded(line) or last
                if "progress" in last:
                    say(last.pop("progress"))
    finally:
        code = child.wait() if sys.exc_info()[0] is None else stop_child(child, STOP_S)
    return Ended(code, last)


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def broker_for(home: Home) -> Iterator[None]:
    """The home's broker, started for a while, where nothing of the home runs."""
    with locked(home):
        broker = start_server(home)
        try:
            yield
        finally:
            stop_server(broker, home)


def verify(
    home: Home, *, begin: int = 1, end: int = 0, account: str = "", say: Callable[[dict[str, Any]], None] = lambda _: None
) -> Ended:
    """Verify a home that is up, beside its gatekeeper, or one that is down. `begin`, `end`: blocks of the ledger, 0 = its last, a
    `begin` of -n = the newest n; `account`: one tenant alone. Raises Unavailable where a home is up and doesn't serve.

    Where the servers are elsewhere the gatekeeper there is asked, and its catalogs, which lie with it, are left out.
    """
    mode = ["--verify", "--from", str(begin), "--to", str(end), *(["--tenant", account] if account else [])]
    if home.settings().servers:
        return run_gate(home, *mode, "--live", "--elsewhere", say=say)
    now = read_status(home)
    if now is None:
        with broker_for(home):
            return run_gate(home, *mode, say=say)
    if now.state != "ready":
        raise not_serving(home, now)
    return run_gate(home, *mode, "--live", say=say)
