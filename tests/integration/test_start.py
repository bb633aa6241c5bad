"""While a gatekeeper reads the ledger again it answers nobody wrongly; a store that was found damaged in use is made anew."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator

import pytest
from nats.aio.client import Client

from broker_config import supervisor
from broker_config.control import Control
from bus.errors import ConfigError, Unavailable
from bus.servers import servers
from gate.paths import Paths
from gate.service import listen, opened
from gate.shard import Shard

from .scenes import broker_alone
from .world import World, running


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:
        asyncio.run(_live(world))
        supervisor.stop(world.home)
        yield world


async def _live(world: World) -> None:
    await world.add("writer", "p1")
    async with world.agent("writer") as writer:
        for i in range(3):
            await writer.write(f"A fact, number {i}")


def test_who_asks_during_a_replay_is_told_to_come_again_and_how_far_it_is(world: World) -> None:
    asked: list[str] = []

    async def ask_at_once(shard: Shard, nc: Client) -> None:
        await listen(shard, nc)
        async with world.raw("writer") as raw:
            for verb in ("query", "write"):
                answer = await world.request(raw, "writer", verb, {"type": "query", "text": "fact"})
                assert (answer["error"], answer["reason"]) == ("unavailable", "starting")
                assert answer["detail"] == {"done": 0, "of": 0}
                assert answer["retry_after_s"] > 0
                asked.append(verb)
        async with Control(world.home) as control:
            status = await control.status()
            assert (status["state"], status["replaying"]) == ("starting", "0 of 0 blocks")
            with pytest.raises(Unavailable, match="starting"):
                await control.tenant_list()

    async def scenario() -> None:
        async with opened(Paths(world.home.path), servers(world.home.url), listen=ask_at_once) as (shard, _):
            assert shard.replaying[0] == shard.replaying[1] > 0
            assert sum(t.memories for t in shard.tenants.values()) == 3

    with broker_alone(world.home):
        asyncio.run(scenario())
    assert asked == ["query", "write"]


@pytest.mark.parametrize("doubted", [False, True])
def test_a_lineage_store_that_was_found_damaged_in_use_is_set_aside_at_the_next_start(world: World, doubted: bool) -> None:
    paths = Paths(world.home.path)

    async def scenario() -> int:
        async with opened(paths, servers(world.home.url)) as (shard, _):
            await shard.store_caught_up()
            [t] = shard.tenants.values()
            counts = dict(await shard.lineage.query("counts", {"tenant": shard.tenant_number(t)}))
            return int(counts["memory"])

    with broker_alone(world.home):
        if doubted:
            paths.lineage_doubted.touch()
        assert asyncio.run(scenario()) == 3
    aside = list(world.home.run.glob("aside-*/lineage.duckdb"))
    assert len(aside) == doubted
    assert not paths.lineage_doubted.exists()
    for folder in world.home.run.glob("aside-*"):
        shutil.rmtree(folder)


@pytest.mark.parametrize("left", [b"", b"no registry", b"\xff\xfe", None])
def test_a_registry_that_is_damaged_is_named_with_its_file(world: World, left: bytes | None) -> None:
    registry = Paths(world.home.path).registry
    whole = registry.read_bytes()

    async def start() -> None:
        async with opened(Paths(world.home.path), servers(world.home.url)):
            pass

    with broker_alone(world.home):
        registry.write_bytes(left) if left is not None else registry.unlink()
        try:
            with pytest.raises(ConfigError) as refused:
                asyncio.run(start())
        finally:
            registry.write_bytes(whole)
        assert refused.value.reason == "registry_damaged"
        assert str(registry) in refused.value.message
        asyncio.run(start())


def test_a_damaged_list_of_streams_is_named_with_its_file_and_no_stream_is_made(world: World) -> None:
    known = world.home.streams(0)
    whole = known.read_bytes()

    async def ensure() -> dict[str, str]:
        async with Control(world.home) as control:
            return await control.ensure_streams()

    with broker_alone(world.home):
        ids = asyncio.run(ensure())
        known.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ConfigError) as refused:
            asyncio.run(ensure())
        assert refused.value.reason == "streams_unknown"
        assert str(known) in refused.value.message
        known.unlink()  # as it advises: the streams that are there are taken
        assert asyncio.run(ensure()) == ids
