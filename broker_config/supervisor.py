"""`cordon up`, `down` and `status` of a home: start its supervisor process, stop it, read its state.

Invariant: the starter holds run/up.lock and hands it over with the child, so two supervisors of one home can't be, not even for a
moment; `stop` leaves no process of the home, also when the supervisor itself was killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from bus.errors import ConfigError, CordonError, Unavailable

from .home import Home, private_folder
from .processes import POLL_S, live_pid, spawn, stop_pid, try_lock, wait_reaped
from .status import PROCESSES, Status, last_status, not_serving, read_status, write_status
from .supervision import EXIT_CONFIG, GATEKEEPER_STOP_S, Supervisor

__all__ = ["Status", "last_status", "locked", "main", "read_status", "start", "stop"]

READY_TIMEOUT_S: Final = 30.0
# The supervisor itself allows the gatekeeper and then the broker this long before it kills them.
STOP_TIMEOUT_S: Final = 2 * GATEKEEPER_STOP_S + 5.0
CHILD_STOP_S: Final = GATEKEEPER_STOP_S
REAPED_S: Final = 4.0
ENDING_S: Final = 2.0  # for the lock: a killed supervisor's goes with it and with what it was just starting


# --- the lock ---------------------------------------------------------------------------------------
def _take_lock(home: Home) -> int:
    private_folder(home.run)
    fd = os.open(home.up_lock, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + ENDING_S
    while not try_lock(fd):
        if live_pid(home, "supervisor") is not None or time.monotonic() > deadline:
            os.close(fd)
            raise ConfigError(
                f"The home {home.path} is in use: it is up already.",
                reason="already_up",
                advice="See `cordon status`, or stop it with `cordon down`.",
            )
        time.sleep(POLL_S)
    return fd


def _take_lock_to_start(home: Home) -> int:
    try:
        return _take_lock(home)
    except ConfigError:
        now = read_status(home)
        if now is not None and now.state != "ready":
            raise not_serving(home, now) from None
        raise


@contextmanager
def locked(home: Home) -> Iterator[None]:
    """The whole home for oneself, for work while it is down. `ConfigError` (already_up) if it isn't."""
    fd = _take_lock(home)
    try:
        yield
    finally:
        os.close(fd)


# --- start ------------------------------------------------------------------------------------------
def start(
    home: Home,
    *,
    detach: bool,
    ready_timeout_s: float = READY_TIMEOUT_S,
    on_line: Callable[[str], None] | None = None,
    troubles_alone: bool = False,
    gatekeeper: Sequence[str] = (),
) -> Status:
    """Start the home. `on_line` gets a line for people at each change of state; with `troubles_alone` only of what goes wrong on
    the way.

    detach: return when it is ready, or degraded because the gatekeeper refuses to serve (`error` says why); all goes on.
    Not detach: return when it was stopped (Ctrl-C, SIGTERM, `cordon down`).
    Raises ConfigError (already up, port, program, exposed seeds) or Unavailable (not ready in time, died too often, or up already
    and not serving: it says why).
    """
    if home.config.exists() and home.settings().servers:
        raise ConfigError(
            f"The servers of the home {home.path} are elsewhere: {home.url}.",
            reason="servers_elsewhere",
            advice="Start them, and `cordon gate` beside them, on their machines.",
        )
    lock = _take_lock_to_start(home)
    try:
        home.status.unlink(missing_ok=True)
        argv = [sys.executable, "-P", "-m", "broker_config.supervisor", "--home", str(home.path), "--lock-fd", str(lock)]
        argv += ["--gatekeeper", json.dumps(list(gatekeeper))] if gatekeeper else []
        child = spawn(argv, home.log("supervisor"), keep=(lock,), death_signal=None if detach else signal.SIGTERM)
    finally:
        os.close(lock)
    told = _Teller(home, on_line, troubles_alone=troubles_alone)
    return _until_ready(child, home, told, ready_timeout_s) if detach else _until_stopped(child, told)


