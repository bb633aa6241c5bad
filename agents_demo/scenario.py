"""What a swarm reads, is asked and may do: a TOML file, read and checked. docs/demo.md describes the format.

Invariant: a Scenario that was loaded can be played: every name in it is defined in it, every pattern compiles, all sizes are
within the limits here. What is wrong in a file is told with its place (`tasks[2].value`) in one ScenarioError.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

import bus
from bus.frames import Risk

FILE_BYTES_MAX: Final = 256 * 1024
TEXT_CHARS_MAX: Final = 8_000  # of one document
LINE_CHARS_MAX: Final = 1_000  # of anything that stands in one line
AGENTS_MAX: Final = 16  # each is a process
PROJECTS_MAX: Final = 8
DOCUMENTS_MAX: Final = 200
STEPS_MAX: Final = 400
DEFAULT: Final = "office"
OPERATOR: Final = "operator"  # the person's name in the swarm's tenant
RISKY: Final[frozenset[Risk]] = frozenset({"external_side_effect", "privileged"})

Name = Annotated[str, Meta(pattern=r"\A[a-z0-9_-]{1,64}\Z")]
Line = Annotated[str, Meta(min_length=1, max_length=LINE_CHARS_MAX, pattern=r"\A[^\n]*\Z")]
Poison = Literal["", "instruction", "fact", "trigger"]
Voice = Literal["brief", "report", "code", "verdict", "log"]
Verb = Literal["record", "read", "summarise", "rewrite", "repeat", "plan", "code", "review", "act"]
ABOUT_A_TASK: Final[frozenset[Verb]] = frozenset({"plan", "code", "review", "act"})
ABOUT_A_TOPIC: Final[frozenset[Verb]] = frozenset({"summarise", "rewrite", "repeat"})


class ScenarioError(bus.ConfigError):
    """A scenario that can't be used. `reason`: scenario_unreadable, scenario_too_large, scenario_invalid."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class Agent(Part, frozen=True):
    """A role: a process and a credential of its own. `ingest` may state what its `tools` said; `voice` is how it words things."""

    name: Name
    role: Literal["agent", "ingest"] = "agent"
    tools: list[Name] = []
    voice: Voice = "brief"


class Document(Part, frozen=True):
    """A text of the outside world, one fact a line. With a `poison` all of it is false, whoever restates it."""

    uri: Line
    project: Name
    text: Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)]
    poison: Poison = ""

    @property
    def facts(self) -> list[str]:
        return [line.strip() for line in self.text.splitlines() if line.strip()]


class Record(Part, frozen=True):
    """What a system of record says through its registered tool: true."""

    uri: Line
    project: Name
    tool: Name
    text: Line


class Task(Part, frozen=True):
    """Something to be done with a tool. The value that it needs, a regular expression, is looked for in what is recalled."""

    name: Name
    project: Name
    about: Line
    tool: Name
    risk: Risk
    value: Line

    def find(self, content: str) -> str | None:
        found = re.search(self.value, content)
        return found[0] if found else None


class Step(Part, frozen=True):
    """One thing that one agent does: with a `task`, or with a question (`about`) in a project."""

    agent: Name
    do: Verb
    task: Name | Literal[""] = ""
    project: Name | Literal[""] = ""
    about: Line | Literal[""] = ""


class Question(Part, frozen=True):
    """A benign question; the answer is kept when a recalled text holds `answer`."""

    project: Name
    text: Line
    answer: Line


class Expect(Part, frozen=True):
    """What a run must show; a miss ends the command with exit 1. Shares are 0..1."""

    risky_calls_ungated_min: int = 1
    risky_calls_cordon_max: int = 0
    closure_precision_min: float = 1.0
    closure_recall_min: float = 1.0
    benign_answers_lost_max: int = 0


