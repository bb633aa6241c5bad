"""Keeps a home's processes running: starts them in order, restarts what died, gives up when that doesn't help.

Invariants: the holder of run/up.lock is the only supervisor of a home; the gatekeeper is started only when the broker greets and
the streams are those that the home made; one that refused to serve is left alone; a process beside these (BESIDE) that keeps
dying is left alone too, and the home serves on; what ends the supervisor ends its children. A full disk ends nothing: there will
be room again, and then a broker that got stuck on it is started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import anyio
import msgspec

from bus.errors import ConfigError, CordonError, Unavailable

from .control import Control
from .followed import Followed
from .home import Home
from .ledger_room import LedgerRoom
from .processes import read_pid, spawn, stop_child, write_pid
from .scheduled import Scheduled
from .server import start_server, stop_server
from .status import Problem, State, Status, utc, write_status
from .trust import Trust

TICK_S: Final = 0.05
GATEKEEPER_STOP_S: Final = 10.0
BESIDE_STOP_S: Final = 2.0
EXIT_REFUSED_TO_SERVE: Final = 65  # the gatekeeper's own: it wrote run/gatekeeper.error and a restart can't help
FULL_FREE_BYTES: Final = 16 << 20  # a disk with less is full …
FULL_FREE_SHARE: Final = 0.01  # … a small one with less than this
UNSTICK_AGAIN_S: Final = 15.0  # between two starts of a broker that stores nothing
EXIT_CONFIG: Final = 2
EXIT_GAVE_UP: Final = 6
# One thread each for BLAS and the tokeniser: two collapse under contention (measured).
GATEKEEPER_ENV: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class Restarts:
    """When to start a process again. Times in seconds of any one clock."""

    first_s: float = 0.5
    most_s: float = 10.0
    deaths_max: int = 5
    window_s: float = 60.0
    _deaths: deque[float] = field(default_factory=deque)
    _delay_s: float = 0.0

    def died(self, now: float) -> float | None:
        """Seconds to wait before the next start, doubled from death to death; None = `deaths_max` within the window, give up."""
        if self._deaths and now - self._deaths[-1] > self.window_s:
            self._delay_s = 0.0
        self._deaths.append(now)
        while now - self._deaths[0] > self.window_s:
            self._deaths.popleft()
        if len(self._deaths) >= self.deaths_max:
            return None
        self._delay_s = min(self.most_s, 2 * self._delay_s or self.first_s)
        return self._delay_s


class GaveUp(Unavailable):
    """A process died too often."""


def gatekeeper_command(home: Home, shard: int = 0) -> list[str]:
    """As cordon.toml says now. -P: a folder named `gate` or `bus` where the user happens to stand is not what is meant."""
    command = [sys.executable, "-P", "-m", "gate", "--home", str(home.path), "--shard", str(shard)]
    settings = home.settings()
    quotas = [x for name, number in settings.quotas.items() for x in ("--quota", f"{name}={number}")]
    flags = [flag for flag, on in (("--no-rates", not settings.rates), ("--read-only", settings.read_only)) if on]
    clock = ["--clock", settings.clock] if settings.clock else []
    return [*command, *quotas, *flags, *clock]


def issuer_command(home: Home) -> list[str]:
    return [sys.executable, "-P", "-m", "broker_config.issuer_process", "--home", str(home.path)]


def janitor_command(home: Home, shard: int = 0) -> list[str]:
    return [sys.executable, "-P", "-m", "gate.janitor", "--home", str(home.path), "--shard", str(shard)]


# What runs beside, with a key of its own: the home serves without it.
BESIDE: Final[dict[str, Callable[[Home], list[str]]]] = {"issuer": issuer_command, "janitor": janitor_command}
_STARTED: Final = ("broker", "gatekeeper", *BESIDE)  # in this order


class Supervisor:
    """Runs in the main thread of its own process: it takes signals, and its children die with that thread."""

    def __init__(self, home: Home, command: Sequence[str] = (), restarts: Restarts | None = None) -> None:
        self.home = home
        self._command = list(command)
        given = restarts or Restarts()
        self._restarts = {name: Restarts(given.first_s, given.most_s, given.deaths_max, given.window_s) for name in _STARTED}
        self._start_at = dict.fromkeys(_STARTED, 0.0)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._refused: Problem | None = None  # why the gatekeeper isn't to be started
        self._error: Problem | None = None
        self._left: dict[str, Problem] = {}  # what runs beside and is not started again, and why
        self._scheduled = Scheduled(home)
        self._room = LedgerRoom(home)
        self._followed = Followed(home)
        self._was_ready = False
        self._unstick_at = 0.0
        self._shown: Status | None = None
        self._url = ""  # as cordon.toml said at the start: whoever edits that file under a running home stops nothing
        self._stop = threading.Event()

    def run(self) -> int:
        """Blocks until stopped. The exit code: 0 on request, 2 the home can't be started, 6 gave up. The lock is the caller's."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        code = 0
        try:
            self._prepare()
            self._start_broker()
            while not self._stop.is_set():
                self._show(self._tick())
                self._stop.wait(TICK_S)
        except CordonError as e:
            self._error = Problem.of(e)
            code = EXIT_CONFIG if isinstance(e, ConfigError) else EXIT_GAVE_UP
            self._log(f"ends: {e}")
        finally:
            self._end()
        return code

    # --- life and death
    def _prepare(self) -> None:
        self.home.create()
        self._url = self.home.url
        self.home.check_private()
        Trust(self.home, time.time).create()
        self._follow(self._followed.before_start)
        write_pid(self.home.pid_file("supervisor"), os.getpid())
        self._show("starting")

    def _tick(self) -> State:
        """What it found: where that is ready, what runs beside was started, too."""
        for name in _STARTED:
            self._bury(name)
        now = time.monotonic()
        self._unstick(now)
        if "broker" not in self._children and now >= self._start_at["broker"]:
            self._try("broker")
        wanted = "gatekeeper" not in self._children and "broker" in self._children and self._refused is None
        if wanted and now >= self._start_at["gatekeeper"]:
            self._try("gatekeeper")
        state = self._state()
        ready = state == "ready"  # they don't compete with a start, and are there when it is over
        for name in BESIDE:
            if ready and name not in self._children and name not in self._left and now >= self._start_at[name]:
                self._start_beside(name)
        if ready:
            self._scheduled.tick(now)
            if said := self._room.tick(now):
                self._log(said)
            self._follow(lambda: self._followed.tick(now))
        return state

    def _follow(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (CordonError, OSError, ValueError) as e:
            self._log(f"what the home that this one was made of has revoked can't be taken over yet: {e}")

    def _unstick(self, now: float) -> None:
        """After its disk was full a broker stores nothing until it is started again, whatever room there is by then."""
        if now < self._unstick_at or not self.home.broker_stuck.exists() or self._disk_full():
            return
        self.home.broker_stuck.unlink(missing_ok=True)
        if broker := self._children.pop("broker", None):
            self._unstick_at = now + UNSTICK_AGAIN_S
            self._log("The broker answers and stores nothing. Starting it again.")
            broker.kill()  # a stop in good order would write down the sequence of the message that it didn't store
            stop_server(broker, self.home)

    def _disk_full(self) -> bool:
        try:
            found = os.statvfs(self.home.path)
        except OSError:
            return False
        free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        return free < min(FULL_FREE_BYTES, size * FULL_FREE_SHARE)

    def _try(self, name: str) -> None:
        """Start it; a start that fails counts as a death, a gatekeeper that may not start as a refusal."""
        try:
            (self._start_broker if name == "broker" else self._start_gatekeeper)()
        except CordonError as e:
            if name == "gatekeeper" and isinstance(e, ConfigError):
                self._refused = Problem.of(e)
                self._log(f"gatekeeper not started: {e}")
            else:
                self._died(name, str(e))
        except OSError as e:
            self._died(name, f"The {name} can't be started: {e.strerror or type(e).__name__}.")

    def _start_broker(self) -> None:
        self._children["broker"] = start_server(self.home)
        self._log(f"broker started, pid {self._children['broker'].pid}")

    def _start_gatekeeper(self) -> None:
        for stale in (self.home.gatekeeper_ready, self.home.gatekeeper_error):
            stale.unlink(missing_ok=True)
        anyio.run(_check_streams, self.home)
        child = spawn(self._command or gatekeeper_command(self.home), self.home.log("gatekeeper"), GATEKEEPER_ENV)
        write_pid(self.home.pid_file("gatekeeper"), child.pid)
        self._children["gatekeeper"] = child
        self._log(f"gatekeeper started, pid {child.pid}")

    def _start_beside(self, name: str) -> None:
        child = spawn(BESIDE[name](self.home), self.home.log(name))
        write_pid(self.home.pid_file(name), child.pid)
        self._children[name] = child
        self._log(f"{name} started, pid {child.pid}")

    def _bury(self, name: str) -> None:
        child = self._children.get(name)
        code = None if child is None else child.poll()
        if code is None:
            return
        del self._children[name]
        self.home.pid_file(name).unlink(missing_ok=True)
        if name == "gatekeeper" and code == EXIT_REFUSED_TO_SERVE:
            self._refused = self._read_refusal()
            self._log(f"gatekeeper refuses to serve: {self._refused.message}")
        else:
            self._died(name, f"The {name} ended with {_how(code)}.{self._last_words(name)}")

    def _died(self, name: str, what: str) -> None:
        log = self.home.log(name)
        if name not in BESIDE and self._disk_full():
            self._start_at[name] = time.monotonic() + self._restarts[name].most_s
            self._error = Problem(
                reason="disk_full", message=f"{what} The disk is full.", advice="Free disk space; it goes on by itself."
            )
            self._log(f"{what} The disk is full: waiting.")
            return
        delay = self._restarts[name].died(time.monotonic())
        policy = self._restarts[name]
        if delay is None and name in BESIDE:
            self._left[name] = Problem(
                reason=f"{name}_keeps_dying", message=f"{what} It died {policy.deaths_max} times.", advice=f"See {log}."
            )
            self._log(f"{what} It is left alone.")
            return
        if delay is None:
            raise GaveUp(
                f"The {name} died {policy.deaths_max} times within {policy.window_s:g} s; last: {what}",
                reason=f"{name}_keeps_dying",
                advice=f"See {log}, then `cordon up` again.",
            )
        self._start_at[name] = time.monotonic() + delay
        self._log(f"{what} Starting it again in {delay:g} s.")
        if name in BESIDE:
            return
        self._error = Problem(reason=f"{name}_died", message=what, advice=f"It is started again by itself; see {log}.")

    def _last_words(self, name: str) -> str:
        """What the gatekeeper wrote down before it died."""
        try:
            said = msgspec.json.decode(self.home.gatekeeper_error.read_bytes(), type=Problem).message
        except (OSError, msgspec.MsgspecError):
            return ""
        return f" {said}" if name == "gatekeeper" else ""

    def _read_refusal(self) -> Problem:
        try:
            return msgspec.json.decode(self.home.gatekeeper_error.read_bytes(), type=Problem)
        except (OSError, msgspec.MsgspecError):
            log = self.home.log("gatekeeper")
            return Problem(reason="gatekeeper_refused", message="The gatekeeper refused to serve.", advice=f"See {log}.")

    def _end(self) -> None:
        """Stop what this supervisor started, and nothing else: an orphan's pid file is what `stop` finds it by."""
        self._scheduled.stop()
        for name in BESIDE:
            if child := self._children.pop(name, None):
                stop_child(child, BESIDE_STOP_S)
                self.home.pid_file(name).unlink(missing_ok=True)
        if gatekeeper := self._children.pop("gatekeeper", None):
            stop_child(gatekeeper, GATEKEEPER_STOP_S)
            self.home.pid_file("gatekeeper").unlink(missing_ok=True)
            self.home.gatekeeper_ready.unlink(missing_ok=True)
        if broker := self._children.pop("broker", None):
            stop_server(broker, self.home)
        self.home.pid_file("supervisor").unlink(missing_ok=True)
        self._show("stopped")

    # --- what it shows
    def _state(self) -> State:
        if self._refused is not None:
            return "degraded"
        child = self._children.get("gatekeeper")
        if "broker" in self._children and child is not None and read_pid(self.home.gatekeeper_ready) == child.pid:
            self._was_ready, self._error = True, None
            return "ready"
        return "degraded" if self._was_ready else "starting"

    def _show(self, now: State) -> None:
        """Write status.json if anything in it changed."""
        pids = {} if now == "stopped" else {"supervisor": os.getpid(), **{name: c.pid for name, c in self._children.items()}}
        same = self._shown is not None and self._shown.state == now
        since = self._shown.since if self._shown is not None and same else utc(time.time())
        beside = iter(self._left.values())
        status = Status(
            url=self._url,
            pids=pids,
            state=now,
            since=since,
            error=self._refused or self._error or next(beside, None) or self._room.problem or self._scheduled.problem,
        )
        if status != self._shown:
            try:
                write_status(self.home, status)
            except OSError:
                return  # a full disk: with the next tick
            if not same:
                self._log(f"state {now}")
            self._shown = status

    def _log(self, line: str) -> None:
        with suppress(OSError):  # a full disk
            print(f"{utc(time.time())} {line}", flush=True)


async def _check_streams(home: Home) -> None:
    async with Control(home) as control:
        await control.ensure_streams()


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
