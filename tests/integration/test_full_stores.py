"""Stores that are full or fail while a home serves: who is refused and why, what goes on, and that it passes by itself."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamConfig

import bus
from broker_config import supervisor
from broker_config.control import Control
from broker_config.ledger_room import LedgerRoom
from broker_config.streams import LENT_MAX_SHARE, StreamRoom, _enlarge
from bus.errors import DeadlineExceeded, Unavailable

from .stored import core_client, streams
from .world import UP_S, World, running, until, verified

pytestmark = pytest.mark.slow  # processes that are stopped, limited and waited for

QUICK = bus.Timing(request_s=2.0, deadline_s=3.0)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:
        asyncio.run(world.add("writer"))
        yield world


@asynccontextmanager
async def impatient(world: World) -> AsyncIterator[bus.MemoryBus]:
    async with bus.connect(world.home.url, world.creds("writer"), project="p1", timing=QUICK) as memory:
        yield memory


async def refused(asking: Any) -> str:
    """Why something is refused now; it says when to come again."""
    with pytest.raises(Unavailable) as said:
        await asking
    if not isinstance(said.value, DeadlineExceeded):
        assert said.value.retry_after_s > 0
        assert said.value.advice
    return said.value.reason


async def troubles(world: World) -> list[str]:
    """What `cordon status` names."""
    async with Control(world.home) as control:
        return list((await control.status())["troubles"])


def cordon(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CORDON_HOME": str(world.home.path)}
    command = [str(Path(sys.executable).with_name("cordon")), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


async def named(world: World, words: str, timeout_s: float = 15.0) -> None:
    """The gatekeeper comes to name a trouble."""
    async with asyncio.timeout(timeout_s):
        while not any(words in x for x in await troubles(world)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)


async def passed(world: World, words: str, timeout_s: float = 20.0) -> None:
    """And names it no more."""
    async with asyncio.timeout(timeout_s):
        while any(words in x for x in await troubles(world)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)


async def works(memory: bus.MemoryBus, what: str, timeout_s: float = 20.0) -> bus.Receipt:
    """Write until it is taken, then find it."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                receipt = await memory.write(what)
                break
            except Unavailable:
                await asyncio.sleep(0.2)
    assert receipt.id in (await memory.query(what)).ids
    return receipt


async def stored_times(world: World, content: str) -> int:
    return Counter(text for _, _, text in (await streams(world.home)).memories)[content]


# --- the ledger fills up --------------------------------------------------------------------------------
@asynccontextmanager
async def ledger_filled_to(world: World, share: float) -> AsyncIterator[Callable[[float], Any]]:
    """`max_bytes` such that what is there is this share of it; the same function changes it. The gatekeeper knows when this is
    entered."""
    async with core_client(world.home, "admin") as nc:
        js = nc.jetstream()
        config: StreamConfig = (await js.stream_info("LEDGER_0")).config
        was = config.max_bytes or -1

        async def fill(to: float) -> None:
            size = (await js.stream_info("LEDGER_0")).state.bytes
            await js.update_stream(config.evolve(max_bytes=int(size / to)))
            await known(to)

        async def known(to: float) -> None:
            async with Control(world.home) as control, asyncio.timeout(20):
                while abs((await control.status())["ledger_full_share"] - to) > 0.02:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.2)

        await fill(share)
        try:
            yield fill
        finally:
            await js.update_stream(config.evolve(max_bytes=was))
            await known(0.0)


