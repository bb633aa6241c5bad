"""What a person can do with Cordon: learn that documents are poisoned, plan, hold, look, release.

Meanwhile a second tenant with the same names, documents and sources lives next door, and must notice nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import bus

from .orders import Echo
from .swarm import Arena
from .truth import overlap

if TYPE_CHECKING:
    from .harness import Player
    from .scenario import Scenario

FAULTS_SHOWN: Final = 20  # records that a closure missed or took wrongly, told with their edges


async def contain(arena: Arena, player: Player) -> dict[str, Any]:
    """The measures of the hold. `released` and `closure` are parts of their own; `kept`: benign questions while it is held."""
    account, neighbour = player.account, Neighbour(arena, player.scenario)
    async with bus.connect_operator(url=arena.url, creds=arena.operator) as desk:
        player.watch("Next door: a second tenant with the same names and sources.")
        await neighbour.move_in()
        poisoned = frozenset(account.poisoned)
        noted = {e.about for e in account.events if e.do == "read" and e.wrote}
        selector = [f"source:{d.uri}" for d in player.scenario.poisoned if d.uri in noted]
        if not selector:
            raise bus.Rejected(
                "Nothing was noted from the poisoned documents, so there is nothing to hold.",
                reason="nothing_poisoned",
                advice="Try another seed, model or document.",
            )
        player.watch(f"A person learns that {len(selector)} sources are poisoned, and holds them with all that came of them.")
        account.mark("hold")
        plan = await desk.plan(selector)
        members = frozenset(m.id for m in plan.members)
        case = await desk.apply(plan.plan, "demo: the sources are poisoned")
        served = player.poison_served() | player.readable(poisoned)
        kept = player.kept()
        late = _say_again(player)
        player.settle()
        shown = await desk.case(case.case)
        untouched = await neighbour.is_untouched()
        player.watch("The person releases the case: nothing was lost.")
        account.mark("release")
        released = await desk.release(case.case, "demo: shown that it is reversible")
        player.settle()
        late_ids = {w.id for w in late}
        served_after = player.poison_served() - late_ids
        was_active = {w.id for w in account.records if w.id in poisoned and w.state == "active"} | late_ids
        readable = player.readable(poisoned | late_ids)
        faults = [await _fault(desk, player, id_, id_ in poisoned) for id_ in sorted(members ^ poisoned)[:FAULTS_SHOWN]]
    precision, recall = overlap(members, poisoned)
    return {
        "kept": kept,
        "closure": {
            "precision": precision, "recall": recall, "ms": case.closure_ms, "members": len(members),
            "by_depth": plan.by_depth, "faults": faults,
        },
        "served_while_held": len(served),
        "held_ms": case.hold_ms,
        "held_ids": sorted(members),
        "late_children": {"written": len(late), "held": sum(w.state == "held" for w in late)},
        "notices": {"told": list(shown.told), "acked": list(shown.acked)},
        "second_tenant_untouched": untouched,
        "released": {
            "ok": released.state == "released" and readable == was_active and bool(served_after),
            "members": released.count, "served_again": len(served_after), "readable": len(readable),
            "still_for_review": len(poisoned) + len(late_ids) - len(was_active),
        },
    }  # fmt: skip


def _say_again(player: Player) -> list[Any]:
    """While all is held, whoever restated poison last writes it down once more, from its head."""
    made = [(e.agent, e.project, e.poisoned[-1]) for e in player.account.events if e.poisoned and e.do not in ("read", "act")]
    if not made:
        return []
    agent, project, id_ = made[-1]
    return player.do(agent, "echo", Echo(project=project, id=id_)).wrote


async def _fault(desk: bus.Desk, player: Player, id_: str, missed: bool) -> dict[str, Any]:
    """A record that the closure missed or took wrongly: its text, the edges that were found, and what it was made from."""
    trace = await desk.trace(id_, "up", hops=1, edges=["declared", "copied", "served"])
    text_of = player.account.text_of
    used = next(w.used for w in player.account.records if w.id == id_)
    return {
        "id": id_,
        "fault": "missed" if missed else "wrongly held",
        "text": text_of[id_],
        "made_from": [text_of[u] for u in used],
        "edges": [
            {
                "kind": e.kind,
                "confidence": e.confidence,
                "poisoned": e.from_ in player.account.poisoned,
                "from": text_of.get(e.from_),
            }
            for e in trace.edges
            if e.to == id_
        ],
    }


class Neighbour:
    """The second tenant: the same agents, records and poisoned documents, of its own."""

    def __init__(self, arena: Arena, scenario: Scenario) -> None:
        self._arena, self._scenario = arena, scenario
        self._reader = next(a.name for a in scenario.agents if a.role == "agent")
        self._served: list[str] = []
        self._own: set[str] = set()

    async def move_in(self) -> None:
        """Read the poisoned documents, and remember what is served of them."""
        async with self._connect() as memory:
            for d in self._scenario.poisoned:
                for fact in d.facts:
                    wrote = await memory.write(fact, project=d.project, origin="external", evidence=[d.uri])
                    self._own.add(wrote.id)
            self._served = await self._ask(memory)

    async def is_untouched(self) -> bool:
        """Whether it is served what it was, of its own alone, and was told of nothing."""
        async with self._connect() as memory:
            now, told = await self._ask(memory), (await memory.sync()).notices
        return now == self._served != [] and set(now) <= self._own and not told

    async def _ask(self, memory: bus.MemoryBus) -> list[str]:
        asked = [await memory.query(text, project=project) for project, text in self._scenario.topics]
        return [id_ for recall in asked for id_ in recall.ids]

    def _connect(self) -> Any:
        return bus.connect(url=self._arena.url, creds=self._arena.neighbour[self._reader])
