"""LoCoMo's conversations as the benches use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gate.model.datasets import data_file


def talks() -> Iterator[tuple[dict[str, Any], list[str], dict[str, int]]]:
    """(the conversation as it stands in the file, its turns in order, a turn's row by its id). Raises `DataMissing`."""
    for one in json.loads(data_file("locomo/locomo10.json").read_text(encoding="utf-8")):
        talk: dict[str, Any] = one["conversation"]
        place: dict[str, int] = {}
        turns: list[str] = []
        for n in sorted(int(k.removeprefix("session_")) for k, v in talk.items() if isinstance(v, list)):
            for turn in talk[f"session_{n}"]:
                place[turn["dia_id"]] = len(turns)
                turns.append(f"{turn['speaker']}: {turn['text']}")
        yield one, turns, place