def test_a_ledger_that_is_nearly_full_takes_no_drafts_and_leaves_its_rest_to_containment_and_erasure(world: World) -> None:
    async def scenario() -> None:
        async with impatient(world) as memory, world.desk() as desk, Control(world.home) as control:
            root, gone = await memory.write("Root of what will be held"), await memory.write("What will be erased")
            bulk = [await memory.write(f"Bulk {i} " + "lorem ipsum " * 500) for i in range(12)]
            async with ledger_filled_to(world, 0.93):
                assert await refused(memory.write("One draft more")) == "ledger_full"
                await named(world, "the ledger is 9")
                assert bulk[0].id in (await memory.query("bulk lorem", k=16)).ids
                await world.add("late")  # an agent still finds room
            async with ledger_filled_to(world, 0.96):
                with pytest.raises(Unavailable) as full:
                    await control.agent_add("acme", "later", role="agent", projects=("p1",))
                assert full.value.reason == "ledger_full"
                case = await desk.hold_now(root.id, "found on the way to full")
                assert case.state == "open"
                assert (await memory.get(root.id)).withheld == {"held": 1}
                receipt = await desk.erase([gone.id], "the customer asked for it")
                async with asyncio.timeout(20):
                    while receipt.state != "done":
                        await asyncio.sleep(0.2)
                        receipt = await desk.erasure(receipt.erasure)
                assert (await memory.get(gone.id)).withheld == {"erased": 1}
                await desk.release(case.case, "it was nothing")
                assert (await memory.get(root.id)).ids == [root.id]
                await control.agent_revoke("acme", "late")
            await works(memory, "There is room again")
        assert await stored_times(world, "One draft more") == 0
        assert (await verified(world.home))["ok"]

    asyncio.run(scenario())


def test_a_ledger_that_containment_fills_is_lent_room_up_to_a_bound_and_a_size_that_is_set_ends_it(world: World) -> None:
    async def room() -> StreamRoom:
        async with Control(world.home) as control:
            return (await control.streams_room({}))[0]

    async def scenario() -> None:
        note = "found on the way to full; " + "what was seen is told at length " * 28
        await world.add("kim", role="operator", person="kim", see=("public", "internal", "restricted"))
        kim = bus.connect_operator(world.home.url, world.creds("kim"), timing=QUICK)
        async with impatient(world) as memory, kim as desk:
            root, gone = await memory.write("Kept again and again"), await memory.write("Erased afterwards")
            for i in range(30):
                await memory.write(f"Bulk {i} " + "lorem ipsum " * 3_000)
            async with ledger_filled_to(world, 0.985):
                size = (await room()).max_bytes
                held, refusals = 0, Counter[str]()
                async with asyncio.timeout(90):
                    while not ((full := await room()).lent == int(size * LENT_MAX_SHARE) and full.at_its_end and refusals):
                        try:
                            kept = await desk.place_legal_hold(root.id, note)
                            held += 1
                            await desk.lift_legal_hold(kept.hold, note)
                        except Unavailable as e:
                            refusals[e.reason] += 1
                            await asyncio.sleep(0.2)
                assert size * 1.08 < full.bytes <= full.max_bytes == size + full.lent
                assert held * 2 * len(note) > 0.03 * size
                assert refusals.keys() == {"ledger_full"}
                assert await refused(memory.write("A draft")) == "ledger_full"

                def told() -> bool:
                    now = supervisor.read_status(world.home)
                    return now is not None and now.error is not None and now.error.reason == "ledger_full"

                await until(told, "the status says so", 40)
                shown = await asyncio.to_thread(cordon, world, "status")
                assert "cordon broker room --ledger" in shown.stderr
                assert "are lent to it" in world.home.log("supervisor").read_text()
                shown = await asyncio.to_thread(cordon, world, "broker", "room")
                assert "are lent" in shown.stdout
                assert (await asyncio.to_thread(cordon, world, "broker", "room", "--ledger", "1")).returncode == 0
                assert ((await room()).lent, (await room()).max_bytes) == (0, 1 << 30)
                receipt = await desk.erase([gone.id], "and the rest goes on")
                assert receipt.state in ("erasing", "done")
                await works(memory, "Drafts too")

                def over() -> bool:
                    now = supervisor.read_status(world.home)
                    return now is not None and now.error is None

                await until(over, "the status is as before", 40)
        assert (await verified(world.home))["ok"]

    asyncio.run(scenario())


def test_a_supervisor_that_starts_again_still_says_what_is_lent(world: World) -> None:
    async def scenario() -> None:
        async with Control(world.home) as control:
            js = control._client().jetstream()
            info = await js.stream_info("LEDGER_0")
            size = info.config.max_bytes or 0
            fresh = LedgerRoom(world.home)
            assert await asyncio.to_thread(fresh.tick, 1.0) == ""
            assert fresh.problem is None
            await _enlarge(js, info, size + (1 << 20), 1 << 20)
            try:
                again = LedgerRoom(world.home)
                await asyncio.to_thread(again.tick, 1.0)
                assert again.problem is not None
                assert again.problem.reason == "ledger_lent"
            finally:
                await control.streams_room({"ledger": size})

    asyncio.run(scenario())


