"""`cordon demo`: what the first screen promises."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from agents_demo import harness
from agents_demo.report import render_text

ROOT = Path(__file__).parents[2]
AGENT_CODE = ("roles.py", "stores.py", "scenario.py", "harness.py", "report.py")


def demo(seed: int) -> dict[str, Any]:
    cordon = Path(sys.executable).with_name("cordon")
    done = subprocess.run([cordon, "demo", "--seed", str(seed), "--json"], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def stable(result: dict[str, Any]) -> dict[str, Any]:
    """The figures that the seed decides: no ids, no times."""
    sides = {
        side: {
            k: result[side][k] for k in ("contaminated_records", "agents_reached", "risky_calls_on_poison", "benign_answers_kept")
        }
        for side in ("ungated", "cordon")
    }
    return {**sides, "closure": {k: v for k, v in result["closure"].items() if k != "ms"}, "released": result["released"]}


def test_the_demo_keeps_its_promises_and_its_seed() -> None:
    first = demo(7)
    assert first["ungated"]["risky_calls_on_poison"] >= 1
    assert first["cordon"]["risky_calls_on_poison"] == 0
    assert first["closure"]["precision"] == first["closure"]["recall"] == 1.0
    assert first["cordon"]["served_while_held"] == 0
    assert first["cordon"]["benign_answers_kept"] == first["ungated"]["benign_answers_kept"]
    assert first["cordon"]["notices"]["told"] == first["cordon"]["notices"]["acked"] != []
    assert first["released"]["ok"]
    assert first["cordon"]["second_tenant_untouched"]
    assert "risky tool calls on poison" in render_text(first)
    assert stable(demo(7)) == stable(first)


def test_the_agents_use_the_bus_alone() -> None:
    for name in AGENT_CODE:
        tree = ast.parse((ROOT / "agents_demo" / name).read_text())
        imported = {
            (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) and not node.level else alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and not (isinstance(node, ast.ImportFrom) and node.level)
            for alias in node.names
        }
        assert not imported & {"gate", "broker_config", "cli", "cordon_cli"}, name
    assert harness.ROLES
