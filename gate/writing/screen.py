"""Screens a draft for text that wants to command its reader: a score and reasons, decided elsewhere.

Owns how rules add up. Invariants: looking never changes the text; the same text gets the same score; time is linear. It cannot
see plain false facts (no text can tell; origin and trust must), nor what is encoded. Runs on the redacted text, before lineage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from bus.frames import ORIGINS
from gate.steps import PIECE_CHARS, Steps, finished
from gate.writing.fold import fold
from gate.writing.screen_rules import EXFIL, IMITATION, INSTRUCTION, PREFERENCE, TRIGGER

HELD_FROM: Final = 800  # per mille: held for review
NOTED_FROM: Final = 500
_HIDDEN_SCORE: Final = 850
_TOOL_SCORE: Final = 800
_OWNER_FROM: Final = ORIGINS.index("user_stated")
_TAGS: Final = re.compile("(?<!\U0001f3f4)[\U000e0020-\U000e007e]{8,}")  # unseen ASCII; flags of regions are shorter
_TAG_OFFSET: Final = 0xE0000
_RULES: Final = (*INSTRUCTION, *IMITATION, *TRIGGER, *EXFIL)
_RULES_OF_OTHERS: Final = (*_RULES, *PREFERENCE)
# {"tool_use": ["x", "y"]}, as plans are written down; and "call get_rows", in snake or camel case
_TOOL_LIST: Final = re.compile(r"tool_use['\"]{0,2}\s{0,4}:\s{0,4}\[([^\]]{1,500})\]")
_TOOL_CALL: Final = re.compile(r"\b(?:[Cc]all|[Ii]nvoke|[Uu]se|[Uu]sing) (?:the )?([A-Za-z]\w{0,40}(?:_\w|[a-z][A-Z])\w{0,40})")
_QUOTED: Final = re.compile(r"['\"]([^'\"]{1,80})['\"]")


class Screening(NamedTuple):
    """`score` in per mille: held from `HELD_FROM`, noted from `NOTED_FROM`. `reasons` best first, empty below 500."""

    score: int
    reasons: tuple[str, ...]


def screen(text: str, *, origin: int, tools: frozenset[str] | None = None) -> Screening:
    """Screens one draft. `origin` is an index of ORIGINS; `tools` the writer's registered ones, lower case.

    Without `tools` (None) names of tools are not judged. Scores of different reasons add up as independent doubts: 500 and 600
    give 800; of one reason the highest counts.
    """
    return finished(look(text, origin=origin, tools=tools))


def look(text: str, *, origin: int, tools: frozenset[str] | None = None) -> Steps[Screening]:
    """The same in steps: a text of 64 KiB takes 8 ms."""
    copy = fold(text).text
    hidden = _hidden(text)
    lower = (copy + "\n" + hidden if hidden else copy).lower()
    found: dict[str, int] = {"hidden": _HIDDEN_SCORE} if hidden else {}
    for rule in _RULES if origin >= _OWNER_FROM else _RULES_OF_OTHERS:
        if found.get(rule.reason, 0) >= rule.score:
            continue
        if len(copy) > PIECE_CHARS:
            yield
        for literal in rule.literals:  # a loop: `any` over a generator takes twice as long
            if literal in lower:
                if rule.pattern.search(lower):
                    found[rule.reason] = rule.score
                break
    if tools is not None and any(name.lower() not in tools for name in _tools_named(copy)):
        found["tool"] = _TOOL_SCORE
    return Screening(_joined(found.values()), tuple(sorted(found, key=lambda r: (-found[r], r))))


def _joined(scores: Iterable[int]) -> int:
    """1 − Π(1 − score): independent doubts."""
    trusted = 1_000
    for score in scores:
        trusted = trusted * (1_000 - score) // 1_000
    return 1_000 - trusted


def _hidden(text: str) -> str:
    """ASCII written in tag characters, which no reader sees and a model reads."""
    if text.isascii():
        return ""
    return " ".join("".join(chr(ord(c) - _TAG_OFFSET) for c in run) for run in _TAGS.findall(text))


def _tools_named(text: str) -> Iterator[str]:
    for listed in _TOOL_LIST.findall(text):
        yield from _QUOTED.findall(listed)
    yield from _TOOL_CALL.findall(text)
