"""The simulation's broker is held to nats-server: the same little scenes on both, asked as the gate asks, must tell the same.

What is compared is what a gatekeeper can see: codes, sequences, states, order. Not the words of an error, not bytes on disk.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest
from nats import errors as nats_errors
from nats.aio.client import Client

from broker_config.streams import stream_configs
from gate.ledger import jetstream as js
from gate.ledger.committer import Committer
from gate.ledger.jetstream import Unanswered
from tests.integration.ledger_server import LedgerServer, Relay, connected, until

from .broker import Broker, Connection, Message
from .run import STREAMS

LEDGER, BLOCK, LEASE = "LEDGER_0", "ledger.0.block", "owner.0.lease"
ROOM: Final = 1 << 20
Said = list[Any]


@dataclass
class Side:
    """One of the two. `nc`: a gatekeeper's connection; `enlarge`: max_bytes of the ledger; `send`: a client's request."""

    nc: Any
    other: Any
    enlarge: Callable[[int], Awaitable[None]]
    send: Callable[[Message], Awaitable[None]]
    listen: Callable[[str, list[bytes]], Awaitable[None]]
    cut: Callable[[], Awaitable[None]]
    back: Callable[[], Awaitable[None]]


class _Process:
    def kill_soon(self) -> None:
        raise AssertionError("nothing dies here")


@asynccontextmanager
async def simulated() -> AsyncIterator[Side]:
    broker = Broker(STREAMS, random.Random(1), 0.001)
    nc, other = Connection(broker, _Process()), Connection(broker, _Process())

    async def enlarge(size: int) -> None:
        broker.streams[LEDGER].max_bytes = size

    inboxes: dict[str, list[bytes]] = {}

    async def send(message: Message) -> None:
        if not broker.request(message):
            inboxes[message.reply].append(b"")  # no responders

    async def listen(subject: str, into: list[bytes]) -> None:
        inboxes[subject] = into
        broker.listen(subject, lambda data, wire: into.append(data))

    async def cut() -> None:
        nc.cut(0.2)

    async def back() -> None:
        await until(lambda: _is(nc.is_connected))

    yield Side(nc, other, enlarge, send, listen, cut, back)


@asynccontextmanager
async def real(server: LedgerServer) -> AsyncIterator[Side]:
    async with Relay(server.port) as relay, connected(relay.url) as nc, connected(server.url) as other:
        api = other.jetstream()
        for config in stream_configs(0, shared=True):
            await api.add_stream(config.evolve(max_bytes=ROOM))

        async def enlarge(size: int) -> None:
            await api.update_stream((await api.stream_info(LEDGER)).config.evolve(max_bytes=size))

        async def send(message: Message) -> None:
            await other.publish(message.subject, message.data, message.reply, headers=message.headers)

        async def listen(subject: str, into: list[bytes]) -> None:
            async def put(message: Any) -> None:
                into.append(message.data)

            await other.subscribe(subject, cb=put)
            await other.flush()

        async def cut() -> None:
            relay.hold()
            relay.cut()
            await until(lambda: _is(not nc.is_connected))

        async def back() -> None:
            relay.flow()
            await until(lambda: _is(nc.is_connected))

        try:
            yield Side(nc, other, enlarge, send, listen, cut, back)
        finally:
            for config in stream_configs(0, shared=True):
                await api.delete_stream(config.name or "")


async def _is(truth: bool) -> bool:
    return truth


# --- what a scene asks ------------------------------------------------------------------------------
async def append(side: Side, data: bytes = b"x", subject: str = BLOCK, **expect: int) -> Said:
    """`last`, `last_of`: the sequence expected of the stream, of the subject."""
    names = {"last": "Nats-Expected-Last-Sequence", "last_of": "Nats-Expected-Last-Subject-Sequence"}
    headers = {names[k]: str(v) for k, v in expect.items()} or None
    ack = json.loads(await js.request(side.nc, subject, data, headers=headers))
    error = ack.get("error")
    return [error["code"], error["err_code"]] if error else [ack["stream"], ack["seq"]]


async def state(side: Side, stream: str = LEDGER) -> Said:
    s = await js.stream_state(side.nc, stream)
    return [s.first, s.last, s.messages, s.replicas]


async def api(side: Side, verb: str, **ask: Any) -> Said:
    """The code of an API's error, or nothing."""
    error = json.loads(await js.request(side.nc, f"$JS.API.{verb}", json.dumps(ask).encode())).get("error")
    return [error["code"], error["err_code"]] if error else []


