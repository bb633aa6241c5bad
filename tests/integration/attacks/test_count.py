"""The table at the end of docs/threat-model.md says how many attacks of each kind there are and how they end: counted here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
DOCS: Final = ROOT / "docs/threat-model.md"
KINDS: Final = (
    "identity_lies", "subjects", "reply_aims", "credentials", "oracles", "isolation", "projects", "laundering", "delegation",
    "lives", "afterwards", "exhaustion",
)  # fmt: skip


def _tests(module: ModuleType) -> Iterator[list[Any]]:
    """The marks of every test function that the module defines."""
    for name, value in vars(module).items():
        if name.startswith("test_") and value.__module__ == module.__name__:
            yield list(getattr(value, "pytestmark", []))


def counted(kind: str) -> tuple[int, int]:
    """(attacks of a kind, how many of them are known to succeed)."""
    attacks = succeed = 0
    for marks in _tests(import_module(f"{__package__}.test_{kind}")):
        n = prod(len(list(m.args[1])) for m in marks if m.name == "parametrize")
        attacks += n
        succeed += n if any(m.name == "xfail" for m in marks) else 0
    return attacks, succeed


def test_the_threat_model_says_how_many_attacks_there_are_and_how_they_end() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (\d+) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    assert [row[0] for row in rows] == list(KINDS)
    said = {kind: (int(n), result.split(":")[0]) for kind, _, n, result in rows}
    for kind in KINDS:
        attacks, succeed = counted(kind)
        result = f"{attacks - succeed} refused, {succeed} succeed" if succeed else "all refused"
        assert said[kind] == (attacks, result), f"docs/threat-model.md, `{kind}`: write {attacks} and {result!r}"


def test_every_file_of_attacks_is_a_kind_of_the_table() -> None:
    files = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {Path(__file__).stem[5:]}
    assert files == set(KINDS)