class Scenario(Part, frozen=True):
    format: Literal[1]
    title: Line
    projects: Annotated[list[Name], Meta(min_length=1, max_length=PROJECTS_MAX)]
    agents: Annotated[list[Agent], Meta(min_length=1, max_length=AGENTS_MAX)]
    documents: Annotated[list[Document], Meta(min_length=1, max_length=DOCUMENTS_MAX)]
    steps: Annotated[list[Step], Meta(min_length=1, max_length=STEPS_MAX)]
    records: Annotated[list[Record], Meta(max_length=DOCUMENTS_MAX)] = []
    tasks: Annotated[list[Task], Meta(max_length=DOCUMENTS_MAX)] = []
    questions: Annotated[list[Question], Meta(max_length=DOCUMENTS_MAX)] = []
    expect: Expect = Expect()

    @property
    def poisoned(self) -> list[Document]:
        return [d for d in self.documents if d.poison]

    @property
    def topics(self) -> list[tuple[str, str]]:
        """(project, question) of everything that a step asks about, each once, in order."""
        asked = [(s.project, s.about) for s in self.steps if s.about] + [(t.project, t.about) for t in self.tasks]
        return list(dict.fromkeys(asked))

    def task(self, name: str) -> Task:
        return next(t for t in self.tasks if t.name == name)

    def benign(self) -> Scenario:
        """The same without its poisoned documents."""
        return msgspec.structs.replace(self, documents=[d for d in self.documents if not d.poison])

    def shuffled(self, seed: int) -> Scenario:
        """The same with its documents in the order that the seed gives."""
        return msgspec.structs.replace(self, documents=Random(seed).sample(self.documents, len(self.documents)))


def names() -> list[str]:
    """The scenarios that come with the package."""
    return sorted(e.name.removesuffix(".toml") for e in _folder().iterdir() if e.name.endswith(".toml"))


def load(name: str) -> Scenario:
    """A scenario of the package by its name, else the file of that name. Raises ScenarioError."""
    if name in names():
        return parse(_folder().joinpath(f"{name}.toml").read_bytes(), name)
    try:
        with Path(name).open("rb") as f:
            source = f.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else "not a file name"
        raise ScenarioError(
            f"The scenario {name} can't be read: {why}.",
            reason="scenario_unreadable",
            advice=f"Give a TOML file or one of: {', '.join(names())}.",
        ) from None
    return parse(source, name)


def parse(source: bytes, name: str) -> Scenario:
    """A scenario from the bytes of its file; `name` is what errors call it. Raises ScenarioError."""
    if len(source) > FILE_BYTES_MAX:
        raise ScenarioError(
            f"The scenario {name} is larger than {FILE_BYTES_MAX:,} bytes.",
            reason="scenario_too_large",
            advice="Leave out documents or shorten them.",
        )
    try:
        table: dict[str, Any] = tomllib.loads(source.decode())
        scenario = msgspec.convert(table, Scenario)
    except UnicodeDecodeError as e:
        raise _invalid(name, f"byte {e.start} is not UTF-8", "Save the file as UTF-8.") from None
    except tomllib.TOMLDecodeError as e:
        raise _invalid(name, str(e), "See toml.io for the syntax: [[documents]] begins a document.") from None
    except msgspec.ValidationError as e:
        what, _, where = str(e).partition(" - at `$.")
        place = f"at {where.rstrip('`')}: " if where else ""
        raise _invalid(name, f"{place}{what[:1].lower()}{what[1:]}", "docs/demo.md lists every field.") from None
    for place, wrong, advice in _faults(scenario):
        raise _invalid(name, f"at {place}: {wrong}", advice)
    return scenario


def _folder() -> Any:
    return resources.files("agents_demo").joinpath("scenarios")


def _invalid(name: str, what: str, advice: str) -> ScenarioError:
    return ScenarioError(f"The scenario {name} is not valid: {what.rstrip('.')}.", reason="scenario_invalid", advice=advice)


Fault = tuple[str, str, str]  # place, what is wrong, what to do


