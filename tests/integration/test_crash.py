"""kill -9 of gatekeeper and broker in turn, under load: nothing acknowledged is lost, nothing stored twice, nothing launders."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

import bus
from broker_config import supervisor
from broker_config.control import Control
from bus.errors import Unavailable
from gate import ids

from .scenes import EXTERNAL, kill_and_wait
from .stored import streams
from .world import UP_S, World, running, verified

TENANTS = ("acme", "zeta")
WRITERS, READERS, COPIERS = 32, 8, 8
ROUNDS = 20
ROUNDS_PER_START = 8  # four deaths of each process in a minute; at five the supervisor gives up
ACKS_BETWEEN = 200


@dataclass
class Tally:
    """What the clients saw."""

    acked: dict[str, str] = field(default_factory=dict)  # content → memory id
    unknown: set[str] = field(default_factory=set)  # contents whose outcome nobody told
    recalls: set[str] = field(default_factory=set)
    copies: int = 0
    laundered: list[str] = field(default_factory=list)
    duplicates: int = 0
    stop: bool = False


async def write(tally: Tally, memory: bus.MemoryBus, content: str) -> bus.Receipt | None:
    try:
        receipt = await memory.write(content, idempotency_key=f"key of {content}")
    except Unavailable:
        tally.unknown.add(content)
        return None
    tally.acked[content] = receipt.id
    tally.unknown.discard(content)
    tally.duplicates += receipt.duplicate
    return receipt


async def writer(tally: Tally, memory: bus.MemoryBus, name: str) -> None:
    chance = random.Random(name)
    n = 0
    while not tally.stop:
        n += 1
        await write(tally, memory, f"{name} notes number {n}: valve {chance.randrange(10**6)} of hall {chance.randrange(99)}")


async def reader(tally: Tally, memory: bus.MemoryBus) -> None:
    while not tally.stop:
        try:
            tally.recalls.add((await memory.query("which valve of which hall?", k=16)).recall_id)
        except Unavailable:
            continue


async def copier(tally: Tally, memory: bus.MemoryBus, name: str, source: str) -> None:
    """Is served one document from outside again and again, and repeats it."""
    n = 0
    while not tally.stop:
        n += 1
        try:
            recall = await memory.get(source)
        except Unavailable:
            continue
        tally.recalls.add(recall.recall_id)
        assert recall.ids == [source]
        text = f"{recall.admitted[0].memory.content}, {name} heard, time {n}"
        receipt = await write(tally, memory, text)
        if receipt is not None:
            tally.copies += 1
            if receipt.trust > EXTERNAL or receipt.trust_floor > EXTERNAL or source not in receipt.parents:
                tally.laundered.append(f"{text}: {receipt!r}")


async def work(tally: Tally, role: str, memory: bus.MemoryBus, name: str, source: str) -> None:
    if role == "writer":
        await writer(tally, memory, name)
    elif role == "reader":
        await reader(tally, memory)
    else:
        await copier(tally, memory, name, source)


async def populate(world: World) -> None:
    async with Control(world.home) as control:
        for tenant in TENANTS:
            await control.tenant_add(tenant)
            await control.project_add(tenant, "p1")
            for role in ("writer", "reader", "copier"):
                for i in range(4):
                    await control.agent_add(tenant, f"{role}{i}", projects=("p1",))
            await control.agent_add(tenant, "ingest", role="ingest", projects=("p1",))


async def kill_in_turn(world: World, tally: Tally) -> list[str]:
    killed: list[str] = []
    for i in range(ROUNDS):
        if i and i % ROUNDS_PER_START == 0:
            await asyncio.to_thread(started_again, world)
        process = ("gatekeeper", "broker")[i % 2]
        goal, deadline = len(tally.acked) + ACKS_BETWEEN, time.monotonic() + 60
        while len(tally.acked) < goal:
            assert time.monotonic() < deadline, f"{len(tally.acked)} of {goal} acknowledged; {len(killed)} kills"
            await asyncio.sleep(0.005)
        await kill_and_wait(world, process)
        killed.append(process)
    return killed


def started_again(world: World) -> None:
    """The whole home, by request, under the same load: with it the supervisor's count of deaths begins anew."""
    supervisor.stop(world.home)
    assert supervisor.start(world.home, detach=True, ready_timeout_s=UP_S).state == "ready"


async def check(world: World, tally: Tally) -> str:
    found = await streams(world.home)
    contents = Counter(text for _, _, text in found.memories)
    twice = [text for text, n in contents.items() if n > 1]
    lost = [text for text in tally.acked if text not in contents]
    unasked = [t for t in contents if t not in tally.acked and t not in tally.unknown]
    wrong = [text for _, e, text in found.memories if text in tally.acked and ids.text("mem_", e.id) != tally.acked[text]]
    recorded = {ids.text("rec_", r.recall) for r in found.recalls}
    unrecorded = tally.recalls - recorded
    high = [text for _, e, text in found.memories if "heard, time" in text and (e.trust > 250 or e.floor > 250)]
    assert (lost, twice, unasked, wrong, unrecorded, tally.laundered, high) == ([], [], [], [], set(), [], [])
    assert len(contents) >= len(tally.acked)
    return (
        f"{len(tally.acked)} acknowledged = stored, {len(tally.unknown)} unknown, {tally.duplicates} answered as duplicates, "
        f"{found.blocks} blocks; {len(tally.recalls)} answered recalls of {len(recorded)} in READS; "
        f"{tally.copies} copies, none laundered"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_under_load_and_kills_all_that_was_acknowledged_is_stored_once_and_no_copy_gains_trust() -> None:
    async def scenario(world: World) -> str:
        await populate(world)
        tally, tasks = Tally(), []
        async with AsyncExitStack() as stack:
            for tenant in TENANTS:
                async with world.agent("ingest", tenant=tenant) as ingest:
                    text = f"The {tenant} tanager tower opens its shutters at half past nine"
                    doc = await ingest.write(text, evidence=["https://wiki.example/towers"])
                    tally.acked[text] = doc.id
                for role, count in (("writer", WRITERS), ("reader", READERS), ("copier", COPIERS)):
                    clients = [await stack.enter_async_context(world.agent(f"{role}{i}", tenant=tenant)) for i in range(4)]
                    for j in range(count // len(TENANTS)):
                        name, memory = f"{tenant} {role} {j}", clients[j % 4]
                        tasks.append(asyncio.create_task(work(tally, role, memory, name, doc.id)))
            started = time.monotonic()
            try:
                killed = await kill_in_turn(world, tally)
            finally:
                tally.stop = True
                await asyncio.gather(*tasks)
            for content in sorted(tally.unknown):  # what a client does that got no answer: the same again
                tenant, role, n = content.split()[:3] if "heard" not in content else content.split(", ")[1].split()[:3]
                async with world.agent(f"{role}{int(n) % 4}", tenant=tenant) as memory:
                    assert await write(tally, memory, content) is not None
            seconds = time.monotonic() - started
            verdict = await verified(world.home)
            assert verdict["ok"], verdict["findings"]
            return f"{len(killed)} kills in {seconds:.0f} s: {await check(world, tally)}"

    with running(populate=False) as world:
        print("\n" + asyncio.run(scenario(world)))
