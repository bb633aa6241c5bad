"""Runs the scenario over a store and measures what became of the poison.

The truth is kept here: who used what, as the roles report it.

Knows nothing of how a bus is started: an `Arena` says where each role finds its store, and what an operator's desk is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import anyio

import bus

from .scenario import PROJECTS, QUESTIONS, RECORDS, RISKY, TASKS, TOPICS, Document, documents

ROLES: Final = ("erp", "reader", "summariser", "planner", "operations")
OPERATOR: Final = "operator"
Progress = Callable[[str], None]
STEP_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Arena:
    """How each role reaches its store: the environment of its process. `url` and `operator` (credentials) only with Cordon."""

    environment: Mapping[str, Mapping[str, str]]
    url: str = ""
    operator: str = ""


class Role:
    """One agent's process."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agents_demo.roles"],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"The agent {self.name} stopped at {do!r} (exit {self.process.wait()}): see its message above.")
        report: dict[str, Any] = json.loads(line)
        return report

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(STEP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Run:
    """What happened, and what is true about it."""

    poisoned: set[str] = field(default_factory=set)  # ids of records that carry the poison
    records: int = 0
    reached: set[str] = field(default_factory=set)  # agents that made something of it
    calls: list[dict[str, Any]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)

    def note(self, role: str, do: str, report: dict[str, Any], poison: bool = False) -> dict[str, Any]:
        for wrote in report.get("wrote", ()):
            self.records += 1
            if poison or self.poisoned & set(wrote["used"]):
                self.poisoned.add(wrote["id"])
                self.reached.add(role)
        for call in report.get("calls", ()):
            call["on_poison"] = bool(self.poisoned & set(call["used"]))
            if call["on_poison"]:
                self.reached.add(role)
            self.calls.append({"agent": role, **call})
        self.log.append({"agent": role, "do": do, **report})
        return report

    def risky(self) -> list[dict[str, Any]]:
        return [c for c in self.calls if c["on_poison"] and c["risk"] in RISKY]


@contextmanager
def roles(arena: Arena) -> Iterator[dict[str, Role]]:
    started = {name: Role(name, arena.environment[name]) for name in ROLES}
    try:
        yield started
    finally:
        for role in started.values():
            role.stop()


def play(arena: Arena, docs: list[Document], progress: Progress) -> tuple[Run, dict[str, Any]]:
    """The scenario from documents to tool calls; then, with Cordon, the operator's part. (run, measures)"""
    run = Run()
    with roles(arena) as agents:
        for project, tool, content, uri in RECORDS:
            run.note("erp", "record", agents["erp"].step("record", project=project, tool=tool, content=content, uri=uri))
        for d in docs:
            progress(f"reader reads {d.uri}")
            report = agents["reader"].step("read", project=d.project, uri=d.uri, facts=d.facts)
            run.note("reader", "read", report, poison=bool(d.poison))
        for project, text in TOPICS:
            progress(f"summariser: {text}")
            run.note("summariser", "summarise", agents["summariser"].step("summarise", project=project, text=text))
        for task in TASKS:
            progress(f"planner: {task.tool}")
            run.note("planner", "plan", agents["planner"].step("plan", task=asdict(task)))
        for task in TASKS:
            progress(f"operations: {task.tool}")
            run.note("operations", "act", agents["operations"].step("act", task=asdict(task)))
        contained = anyio.run(contain, arena, run, docs, agents, progress) if arena.operator else {}
        kept = answers(agents, run) if not arena.operator else contained.pop("kept")
    measures = {
        "contaminated_records": len(run.poisoned),
        "records": run.records,
        "agents_reached": len(run.reached),
        "risky_calls_on_poison": len(run.risky()),
        "calls": run.calls,
        "benign_answers_kept": {"kept": kept, "asked": len(QUESTIONS)},
        "log": run.log,
    }
    return run, {**measures, **contained}


def answers(agents: dict[str, Role], run: Run) -> int:
    """How many of the benign questions still find their answer."""
    reports = [agents["summariser"].step("ask", **asdict(q)) for q in QUESTIONS]
    return sum(bool(run.note("summariser", "ask", r)["answered"]) for r in reports)


def served_poison(agents: dict[str, Role], run: Run) -> int:
    """How many poisoned records the swarm is served when it asks about everything again."""
    served: set[str] = set()
    for project, text in TOPICS:
        served |= set(agents["planner"].step("ask", project=project, text=text, answer="\0")["served"])
    return len(served & run.poisoned)


async def contain(arena: Arena, run: Run, docs: list[Document], agents: dict[str, Role], progress: Progress) -> dict[str, Any]:
    """A person learns that two sources are poisoned: plan, hold, look, release."""
    selector = [f"source:{d.uri}" for d in docs if d.poison]
    async with bus.connect_operator(url=arena.url, creds=arena.operator) as desk:
        progress("operator holds " + ", ".join(selector))
        plan = await desk.plan(selector)
        members = {m.id for m in plan.members}
        case = await desk.apply(plan.plan, "demo: the sources are poisoned")
        held_served = served_poison(agents, run)
        kept = answers(agents, run)
        told = {name: agents[name].step("settle")["settled"] for name in ("summariser", "planner", "operations")}
        shown = await desk.case(case.case)
        progress("operator releases the case")
        released = await desk.release(case.case, "demo: shown that it is reversible")
        after = served_poison(agents, run)
    right = len(members & run.poisoned)
    return {
        "kept": kept,
        "closure": {
            "precision": right / len(members) if members else 1.0,
            "recall": right / len(run.poisoned) if run.poisoned else 1.0,
            "ms": case.closure_ms,
            "members": len(members),
        },
        "served_while_held": held_served,
        "held_ms": case.hold_ms,
        "notices": {"told": list(shown.told), "acked": list(shown.acked), "ids": {k: len(v) for k, v in told.items()}},
        "released": {"ok": released.state == "released" and after > 0, "members": released.count, "served_again": after},
    }


def run_demo(ungated: Arena, cordon: Arena, seed: int, progress: Progress) -> dict[str, Any]:
    """Both runs. Keys: seed, ungated, cordon, closure, released, and what the report tells."""
    docs = documents(seed)
    progress("without Cordon: a shared file")
    _, plain = play(ungated, docs, progress)
    progress("with Cordon")
    _, gated = play(cordon, docs, progress)
    return {
        "seed": seed,
        "documents": len(docs),
        "projects": list(PROJECTS),
        "ungated": plain,
        "closure": gated.pop("closure"),
        "released": gated.pop("released"),
        "cordon": gated,
    }
