"""Snapshots by the clock, as `[snapshots]` of cordon.toml says: one is made when the newest is older than `every`, and of those
that were made so the newest `keep` stay. What a person made is left alone.

The supervisor of a home that serves looks now and then and starts `python -m broker_config.scheduled`. What was missed while the
home was down is caught up once, for only the newest counts. A failure is told in `cordon status` until one succeeds, a registry
that was damaged before until it is mended.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bus.errors import CordonError

from .home import Home
from .processes import spawn, stop_child
from .status import Problem, utc

PREFIX: Final = "auto-"
LOOK_S: Final = 30.0
RETRY_S: Final = 600.0  # after a failure
STOP_S: Final = 2.0
LOG: Final = "snapshots"
EXIT_INCOMPLETE: Final = 5  # it is whole, but for what was damaged in the home before
INCOMPLETE: Final = "snapshot_incomplete"
_LINE_BYTES: Final = 2_048


class Scheduled:
    """One home's schedule. Times of `tick` are seconds of any one clock, `clock` is unix time."""

    def __init__(self, home: Home, clock: Callable[[], float] = time.time, look_s: float = LOOK_S) -> None:
        self.home, self._clock, self._look_s = home, clock, look_s
        self._child: subprocess.Popen[bytes] | None = None
        self._next = 0.0
        self.problem: Problem | None = None

    def tick(self, now: float) -> None:
        """Bury a run that has ended; start one if it is time. Never waits."""
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return
            self._child = None
            self.problem = self._problem(code) if code else None
            self._next = now + (RETRY_S if code else self._look_s)
        elif now >= self._next:
            self._next = now + self._look_s
            if self.problem is not None and self.problem.reason == INCOMPLETE and _mended(self.home):
                self.problem = None
            if due(self.home, self._clock()):
                command = [sys.executable, "-P", "-m", "broker_config.scheduled", "--home", str(self.home.path)]
                self._child = spawn(command, self.home.log(LOG))

    def stop(self) -> None:
        if self._child is not None:
            stop_child(self._child, STOP_S)
            self._child = None

    def _problem(self, code: int) -> Problem:
        log = self.home.log(LOG)
        said = log.read_bytes()[-_LINE_BYTES:].decode(errors="replace").strip().splitlines() if log.exists() else []
        why = said[-1] if said else f"It ended with {code}."
        if code == EXIT_INCOMPLETE:
            return Problem(
                reason=INCOMPLETE,
                message=f"The scheduled snapshot has a fault that the home has: {why}",
                advice="`cordon doctor` says how to mend it; then make another with `cordon snapshot create`.",
            )
        return Problem(
            reason="snapshot_failed",
            message=f"The scheduled snapshot failed: {why}",
            advice=f"It is tried again every {RETRY_S / 60:g} minutes; see {log}.",
        )


def _mended(home: Home) -> bool:
    from .snapshots import wrong_registry  # which uses the supervisor, which uses this

    return not wrong_registry(home.trust)


def due(home: Home, now: float) -> bool:
    """Whether the newest snapshot of this home is older than its schedule allows. False where there is no schedule."""
    from .snapshots import Snapshots, operator_of  # which uses the supervisor, which uses this

    try:
        every_s = home.settings().snapshots.every_s
        if not every_s:
            return False
        mine = operator_of(home.operator_jwt)
        made = [c.manifest.made for c in Snapshots(home).all() if c.manifest.operator == mine]
    except (CordonError, OSError, ValueError):  # being edited, or not made yet: it is looked at again
        return False
    past = (at for at in (datetime.fromisoformat(x).timestamp() for x in made) if at <= now)
    return now >= max(past, default=0.0) + every_s  # one from the future is as none: the clock was wrong


def make(home: Home, now: float) -> tuple[list[str], list[str]]:
    """One snapshot, then the oldest of its kind go: their names, and what was damaged in the home already."""
    from .snapshots import Snapshots, wrong_registry

    name = f"{PREFIX}{datetime.fromtimestamp(now, UTC):%Y%m%dt%H%M%Sz}"
    snapshots = Snapshots(home, clock=lambda: now)
    found = wrong_registry(snapshots.create(name).files / "trust")
    return snapshots.prune(home.settings().snapshots.keep, PREFIX), found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m broker_config.scheduled", description=__doc__)
    parser.add_argument("--home", required=True, type=Path)
    now = time.time()
    try:
        gone, found = make(Home(parser.parse_args().home), now)
    except CordonError as e:
        print(e, flush=True)
        return 1
    except OSError as e:
        print(f"{e.filename or 'The folder of snapshots'}: {e.strerror}.", flush=True)
        return 1
    print(f"{utc(now, 'seconds')} made; {len(gone)} removed", flush=True)
    if found:
        print(f"{found[0]}.", flush=True)
        return EXIT_INCOMPLETE
    return 0


if __name__ == "__main__":
    sys.exit(main())
