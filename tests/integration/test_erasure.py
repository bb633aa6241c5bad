"""Erasing text: it is gone from every byte under the home; who wrote it and what came of it stays; two persons where it matters.

The judge is a search for a marker over all files of the home: streams, write-ahead logs, stores, logs. Each search that finds
nothing stands after one that found the marker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from nats.js.api import StreamConfig

import bus
from broker_config.control import Control
from broker_config.home import Home

from .stored import core_client
from .world import World, running, until, verified

DONE_S = 20.0


@dataclass
class Desks:
    """Two operators who are persons, one who doesn't say who it is, and one of p1 alone."""

    kim: bus.Desk
    lee: bus.Desk
    nobody: bus.Desk
    narrow: bus.Desk


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:
        see = ("public", "internal", "restricted")

        async def populate() -> None:
            for person in ("kim", "lee"):
                await world.add(person, "p1", "p2", role="operator", person=person, see=see)
            await world.add("kims-other-key", "p1", "p2", role="operator", person="kim", see=see)
            await world.add("narrow", "p1", role="operator", person="pat", see=see)
            for name in ("w", "r", "s"):
                await world.add(name, "p1")
            await world.add("both", "p1", "p2")

        asyncio.run(populate())
        yield world


@asynccontextmanager
async def desks(world: World) -> AsyncIterator[Desks]:
    async with world.desk("kim") as kim, world.desk("lee") as lee, world.desk() as nobody, world.desk("narrow") as narrow:
        yield Desks(kim, lee, nobody, narrow)


def found(folder: Path, mark: str) -> set[str]:
    """Names of the files under a folder that hold the marker anywhere."""
    seen = set()
    for place, _, names in os.walk(folder):  # a folder that goes meanwhile is passed over
        for path in (Path(place, name) for name in names):
            with suppress(OSError):  # gone meanwhile
                if path.is_file() and not path.is_symlink() and mark.encode() in path.read_bytes():
                    seen.add(path.name)
    return seen


async def done(desk: bus.Desk, erasure: bus.Erasure) -> bus.Erasure:
    """The receipt when every store is done."""
    async with asyncio.timeout(DONE_S):
        while erasure.state != "done":
            await asyncio.sleep(0.05)
            erasure = await desk.erasure(erasure.erasure)
    return erasure


async def findings(home: Home) -> list[str]:
    """Of a verification of the home that is up."""
    found: list[str] = (await verified(home))["findings"]
    return found


# --- gone -----------------------------------------------------------------------------------------
def test_an_erased_text_is_in_no_byte_under_the_home(world: World) -> None:
    mark, other = "zorblaxian-quince", "neighbour-of-quince"

    async def scenario() -> None:
        async with world.agent("w") as writer, world.agent("r") as reader, desks(world) as d:
            long_text = f"{mark} " + "and many other words " * 2_500 + mark  # over many pages of the catalog
            labels = {"task": f"task-{mark}", "session": f"session-{mark}"}
            async with asyncio.TaskGroup() as together:  # so that they share a block with what stays
                async with writer.run(f"run-{mark}", **labels):
                    evidence = [f"mail:{mark}", f"a whole sentence on {mark}"]
                    first = together.create_task(writer.write(f"The code of the vault is {mark}", evidence=evidence))
                    second = together.create_task(writer.write(long_text, trace_id=f"trace-{mark}"))
                for i in range(6):
                    together.create_task(writer.write(f"note {i} on the {other}"))
            receipts = [first.result(), second.result()]
            assert len((await reader.query(f"code of the vault {mark}")).admitted) >= 1  # it is in a context's window too
            assert any(name.endswith(".blk") for name in found(world.home.path, mark))
            await until(lambda: any("sqlite" in name for name in found(world.home.path, mark)), "the catalog's commit")
            receipt = await done(d.kim, await d.kim.erase([r.id for r in receipts], "its subject asked for it"))
            assert {s.name: s.count for s in receipt.stores if s.name in ("catalog", "postings", "vectors")} == {
                "catalog": 2, "postings": 2, "vectors": 2,
            }  # fmt: skip
            assert {s.state for s in receipt.stores} == {"done", "no_text"}
            assert receipt.pending == []
            assert any("backups" in line for line in receipt.out_of_reach)
            assert found(world.home.path, mark) == set()
            assert found(world.home.path, other), "what was not named is there"
            assert len((await reader.query(f"the {other}", k=16)).admitted) == 6
            assert await findings(world.home) == []

    asyncio.run(scenario())


