"""The roles of the swarm. Each runs as a process of its own: `python -m agents_demo.roles`.

They behave as LLM agents do: recall, restate in other words, forget to declare parents, act on what they are given. The
harness tells
a role its next step as a JSON line on stdin; the role answers with one JSON line: what it wrote and which recalled ids
it used (the
truth that the harness measures against), what it called, what was withheld from it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from .scenario import Task, reported, restated
from .stores import Answer, Recalled, Store, open_store

Report = dict[str, Any]
SUMMARY_OF: Final = 2  # how many recalled texts a summary is made of


def _wrote(id_: str, content: str, used: list[Recalled]) -> Report:
    return {"id": id_, "content": content, "used": [r.id for r in used]}


async def read(store: Store, step: Report) -> Report:
    """Reader of documents: note each fact with where it is from."""
    wrote = []
    for fact in step["facts"]:
        id_ = await store.write(step["project"], fact, origin="external", method="extracted", evidence=[step["uri"]])
        wrote.append(_wrote(id_, fact, []))
    return {"wrote": wrote}


async def record(store: Store, step: Report) -> Report:
    """A system of record speaks through its registered tool."""
    id_ = await store.write(step["project"], step["content"], origin="tool_result", tool=step["tool"], evidence=[step["uri"]])
    return {"wrote": [_wrote(id_, step["content"], [])]}


async def summarise(store: Store, step: Report) -> Report:
    """Summariser: what do we know about this? Writes it down in its own words, with no parents declared."""
    answer = await store.recall(step["project"], step["text"], "answer", "none")
    used = answer.items[:SUMMARY_OF]
    if not used:
        return _nothing(answer)
    content = restated([r.content for r in used])
    return {"wrote": [_wrote(await store.write(step["project"], content, method="summarised"), content, used)], **_seen(answer)}


async def plan(store: Store, step: Report) -> Report:
    """Planner: decide how a task is to be done, from the first recalled text that names the value."""
    task = Task(**step["task"])
    answer = await store.recall(task.project, task.text, "plan", "none")
    for item in answer.items:
        value = task.find(item.content)
        if value:
            content = f"Plan for {task.tool}: use {value}; {reported(item.content)}"
            return {
                "wrote": [_wrote(await store.write(task.project, content, kind="decision"), content, [item])],
                **_seen(answer),
            }
    return _nothing(answer)


async def act(store: Store, step: Report) -> Report:
    """Operations: ask again with the tool's risk, and call the tool with the first value that may be used; else ask a person."""
    task = Task(**step["task"])
    answer = await store.recall(task.project, task.text, "execute", task.risk)
    for item in answer.items:
        value = task.find(item.content)
        if value and item.bindable:
            return {"calls": [{"tool": task.tool, "risk": task.risk, "value": value, "used": [item.id]}], **_seen(answer)}
    return {"calls": [{"tool": task.tool, "risk": task.risk, "value": None, "used": []}], **_seen(answer)}


async def ask(store: Store, step: Report) -> Report:
    """Anybody: a colleague's question."""
    answer = await store.recall(step["project"], step["text"], "answer", "none")
    return {"answered": any(step["answer"] in r.content for r in answer.items), **_seen(answer)}


async def settle(store: Store, step: Report) -> Report:
    return {"settled": await store.settle()}


def _seen(answer: Answer) -> Report:
    return {"served": [r.id for r in answer.items], "withheld": answer.withheld}


def _nothing(answer: Answer) -> Report:
    return {"wrote": [], **_seen(answer)}


STEPS: Final[dict[str, Callable[[Store, Report], Awaitable[Report]]]] = {
    "read": read,
    "record": record,
    "summarise": summarise,
    "plan": plan,
    "act": act,
    "ask": ask,
    "settle": settle,
}


async def main() -> None:
    """Answer steps until stdin ends."""
    async with open_store() as store:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            step = json.loads(line)
            report = await STEPS[step["do"]](store, step)
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    anyio.run(main)
