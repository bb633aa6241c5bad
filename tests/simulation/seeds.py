"""Many seeds, or one told step by step; what is printed of them."""

from __future__ import annotations

import os
import sys
import time as real_time
from collections import Counter
from collections.abc import Iterable

from .cast import Cast
from .mutations import planted
from .run import Verdict, simulate

REPEAT = "make sim SEED={}"
WRONG_SHOWN = 5


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


def told(seed: int, mutate: str = "") -> int:
    with planted(mutate):
        verdict = simulate(seed, Cast())
    print(f"seed {seed}: {verdict.plan}")
    print("\n".join(verdict.history.told))
    _show(verdict)
    return 1 if verdict.wrong else 0


def found(seeds: Iterable[int], mutate: str) -> int:
    """Exit code: 1 when a seed finds the planted fault."""
    cast = Cast()
    with planted(mutate):
        for seed in seeds:
            verdict = simulate(seed, cast)
            if verdict.wrong:
                print(f"{mutate}: seed {seed}: {verdict.wrong[0]}")
                return 1
    print(f"{mutate}: not found")
    return 0


def _show(verdict: Verdict) -> None:
    for what in verdict.wrong[:WRONG_SHOWN]:
        print(f"WRONG: {what}")
    print(f"{verdict.counts}: {len(verdict.wrong)} wrong")


assert os and sys and real_time