def test_questions_with_a_word_of_an_erased_restricted_memory_are_answered_as_before(world: World) -> None:
    async def scenario() -> None:
        await world.add("secretive", "p1", see=("public", "internal", "restricted"))
        async with world.agent("secretive") as writer, world.agent("r") as reader, desks(world) as d:
            open_ = await writer.write("The harbour master of Zirconium Bay wears a coat")
            secrets = [await writer.write(f"Zirconium {what} in the harbour", classification="restricted") for what in ("a", "b")]
            await d.kim.erase([secrets[0].id], "asked for")
            assert (await reader.query("zirconium harbour")).ids[0] == open_.id
            assert {secrets[1].id, open_.id} <= set((await writer.query("zirconium")).ids)

    asyncio.run(scenario())


def test_erasing_again_in_a_block_that_was_stripped_leaves_nothing_of_it_either(world: World) -> None:
    marks = [f"plimsoll-{i}-gantry" for i in range(4)]

    async def scenario() -> None:
        async with world.agent("w") as writer, desks(world) as d:
            receipts = await asyncio.gather(*(writer.write(f"remember {mark}") for mark in marks))
            for i, receipt in enumerate(receipts):
                assert found(world.home.path, marks[i])
                await done(d.kim, await d.kim.erase(receipt.id, "one after another"))
                assert [bool(found(world.home.path, mark)) for mark in marks] == [j > i for j in range(4)]
            assert await findings(world.home) == []

    asyncio.run(scenario())


def test_a_plan_names_what_derives_and_changes_nothing_and_the_derived_go_only_when_asked(world: World) -> None:
    mark = "ferrule-octopus-1871"

    async def scenario() -> None:
        async with world.agent("w") as writer, world.agent("r") as reader, desks(world) as d:
            first = await writer.write(f"The rope is spliced by {mark} on the lower deck")
            assert first.id in (await reader.query(f"rope {mark}")).ids
            copy = await reader.write(f"On the lower deck the rope is spliced by {mark}")
            assert first.id in copy.parents
            plan = await d.kim.plan_erasure(first.id)
            assert (plan.state, plan.count, [m.id for m in plan.left], plan.left_count) == ("plan", 1, [copy.id], 1)
            both = await d.kim.plan_erasure(first.id, derived=True)
            assert ({m.id for m in both.members}, both.derived, both.left_count) == ({first.id, copy.id}, 1, 0)
            assert set((await reader.query(f"rope {mark}")).ids) >= {first.id, copy.id}

            await done(d.kim, await d.kim.erase(first.id, "the first alone"))
            assert found(world.home.path, mark), "the copy has it still"
            ids = (await reader.query(f"rope {mark}")).ids
            assert copy.id in ids
            assert first.id not in ids
            receipt = await done(d.kim, await d.kim.erase(first.id, "and what came of it", derived=True))
            assert ([m.id for m in receipt.members], receipt.derived) == ([copy.id], 1)
            assert found(world.home.path, mark) == set()
            with pytest.raises(bus.Conflict) as already:
                await d.kim.erase(first.id, "once more", derived=True)
            assert already.value.reason == "erased_already"

    asyncio.run(scenario())


