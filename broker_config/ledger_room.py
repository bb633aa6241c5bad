"""More room for a ledger that is full to its last hundredth, so that holds, erasures and evidence don't stop for want of it.

The gatekeeper, whose key may not change streams, leaves a mark in run/; the supervisor, who has the admin's, looks for itself and
lends a hundredth of the size that a person set. Only what contains or erases ever uses that: whatever the size, nothing else is
appended to a ledger so full (gate/room.py).

Invariant: no more than LENT_MAX_SHARE is lent in all. How much is, stands with the stream; a size that a person sets ends it.
"""

from __future__ import annotations

from typing import Final

import anyio

from bus.errors import CordonError

from .control import Control
from .home import Home
from .status import Problem
from .streams import StreamRoom

AGAIN_S: Final = 1.0  # a step of 10 GiB holds minutes of containment at full speed
LOOK_S: Final = 10.0  # where nothing can be lent, and whether a person has set a size since
WAIT_S: Final = 5.0  # the supervisor waits for the broker's answer
ADVICE: Final = "`cordon broker room --ledger GIB` gives it a larger size for good."
MIB: Final = 1 << 20


class LedgerRoom:
    """One home's. Times are seconds of any one clock."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.problem: Problem | None = None
        self._looked, self._wait_s = -LOOK_S, AGAIN_S
        self._lent = 0
        self._known = False  # what an earlier supervisor has lent stands with the stream: one look at the start

    def tick(self, now: float) -> str:
        """Lend, where the mark is and it is true. What was done, for the log; empty if nothing."""
        marked = self.home.ledger_at_end.exists()
        if (self._known and not (marked or self.problem)) or now < self._looked + (self._wait_s if marked else LOOK_S):
            return ""
        self._looked, self._wait_s = now, LOOK_S
        try:
            room = anyio.run(_lend, self.home)
            self.home.ledger_at_end.unlink(missing_ok=True)
        except OSError:  # TimeoutError: of a broker that doesn't answer the gatekeeper says more
            return ""
        except CordonError as e:
            if marked or self.problem:
                message = f"The ledger is full and is lent nothing: {e.message}"
                self.problem = Problem(reason=e.reason, message=message, advice=ADVICE)
            return ""
        self._known = True
        before, self._lent, self.problem = self._lent, room.lent, _problem(room)
        if not room.at_its_end:
            self._wait_s = AGAIN_S
        more = f"{room.stream} was full: {_lent(room)} beyond its size are lent to it, for holds, erasures and evidence."
        return more if room.lent > before else ""


def _problem(room: StreamRoom) -> Problem | None:
    if room.at_its_end:
        message = f"The ledger is {room.bytes / room.max_bytes:.1%} full, with {_lent(room)} that are lent, and no more is:"
        return Problem(reason="ledger_full", message=f"{message} holds and erasures stop where it ends.", advice=ADVICE)
    if room.lent:
        message = f"The ledger was full: {_lent(room)} beyond its size are lent to it, for holds, erasures and evidence alone."
        return Problem(reason="ledger_lent", message=message, advice=ADVICE)
    return None


def _lent(room: StreamRoom) -> str:
    return f"{room.lent / MIB:,.1f} MiB"


async def _lend(home: Home) -> StreamRoom:
    with anyio.fail_after(WAIT_S):
        async with Control(home) as control:
            return await control.lend_ledger_room()
