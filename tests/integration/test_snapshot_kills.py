"""kill -9 at every named step of a snapshot's making and removal, and of a restore, while the home serves.

After each: nothing half is listed or can be named, the home serves, and the same command, given again, makes a whole one. The
commands are the real ones, but for one wrapper each around the functions whose steps have a name; the gatekeeper's program, which
copies the ledger for them, has such wrappers of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import bus
from broker_config import supervisor
from broker_config.home import Home
from broker_config.processes import live_pid
from broker_config.snapshots import Snapshots, wrong_files
from cli.exits import Exit

from .kill_points import AROUND, order
from .test_erasure import done, found
from .world import UP_S, World, running, until, verified

pytestmark = pytest.mark.slow
ENDS_S: Final = 60.0

_COMMAND = (
    AROUND
    + """
import shutil
import broker_config.restore as restore
import broker_config.snapshots as snapshots
S, R = snapshots.Snapshots, restore.Restore
named = lambda name: lambda path, *_: path.name == name
around(snapshots, "link_streams", before="made its folder", after="shares the segments of the last")
around(S, "capture", after="copied the ledger once")
around(snapshots, "trust_still", before="copied the ledger again")
around(snapshots, "write_private", after="half of policy and trust", when=named("operator.jwt"))
around(snapshots, "write_private", before="before the manifest", after="whole, not in its place", when=named("manifest.json"))
around(snapshots, "write_private", after="has its manifest", when=named("manifest.json"))
around(snapshots.Path, "rename", after="in its place, nobody told", when=lambda path, to: path.suffix == ".part")
around(snapshots.Path, "rename", after="out of the list", when=lambda path, to: to.suffix == ".part")
around(os, "unlink", after="half removed", when=lambda name, *_: name == "streams.json")
around(R, "_furnish", after="has the keys")
around(R, "_catch_up", after="has what came later")
around(restore, "_make_streams", after="made the streams")
around(snapshots.Path, "rename", before="restored, not in its place", when=lambda path, to: path.suffix == ".part")
sys.executable = str(home / "run" / "gate-that-dies")
from cordon_cli.main import main
sys.exit(main())
"""
)
_GATE = (  # its home is the new one in a restore, its orders are in the old one
    AROUND
    + """