async def pulled(side: Side, name: str, batch: int) -> Said:
    """(sequence, subject, data, how many wait behind it) of what one pull brings, and how it ends."""
    found: Said = []

    async def put(message: Any) -> None:
        if message.data:
            parts = message.reply.split(".")
            found.append([int(parts[5]), message.subject, message.data, int(parts[-1])])
        else:
            found.append((message.headers["Status"], message.headers["Description"]))

    inbox = side.nc.new_inbox()
    await side.nc.subscribe(inbox, cb=put)
    await js.pull(side.nc, LEDGER, name, inbox, messages=batch, max_bytes=1 << 20, expires_s=0.3)
    await until(lambda: _is(tuple in map(type, found)))
    return found


# --- the scenes -------------------------------------------------------------------------------------
async def an_expectation_is_a_fence(side: Side) -> Said:
    said = [await state(side), await append(side, last=0), await append(side, last=0), await append(side, last=1)]
    said += [await append(side, last=7), await append(side), await append(side, last=3), await state(side)]
    return said


async def an_expectation_of_a_subject_is_one(side: Side) -> Said:
    said: Said = [await append(side, b"one", LEASE, last_of=0), await append(side, b"one", LEASE, last_of=0)]
    said += [await append(side, b"two", LEASE, last_of=1), await append(side, b"other", "owner.0.registry", last_of=0)]
    said += [await append(side, b"three", LEASE, last_of=3), await append(side, b"three", LEASE, last_of=2)]
    for subject in (LEASE, "owner.0.registry", "owner.0.none"):
        said.append(await js.last_of(side.nc, "OWNER_0", subject))
    return [*said, await state(side, "OWNER_0"), [await js.stored(side.nc, "OWNER_0", seq) for seq in range(1, 6)]]


async def what_is_deleted_stays_a_gap(side: Side) -> Said:
    said: Said = [await append(side, b"%d" % n) for n in range(5)]
    await js.secure_delete(side.nc, LEDGER, 3)
    said += [[await js.stored(side.nc, LEDGER, seq) for seq in range(1, 7)], await state(side)]
    said += [await api(side, f"STREAM.MSG.GET.{LEDGER}", seq=3), await api(side, f"STREAM.MSG.GET.{LEDGER}", seq=9)]
    await js.secure_delete(side.nc, LEDGER, 3)  # gone already: no harm
    await js.secure_delete(side.nc, LEDGER, 5)
    said += [await state(side), await append(side, last=5)]
    for seq in (1, 2, 4, 6):
        await js.secure_delete(side.nc, LEDGER, seq)
    return [*said, await state(side), await append(side, last=6), await state(side)]


async def a_pull_brings_what_is_there_in_order(side: Side) -> Said:
    for n in range(6):
        await append(side, b"%d" % n)
    await js.secure_delete(side.nc, LEDGER, 4)
    said: Said = [await js.create_consumer(side.nc, LEDGER, "some", 2, idle_s=30)]
    said += [await pulled(side, "some", 2), await pulled(side, "some", 10)]
    said += [await js.create_consumer(side.nc, LEDGER, "late", 7, idle_s=30)]
    await append(side, b"young")
    said += [await pulled(side, "late", 10), await pulled(side, "some", 10)]
    await js.delete_consumer(side.nc, LEDGER, "some")
    return said


async def a_full_stream_refuses_and_keeps_what_it_has(side: Side) -> Said:
    await side.enlarge(4_096)
    said: Said = [await append(side, bytes(3_000), last=0), await append(side, bytes(3_000), last=1), await state(side)]
    said += [await append(side, b"small", last=1)]
    await side.enlarge(ROOM)
    return [*said, await append(side, bytes(3_000), last=2), await state(side)]


