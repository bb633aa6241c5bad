"""Quotas of a real home: a replay counts what is kept, cordon.toml sets the limits. And a key that is used from two hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.aio.client import Client

import bus
from broker_config.control import Control
from broker_config.home import write_private
from gate.housekeeping import SHARE_EVERY_S

from .stored import core_client
from .world import World, running

ELSEWHERE = "127.0.0.2"  # another address of this machine: another host, as far as the broker sees


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as made:
        yield made


def test_bytes_are_counted_again_by_a_replay_and_bound_writes_not_reads_and_holds(world: World) -> None:
    async def scenario() -> None:
        await world.add("keeper")
        await world.add("calm")
        async with Control(world.home) as control, world.agent("keeper") as keeper:
            kept = [await keeper.write(f"Note {i} of the keeper on the northern store", evidence=["u"]) for i in range(5)]
            before = await control.agent_show("acme", "keeper")
            assert before["bytes"] > 5 * 500
            [tenant] = await control.tenant_list()
            assert tenant["bytes"] > before["bytes"]
            assert tenant["quotas"]["tenant_bytes"] == 4 << 30
        config = world.home.config.read_text()
        write_private(world.home.config, f"{config}\n[quotas]\nagent_bytes = {before['bytes']}\n")
        await world.restart_gatekeeper()
        async with Control(world.home) as control, world.agent("keeper") as keeper, world.desk() as desk:
            assert (await control.agent_show("acme", "keeper"))["bytes"] == before["bytes"]
            with pytest.raises(bus.WriteRejected) as refused:
                await keeper.write("One more note", evidence=["u"])
            assert (refused.value.reason, refused.value.field, refused.value.limit) == ("quota_full", "bytes", before["bytes"])
            assert len((await keeper.query("northern store", k=5)).ids) == 5
            async with world.agent("calm") as calm:
                assert (await calm.write("A note of another", evidence=["u"])).state == "active"
            case = await desk.hold_now(kept[0].id, "a test")
            assert case.count >= 1
        write_private(world.home.config, config)
        await world.restart_gatekeeper()
        async with world.agent("keeper") as keeper:
            assert (await keeper.write("One more note", evidence=["u"])).state == "active"

    asyncio.run(scenario())


# --- the record of reads ----------------------------------------------------------------------------------
async def asked(world: World, name: str, times: int = 1) -> str:
    """What the last of several questions came to: `recall`, or why it was refused."""
    answer = {}
    async with world.raw(name) as nc:
        for _ in range(times):
            answer = await world.request(nc, name, "query", {"type": "query", "text": "what is on record?"})
    return str(answer.get("reason") or answer["type"])


async def comes_to(world: World, name: str, wanted: str) -> None:
    """Within the time in which the gatekeeper looks at its streams, twice."""
    deadline = time.monotonic() + 2 * SHARE_EVERY_S
    while (got := await asked(world, name)) != wanted:
        assert time.monotonic() < deadline, f"{got}, not {wanted}"
        await asyncio.sleep(0.25)


@pytest.mark.slow
def test_who_fills_the_record_of_reads_is_refused_before_it_is_full_for_all() -> None:
    async def scenario(world: World) -> None:
        await world.add("reader")
        await world.add("modest")
        config = world.home.config.read_text()
        write_private(world.home.config, f"{config}\n[quotas]\nagent_reads = 20_000\n")
        await world.restart_gatekeeper()
        assert (await asked(world, "modest"), await asked(world, "reader", 500)) == ("recall", "recall")
        async with core_client(world.home, "admin") as nc:
            js = nc.jetstream()
            info = await js.stream_info("READS_0")
            was = info.config.max_bytes or -1
            assert await asked(world, "reader") == "recall", "alone it may have most of it"
            await js.update_stream(info.config.evolve(max_bytes=int(info.state.bytes / 0.85)))
            await comes_to(world, "reader", "quota_full")
            assert await asked(world, "modest", 3) == "recall"
            await world.restart_gatekeeper()
            await comes_to(world, "reader", "quota_full")
            assert await asked(world, "modest", 3) == "recall"
            async with Control(world.home) as control:
                [trouble] = (await control.status())["troubles"]
            assert trouble.startswith("READS is ")
            await js.update_stream(info.config.evolve(max_bytes=was))
            await comes_to(world, "reader", "recall")

    with running() as own:  # which is killed more often than one that others use may be
        asyncio.run(scenario(own))


# --- keys that are shared ---------------------------------------------------------------------------------
@asynccontextmanager
async def relay(world: World) -> AsyncIterator[str]:
    """An address whose connections reach the broker from ELSEWHERE."""
    port = world.home.settings().port
    writers: list[asyncio.StreamWriter] = []

    async def carry(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            to.write(data)
        to.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, local_addr=(ELSEWHERE, 0))
        writers.extend((writer, back))
        await asyncio.gather(carry(reader, back), carry(there, writer), return_exceptions=True)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def connected(world: World, url: str, name: str) -> Client:
    return await nats.connect(
        url,
        user_credentials=world.creds(name),
        inbox_prefix=f"_INBOX.{world.agents[name].key}".encode(),
        allow_reconnect=False,
    )


def test_a_key_in_use_on_two_hosts_at_once_is_shown_to_the_operator_also_after_a_restart(world: World) -> None:
    async def scenario() -> None:
        for name in ("copied", "moved"):
            await world.add(name)
        async with relay(world) as elsewhere:
            here, there = await connected(world, world.home.url, "copied"), await connected(world, elsewhere, "copied")
            for nc in (here, there, here):
                assert (await world.request(nc, "copied", "sync", {"type": "sync"}))["type"] == "synced"
            moved = await connected(world, world.home.url, "moved")  # one after the other: an agent that moves
            assert (await world.request(moved, "moved", "sync", {"type": "sync"}))["type"] == "synced"
            await moved.close()
            moved = await connected(world, elsewhere, "moved")
            assert (await world.request(moved, "moved", "sync", {"type": "sync"}))["type"] == "synced"
            async with Control(world.home) as control:
                [found] = (await control.agent_show("acme", "copied"))["shared"]
                assert (found["key"], found["hosts"]) == (world.agents["copied"].key, ["127.0.0.1", ELSEWHERE])
                assert (await control.agent_show("acme", "moved"))["shared"] == []
                assert (await control.status())["keys_shared"] == 1
            # An answered question: its READS block has the audit's record too, or comes after it.
            asked = await world.request(here, "copied", "query", {"type": "query", "text": "anything"})
            assert asked["type"] == "recall"
            for nc in (here, there, moved):
                await nc.close()
        await world.restart_gatekeeper()
        async with Control(world.home) as control:
            [again] = (await control.agent_show("acme", "copied"))["shared"]
            assert (again["key"], again["last_at"], again["hosts"]) == (found["key"], found["last_at"], [])

    asyncio.run(scenario())