order = Path(__file__).with_name("kill-at")
import gate.snapshots.capture as capture
import gate.snapshots.files as files
import gate.snapshots.pour as pour
W = files.SegmentWriter
of = lambda name: lambda self: self._name == name
around(capture, "stream_state", after="knows where the streams end", when=lambda nc, name: name.startswith("READS"))
around(W, "close", before="read the ledger", after="has the ledger's segment", when=of("ledger"))
around(W, "close", after="has the segment of READS", when=of("reads"))
around(files.Path, "replace", before="half of a segment", when=lambda path, to: to.suffix == ".seg")
around(capture, "write_kept", before="before streams.json", after="has streams.json")
around(capture, "forget", before="before texts go")
around(files, "_note_forgotten", after="noted which texts go")
around(capture, "forget", after="texts are gone, streams.json is old")
around(pour.Pour, "_ledger", after="poured the ledger")
around(pour.Pour, "_append_carried", after="carried over what came later")
from gate.__main__ import main
sys.exit(main())
"""
)
MAKER = (
    "made its folder", "shares the segments of the last", "copied the ledger once", "copied the ledger again",
    "half of policy and trust", "before the manifest", "whole, not in its place", "in its place, nobody told",
)  # fmt: skip
COPIER = (
    "knows where the streams end", "read the ledger", "half of a segment", "has the ledger's segment",
    "has the segment of READS", "before streams.json", "has streams.json",
)  # fmt: skip
FORGETTER = ("before texts go", "noted which texts go", "texts are gone, streams.json is old")
RENEWER = ("copied the ledger again", "half of policy and trust", "before the manifest", "has its manifest")
REMOVER = ("out of the list", "half removed")
RESTORER = ("has the keys", "has what came later", "made the streams", "restored, not in its place")
POURER = ("poured the ledger", "carried over what came later")
KILLED: Final = -signal.SIGKILL


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:
        gate = world.home.run / "gate-that-dies"
        program = gate.with_suffix(".py")
        program.write_text(_GATE)
        gate.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} {program} "$@"\n')  # without its `-P -m gate`
        gate.chmod(0o700)

        async def populate() -> None:
            await world.add("w")
            await world.add("r")
            await world.add("kim", "p1", role="operator", person="kim")

        asyncio.run(populate())
        asyncio.run(serves(world, "the first"))
        Snapshots(world.home).create("first")
        yield world


def run(world: World, *command: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", _COMMAND, "--home", str(world.home.path), *command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=ENDS_S, check=False)


def dies(world: World, step: str, *command: str) -> None:
    """Run a command that, or whose copier, is killed at the step; whoever is left says what has happened."""
    ordered = order(world, step)
    ended = run(world, *command)
    assert not ordered.exists(), f"{step}: not reached: {ended}"
    if step in (*COPIER, *FORGETTER, *POURER):
        assert ended.returncode == Exit.UNAVAILABLE, f"{step}: {ended}"
        assert ended.stderr.count("\n") == 1
        assert "was killed at its work" in ended.stderr
    else:
        assert ended.returncode == KILLED, f"{step}: {ended}"


async def serves(world: World, mark: str) -> str:
    """A write, found at once: also what the next copy of the ledger has to take in."""
    async with world.agent("w") as w, world.agent("r") as r:
        receipt = await w.write(f"The lighthouse keeper said {mark}")
        assert receipt.id in (await r.query(f"lighthouse keeper {mark}", k=64)).ids
    return receipt.id


def names(world: World) -> list[str]:
    return [copy.manifest.name for copy in Snapshots(world.home).all()]


def unfinished(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*.part"))


@pytest.mark.timeout(150)
def test_a_snapshot_killed_at_any_step_is_none_and_the_next_is_whole(world: World) -> None:
    snapshots = Snapshots(world.home)
    for n, step in enumerate((*MAKER, *COPIER)):
        name, before = f"s{n}", names(world)
        asyncio.run(serves(world, step))
        dies(world, step, "snapshot", "create", name)
        if step == "in its place, nobody told":
            assert names(world) == [*before, name]
            assert "snapshot_exists" in run(world, "--json", "snapshot", "create", name).stdout
        else:
            assert names(world) == before, step
            with pytest.raises(bus.Rejected) as none:
                snapshots.find(name)
            assert none.value.reason == "snapshot_unknown"
            if n % 2:  # either of the two removes what is left; whose copier is killed removes it itself
                assert unfinished(world.home.snapshots) == ([] if step in COPIER else [f".{name}.part"])
                assert snapshots.prune(100) == []
                assert unfinished(world.home.snapshots) == []
            snapshots.create(name)
        assert unfinished(world.home.snapshots) == []
        assert wrong_files(snapshots.find(name)) == [], step
    assert snapshots.verify(snapshots.find(name))["findings"] == [], "it shares the segments of all before it"
    asyncio.run(serves(world, "after all"))
    assert asyncio.run(verified(world.home))["findings"] == []


def test_a_backup_killed_at_any_step_of_its_renewal_stays_whole_and_the_next_run_leaves_nothing_behind(
    world: World, tmp_path: Path
) -> None:
    folder, snapshots = tmp_path / "backup", Snapshots(world.home)
    snapshots.backup(folder)
    for step in RENEWER:
        asyncio.run(serves(world, step))
        dies(world, step, "backup", "--to", str(folder))
        copy = snapshots.find(str(folder))
        assert wrong_files(copy) == [], step
        assert snapshots.verify(copy)["findings"] == [], step
        renewed, new = snapshots.backup(folder)
        assert new > 0 or step == "has its manifest"
        assert [p.name for p in folder.glob("files-*")] == [renewed.manifest.under]


def test_a_text_that_a_killed_snapshot_was_about_to_forget_is_in_none_that_comes_after_it(world: World, tmp_path: Path) -> None:
    """Out of the home's reach, where only the next copy can take it out of the segments that it shares with the last."""
    for n, step in enumerate(FORGETTER):
        mark, away = f"marten-alcove-{n}", tmp_path / f"away{n}"
        id_ = asyncio.run(serves(world, mark))
        before = Snapshots(world.home).create("before", away)
        assert found(before.folder, mark)
        asyncio.run(_erased(world, id_))
        dies(world, step, "snapshot", "create", "after", "--to", str(away))
        assert [copy.manifest.name for copy in Snapshots(world.home).all(away)] == ["before"]
        assert run(world, "snapshot", "create", "after", "--to", str(away)).returncode == 0
        assert unfinished(away) == []
        assert found(away / "after", mark) == set(), step
        after = Snapshots(world.home).find(str(away / "after"))
        assert Snapshots(world.home).verify(after)["findings"] == [], step