def test_all_of_an_end_user_and_all_of_an_agent_can_be_named(world: World) -> None:
    async def scenario() -> None:
        await world.add("leaver", "p1")
        async with world.agent("leaver") as leaver, world.agent("w") as writer, desks(world) as d:
            of_user = [await writer.write(f"likes marzipan-{i}", scope="user", scope_id="u-77@example.org") for i in range(2)]
            of_other = await writer.write("likes marzipan-9", scope="user", scope_id="u-78@example.org")
            receipt = await done(d.kim, await d.kim.erase("user:u-77@example.org", "left"))
            assert {m.id for m in receipt.members} == {r.id for r in of_user}
            assert (await d.kim.why(of_other.id)).facts["state"] == "active"
            assert not found(world.home.path, "u-77@example.org")
            assert found(world.home.path, "u-78@example.org")
            of_agent = [await leaver.write(f"leaver's note {i}") for i in range(3)]
            receipt = await done(d.kim, await d.kim.erase("agent:leaver", "left"))
            assert {m.id for m in receipt.members} == {r.id for r in of_agent}
            with pytest.raises(bus.Rejected) as nobody:
                await d.kim.erase("user:nobody@example.org", "left")
            assert nobody.value.reason == "selector_empty"

    asyncio.run(scenario())


# --- what stays -----------------------------------------------------------------------------------
def test_what_is_erased_says_so_and_keeps_author_labels_and_lineage(world: World) -> None:
    mark = "bobbin-lacewing-44"

    async def scenario() -> None:
        await world.add("feeder", "p1", role="ingest")
        async with (
            world.agent("feeder") as feeder,
            world.agent("r") as reader,
            world.agent("s") as third,
            desks(world) as d,
        ):
            root = await feeder.write(f"The seal {mark} was broken at noon", evidence=["https://wiki.example/seal"])
            await reader.get(root.id)
            middle = await reader.write(f"At noon the seal {mark} was broken", derived_from=[root.id])
            await third.get(middle.id)
            leaf = await third.write("Report: somebody broke in around midday", derived_from=[middle.id])
            before = await d.kim.why(middle.id)
            assert (await d.kim.why(middle.id, reveal=True)).content
            await done(d.kim, await d.kim.erase(middle.id, "asked for"))

            why = await d.kim.why(middle.id, reveal=True)
            assert why.content is None
            assert why.facts["state"] == "erased"
            assert why.facts["erased_at"]
            assert any("was erased" in sentence for sentence in why.sentences)
            for name in ("actor", "trust_stamped", "trust_floor", "origin", "classification", "written_at"):
                assert why.facts[name] == before.facts[name]
            assert [e.from_ for e in why.parents] == [e.from_ for e in before.parents] == [root.id]
            assert (await reader.get(middle.id)).withheld == {"erased": 1}
            past = await reader.get(middle.id, as_of=(await d.kim.why(leaf.id)).facts["written_at"])
            assert (past.ids, past.withheld) == ([], {"erased": 1})
            # Containment walks through it, both ways; what came of it keeps the labels that it got from there.
            assert {n.id for n in (await d.kim.trace(root.id, "down")).nodes} == {root.id, middle.id, leaf.id}
            assert {n.id: n.state for n in (await d.kim.trace(leaf.id, "up")).nodes}[middle.id] == "erased"
            assert (await d.kim.why(leaf.id)).facts["trust_stamped"] == leaf.trust <= middle.trust
            case = await d.kim.hold_now(root.id, "forged")
            assert {m.id for m in case.members} == {root.id, middle.id, leaf.id}
            assert (await third.get(leaf.id)).withheld == {"held": 1}
            await d.kim.release(case.case, "not forged")
            assert (await third.get(leaf.id)).ids == [leaf.id]
            assert (await third.get(middle.id)).withheld == {"erased": 1}, "a release brings nothing back"

    asyncio.run(scenario())


