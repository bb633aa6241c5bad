"""A flood by one agent is refused with the rate that it broke, and leaves the others alone."""

from __future__ import annotations

import asyncio

import bus
from bus.errors import Unavailable
from gate.quotas import AGENT_READS

from .rooms import room
from .world import World

AT_ONCE = 48


def test_a_flood_of_one_agent_is_refused_and_others_are_served(shared_world: World) -> None:
    async def scenario() -> None:
        quick = bus.Timing(deadline_s=0.05)
        async with (
            room(shared_world, "flooder", "reader") as (name, m),
            bus.connect(shared_world.home.url, shared_world.creds(f"flooder-{name}"), project=name, timing=quick) as flooding,
        ):
            calm = m["reader"]
            refused: list[Unavailable] = []

            async def ask() -> None:
                for _ in range(2 * int(AGENT_READS.burst) // AT_ONCE):
                    try:
                        await flooding.get("mem_00000000000000000000000001")
                    except Unavailable as e:
                        refused.append(e)
                        if e.reason == "over_quota":
                            return

            await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
            over = [e for e in refused if e.reason == "over_quota"]
            assert over, "2,000 requests went through"
            assert (over[0].field, over[0].limit) == ("reads_per_second", AGENT_READS.per_s)
            assert (await calm.get("mem_00000000000000000000000001")).ids == []
            await asyncio.sleep(1)
            assert (await flooding.get("mem_00000000000000000000000001")).ids == []  # and so is the flooder, in time

    asyncio.run(scenario())
