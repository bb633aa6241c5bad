"""kill -9 of the gatekeeper, and of the server under it, at each named step of a write, a recall, a hold, a commit and a rebuild.

After each: what was acknowledged is stored once, what wasn't is asked again and stored once, a hold is whole or isn't there, and
the judge of the simulation (tests/simulation/checker, a model of its own over the streams' bytes) finds nothing wrong. The steps
of an erasure and of the janitor: test_erasure_kills.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

import pytest

import bus
from broker_config import supervisor
from broker_config.gate_runs import broker_for
from gate.ledger.replay import read_blocks
from tests.simulation import streams as raw
from tests.simulation.checker import Model

from .kill_points import AROUND, STEPS_PER_START, order
from .stored import core_client
from .world import UP_S, World, running, until, verified

pytestmark = pytest.mark.slow
PATIENT = bus.Timing(request_s=2.0, deadline_s=UP_S)
IMPATIENT = bus.Timing(request_s=2.0, deadline_s=2.5)  # of a hold, which isn't asked again by itself

# One event a block: so parts and seal of a case, and its notices, have steps between them.
_GATEKEEPER = (
    AROUND
    + """
sys.setswitchinterval(0.0005)
import gate.process as process
import gate.projections.lineage as lineage
import gate.recovery as recovery
import gate.service as service
import gate.writing.sequencer as sequencer
from gate.index_state import TenantIndex
from gate.ledger.committer import Committer
from gate.projections.catalog import Catalog
sequencer.BLOCK_EVENTS_MAX = 1
def of(stream, mark):
    return lambda self, data: self.stream.startswith(stream) and mark in data
around(Committer, "append", before="before the append", after="appended, not applied", when=of("LEDGER", b"memory_written"))
around(Committer, "append", before="before READS", after="in READS, not answered", when=of("READS", b"served"))
around(Committer, "append", before="before the parts", after="parts, no seal", when=of("LEDGER", b"case_part"))
around(Committer, "append", after="sealed, nobody told", when=of("LEDGER", b"case_opened"))
around(sequencer.Sequencer, "_index_and_answer", before="in live state, not in the stores", when=lambda self, by, seq: bool(by))
around(TenantIndex, "apply", after="in the stores, not answered", when=lambda self, memories, *_: bool(memories))
around(Catalog, "_commit", before="before the catalog's commit", after="after the catalog's commit")
around(lineage, "_apply", before="before the lineage store's commit", after="after the lineage store's commit")
around(service, "set_all_aside", after="stores set aside")
around(recovery.Recovery, "_flush", before="replayed, not in the stores", after="replayed into the stores")
sys.exit(process.run(home, 0, "rebuild" if "--rebuild" in sys.argv else "serve", None))
"""
)
WRITE = (
    "before the append", "appended, not applied", "in live state, not in the stores", "in the stores, not answered",
    "before the catalog's commit", "after the catalog's commit", "before the lineage store's commit",
    "after the lineage store's commit",
)  # fmt: skip
READ = ("before READS", "in READS, not answered")
HOLD = ("before the parts", "parts, no seal", "sealed, nobody told")
REBUILD = ("stores set aside", "replayed, not in the stores", "replayed into the stores")
MATRIX = [
    *((step, "gatekeeper") for step in (*WRITE, *READ, *HOLD)),
    *((step, "broker") for step in ("appended, not applied", "in READS, not answered", "parts, no seal")),
]


class Acked:
    """What clients were told."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}  # content → memory id
        self.recalls: set[str] = set()


