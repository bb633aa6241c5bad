"""Many seeds, or one told step by step; what is printed of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from .cast import Cast
from .mutations import PLANTS, SEEDS, planted
from .run import Verdict, simulate

REPEAT: Final = "make sim SEED={}"
WRONG_SHOWN: Final = 5


def go(seeds: Iterable[int]) -> int:
    """Exit code: 1 when a seed fails."""
    cast, failed, counts, n = Cast(), 0, Counter[str](), 0
    for seed in seeds:
        verdict = simulate(seed, cast)
        counts.update(verdict.counts)
        n += 1
        if verdict.wrong:
            failed += 1
            print(f"{REPEAT.format(seed)}  # {verdict.wrong[0]}", flush=True)
    said = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    print(f"{n} seeds, {failed} failed: {said}")
    return 1 if failed else 0


def told(seed: int, plant: str = "") -> int:
    with planted(plant):
        verdict = simulate(seed, Cast())
    print(f"seed {seed}: {verdict.plan}")
    print("\n".join(verdict.history.told))
    _show(verdict)
    return 1 if verdict.wrong else 0


def search(names: Iterable[str]) -> int:
    """Plant faults, one at a time. Exit code: 0 when a seed finds each of them."""
    cast, missed = Cast(), 0
    for name in names:
        first = PLANTS[name][1]
        with planted(name):
            verdicts = (simulate((first + i) % SEEDS, cast) for i in range(SEEDS))
            found = next((v for v in verdicts if v.wrong), None)
        missed += found is None
        print(f"{name}: " + (f"seed {found.seed}: {found.wrong[0]}" if found else f"no seed of {SEEDS} finds it"), flush=True)
    return 1 if missed else 0


def _show(verdict: Verdict) -> None:
    for what in verdict.wrong[:WRONG_SHOWN]:
        print(f"WRONG: {what}")
    said = ", ".join(f"{count:,} {what}" for what, count in sorted(verdict.counts.items()))
    print(f"{said}; {len(verdict.wrong)} wrong; streams {verdict.digest}")
