"""Rates: how many requests a second an agent and a tenant may make. Over it a request is refused, nothing is queued.

How much may be in flight or held at once is counted where it happens (gate/intake.py, gate/writing/decide.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, NamedTuple


class Limit(NamedTuple):
    """`per_s` in the long run, `burst` at once."""

    per_s: float
    burst: float


# The project's defaults table names the rates; a burst is two seconds' worth of them.
AGENT_WRITES: Final = Limit(500, 1_000)
AGENT_READS: Final = Limit(500, 1_000)
# Of each link above a child; names are never used again, so each one stays in the ledger and in memory.
DELEGATIONS: Final = Limit(1, 100)
SESSIONS: Final = Limit(20, 1_000)  # of a user gateway
TENANT_WRITES: Final = Limit(10_000, 20_000)
TENANT_READS: Final = Limit(10_000, 20_000)


@dataclass(slots=True)
class Bucket:
    """Tokens of one kind of request by one agent or tenant; full to begin with."""

    limit: Limit
    tokens: float = -1.0
    at: float = 0.0

    def take(self, now: float | None = None) -> bool:
        """Whether one more may pass at `now` (seconds of a monotonic clock)."""
        now = time.monotonic() if now is None else now
        if self.tokens < 0:
            self.tokens = self.limit.burst
        else:
            self.tokens = min(self.limit.burst, self.tokens + (now - self.at) * self.limit.per_s)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True
