"""How much an agent and a tenant may do and keep. Over it a request is refused with the quota's name, its limit and what is used.

Rates and what is in flight pass by themselves (`over_quota`: wait); what is kept doesn't (`quota_full`: somebody must act). What
is kept is counted by applying the ledger, so a replay counts the same. Who is refused again and again waits for its refusals
(Patience): who asks again at once must not take the loop from the others.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from bus.errors import ConfigError

from .config import DAY_MS
from .refusals import Refused


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
# What a request counts for: what it costs grows with its text, and with how many candidates it has looked at (4 k).
WRITE_UNIT_BYTES: Final = 4_096
READ_UNIT_ITEMS: Final = 16

REFUSALS: Final = Limit(20, 100)  # of one key, at once; the others leave later. What is refused counts by its size too
REFUSAL_DELAY_S: Final = 0.5  # what an `over_quota` asks its client to wait
REFUSAL_GAP_S: Final = 0.005  # and so much more for each that waits: they, and what follows them, don't come at once
REFUSAL_DELAY_MOST_S: Final = 3.0  # a client waits 5 s for one answer
REFUSALS_WAITING_MAX: Final = 1_024  # of one key; beyond it a request has no answer
KEYS_MAX: Final = 10_000
READS_DAYS: Final = 90  # a record of READS is kept so long


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be in flight and kept: of one agent, and of one tenant. `[quotas]` in cordon.toml sets them for the home.

    Bytes are those of the ledger; `tenant_reserve`: so many more for what isn't a memory (holds, reviews, closes, erasures). Half
    of what may be held may wait for a review: the others are held by cases. Readers: entries of all different `readers` of
    memories, which stay in memory (some 150 B each) and are gone through once for each agent that asks. Reads:
    bytes in READS, which count only when that is nearly full: alone one may have most of it.
    """

    agent_in_flight: int = 64
    agent_held: int = 1_000
    agent_review: int = 500
    agent_bytes: int = 1 << 30
    tenant_in_flight: int = 1_024
    tenant_held: int = 10_000
    tenant_review: int = 5_000
    tenant_bytes: int = 4 << 30
    tenant_reserve: int = 1 << 30
    agent_readers: int = 1 << 16
    tenant_readers: int = 1 << 19
    agent_reads: int = 1 << 30
    tenant_reads: int = 4 << 30

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


DEFAULT: Final = Quotas()


def quotas(pairs: Iterable[str]) -> Quotas:
    """From NAME=NUMBER, as the gatekeeper's command line has them. Raises ConfigError."""
    named = dict(pair.partition("=")[::2] for pair in pairs)
    try:
        return msgspec.convert(named, Quotas, strict=False)
    except (msgspec.ValidationError, ValueError) as e:
        raise ConfigError(
            f"A quota is wrong: {e}.",
            reason="quota_invalid",
            advice=f"[quotas] in cordon.toml takes {', '.join(Quotas.__struct_fields__)}.",
        ) from None


def units(verb: str, size: int) -> int:
    """What a request of so many bytes counts for, in flight and by the second."""
    return 1 + size // WRITE_UNIT_BYTES if verb == "write" else 1


Whose = Literal["agent", "tenant"]


def too_many(field: str, whose: Whose, limit: int, used: int | None = None) -> Refused:
    """The refusal of one request too many at once, or a second; it says which quota, whose, and what is used of it."""
    return Refused("over_quota", field=field, limit=limit, detail={"whose": whose} | ({} if used is None else {"used": used}))


def full(field: str, whose: Whose, limit: int, used: int) -> Refused:
    """The refusal of something that there is no more room to keep."""
    return Refused("quota_full", field=field, limit=limit, detail={"whose": whose, "used": used})


class Aging:
    """Bytes that leave by themselves with age, as records in READS do: by the day on which they came."""

    __slots__ = ("_by_day", "_total")

    def __init__(self) -> None:
        self._by_day: dict[int, int] = {}
        self._total = 0

    def add(self, ms: int, size: int) -> None:
        day = ms // DAY_MS
        if day not in self._by_day:
            self.total(ms)
        self._by_day[day] = self._by_day.get(day, 0) + size
        self._total += size

    def total(self, now_ms: int) -> int:
        """Of those that are still there."""
        oldest = now_ms // DAY_MS - READS_DAYS
        for day in [day for day in self._by_day if day < oldest]:
            self._total -= self._by_day.pop(day)
        return self._total


@dataclass(slots=True)
class Bucket:
    """Tokens of one kind of request by one agent or tenant; full to begin with."""

    limit: Limit
    tokens: float = -1.0
    at: float = 0.0

    def take(self, now: float | None = None, count: int = 1) -> bool:
        """Whether one more, that counts for so many, may pass at `now` (seconds of a monotonic clock)."""
        now = time.monotonic() if now is None else now
        if self.tokens < 0:
            self.tokens = self.limit.burst
        else:
            self.tokens = min(self.limit.burst, self.tokens + (now - self.at) * self.limit.per_s)
        self.at = now
        if self.tokens < count:
            return False
        self.tokens -= count
        return True


class Patience:
    """When refusals leave: at once, or after a while for a key that has had many; and which keys have too many waiting."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[str, Bucket] = {}
        self._waiting, self._units = Counter[str](), Counter[str]()
        self.dropped = 0

    def spent(self, key: str) -> bool:
        """Whether a request of this key is dropped: it doesn't wait for its answers anyway."""
        if self._waiting[key] < REFUSALS_WAITING_MAX:
            return False
        self.dropped += 1
        return True

    def answer(self, key: str, send: Callable[[], None], count: int = 1) -> None:
        """Have one refusal sent, of a request that counts for so many."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= KEYS_MAX:
                self._buckets.clear()
            bucket = self._buckets[key] = Bucket(REFUSALS)
        if bucket.take(count=count):
            send()
            return
        delay_s = min(REFUSAL_DELAY_MOST_S, REFUSAL_DELAY_S + REFUSAL_GAP_S * self._units[key])
        self._waiting[key] += 1
        self._units[key] += count
        self._loop.call_later(delay_s, self._late, key, send, count)

    def _late(self, key: str, send: Callable[[], None], count: int) -> None:
        self._waiting[key] -= 1
        self._units[key] -= count
        if not self._waiting[key]:
            del self._waiting[key], self._units[key]
        send()