def test_a_retry_with_the_same_key_is_the_erased_memory_and_stores_nothing(world: World) -> None:
    mark = "tessellate-mulberry"

    async def scenario() -> None:
        async with world.agent("w") as writer, desks(world) as d:
            first = await writer.write(f"the text {mark}", idempotency_key="mulberry-1")
            await done(d.kim, await d.kim.erase(first.id, "asked for"))
            again = await writer.write(f"the text {mark}", idempotency_key="mulberry-1")
            assert (again.id, again.duplicate, again.state) == (first.id, True, "erased")
            assert found(world.home.path, mark) == set()
            with pytest.raises(bus.Conflict) as other:
                await writer.write("another text", idempotency_key="mulberry-1")
            assert other.value.reason == "idempotency_conflict"
            anew = await writer.write(f"the text {mark}", idempotency_key="mulberry-2")  # a new write is a new memory
            assert (anew.state, anew.duplicate) == ("active", False)

    asyncio.run(scenario())


def test_the_feed_tells_the_id_and_an_erased_parent_is_known_only_to_who_was_served_it(world: World) -> None:
    async def scenario() -> None:
        async with world.agent("w") as writer, world.agent("r") as reader, world.agent("s") as stranger, desks(world) as d:
            first = await writer.write("the lamp hangs in the northern tower")
            assert (await reader.get(first.id)).ids == [first.id]
            async with reader.feed() as feed:
                await done(d.kim, await d.kim.erase(first.id, "asked for"))
                async with asyncio.timeout(DONE_S):
                    async for frame in feed:
                        if isinstance(frame, bus.Feed) and first.id in frame.ids:
                            break
            child = await reader.write("a lamp was in a tower", derived_from=[first.id])
            assert first.id in child.parents
            assert child.trust <= first.trust
            with pytest.raises(bus.Rejected) as unknown:
                await stranger.write("a lamp was in a tower", derived_from=[first.id])
            assert unknown.value.reason == "parent_unknown"

    asyncio.run(scenario())


# --- who may --------------------------------------------------------------------------------------
def test_what_an_open_case_holds_takes_a_second_person(world: World) -> None:
    mark = "obsidian-wicket"

    async def scenario() -> None:
        async with world.agent("w") as writer, desks(world) as d, world.desk("kims-other-key") as other_key:
            memory = await writer.write(f"the ledger of the {mark}")
            case = await d.kim.hold_now(memory.id, "looked into")
            with pytest.raises(bus.Conflict) as contested:
                await d.kim.erase(memory.id, "asked for")
            detail = contested.value.detail
            assert (contested.value.reason, detail["cases"], detail["memories"]) == ("erasure_contested", [case.case], 1)
            assert (await d.kim.plan_erasure(memory.id)).cases == [case.case]
            refused = {}
            for name, desk in (("same", d.kim), ("other key", other_key), ("nobody", d.nobody)):
                with pytest.raises(bus.Denied) as denied:
                    await desk.agree_to_erase(detail["request"])
                refused[name] = denied.value.reason
            assert refused == {"same": "second_person_needed", "other key": "second_person_needed", "nobody": "person_missing"}
            with pytest.raises(bus.Denied) as unnamed:
                await d.nobody.erase(memory.id, "asked for")
            assert unnamed.value.reason == "person_missing"
            assert found(world.home.path, mark), "nothing happened so far"
            with pytest.raises(bus.Conflict) as no_hold:
                await d.lee.apply(detail["request"], "not a plan of a hold")
            assert no_hold.value.reason == "plan_of_other_kind"
            assert "cordon erase --agree" in no_hold.value.message

            receipt = await done(d.lee, await d.lee.agree_to_erase(detail["request"][-8:]))
            assert (receipt.by, receipt.person, receipt.second, receipt.why) == ("kim", "kim", "lee", "asked for")
            assert found(world.home.path, mark) == set()
            with pytest.raises(bus.Conflict) as used:
                await d.lee.agree_to_erase(detail["request"])
            assert used.value.reason == "erasure_request_unknown"
            assert (await d.kim.case(case.case)).state == "open", "the case goes on"

            free = await writer.write("held by nobody")
            assert (await done(d.nobody, await d.nobody.erase(free.id, "one person is enough"))).state == "done"

    asyncio.run(scenario())