# --- files that can't be written ------------------------------------------------------------------------
@contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """A limit of a running process, lowered for a while."""
    soft, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, what, (soft, hard))


def test_catalog_and_lineage_store_that_can_t_be_written_stop_drafts_alone_until_they_can(world: World) -> None:
    """RLIMIT_FSIZE of the gatekeeper: EFBIG for SQLite's and DuckDB's files; the ledger is the broker's."""

    async def scenario() -> None:
        async with impatient(world) as memory, world.desk() as desk:
            before = await memory.write("Written before the file was at its limit")
            pid = world.pid("gatekeeper")
            with limited(pid, resource.RLIMIT_FSIZE, 4_096):
                during = await memory.write("Written when the file was at its limit")  # the ledger has it
                await named(world, "the catalog of tenant acme can't be written")
                assert await refused(memory.write("No draft is taken now")) == "store_unwritable"
                assert {before.id, during.id} <= set((await memory.query("written file limit", k=16)).ids)
                case = await desk.hold_now(during.id, "in the middle of it")
                assert (await memory.get([before.id, during.id])).ids == [before.id]
                await named(world, "lineage.duckdb can't be written")
                shown = await asyncio.to_thread(cordon, world, "status")
                assert "attention: the catalog of tenant acme can't be written" in shown.stderr
                erasing = await desk.erase([before.id], "in the middle of it")
                assert erasing.state == "erasing"
                assert (await memory.get(before.id)).withheld == {"erased": 1}
            await passed(world, "can't be written")
            await works(memory, "Drafts are taken again")
            async with asyncio.timeout(20):
                while (await desk.erasure(erasing.erasure)).state != "done":  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.2)
            await desk.release(case.case, "over")
            assert (await memory.get(during.id)).ids == [during.id]
            assert (await desk.why(during.id)).facts
            assert world.pid("gatekeeper") == pid  # nobody was started again
        assert await stored_times(world, "No draft is taken now") == 0
        assert (await verified(world.home))["ok"]

    asyncio.run(scenario())


def test_without_file_descriptors_what_is_open_serves_and_the_rest_waits(world: World) -> None:
    async def scenario() -> None:
        async with impatient(world) as memory, world.desk() as desk:
            root = await memory.write("Before the descriptors ran out")
            pid = world.pid("gatekeeper")
            open_files = len(os.listdir(f"/proc/{pid}/fd"))
            with limited(pid, resource.RLIMIT_NOFILE, open_files - 4):
                during = await memory.write("While the descriptors are out")
                assert {root.id, during.id} <= set((await memory.query("descriptors", k=16)).ids)
                case = await desk.hold_now(during.id, "held without a descriptor")
                assert (await memory.get(during.id)).withheld == {"held": 1}
                async with Control(world.home) as control:
                    with pytest.raises(Unavailable) as no_file:
                        await control.tenant_add("fresh")
                    assert no_file.value.reason == "store_unwritable"
            await desk.release(case.case, "over")
            async with Control(world.home) as control:
                await control.tenant_add("fresh")  # nothing of the first try is in its way
            await works(memory, "Descriptors are there again")
            assert world.pid("gatekeeper") == pid
        assert (await verified(world.home))["ok"]

    asyncio.run(scenario())


def test_a_connection_that_is_lost_without_file_descriptors_comes_back(world: World) -> None:
    async def scenario() -> None:
        async with impatient(world) as memory:
            pid, broker = world.pid("gatekeeper"), world.pid("broker")
            with limited(pid, resource.RLIMIT_NOFILE, 3):
                world.kill9("broker")
                await until(lambda: world_has_another(world, broker), "another broker")
                assert await refused(memory.write("Nobody hears this")) in ("not_delivered", "outcome_unknown")
            await works(memory, "The connection is back")
            assert world.pid("gatekeeper") == pid

    asyncio.run(scenario())


def world_has_another(world: World, broker: int) -> bool:
    now = supervisor.read_status(world.home)
    return now is not None and now.pids.get("broker") not in (None, broker)


