"""Drills of each kind on a home that serves: what they prove, tell, miss and keep."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bus
from broker_config.drills import KINDS, Drill, Kind, history
from broker_config.gate_runs import run_gate
from broker_config.home import Home, write_private
from broker_config.restore import Restore, Wish
from broker_config.snapshots import Copy, Snapshots
from cli.drills import DrillKind
from cli.main import run

from .world import World, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:
        asyncio.run(_populate(world))
        yield world


async def _populate(world: World) -> None:
    await world.add("w", "p1", "p2")
    async with world.agent("w") as w:
        first = await w.write("The pump is in the cellar")
        for i in range(3):
            await w.write(f"Likes tea number {i}", scope="user", scope_id="ann@example.org")
        root = await w.write("The pump was moved to the roof", supersedes=first.id)
        await w.write("The roof needs a stronger floor", derived_from=[root.id])
        await w.write("Elsewhere it rains", project="p2")


@pytest.fixture(scope="module")
def copy(world: World) -> Copy:
    return Snapshots(world.home).create("drilled")


def test_the_command_knows_every_kind() -> None:
    assert [k.value for k in DrillKind] == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_drill_finds_nothing_wrong_and_is_noted(world: World, copy: Copy, kind: Kind) -> None:
    told = Drill(world.home, copy, kind).run()
    assert (told["kind"], told["ok"], told["findings"], told["missed"]) == (kind, True, [], [])
    assert told["facts"] > 0
    assert told["seconds"] > 0
    assert history(world.home)[-1] == json.loads(json.dumps(told))
    assert not list(world.home.run.glob("drill-*"))
    if kind == "single-user":
        assert told["memories"] == 3
    if kind == "point-in-time":
        assert 0 < told["block"] < copy.manifest.block
    if kind == "contamination-rollback":
        assert told["rollback"]["held"] > 0


def test_lines_of_the_history_that_are_no_drills_are_left_out(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    line = {
        "at": "2026-11-30T17:11:21+00:00",
        "kind": "full",
        "snapshot": "kept",
        "seconds": 3.9,
        "lost": {"seconds": 76},
        "ok": True,
    }
    wrong = [b"\xff", b"garbage", b"{}", b"[]", json.dumps(line | {"seconds": "x"}).encode(), json.dumps(line).encode()[:40]]
    home.drills.write_bytes(b"\n".join([*wrong, json.dumps(line).encode()]))
    assert history(home) == [line]


def test_a_target_that_is_missed_is_said_with_its_name_and_ends_with_1(
    world: World, copy: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    text = world.home.config.read_text()
    write_private(world.home.config, text + "[drill]\nrto_s = 1\nrpo_s = 86400\n")
    try:
        code = run(["--home", str(world.home.path), "--json", "drill"])
    finally:
        write_private(world.home.config, text)
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (code, told["ok"], told["findings"]) == (1, False, [])
    assert ["drill.rto_s" in line for line in told["missed"]] == [True]
    assert run(["--home", str(world.home.path), "drill", "--history"]) == 0
    shown = capsys.readouterr().out
    assert ("failed" in shown, copy.manifest.name in shown) == (True, True)


def test_the_history_of_one_kind_has_that_kind_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path / "home")
    home.create()
    write_private(home.operator_jwt, "what a home has")
    lines = [
        {"at": f"2026-11-30T17:11:2{i}Z", "kind": kind, "snapshot": "kept", "seconds": 3.9, "lost": {"seconds": 76}, "ok": True}
        for i, kind in enumerate(("full", "single-user", "full"))
    ]
    home.drills.write_text("\n".join(map(json.dumps, lines)))

    def shown(*more: str) -> list[str]:
        assert run(["--home", str(home.path), "--json", "drill", "--history", *more]) == 0
        return [d["at"] for d in json.loads(capsys.readouterr().out)["drills"]]

    every = [str(line["at"]) for line in lines]
    assert (shown(), shown("--kind", "full"), shown("--kind", "single-user")) == (every, every[::2], every[1:2])
    assert shown("--kind", "point-in-time") == []
    assert run(["--home", str(home.path), "drill", "--history", "--snapshot", "kept"]) == 2


def test_a_restored_ledger_that_differs_in_one_fact_is_found(world: World, copy: Copy, tmp_path: Path) -> None:
    made = Restore(world.home, copy).run(Wish(into=tmp_path / "home", by="kim"))
    shutil.rmtree(tmp_path / "home")

    def compared(other: Copy) -> dict[str, Any]:
        mode = ("--compare", str(other.folder), "--with", str(copy.folder), "--position", str(made["block"]))
        return run_gate(world.home, *mode).last

    assert compared(copy)["findings"] == ["nothing in it says of what it is a copy"], "a copy isn't a restored one"
    other = tmp_path / "other"
    shutil.copytree(copy.folder, other)
    segment = next(other.glob("ledger-1-*.seg"))
    segment.write_bytes(segment.read_bytes()[:-1])
    assert any("ends within block" in finding for finding in compared(Copy(other, copy.manifest))["findings"])


def test_a_copy_without_end_users_can_not_be_drilled_for_one(world: World, tmp_path: Path) -> None:
    into = tmp_path / "home"
    Restore(world.home, Snapshots(world.home).all()[-1]).run(Wish(into=into, by="kim", only={"tenant": "acme", "project": "p2"}))
    home = type(world.home)(into)
    part = Snapshots(home).create("part")
    assert Snapshots(home).verify(part)["findings"] == [], "what a part left out is no damage"
    with pytest.raises(bus.Rejected) as refused:
        Drill(home, part, "single-user").run()
    assert refused.value.reason == "drill_impossible"
    assert not home.drills.exists()
