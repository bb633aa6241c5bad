"""An append of which nobody knows whether it happened: asked again, stored once, answered truly."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import bus
from broker_config import supervisor
from bus.errors import Conflict, Unavailable
from gate import ids

from .ledger_server import Relay
from .scenes import kill_and_wait
from .stored import core_client, streams
from .world import UP_S, World, running, until

pytestmark = pytest.mark.slow  # kills, restarts and whole rebuilds: minutes, not seconds


class Ambush(Relay):
    """A line between gatekeeper and broker that, once armed, forwards one append and swallows what the broker says after it."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.armed = b""
        self.caught = asyncio.Event()

    async def __aenter__(self) -> Ambush:
        await super().__aenter__()
        return self

    def arm(self, subject: bytes) -> None:
        self.armed = subject
        self.caught.clear()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, down: bool) -> None:
        try:
            while data := await reader.read(65_536):
                if not down and self.armed and self.armed in data:
                    self.armed, self.swallow = b"", True
                    self.caught.set()
                if not (down and self.swallow):
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.transport.abort()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:
        asyncio.run(_agents(world))
        yield world


async def _agents(world: World) -> None:
    for name in ("writer", "reader"):
        await world.add(name)


@asynccontextmanager
async def ambushed(world: World) -> AsyncIterator[Ambush]:
    """The same home, its gatekeeper started anew behind an ambush; afterwards as before."""
    async with Ambush(world.home.settings().port) as relay:
        command = ["env", f"CORDON_URL={relay.url}", sys.executable, "-P", "-m", "gate", "--home", str(world.home.path)]
        await _start(world, command)
        try:
            yield relay
        finally:
            relay.swallow = False
            await asyncio.to_thread(supervisor.stop, world.home)
    await _start(world, [])


async def _start(world: World, gatekeeper: list[str]) -> None:
    def start() -> None:
        supervisor.stop(world.home)
        assert supervisor.start(world.home, detach=True, ready_timeout_s=UP_S, gatekeeper=gatekeeper).state == "ready"

    await asyncio.to_thread(start)


async def last_seq(world: World, stream: str) -> int:
    async with core_client(world.home) as nc:
        return int((await nc.jetstream().stream_info(stream)).state.last_seq)


async def grown(world: World, stream: str, before: int) -> None:
    """Until the broker has stored one more block, whatever the gatekeeper knows of it."""
    async with core_client(world.home) as nc, asyncio.timeout(10):
        while (await nc.jetstream().stream_info(stream)).state.last_seq == before:  # noqa: ASYNC110 - the broker's state
            await asyncio.sleep(0.01)


async def stored_times(world: World, content: str) -> int:
    return Counter(text for _, _, text in (await streams(world.home)).memories)[content]


# --- the acknowledgement is lost ----------------------------------------------------------------------
@pytest.mark.parametrize("line", ["stays", "is cut"])
def test_an_append_whose_acknowledgement_is_lost_is_stored_once(world: World, line: str) -> None:
    async def scenario() -> None:
        content = f"The acknowledgement of this one is lost, the line {line}"
        async with ambushed(world) as relay, world.agent("writer") as memory:
            before = await last_seq(world, "LEDGER_0")
            relay.arm(b"ledger.0.block")
            writing = asyncio.create_task(memory.write(content))
            await relay.caught.wait()
            await grown(world, "LEDGER_0", before)
            assert not writing.done()
            relay.swallow = False
            if line == "is cut":
                relay.cut()
            receipt = await writing
            assert receipt.state == "active"
            assert (await memory.query("acknowledgement lost line", k=16)).ids.count(receipt.id) == 1
            assert await stored_times(world, content) == 1
            assert (await memory.write("The line works again")).position > receipt.position

    asyncio.run(scenario())


def test_a_recall_whose_record_s_acknowledgement_is_lost_is_answered_and_recorded_once(world: World) -> None:
    async def scenario() -> None:
        async with ambushed(world) as relay, world.agent("reader") as memory:
            before = await last_seq(world, "READS_0")
            relay.arm(b"reads.0.block")
            asking = asyncio.create_task(memory.query("anything at all"))
            await relay.caught.wait()
            await grown(world, "READS_0", before)
            assert not asking.done()
            relay.swallow = False
            recall = await asking
            recorded = Counter(ids.text("rec_", r.recall) for r in (await streams(world.home)).recalls)
            assert recorded[recall.recall_id] == 1

    asyncio.run(scenario())


def test_a_write_whose_gatekeeper_dies_between_append_and_receipt_is_answered_by_the_next(world: World) -> None:
    async def scenario() -> None:
        content = "The gatekeeper that stored this one never learnt of it"
        async with ambushed(world) as relay, world.agent("writer") as memory:
            before = await last_seq(world, "LEDGER_0")
            relay.arm(b"ledger.0.block")
            writing = asyncio.create_task(memory.write(content, idempotency_key="orphan"))
            await relay.caught.wait()
            await grown(world, "LEDGER_0", before)
            was = world.pid("gatekeeper")
            world.kill9("gatekeeper")
            relay.swallow = False
            await world.ready_again(was)
            receipt = await writing
            assert receipt.duplicate
            assert await stored_times(world, content) == 1

    asyncio.run(scenario())


