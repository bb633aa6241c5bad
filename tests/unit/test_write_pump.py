"""The write pump: contexts in turns, one batch of each at a time, and a draft that fails costs no other."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gate.index_thread import IndexThread
from gate.refusals import Refused
from gate.shard import Shard
from gate.turns import Pace
from gate.writing.context_texts import ContextTexts
from gate.writing.decide import Write
from gate.writing.writes import CATCH_UP_MAX, Writes

from .story import Story

sys.setswitchinterval(0.0005)  # as in the gatekeeper: by Python's own 5 ms a busy thread can starve the loop for seconds


class Pump:
    """A pump whose drafts are prepared by `prepare`; what came out, and what was refused."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("gate.writing.writes.prepare", self.prepare)
        self.index = IndexThread(asyncio.get_running_loop(), lambda: False)
        self.index.start()
        self.out: list[str] = []
        self.refused: list[str] = []
        self.slow, self.at_once = threading.Event(), list[set[str]]()
        self.crowd = set[str]()  # agents
        shard = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            index=self.index,
            indexes={},
            admission=SimpleNamespace(embedder=None),
            sequencer=SimpleNamespace(submit=lambda _, w: self.out.append(w.checked.draft.content)),
            refuse_write=self.refuse,
            pace=Pace(),
            context_texts=ContextTexts(),
            intake=SimpleNamespace(calm=lambda p: p.agent.text not in self.crowd),
        )
        self.writes = Writes(cast(Shard, shard))

    def refuse(self, w: Write, e: Refused) -> None:
        assert e.code == "internal"
        self.refused.append(w.checked.draft.content)

    def prepare(self, batch: list[Write], *_: Any) -> Iterator[Write | None]:
        self.at_once.append({w.checked.draft.content for w in batch})
        for w in batch:
            content = w.checked.draft.content
            while content.startswith("slow") and not self.slow.is_set():
                yield None
            if content.startswith("bad"):
                raise ValueError("what nobody foresaw")
            yield w

    async def ended(self, count: int) -> None:
        await until(lambda: len(self.out) + len(self.refused) >= count)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached():  # noqa: ASYNC110 - what another thread does
            await asyncio.sleep(0.001)


def test_what_is_slow_is_overtaken_by_other_contexts_and_by_nothing_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        story, pump = Story(), Pump(monkeypatch)
        heavy, light = story.agent("heavy"), story.agent("light")
        for content in ("slow 1", "next 2", "next 3"):
            pump.writes.submit(story.draft(heavy, content))
        running = asyncio.create_task(pump.writes.run())
        await until(lambda: bool(pump.at_once))
        pump.writes.submit(story.draft(heavy, "last 4"))
        for i in range(3):
            pump.writes.submit(story.draft(light, f"light {i}"))
        await pump.ended(3)
        assert pump.out == ["light 0", "light 1", "light 2"]
        assert not pump.writes.quiet
        pump.slow.set()
        await pump.ended(7)
        assert pump.out[3:] == ["slow 1", "next 2", "next 3", "last 4"]
        assert pump.writes.quiet
        running.cancel()
        await asyncio.to_thread(pump.index.stop)

    asyncio.run(scenario())


def test_what_a_batch_had_no_room_for_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gate.writing.writes.WRITE_BATCH_MAX", 2)
    monkeypatch.setattr("gate.index_thread.PARTED_S", 0.01)

    async def scenario() -> None:
        story, pump = Story(), Pump(monkeypatch)
        heavy, light = story.agent("heavy"), story.agent("light")
        for i in range(5):
            pump.writes.submit(story.draft(heavy, f"slow {i}"))
        running = asyncio.create_task(pump.writes.run())
        await until(lambda: bool(pump.at_once))
        for i in range(6):
            pump.writes.submit(story.draft(light, f"light {i}"))
        await pump.ended(6)
        assert {x for batch in pump.at_once for x in batch if x.startswith("slow")} <= {"slow 0", "slow 1"}
        pump.slow.set()
        await pump.ended(11)
        assert [x for x in pump.out if x.startswith("slow")] == [f"slow {i}" for i in range(5)]
        assert pump.writes.quiet
        running.cancel()
        await asyncio.to_thread(pump.index.stop)

    asyncio.run(scenario())


