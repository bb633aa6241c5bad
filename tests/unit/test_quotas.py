"""Requests a second: what a bucket lets pass."""

from __future__ import annotations

import asyncio

import pytest

import bus
import bus.testing
from bus.errors import Unavailable
from gate.quotas import AGENT_WRITES, Bucket, Limit

QUICK = bus.Timing(request_s=0.3, deadline_s=0.3)
NOBODY = "mem_00000000000000000000000001"


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


@pytest.mark.parametrize(
    ("limit", "others"), [("gate.state.principals.AGENT_READS", "are served"), ("gate.state.tenant.TENANT_READS", "wait too")]
)
def test_a_flood_is_refused_with_the_rate_that_it_broke(monkeypatch: pytest.MonkeyPatch, limit: str, others: str) -> None:
    monkeypatch.setattr(limit, Limit(0.5, 3))  # the next one in two seconds

    async def scenario(world: bus.testing.World) -> None:
        flooding, calm = world.agent("flooder", timing=QUICK), world.agent("calm", timing=QUICK)
        for _ in range(3):
            assert (await flooding.get(NOBODY)).ids == []
        with pytest.raises(Unavailable) as refused:
            await flooding.get(NOBODY)
        assert (refused.value.reason, refused.value.field, refused.value.limit) == ("over_quota", "reads_per_second", 0)
        assert (await flooding.write("Writes have a rate of their own", evidence=["u"])).state == "active"
        if others == "are served":
            assert (await calm.get(NOBODY)).ids == []
        else:
            with pytest.raises(Unavailable):
                await calm.get(NOBODY)

    with bus.testing.bus() as world:
        asyncio.run(scenario(world))
