"""Child processes of a home: none outlives its parent, and a pid is believed only when its command line fits.

Invariant: `stop_pid` ends nothing but a process that `is_ours` recognised a moment before.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from .home import Home, private_folder, write_private

POLL_S: Final = 0.02
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int, number: int) -> None:
    """Run in the child between fork and exec: signal `number` when the forking thread ends.

    Linux only; elsewhere an orphan is found by its pid file and ended by `stop`.
    """
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (AttributeError, OSError):
        return
    prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it died before prctl
        os._exit(1)


def spawn(
    argv: Sequence[str],
    log: Path,
    env: Mapping[str, str] | None = None,
    *,
    keep: Sequence[int] = (),
    death_signal: signal.Signals | None = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Start a child in its own session (a terminal's Ctrl-C doesn't reach it), output appended to `log`.

    keep: file descriptors handed over. death_signal: what it gets when its parent dies; None = it lives on.
    """
    parent = os.getpid()
    private_folder(log.parent)
    with log.open("ab") as out:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,
            pass_fds=keep,
            preexec_fn=None if death_signal is None else lambda: die_with_parent(parent, death_signal),
        )


def stop_child(child: subprocess.Popen[bytes], timeout_s: float) -> int:
    """SIGTERM, then SIGKILL after `timeout_s`; returns the exit code. Harmless on a child that has ended."""
    if child.poll() is None:
        child.terminate()
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def try_lock(fd: int) -> bool:
    """Lock an open file if nobody holds it. What a killed process had just forked holds its locks a moment longer."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- pid files --------------------------------------------------------------------------------------
def read_pid(path: Path) -> int | None:
    """The pid in a pid file; None if there is none or it is damaged."""
    try:
        pid = int(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return pid if pid > 1 else None


def write_pid(path: Path, pid: int) -> None:
    write_private(path, f"{pid}\n")


def command_line(pid: int) -> list[str]:
    """Arguments of a live process; empty when there is no such process or it is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def is_ours(pid: int, home: Home) -> bool:
    """Whether `pid` is alive and was started for this home: one of its arguments is the home's path or lies in it."""
    root = str(home.path)
    return any(arg == root or arg.startswith(root + os.sep) for arg in command_line(pid))


def live_pid(home: Home, process: str) -> int | None:
    """The pid of one of the home's processes, if its pid file is not stale."""
    pid = read_pid(home.pid_file(process))
    return pid if pid is not None and is_ours(pid, home) else None


def stop_pid(pid: int, home: Home, timeout_s: float) -> None:
    """SIGTERM to a process of this home that is not our child, SIGKILL after `timeout_s`; returns when it is gone."""
    for sign, wait_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, timeout_s)):
        if not is_ours(pid, home):
            return
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and is_ours(pid, home):
            time.sleep(POLL_S)


def wait_reaped(pids: Iterable[int], timeout_s: float) -> None:
    """Wait until stopped processes are gone from the process table too.

    A detached supervisor's parent is the container's first process, and some of those reap only once a second or two: until
    then a
    dead process still looks alive to whoever asks by its pid.
    """
    deadline = time.monotonic() + timeout_s
    waiting = set(pids)
    while waiting and time.monotonic() < deadline:
        waiting = {pid for pid in waiting if Path(f"/proc/{pid}").exists()}
        time.sleep(POLL_S if waiting else 0)
