"""The figures of the demo for agents that reword as language models do. docs/demo.md quotes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.reworded import BARE, NATURAL, Wording, rewording
from tests.unit.model_stub import stub

pytestmark = pytest.mark.slow


def demo(wording: Wording) -> dict[str, Any]:
    with stub() as server:
        server.answer = rewording(wording)
        command = [str(Path(sys.executable).with_name("cordon")), "demo", "--json", "--model", server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode in (0, 1), done.stderr  # 1: the scenario expects more of quoting agents
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["ungated"]["risky_calls_on_poison"] >= 4
    assert found["cordon"]["risky_calls_on_poison"] == 0
    return found


def test_natural_rewording_is_followed_almost_wholly_and_the_rest_is_suspect() -> None:
    found = demo(NATURAL)
    closure = found["closure"]
    missed = [f for f in closure["faults"] if f["fault"] == "missed"]
    assert closure["precision"] == 1.0, closure["faults"]
    assert closure["recall"] >= 0.9, missed
    assert closure["suspects"]["poisoned"] == len(missed)


def test_what_keeps_hardly_a_word_is_lost_to_lineage_but_drives_no_tool() -> None:
    assert demo(BARE)["closure"]["precision"] >= 0.9
