"""The life of a memory on the real gatekeeper: expiry on every lane, useful reports, sessions, corrections, promotion, pruning.

Times pass on the clock of a twin, whose gate is the real one; what must survive a kill and a replay is tried on a real home.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import timedelta

import pytest

import bus
import bus.testing
from bus.testing import ManualClock, World

from .world import World as Home
from .world import running, verified

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with bus.testing.bus(projects=("p1", "p2"), clock=ManualClock("2026-01-31T12:00:00Z")) as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A word that no other test uses."""
    return f"zeppelin{next(_numbers):03}"


async def found(agent: bus.MemoryBus, topic: str, **fields: object) -> list[str]:
    recall = await agent.query(topic, k=64, **fields)  # type: ignore[arg-type]
    return [item.memory.id for item in recall.admitted if topic in item.memory.content]


# --- time to live -----------------------------------------------------------------------------------------
def test_what_has_expired_is_served_on_no_lane_and_keeps_its_past(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, bob, desk = world.agent(f"alice-{topic}"), world.agent(f"bob-{topic}"), world.operator()
        receipt = await alice.write(f"The {topic} lands at noon", kind="emotional_state")
        then = world.clock.now.isoformat()
        feed_ids = [receipt.id]  # what a feed brings is ids: their content comes by get
        world.clock.advance(hours=23)
        assert (await found(bob, topic), (await bob.get(feed_ids)).ids) == ([receipt.id], [receipt.id])
        world.clock.advance(hours=1)
        assert (await bob.query(topic)).withheld == {"expired": 1}
        assert (await bob.get(feed_ids)).withheld == {"expired": 1}
        assert (await alice.get(feed_ids)).ids == [], "nor to who wrote it"
        with pytest.raises(bus.WriteRejected, match="parent"):
            await world.agent(f"carl-{topic}").write("So it landed", derived_from=[receipt.id])
        past = (await bob.get(feed_ids, as_of=then)).admitted[0]
        assert (past.historical, "forbid_tool_binding" in past.constraints) == (True, True)
        assert (await desk.why(receipt.id)).facts["state"] == "expired"

    asyncio.run(scenario())


def test_more_than_a_kind_may_live_is_cut_to_it_and_the_receipt_says_so(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice = world.agent(f"alice-{topic}")
        modest = await alice.write(f"{topic} one", kind="event", ttl=60)
        greedy = await alice.write(f"{topic} two", kind="event", ttl=366 * 86_400)
        assert (modest.reasons, greedy.reasons) == (["within_policy"], ["ttl_capped"])
        ends = {item.memory.id: item.memory.expires_at for item in (await alice.get([modest.id, greedy.id])).admitted}
        assert len(set(ends.values())) == 2
        world.clock.advance(days=364, hours=23)
        assert await found(alice, topic) == [greedy.id]
        world.clock.advance(hours=1)
        assert await found(alice, topic) == []

    asyncio.run(scenario())


# --- reports ----------------------------------------------------------------------------------------------
def test_a_useful_report_has_a_memory_live_on_up_to_its_kind_s_most_and_reading_does_not(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, bob = world.agent(f"alice-{topic}"), world.agent(f"bob-{topic}")
        read = await alice.write(f"{topic} is read", kind="emotional_state")
        used = await alice.write(f"{topic} is of use", kind="emotional_state")
        for _ in range(7 * 24):
            world.clock.advance(hours=1)
            if used.id in await found(bob, topic):
                await bob.report(used.id)
        assert await found(bob, topic) == [], "seven days are its kind's most"
        assert (await bob.get([read.id])).withheld == {"expired": 1}

        kept = await alice.write(f"{topic} again", kind="emotional_state")
        end = (await bob.get([kept.id])).admitted[0].memory.expires_at
        world.clock.advance(hours=20)
        for _ in range(3):
            assert (await bob.get([kept.id])).admitted[0].memory.expires_at == end
        reported = await bob.report([kept.id])
        assert reported.extended[kept.id] > str(end)
        assert (await bob.get([kept.id])).admitted[0].memory.expires_at == reported.extended[kept.id]
        world.clock.advance(hours=20)
        assert await found(bob, topic) == [kept.id]

    asyncio.run(scenario())


def test_only_who_was_served_it_may_report_it(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, bob, mallory = (world.agent(f"{name}-{topic}") for name in ("alice", "bob", "mallory"))
        receipt = await alice.write(f"{topic} matters", kind="event")
        elsewhere = await world.agent(f"zoe-{topic}", projects=("p2",), project="p2").write(f"{topic} elsewhere", kind="event")
        await bob.get([receipt.id])
        world.clock.advance(days=30)
        for unknown in (receipt.id, elsewhere.id, "mem_00000000000000000000000001", "nonsense"):
            with pytest.raises(bus.Rejected) as e:
                await mallory.report([unknown])
            assert (e.value.reason, e.value.field) == ("used_unknown", "used")
        with pytest.raises(bus.Rejected, match="empty"):
            await bob.report([])
        with pytest.raises(bus.Rejected) as mixed:
            await bob.report([receipt.id, elsewhere.id])
        assert mixed.value.reason == "used_unknown"
        assert list((await bob.report([receipt.id])).extended) == [receipt.id]

    asyncio.run(scenario())


def test_a_report_costs_an_event_only_when_it_moves_the_end_by_a_good_part(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, bob = world.agent(f"alice-{topic}"), world.agent(f"bob-{topic}")
        receipt = await alice.write(f"{topic} is popular", kind="event")
        await bob.get([receipt.id])
        positions = set()
        for _ in range(20):
            world.clock.advance(hours=1)
            positions.add((await bob.report([receipt.id])).position)
        assert positions == {receipt.position}, "nothing was written in twenty hours of ninety days"

    asyncio.run(scenario())


def test_what_is_held_over_replaced_or_has_a_fixed_end_lives_no_longer_by_a_report(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, bob, desk = world.agent(f"alice-{topic}"), world.agent(f"bob-{topic}"), world.operator()
        at = world.clock.now.replace(year=world.clock.now.year + 1).isoformat()
        fixed = await alice.write(f"{topic} fixed", kind="fact", expires_at=at)
        held, old, over = [await alice.write(f"{topic} {x}", kind="event") for x in ("held", "old", "over")]
        await bob.get([fixed.id, held.id, old.id, over.id])
        case = await desk.hold_now([held.id], "looked at")
        await alice.write(f"{topic} new", kind="event", supersedes=old.id)
        world.clock.advance(days=80)
        assert (await bob.report([fixed.id, held.id, old.id])).extended == {}
        world.clock.advance(days=11)
        assert (await bob.report([over.id])).extended == {}, "what is over doesn't come back"
        await desk.release(case.case, "done")
        assert (await bob.get([held.id])).ids == [], "its time went on while it was held"

    asyncio.run(scenario())


# --- sessions ---------------------------------------------------------------------------------------------
def test_operational_notes_end_with_their_session_and_nothing_else_does(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, bob, desk = world.agent(f"alice-{topic}"), world.agent(f"bob-{topic}"), world.operator()
        child = await alice.delegate("helper", verbs=["write", "query", "get"])
        helper = world.connect(child.creds, project="p1")
        own = await alice.write(f"{topic} the build runs", scope="operational")
        of_child = await helper.write(f"{topic} the tests run", scope="operational")
        fact = await alice.write(f"{topic} the build is called nightly")
        other = await bob.write(f"{topic} the disk is full", scope="operational")
        notes = {"scope": ["operational"]}
        assert set(await found(bob, topic, filters=notes)) == {own.id, of_child.id, other.id}
        then = world.clock.now.isoformat()
        world.clock.advance(minutes=1)
        await desk.close_context(f"alice-{topic}", "the shift is over")
        assert await found(bob, topic, filters=notes) == [other.id]
        assert set(await found(bob, topic)) == {fact.id}
        assert set(await found(bob, topic, filters=notes, as_of=then)) == {own.id, of_child.id, other.id}
        facts = (await desk.why(own.id)).facts
        assert (facts["state"], facts["ended"]["why"]) == ("expired", "session")
        later = await alice.write(f"{topic} the build runs again", scope="operational")
        assert set(await found(bob, topic, filters=notes)) == {other.id, later.id}, "a new session has notes of its own"

    asyncio.run(scenario())


# --- corrections ------------------------------------------------------------------------------------------
def test_a_chain_shows_its_newest_and_a_held_link_gives_way_to_what_it_replaced(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, desk = world.agent(f"alice-{topic}"), world.operator()
        times: list[str] = []
        line: list[bus.Receipt] = []
        for n in range(3):
            line.append(await alice.write(f"The {topic} has {n} engines", supersedes=line[-1].id if line else ""))
            times.append(world.clock.now.isoformat())
            world.clock.advance(minutes=1)
        a, b, c = (x.id for x in line)
        assert (await found(alice, topic), (await alice.get([a, b, c])).ids) == ([c], [c])
        assert [await found(alice, topic, as_of=at) for at in times] == [[a], [b], [c]], "its history stays"
        case = await desk.hold_now([c], "forged")
        assert (await found(alice, topic), (await alice.get([a, b, c])).ids) == ([b], [b])
        both = await desk.hold_now([b], "forged too")
        assert await found(alice, topic) == [a]
        await desk.release(both.case, "only the last")
        assert await found(alice, topic) == [b]
        await desk.release(case.case, "neither")
        assert await found(alice, topic) == [c]

    asyncio.run(scenario())


def test_two_agents_that_go_on_correcting_each_other_are_stopped_and_an_operator_decides(world: World, topic: str) -> None:
    async def scenario() -> None:
        agents, desk = [world.agent(f"{name}-{topic}") for name in ("alice", "bob")], world.operator()
        source = ["https://wiki.example"]
        last = await agents[0].write(f"The {topic} flies on Monday", evidence=source)
        receipts = []
        for n in range(6):
            world.clock.advance(seconds=1)
            day = ("Tuesday", "Monday")[n % 2]
            asked = await agents[1 - n % 2].write(f"The {topic} flies on {day}", evidence=source, supersedes=last.id)
            receipts.append(asked)
            last = last if asked.state == "held" else asked
        assert [r.state for r in receipts] == ["active"] * 4 + ["held"] + ["active"], "alice still corrects her own"
        refused = receipts[4]
        assert refused.reasons == ["contradicts_flapping"]
        assert await found(agents[0], topic) == [last.id], "the one before stays current"
        assert (await desk.why(refused.id)).facts["review"] == "pending"
        world.clock.advance(hours=1)
        assert (await agents[1].write(f"The {topic} flies at night", evidence=source, supersedes=last.id)).state == "active"

    asyncio.run(scenario())


# --- promotion --------------------------------------------------------------------------------------------
async def finding(agent: bus.MemoryBus, topic: str, **fields: object) -> bus.Receipt:
    """What a task learnt, seen only by who names the task."""
    fields = {"kind": "event", "evidence": ["https://wiki.example/log"], **fields}
    return await agent.write(f"The {topic} leaks at seam nine", scope="task", task=f"repair {topic}", **fields)  # type: ignore[arg-type]


def test_what_a_task_learnt_becomes_the_project_s_with_its_parent_and_no_better_labels(world: World, topic: str) -> None:
    async def scenario() -> None:
        page, alice, bob, desk = (
            world.agent(f"page-{topic}", role="ingest"), world.agent(f"alice-{topic}"), world.agent(f"bob-{topic}"),
            world.operator(),
        )  # fmt: skip
        source = await page.write(f"Log of the {topic}: gas is lost at seam nine", evidence=["https://wiki.example/log"])
        learnt = await finding(alice, topic, derived_from=[source.id], sensitivity="high")
        assert (learnt.trust, learnt.origin, await found(bob, topic)) == (0.25, "external", [source.id])
        world.clock.advance(seconds=1)
        promoted = await bob.promote(learnt.id[-8:], claimed_confidence=1.0)
        assert (promoted.state, promoted.trust, promoted.origin, promoted.parents[0]) == ("active", 0.25, "external", learnt.id)
        item = next(x for x in (await alice.query(topic)).admitted if x.memory.id == promoted.id)
        memory = item.memory
        assert (memory.content, memory.kind, memory.scope) == (f"The {topic} leaks at seam nine", "event", "project")
        assert (memory.evidence, memory.sensitivity, memory.actor.name) == (["https://wiki.example/log"], "high", f"bob-{topic}")
        why, was = (await desk.why(promoted.id)).facts, (await desk.why(learnt.id)).facts
        assert (why["promotes"], was["promoted_as"]) == (learnt.id, promoted.id)
        members = (await desk.plan([source.id])).members
        assert {m.id for m in members} == {source.id, learnt.id, promoted.id}, "a hold of the root reaches it"
        assert set(await found(alice, topic, task=f"repair {topic}")) == {source.id, learnt.id, promoted.id}

    asyncio.run(scenario())


def test_a_promotion_that_a_review_rejected_says_so_and_by_whom_until_it_is_accepted(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, bob, desk = world.agent(f"alice-{topic}"), world.agent(f"bob-{topic}"), world.operator()
        learnt = await finding(alice, topic)
        promoted = await bob.promote(learnt.id)
        await desk.hold_now([promoted.id], "contaminated")
        with pytest.raises(bus.Conflict) as held:
            await alice.promote(learnt.id)
        assert held.value.reason == "promoted_already", "a case holds it, nobody rejected it"

        ann = world.agent(f"ann-{topic}", role="user_session", user="ann")
        stated = await ann.write(f"The other {topic} is blue", origin="user_stated")
        waiting = await finding(alice, f"other {topic}")
        became = (await bob.promote(waiting.id, supersedes=stated.id)).id  # more than its own trust allows: a review decides
        await desk.review(became, "reject", "not for the project")
        with pytest.raises(bus.Conflict) as refused:
            await bob.promote(waiting.id)
        assert refused.value.reason == "promotion_rejected"
        assert refused.value.detail == {"promoted_as": became, "rejected_by": "ops"}
        assert "rejected by ops" in refused.value.message
        assert (await alice.promote(waiting.id)).state == "active"  # she brought nothing along
        await desk.review(became, "accept", "a second look")
        assert (await bob.get([became])).ids == [became]
        with pytest.raises(bus.Conflict) as again:
            await alice.promote(waiting.id)
        assert again.value.reason == "promoted_already"

    asyncio.run(scenario())


def test_a_memory_is_promoted_once_and_again_only_when_what_it_became_is_over(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, bob, desk = world.agent(f"alice-{topic}"), world.agent(f"bob-{topic}"), world.operator()
        learnt = await finding(alice, topic)
        both = await asyncio.gather(alice.promote(learnt.id), bob.promote(learnt.id), return_exceptions=True)
        [promoted], [refused] = [[x for x in both if isinstance(x, kind)] for kind in (bus.Receipt, bus.Conflict)]
        assert isinstance(promoted, bus.Receipt)
        assert isinstance(refused, bus.Conflict)
        assert (refused.reason, refused.detail) == ("promoted_already", {"promoted_as": promoted.id})
        case = await desk.hold_now([promoted.id], "contaminated")
        with pytest.raises(bus.Conflict):
            await bob.promote(learnt.id)  # else a held one would come back as another
        await desk.release(case.case, "it isn't")
        world.clock.advance(days=80)
        await alice.get([learnt.id])
        world.clock.advance(days=20)
        with pytest.raises(bus.WriteRejected):
            await bob.promote(learnt.id)  # both are over

    asyncio.run(scenario())


def test_what_may_not_be_promoted_is_refused(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, zoe = world.agent(f"alice-{topic}"), world.agent(f"zoe-{topic}", projects=("p2",), project="p2")
        learnt, plain = await finding(alice, topic), await alice.write(f"{topic} is blue")
        secret = await finding(alice, topic, readers=[[f"agent:alice-{topic}"]])
        held = await finding(alice, topic, derived_from=[learnt.id])
        await world.operator().hold_now([held.id], "looked at")
        elsewhere = await finding(zoe, topic)
        bob = world.agent(f"bob-{topic}")
        for id_ in (plain.id, secret.id, held.id, elsewhere.id, "mem_00000000000000000000000001"):
            with pytest.raises(bus.WriteRejected) as e:
                await bob.promote(id_)
            assert (e.value.reason, e.value.field) == ("promotes_unknown", "promotes")
        for field, value in (("evidence", ["https://other.example"]), ("scope", "operational")):
            with pytest.raises(bus.WriteRejected) as wrong:
                await bob.promote(learnt.id, **{field: value})  # type: ignore[arg-type]
            assert (wrong.value.reason, wrong.value.field) == ("bad_field", field)
        with pytest.raises(bus.WriteRejected) as own_words:
            await bob.write("It leaks at seam ten", promotes=learnt.id)
        assert (own_words.value.reason, own_words.value.field) == ("bad_field", "content")
        assert (await bob.promote(learnt.id)).state == "active"

    asyncio.run(scenario())


def test_a_promotion_lives_no_longer_than_the_moment_that_the_task_named(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice = world.agent(f"alice-{topic}")
        noon = (world.clock.now + timedelta(hours=3)).isoformat()
        dated, valid, sliding = (
            await finding(alice, topic, expires_at=noon), await finding(alice, topic, valid_until=noon),
            await finding(alice, topic, ttl=3600),
        )  # fmt: skip
        promoted = [(await alice.promote(x.id, kind="fact")).id for x in (dated, valid, sliding)]
        assert set(await found(alice, topic)) == set(promoted)
        world.clock.advance(hours=3)
        assert await found(alice, topic) == [promoted[2]], "admitted anew, with the time to live of its kind"

    asyncio.run(scenario())


# --- compaction -------------------------------------------------------------------------------------------
def test_a_finished_task_is_compacted_by_a_plan_that_can_be_undone(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, bob, desk = world.agent(f"alice-{topic}"), world.agent(f"bob-{topic}"), world.operator("lena", person="lena")
        task = f"repair {topic}"
        step, kept, promoted, rule = (
            await finding(alice, topic), await finding(alice, topic), await finding(alice, topic),
            await finding(alice, topic, kind="decision"),
        )  # fmt: skip
        became = await bob.promote(promoted.id)
        for state in (None, "active"):
            if state:
                await finding(alice, topic, task_state=state)
            with pytest.raises(bus.Rejected) as e:
                await desk.plan_compaction("p1", task)
            assert (e.value.reason, e.value.field) == ("task_open", "task")
        with pytest.raises(bus.Rejected) as unknown:
            await desk.plan_compaction("p1", f"no {topic}")
        assert unknown.value.reason == "task_unknown"
        done = await finding(alice, topic, task_state="resolved")
        legal = await desk.place_legal_hold([kept.id], "a law suit")
        plan = await desk.plan_compaction("p1", task)
        assert (plan.state, plan.why, plan.promoted) == ("plan", "task", 1)
        assert plan.kept == {"legal_hold": 1, "lasting_kind": 1, "closes_task": 1}
        assert {m.id for m in plan.members} >= {step.id, promoted.id}
        assert len(await found(alice, topic, task=task)) == 7, "a plan changes nothing"
        applied = await desk.prune(plan.plan, "the ship flies")
        assert (applied.state, applied.count, applied.left) == ("ended", plan.count, 0)
        assert set(await found(alice, topic, task=task)) == {kept.id, rule.id, done.id, became.id}
        trace = await desk.trace(became.id, "up")
        assert promoted.id in {n.id for n in trace.nodes}, "where it came from stays"
        with pytest.raises(bus.Conflict):
            await desk.prune(plan.plan, "again")
        undone = await desk.undo_end(applied.end[-8:], "one step is asked for")
        assert (undone.state, undone.count) == ("undone", applied.count)
        assert len(await found(alice, topic, task=task)) == 7
        with pytest.raises(bus.Conflict) as twice:
            await desk.undo_end(applied.end, "again")
        assert twice.value.reason == "end_undone"
        assert [x.state for x in await desk.ends() if x.end == applied.end] == ["undone"]
        await desk.lift_legal_hold(legal.hold, "settled")

    asyncio.run(scenario())


def test_a_promoted_memory_that_was_found_contaminated_leaves_its_original_in_the_task(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, desk, task = world.agent(f"alice-{topic}"), world.operator(), f"repair {topic}"
        rule = await finding(alice, topic, kind="decision")
        became = await alice.promote(rule.id)
        await finding(alice, topic, task_state="abandoned")
        assert rule.id in {m.id for m in (await desk.plan_compaction("p1", task)).members}
        case = await desk.hold_now([became.id], "contaminated")
        plan = await desk.plan_compaction("p1", task)
        assert (rule.id in {m.id for m in plan.members}, plan.kept["lasting_kind"]) == (False, 1)
        await desk.release(case.case, "clean")
        private = await finding(alice, topic, kind="decision")
        await alice.promote(private.id, readers=[[f"agent:alice-{topic}"]])
        await finding(alice, topic, task_state="abandoned")
        plan = await desk.plan_compaction("p1", task)
        assert private.id not in {m.id for m in plan.members}, "the others couldn't read it any more"
        assert (await world.agent(f"bob-{topic}").promote(private.id)).state == "active"
        assert private.id in {m.id for m in (await desk.plan_compaction("p1", task)).members}

    asyncio.run(scenario())


# --- pruning ----------------------------------------------------------------------------------------------
def test_pruning_ends_what_is_old_sourceless_and_was_never_served_and_spares_the_rest(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, ann, desk = (
            world.agent(f"alice-{topic}"),
            world.agent(f"ann-{topic}", role="user_session", user="ann"),
            world.operator("lena", person="lena"),
        )
        useless, lasting, source, parent, read, sourced, late, held, legal = [
            (await alice.write(f"{topic} {what}", kind=kind, evidence=evidence)).id  # type: ignore[arg-type]
            for what, kind, evidence in (
                ("useless", "event", []), ("lasting", "decision", []), ("sourced", "event", ["https://wiki.example"]),
                ("parent", "event", []), ("read", "event", []), ("sourced too", "event", ["https://wiki.example"]),
                ("read late", "event", []), ("held", "event", []), ("legally held", "event", []),
            )
        ]  # fmt: skip
        await alice.write(f"{topic} child", derived_from=[parent], evidence=["https://wiki.example"])
        said = (await ann.write(f"{topic} stated", kind="event")).id
        await alice.get([read])
        case = await desk.hold_now([held], "looked at")
        legal_hold = await desk.place_legal_hold([legal], "a law suit")
        assert (await desk.plan_pruning("p1", kinds=["event"])).count == 0, "nothing is ninety days old"
        world.clock.advance(days=80)

        async def planned(**more: object) -> bus.Pruned:
            return await desk.plan_pruning("p1", older_than_s=79 * 86_400, **more)  # type: ignore[arg-type]

        plan = await planned()
        mine = {useless, lasting, source, parent, read, sourced, late, held, legal, said}
        assert mine & {m.id for m in plan.members} == {useless, late}
        assert {
            "held",
            "legal_hold",
            "stated_by_person",
            "lasting_kind",
            "has_source",
            "read",
            "has_descendants",
        } <= plan.kept.keys()
        assert mine & {m.id for m in (await planned(kinds=["decision"])).members} == {lasting}, "a kind that is named"
        await alice.get([late])
        applied = await desk.prune(plan.plan, "spring")
        assert (applied.count, applied.left) == (plan.count - 1, 1), "what was read meanwhile stays"
        assert mine - set(await found(alice, topic)) == {useless, held}
        facts = (await desk.why(useless)).facts
        assert (facts["state"], facts["ended"]["id"], facts["erased_at"]) == ("expired", applied.end, None)
        assert (await desk.why(useless, reveal=True)).content == f"{topic} useless"
        await desk.undo_end(applied.end, "too early")
        assert useless in await found(alice, topic)
        await desk.release(case.case, "done")
        await desk.lift_legal_hold(legal_hold.hold, "settled")

    asyncio.run(scenario())


def test_a_plan_is_for_operators_of_its_project_who_say_why(world: World, topic: str) -> None:
    async def scenario() -> None:
        alice, desk, other = world.agent(f"alice-{topic}"), world.operator(), world.operator(f"two-{topic}", projects=("p2",))
        receipt = await alice.write(f"{topic} useless", kind="event")
        world.clock.advance(seconds=10)
        plan = await desk.plan_pruning("p1", older_than_s=5)
        assert receipt.id in {m.id for m in plan.members}
        with pytest.raises(bus.Denied) as elsewhere:
            await other.plan_pruning("p1")
        assert elsewhere.value.reason == "project_unknown"
        for by, reason in ((other, "plan_unknown"), (desk, "message_missing")):
            with pytest.raises(bus.CordonError) as e:
                await by.prune(plan.plan, "" if by is desk else "why not")
            assert e.value.reason == reason
        for nonsense in (-1, 1 << 62):
            with pytest.raises(bus.Rejected) as out:
                await desk.plan_pruning("p1", older_than_s=nonsense)
            assert (out.value.reason, out.value.field) == ("out_of_range", "older_than")
        applied = await desk.prune(plan.plan, "tidying")
        with pytest.raises(bus.Rejected) as end:
            await other.undo_end(applied.end, "mine")
        assert end.value.reason == "end_unknown"
        assert [x.end for x in await other.ends()] == []
        world.clock.advance(seconds=10)
        again = await alice.write(f"{topic} useless too", kind="event")
        world.clock.advance(seconds=10)
        plan = await desk.plan_pruning("p1", older_than_s=5)
        await alice.get([m.id for m in plan.members])
        assert again.id in {m.id for m in plan.members}
        with pytest.raises(bus.Conflict) as nothing:
            await desk.prune(plan.plan, "tidying")
        assert nothing.value.reason == "prune_nothing"
        plan = await desk.plan_pruning("p1", older_than_s=0, kinds=["emotional_state"])
        assert (plan.count, plan.plan) == (0, "")

    asyncio.run(scenario())


# --- on a real home ---------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_kill_and_a_replay_give_the_same_lives() -> None:
    """What ended, was resumed, promoted and corrected is the same in a gatekeeper that was killed; verification says so too."""

    async def scenario(home: Home) -> None:
        for name in ("alice", "bob"):
            await home.add(name)
        async with home.agent("alice") as alice, home.agent("bob") as bob, home.desk() as desk:
            note = await alice.write("The build runs", scope="operational")
            learnt = await alice.write("The pump leaks at seam nine", scope="task", task="repair", kind="event")
            promoted = await bob.promote(learnt.id)
            await alice.write("Repaired", scope="task", task="repair", task_state="resolved")
            useless = await alice.write("It rained", kind="event")
            lost, back = [await alice.write(f"Nobody asked for {n}", kind="event") for n in (1, 2)]
            line = await alice.write("The ship sails on Monday")
            for n in range(4):
                line = await (bob, alice)[n % 2].write(f"The ship sails at {n}", supersedes=line.id)
            flapped = await bob.write("The ship sails on Sunday", supersedes=line.id)
            await desk.close_context("alice", "the shift is over")
            compacted = await desk.prune((await desk.plan_compaction("p1", "repair")).plan, "done")
            assert (compacted.count, compacted.members[0].id) == (1, learnt.id)
            await bob.get([lost.id])
            pruned = await desk.prune((await desk.plan_pruning("p1", older_than_s=0, kinds=["event"])).plan, "tidying")
            assert {m.id for m in pruned.members} == {useless.id, back.id, promoted.id}, "the lost one was read"
            await desk.undo_end(pruned.end, "too early")
            shown = [note.id, learnt.id, promoted.id, useless.id, lost.id, back.id, line.id, flapped.id]

            async def lives() -> list[tuple[object, ...]]:
                facts = [(await desk.why(x)).facts for x in shown]
                kept = ("state", "expires_at", "ended", "promotes", "promoted_as", "superseded_by", "review")
                return [tuple(f[name] for name in kept) for f in facts]

            before, ends = await lives(), await desk.ends()
            assert [f[0] for f in before] == ["expired", "expired", "active", "active", "active", "active", "active", "held"]
            await home.restart_gatekeeper()
            assert (await lives(), await desk.ends()) == (before, ends)
            again = await bob.write("The ship sails on Sunday after all", supersedes=line.id)
            assert (again.state, again.reasons) == ("held", ["contradicts_flapping"]), "the turns are known after a replay"
        said = await verified(home.home)
        assert (said["ok"], said["findings"]) == (True, [])

    with running() as home:
        asyncio.run(scenario(home))