def test_a_legal_hold_keeps_memories_readable_and_from_being_erased_by_one_person(world: World) -> None:
    async def scenario() -> None:
        async with world.agent("w") as writer, desks(world) as d:
            memory = await writer.write("the minutes of the meeting with the harbour master")
            with pytest.raises(bus.Denied) as unnamed:
                await d.nobody.place_legal_hold(memory.id, "case 12/26")
            assert unnamed.value.reason == "person_missing"
            hold = await d.lee.place_legal_hold(memory.id, "case 12/26")
            assert (hold.ids, hold.person, hold.lifted_at) == ([memory.id], "lee", None)
            assert (await writer.get(memory.id)).ids == [memory.id]
            assert (await d.kim.why(memory.id)).facts["legal_holds"] == [hold.hold]
            with pytest.raises(bus.Conflict) as contested:
                await d.kim.erase(memory.id, "asked for")
            assert contested.value.detail["legal_holds"] == [hold.hold]
            with pytest.raises(bus.Denied) as another:
                await d.kim.lift_legal_hold(hold.hold, "in the way")
            assert another.value.reason == "legal_hold_of_another"
            assert (await d.lee.lift_legal_hold(hold.hold[-8:], "case closed")).lifted_at
            with pytest.raises(bus.Conflict) as lifted:
                await d.lee.lift_legal_hold(hold.hold, "again")
            assert lifted.value.reason == "legal_hold_lifted"
            assert [h.hold for h in await d.kim.legal_holds()] == [hold.hold]
            assert (await done(d.kim, await d.kim.erase(memory.id, "asked for"))).second == ""
            with pytest.raises(bus.Rejected) as unknown:
                await d.lee.lift_legal_hold("lgl_" + "0" * 26, "none")
            assert unknown.value.reason == "legal_hold_unknown"

    asyncio.run(scenario())


def test_nobody_erases_what_they_may_not_see(world: World) -> None:
    async def scenario() -> None:
        async with world.agent("both", "p1") as one, world.agent("both", "p2") as two, desks(world) as d:
            here = await one.write("the cable of the crane is worn at joint k-19")
            await one.get(here.id)
            there = await two.write("worn at joint k-19 is the cable of the crane", derived_from=[here.id])
            for wrong in (there.id, "mem_" + "0" * 26):
                with pytest.raises(bus.Rejected) as unknown:
                    await d.narrow.erase(wrong, "asked for")
                assert unknown.value.reason == "memory_unknown"
            plan = await d.narrow.plan_erasure(here.id, derived=True)
            assert (plan.count, plan.elsewhere, plan.left_count) == (1, 1, 0)
            await done(d.narrow, await d.narrow.erase(here.id, "asked for", derived=True))
            assert (await d.kim.why(there.id)).facts["state"] != "erased"
            with pytest.raises(bus.Rejected) as no_message:
                await d.narrow.erase(here.id, " ")
            assert no_message.value.reason == "message_missing"
            with pytest.raises(bus.Rejected) as none:
                await d.narrow.erasure("era_" + "0" * 26)
            assert none.value.reason == "erasure_unknown"

    asyncio.run(scenario())


# --- full, restarted ------------------------------------------------------------------------------
def test_in_a_full_ledger_writes_stop_and_erasing_goes_on(world: World) -> None:
    mark = "gingham-parsec"

    async def limit(most: int) -> None:
        async with core_client(world.home, "admin") as nc:
            js = nc.jetstream()
            config: StreamConfig = (await js.stream_info("LEDGER_0")).config
            config.max_bytes = most
            await js.update_stream(config)

    async def scenario() -> None:
        async with world.agent("w") as writer, desks(world) as d, core_client(world.home, "admin") as nc:
            await writer.write("ballast " * 7_500)  # so that the last tenth has room for what an erasure notes
            memory = await writer.write(f"the last words: {mark}")
            was = (await nc.jetstream().stream_info("LEDGER_0")).config.max_bytes
            await limit(int((await nc.jetstream().stream_info("LEDGER_0")).state.bytes * 1.08))
            try:
                async with Control(world.home) as control, asyncio.timeout(30):
                    while (await control.status())["ledger_full_share"] < 0.9:  # noqa: ASYNC110 - another process looks
                        await asyncio.sleep(0.1)
                with pytest.raises(bus.Unavailable) as full:
                    await writer.write("one more")
                assert full.value.reason == "ledger_full"
                receipt = await done(d.kim, await d.kim.erase(memory.id, "asked for"))
                assert receipt.state == "done"
                assert found(world.home.path, mark) == set()
            finally:
                await limit(was or 10 << 30)
            async with Control(world.home) as control, asyncio.timeout(30):
                while (await control.status())["ledger_full_share"] >= 0.9:  # noqa: ASYNC110 - for the tests that come after
                    await asyncio.sleep(0.1)

    asyncio.run(scenario())


