"""The simulation in its own process: some seeds hold, a seed is one run, and each planted fault is found."""

from __future__ import annotations

import subprocess
import sys

import pytest


def simulation(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tests.simulation", *args], capture_output=True, text=True, timeout=600)


def test_two_seeds_keep_every_invariant() -> None:
    ended = simulation("--seeds", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 seeds, 0 failed" in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_seeds_keep_every_invariant() -> None:
    ended = simulation("--seeds", "50")
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_seed_is_one_run_down_to_the_last_byte() -> None:
    first, second = simulation("--seed", "26"), simulation("--seed", "26")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "streams" in first.stdout
    assert first.stdout == second.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_fault_that_is_planted_in_the_gatekeeper_is_found() -> None:
    from .mutations import PLANTS

    ended = simulation(*(arg for name in PLANTS for arg in ("--plant", name)))
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(ended.stdout.splitlines()) == len(PLANTS)


@pytest.mark.slow
def test_a_failing_seed_says_the_line_that_repeats_it() -> None:
    ended = simulation("--seed", "0", "--plant", "no_keys")
    assert ended.returncode == 1
    assert "WRONG: " in ended.stdout
