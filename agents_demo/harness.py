"""Plays a scenario over a store and measures what became of the poison. Knows nothing of how a bus is started.

The steps are the same without Cordon and with it; only with it is there something that a person can do then (containment.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import anyio
import msgspec

from .containment import contain
from .orders import Act, AnyOrder, Ask, Compose, Fetch, Note, Read, Report, Settle
from .scenario import Document, Scenario, Step
from .swarm import Arena, Swarm, swarm
from .truth import Account, Event

Watch = Callable[[str | Event], None]  # a sentence about what begins, or what was done
IDS_MAX = 64  # of one `get`


class Player:
    """A swarm at work on a scenario; everything goes into the account."""

    def __init__(self, scenario: Scenario, agents: Swarm, watch: Watch) -> None:
        self.scenario, self.watch = scenario, watch
        self.account = Account()
        self._agents = agents
        self._asks = next(a.name for a in reversed(scenario.agents) if a.role == "agent")

    def do(self, agent: str, verb: str, order: AnyOrder, about: str = "", source: Document | None = None) -> Event:
        """One order to one agent. `source`: the document that it reads. Raises AgentStopped."""
        report: Report = self._agents[agent].do(order)
        event = self.account.note(agent, verb, order.project, about, report, bool(source and source.poison))
        self.watch(event)
        return event

    def step(self, step: Step) -> None:
        """One step of the scenario: an order, or one for each record or document."""
        s = self.scenario
        if step.do == "record":
            tools = next(a.tools for a in s.agents if a.name == step.agent)
            for r in (r for r in s.records if r.tool in tools):
                self.do(step.agent, "record", Note(project=r.project, record=r), r.uri)
        elif step.do == "read":
            for d in s.documents:
                self.do(step.agent, "read", Read(project=d.project, uri=d.uri, text=d.text), d.uri, d)
        elif step.do == "act":
            task = s.task(step.task)
            self.do(step.agent, "act", Act(project=task.project, task=task), task.about)
        elif step.task:
            task = s.task(step.task)
            order = Compose(project=task.project, verb=step.do, about=task.about, task=task)
            self.do(step.agent, step.do, order, task.about)
        else:
            order = Compose(project=step.project, verb=step.do, about=step.about)
            self.do(step.agent, step.do, order, step.about)

    def kept(self) -> list[bool]:
        """For each benign question, whether its answer is found now."""
        return [
            any(q.answer in seen.content for seen in self._ask(q.project, q.text).served) for q in self.scenario.questions
        ]  # fmt: skip

    def poison_served(self) -> set[str]:
        """Which poisoned records are served when somebody asks about everything once more."""
        return {seen.id for project, text in self.scenario.topics for seen in self._ask(project, text).served} & self.account.poisoned

    def readable(self, ids: Collection[str]) -> set[str]:
        """Which of these records can be got by their ids."""
        found: set[str] = set()
        for project, mine in self.account.by_project(ids).items():
            for at in range(0, len(mine), IDS_MAX):
                found |= {s.id for s in self.do(self._asks, "fetch", Fetch(project=project, ids=mine[at : at + IDS_MAX])).served}
        return found

    def settle(self) -> None:
        """Everybody acknowledges the notices that wait."""
        for agent in self.scenario.agents:
            if agent.role == "agent":
                self.do(agent.name, "settle", Settle(project=self.scenario.projects[0]))

    def _ask(self, project: str, text: str) -> Event:
        return self.do(self._asks, "ask", Ask(project=project, about=text), text)


def run_demo(ungated: Arena, cordon: Arena, scenario: Scenario, seed: int, watch: Watch) -> dict[str, Any]:
    """Both runs, as plain JSON values.

    Keys: seed, title, documents, poisoned, projects, agents, ungated, cordon, closure, released, expectations. Each side has
    contaminated_records, records, agents_reached, risky_calls_on_poison, benign_answers_kept {kept, asked}, calls and the log
    (truth.Event) that they were counted from. Raises AgentStopped and what the bus raises.
    """
    scenario = scenario.shuffled(seed)
    watch("Without Cordon: the agents share a file.")
    with swarm(ungated, scenario.agents, seed) as agents:
        player = Player(scenario, agents, watch)
        plain = _spread(player)
        plain |= {"benign_answers_kept": _kept(player.kept())}
    watch("With Cordon: the same agents, documents and steps.")
    with swarm(cordon, scenario.agents, seed) as agents:
        player = Player(scenario, agents, watch)
        gated = _spread(player)
        contained = anyio.run(contain, cordon, player)
        gated |= {"benign_answers_kept": _kept(contained.pop("kept"))}
    closure, released = contained.pop("closure"), contained.pop("released")
    result = {
        "seed": seed,
        "title": scenario.title,
        "documents": len(scenario.documents),
        "poisoned": [{"uri": d.uri, "poison": d.poison} for d in sorted(scenario.poisoned, key=lambda d: d.uri)],
        "projects": scenario.projects,
        "agents": [a.name for a in scenario.agents],
        "ungated": plain,
        "cordon": {**gated, **contained},
        "closure": closure,
        "released": released,
    }
    return {**result, "expectations": expectations(result, scenario)}


def _spread(player: Player) -> dict[str, Any]:
    """The scenario from documents to tool calls, and its figures."""
    for step in player.scenario.steps:
        player.step(step)
    account = player.account
    return {
        "contaminated_records": len(account.poisoned),
        "records": len(account.records),
        "agents_reached": len(account.reached),
        "reached": sorted(account.reached),
        "risky_calls_on_poison": account.risky_calls_on_poison,
        "calls": account.calls,
        "held_at_write": sum(w.state == "held" for w in account.records),
        "log": msgspec.to_builtins(account.events),
    }


def _kept(found: list[bool]) -> dict[str, int]:
    return {"kept": sum(found), "asked": len(found)}


def expectations(result: dict[str, Any], scenario: Scenario) -> list[dict[str, Any]]:
    """What the scenario wants to see beside what was seen: {name, expected, seen, met}."""
    e, plain, gated, closure = scenario.expect, result["ungated"], result["cordon"], result["closure"]
    lost = plain["benign_answers_kept"]["kept"] - gated["benign_answers_kept"]["kept"]
    at_least = {
        "risky calls on poison without Cordon": (e.risky_calls_ungated_min, plain["risky_calls_on_poison"]),
        "precision of the closure": (e.closure_precision_min, closure["precision"]),
        "recall of the closure": (e.closure_recall_min, closure["recall"]),
    }
    at_most = {
        "risky calls on poison with Cordon": (e.risky_calls_cordon_max, gated["risky_calls_on_poison"]),
        "poisoned records served while held": (0, gated["served_while_held"]),
        "benign answers lost": (e.benign_answers_lost_max, lost),
    }
    exactly = {
        "the second tenant is untouched": (True, gated["second_tenant_untouched"]),
        "after the release all is as before": (True, result["released"]["ok"]),
    }
    return [
        *({"name": n, "expected": f">= {w}", "seen": s, "met": s >= w} for n, (w, s) in at_least.items()),
        *({"name": n, "expected": f"<= {w}", "seen": s, "met": s <= w} for n, (w, s) in at_most.items()),
        *({"name": n, "expected": w, "seen": s, "met": s is w} for n, (w, s) in exactly.items()),
    ]
