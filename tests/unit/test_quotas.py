"""Requests a second: what a bucket lets pass."""

from __future__ import annotations

from gate.quotas import AGENT_WRITES, Bucket, Limit


def taken(bucket: Bucket, now: float, tries: int) -> int:
    return sum(bucket.take(now) for _ in range(tries))


def test_a_burst_passes_at_once_and_then_only_the_rate() -> None:
    bucket = Bucket(Limit(10, 25))
    assert taken(bucket, 100.0, 40) == 25
    assert taken(bucket, 100.5, 40) == 5
    assert taken(bucket, 100.55, 40) == 0  # half a token
    assert taken(bucket, 100.65, 40) == 1


def test_a_long_pause_saves_no_more_than_a_burst() -> None:
    bucket = Bucket(AGENT_WRITES)
    assert bucket.take(0.0)
    assert taken(bucket, 86_400.0, 5_000) == AGENT_WRITES.burst


def test_a_clock_that_stands_still_gives_nothing() -> None:
    bucket = Bucket(Limit(10, 1))
    assert taken(bucket, 5.0, 3) == 1
