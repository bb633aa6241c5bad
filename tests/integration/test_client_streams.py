"""Feed and notices against a real broker: what is dropped, what is never lost silently, what comes once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

import bus
from bus import limits, subjects
from bus.frames import Feed, Frame, Notice, encode
from bus.identity import keypair, parse_creds
from bus.streams import FrameStream
from bus.transport import NatsTransport, open_nats

from .rim import Broker, broker, creds, feed_subject, gatekeeper, receipt, until

USER = keypair("user")
CREDS = creds("project:p1", "project:p2", "see:public", "see:internal", user=USER)
NOTICES = subjects.notice("acme", USER.public)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def fed(position: int, project: str = "p1", kind: Literal["memory", "held"] = "memory") -> Feed:
    return Feed(project=project, classification="internal", kind=kind, ids=[f"mem_{position}"], position=position)


def notice(name: str, agent: str = USER.public) -> Notice:
    return Notice(notice=name, kind="recall", agent=agent, case="case_1", ids=["mem_1"], total=1, position=1)


async def take(stream: FrameStream[Any], count: int) -> list[Any]:
    taken = []
    with anyio.fail_after(20):
        async for frame in stream:
            taken.append(frame)
            if len(taken) == count:
                break
    return taken


def test_a_subscription_that_is_cancelled_while_it_begins_leaves_the_connection_whole(
    server: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        transport = await open_nats(server.url, parse_creds(CREDS))
        assert isinstance(transport, NatsTransport)
        async with gatekeeper(server.url):
            for _ in range(10):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(transport.subscribe, [NOTICES], 8)
                    with anyio.fail_after(20):
                        while not transport._nc._pongs:
                            await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
                again = await transport.subscribe([NOTICES], 8)  # needs a PONG
                await again.aclose()
        await transport.aclose()

    asyncio.run(scenario())
    assert [r.getMessage() for r in caplog.records if r.name.startswith("nats")] == []


# --- feed -------------------------------------------------------------------------------------------
def test_the_feed_brings_ids_and_positions_of_its_project_in_order(server: Broker) -> None:
    async def scenario() -> None:
        async with gatekeeper(server.url) as rim, bus.connect(server.url, CREDS) as memory, memory.feed(project="p1") as frames:
            for position in range(1, 6):
                await rim.push(fed(position), feed_subject())
            assert [f.position for f in await take(frames, 5)] == [1, 2, 3, 4, 5]
            assert frames.position == 5

    asyncio.run(scenario())


def test_a_feed_drops_what_is_no_feed_frame_of_its_project(server: Broker) -> None:
    async def scenario() -> None:
        async with gatekeeper(server.url) as rim, bus.connect(server.url, CREDS, project="p1") as memory, memory.feed() as frames:
            strangers: list[Frame] = [receipt(bus.Draft(content="a")), fed(1, project="p2"), notice("n-1")]
            for frame in strangers:
                await rim.push(frame, feed_subject())
            await rim.client.publish(feed_subject(), b"{")
            await rim.push(fed(2), feed_subject())
            assert (await take(frames, 1))[0].ids == ["mem_2"]

    asyncio.run(scenario())


def test_a_feed_can_be_narrowed_to_kinds_and_classifications(server: Broker) -> None:
    async def scenario() -> None:
        async with (
            gatekeeper(server.url) as rim,
            bus.connect(server.url, CREDS, project="p1") as memory,
            memory.feed(kinds=["held"], classifications=["internal"]) as frames,
        ):
            await rim.push(fed(1), feed_subject(kind="memory"))
            await rim.push(fed(2), feed_subject(kind="held", classification="public"))
            await rim.push(fed(3, kind="held"), feed_subject(kind="held"))
            assert (await take(frames, 1))[0].position == 3

    asyncio.run(scenario())


def test_a_feed_outside_the_credential_is_denied_before_listening(server: Broker) -> None:
    async def scenario() -> None:
        async with bus.connect(server.url, CREDS, project="p1") as memory:
            with pytest.raises(bus.Denied, match="public, internal"):
                memory.feed(classifications=["restricted"])
            with pytest.raises(bus.Denied):
                memory.feed(project="p9")
            with pytest.raises(bus.Rejected, match="memory, held"):
                memory.feed(kinds=["memories"])  # type: ignore[list-item]
            memory.feed(classifications=["public"], kinds=["erased"])

    asyncio.run(scenario())


def test_a_slow_reader_gets_all_frames_before_the_loss_then_the_gap_then_goes_on(server: Broker) -> None:
    most = limits.FEED_QUEUE_FRAMES

    async def scenario() -> None:
        async with (
            gatekeeper(server.url) as rim,
            bus.connect(server.url, CREDS, project="p1") as memory,
            memory.feed() as frames,
            memory.feed(kinds=["held"]) as marker,
        ):
            for position in range(1, most + 11):
                await rim.client.publish(feed_subject(), encode(fed(position)))
            await rim.push(fed(0, kind="held"), feed_subject(kind="held"))
            await take(marker, 1)
            # The marker came last over the same connection, so everything before it is in the queue, or lost.
            seen = await take(frames, most)
            assert [f.position for f in seen] == list(range(1, most + 1))
            with pytest.raises(bus.Unavailable, match=f"gap after position {most}: 11 frames") as gap:
                await take(frames, 1)
            assert gap.value.reason == "feed_gap"
            await rim.push(fed(most + 11), feed_subject())
            assert (await take(frames, 1))[0].position == most + 11

    asyncio.run(scenario())


def test_a_reconnect_is_a_gap_in_the_feed(tmp_path: Path) -> None:
    async def scenario(mortal: Broker) -> None:
        async with (
            gatekeeper(mortal.url) as rim,
            bus.connect(mortal.url, CREDS, project="p1") as memory,
            memory.feed() as frames,
        ):
            await rim.push(fed(1), feed_subject())
            assert len(await take(frames, 1)) == 1
            mortal.kill()
            mortal.start()
            with pytest.raises(bus.Unavailable, match="gap after position 1: the connection was down") as gap:
                await take(frames, 1)
            assert gap.value.reason == "feed_gap"
            await until(lambda: rim.client.is_connected)
            await rim.push(fed(2), feed_subject())
            assert (await take(frames, 1))[0].position == 2

    with broker(tmp_path) as mortal:
        asyncio.run(scenario(mortal))


# --- notices ----------------------------------------------------------------------------------------
def test_notices_bring_the_open_ones_first_and_each_once(server: Broker) -> None:
    async def scenario() -> None:
        async with gatekeeper(server.url) as rim, bus.connect(server.url, CREDS) as memory:
            rim.open_notices = [notice("n-1"), notice("n-2")]
            async with memory.notices() as notices:
                assert [n.notice for n in await take(notices, 2)] == ["n-1", "n-2"]
                for name in ("n-2", "n-3", "n-3", "n-4"):
                    await rim.push(notice(name), NOTICES)
                assert [n.notice for n in await take(notices, 2)] == ["n-3", "n-4"]

    asyncio.run(scenario())


def test_notices_drop_what_is_for_somebody_else_or_no_notice(server: Broker) -> None:
    async def scenario() -> None:
        async with gatekeeper(server.url) as rim, bus.connect(server.url, CREDS) as memory, memory.notices() as notices:
            await rim.push(notice("n-1", agent=keypair("user").public), NOTICES)
            await rim.push(receipt(bus.Draft(content="a")), NOTICES)
            await rim.push(fed(1), NOTICES)
            await rim.push(notice("n-2"), NOTICES)
            assert (await take(notices, 1))[0].notice == "n-2"

    asyncio.run(scenario())


def test_an_acknowledged_notice_is_open_no_more(server: Broker) -> None:
    async def scenario() -> None:
        async with gatekeeper(server.url) as rim, bus.connect(server.url, CREDS) as memory:
            rim.open_notices = [notice("n-1"), notice("n-2"), notice("n-3")]
            assert [n.notice for n in (await memory.ack(notice("n-1"))).notices] == ["n-2", "n-3"]
            assert [n.notice for n in (await memory.ack(["n-2", notice("n-3")])).notices] == []
            assert [n.notice for n in (await memory.sync()).notices] == []
            assert [a.notices for a in rim.requests("ack")] == [["n-1"], ["n-2", "n-3"]]

    asyncio.run(scenario())


def test_notices_missed_while_disconnected_come_after_the_reconnect(tmp_path: Path) -> None:
    async def scenario(mortal: Broker) -> None:
        async with gatekeeper(mortal.url) as rim, bus.connect(mortal.url, CREDS) as memory:
            rim.open_notices = [notice("n-1")]
            async with memory.notices() as notices:
                assert (await take(notices, 1))[0].notice == "n-1"
                mortal.kill()
                rim.open_notices = [notice("n-1"), notice("n-2")]
                mortal.start()
                assert (await take(notices, 1))[0].notice == "n-2"
                assert len(rim.requests("sync")) == 2

    with broker(tmp_path) as mortal:
        asyncio.run(scenario(mortal))


def test_notices_lost_by_a_slow_reader_come_by_sync(server: Broker) -> None:
    most = limits.NOTICE_QUEUE_FRAMES

    async def scenario() -> None:
        async with (
            gatekeeper(server.url) as rim,
            bus.connect(server.url, CREDS) as memory,
            memory.notices() as notices,
        ):
            await rim.push(notice("first"), NOTICES)
            await take(notices, 1)
            names = [f"n-{i}" for i in range(most + 50)]
            for name in names:
                await rim.push(notice(name), NOTICES)
            rim.open_notices = [notice(name) for name in names]
            assert [n.notice for n in await take(notices, len(names))] == names
            assert len(rim.requests("sync")) == 2

    asyncio.run(scenario())
