"""The time of a twin: it stands still until a test moves it. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class ManualClock:
    """Call it for the milliseconds since 1970. Begins `at` an RFC 3339 time (default: now) and never goes back.

    What happens at one moment has no order in time: advance between two things where "newest first" matters.
    """

    def __init__(self, at: str | datetime | None = None) -> None:
        start = datetime.fromisoformat(at) if isinstance(at, str) else at or datetime.now(UTC)
        if start.tzinfo is None:
            raise ValueError("A clock begins at a time with a zone, such as 2026-01-31T12:00:00Z.")
        self._ms = int(start.timestamp() * 1000)

    def __call__(self) -> int:
        return self._ms

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._ms / 1000, UTC)

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let this much time pass: what is due then happens before the next request is answered."""
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) // timedelta(milliseconds=1)
        if step < 0:
            raise ValueError("A clock doesn't go back.")
        self._ms += step
