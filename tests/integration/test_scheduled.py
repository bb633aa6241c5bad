"""Snapshots by the clock: made by a home that serves, caught up once, thinned out, and a failure that is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker_config import supervisor
from broker_config.home import Home, Settings, SnapshotSchedule, rendered, write_private
from broker_config.scheduled import INCOMPLETE, PREFIX, RETRY_S, Scheduled, due, make
from broker_config.snapshots import Snapshots
from bus.errors import ConfigError
from cli.main import run

from .world import UP_S, World, running

HOUR_S = 3_600.0


@pytest.mark.parametrize(("every", "seconds"), [("24h", 86_400), ("30m", 1_800), ("7d", 604_800), ("", 0)])
def test_a_schedule_is_a_number_and_a_unit(every: str, seconds: int) -> None:
    assert SnapshotSchedule(every=every).every_s == seconds


@pytest.mark.parametrize("line", ['every = "5m"', 'every = "daily"', 'every = "h"', "keep = 0", 'often = "1h"'])
def test_a_schedule_that_can_not_be_meant_is_refused_with_its_file(tmp_path: Path, line: str) -> None:
    home = Home(tmp_path / "home")
    home.create()
    write_private(home.config, home.config.read_text() + f"[snapshots]\n{line}\n")
    with pytest.raises(ConfigError, match=r"cordon\.toml"):
        home.settings()


def test_a_clock_that_is_no_day_is_refused_before_it_is_needed(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    write_private(home.config, f'clock = "2026-11-30"\n{home.config.read_text()}')
    assert home.settings().clock == "2026-11-30"
    write_private(home.config, home.config.read_text().replace("2026-11-30", "yesterday"))
    with pytest.raises(ConfigError, match="clock is a day"):
        home.settings()


def test_settings_are_written_as_they_are_read(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    settings = Settings(port=home.settings().port, read_only=True, quotas={"held": 7}, snapshots=SnapshotSchedule(every="1h"))
    write_private(home.config, rendered(settings, "a test"))
    assert home.settings() == settings


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:
        yield world


def scheduled(home: Home, every: str, keep: int = 30) -> None:
    write_private(home.config, f'port = {home.settings().port}\n[snapshots]\nevery = "{every}"\nkeep = {keep}\n')


def names(home: Home) -> list[str]:
    return [c.manifest.name for c in Snapshots(home).all()]


def until_idle(one: Scheduled, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UP_S
    while not condition():
        assert time.monotonic() < deadline
        one.tick(time.monotonic())
        time.sleep(0.02)


@pytest.mark.slow
def test_a_home_that_serves_makes_what_it_missed_once_and_keeps_the_newest_and_what_people_made(world: World) -> None:
    home, now = world.home, time.time()
    assert not due(home, now), "nothing is made unasked"
    Snapshots(home).create("by-hand")
    scheduled(home, "1h", keep=2)
    assert not due(home, now + HOUR_S / 2), "the newest is young enough, whoever made it"
    assert due(home, now + 9 * HOUR_S), "nine were missed"
    for hours in (9, 10, 11):
        make(home, now + hours * HOUR_S)
        assert not due(home, now + (hours + 0.5) * HOUR_S), "one catches all of them up"
    stamps = [f"{PREFIX}{datetime.fromtimestamp(now + h * HOUR_S, UTC):%Y%m%dt%H%M%Sz}" for h in (10, 11)]
    assert names(home) == ["by-hand", *stamps]
    assert due(home, now), "one from the future is as none"
    make(home, now + HOUR_S)
    assert not due(home, now + 1.5 * HOUR_S), "and makes none due again and again"
    assert names(home) == ["by-hand", f"{PREFIX}{datetime.fromtimestamp(now + HOUR_S, UTC):%Y%m%dt%H%M%Sz}", stamps[1]]


@pytest.mark.slow
def test_a_registry_that_is_damaged_when_one_is_made_is_told_until_it_is_mended(world: World) -> None:
    home = world.home
    for name in names(home):
        (home.snapshots / name / "manifest.json").unlink()
    scheduled(home, "24h")
    whole = home.registry.read_text()
    one = Scheduled(home, look_s=0.0)
    write_private(home.registry, whole[:-4] + "AAAA")
    try:
        until_idle(one, lambda: one.problem is not None)
    finally:
        write_private(home.registry, whole)
    assert one.problem is not None
    assert one.problem.reason == INCOMPLETE
    assert "registry.jwt: it doesn't verify" in one.problem.message
    assert len(names(home)) == 1, "it has all the rest"
    one.tick(time.monotonic() + RETRY_S)
    assert one.problem is None
    one.stop()


@pytest.mark.slow
def test_the_supervisor_makes_it_and_status_names_one_that_failed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    home = world.home
    for name in names(home):
        (home.snapshots / name / "manifest.json").unlink()
    supervisor.stop(home)
    scheduled(home, "24h")
    supervisor.start(home, detach=True, ready_timeout_s=UP_S)
    deadline = time.monotonic() + UP_S
    while not names(home):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [made] = names(home)
    assert made.startswith(PREFIX)

    (home.snapshots / made / "manifest.json").unlink()
    home.snapshots.rename(home.path / "kept")
    home.snapshots.write_text("something else than a folder")
    try:
        one = Scheduled(home, look_s=0.0)
        until_idle(one, lambda: one.problem is not None)
        assert one.problem is not None
        assert (one.problem.reason, str(home.snapshots) in one.problem.message) == ("snapshot_failed", True)
        supervisor.stop(home)
        supervisor.start(home, detach=True, ready_timeout_s=UP_S)
        deadline = time.monotonic() + UP_S
        while (now := supervisor.read_status(home)) is None or now.error is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        capsys.readouterr()
        assert run(["--home", str(home.path), "--json", "status"]) == 6
        assert json.loads(capsys.readouterr().out)["error"]["reason"] == "snapshot_failed"
    finally:
        home.snapshots.unlink()
        (home.path / "kept").rename(home.snapshots)
    one = Scheduled(home, look_s=0.0)
    until_idle(one, lambda: bool(names(home)))
    until_idle(one, lambda: one.problem is None)
    one.stop()
