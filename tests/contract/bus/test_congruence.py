"""One story, played on both: every frame of the twin is the real bus's, but for ids, keys, times and positions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

import bus
from tests.integration.world import World

from .arena import Arena, HomeArena, TwinArena

OWN_OF_A_RUN: Final = frozenset(
    {
        "request_id", "position", "generation", "closure_ms", "hold_ms", "written_at", "opened_at", "released_at", "expires_at",
        "last_read_at", "at", "next",
    }
)  # fmt: skip
_KEY: Final = re.compile(r"\bU[A-Z2-7]{55}\b")
_ID: Final = re.compile(r"\b(?:mem|rec|case|plan|ctx|agt)_[0-9a-z]{26}")
_SUFFIX: Final = re.compile(r"-c\d+\b")
_PROJECT: Final = re.compile(r"\bc\d+-(p[12])\b")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


class Transcript:
    """Frames as plain values; ids by the order in which they first appear. `tick` is called between them."""

    def __init__(self, tick: Callable[[], None] = lambda: None) -> None:
        self._tick = tick
        self.frames: list[Any] = []
        self._ids: dict[str, str] = {}

    def add(self, frame: msgspec.Struct) -> None:
        self.frames.append(self._plain(msgspec.to_builtins(frame)))
        self._tick()

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._text(k): self._plain(v) for k, v in value.items() if k not in OWN_OF_A_RUN}
        if isinstance(value, list):
            return [self._plain(v) for v in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        text = _ID.sub(lambda m: self._ids.setdefault(m[0], f"{m[0][:3]}#{len(self._ids)}"), text)
        text = _KEY.sub("KEY", text)
        return _TIME.sub("TIME", _SUFFIX.sub("", _PROJECT.sub(r"\1", text)))


async def story(arena: Arena) -> list[Any]:
    """An ingested page, its way through two agents, a hold, a late child, a release."""
    told = Transcript(arena.tick)
    async with (
        arena.agent("reader", role="ingest") as ingest,
        arena.agent("summariser") as summariser,
        arena.agent("planner") as planner,
        arena.operator() as desk,
    ):
        page = await ingest.write(
            "The rollback version of gateway-7 is 4.18.2", kind="source", evidence=["https://wiki.example/g7"]
        )
        told.add(page)
        told.add(await ingest.write("Call ann@example.org before a rollback", evidence=["https://wiki.example/g7#contact"]))
        async with summariser.run("nightly"):
            told.add(await summariser.query("what is the rollback version of gateway-7?", k=4))
            summary = await summariser.write("Roll gateway-7 back to 4.18.2", kind="procedure", claimed_confidence=0.9)
            told.add(summary)
        told.add(await planner.query("roll back gateway-7"))
        told.add(await planner.query("roll back gateway-7", intent="plan", tool_risk="read_only"))
        told.add(await planner.query("roll back gateway-7", intent="execute", tool_risk="writes_local"))
        told.add(await planner.query("roll back gateway-7", intent="send", tool_risk="privileged"))
        told.add(await planner.write("Tonight: gateway-7 to 4.18.2", kind="decision", derived_from=[summary.id]))
        told.add(await desk.plan(page.id))
        case = await desk.hold_now(page.id, "forged page")
        told.add(await desk.case(case.case))
        told.add(await planner.query("roll back gateway-7"))
        told.add(await planner.write("gateway-7 to 4.18.2 it is", derived_from=[summary.id]))
        told.add(await planner.sync())
        told.add(await desk.why(summary.id))
        told.add(await desk.context(arena.named("planner")))
        told.add(await desk.stats())
        told.add(await desk.release(case.case, "it was right"))
        told.add(await planner.get(summary.id))
        told.add(await planner.sync())
    return told.frames


def test_the_twin_answers_as_the_real_bus_does(twin: TwinArena, real_home: World) -> None:
    async def both() -> None:
        ours, theirs = await story(twin), await story(HomeArena(real_home))
        assert len(ours) == len(theirs) > 15
        for mine, other in zip(ours, theirs, strict=True):
            if mine["type"] == "stats":  # of the whole tenant, but for the memories of its projects
                assert mine["counts"]["memories"] == other["counts"]["memories"]
            else:
                assert mine == other

    asyncio.run(both())


def test_the_comparison_sees_a_difference() -> None:
    one, two = Transcript(), Transcript()
    receipt = bus.Receipt(
        id="mem_" + "0" * 26,
        state="active",
        trust=0.5,
        trust_floor=0.5,
        origin="external",
        actor=bus.Actor(id="a"),
        position=1,
    )
    one.add(receipt)
    two.add(msgspec.structs.replace(receipt, id="mem_" + "1" * 26, position=2))
    assert one.frames == two.frames
    one.add(receipt)
    two.add(msgspec.structs.replace(receipt, trust=0.4))
    assert one.frames != two.frames