async def _erased(world: World, id_: str) -> None:
    async with world.desk("kim") as desk:
        await done(desk, await desk.erase(id_, "its subject asked for it"))


def test_what_a_killed_removal_has_left_counts_for_nothing_and_keeps_no_erased_text(world: World) -> None:
    snapshots = Snapshots(world.home)
    for n, step in enumerate(REMOVER):
        mark = f"bittern-cupola-{n}"
        id_ = asyncio.run(serves(world, mark))
        goes = snapshots.create(f"{n}-goes").manifest.name
        asyncio.run(serves(world, "something newer"))
        snapshots.create(f"{n}-stays")
        ordered = order(world, step)
        program = _COMMAND.replace("sys.exit(main())", "S(restore.Home(home)).prune(1, sys.argv[3])")
        argv = [sys.executable, "-c", program, "--home", str(world.home.path), f"{n}-"]
        assert subprocess.run(argv, capture_output=True, timeout=ENDS_S, check=False).returncode == KILLED
        assert not ordered.exists()
        assert goes not in names(world)
        assert f"{n}-stays" in names(world)
        assert unfinished(world.home.snapshots) == [f".{goes}.part"]
        asyncio.run(_erased(world, id_))
        assert found(world.home.path, mark) == set(), step
        assert unfinished(world.home.snapshots) == []
        assert snapshots.verify(snapshots.create(goes))["findings"] == [], "its name is free again"
        assert run(world, "snapshot", "prune", "--keep", "1").returncode == 0
        assert names(world) == [goes]


@pytest.mark.timeout(150)
def test_a_restore_killed_at_any_step_has_made_no_home_and_the_same_command_makes_it(world: World, tmp_path: Path) -> None:
    snapshots = Snapshots(world.home)
    held = asyncio.run(serves(world, "what will be held"))
    copy = snapshots.create("to-restore")

    async def later() -> None:
        async with world.desk("kim") as desk:
            await desk.hold_now(held, "found to be forged")

    asyncio.run(later())
    into, part = tmp_path / "restored", tmp_path / ".restored.part"
    command = ("restore", "--snapshot", "to-restore", "--into", str(into))
    for step in (*RESTORER, *POURER):
        dies(world, step, *command)
        assert not into.exists(), step
        assert part.exists() is (step in RESTORER), "who lives removes what it began: keys are in it"
        asyncio.run(until(lambda: live_pid(Home(part), "broker") is None, f"no server left after {step}", UP_S))
    made = run(world, *command)
    assert made.returncode == 0, made
    assert not part.exists()
    home = Home(into)
    try:
        assert supervisor.start(home, detach=True, ready_timeout_s=UP_S).state == "ready"
        assert asyncio.run(verified(home))["findings"] == []

        async def still_held() -> None:
            async with World(home).agent("r") as r:
                assert (await r.get(held)).withheld == {"held": 1}

        asyncio.run(still_held())
    finally:
        supervisor.stop(home)
        shutil.rmtree(into)
    assert snapshots.verify(copy)["findings"] == []
    asyncio.run(serves(world, "after the restores"))