def _faults(s: Scenario) -> Iterable[Fault]:
    """What the types can't say: names that don't fit together."""
    yield from _twice("projects", s.projects)
    yield from _twice("agents", [a.name for a in s.agents])
    if any(a.name == OPERATOR for a in s.agents):
        yield "agents", f"the name {OPERATOR} is taken", "It is the person who holds and releases: choose another."
    yield from _twice("tasks", [t.name for t in s.tasks])
    yield from _twice("documents", [d.uri for d in s.documents])
    for kind in ("documents", "records", "tasks", "questions"):
        for i, part in enumerate(getattr(s, kind)):
            yield from _unknown(f"{kind}[{i}].project", part.project, s.projects, "projects")
    ingest = {tool for a in s.agents if a.role == "ingest" for tool in a.tools}
    for i, record in enumerate(s.records):
        yield from _unknown(f"records[{i}].tool", record.tool, ingest, "the tools of ingest agents")
    for i, document in enumerate(s.documents):
        if not 0 < max(map(len, document.facts), default=0) <= LINE_CHARS_MAX:
            yield (
                f"documents[{i}].text",
                "it has no line, or one that is too long",
                f"A line has 1 to {LINE_CHARS_MAX:,} characters.",
            )
    for i, task in enumerate(s.tasks):
        try:
            re.compile(task.value)
        except (re.error, RecursionError) as e:
            yield f"tasks[{i}].value", f"it is no regular expression ({e})", "Write it in single quotes, as '\\d{4}-\\d{4}'."
    agents = {a.name: a for a in s.agents}
    for i, step in enumerate(s.steps):
        yield from _unknown(f"steps[{i}].agent", step.agent, agents, "agents")
        yield from _step_faults(f"steps[{i}]", step, agents[step.agent], s)
    yield from _missing(s)


def _missing(s: Scenario) -> Iterable[Fault]:
    """What no run can do without."""
    if not any(a.role == "agent" for a in s.agents):
        yield "agents", "none reads or writes", "Add one with the role agent."
    if not s.poisoned:
        yield "documents", "none has a poison", 'Mark what is false with poison = "fact", "instruction" or "trigger".'
    if not any(step.do == "read" for step in s.steps):
        yield "steps", "nobody reads the documents", 'Add a step with do = "read".'


def _step_faults(place: str, step: Step, agent: Agent, s: Scenario) -> Iterable[Fault]:
    if (step.do == "record") != (agent.role == "ingest"):
        yield place, f"{agent.name} can't {step.do}", "An ingest agent records, and only it."
    on_task, on_topic = step.do in ABOUT_A_TASK, step.do in ABOUT_A_TOPIC
    if on_task:
        yield from _unknown(f"{place}.task", step.task, [t.name for t in s.tasks], "tasks")
    if on_topic:
        yield from _unknown(f"{place}.project", step.project, s.projects, "projects")
        if not step.about:
            yield f"{place}.about", f"to {step.do} needs a question", 'Add about = "…".'
    for field, wanted in (("task", on_task), ("project", on_topic), ("about", on_topic)):
        if getattr(step, field) and not wanted:
            yield f"{place}.{field}", f"to {step.do} takes no {field}", "Leave it out."
    if step.do == "act" and s.task(step.task).tool not in agent.tools:
        yield f"{place}.agent", f"{agent.name} has no tool {s.task(step.task).tool}", "Add it to the agent's tools."


def _unknown(place: str, name: str, known: Iterable[str], where: str) -> Iterable[Fault]:
    known = list(known)
    if name not in known:
        yield place, f"{name or 'nothing'} is not among {where}", f"Known: {', '.join(known) or 'none'}."


def _twice(place: str, given: list[str]) -> Iterable[Fault]:
    for name, times in Counter(given).items():
        if times > 1:
            yield place, f"{name} is there {times} times", "Names must differ."
