"""Texts to write and questions to ask, about as long as agents' memories. Sentences of LoCoMo when its file is there
(CORDON_DATA),
else words of an invented language with the word frequencies of a natural one. A seed gives the same texts again.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any, Final

from gate.model.datasets import DataMissing, data_file

MEMORY_CHARS: Final = 120
BIG_CHARS: Final = 65_000  # within 64 KiB
_WORDS: Final = 4_000
_TAIL_CHARS: Final = 16  # two rare words at least


@cache
def _vocabulary() -> list[str]:
    rng = random.Random(7)
    return ["".join(rng.choice("bcdfglmnprstv") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))) for _ in range(_WORDS)]


@cache
def _locomo() -> tuple[list[str], list[str]]:
    """(turns without their speakers, questions); both empty without the data."""
    try:
        found: list[dict[str, Any]] = json.loads(data_file("locomo/locomo10.json").read_text(encoding="utf-8"))
    except DataMissing:
        return [], []
    turns = [
        turn["text"] for one in found for session in one["conversation"].values() if isinstance(session, list) for turn in session
    ]
    return turns, [qa["question"] for one in found for qa in one["qa"]]


def source() -> str:
    return "LoCoMo sentences" if _locomo()[0] else "an invented language"


class Texts:
    """A stream of memories and questions. A memory is a sentence or more, filled up with rare words, so that few are alike."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._weights = [1 / (i + 5) for i in range(_WORDS)]

    def _sentence(self) -> str:
        turns = _locomo()[0]
        return self._rng.choice(turns) if turns else " ".join(self._rng.choices(_vocabulary(), self._weights, k=16))

    def memory(self, chars: int = MEMORY_CHARS) -> str:
        out = self._sentence()[: chars - _TAIL_CHARS]
        while chars - len(out) > MEMORY_CHARS:
            out = f"{out} {self._sentence()}"[: chars - _TAIL_CHARS]
        while len(out) < chars:
            out += " " + self._rng.choice(_vocabulary())
        return out[:chars].strip()

    def question(self) -> str:
        questions = _locomo()[1]
        return self._rng.choice(questions) if questions else self._sentence()[:60]
