"""What a home's processes say about themselves: run/status.json, written by the supervisor alone, at once and whole.

Invariant: `read_status` never reports a process that isn't there: a pid counts only while its command line names this home.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from bus.errors import CordonError, Unavailable

from .home import Home, write_private
from .processes import is_ours

State = Literal["starting", "ready", "degraded", "stopped"]
RESTART: Final = "`cordon down`, then `cordon up --detach`"
SERVING: Final = ("supervisor", "broker", "gatekeeper")  # without one of these nobody is served
UNMENDED: Final = ("ledger_went_back", "ledger_corrupt", "ledger_gap")  # what is missing must be put back, or its loss accepted
PROCESSES: Final = (*SERVING, "issuer", "janitor")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error on its way between processes."""

    reason: str
    message: str
    advice: str = ""

    @classmethod
    def of(cls, error: CordonError) -> Problem:
        return cls(reason=error.reason, message=error.message, advice=error.advice)


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`pids`: the processes that run, by name. `since`: when `state` began (RFC 3339, UTC). ready = the gatekeeper serves."""

    url: str
    pids: dict[str, int]
    state: State
    since: str
    error: Problem | None = None


def utc(unix_s: float, timespec: str = "milliseconds") -> str:
    """RFC 3339 with `Z`, as everywhere in Cordon."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def write_status(home: Home, status: Status) -> None:
    write_private(home.status, msgspec.json.encode(status).decode())


def last_status(home: Home) -> Status | None:
    """What the supervisor wrote last, true or not; None if it never did."""
    try:
        return msgspec.json.decode(home.status.read_bytes(), type=Status)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None


def read_status(home: Home) -> Status | None:
    """The home's state now; None if none of its processes runs.

    Where the supervisor was killed the state is stopped or degraded, whatever it wrote last.
    """
    last = last_status(home)
    if last is None:
        return None
    pids = {name: pid for name, pid in last.pids.items() if is_ours(pid, home)}
    if not pids:
        return None
    whole = pids.keys() >= set(SERVING)
    state: State = last.state if whole or (last.state != "ready" and "supervisor" in pids) else "degraded"
    return msgspec.structs.replace(last, pids=pids, state=state)


def not_serving(home: Home, now: Status) -> Unavailable:
    """What to say of a home that is up and doesn't serve: why, and the way out."""
    if now.state == "starting":
        return Unavailable(f"The home {home.path} is still starting.", reason="starting", advice="Wait, and see `cordon status`.")
    why = now.error or _unexplained(home, now)
    # A supervisor starts again what died, but never what refused to serve.
    dead = why.reason.endswith("_died")
    way = f"If that doesn't help: {RESTART}." if dead else f"It is not tried again by itself: {RESTART}."
    if why.reason in UNMENDED:
        way = f"A restart alone changes nothing; after that: {RESTART}."
    return Unavailable(
        f"The home {home.path} is {now.state}: {why.message}", reason=why.reason, advice=f"{why.advice} {way}".strip()
    )


def _unexplained(home: Home, now: Status) -> Problem:
    missing = next((name for name in SERVING if name not in now.pids), "gatekeeper")
    log = f"See {home.log(missing)}."
    return Problem(reason=f"{missing}_gone", message=f"Its {missing} is not running.", advice=log)