def test_it_stays_erased_and_counted_after_a_kill_of_the_gatekeeper(world: World) -> None:
    mark = "calico-tamarind"

    async def scenario() -> None:
        async with world.agent("w") as writer, world.agent("r") as reader, desks(world) as d:
            memory = await writer.write(f"the tide table of {mark}")
            kept = await writer.write("the tide table of the harbour")
            assert memory.id in (await reader.query("tide table", k=16)).ids
            receipt = await done(d.kim, await d.kim.erase(memory.id, "asked for"))
            hold = await d.lee.place_legal_hold(kept.id, "case 13/26")
            await world.restart_gatekeeper()
            async with asyncio.timeout(DONE_S):
                ids = (await reader.query("tide table", k=16)).ids
            assert kept.id in ids
            assert memory.id not in ids
            assert (await reader.get(memory.id)).withheld == {"erased": 1}
            again = await d.kim.erasure(receipt.erasure)
            assert (again.state, again.done_at, again.stores) == ("done", receipt.done_at, receipt.stores)
            assert hold.hold in {h.hold for h in await d.kim.legal_holds() if not h.lifted_at}
            assert found(world.home.path, mark) == set()
            assert await findings(world.home) == []

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.timeout(300)  # five starts of a gatekeeper
def test_a_rebuild_brings_nothing_back_and_what_it_sets_aside_is_cleaned_too() -> None:
    """The home is taken down between the event and the janitor's work, with a catalog that still has the text."""
    from broker_config import supervisor
    from cli.main import run

    mark = "vellum-porpoise"
    with running() as world:
        home = world.home

        async def write() -> str:
            await world.add("w", "p1")
            async with world.agent("w") as writer:
                return (await writer.write(f"a page of {mark}")).id

        id_ = asyncio.run(write())
        supervisor.stop(home)
        assert run(["rebuild", "--home", str(home.path)]) == 0
        aside = home.run
        assert found(aside, mark), "the catalog that was set aside has the text"
        supervisor.start(home, detach=True)

        async def erase() -> None:
            async with world.desk() as desk:
                receipt = await done(desk, await desk.erase(id_, "asked for"))
            assert {s.name: s.count for s in receipt.stores}["set_aside"] >= 1

        asyncio.run(erase())
        assert found(home.path, mark) == set()
        supervisor.stop(home)
        assert run(["rebuild", "--home", str(home.path)]) == 0
        assert run(["verify", "--home", str(home.path)]) == 0
        assert found(home.path, mark) == set()


def test_the_janitor_comes_back_when_it_was_killed(world: World) -> None:
    mark = "knapsack-zither"

    async def scenario() -> None:
        async with world.agent("w") as writer, desks(world) as d:
            memory = await writer.write(f"the strings of {mark}")
            was = world.pid("janitor")
            os.kill(was, 9)
            receipt = await d.kim.erase(memory.id, "asked for")
            await until(lambda: _janitor(world) not in (0, was), "another janitor", 30)
            await done(d.kim, receipt)
            assert found(world.home.path, mark) == set()

    asyncio.run(scenario())


def _janitor(world: World) -> int:
    try:
        return world.pid("janitor")
    except KeyError:
        return 0
