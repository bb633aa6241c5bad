"""The demo proves that `bus` suffices: nothing of ours but `bus` is imported by it, also inside functions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import agents_demo

FOLDER = Path(agents_demo.__file__).parent
OURS = {"gate", "broker_config", "cli", "cordon_cli"}


def imported(source: str) -> set[str]:
    """First names of all modules that a source imports, its own package's aside."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: p.name)
def test_the_demo_imports_nothing_of_ours_but_bus(path: Path) -> None:
    assert not imported(path.read_text()) & OURS


def test_the_check_sees_an_import_inside_a_function() -> None:
    assert imported("def f():\n    from gate.shard import Shard\n") & OURS
