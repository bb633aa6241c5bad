"""What a person can do with Cordon: learn that documents are poisoned, plan, hold, look, release; and what that is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import bus

from .neighbour import Neighbour
from .orders import Echo, Wrote
from .swarm import Arena
from .truth import overlap

if TYPE_CHECKING:
    from .harness import Player

FAULTS_SHOWN: Final = 50  # records that a closure missed or took wrongly, told with their edges


async def contain(arena: Arena, player: Player) -> dict[str, Any]:
    """The measures of the hold: closure, released, kept (benign questions while it is held), and what the report tells."""
    neighbour = Neighbour(arena, player.scenario)
    async with bus.connect_operator(url=arena.url, creds=arena.operator) as desk:
        person = Person(desk, player)
        player.watch("Next door: a second tenant with the same names and sources.")
        await neighbour.move_in()
        player.watch("A person learns which sources are poisoned, and holds them with all that came of them.")
        measures = await person.hold() | await person.look()
        measures["second_tenant_untouched"] = await neighbour.is_untouched()
        player.watch("The person releases the case: nothing was lost.")
        return measures | await person.release()


class Person:
    """An operator who knows which documents are poisoned, and nothing else of what the agents did."""

    def __init__(self, desk: bus.Desk, player: Player) -> None:
        self._desk, self._player = desk, player
        self._poisoned = frozenset(player.account.poisoned)
        self._late: list[Wrote] = []
        self._case = ""

    async def hold(self) -> dict[str, Any]:
        """Plan and hold; how well that fits what truly carries the poison."""
        self._player.account.mark("hold")
        selector = self._selector()
        plan = await self._desk.plan(selector)
        members = frozenset(m.id for m in plan.members)
        suspects = frozenset(m.id for m in (await self._desk.plan(selector, suspects=True)).suspects)
        case = await self._desk.apply(plan.plan, "demo: the sources are poisoned")
        self._case = case.case
        precision, recall = overlap(members, self._poisoned)
        closure = {
            "precision": precision, "recall": recall, "ms": case.closure_ms, "members": len(members), "by_depth": plan.by_depth,
            "suspects": {"listed": len(suspects), "poisoned": len(suspects & self._poisoned)},
            "faults": [await self._fault(id_) for id_ in sorted(members ^ self._poisoned)[:FAULTS_SHOWN]],
        }  # fmt: skip
        return {"closure": closure, "held_ms": case.hold_ms, "held_ids": sorted(members)}

    async def look(self) -> dict[str, Any]:
        """While it is held: what is still served, what is lost, who knows."""
        player = self._player
        served = player.poison_served() | player.readable(self._poisoned)
        kept = player.kept()
        self._late = self._say_again()
        player.settle()
        case = await self._desk.case(self._case)
        return {
            "served_while_held": len(served),
            "kept": kept,
            "late_children": {"written": len(self._late), "held": sum(w.state == "held" for w in self._late)},
            "notices": {"told": case.told, "acked": case.acked},
        }

    async def release(self) -> dict[str, Any]:
        """Let go. What was held when it was written still waits for a review of its own; all else must be readable again."""
        player = self._player
        player.account.mark("release")
        case = await self._desk.release(self._case, "demo: shown that it is reversible")
        player.settle()
        late = {w.id for w in self._late}
        due = {w.id for w in player.account.records if w.id in self._poisoned and w.state == "active"} | late
        served, readable = player.poison_served() - late, player.readable(self._poisoned | late)
        released = {
            "ok": case.state == "released" and readable == due and bool(served),
            "members": case.count,
            "served_again": len(served),
            "readable": len(readable),
            "still_for_review": len(self._poisoned | late) - len(due),
        }
        return {"released": released}

    def _selector(self) -> list[str]:
        noted = {e.about for e in self._player.account.events if e.do == "read" and e.wrote}
        selector = [f"source:{d.uri}" for d in self._player.scenario.poisoned if d.uri in noted]
        if not selector:
            raise bus.Rejected(
                "Nothing was noted from the poisoned documents, so there is nothing to hold.",
                reason="nothing_poisoned",
                advice="Try another seed, model or document.",
            )
        return selector

    def _say_again(self) -> list[Wrote]:
        """Whoever restated poison last writes it down once more, from its head."""
        events = self._player.account.events
        made = [(e.agent, e.project, e.poisoned[-1]) for e in events if e.poisoned and e.do not in ("read", "act")]
        if not made:
            return []
        agent, project, id_ = made[-1]
        return self._player.do(agent, "echo", Echo(project=project, id=id_)).wrote

    async def _fault(self, id_: str) -> dict[str, Any]:
        """A record that the closure missed or took wrongly: its text, what it was made from, and the edges that were found."""
        trace = await self._desk.trace(id_, "up", hops=1, edges=["declared", "copied", "served"])
        text_of = self._player.account.text_of
        used = next(w.used for w in self._player.account.records if w.id == id_)
        edges = [
            {"kind": e.kind, "confidence": e.confidence, "poisoned": e.from_ in self._poisoned, "from": text_of.get(e.from_)}
            for e in trace.edges
            if e.to == id_
        ]
        fault = "missed" if id_ in self._poisoned else "wrongly held"
        return {"id": id_, "fault": fault, "text": text_of[id_], "made_from": [text_of[u] for u in used], "edges": edges}
