"""`cordon demo`: what the first screen promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents_demo.report import render_text
from tests.unit.model_stub import stub

SIDE = (
    "contaminated_records",
    "agents_reached",
    "risky_calls_on_poison",
    "calls_changed",
    "benign_answers_kept",
    "held_at_write",
)
DOCS = Path(__file__).parents[2] / "docs" / "demo.md"
BAKERY = re.findall(r"^```toml\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)[0]


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


@pytest.fixture(scope="module")
def first() -> dict[str, Any]:
    return demo(7)


def test_the_demo_keeps_its_promises(first: dict[str, Any]) -> None:
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
    unmet = {**first["expectations"][0], "met": False}
    assert "NOT MET: " in render_text({**first, "expectations": [unmet]}, str)


@pytest.mark.slow
def test_a_seed_plays_the_same_again_and_another_keeps_the_promises_too(first: dict[str, Any]) -> None:
    assert stable(demo(7)) == stable(first)
    other = demo(11)
    assert all(e["met"] for e in other["expectations"]), other["expectations"]


def test_each_attack_reaches_a_tool_without_cordon_and_a_normal_day_shows_none_of_it(first: dict[str, Any]) -> None:
    assert {c["tool"] for c in first["ungated"]["calls"] if c["on_poison"]} == {
        "wire_transfer", "share_bucket", "roll_back", "purge_snapshots",
    }  # fmt: skip
    rewritten = [e for e in first["ungated"]["log"] if e["do"] == "rewrite" and e["poisoned"]]
    assert rewritten
    said = {e["agent"] for e in first["ungated"]["log"] if e["do"] == "repeat" and e["poisoned"]}
    assert said == {"planner", "coder", "reviewer"}
    assert not any(e["poisoned"] for side in first["benign"].values() for e in side["log"])
    assert all(e["met"] for e in first["expectations"]), first["expectations"]


def cordon(folder: Path, *arguments: str, key: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "bakery.toml").write_text(BAKERY)
    command = [str(Path(sys.executable).with_name("cordon")), "demo", "--scenario", "bakery.toml", *arguments]
    env = {**os.environ, "CORDON_DEMO_MODEL_KEY": key}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=110)


def test_a_model_takes_the_place_of_the_script(tmp_path: Path) -> None:
    with stub() as server:
        done = cordon(tmp_path, "--json", "--html", "b.html", "--model", server.url, "--model-name", "quoter", key="sk-secret")
        asked = list(server.asked)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert found["model"] == "quoter"
    assert found["ungated"]["risky_calls_on_poison"] == 1
    assert found["cordon"]["risky_calls_on_poison"] == 0
    assert found["closure"]["precision"] == found["closure"]["recall"] == 1.0, found["closure"]["faults"]
    assert any("As I understand it" in w["content"] for e in found["cordon"]["log"] for w in e["wrote"])
    assert {headers["authorization"] for headers, _ in asked} == {"Bearer sk-secret"}
    assert "sk-secret" not in done.stdout + done.stderr + (tmp_path / "b.html").read_text()


def test_a_model_that_fails_ends_the_demo_with_a_sentence(tmp_path: Path) -> None:
    with stub() as server:
        server.answer = lambda _: (401, b"{}")
        done = cordon(tmp_path, "--model", server.url, key="sk-secret")
    assert done.returncode == 6
    assert done.stderr.count("\n") == 1
    assert "The agent reader stopped: The model's server answers with HTTP 401." in done.stderr
    assert "sk-secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments", [("--model", "here"), ("--html", "no/where.html"), ("--scenario", "none.toml"), ("--scenario", ".")]
)
def test_a_wrong_option_is_told_before_anything_runs(tmp_path: Path, arguments: tuple[str, str]) -> None:
    done = cordon(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("cordon: usage: ")
    assert done.stderr.count("\n") == 1
