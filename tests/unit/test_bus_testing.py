"""What is the twin's own: its clock, its faults, the broker's rules in memory, the façade without await, the pytest plugin."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import bus
import bus.sync
import bus.testing
from bus.testing import FaultPlan, ManualClock, World
from bus.testing.transport import covers

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"
NOON = "2026-01-31T12:00:00Z"
KEYS = "The staging database uses rotating keys"
QUICK = bus.Timing(request_s=0.1, deadline_s=3.0)
IMPATIENT = bus.Timing(request_s=0.1, deadline_s=0.5)


@pytest.fixture
def world() -> Iterator[World]:
    with bus.testing.bus(clock=ManualClock(NOON)) as running:
        yield running


# --- the clock ----------------------------------------------------------------------------------------
def test_the_clock_stands_until_it_is_moved_and_never_goes_back() -> None:
    clock = ManualClock(NOON)
    assert (clock(), clock()) == (1_769_860_800_000, 1_769_860_800_000)
    clock.advance(days=1, hours=1, seconds=0.5)
    assert clock.now.isoformat() == "2026-02-01T13:00:00.500000+00:00"
    with pytest.raises(ValueError, match="back"):
        clock.advance(seconds=-1)
    with pytest.raises(ValueError, match="zone"):
        ManualClock("2026-01-31T12:00:00")


def test_a_memory_expires_when_the_clock_says_so(world: World) -> None:
    async def scenario() -> None:
        alice = world.agent("alice")
        receipt = await alice.write(KEYS, kind="emotional_state")  # 24 hours by default
        world.clock.advance(hours=23, minutes=59)
        item = (await alice.query(KEYS)).admitted[0]
        assert (item.memory.written_at, item.memory.expires_at) == ("2026-01-31T12:00:00.000Z", "2026-02-01T12:00:00.000Z")
        world.clock.advance(minutes=1)
        assert (await alice.query(KEYS)).withheld == {"expired": 1}
        assert (await alice.get(receipt.id)).ids == []

    asyncio.run(scenario())


def test_an_idle_context_forgets_what_it_was_served(world: World) -> None:
    async def scenario() -> None:
        ingest, alice = world.agent("page", role="ingest"), world.agent("alice")
        await ingest.write("The rollback version of gateway-7 is 4.18.2", evidence=["https://wiki.example"])
        assert (await alice.query("gateway-7")).admitted
        world.clock.advance(hours=24)
        before = await alice.write("Wednesday follows Tuesday", evidence=["https://calendar.example"])
        world.clock.advance(seconds=1)
        after = await alice.write("Friday follows Thursday", evidence=["https://calendar.example"])
        assert (before.trust_floor, after.trust_floor) == (0.25, 0.5)

    asyncio.run(scenario())


def test_what_is_due_happens_before_the_next_answer(world: World) -> None:
    async def scenario() -> None:
        page, alice, desk = world.agent("page", role="ingest"), world.agent("alice"), world.operator()
        source = await page.write("The gateway fails at night", evidence=["https://wiki.example"])
        async with alice.run("nightly", task="look"):
            await alice.query("gateway failure")
            suspect = await alice.write("Gateway failures occur every evening", evidence=["https://runbook.example"])
        plan = await desk.plan(source.id, suspects=True)
        assert [s.id for s in plan.suspects] == [suspect.id]
        await desk.apply(plan.plan, "forged")
        assert (await alice.get([source.id, suspect.id])).withheld == {"held": 2}
        world.clock.advance(hours=24)  # as long as suspects are held
        assert (await alice.get([source.id, suspect.id])).ids == [suspect.id]

    asyncio.run(scenario())


def test_a_plan_is_good_for_an_hour(world: World) -> None:
    async def scenario() -> None:
        alice, desk = world.agent("alice"), world.operator()
        receipt = await alice.write(KEYS)
        late, good = await desk.plan(receipt.id), await desk.plan(receipt.id)
        world.clock.advance(minutes=59)
        assert (await desk.apply(good.plan, "wrong")).count == 1
        world.clock.advance(minutes=1)
        with pytest.raises(bus.Conflict) as old:
            await desk.apply(late.plan, "wrong")
        assert old.value.reason == "plan_unknown"

    asyncio.run(scenario())


# --- faults -------------------------------------------------------------------------------------------
def test_a_lost_receipt_is_asked_for_again_and_makes_one_memory(world: World) -> None:
    async def scenario() -> None:
        alice = world.agent("alice")
        world.faults.drop_reply("write", times=2)
        receipt = await alice.write(KEYS)
        assert (receipt.duplicate, world.faults.left) == (True, 0)
        assert (await alice.query(KEYS)).ids == [receipt.id]

    asyncio.run(scenario())


def test_an_outcome_that_stays_unknown_carries_the_key_to_ask_with(world: World) -> None:
    async def scenario() -> None:
        alice = world.agent("alice", timing=IMPATIENT)
        world.faults.drop_reply("write", times=100)
        with pytest.raises(bus.DeadlineExceeded) as late:
            await alice.write(KEYS)
        assert late.value.reason == "outcome_unknown"
        world.faults.clear()
        patient = world.agent("alice")
        receipt = await patient.write(KEYS, idempotency_key=late.value.idempotency_key)
        assert receipt.duplicate
        assert (await patient.query(KEYS)).ids == [receipt.id]

    asyncio.run(scenario())


def test_a_change_that_may_have_happened_is_not_sent_again(world: World) -> None:
    async def scenario() -> None:
        alice, desk = world.agent("alice"), world.operator(timing=QUICK)
        receipt = await alice.write(KEYS)
        world.faults.drop_reply("hold")
        with pytest.raises(bus.DeadlineExceeded) as unknown:
            await desk.hold_now(receipt.id, "forged")
        assert unknown.value.reason == "outcome_unknown"
        assert [c.state for c in await desk.cases()] == ["open"]

    asyncio.run(scenario())


def test_a_bus_that_is_away_is_tried_again_and_one_that_stays_away_has_got_nothing(world: World) -> None:
    async def scenario() -> None:
        alice = world.agent("alice", timing=IMPATIENT)
        world.faults.unavailable("write")
        assert not (await world.agent("alice").write(KEYS)).duplicate
        world.faults.unavailable("query", times=100)
        with pytest.raises(bus.DeadlineExceeded) as away:
            await alice.query(KEYS)
        assert away.value.reason == "not_delivered"

    asyncio.run(scenario())


def test_a_late_answer_is_a_time_out_and_one_in_time_is_an_answer(world: World) -> None:
    async def scenario() -> None:
        alice, bob = world.agent("alice", timing=bus.Timing(request_s=0.1, deadline_s=5.0)), world.agent("bob")
        world.faults.delay(0.3)
        assert not (await bob.write(KEYS)).duplicate
        world.faults.delay(0.3)
        assert (await alice.write("Something else")).duplicate

    asyncio.run(scenario())


def test_a_request_that_arrives_twice_is_done_once(world: World) -> None:
    async def scenario() -> None:
        alice = world.agent("alice")
        world.faults.duplicate("write")
        receipt = await alice.write(KEYS)
        assert (await alice.query(KEYS)).ids == [receipt.id]
        assert not world.faults.left

    asyncio.run(scenario())


def test_a_violation_is_denied_at_once_and_only_to_whom_it_was_planned(world: World) -> None:
    async def scenario() -> None:
        alice, bob = world.agent("alice"), world.agent("bob")
        world.faults.deny("write", agent="alice")
        assert (await bob.write(KEYS)).state == "active"
        with pytest.raises(bus.Denied) as denied:
            await alice.write(KEYS)
        assert denied.value.reason == "permission_violation"
        assert (await alice.write(KEYS)).state == "active"

    asyncio.run(scenario())


def test_a_plan_counts_what_no_request_has_met() -> None:
    plan = FaultPlan().unavailable("query", times=2).drop_reply()
    assert plan.left == 3
    kinds = [fault.kind if (fault := plan.take(verb, "alice")) else "" for verb in ("query", "write", "query", "query")]
    assert kinds == ["unavailable", "drop_reply", "unavailable", ""]
    with pytest.raises(ValueError, match="times"):
        plan.deny(times=0)


# --- the broker ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pattern", "subject", "covered"),
    [
        ("mem.acme.p1.*.UK", "mem.acme.p1.write.UK", True),
        ("mem.acme.p1.*.UK", "mem.acme.p2.write.UK", False),
        ("mem.acme.p1.*.UK", "mem.acme.p1.write", False),
        ("mem.acme.p1.*", "mem.acme.p1.write.UK", False),
        ("feed.acme.p1.internal.>", "feed.acme.p1.internal.*", True),
        ("feed.acme.p1.internal.>", "feed.acme.p1.*.memory", False),
        ("feed.acme.p1.internal.>", "feed.acme.p1.internal", False),
        ("feed.acme.*", "feed.acme.>", False),
        ("feed.acme.p1", "feed.acme.*", False),
    ],
)
def test_a_pattern_covers_whole_tokens(pattern: str, subject: str, covered: bool) -> None:
    assert covers(pattern, subject) is covered


def test_an_agent_keeps_its_rights_and_comes_on_several_connections(world: World) -> None:
    async def scenario() -> None:
        one, two = world.agent("alice"), world.agent("alice")
        assert (await one.write(KEYS)).actor == (await two.write("Something else")).actor
        with pytest.raises(bus.Conflict):
            world.agent("alice", role="ingest")
        with pytest.raises(bus.Rejected) as unknown:
            world.agent("bob", project="elsewhere")
        assert unknown.value.reason == "project_unknown"

    asyncio.run(scenario())


def test_clients_may_live_on_loops_of_their_own(world: World) -> None:
    written: list[str] = []

    def elsewhere(name: str) -> None:
        async def write() -> None:
            written.append((await world.agent(name).write(f"{KEYS}, says {name}")).id)

        asyncio.run(write())

    threads = [threading.Thread(target=elsewhere, args=(f"agent-{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def read() -> None:
        assert len(written) == 4
        assert set((await world.agent("reader").query(KEYS)).ids) == set(written)

    asyncio.run(read())


def test_who_waits_when_the_world_ends_is_told() -> None:
    async def scenario() -> None:
        async with bus.testing.bus() as world:
            alice = world.agent("alice")
            feed = alice.feed()
            async with feed, anyio.create_task_group() as tasks:

                async def listen() -> None:
                    with pytest.raises(bus.Closed):
                        await anext(aiter(feed))

                tasks.start_soon(listen)
                await alice.write(KEYS, readers=[["agent:nobody"]])  # not fed: it goes on listening
                await world.__aexit__(None, None, None)
            with pytest.raises(bus.Closed):
                await alice.write(KEYS)
        with pytest.raises(bus.Closed):
            world.agent("bob")

    asyncio.run(scenario())


# --- without await ------------------------------------------------------------------------------------
def test_the_same_without_await(world: World) -> None:
    alice, desk = world.blocking(world.agent("alice")), world.blocking(world.operator())
    with alice.run("nightly"):
        receipt = alice.write(KEYS, evidence=["https://wiki.example"])
    assert alice.query("staging database").ids == [receipt.id]
    assert alice.get(receipt.id).admitted[0].memory.content == KEYS
    assert desk.plan("run:nightly").roots == [receipt.id]
    case = desk.hold_now(receipt.id, "forged")
    assert [n.case for n in alice.sync().notices] == [case.case]
    assert alice.ack(alice.sync().notices).notices == []
    with pytest.raises(bus.Rejected):
        alice.write("")


@pytest.mark.parametrize("connect", [bus.sync.connect, bus.sync.connect_operator])
def test_the_facade_raises_what_the_client_raises(connect: object, tmp_path: Path) -> None:
    assert callable(connect)
    with pytest.raises(bus.ConfigError) as missing, connect("nats://127.0.0.1:1", tmp_path / "no.creds"):
        pass
    assert missing.value.reason == "creds_unreadable"


# --- the plugin ---------------------------------------------------------------------------------------
TWIN_TEST = """
import asyncio