async def whoever_is_not_there_is_told(side: Side) -> Said:
    said: Said = []
    for subject in ("nobody.hears.this", "$JS.API.STREAM.INFO.OTHER_0"):
        try:
            said.append(json.loads((await side.nc.request(subject, b"", timeout=2)).data)["error"]["err_code"])
        except nats_errors.Error as e:
            said.append(type(e).__name__)
    with suppress(Unanswered, js.StreamMissing):
        said.append(await js.stored(side.nc, "OTHER_0", 1))
    return said


async def a_request_reaches_all_that_subscribe_and_its_answer_the_inbox(side: Side) -> Said:
    heard: Said = []
    answers: list[bytes] = []

    def hearing(who: str, nc: Any) -> Callable[[Any], Awaitable[None]]:
        async def put(m: Any) -> None:
            heard.append([who, m.subject, m.data, (m.headers or {}).get("Nats-Request-Info"), m.reply])
            if nc is not None:
                await nc.publish(m.reply, b"answer to " + m.data)

        return put

    await side.listen("_INBOX.UA.1", answers)
    await side.nc.subscribe("in.0.>", cb=hearing("first", side.nc))
    await side.other.subscribe("in.0.*.p1.>", cb=hearing("second", None))
    await side.nc.flush()
    await side.other.flush()
    for subject in ("in.0.A.p1.write.UA", "in.0.A.p11.write.UA", "in.0", "in.01.A.p1.write.UA"):
        await side.send(Message(subject, "_INBOX.UA.1", subject.encode(), {"Nats-Request-Info": "{}"}))
    await until(lambda: _is(len(answers) == 4 and len(heard) == 3))
    return [sorted(heard), sorted(answers)]


async def what_is_published_on_a_line_that_is_down_leaves_when_it_is_up(side: Side) -> Said:
    said = [await append(side, b"before", last=0)]
    await side.cut()
    for n in (1, 2):
        await side.nc.publish(BLOCK, b"%d" % n, headers={"Nats-Expected-Last-Sequence": str(n)})
    with pytest.raises(Unanswered):
        await js.request(side.nc, BLOCK, b"a question")
    await side.back()

    async def there() -> bool:
        with suppress(Unanswered):
            return bool((await state(side))[1] >= 3)
        return False

    await until(there)
    return [*said, [await js.stored(side.nc, LEDGER, seq) for seq in (1, 2, 3)], side.nc.stats["reconnects"]]


SCENES = [
    an_expectation_is_a_fence, an_expectation_of_a_subject_is_one, what_is_deleted_stays_a_gap,
    a_pull_brings_what_is_there_in_order, a_full_stream_refuses_and_keeps_what_it_has, whoever_is_not_there_is_told,
    a_request_reaches_all_that_subscribe_and_its_answer_the_inbox,
    what_is_published_on_a_line_that_is_down_leaves_when_it_is_up,
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerServer]:
    folder: Path = tmp_path_factory.mktemp("contract")
    with LedgerServer(folder) as server:
        yield server


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_simulation_s_broker_does_what_nats_server_does(
    server: LedgerServer, scene: Callable[[Side], Awaitable[Said]]
) -> None:
    async def scenario() -> tuple[Said, Said]:
        async with real(server) as side:
            truly = await scene(side)
        async with simulated() as side:
            return truly, await scene(side)

    truly, simulated_ = asyncio.run(scenario())
    assert truly
    assert simulated_ == truly


def test_a_broker_that_for_ever_refuses_what_it_doesn_t_store_is_stuck_and_one_that_comes_round_stores_it_once() -> None:
    async def scenario() -> None:
        broker = Broker(STREAMS, random.Random(1), 0.001)
        nc, stream = cast(Client, Connection(broker, _Process())), broker.streams[LEDGER]
        committer = Committer(nc, LEDGER, BLOCK, 0, ack_timeout_s=0.3, lease_s=0.5)
        stream.proposed = 1  # and nobody ever decides on it
        appending = asyncio.create_task(committer.append(b"a block"))
        await until(lambda: _is(committer.stuck))
        assert not appending.done()
        stream.proposed = 0
        assert await asyncio.wait_for(appending, 20) == 1
        assert not committer.stuck
        assert [kept.data for kept in stream.messages.values()] == [b"a block"]

    asyncio.run(scenario())
