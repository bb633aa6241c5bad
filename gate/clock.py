"""What time it is for a shard: milliseconds since 1970 that don't follow a machine's clock wherever it is set.

Expiry, idle contexts, plans and ids follow this clock. Rates, leases and time-outs don't: they count on monotonic clocks.

Invariants: it never goes back, nor behind the newest block of the ledger that it was started with. A clock that is set ahead
for a moment expires nothing; one that stays there for STAYED_S is followed, unless it is so far off (AHEAD_MAX_S) that a person
must say so. A clock that is set back is waited for by going slower (SLOWER), if it isn't by more than BEHIND_MAX_S.

A leap was seen by nobody: the home was down, or its clock is wrong. What time ends for good (what a context had in its head, the
hold of suspects) doesn't count it; what is only looked at with the time of now (expiry) does. One of the machine's clock is known
from JUMP_MS on, while this process lives; between two blocks of a ledger, where a quiet night looks the same, from LEAP_MS on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Final

from bus.errors import ConfigError

from .config import DAY_MS

FOLLOWED_S: Final = 5.0  # what a time service corrects in one step; smaller differences are followed at once
STAYED_S: Final = 600.0  # a virtual machine that was stopped comes back with a jump that stays
AHEAD_MAX_S: Final = 366 * 86_400.0  # a home may sleep for a year
BEHIND_MAX_S: Final = 86_400.0  # a hardware clock in another time zone; what it wrote ahead is caught up within ten days
SLOWER: Final = 0.1
LEAP_MS: Final = DAY_MS
JUMP_MS: Final = DAY_MS // 24
LEAPS_MAX: Final = 128  # more than READS has days
WITNESS_DAYS: Final = 1  # a date says which day it is, here or on the other side of the world


def running_clock() -> float:
    """Seconds that also pass while the machine sleeps; time.monotonic stands still then on Linux."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def wall_ms() -> int:
    """The machine's clock."""
    return int(time.time() * 1000)


class SteadyClock:
    """Call it for the time. `wall` and `running` (seconds) are the machine's clocks."""

    def __init__(self, wall: Callable[[], float] = time.time, running: Callable[[], float] = running_clock) -> None:
        self._wall, self._running = wall, running
        self._at, self._now = running(), wall()  # when it was asked last, and what it said then
        self._odd_since: float | None = None  # since when the machine's clock has been ahead
        self._odd_by = 0.0
        self._met_ms = 0  # the newest moment of which there is a trace
        self._leaps = deque[tuple[int, int]](maxlen=LEAPS_MAX)  # (from, to), ascending

    def __call__(self) -> int:
        running, wall = self._running(), self._wall()
        passed, self._at = max(0.0, running - self._at), running
        self._now += passed
        ahead = wall - self._now
        if 0 <= ahead <= FOLLOWED_S or self._has_stayed(ahead, running):
            if ahead > FOLLOWED_S:
                self._met_ms = max(self._met_ms, int(self._now * 1000))
                self.met(int(wall * 1000), JUMP_MS)
            self._now, self._odd_since = wall, None
        elif -BEHIND_MAX_S <= ahead < 0:
            self._now, self._odd_since = self._now - min(passed * SLOWER, -ahead), None
        return int(self._now * 1000)

    def _has_stayed(self, ahead: float, running: float) -> bool:
        """Whether the machine's clock has been ahead by this much for so long that it is believed."""
        if not FOLLOWED_S < ahead <= AHEAD_MAX_S:
            return False
        if self._odd_since is None or abs(ahead - self._odd_by) > FOLLOWED_S:
            self._odd_since, self._odd_by = running, ahead
        return running - self._odd_since >= STAYED_S

    def met(self, ms: int, least_ms: int = LEAP_MS) -> None:
        """A trace of this moment: a block, in the order of a replay, or its end. A leap to it has `least_ms`."""
        if ms - self._met_ms > least_ms and self._met_ms:
            self._leaps.append((self._met_ms, ms))
        self._met_ms = max(self._met_ms, ms)

    def unseen_ms(self, since_ms: int) -> int:
        """How much of the time since then nobody saw pass."""
        return sum(to - max(start, since_ms) for start, to in self._leaps if to > since_ms)

    def begin(self, newest_ms: int, witness: str = "") -> None:
        """Start from a ledger whose newest block is of `newest_ms` (0 = it is empty). `witness`: the day, as a person says.

        ConfigError (clock_implausible) where the machine's clock and the ledger can't both be right.
        """
        newest, wall = newest_ms / 1000, self._wall()
        self._at, self._now, self._odd_since = self._running(), max(wall, newest), None
        if not newest or -BEHIND_MAX_S <= wall - newest <= AHEAD_MAX_S:
            return
        if _witnessed(witness, wall):
            self._now = wall
            return
        raise ConfigError(
            f"This machine's clock says {_day(wall)}; the newest block of the ledger is of {_day(newest)}.",
            reason="clock_implausible",
            advice=f'Set the clock. If it is right, say so: `clock = "{_day(wall)}"` in cordon.toml holds for that day.',
        )

    @property
    def trouble(self) -> str:
        """For people, if the machine's clock isn't believed or isn't caught up with."""
        ahead = self._wall() - self._now
        if abs(ahead) <= FOLLOWED_S:
            return ""
        way = "ahead of" if ahead > 0 else "behind"
        if -BEHIND_MAX_S <= ahead <= AHEAD_MAX_S:
            then = (
                f"it is followed when it stays so for {STAYED_S / 60:g} minutes" if ahead > 0 else "time goes slower until then"
            )
        else:
            then = "it is not followed; set the machine's clock"
        return f"this machine's clock is {timedelta(seconds=round(abs(ahead)))} {way} the gatekeeper's: {then}"


def _witnessed(witness: str, wall: float) -> bool:
    try:
        said = date.fromisoformat(witness)
    except ValueError:
        return False
    return abs((datetime.fromtimestamp(wall, UTC).date() - said).days) <= WITNESS_DAYS


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).date().isoformat()
