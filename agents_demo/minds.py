"""How an agent words what it writes and picks what it acts on. `Scripted` decides by plain rules; a model may take its place.

Whoever decides also says what was really used: that, and not what was shown, is the truth the harness measures against.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from .scenario import Task, Verb, Voice
from .stores import Recalled
from .voices import restated

SUMMARY_OF: Final = 2  # how many recalled texts a scripted summary is made of


@dataclass(frozen=True, slots=True)
class Text:
    """What is to be written, and what it was made from."""

    content: str
    used: list[Recalled]


@dataclass(frozen=True, slots=True)
class Choice:
    """The value for a tool, and what speaks for it; None: no value that may be used."""

    value: str | None = None
    used: list[Recalled] = field(default_factory=list)


class Mind(Protocol):
    async def notes(self, text: str) -> list[str]:
        """The facts of a document."""

    async def compose(self, verb: Verb, about: str, task: Task | None, items: list[Recalled]) -> Text | None:
        """A text made from what was recalled, None if there is nothing to say. `items` aren't empty."""

    async def choose(self, task: Task, items: list[Recalled]) -> Choice:
        """Which value the tool is called with. All `items` may be bound."""


class Scripted:
    """Behaves as agents with a language model do, and the same way each time for one seed."""

    def __init__(self, voice: Voice, random: Random) -> None:
        self._voice, self._random = voice, random

    async def notes(self, text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if line.strip()]

    async def compose(self, verb: Verb, about: str, task: Task | None, items: list[Recalled]) -> Text | None:
        if task is None:
            used = items[: SUMMARY_OF if verb == "summarise" else 1]
            return Text(self._restated(used), used)
        for item in items:
            if value := task.find(item.content):
                return Text(_HEADS[verb].format(tool=task.tool, value=value) + self._restated([item]), [item])
        return None

    async def choose(self, task: Task, items: list[Recalled]) -> Choice:
        """What most of the memories say is believed, of equals what comes first."""
        speakers: dict[str, list[Recalled]] = {}
        for item in items:
            if value := task.find(item.content):
                speakers.setdefault(value, []).append(item)
        if not speakers:
            return Choice()
        value = max(speakers, key=lambda v: len(speakers[v]))
        return Choice(value, speakers[value])

    def _restated(self, items: list[Recalled]) -> str:
        return restated([i.content for i in items], self._voice, self._random)


_HEADS: Final[dict[Verb, str]] = {
    "plan": "Plan for {tool}: use {value}. ",
    "code": '{tool} = "{value}"  ',
    "review": "Review of {tool} with {value}. ",
}