def test_a_batch_of_the_crowd_holds_up_no_draft_of_the_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        story, pump = Story(), Pump(monkeypatch)
        flooder, calm = story.agent("flooder"), story.agent("calm")
        pump.crowd.add(flooder.agent.text)
        running = asyncio.create_task(pump.writes.run())
        for i in range(100):
            pump.writes.submit(story.draft(flooder, f"slow {i:02}"))
        await until(lambda: bool(pump.at_once))
        for i in range(3):
            pump.writes.submit(story.draft(calm, f"calm {i}"))
            await pump.ended(i + 1)
        assert pump.out == ["calm 0", "calm 1", "calm 2"]
        assert not any({"calm 0", "calm 1", "calm 2"} & batch for batch in pump.at_once if len(batch) > 1)
        pump.slow.set()
        await pump.ended(103)
        assert pump.out[3:] == [f"slow {i:02}" for i in range(100)]
        running.cancel()
        await asyncio.to_thread(pump.index.stop)

    asyncio.run(scenario())


def test_nobody_waits_for_a_context_that_has_much_to_catch_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gate.index_thread.PARTED_S", math.inf)  # nobody is let past because it takes long

    async def scenario() -> None:
        story, pump = Story(), Pump(monkeypatch)
        reader, quick = story.agent("reader"), story.agent("quick")
        for i in range(2):
            pump.writes.submit(draft := story.draft(reader, f"slow {i}"))
            draft.context.fresh[1].extend(range(CATCH_UP_MAX))
        pump.writes.submit(story.draft(quick, "quick 0"))
        running = asyncio.create_task(pump.writes.run())
        await pump.ended(1)
        pump.writes.submit(story.draft(quick, "quick 1"))
        await pump.ended(2)
        assert pump.out == ["quick 0", "quick 1"]
        pump.slow.set()
        await pump.ended(4)
        assert pump.out[2:] == ["slow 0", "slow 1"]
        running.cancel()
        await asyncio.to_thread(pump.index.stop)

    asyncio.run(scenario())


@pytest.mark.usefixtures("caplog")
def test_a_draft_that_fails_is_refused_and_the_others_of_its_batch_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        story, pump = Story(), Pump(monkeypatch)
        one, two = story.agent("one"), story.agent("two")
        for content in ("a", "bad 1", "b"):
            pump.writes.submit(story.draft(one, content))
        for content in ("c", "bad 2", "d"):
            pump.writes.submit(story.draft(two, content))
        running = asyncio.create_task(pump.writes.run())
        await pump.ended(6)
        assert pump.refused == ["bad 1", "bad 2"]
        assert [x for x in pump.out if x in "ab"] == ["a", "b"]
        assert [x for x in pump.out if x in "cd"] == ["c", "d"]
        await until(lambda: pump.writes.quiet)
        running.cancel()
        await asyncio.to_thread(pump.index.stop)

    asyncio.run(scenario())


@pytest.mark.usefixtures("caplog")
def test_who_closes_a_context_waits_for_what_it_sent_so_far_and_for_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        story, pump = Story(), Pump(monkeypatch)
        closed, other = story.agent("closed"), story.agent("other")
        for content in ("slow 1", "bad 2"):
            pump.writes.submit(story.draft(closed, content))
        running = asyncio.create_task(pump.writes.run())
        await until(lambda: bool(pump.at_once))
        waiting = [asyncio.create_task(pump.writes.prepared((story.t.account, story.context(closed).id))) for _ in range(2)]
        await asyncio.sleep(0)
        pump.writes.submit(story.draft(closed, "later 3"))
        await asyncio.wait_for(pump.writes.prepared((story.t.account, story.context(other).id)), 5)
        assert not any(w.done() for w in waiting)
        pump.slow.set()
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
        assert (pump.out[0], pump.refused) == ("slow 1", ["bad 2"])
        await pump.ended(3)
        await until(lambda: pump.writes.quiet)
        running.cancel()
        await asyncio.to_thread(pump.index.stop)

    asyncio.run(scenario())
