"""Refusals are typed, worded, raised somewhere and documented."""

from __future__ import annotations

import re
from pathlib import Path

from gate.refusals import TABLE, Refused

ROOT = Path(__file__).parents[2]


def test_every_refusal_says_what_happened_and_what_to_do() -> None:
    for code, wording in TABLE.items():
        frame = Refused(code, field="f", limit=3).frame("r", "a", "p")
        assert frame.message.endswith("."), code
        assert frame.advice, code
        assert (frame.retry_after_s is None) == (wording.error not in ("unavailable", "internal")), code


def test_every_refusal_is_raised_somewhere() -> None:
    source = "".join(p.read_text() for p in (ROOT / "gate").rglob("*.py") if p.name != "refusals.py")
    assert [code for code in TABLE if f'"{code}"' not in source] == []


def test_every_refusal_is_in_the_wire_contract() -> None:
    said = dict(
        re.findall(
            r"^\| `(\w+)` \| \w+ \| (.*) \|$", (ROOT / "docs/wire.md").read_text().partition("## Refusals")[2], re.MULTILINE
        )
    )
    assert said == {code: w.message for code, w in TABLE.items()}
