"""What an operator without the clearance is told is the same whether there is a restricted memory or not.

Two worlds with the same story, one of which has restricted memories besides: every answer is compared, word for word.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Literal

import msgspec
import pytest

import bus.testing
from bus import CordonError, Desk, MemoryBus
from bus.testing import ManualClock, World

_PASSING = ("request_id", "agent", "position", "closure_ms", "hold_ms")
_ID = re.compile(r"\b(?:mem|case|plan|rec|ctx|agt|end|era|lgl)_[0-9a-z]{26}\b")
SECRET: Literal["restricted"] = "restricted"


class Told:
    """What the clerk was told, step by step, with ids by the order in which they first came up."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self._names: dict[str, str] = {}

    async def ask(self, asked: Any) -> Any:
        try:
            answer = await asked
        except CordonError as e:
            self.answers.append(f"refused: {e.reason} {e.detail}" if hasattr(e, "detail") else f"refused: {e.reason}")
            return None
        plain = msgspec.to_builtins(answer)
        for one in plain if isinstance(plain, list) else [plain]:
            for name in _PASSING:
                one.pop(name, None)
        self.answers.append(_ID.sub(lambda m: self._names.setdefault(m[0], f"id{len(self._names)}"), repr(plain)))
        return answer


class Cast:
    def __init__(self, world: World) -> None:
        see = ("public", "internal", SECRET)
        self.alice: MemoryBus = world.agent("alice", see=see)
        self.spy: MemoryBus = world.agent("spy", see=see)
        self.chief: Desk = world.operator("chief", person="kim")
        self.clerk: Desk = world.operator("clerk", see=("public", "internal"))
        self.other: Desk = world.operator("other", see=("public", "internal"))


async def _story(secret: bool) -> tuple[list[str], dict[str, str]]:
    """What the clerk was told, and what the chief sees of the secrets at the end of each act."""
    told, seen = Told(), {}
    async with bus.testing.bus(clock=ManualClock("2026-01-31T12:00:00Z")) as world:
        cast = Cast(world)
        root = (await cast.alice.write("The depot was sold to Meridian")).id
        case = await cast.clerk.hold_now(root, "it is forged")
        first = (await cast.alice.write("The depot opens at six")).id
        hidden = []
        if secret:
            hidden.append((await cast.alice.write("The vault's code is 4471", classification=SECRET)).id)
            hidden.append((await cast.alice.write("So is the gate's", derived_from=[hidden[0]], classification=SECRET)).id)
            hidden.append((await cast.alice.write("Six is early", derived_from=[first], classification=SECRET)).id)
            await cast.spy.get(hidden)

        plan = await told.ask(cast.clerk.plan_rollback(case.case))
        await told.ask(cast.other.apply(plan.plan, "not a hold"))
        await told.ask(cast.other.prune(plan.plan, "nor a pruning"))
        await told.ask(cast.clerk.plan(first))
        await told.ask(cast.clerk.trace(first, "down"))
        await told.ask(cast.clerk.plan_erasure(first, derived=True))
        if secret:  # since the plan
            hidden += [(await cast.alice.write(f"Line {i} of the ledger of bribes", classification=SECRET)).id for i in range(3)]
        rolled = await told.ask(cast.clerk.apply_rollback(plan.plan, "all of it"))
        seen["held"] = " ".join([str((await cast.chief.why(id_)).facts["state"]) for id_ in hidden])
        if secret:
            whole = await cast.chief.case(rolled.case)
            assert {m.id for m in whole.members} >= {root, first, *hidden}, "who may see it sees it there"
        await told.ask(cast.clerk.case(rolled.case))
        await told.ask(cast.other.case(rolled.case))
        await told.ask(cast.clerk.cases())
        await told.ask(cast.clerk.plan_rollback(rolled.case))
        await told.ask(cast.other.release(rolled.case, "gone over"))
        seen["released"] = " ".join([str((await cast.chief.why(id_)).facts["state"]) for id_ in hidden])

        if secret:
            await cast.chief.hold_now(hidden[0], "for the chief alone")
            await cast.chief.place_legal_hold(hidden[1], "a case at court")
        await told.ask(cast.clerk.cases())
        await told.ask(cast.clerk.legal_holds())

        second = (await cast.alice.write("The kettle was mended on Tuesday")).id
        mended = [(await cast.alice.write("So was the kettle's lid", classification=SECRET)).id] if secret else []
        recall = await cast.spy.query("the kettle", k=64)
        assert {x.memory.id for x in recall.admitted} >= {second, *mended}
        await told.ask(cast.clerk.why(recall.recall_id))
        await cast.chief.erase([second, *mended], "both were mistaken")
        await told.ask(cast.clerk.erasures())
    return told.answers, seen


@pytest.fixture(scope="module")
def stories() -> tuple[tuple[list[str], dict[str, str]], tuple[list[str], dict[str, str]]]:
    return asyncio.run(_story(True)), asyncio.run(_story(False))


def test_plans_cases_traces_and_rollbacks_tell_nothing_of_restricted_memories(stories: Any) -> None:
    (with_secrets, _), (without, _) = stories
    for hiding, open_ in zip(with_secrets, without, strict=True):
        assert hiding == open_
    assert sum(answer.startswith("refused") for answer in without) == 2, "a rollback's plan is neither a hold's nor a pruning's"


def test_a_rollback_holds_what_its_operator_may_not_see_and_its_release_lets_it_go(stories: Any) -> None:
    (_, seen), _ = stories
    assert seen == {"held": " ".join(["held"] * 6), "released": " ".join(["active"] * 6)}


@pytest.mark.parametrize("secret", [True, False])
def test_a_context_tells_neither_how_many_nor_that_it_was_served_any_that_its_asker_may_not_see(secret: bool) -> None:
    async def scenario() -> None:
        async with bus.testing.bus() as world:
            cast = Cast(world)
            plain = [(await cast.alice.write(f"The depot opens at {hour}")).id for hour in ("six", "seven")]
            hidden = [(await cast.alice.write("The vault's code is 4471", classification=SECRET)).id] if secret else []
            await cast.spy.get(plain + hidden)
            for desk, served, highest in (
                (cast.clerk, 2, "internal"),
                (cast.chief, 2 + secret, SECRET if secret else "internal"),
            ):
                told = await desk.context("spy")
                assert (told.served, told.classification, told.recalls) == (served, highest, 1)

    asyncio.run(scenario())


def test_a_case_of_restricted_memories_alone_is_unknown_to_who_may_not_see_them() -> None:
    async def scenario() -> None:
        async with bus.testing.bus() as world:
            cast = Cast(world)
            secret = (await cast.alice.write("The vault's code is 4471", classification=SECRET)).id
            case = await cast.chief.hold_now(secret, "forged")
            for asked in (cast.clerk.case(case.case), cast.clerk.case(case.case[-8:]), cast.clerk.release(case.case, "mine")):
                with pytest.raises(CordonError) as e:
                    await asked
                assert e.value.reason == "case_unknown"
            assert (await cast.chief.case(case.case[-8:])).count == 1

    asyncio.run(scenario())