class _Teller:
    """Reports changes of status.json. `troubles_alone`: only while it starts, and only those that come with an error."""

    def __init__(self, home: Home, on_line: Callable[[str], None] | None, *, troubles_alone: bool) -> None:
        self.home, self._on_line, self._said, self._troubles_alone = home, on_line, "", troubles_alone

    def look(self) -> Status | None:
        status = last_status(self.home)
        line = "" if status is None or (self._troubles_alone and not _struggles(status)) else _line(status)
        if line and line != self._said and self._on_line is not None:
            self._on_line(line)
        self._said = line or self._said
        return status


def _struggles(status: Status) -> bool:
    return status.state == "starting" and status.error is not None


def _line(status: Status) -> str:
    text = f"{status.state}: {status.url}"
    return text if status.error is None else f"{text} ({status.error.message} {status.error.advice})"


def _until_ready(child: subprocess.Popen[bytes], home: Home, teller: _Teller, timeout_s: float) -> Status:
    deadline = time.monotonic() + timeout_s
    while True:
        ended = child.poll()
        status = teller.look()
        if ended is not None:
            raise _failure(ended, status, home)
        if status is not None and status.state in ("ready", "degraded"):
            child.returncode = 0  # it goes on without us: no complaint when this object is dropped
            return status
        if time.monotonic() > deadline:
            child.terminate()
            child.wait()
            raise Unavailable(
                f"The home was not ready within {timeout_s:g} s and was stopped.", reason="not_ready", advice=f"See {home.logs}."
            )
        time.sleep(POLL_S)


def _until_stopped(child: subprocess.Popen[bytes], teller: _Teller) -> Status:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: child.terminate()) for number in numbers]
    try:
        while child.poll() is None:
            teller.look()
            time.sleep(POLL_S)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    status = teller.look()
    if child.returncode != 0 or status is None:
        raise _failure(child.returncode, status, teller.home)
    return status


def _failure(code: int, status: Status | None, home: Home) -> CordonError:
    error = status.error if status is not None else None
    if error is None:
        return Unavailable(
            f"The supervisor ended with {code}.", reason="supervisor_failed", advice=f"See {home.log('supervisor')}."
        )
    kind = ConfigError if code == EXIT_CONFIG else Unavailable
    return kind(error.message, reason=error.reason, advice=error.advice)


# --- stop -------------------------------------------------------------------------------------------
def stop(home: Home) -> list[str]:
    """Stop every process of the home and return their names; empty if none ran. Works also when the supervisor was killed."""
    pids = {name: pid for name in PROCESSES if (pid := live_pid(home, name)) is not None}
    for name in PROCESSES:  # the supervisor first, or it would start the others again
        pid = live_pid(home, name)
        if pid is not None:
            stop_pid(pid, home, STOP_TIMEOUT_S if name == "supervisor" else CHILD_STOP_S)
        home.pid_file(name).unlink(missing_ok=True)
    home.gatekeeper_ready.unlink(missing_ok=True)
    last = last_status(home)
    if last is not None and last.pids:
        write_status(home, msgspec.structs.replace(last, state="stopped", pids={}))
    wait_reaped(pids.values(), REAPED_S)
    return list(pids)


# --- the process ------------------------------------------------------------------------------------
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m broker_config.supervisor", description="Supervises one Cordon home.")
    parser.add_argument("--home", required=True, type=Home)
    parser.add_argument("--lock-fd", type=int, help="an open, locked run/up.lock that the starter hands over")
    parser.add_argument("--gatekeeper", type=json.loads, default=[], help="JSON list: a command to run as the gatekeeper")
    args = parser.parse_args(argv)
    try:
        lock = _take_lock(args.home) if args.lock_fd is None else args.lock_fd
    except ConfigError as e:
        print(e, file=sys.stderr)
        return EXIT_CONFIG
    try:
        return Supervisor(args.home, args.gatekeeper).run()
    finally:
        os.close(lock)


if __name__ == "__main__":
    sys.exit(main())