def test_with_await(cordon_bus):
    async def scenario():
        receipt = await cordon_bus.agent("alice", project="here").write("hello")
        assert receipt.state == "active"
    asyncio.run(scenario())

def test_without(cordon_bus):
    assert cordon_bus.blocking(cordon_bus.agent("alice")).query("hello").ids == []
"""
HOME_TEST = """
import asyncio

def test_home(cordon_home):
    async def scenario():
        async with cordon_home.agent("alice") as alice, cordon_home.operator() as desk:
            receipt = await alice.write("hello")
            assert (await desk.hold_now(receipt.id, "a greeting")).count == 1
        assert cordon_home.creds("alice").endswith("alice.creds")
    asyncio.run(scenario())
"""
PROJECTS = "import pytest\n@pytest.fixture(scope='session')\ndef cordon_projects(): return {'here': {}, 'there': {}}\n"
WITHOUT_TORCH = "import sys\nsys.modules['torch'] = None\n"


def run_pytest(folder: Path, test: str) -> str:
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "bus.testing", "-p", "no:cacheprovider", "-rs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder)
    return done.stdout + done.stderr


def test_the_plugin_gives_a_twin_to_each_test_and_one_home_to_the_session(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PROJECTS)
    assert "3 passed" in run_pytest(tmp_path, TWIN_TEST + HOME_TEST)


def test_without_the_gate_the_home_is_skipped_and_the_twin_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(WITHOUT_TORCH)
    out = run_pytest(tmp_path, TWIN_TEST + HOME_TEST)
    assert "2 errors" in out
    assert "1 skipped" in out
    assert "torch missing. Install it where the tests run: `pip install 'cordon-bus[gate]'`." in out


def test_the_test_file_of_the_docs_passes(tmp_path: Path) -> None:
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    (test_file,) = [block for block in blocks if "def test_" in block]
    assert "3 passed" in run_pytest(tmp_path, test_file)


def test_import_loads_nothing_heavy_and_nothing_of_the_gate() -> None:
    code = "import bus.testing, bus.sync, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert "bus" in shown
    assert not set(shown) & {"torch", "duckdb", "numpy", "gate", "broker_config", "pytest"}
