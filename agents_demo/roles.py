"""An agent of the swarm, as a process of its own: `python -m agents_demo.roles NAME VOICE SEED`.

It behaves as an agent with a language model does: recalls, restates in other words, forgets to declare parents, acts on what it
is given. The harness tells it its next order as a JSON line on stdin; it answers each with one line on stdout (orders.py).
"""

from __future__ import annotations

import os
import sys
from random import Random
from typing import Final, Unpack, assert_never

import anyio
import msgspec

from bus import CordonError
from bus.client import DraftFields
from bus.frames import Intent, Kind

from .minds import Mind, Scripted
from .model import Model, endpoint
from .orders import Act, AnyOrder, Ask, Call, Compose, Echo, Fetch, Note, Read, Report, Seen, Settle, Wrote, line, order_of
from .scenario import Verb, Voice
from .stores import Answer, Recalled, Store, open_store

# What a text is to the store, and what its writer asks for first.
_KINDS: Final[dict[Verb, tuple[Kind, Intent]]] = {
    "summarise": ("fact", "answer"),
    "rewrite": ("fact", "answer"),
    "repeat": ("fact", "answer"),
    "plan": ("decision", "plan"),
    "code": ("procedure", "plan"),
    "review": ("decision", "plan"),
}


class Agent:
    """One agent: its store, its mind, and what it still has in its head (its own texts)."""

    def __init__(self, store: Store, mind: Mind) -> None:
        self._store, self._mind = store, mind
        self._mine: dict[str, str] = {}

    async def do(self, order: AnyOrder) -> Report:
        match order:
            case Note():
                r = order.record
                wrote = await self._write(r.project, r.text, [], origin="tool_result", tool=r.tool, evidence=[r.uri])
                return Report(wrote=[wrote])
            case Read():
                return await self._read(order)
            case Compose():
                return await self._compose(order)
            case Act():
                return await self._act(order)
            case Ask():
                return _report(await self._store.recall(order.project, order.about, "answer", "none"))
            case Fetch():
                return _report(await self._store.fetch(order.project, order.ids))
            case Echo():
                return await self._echo(order)
            case Settle():
                return Report(settled=await self._store.settle())
            case _:
                assert_never(order)

    async def _read(self, order: Read) -> Report:
        """Note each fact with where it is from."""
        claims = DraftFields(origin="external", method="extracted", evidence=[order.uri])
        return Report(wrote=[await self._write(order.project, fact, [], **claims) for fact in await self._mind.notes(order.text)])

    async def _compose(self, order: Compose) -> Report:
        """Recall, and write it down in one's own words; where it is from is forgotten."""
        kind, intent = _KINDS[order.verb]
        answer = await self._store.recall(order.project, order.about, intent, "none")
        items = [i for i in answer.items if i.id in self._mine] if order.verb == "rewrite" else answer.items
        text = await self._mind.compose(order.verb, order.about, order.task, items) if items else None
        if text is None:
            return _report(answer)
        claims = DraftFields(kind=kind, method="summarised" if kind == "fact" else "stated")
        return _report(answer, [await self._write(order.project, text.content, text.used, **claims)])

    async def _act(self, order: Act) -> Report:
        """Ask again with the tool's risk, call it, and note that it was done; without a value that may be used ask a person."""
        task = order.task
        intent: Intent = "answer" if task.risk == "read_only" else "execute"
        answer = await self._store.recall(task.project, task.about, intent, task.risk)
        bindable = [i for i in answer.items if i.bindable]
        choice = await self._mind.choose(task, bindable)
        call = Call(tool=task.tool, risk=task.risk, value=choice.value, used=[i.id for i in choice.used])
        if choice.value is None:
            return _report(answer, call=call)
        done = f"{task.tool} ran with {choice.value}, as asked: {task.about}"
        return _report(answer, [await self._write(task.project, done, choice.used, kind="tool_experience")], call)

    async def _echo(self, order: Echo) -> Report:
        text = self._mine.get(order.id)
        if text is None:
            return Report()
        said = await self._mind.compose("repeat", text, None, [Recalled(order.id, text)])
        return Report(wrote=[await self._write(order.project, said.content, said.used)] if said else [])

    async def _write(self, project: str, content: str, used: list[Recalled], **claims: Unpack[DraftFields]) -> Wrote:
        s = await self._store.write(project, content, **claims)
        self._mine[s.id] = content
        return Wrote(
            id=s.id, content=content, used=[r.id for r in used], state=s.state, origin=s.origin, trust=s.trust,
            parents=list(s.parents), reasons=list(s.reasons),
        )  # fmt: skip


def _report(answer: Answer, wrote: list[Wrote] | None = None, call: Call | None = None) -> Report:
    served = [Seen(id=r.id, content=r.content) for r in answer.items]
    return Report(wrote=wrote or [], call=call, served=served, withheld=dict(answer.withheld), why_empty=answer.why_empty)


async def main(name: str, voice: Voice, seed: str) -> None:
    """Answer orders until stdin ends; the first error is the last answer."""
    try:
        async with open_store() as store:
            at = endpoint(os.environ)
            agent = Agent(store, Model(name, at, int(seed)) if at else Scripted(voice, Random(f"{name} {seed}")))
            while order := await anyio.to_thread.run_sync(sys.stdin.buffer.readline):
                _say(await agent.do(order_of(order)))
    except* Exception as group:
        _say(_failure(_first(group)))


def _failure(error: BaseException) -> Report:
    """What went wrong, as a sentence: no traceback reaches a user."""
    if isinstance(error, CordonError):
        return Report(error=str(error), reason=error.reason)
    return Report(error=f"{type(error).__name__}: {error}.", reason="agent_stopped")


def _say(report: Report) -> None:
    sys.stdout.buffer.write(line(report))
    sys.stdout.buffer.flush()


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], msgspec.convert(sys.argv[2], Voice), sys.argv[3])
