"""Who gives way when the ledger or the disk fills up: drafts first, containment never."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gate.ledger import events as E
from gate.refusals import Refused
from gate.room import Room

HOLD = E.CaseReleased(ms=1, case=b"c", agent=b"a")
MIB = 1 << 20


def refusals(r: Room) -> list[str]:
    """What a draft, a question, an agent that is issued and a release are told."""
    issued = E.AgentIssued(ms=1, agent=b"a", key="K", name="n", role="agent", projects=[])
    asks: list[Callable[[], None]] = [r.check_draft, r.check_read, lambda: r.check_event(issued), lambda: r.check_event(HOLD)]
    found = []
    for ask in asks:
        try:
            ask()
            found.append("")
        except Refused as e:
            found.append(e.code)
    return found


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (0, ["", "", "", ""]),
        (899, ["", "", "", ""]),
        (900, ["ledger_full", "", "", ""]),
        (950, ["ledger_full", "", "ledger_full", ""]),
        (1_000, ["ledger_full", "", "ledger_full", ""]),
    ],
)
def test_a_ledger_that_fills_up_leaves_its_last_part_to_containment(size: int, told: list[str]) -> None:
    r = Room()
    r.ledger_is(size, 1_000)
    assert refusals(r) == told
    assert bool(r.trouble) == (size >= 900)


def test_what_was_appended_since_the_broker_was_asked_counts() -> None:
    r = Room()
    r.ledger_is(0, 1 << 20)
    for _ in range(9):
        assert refusals(r)[0] == ""
        r.appended(105_000)
    assert refusals(r)[0] == "ledger_full"


def test_reads_are_crowded_before_they_are_full() -> None:
    r = Room()
    assert not r.reads_crowded
    r.reads_are(700_000, 1_000_000)
    assert not r.reads_crowded
    r.recorded(100_000)
    assert r.reads_crowded
    assert len(r.trouble) == 1
    assert "80%" in r.trouble[0]
    assert refusals(r) == [""] * 4
    r.reads_are(900_000, -1)
    assert not r.reads_crowded


def test_a_ledger_without_a_limit_is_never_full() -> None:
    r = Room()
    r.ledger_is(1 << 40, -1)
    assert refusals(r) == [""] * 4


@pytest.mark.parametrize(
    ("free", "disk", "told"),
    [
        (300 * MIB, 100_000 * MIB, ["", "", "", ""]),
        (200 * MIB, 100_000 * MIB, ["disk_full", "", "", ""]),
        (60 * MIB, 100_000 * MIB, ["disk_full", "disk_full", "disk_full", ""]),
        (0, 100_000 * MIB, ["disk_full", "disk_full", "disk_full", ""]),
        (11 * MIB, 100 * MIB, ["", "", "", ""]),
        (9 * MIB, 100 * MIB, ["disk_full", "", "", ""]),
        (2 * MIB, 100 * MIB, ["disk_full", "disk_full", "disk_full", ""]),
    ],
)
def test_a_disk_that_fills_up_stops_drafts_then_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, disk: int, told: list[str]
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_blocks=disk, f_frsize=1))
    r = Room(tmp_path)
    r.look()
    assert refusals(r) == told
    assert bool(r.trouble) == bool(told[0])


def test_a_disk_that_can_t_be_asked_stops_nobody(tmp_path: Path) -> None:
    r = Room(tmp_path / "gone")
    r.look()
    assert refusals(r) == [""] * 4
