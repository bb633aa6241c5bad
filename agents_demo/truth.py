"""What truly happened in a run: every record, who made it of what, which carry the poison, and how far they got. Pure.

The truth comes from the agents' reports of what they used and from the scenario's knowledge of what is false, never from a store.
Records are numbered in the order in which they were written, so that the same seed gives the same account.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from bus.frames import Risk

from .scenario import CHANGING, Scenario, Task
from .steps import AnyStep, Report, Wrote


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A record. `used`: the numbers of those it was made of. State, labels and reasons are those of the store's first answer."""

    n: int
    id: str
    agent: str
    project: str
    content: str
    used: list[int]
    poisoned: bool
    state: str
    origin: str | None
    trust: float | None
    parents: int
    reasons: list[str]


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the agent found and might not use."""

    record: int | None
    value: str
    poisoned: bool
    reasons: list[str]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One task: the tool call that was made, or (value None) the question to a person instead."""

    agent: str
    tool: str
    title: str
    risk: Risk
    value: str | None
    right: str
    on_poison: bool
    refused: list[Refused]
    withheld: dict[str, int]

    @property
    def is_right(self) -> bool:
        return bool(self.right) and self.value == self.right


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One step: who did what, what was served and withheld, what was written (record numbers)."""

    n: int
    agent: str
    do: str
    project: str
    about: str = ""
    served: list[int] = []
    poison_served: int = 0
    withheld: dict[str, int] = {}
    why_empty: str = ""
    wrote: list[int] = []
    held: list[int] = []
    call: Call | None = None
    answered: bool | None = None
    settled: int = 0


class Account:
    """The account of one run, written as it goes."""

    def __init__(self, scenario: Scenario) -> None:
        self.records: list[Entry] = []
        self.events: list[Event] = []
        self._by_id: dict[str, Entry] = {}
        self._tasks = {t.tool: t for t in scenario.tasks}

    # --- writing it -------------------------------------------------------------------------------
    def note(self, agent: str, step: AnyStep, report: Report, false: Collection[str] = ()) -> Event:
        """Enter a step. `false`: which of the texts it wrote are part of the poison by themselves."""
        wrote = [self._enter(agent, step.project, w, w.content in false) for w in report.wrote]
        served = self._known(report.served)
        event = Event(
            n=len(self.events),
            agent=agent,
            do=type(step).__name__.lower(),
            project=step.project,
            about=_about(step),
            served=[e.n for e in served],
            poison_served=sum(e.poisoned for e in served),
            withheld=report.withheld,
            why_empty=report.why_empty,
            wrote=[e.n for e in wrote],
            held=[e.n for e in wrote if e.state == "held"],
            call=self._call(agent, report),
            answered=report.answered,
            settled=len(report.settled),
        )
        self.events.append(event)
        return event

    def _enter(self, agent: str, project: str, w: Wrote, false: bool) -> Entry:
        used = self._known(w.used)
        entry = Entry(
            n=len(self.records), id=w.id, agent=agent, project=project, content=w.content, used=[e.n for e in used],
            poisoned=false or any(e.poisoned for e in used), state=w.state, origin=w.origin, trust=w.trust, parents=w.parents,
            reasons=w.reasons,
        )  # fmt: skip
        self.records.append(entry)
        self._by_id[entry.id] = entry
        return entry

    def _call(self, agent: str, report: Report) -> Call | None:
        made = report.call
        if made is None:
            return None
        task: Task = self._tasks[made.tool]
        refused = [
            Refused(
                record=e.n if (e := self._by_id.get(p.id)) else None,
                value=p.value,
                poisoned=bool(e and e.poisoned),
                reasons=p.reasons,
            )
            for p in made.passed_over
        ]
        return Call(
            agent=agent, tool=made.tool, title=task.title, risk=made.risk, value=made.value, right=task.right,
            on_poison=any(e.poisoned for e in self._known(made.used)), refused=refused, withheld=report.withheld,
        )  # fmt: skip

    def _known(self, ids: Iterable[str]) -> list[Entry]:
        return [e for i in ids if (e := self._by_id.get(i))]

    # --- reading it -------------------------------------------------------------------------------
    @property
    def poisoned(self) -> frozenset[str]:
        """Ids of the records that carry the poison."""
        return frozenset(e.id for e in self.records if e.poisoned)

    @property
    def calls(self) -> list[Call]:
        return [e.call for e in self.events if e.call]

    @property
    def reached(self) -> list[str]:
        """Agents that wrote a record or called a tool on the poison, by name."""
        wrote = {e.agent for e in self.records if e.poisoned}
        return sorted(wrote | {c.agent for c in self.calls if c.on_poison})

    @property
    def risky_calls_on_poison(self) -> int:
        """Tool calls that change something, made with a value from the poison."""
        return sum(c.on_poison and c.risk in CHANGING for c in self.calls)

    @property
    def withheld(self) -> dict[str, int]:
        """Why memories were withheld from agents, over all recalls."""
        total: Counter[str] = Counter()
        for event in self.events:
            total.update(event.withheld)
        return dict(total.most_common())

    def ids_by_project(self, ids: Collection[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for e in self.records:
            if e.id in ids:
                found.setdefault(e.project, []).append(e.id)
        return found

    def written_active(self, ids: Collection[str]) -> frozenset[str]:
        """Those that the store accepted at once, so that only a case can hold them."""
        return frozenset(e.id for e in self.records if e.id in ids and e.state == "active")


def overlap(found: Collection[str], true: Collection[str]) -> tuple[float, float]:
    """(precision, recall) of a set that was found, against the true one. An empty divisor counts as 1."""
    right = len(set(found) & set(true))
    return (right / len(found) if found else 1.0, right / len(true) if true else 1.0)


def _about(step: AnyStep) -> str:
    for name in ("title", "text", "evidence", "about"):
        if text := getattr(step, name, ""):
            return str(text)
    return ""