# --- the client retries -------------------------------------------------------------------------------
@pytest.mark.parametrize("process", ["gatekeeper", "broker"])
def test_a_retry_after_a_kill_returns_the_first_receipt(world: World, process: str) -> None:
    async def scenario() -> None:
        content = f"Told once, asked twice, {process} killed"
        async with world.agent("writer") as memory:
            first = await memory.write(content, idempotency_key=f"retry-{process}")
            assert not first.duplicate
            await kill_and_wait(world, process)
            again = await memory.write(content, idempotency_key=f"retry-{process}")
            assert again.duplicate
            assert (again.id, again.position, again.trust, again.actor) == (first.id, first.position, first.trust, first.actor)
            with pytest.raises(Conflict):
                await memory.write("Something else", idempotency_key=f"retry-{process}")
        async with world.agent("reader") as other:  # a key is its agent's own
            assert not (await other.write(content, idempotency_key=f"retry-{process}")).duplicate
        assert await stored_times(world, content) == 2

    asyncio.run(scenario())


def test_many_retries_at_once_make_one_memory(world: World) -> None:
    async def scenario() -> None:
        content = "Sent thirty-two times at once"
        async with world.agent("writer") as memory:
            receipts = await asyncio.gather(*(memory.write(content, idempotency_key="burst") for _ in range(32)))
        assert len({r.id for r in receipts}) == 1
        assert sum(not r.duplicate for r in receipts) == 1
        assert await stored_times(world, content) == 1

    asyncio.run(scenario())


# --- no room ------------------------------------------------------------------------------------------
@asynccontextmanager
async def full(world: World, stream: str) -> AsyncIterator[None]:
    """A stream without room for one more byte."""
    async with core_client(world.home, "admin") as nc:
        js = nc.jetstream()
        config = (await js.stream_info(stream)).config

        async def limit(max_bytes: int) -> Any:
            return await js.update_stream(config.evolve(max_bytes=max_bytes))

        was = config.max_bytes or -1
        await limit((await js.stream_info(stream)).state.bytes)
        try:
            yield
        finally:
            await limit(was)


def test_a_full_ledger_refuses_and_says_so_and_goes_on_when_there_is_room(world: World) -> None:
    async def scenario() -> None:
        quick = bus.Timing(deadline_s=2.0)
        async with (
            bus.connect(world.home.url, world.creds("writer"), project="p1", timing=quick) as impatient,
            world.agent("writer") as memory,
        ):
            async with full(world, "LEDGER_0"):
                with pytest.raises(Unavailable) as refused:
                    await impatient.write("No room for this")
                assert refused.value.reason == "ledger_full"
                assert (await memory.query("is anybody there?")).recall_id  # reads go on
            async with full(world, "READS_0"):
                with pytest.raises(Unavailable) as refused:
                    await impatient.query("and now?")
                assert refused.value.reason == "reads_full"
                assert (await memory.write("Writes go on")).state == "active"
            assert (await memory.write("Room for this")).state == "active"
            assert (await memory.query("and now?")).recall_id
        assert await stored_times(world, "No room for this") == 0

    asyncio.run(scenario())


async def the_case(desk: bus.Desk, root: str) -> bus.Case:
    (case,) = [c for c in await desk.cases() if c.roots == [root]]
    return case


def test_a_hold_that_the_ledger_had_no_room_for_stays_in_force_and_its_children_survive_a_restart(world: World) -> None:
    """Fail closed: the case is pending, members and children are held; it is written when there is room, and only then lasts."""

    async def scenario() -> None:
        async with world.agent("writer") as memory, world.desk() as desk:
            root = await memory.write("Root of a case that found no room")
            async with full(world, "LEDGER_0"):
                assert (await desk.hold_now(root.id, "no room")).state == "pending"
                assert (await memory.get(root.id)).withheld == {"held": 1}
                with pytest.raises(Conflict) as early:
                    await desk.release((await the_case(desk, root.id)).case, "too early")
                assert early.value.reason == "case_pending"
            async with asyncio.timeout(20):
                while (case := await the_case(desk, root.id)).state == "pending":  # noqa: ASYNC110 - another process writes it
                    await asyncio.sleep(0.2)
            assert case.state == "open"
            child = await memory.write("Child of the held one", derived_from=[root.id])
            assert child.state == "held"
            await kill_and_wait(world, "gatekeeper")
            assert (await memory.get([root.id, child.id])).withheld == {"held": 2}
            await desk.release(case.case, "shown")
            assert (await memory.get([root.id, child.id])).ids == [root.id, child.id]

    asyncio.run(scenario())


def test_a_broker_that_is_frozen_makes_everything_unavailable_and_nothing_double(world: World) -> None:
    async def scenario() -> None:
        content = "Written while the broker was frozen"
        async with world.agent("writer") as memory:
            assert (await memory.write("Before the frost")).state == "active"
            pid = world.pid("broker")
            os.kill(pid, signal.SIGSTOP)
            writing = asyncio.create_task(memory.write(content))
            done, _ = await asyncio.wait([writing], timeout=2)
            os.kill(pid, signal.SIGCONT)
            assert not done
            assert (await writing).state == "active"
        await until(lambda: (s := supervisor.read_status(world.home)) is not None and s.state == "ready", "ready")
        assert await stored_times(world, content) == 1

    asyncio.run(scenario())