# --- the broker is away ---------------------------------------------------------------------------------
AWAY_S = 12.0  # longer than the lease, a request and a client's patience; a minute was tried by hand


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_a_broker_that_is_away_for_long_is_waited_for(world: World, how: str) -> None:
    async def scenario() -> None:
        async with impatient(world) as memory:
            await memory.write(f"Before the broker was {how}")
            pid, broker, keeper = world.pid("gatekeeper"), world.pid("broker"), world.pid("supervisor")
            if how == "frozen":
                os.kill(broker, signal.SIGSTOP)
            else:
                os.kill(keeper, signal.SIGSTOP)  # nobody starts another
                os.kill(broker, signal.SIGKILL)
            away = asyncio.create_task(asyncio.sleep(AWAY_S))
            try:
                for i in range(3):
                    said = await refused(memory.write(f"While the broker is {how}, {i}", idempotency_key=f"{how}{i}"))
                    assert said in ("not_delivered", "outcome_unknown", "ledger_unreachable")
                shown = await asyncio.to_thread(cordon, world, "status")
                assert shown.returncode == 6
                assert f"The broker (pid {broker}) does not answer" in shown.stderr or "broker is not running" in shown.stderr
                await away
            finally:
                os.kill(broker if how == "frozen" else keeper, signal.SIGCONT)
            for i in range(3):
                async with asyncio.timeout(30):
                    while True:
                        try:
                            await memory.write(f"While the broker is {how}, {i}", idempotency_key=f"{how}{i}")
                            break
                        except Unavailable:
                            await asyncio.sleep(0.2)
            await works(memory, f"After the broker was {how}")
            assert world.pid("gatekeeper") == pid
        for i in range(3):
            assert await stored_times(world, f"While the broker is {how}, {i}") == 1

    asyncio.run(scenario())


# --- the disk is full -----------------------------------------------------------------------------------
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, small enough to be filled. Needs the right to mount one."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(tmp_path)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path)
    try:
        yield tmp_path
    finally:
        tempfile.tempdir = before
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(disk: Path, left: int = 0) -> None:
    """Leave so many bytes."""
    with (disk / "ballast").open("ab", buffering=0) as f:
        try:
            while (free := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize) > left:
                f.write(b"x" * min(1 << 20, max(4_096, free - left)))
        except OSError:
            return


def test_a_full_disk_stops_drafts_then_everything_and_it_all_goes_on_when_there_is_room(small_disk: Path) -> None:
    async def scenario(world: World) -> None:
        await world.add("writer")
        async with impatient(world) as memory, world.desk() as desk:
            roots = [await memory.write(f"Written while there is room, {i}") for i in range(3)]
            assert (await memory.query("room")).ids
            pid, broker = world.pid("gatekeeper"), world.pid("broker")

            fill(small_disk, 8 << 20)  # nearly full: a person has time
            await named(world, "the disk has")
            assert await refused(memory.write("A draft on a disk that is nearly full")) == "disk_full"
            assert roots[0].id in (await memory.query("room")).ids
            assert (await desk.hold_now(roots[0].id, "nearly full")).state == "open"

            fill(small_disk)
            fill(small_disk)
            await named(world, "the disk has 0 MiB left")
            assert await refused(memory.query("room")) in ("disk_full", "ledger_unreachable")
            said = await asyncio.wait_for(hold_for_ever(desk, roots[1].id), 30)
            assert said in ("pending", "ledger_unreachable")  # in force and not written yet, or not done; and nobody is served
            now = supervisor.read_status(world.home)
            assert now is not None
            assert now.pids.keys() >= {"supervisor", "broker", "gatekeeper"}  # nobody died of it
            assert await refused(memory.get(roots[1].id)) in ("disk_full", "ledger_unreachable")

            (small_disk / "ballast").unlink()
            await works(memory, "There is room on the disk again", 40)
            assert roots[1].id not in (await memory.query("room", k=16)).ids
            assert world.pid("gatekeeper") == pid
            assert world.pid("broker") != broker  # it stores nothing until it is started again
            await passed(world, "the disk has")
        assert await stored_times(world, "A draft on a disk that is nearly full") == 0
        assert (await verified(world.home))["ok"]

    with running() as world:
        asyncio.run(scenario(world))


async def hold_for_ever(desk: bus.Desk, root: str) -> str:
    """Containment uses the last byte; the state of the first case that isn't open, or why there is none."""
    try:
        while (case := await desk.hold_now(root, "until the disk is full " + "x" * 900)).state == "open":
            pass
    except Unavailable as e:
        return e.reason
    return case.state


