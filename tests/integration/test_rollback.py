"""A project taken back to before a case's first root: a plan first, a case of its own, and back again by a release."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import bus

from .world import World, running, verified


@dataclass
class Scene:
    world: World
    case: str = ""
    ids: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        assert self.ids is not None
        return self.ids[name]

    async def shown(self) -> dict[str, str]:
        """What is there of each of them."""
        async with self.world.desk("kim") as desk:
            return {name: str((await desk.why(id_)).facts["state"]) for name, id_ in (self.ids or {}).items()}


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with running() as world:
        scene = Scene(world)
        asyncio.run(_populate(scene))
        yield scene


async def _populate(scene: Scene) -> None:
    world = scene.world
    await world.add("w", "p1")
    await world.add("other", "p2")
    await world.add("kim", "p1", "p2", role="operator", person="kim", see=("public", "internal", "restricted"))
    await world.add("lee", "p2", role="operator", person="lee", see=("public", "internal", "restricted"))
    await world.add("low", "p1", role="operator", person="low", see=("public",))
    async with world.agent("w") as w, world.agent("other", "p2") as other:
        first = await w.write("The depot opens at six")
        kept = await w.write("The depot has two gates")
        root = await w.write("The depot was sold to Meridian")
        child = await w.write("Meridian has the depot's keys", derived_from=[root.id])
        correction = await w.write("The depot opens at nine", supersedes=first.id)
        elsewhere = await other.write("The quay is a different project")
    scene.ids = {
        "first": first.id, "kept": kept.id, "root": root.id, "child": child.id, "correction": correction.id,
        "elsewhere": elsewhere.id,
    }  # fmt: skip
    async with world.desk("kim") as desk:
        scene.case = (await desk.hold_now(root.id, "it is forged")).case


HELD = {"root": "held", "child": "held"}
NOW = {"first": "superseded", "kept": "active", **HELD, "correction": "active", "elsewhere": "active"}
BEFORE = {"first": "active", "kept": "active", **HELD, "correction": "held", "elsewhere": "active"}


def test_a_plan_says_what_would_be_held_and_what_is_current_again_and_changes_nothing(scene: Scene) -> None:
    async def planned() -> bus.Plan:
        async with scene.world.desk("kim") as desk:
            return await desk.plan_rollback(scene.case)

    plan = asyncio.run(planned())
    assert {m.id for m in plan.members} == {scene["root"], scene["child"], scene["correction"]}
    assert [m.id for m in plan.again] == [scene["first"]]
    assert (plan.count, plan.again_count, plan.already_held, plan.rollback) == (3, 1, 2, scene.case)
    assert asyncio.run(scene.shown()) == NOW


def test_who_sees_only_some_of_it_cannot_roll_back_and_an_unknown_case_is_none(scene: Scene) -> None:
    async def refused(name: str, case: str) -> str:
        async with scene.world.desk(name) as desk:
            with pytest.raises(bus.CordonError) as e:
                await desk.plan_rollback(case)
        return e.value.reason

    assert asyncio.run(refused("lee", scene.case)) == "case_elsewhere"
    assert asyncio.run(refused("low", scene.case)) == "case_unknown", "all of it is above its clearance"
    assert asyncio.run(refused("kim", "case_" + "0" * 26)) == "case_unknown"


def test_applied_it_is_as_before_the_first_root_whatever_was_written_since_the_plan_and_a_release_undoes_it(scene: Scene) -> None:
    async def applied() -> tuple[bus.Case, str]:
        async with scene.world.desk("kim") as desk, scene.world.agent("w") as w:
            plan = await desk.plan_rollback(scene.case)
            late = (await w.write("Written after the plan")).id
            case = await desk.apply_rollback(plan.plan, "the depot's week is to be gone over")
            assert set((await w.query("depot opens", k=20)).ids) == {scene["first"], scene["kept"]}
            return case, late

    case, late = asyncio.run(applied())
    assert (case.state, late in case.added, scene.case in case.why) == ("open", True, True)
    assert asyncio.run(scene.shown()) == BEFORE

    async def undone() -> None:
        async with scene.world.desk("kim") as desk, scene.world.agent("w") as w:
            fresh = await w.write("Written after the rollback: the project goes on")
            assert fresh.state == "active"
            await desk.release(case.case, "gone over")
            assert (await w.get([late])).ids == [late]

    asyncio.run(undone())
    assert asyncio.run(scene.shown()) == NOW


@pytest.mark.slow
def test_a_rollback_survives_a_restart_and_verifies(scene: Scene) -> None:
    async def applied() -> str:
        async with scene.world.desk("kim") as desk:
            return (await desk.apply_rollback((await desk.plan_rollback(scene.case[-8:])).plan, "again")).case

    case = asyncio.run(applied())
    asyncio.run(scene.world.restart_gatekeeper())
    assert asyncio.run(scene.shown()) == BEFORE
    assert asyncio.run(verified(scene.world.home))["findings"] == []

    async def released() -> None:
        async with scene.world.desk("kim") as desk:
            await desk.release(case, "done")

    asyncio.run(released())
    assert asyncio.run(scene.shown()) == NOW


def test_a_rollback_that_would_hold_much_more_than_planned_is_stale(scene: Scene) -> None:
    async def stale() -> str:
        async with scene.world.desk("kim") as desk, scene.world.agent("w") as w:
            plan = await desk.plan_rollback(scene.case)
            await asyncio.gather(*(w.write(f"One more line {i} at {time.monotonic_ns()}") for i in range(101)))
            with pytest.raises(bus.Conflict) as e:
                await desk.apply_rollback(plan.plan, "too late")
        return e.value.reason

    assert asyncio.run(stale()) == "plan_stale"
