"""Each projection in each state that a start can find it in, and those that can come while it serves: made again from the ledger,
or the shard stops. How much is made again is counted.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from broker_config.home import Home
from bus.servers import servers
from gate import recovery
from gate.ledger.errors import LedgerWentBack
from gate.paths import Paths
from gate.projections import ProjectionUnusable
from gate.service import listen, opened
from gate.shard import Shard

from .damages import Damage, behind, change, cut, emptied, flipped, missing, other_version
from .scenes import broker_alone, in_process
from .world import World, running

pytestmark = pytest.mark.slow  # two dozen starts

MEMORIES, LATER = 24, 8


@dataclass(frozen=True)
class Past:
    """A home with a broker and no gatekeeper. `early`: its projections before the last LATER memories; `late`: after them."""

    world: World
    early: Path
    late: Path
    found: dict[str, Any]  # what is right
    blocks: int  # of both streams

    @property
    def home(self) -> Home:
        return self.world.home

    @property
    def catalog(self) -> Path:
        (path,) = self.home.shard(0).glob("tenants/*/catalog.sqlite")
        return path

    def path(self, which: str) -> Path:
        return self.catalog if which == "catalog" else self.home.lineage(0)

    def damage(self, which: str, fate: Damage) -> None:
        path = self.path(which)
        fate(path, self.early / path.relative_to(self.home.shard(0)))

    def put_back(self, copy: Path) -> None:
        shutil.rmtree(self.home.shard(0))
        shutil.copytree(copy, self.home.shard(0))
        shutil.rmtree(self.home.run, ignore_errors=True)


@pytest.fixture(scope="module")
def past() -> Iterator[Past]:
    with running() as world:
        home, folder = world.home, world.home.path.parent
        asyncio.run(world.add("writer"))
        with broker_alone(home):
            asyncio.run(live(world, 0, MEMORIES - LATER))
            early = Path(shutil.copytree(home.shard(0), folder / "early"))
            asyncio.run(live(world, MEMORIES - LATER, MEMORIES))
            late = Path(shutil.copytree(home.shard(0), folder / "late"))
            found, replayed = asyncio.run(started(home))
            assert (replayed["catalog_rows"], replayed["lineage_blocks"]) == (0, 0)  # all is there
            yield Past(world, early, late, found, found["ledger_seq"] + found["reads_seq"])


async def live(world: World, first: int, last: int) -> None:
    async with in_process(world.home) as shard, world.agent("writer") as writer, world.desk() as desk:
        for n in range(first, last):
            receipt = await writer.write(f"Heron number {n} was ringed at the weir", evidence=[f"https://rings.example/{n}"])
            await writer.query("herons at the weir")
        await desk.hold_now(receipt.id, "wrong ring")
        await shard.store_caught_up()


async def started(home: Home) -> tuple[dict[str, Any], dict[str, float]]:
    """What a gatekeeper that has started has in its stores, and what it counted."""
    async with opened(Paths(home.path), servers(home.url)) as (shard, _):
        await shard.store_caught_up()
        return await contents(shard), shard.replayed


async def contents(shard: Shard) -> dict[str, Any]:
    [t] = shard.tenants.values()
    [index] = shard.indexes.values()
    counts = dict(await shard.lineage.query("counts", {"tenant": shard.tenant_number(t)}))
    [project] = [p for p in index.projects.values() if p.n]
    return {
        "rows": {r.seq: r for batch in index.catalog.iterate() for r in batch},
        "cited": index.catalog.find_source("https://rings.example/3"),
        "lineage": counts,
        "found": project.n,
        "held": t.held_total,
        "ledger_seq": shard.ledger_seq,
        "reads_seq": shard.reads_seq,
    }


# --- what happens to a file -----------------------------------------------------------------------------
def foreign(path: Path, early: Path) -> None:
    change(path, "UPDATE position SET stream = 'another'", "UPDATE stream SET identity = 'another' WHERE name = 'LEDGER'")


def ahead(path: Path, early: Path) -> None:
    change(
        path,
        "UPDATE position SET tenant_seq = tenant_seq + 9, ledger_seq = ledger_seq + 9",
        "UPDATE position SET seq = seq + 9 WHERE stream = 'LEDGER'",
    )


def ahead_in_reads(path: Path, early: Path) -> None:
    change(path, "", "UPDATE position SET seq = seq + 9 WHERE stream = 'READS'")


def other_chain(path: Path, early: Path) -> None:
    change(path, "UPDATE position SET chain = zeroblob(32)", "")


@pytest.mark.parametrize("which", ["catalog", "lineage"])
@pytest.mark.parametrize("fate", [missing, flipped, cut, emptied, other_version, behind])
def test_a_projection_in_doubt_is_made_again_and_no_other_is(past: Past, which: str, fate: Damage) -> None:
    past.put_back(past.late)
    past.damage(which, fate)
    found, replayed = asyncio.run(started(past.home))
    assert found == past.found
    rows = LATER if fate is behind else MEMORIES
    if which == "catalog":
        assert (replayed["catalog_rows"], replayed["lineage_blocks"]) == (rows, 0)
    elif fate is behind:
        assert replayed["catalog_rows"] == 0
        assert LATER < replayed["lineage_blocks"] < past.blocks
    else:
        assert (replayed["catalog_rows"], replayed["lineage_blocks"]) == (0, past.blocks)
    aside = {p.name for folder in past.home.run.glob("aside-*") for p in folder.rglob("*") if p.is_file()}
    assert aside == (set() if fate in (missing, behind) or emptied_is_new(which, fate) else {past.path(which).name})


def emptied_is_new(which: str, fate: Damage) -> bool:
    """SQLite takes an empty file for a new database."""
    return fate is emptied and which == "catalog"


@pytest.mark.parametrize(
    ("which", "fate", "why"),
    [
        ("catalog", ahead, "its catalog has applied"),
        ("catalog", other_chain, "isn't the one that its catalog has applied"),
        ("catalog", foreign, "follows another ledger"),
        ("lineage", ahead, "the lineage store has applied"),
        ("lineage", ahead_in_reads, "READS ends at"),
        ("lineage", foreign, "stream"),
    ],
)
def test_a_projection_of_another_past_stops_the_shard_and_nothing_is_made_again(
    past: Past, which: str, fate: Damage, why: str
) -> None:
    past.put_back(past.late)
    past.damage(which, fate)
    for _ in range(2):  # a second try finds the same
        with pytest.raises((LedgerWentBack, ProjectionUnusable), match=why):
            asyncio.run(started(past.home))
    assert not list(past.home.run.glob("aside-*"))


def test_a_kill_between_the_two_stores_is_mended_by_what_each_lacks(past: Past) -> None:
    past.put_back(past.late)
    past.damage("catalog", behind)
    past.damage("lineage", missing)
    found, replayed = asyncio.run(started(past.home))
    assert found == past.found
    assert (replayed["catalog_rows"], replayed["lineage_blocks"]) == (LATER, past.blocks)
    _, again = asyncio.run(started(past.home))
    assert (again["catalog_rows"], again["lineage_blocks"]) == (0, 0)


def test_whoever_asks_during_a_rebuild_is_told_how_far_it_is_and_never_a_wrong_answer(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "FLUSH_MEMORIES", 1)  # as many stops on the way as there are memories
    past.put_back(past.late)
    past.damage("catalog", missing)
    answers: list[dict[str, Any]] = []

    async def ask(ended: asyncio.Event) -> None:
        async with past.world.raw("writer") as raw:
            while not ended.is_set():
                answers.append(await past.world.request(raw, "writer", "query", {"type": "query", "text": "heron"}))

    async def scenario() -> None:
        ended = asyncio.Event()
        asking: list[asyncio.Task[None]] = []

        async def begin(shard: Shard, nc: Client) -> None:
            await listen(shard, nc)
            asking.append(asyncio.create_task(ask(ended)))
            while not answers:  # noqa: ASYNC110 - it has begun to ask
                await asyncio.sleep(0.001)

        async with opened(Paths(past.home.path), servers(past.home.url), listen=begin):
            ended.set()
            await asyncio.gather(*asking)

    asyncio.run(scenario())
    assert {(a["error"], a["reason"]) for a in answers} == {("unavailable", "starting")}
    assert all(a["retry_after_s"] > 0 for a in answers)
    progress = [(a["detail"]["done"], a["detail"]["of"]) for a in answers]
    assert progress == sorted(progress)
    assert any(0 < done < of for done, of in progress)
