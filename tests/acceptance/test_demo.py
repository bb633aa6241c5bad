"""`cordon demo`: what the first screen promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from agents_demo.report import render_text

SIDE = (
    "contaminated_records",
    "agents_reached",
    "risky_calls_on_poison",
    "calls_changed",
    "benign_answers_kept",
    "held_at_write",
)


def demo(seed: int) -> dict[str, Any]:
    cordon = Path(sys.executable).with_name("cordon")
    done = subprocess.run([cordon, "demo", "--seed", str(seed), "--json"], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def stable(result: dict[str, Any]) -> dict[str, Any]:
    """What the seed decides: figures, calls and all that was written, without ids and times."""
    sides = {"ungated": result["ungated"], "cordon": result["cordon"], **{f"benign {k}": v for k, v in result["benign"].items()}}
    return {
        **{name: {k: side[k] for k in SIDE} for name, side in sides.items()},
        "wrote": {name: [w["content"] for e in side["log"] for w in e["wrote"]] for name, side in sides.items()},
        "calls": {name: [c["value"] for c in side["calls"]] for name, side in sides.items()},
        "closure": {k: v for k, v in result["closure"].items() if k != "ms"},
        "released": result["released"],
    }


def test_the_demo_keeps_its_promises_and_its_seed() -> None:
    first = demo(7)
    plain, gated, calm = first["ungated"], first["cordon"], first["benign"]["cordon"]
    assert len(first["agents"]) >= 6
    assert plain["risky_calls_on_poison"] >= 4
    assert gated["risky_calls_on_poison"] == gated["calls_changed"] == 0
    assert first["closure"]["precision"] == first["closure"]["recall"] == 1.0, first["closure"]["faults"]
    assert gated["served_while_held"] == 0
    assert gated["late_children"] == {"written": 1, "held": 1}
    assert gated["benign_answers_kept"] == plain["benign_answers_kept"] == calm["benign_answers_kept"]
    assert (calm["calls_changed"], calm["held_at_write"], calm["contaminated_records"]) == (0, 0, 0)
    assert gated["notices"]["told"] == gated["notices"]["acked"] != []
    assert first["released"]["ok"]
    assert gated["second_tenant_untouched"]
    assert all(e["met"] for e in first["expectations"])
    page = render_text(first, str)
    assert "risky tool calls on poison" in page
    assert "NOT MET" not in page
    first["expectations"][0]["met"] = False
    assert "NOT MET: " in render_text(first, str)
    assert stable(demo(7)) == stable(first)


def test_each_attack_reaches_a_tool_without_cordon_and_a_normal_day_shows_none_of_it() -> None:
    first = demo(11)
    assert {c["tool"] for c in first["ungated"]["calls"] if c["on_poison"]} == {
        "wire_transfer", "share_bucket", "roll_back", "purge_snapshots",
    }  # fmt: skip
    rewritten = [e for e in first["ungated"]["log"] if e["do"] == "rewrite" and e["poisoned"]]
    assert rewritten
    said = {e["agent"] for e in first["ungated"]["log"] if e["do"] == "repeat" and e["poisoned"]}
    assert said == {"planner", "coder", "reviewer"}
    assert not any(e["poisoned"] for side in first["benign"].values() for e in side["log"])
    assert all(e["met"] for e in first["expectations"]), first["expectations"]