async def acts(world: World, step: str, n: int, acked: Acked) -> None:
    """What reaches the step, asked until it is answered; a hold once, and then looked at."""
    mark = f"step{n} hawser"
    async with (
        bus.connect(world.home.url, world.creds("w"), project="p1", timing=PATIENT) as writer,
        bus.connect(world.home.url, world.creds("r"), project="p1", timing=PATIENT) as reader,
        world.desk() as desk,
    ):

        async def write(content: str, **more: object) -> bus.Receipt:
            receipt = await writer.write(content, idempotency_key=f"key of {content}", **more)  # type: ignore[arg-type]
            acked.ids[content] = receipt.id
            return receipt

        if step in HOLD:
            root = await write(f"{mark}, the root")
            child = await write(f"{mark}, its child", derived_from=[root.id])
            acked.recalls.add((await reader.get([root.id, child.id])).recall_id)
            ordered, case, was = order(world, step, victim_of(world, n)), "", world.pid(MATRIX[n][1])
            with suppress(bus.Unavailable):
                async with bus.connect_operator(world.home.url, world.creds("ops"), timing=IMPATIENT) as dying:
                    case = (await dying.hold_now(root.id, step)).case
            await dead_and_back(world, n, was, ordered.exists)
            withheld = (await reader.get([root.id, child.id])).withheld
            there = [c for c in await desk.cases() if root.id in c.roots]
            assert withheld == ({"held": 2} if there else {}), "a case is whole or not there"
            assert not case or there
            assert step != "sealed, nobody told" or there
            for found in there:
                await desk.release(found.case, "shown")
            assert (await reader.get([root.id, child.id])).ids == [root.id, child.id]
        else:
            await write(f"{mark}, before")
            ordered, was = order(world, step, victim_of(world, n)), world.pid(MATRIX[n][1])
            asked: Awaitable[object] = write(f"{mark}, during") if step in WRITE else reader.query(mark)
            answer = await asked
            if isinstance(answer, bus.Recall):
                acked.recalls.add(answer.recall_id)
            await dead_and_back(world, n, was, ordered.exists)
            acked.recalls.add((await reader.query(mark)).recall_id)
        assert (await write(f"{mark}, after")).state == "active"


def victim_of(world: World, n: int) -> int:
    return world.pid("broker") if MATRIX[n][1] == "broker" else 0


async def dead_and_back(world: World, n: int, was: int, waiting: Callable[[], bool]) -> None:
    await until(lambda: not waiting(), f"killed {MATRIX[n]}", UP_S)
    await world.ready_again(was, MATRIX[n][1])


async def judged(world: World, acked: Acked) -> None:
    """The streams' bytes, read by the letter and judged by a model of its own."""
    blocks: list[dict[int, bytes]] = []
    async with core_client(world.home) as nc:
        for name in ("LEDGER_0", "READS_0"):
            async with aclosing(read_blocks(nc, name)) as found:
                blocks.append({no: data async for no, data in found})
    read, model = raw.read(*blocks), Model()
    for event in read.events:
        model.take(event)
    assert model.wrong == []
    times = Counter(m.event.body["content"] for m in model.memories.values())
    assert [text for text, count in times.items() if count > 1] == []
    stored = {m.event.body["content"]: m.id for m in model.memories.values()}
    assert {text: stored.get(text) for text in acked.ids} == acked.ids
    recorded = {raw.text_id("rec_", r["recall"]) for _, r in read.records if r["r"] == "served"}
    assert acked.recalls <= recorded
    verdict = await verified(world.home)
    assert verdict["ok"], verdict["findings"]


@pytest.mark.timeout(400)
def test_whoever_is_killed_at_whatever_step_what_was_acknowledged_is_stored_once_and_a_case_is_whole() -> None:
    with running() as world:
        home, acked = world.home, Acked()
        gatekeeper = [sys.executable, "-c", _GATEKEEPER, "--home", str(home.path)]

        async def populate() -> None:
            await world.add("w")
            await world.add("r")

        asyncio.run(populate())
        for n, (step, process) in enumerate(MATRIX):
            if n % STEPS_PER_START == 0:
                supervisor.stop(home)
                assert supervisor.start(home, detach=True, ready_timeout_s=UP_S, gatekeeper=gatekeeper).state == "ready"
            began = time.monotonic()
            asyncio.run(acts(world, step, n, acked))
            print(f"{process} killed {step}: {time.monotonic() - began:.1f} s")
        asyncio.run(judged(world, acked))
        _rebuilds(world)
        assert supervisor.start(home, detach=True, ready_timeout_s=UP_S).state == "ready"
        asyncio.run(judged(world, acked))
        asyncio.run(_still_there(world, acked))


def _rebuilds(world: World) -> None:
    """A rebuild that dies at each of its steps: the next start makes of the ledger what is missing."""
    home = world.home
    supervisor.stop(home)
    argv = [sys.executable, "-c", _GATEKEEPER, "--home", str(home.path), "--rebuild"]
    with broker_for(home):
        for step in REBUILD:
            ordered = order(world, step)
            ended = subprocess.run(argv, env={**os.environ, "CORDON_URL": home.url}, capture_output=True, timeout=60)
            assert ended.returncode == -signal.SIGKILL, (step, ended.stderr[-1000:])
            assert not ordered.exists()


async def _still_there(world: World, acked: Acked) -> None:
    ids = sorted(acked.ids.values())
    async with world.agent("r") as reader:
        for at in range(0, len(ids), 32):
            assert sorted((await reader.get(ids[at : at + 32])).ids) == ids[at : at + 32]
