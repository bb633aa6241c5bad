"""How long a memory lives, by kind and scope: what a draft gets, and how far a useful report moves its end. Pure.

Invariant: no draft and no report has a memory live beyond its kind's most, counted from when it was written.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bus.frames import KINDS, SCOPES, Kind
from gate.config import DAY_MS
from gate.state.columns import Scalars

# In days: (default, most); None = none. The project's table of defaults has them.
TTL_DAYS: Final[dict[Kind, tuple[int | None, int | None]]] = {
    "fact": (365, None),
    "preference": (365, None),
    "relationship": (365, None),
    "source": (365, None),
    "event": (90, 365),
    "rule": (None, None),
    "decision": (None, None),
    "constraint": (None, None),
    "procedure": (180, None),
    "task": (30, 365),
    "tool_experience": (30, 180),
    "emotional_state": (1, 7),
}
OPERATIONAL: Final = SCOPES.index("operational")
OPERATIONAL_TTL_DAYS: Final = (7, 30)
assert set(TTL_DAYS) == set(KINDS)

# A report moves an end by at least this share of the memory's life, and this long: so often at most it costs an event.
EXTEND_SHARE: Final = 8
EXTEND_MS_MIN: Final = 60_000


class End(NamedTuple):
    """`expires_ms` 0 = none. `fixed`: the draft named the moment. `capped`: it asked for more than its kind may have."""

    expires_ms: int
    fixed: bool
    capped: bool


def end_of(kind: int, scope: int, now_ms: int, *, ttl_s: int = 0, at_ms: int = 0) -> End:
    """What a draft gets: the time to live or the moment that it names, else its kind's default; never more than its most."""
    default, _ = ttl_days(kind, scope)
    ttl_ms = ttl_s * 1000 or (default or 0) * DAY_MS
    asked = at_ms or (now_ms + ttl_ms if ttl_ms else 0)
    latest = last_end(kind, scope, now_ms)
    capped = bool(latest) and asked > latest
    return End(latest if capped else asked, bool(at_ms), capped)


def ttl_days(kind: int, scope: int) -> tuple[int | None, int | None]:
    """(default, most) of a kind in a scope."""
    return OPERATIONAL_TTL_DAYS if scope == OPERATIONAL else TTL_DAYS[KINDS[kind]]


def last_end(kind: int, scope: int, written_ms: int) -> int:
    """The latest moment that a memory of this kind, written then, may expire; 0 = there is none."""
    _, most = ttl_days(kind, scope)
    return written_ms + most * DAY_MS if most else 0


def extended(at: Scalars, s: int, now_ms: int) -> int:
    """The end that a report gives a memory that is alive, now; 0 = it keeps the one that it has."""
    life, latest = at.life[s], last_end(at.kind[s], at.scope[s], at.written[s])
    end = min(now_ms + life, latest or now_ms + life)
    return end if life and end - at.expires[s] >= max(life // EXTEND_SHARE, EXTEND_MS_MIN) else 0
