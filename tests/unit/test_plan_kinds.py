"""A plan is applied by the command that it was made for, and by no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import bus.testing
from bus import Conflict


async def _refused(asked: Awaitable[object]) -> tuple[str, str]:
    """The reason, and the command that is named."""
    with pytest.raises(Conflict) as e:
        await asked
    return e.value.reason, str(e.value.detail.get("apply_with", ""))


def test_a_plan_of_one_kind_is_refused_by_the_commands_of_the_others_and_applied_by_its_own() -> None:
    async def scenario() -> None:
        async with bus.testing.bus() as world:
            alice, desk = world.agent("alice"), world.operator()
            forged = (await alice.write("The depot was sold to Meridian")).id
            old = (await alice.write("The depot opens at six")).id
            case = await desk.hold_now(forged, "forged")
            plans = {
                "hold": (await desk.plan(old)).plan,
                "rollback": (await desk.plan_rollback(case.case)).plan,
                "prune": (await desk.plan_pruning("p1", older_than_s=0)).plan,
            }
            assert all(plans.values())
            apply: dict[str, Callable[[str], Awaitable[object]]] = {
                "hold": lambda plan: desk.apply(plan, "why"),
                "rollback": lambda plan: desk.apply_rollback(plan, "why"),
                "prune": lambda plan: desk.prune(plan, "why"),
                "erase": desk.agree_to_erase,
            }
            for verb, applied in apply.items():
                for kind, plan in plans.items():
                    if kind != verb:
                        named = f"cordon {kind} --plan ID"
                        assert await _refused(applied(plan)) == ("plan_of_other_kind", named), f"{kind} as {verb}"
                        assert await _refused(applied(plan[-8:])) == ("plan_of_other_kind", named), "by the end of its id"
            await desk.prune(plans["prune"], "why")
            assert (await desk.apply(plans["hold"], "why")).count == 1
            rolled = await desk.apply_rollback(plans["rollback"], "why")
            assert rolled.why == f"back to before {case.case}: why"
            assert await _refused(desk.apply_rollback(plans["rollback"], "again")) == ("plan_unknown", "")

    asyncio.run(scenario())


def test_what_kind_a_plan_is_of_is_not_told_to_who_could_not_have_made_it() -> None:
    async def scenario() -> None:
        async with bus.testing.bus(projects={"p1": {}, "p2": {}}) as world:
            alice, desk, stranger = world.agent("alice"), world.operator(), world.operator("stranger", projects=["p2"])
            memory = (await alice.write("The depot opens at six")).id
            plan = await desk.plan_pruning("p1", older_than_s=0)
            assert [m.id for m in plan.members] == [memory]
            assert await _refused(stranger.apply(plan.plan, "why")) == ("plan_unknown", "")
            assert (await _refused(desk.apply(plan.plan, "why")))[0] == "plan_of_other_kind"

    asyncio.run(scenario())
