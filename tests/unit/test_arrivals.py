"""Requests that have arrived wait by tenant and key, take turns, and are bounded: whoever floods fills its own queue alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from bus.identity import keypair
from gate.arrivals import ARRIVED_MAX
from gate.identify import Identifier
from gate.intake import Intake
from gate.quotas import WRITE_UNIT_BYTES
from gate.refusals import Refused
from gate.shard import Shard
from gate.turns import CALM_IN_FLIGHT

from .story import Story

ACME, GLOBEX = keypair("account").public, keypair("account").public
FLOODER, CALM, ELSEWHERE = (keypair("user").public for _ in range(3))


class Door:
    """An intake whose every request is refused for want of an identity: what is seen is the order."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        shard = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            state="ready",
            identifier=Identifier("0", "CORE", {}, {}, lambda: 0),
            tenants={},
            refuse=self.refuse,
        )
        self.intake = Intake(cast(Shard, shard))

    def refuse(self, reply: str, e: Refused, request_id: str, agent: str, project: str) -> None:
        assert e.code == "identity_missing"
        self.answered.append(agent)

    async def arrive(self, account: str, key: str, count: int = 1, data: bytes = b"{}") -> None:
        for _ in range(count):
            message = Msg(cast(Client, None), f"in.0.{account}.p1.query.{key}", "reply", data)
            await self.intake.on_memory(message)

    async def all_taken(self) -> None:
        async with asyncio.timeout(20):
            while self.intake.arrivals:  # noqa: ASYNC110 - callbacks of the loop
                await asyncio.sleep(0)


def test_requests_take_turns_by_tenant_and_key_however_many_came_before() -> None:
    async def scenario() -> None:
        door = Door()
        await door.arrive(ACME, FLOODER, 50)
        await door.arrive(ACME, CALM)
        await door.arrive(GLOBEX, ELSEWHERE, 2)
        await door.all_taken()
        assert door.answered[:5] == [FLOODER, ELSEWHERE, CALM, ELSEWHERE, FLOODER]
        assert len(door.answered) == 53

    asyncio.run(scenario())


def test_what_a_key_may_have_waiting_is_bounded_and_is_its_own_share_alone() -> None:
    async def scenario() -> None:
        door = Door()
        await door.arrive(ACME, FLOODER, ARRIVED_MAX + 500)
        await door.arrive(ACME, CALM)
        assert door.intake.patience.dropped == 500
        await door.all_taken()
        assert CALM in door.answered[:2]

    asyncio.run(scenario())


def test_what_waits_is_bounded_in_bytes_too_and_the_calm_have_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gate.arrivals.ARRIVED_ALL_MAX", ARRIVED_MAX)

    async def scenario() -> None:
        door = Door()
        large = bytes(7 * WRITE_UNIT_BYTES)
        await door.arrive(ACME, FLOODER, ARRIVED_MAX, large)
        assert door.intake.patience.dropped == ARRIVED_MAX - ARRIVED_MAX // 8
        await door.arrive(ACME, CALM, CALM_IN_FLIGHT + 2)
        await door.all_taken()
        assert door.answered.count(CALM) == CALM_IN_FLIGHT
        await door.arrive(ACME, CALM, CALM_IN_FLIGHT + 2)
        await door.all_taken()
        assert door.answered.count(CALM) == 2 * CALM_IN_FLIGHT + 2

    asyncio.run(scenario())


def test_who_has_many_requests_waiting_for_their_turn_is_of_the_crowd() -> None:
    async def scenario() -> None:
        door, story = Door(), Story()
        calm, eager = story.agent("calm"), story.agent("eager")
        await door.arrive(ACME, calm.key, CALM_IN_FLIGHT)
        await door.arrive(ACME, eager.key, CALM_IN_FLIGHT + 1)
        assert door.intake.calm(calm)
        assert not door.intake.calm(eager)
        await door.all_taken()
        calm.agent.in_flight = CALM_IN_FLIGHT + 1
        assert not door.intake.calm(calm)

    asyncio.run(scenario())


def test_the_loop_goes_on_while_many_requests_wait() -> None:
    async def scenario() -> None:
        door = Door()
        await door.arrive(ACME, FLOODER, ARRIVED_MAX)
        assert not door.answered, "nothing is taken while the connection is read"
        rounds = 0
        while door.intake.arrivals:
            rounds += 1
            await asyncio.sleep(0)
        assert rounds > 1

    asyncio.run(scenario())
