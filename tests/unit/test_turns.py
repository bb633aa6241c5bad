"""Who is next among tenants and contexts, and how much the crowd leaves the calm."""

from __future__ import annotations

import asyncio

from gate.turns import CALM_AGAIN_S, CALM_IN_FLIGHT, Crowding, Lanes, Pace, Turns


def filled(*items: tuple[str, str]) -> Turns[str]:
    turns = Turns[str]()
    for i, (tenant, context) in enumerate(items):
        turns.add(tenant, context.encode(), f"{tenant}/{context}/{i}")
    return turns


def test_one_that_floods_is_served_in_turn_with_the_others() -> None:
    turns = filled(*[("acme", "flood")] * 100, ("acme", "calm"), ("globex", "calm"))
    first = turns.some(4)
    assert [x.rsplit("/", 1)[0] for x in first] == ["acme/flood", "globex/calm", "acme/calm", "acme/flood"]
    assert len(turns.some(1_000)) == 98
    assert not turns


def test_many_contexts_of_a_tenant_have_one_turn_between_them() -> None:
    turns = filled(*[("acme", f"child{i}") for i in range(50)], *[("globex", "one")] * 5)
    assert [x.split("/")[0] for x in turns.some(10)] == ["acme", "globex"] * 5


def test_within_a_context_the_order_of_arrival_stays() -> None:
    turns = filled(("acme", "a"), ("acme", "b"), ("acme", "a"), ("acme", "b"), ("acme", "a"))
    assert [int(x.split("/")[2]) for x in turns.some(5) if "/a/" in x] == [0, 2, 4]


# --- calm and crowd -----------------------------------------------------------------------------------
def test_who_has_few_requests_open_is_calm_and_who_had_more_a_moment_ago_is_not() -> None:
    crowding = Crowding()
    assert all(crowding.calm(CALM_IN_FLIGHT, now) for now in (0.0, 5.0))
    assert not crowding.calm(CALM_IN_FLIGHT + 1, 6.0)
    assert not crowding.calm(1, 6.0 + CALM_AGAIN_S / 2), "one block of receipts closes all that a flooder has open"
    assert crowding.calm(1, 6.0 + CALM_AGAIN_S)


def test_calm_and_crowd_have_queues_apart() -> None:
    lanes = Lanes[str](Pace())
    for i in range(100):
        lanes.add("acme", b"flood", f"flood {i}", calm=False)
    lanes.add("globex", b"calm", "calm", calm=True)
    assert lanes.calm.some(10) == ["calm"]
    assert len(lanes.crowd.some(1_000)) == 100
    assert not lanes


def test_what_waits_of_a_context_waits_in_one_queue_so_that_its_order_stays() -> None:
    lanes = Lanes[int](Pace())
    for i in range(2):
        assert lanes.add("acme", b"growing", i, calm=True) is lanes.calm
    for i, calm in enumerate((False, True, True), 2):
        assert lanes.add("acme", b"growing", i, calm=calm) is lanes.crowd
    assert lanes.add("acme", b"another", 9, calm=True) is lanes.calm
    assert lanes.crowd.some(10) == [0, 1, 2, 3, 4]
    assert lanes.add("acme", b"growing", 5, calm=True) is lanes.calm, "nothing of it waits any more"


def test_a_flood_that_began_among_the_calm_does_not_stay_there() -> None:
    """It always has something waiting: if that kept its place, whoever asks again at each answer would be calm for ever."""
    lanes = Lanes[int](Pace())
    for i in range(CALM_IN_FLIGHT):
        lanes.add("acme", b"flood", i, calm=True)
    lanes.add("acme", b"other", 99, calm=True)
    lanes.add("acme", b"flood", CALM_IN_FLIGHT, calm=False)
    assert lanes.calm.some(10) == [99]
    assert lanes.crowd.some(100) == list(range(CALM_IN_FLIGHT + 1))


def test_the_crowd_does_one_thing_at_a_time_while_the_calm_are_about() -> None:
    async def scenario(about: bool) -> int:
        pace, at_once, most = Pace(lambda: 0.0), 0, 0
        if about:
            pace.saw_calm()

        async def work() -> None:
            nonlocal at_once, most
            async with pace.turn():
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0)
                at_once -= 1

        await asyncio.gather(*(work() for _ in range(5)))
        return most

    assert asyncio.run(scenario(about=True)) == 1
    assert asyncio.run(scenario(about=False)) == 5