# --- the clock ------------------------------------------------------------------------------------------
_OTHER_CLOCK = """
import runpy, sys, time
from pathlib import Path
real, by = time.time, Path(sys.argv.pop(1))
def shifted():
    try:
        return real() + float(by.read_text() or 0)
    except (OSError, ValueError):
        return real()
time.time = shifted
sys.argv[0] = "gate"
runpy.run_module("gate", run_name="__main__", alter_sys=True)
"""
YEARS_70_S = 70 * 365 * 86_400


class OtherClock:
    """A gatekeeper's process with another clock than the machine's."""

    def __init__(self, folder: Path) -> None:
        self.by = folder / "by"
        self.set_by(0)

    def set_by(self, seconds: float) -> None:
        new = self.by.with_name("new")
        new.write_text(str(seconds))
        new.replace(self.by)

    def start(self, world: World) -> supervisor.Status:
        command = [sys.executable, "-P", "-c", _OTHER_CLOCK, str(self.by), "--home", str(world.home.path)]
        return supervisor.start(world.home, detach=True, ready_timeout_s=UP_S, gatekeeper=command)


def test_a_home_that_starts_with_a_clock_a_month_ahead_takes_nothing_out_of_anybody_s_head(tmp_path: Path) -> None:
    clock = OtherClock(tmp_path)

    async def before(world: World) -> float:
        await world.add("web", role="ingest")
        await world.add("reader")
        async with world.agent("web") as web, world.agent("reader") as reader, world.desk() as desk:
            page = await web.write("The pump is rated for 40 bar", evidence=["https://pump.example/1"])
            assert (await reader.query("pump rated")).ids == [page.id]
            await desk.hold_now(page.id, "looked at")
            return (await reader.write("Lunch is at noon")).trust_floor

    async def floor_after(world: World) -> float:
        async with world.agent("reader") as reader:
            return (await reader.write("Lunch is at one")).trust_floor

    with running() as world:
        floor = asyncio.run(before(world))
        assert floor < 0.5
        for seconds in (30 * 86_400, 30 * 86_400, 60 * 86_400):  # the second and third start know the first's from the ledger
            supervisor.stop(world.home)
            clock.set_by(seconds)
            assert clock.start(world).state == "ready"
            assert asyncio.run(floor_after(world)) == floor
        assert asyncio.run(verified(world.home))["ok"]


def test_a_clock_that_jumps_expires_nothing_and_ids_stay_in_order(tmp_path: Path) -> None:
    clock = OtherClock(tmp_path)
    set_by, start = clock.set_by, clock.start

    async def jumps(world: World) -> list[str]:
        async with impatient(world) as memory, world.desk() as desk:
            short = await memory.write("Kept for an hour", ttl=3_600)
            ids = [short.id]
            for seconds in (YEARS_70_S, 0, -YEARS_70_S, -3_600, 0):
                set_by(seconds)
                ids.append((await memory.write(f"Written with a clock that is {seconds} s off")).id)
                assert short.id in (await memory.query("kept for an hour")).ids
                case = await desk.hold_now(short.id, "held")
                assert (await memory.get(short.id)).withheld == {"held": 1}
                await desk.release(case.case, "released")
                assert (await memory.delegate("helper" + str(len(ids)), ttl=600)).creds
                if abs(seconds) > 86_400:
                    await named(world, "this machine's clock is")
                else:
                    await passed(world, "ahead of the gatekeeper's")
            assert ids == sorted(ids)
            assert len(set(ids)) == len(ids)
        return ids

    with running() as world:
        asyncio.run(world.add("writer"))
        supervisor.stop(world.home)
        set_by(0)
        assert start(world).state == "ready"
        ids = asyncio.run(jumps(world))
        supervisor.stop(world.home)

        set_by(YEARS_70_S)  # it is still so at a start
        status = start(world)
        assert status.error is not None
        assert status.error.reason == "clock_implausible"
        assert "clock_implausible" in cordon(world, "status", "--json").stdout
        supervisor.stop(world.home)

        set_by(-3_600)  # a little behind: never before what was written
        assert start(world).state == "ready"

        async def later() -> str:
            async with impatient(world) as memory:
                return (await memory.write("Written after the start")).id

        assert asyncio.run(later()) > ids[-1]
        supervisor.stop(world.home)
