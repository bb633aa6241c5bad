"""Three servers, two gatekeepers and a network that fails without telling: a partition, a silent line, a forgotten connection.

Invariants: whoever is cut off from the majority acknowledges nothing and, past its lease, answers nothing; the others go on;
healed, nothing acknowledged is lost, doubled or laundered, and the old owner stands by.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from nats import errors as nats_errors

import bus
from bus.errors import CordonError
from gate.lease import LEASE_S, RENEW_S, RENEW_TIMEOUT_S, TAKE_OVER_S

from .cluster import Cluster, cluster
from .stored import any_right, streams
from .test_crash import Tally, check, writer
from .test_failover import acknowledged, under_load
from .world import until

SECRET = "The heron gate opens with the code of the brass lantern"
QUESTION = "which code opens the heron gate?"
SILENT_S = 15.0
NOTICED_S = 30.0  # a third ping without an answer comes after 15 s; nats-py alone takes six minutes, and half a minute over TLS
SLACK_S = 3.0  # what was on its way, on a loaded machine
IMPATIENT = bus.Timing(request_s=1.0, deadline_s=1.5)


@dataclass
class Asked:
    """Recalls as they came: (when, what was in them)."""

    recalls: list[tuple[float, list[str]]] = field(default_factory=list)

    def since(self, at: float) -> int:
        return sum(when > at for when, _ in self.recalls)


async def asks(asked: Asked, memory: bus.MemoryBus) -> None:
    while True:
        with suppress(CordonError):
            recall = await memory.query(QUESTION)
            asked.recalls.append((time.monotonic(), recall.ids))


@asynccontextmanager
async def on_the_minority_s_side(made: Cluster, tally: Tally) -> AsyncIterator[Asked]:
    """A writer and a reader on the first server, at work."""
    home, asked = made.world.home, Asked()

    def client(name: str) -> AbstractAsyncContextManager[bus.MemoryBus]:
        return bus.connect(made.urls[0], made.world.creds(name), project="p1", ca_file=home.ca_file, timing=IMPATIENT)

    async with client("writer0") as memory, client("reader0") as reader:
        tasks = [asyncio.create_task(writer(tally, memory, "acme writer 96")), asyncio.create_task(asks(asked, reader))]
        try:
            yield asked
        finally:
            tally.stop = True
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def minority_with_the_owner(made: Cluster, tally: Tally) -> str:
    """The owner, the ledger's leader and some agents on one side; the standby, two servers and most agents on the other."""
    assert made.lines is not None
    await lead(made, "cordon-1")
    old, theirs = made.active, Tally()
    assert old is made.gates[0]
    async with made.world.agent("writer1") as memory, made.world.desk("ops") as desk:
        secret = await memory.write(SECRET)
        tally.acked[SECRET] = secret.id
        async with on_the_minority_s_side(made, theirs) as asked:
            await until(lambda: len(theirs.acked) > 20 and any(secret.id in ids for _, ids in asked.recalls), "both work", 20)
            since = len(old.log.read_text())
            made.lines.routes.hold()
            cut_at = time.monotonic()
            new = await made.serving(but=old)
            took, acked = time.monotonic() - cut_at, len(theirs.acked)
            await desk.hold_now([secret.id], "found to be forged")
            held_at = time.monotonic()
            gap = await acknowledged(tally)
            assert len(theirs.acked) == acked, "no write was acknowledged without a majority"
            healed_at = time.monotonic()
            last = max(when for when, _ in asked.recalls) - cut_at
            assert last < LEASE_S + SLACK_S, f"answered {last:.1f} s after the cut"
            made.lines.routes.flow()
            await made.stands_by(old, since)
            assert "stepping down" in old.log.read_text()[since:]
            await until(lambda: asked.since(healed_at) > 3 and len(theirs.acked) > acked + 20, "both work again", 60)
            back = time.monotonic() - healed_at
            assert not [ids for when, ids in asked.recalls if when > held_at and secret.id in ids]
            assert made.active is new
    tally.acked |= theirs.acked
    tally.unknown |= theirs.unknown
    tally.recalls |= theirs.recalls
    return (
        f"the owner cut off with a minority: the standby serves after {took:.1f} s (longest silence then {gap:.1f} s), the last "
        f"recall beside it {last:.1f} s after the cut; healed, the minority's agents work after {back:.1f} s"
    )


async def lead(made: Cluster, server: str) -> None:
    """Let that server lead the ledger."""
    ask = json.dumps({"placement": {"preferred": server}}).encode()
    deadline = time.monotonic() + 30
    async with any_right(made.world.home) as nc:
        while await made.ledger_leader() != server:
            assert time.monotonic() < deadline
            with suppress(nats_errors.TimeoutError):  # it is looked at again
                await nc.request("$JS.API.STREAM.LEADER.STEPDOWN.LEDGER_0", ask, timeout=2)


async def silent_line(made: Cluster, tally: Tally) -> str:
    """Packets between the owner and its server vanish for a while, and are sent again."""
    assert made.lines is not None
    old = made.active
    line = made.lines.gates[made.gates.index(old)]
    since = len(old.log.read_text())
    line.hold()
    at = time.monotonic()
    new = await made.serving(but=old)
    took = time.monotonic() - at
    assert took > TAKE_OVER_S - RENEW_S - RENEW_TIMEOUT_S  # the last renewal before it was that old at most
    await acknowledged(tally)
    await until(lambda: time.monotonic() - at > SILENT_S, "silent for so long", SILENT_S)
    line.flow()
    await made.stands_by(old, since)
    assert made.active is new
    await acknowledged(tally)
    return f"the owner's line silent for {SILENT_S:.0f} s: the standby serves after {took:.1f} s"


async def forgotten_connection(made: Cluster, tally: Tally) -> str:
    """The owner's connection is dead and looks as if it stood; a new one would work."""
    assert made.lines is not None
    old = made.active
    line = made.lines.gates[made.gates.index(old)]
    since = len(old.log.read_text())
    line.lose()
    at = time.monotonic()
    new = await made.serving(but=old)
    took = time.monotonic() - at
    await made.stands_by(old, since)
    noticed = time.monotonic() - at
    assert noticed < NOTICED_S
    assert made.active is new
    await acknowledged(tally)
    return (
        f"the owner's connection forgotten: the standby serves after {took:.1f} s, the old owner stands by after {noticed:.1f} s"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_network_that_fails_without_telling_loses_doubles_and_launders_nothing() -> None:
    async def scenario() -> None:
        async with cluster(relayed=True) as made:
            async with under_load(made, writers=4, others=2) as tally:
                for happens in (minority_with_the_owner, silent_line, forgotten_connection):
                    print("\n" + await happens(made, tally))
            print(await check(made.world, tally))
            epochs = (await streams(made.world.home)).epochs
            assert epochs == sorted(epochs)
            assert len(set(epochs)) >= 4

    asyncio.run(scenario())
