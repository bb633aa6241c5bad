"""What a flood by one agent or one tenant costs the others: their p99 with the flood, and without it just before.

Limits of requests a second are on, as users have them. The flood is closed-loop: it keeps more requests open than an agent may.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import nats

from bus.frames import Draft
from bus.identity import parse_creds

from .flooder import KINDS
from .load import Figures
from .rows import Budget, Row
from .stand import Stand, child, standing

SEED: Final = 2_000
ROUNDS: Final = 3  # without and with in turn; medians of their p99
OTHERS_IN_FLIGHT: Final = 2
OTHERS_TOTAL: Final = 1_000  # a round and verb: within the others' own limits
OTHERS_S: Final = 5.0  # or so long
FLOOD_IN_FLIGHT: Final = 96  # an agent may have 64
TENANT_AGENTS: Final = 6
ECHO_S: Final = 2.0  # so long at most is the echo's turn
FACTOR: Final = 2.0  # the others' p99 may grow by this, or by SLACK_MS, or as the echo's does: docs/decisions.md 143
SLACK_MS: Final = 25.0
VERBS: Final = ("query", "write")
SERVED_BIG: Final = 480


class Case(NamedTuple):
    """Who floods with what, and whose answers are timed."""

    kind: str
    whose: str
    flooders: Sequence[str]
    others: Sequence[str]


_FLOODERS: Final = [f"t0/a{i}" for i in range(TENANT_AGENTS)]
_WHO: Final = {"agent": (_FLOODERS[:1], ["t0/a7", "t0/a8"]), "tenant": (_FLOODERS, ["t1/a7", "t1/a8"])}
CASES: Final = {f"{kind}-{whose}": Case(kind, whose, *_WHO[whose]) for kind in KINDS for whose in _WHO}


async def flood(big: bool, names: Sequence[str] = tuple(CASES)) -> AsyncIterator[Row]:
    """Floods of small writes, questions, texts of 64 KiB and invalid requests, by one agent and by another tenant."""
    async with standing(2, 9, rates=True) as stand:
        for others in (others for _, others in _WHO.values()):
            await stand.open(others)
            for n in range(SEED // 500):  # within the rates
                await stand.run("write", others, 4, 500, seed=n)
            await stand.run("query", others, OTHERS_IN_FLIGHT, 200)
        for name in names:
            case = CASES[name]
            rounds, answers = await _measured(stand, case)
            machine = _median([r.beside["echo"].p99 / r.alone["echo"].p99 for r in rounds])
            for verb in VERBS:
                alone, beside = [r.alone[verb] for r in rounds], [r.beside[verb] for r in rounds]
                value, raw = _median([f.p99 for f in beside]) * 1e3, _median([f.p99 for f in alone]) * 1e3
                floor = value - raw <= SLACK_MS
                yield Row(
                    bench="flood",
                    name=f"others' {verb} p99, flood of {case.kind} by one {case.whose}",
                    value=value,
                    unit="ms",
                    raw_name="without",
                    raw=raw,
                    budget=Budget("<=", raw + SLACK_MS) if floor else Budget("<=", round(max(FACTOR, machine), 2), "ratio"),
                    note=f"p50 {_median([f.p50 for f in alone]) * 1e3:.1f} → {_median([f.p50 for f in beside]) * 1e3:.1f} ms; "
                    f"p99 of the rounds {_each(alone)} → {_each(beside)}; "
                    f"most {max(f.most for f in alone) * 1e3:.0f} → {max(f.most for f in beside) * 1e3:.0f} ms; "
                    f"the echo's p99 {machine:.1f} x; flood {answers}",
                )


async def stall(big: bool) -> AsyncIterator[Row]:
    """A reader that was served many texts of 64 KiB writes for the first time: how long it takes, what it costs the others."""
    reader, others = "t0/a0", ["t1/a0", "t1/a1"]
    async with standing(2, 4) as stand:
        await stand.open([reader, "t0/a1", "t0/a2", *others])
        await stand.run("write", others, 4, 1_000)
        await stand.run("big", ["t0/a1", "t0/a2"], 8, SERVED_BIG)
        await stand.run("get", [reader], 1, -(-SERVED_BIG // 8), k=8)
        alone = {verb: await stand.run(verb, others, OTHERS_IN_FLIGHT, OTHERS_TOTAL, seed=5) for verb in VERBS}
        first = asyncio.create_task(_first_write(stand, reader))
        beside = {verb: [] for verb in VERBS}  # type: dict[str, list[Figures]]
        while not first.done():
            for verb in VERBS:
                beside[verb].append(await stand.run(verb, others, OTHERS_IN_FLIGHT, 50, seed=6))
        yield Row(
            bench="stall", name=f"first write after {SERVED_BIG} served texts of 64 KiB", value=first.result(), unit="s",
            note="its own; the index thread of all tenants works it off in slices",
        )  # fmt: skip
        for verb in VERBS:
            yield Row(
                bench="stall",
                name=f"others' {verb} meanwhile, the longest",
                value=max(f.most for f in beside[verb]) * 1e3,
                unit="ms",
                raw_name="longest without",
                raw=alone[verb].most * 1e3,
                note=f"p50 {alone[verb].p50 * 1e3:.1f} → {_median([f.p50 for f in beside[verb]]) * 1e3:.1f} ms",
            )


async def _first_write(stand: Stand, name: str) -> float:
    key = parse_creds(Path(stand.creds(name)).read_text()).key
    nc = await nats.connect(stand.home.url, user_credentials=stand.creds(name), inbox_prefix=f"_INBOX.{key}".encode())
    try:
        start = time.perf_counter()
        draft = msgspec.json.encode(Draft(content="What I make of it: the lorry leaves at six"))
        answer = await nc.request(f"mem.{name.split('/')[0]}.p1.write.{key}", draft, timeout=120)
        assert answer.data.startswith(b'{"type":"receipt"'), answer.data
        return time.perf_counter() - start
    finally:
        await nc.close()


class Round(NamedTuple):
    """Figures by verb, without the flood and right after it with the flood. `echo`: what machine and broker give meanwhile, by a
    process that the flood doesn't ask.
    """

    alone: dict[str, Figures]
    beside: dict[str, Figures]


async def _measured(stand: Stand, case: Case) -> tuple[list[Round], str]:
    """Rounds without and with the flood in turn, so that a noisy neighbour, and a home that grows, meet both."""
    rounds, answers = list[Round](), Counter[str]()
    async with AsyncExitStack() as stack:
        in_flight = str(FLOOD_IN_FLIGHT * len(case.flooders))
        process = await child(
            stack, "tests.bench.flooder", stand.home.url, case.kind, in_flight, *map(stand.creds, case.flooders)
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        for n in range(ROUNDS):
            alone = await _others(stand, case, 200 + n)
            process.stdin.write(b"\n")
            beside = await _others(stand, case, 300 + n)
            process.stdin.write(b"\n")
            answers.update(json.loads(await process.stdout.readline()))
            rounds.append(Round(alone, beside))
            await stand.idle()
    return rounds, ", ".join(f"{count} {what}" for what, count in sorted(answers.items()))


async def _others(stand: Stand, case: Case, seed: int) -> dict[str, Figures]:
    found = {
        verb: await stand.run(verb, case.others, OTHERS_IN_FLIGHT, OTHERS_TOTAL, seed=seed, seconds=OTHERS_S) for verb in VERBS
    }
    return found | {"echo": await stand.run("echo", case.others, OTHERS_IN_FLIGHT, 10 * OTHERS_TOTAL, seed=seed, seconds=ECHO_S)}


def _each(figures: Sequence[Figures]) -> str:
    return "/".join(f"{f.p99 * 1e3:.0f}" for f in figures)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
