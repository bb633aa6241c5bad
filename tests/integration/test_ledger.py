"""The ledger on a real JetStream that syncs every message: append, fence, unknown outcomes, replay, order of two streams."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client

from bus.errors import Closed
from gate.ledger.block import Block, ReadsBlock, Record, decode, decode_reads
from gate.ledger.chain import Head, Heads, ReadsHead
from gate.ledger.committer import Committer
from gate.ledger.errors import LedgerCorrupt, LedgerFull, LedgerGap, LedgerRefused, LedgerWentBack, SteppedDown, TooLarge
from gate.ledger.replay import BATCH_BYTES, merge, read_blocks, stream_state, verify_position
from tests.integration.ledger_server import LedgerServer, Relay, add_stream, connected, until
from tests.unit.test_block import event

LEDGER, SUBJECT = "LEDGER_0", "ledger.0.block"
READS, READS_SUBJECT = "READS_0", "reads.0.block"


@asynccontextmanager
async def ledger(folder: Path, *, max_bytes: int = -1) -> AsyncIterator[tuple[LedgerServer, Client, Committer]]:
    with LedgerServer(folder) as server:
        async with connected(server.url) as nc:
            await add_stream(nc, max_bytes=max_bytes)
            yield server, nc, Committer(nc, LEDGER, SUBJECT, 0)


def next_block(heads: Heads, events: int = 4, tenants: int = 2, *, reads_seq: int = 0, size: int = 200) -> tuple[Block, bytes]:
    sections = {f"TENANT{t}": [event(t * 1000 + i, os.urandom(size)) for i in range(events)] for t in range(tenants)}
    return heads.build(shard=0, epoch=1, ms=1, reads_seq=reads_seq, events=sections)


async def fill(committer: Committer, heads: Heads, blocks: int, **kwargs: int) -> list[bytes]:
    written = []
    for _ in range(blocks):
        block, data = next_block(heads, **kwargs)
        assert await committer.append(data) == block.header.no
        heads.commit(block)
        written.append(data)
    return written


async def fill_up(committer: Committer, heads: Heads, written: list[bytes], *, size: int) -> None:
    while True:
        written += await fill(committer, heads, 1, size=size)


async def replayed(nc: Client, start: int = 1, end: int | None = None) -> list[bytes]:
    async with aclosing(read_blocks(nc, LEDGER, start, end)) as blocks:
        return [data async for _, data in blocks]


async def consumers(nc: Client, stream: str = LEDGER) -> int:
    return (await nc.jetstream().stream_info(stream)).state.consumer_count


# --- round trip -----------------------------------------------------------------------------------
def test_thousands_of_events_come_back_as_they_were_appended_and_chain(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, committer):
            heads = Heads()
            began = time.perf_counter()
            written = await fill(committer, heads, 40, events=64, tenants=4)
            appended = time.perf_counter()
            again, events = Heads(), 0
            async with aclosing(read_blocks(nc, LEDGER)) as blocks:
                async for seq, data in blocks:
                    assert data == written[seq - 1]
                    block = decode(data, seq)
                    again.commit(block)
                    events += sum(len(s.events) for s in block.sections)
            done = time.perf_counter()
            assert events == 40 * 64 * 4
            assert (again.block, again.tenants) == (heads.block, heads.tenants)
            assert await consumers(nc) == 0
            print(f"\nappend {events / (appended - began):,.0f} events/s, replay {events / (done - appended):,.0f} events/s")

    asyncio.run(scenario())


def test_a_replay_over_several_pulls_is_complete_and_bounded_by_the_end_it_saw(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, committer):
            js = nc.jetstream()
            for at in range(0, 2_500, 250):
                await asyncio.gather(*[js.publish(SUBJECT, b"%d" % n) for n in range(at, at + 250)])
            began, seen = time.perf_counter(), 0
            async with aclosing(read_blocks(nc, LEDGER)) as blocks:
                async for seq, _ in blocks:
                    assert seq == seen + 1
                    seen = seq
                    if seq == 10:
                        await js.publish(SUBJECT, b"later")
            assert seen == 2_500
            print(f"\nreplay {seen / (time.perf_counter() - began):,.0f} messages/s")
            assert len(await replayed(nc, 2_491)) == 11
            assert len(await replayed(nc, 5, 7)) == 3
            assert await replayed(nc, 2_502) == []
            assert committer.last_seq == 0

    asyncio.run(scenario())


def test_a_slow_replay_of_large_blocks_holds_two_batches_at_most(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, _committer):
            js, data = nc.jetstream(), os.urandom(256 << 10)
            for _ in range(120):
                await js.publish(SUBJECT, data)
            before, read, most = nc.stats["in_bytes"], 0, 0
            async with aclosing(read_blocks(nc, LEDGER)) as blocks:
                async for _, block in blocks:
                    await nc.flush()  # a round trip: whatever was asked for has time to arrive
                    most = max(most, nc.stats["in_bytes"] - before - read)
                    read += len(block)
            assert read == 120 * len(data)
            assert len(data) < most < 2 * BATCH_BYTES + len(data) < read

    asyncio.run(scenario())


def test_stream_state_tells_ends_size_and_identity(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path, max_bytes=1 << 20) as (_, nc, committer):
            await fill(committer, Heads(), 3)
            state = await stream_state(nc, LEDGER)
            assert (state.first, state.last, state.messages, state.identity) == (1, 3, 3, "home-1")
            assert 0 < state.bytes < state.max_bytes == 1 << 20
            assert state.created
            with pytest.raises(LedgerWentBack, match="LEDGER_9"):
                await stream_state(nc, "LEDGER_9")

    asyncio.run(scenario())


# --- one writer -----------------------------------------------------------------------------------
def test_a_second_writer_is_fenced_and_a_single_one_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (server, nc, committer):
            heads = Heads()
            await fill(committer, heads, 3)
            async with connected(server.url) as other_nc:
                other, stale = Committer(other_nc, LEDGER, SUBJECT, 3), Committer(other_nc, LEDGER, SUBJECT, 3)
                block, data = next_block(heads)
                assert await other.append(data) == 4
                mine, mine_bytes = next_block(heads)
                before = (heads.block, dict(heads.tenants))
                with pytest.raises(SteppedDown, match="Sequence 4"):
                    await committer.append(mine_bytes)
                assert (heads.block, heads.tenants) == before
                with pytest.raises(SteppedDown):
                    await stale.confirm()
                await other.confirm()
                assert other.healthy
            assert mine != block
            assert (await stream_state(nc, LEDGER)).last == 4

    asyncio.run(scenario())


def test_the_same_bytes_at_the_same_place_are_one_append(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, committer):
            data = next_block(Heads())[1]
            twin = Committer(nc, LEDGER, SUBJECT, 0)
            assert await committer.append(data) == 1
            assert await twin.append(data) == 1
            assert (await stream_state(nc, LEDGER)).messages == 1

    asyncio.run(scenario())


def test_a_block_over_the_brokers_payload_is_refused_and_the_connection_lives(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, committer):
            with pytest.raises(TooLarge, match="1048500 bytes"):
                await committer.append(bytes(1_048_500))
            assert await committer.append(bytes(1_048_000)) == 1
            assert nc.stats["reconnects"] == 0

    asyncio.run(scenario())


# --- unknown outcomes -----------------------------------------------------------------------------
def test_a_killed_server_stores_every_block_exactly_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (server, nc, committer):
            heads, written = Heads(), list[bytes]()

            async def writer() -> None:
                while len(written) < 400:
                    written.extend(await fill(committer, heads, 1))

            writing = asyncio.ensure_future(writer())
            for kill_at in (30, 90, 150, 210):

                async def reached(n: int = kill_at) -> bool:
                    return len(written) >= n

                await until(reached)
                server.kill()
                server.start()
            await asyncio.wait_for(writing, 60)
            assert await replayed(nc) == written
            print(f"\n{committer.retries} retries over 4 kills")
            assert committer.retries > 0

    asyncio.run(scenario())


def test_a_lost_acknowledgement_is_found_again_not_written_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (server, direct, _), Relay(server.port) as relay, connected(relay.url) as nc:
            committer, heads = Committer(nc, LEDGER, SUBJECT, 0), Heads()
            first = await fill(committer, heads, 1)
            relay.swallow = True
            appending = asyncio.ensure_future(fill(committer, heads, 1))

            async def landed() -> bool:
                return (await stream_state(direct, LEDGER)).last == 2

            await until(landed)
            assert not appending.done()
            relay.swallow = False
            relay.cut()
            assert await replayed(direct) == first + await asyncio.wait_for(appending, 20)
            assert committer.retries > 0
            await fill(committer, heads, 1)
            assert (await stream_state(direct, LEDGER)).messages == 3

    asyncio.run(scenario())


def test_a_writer_without_answers_is_unhealthy_until_one_comes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (server, nc, _):
            now = [100.0]
            committer = Committer(nc, LEDGER, SUBJECT, 0, lease_s=5, clock=lambda: now[0])
            heads = Heads()
            await fill(committer, heads, 1)
            now[0] += 60
            assert committer.healthy  # idle owes nothing
            server.kill()
            appending = asyncio.ensure_future(fill(committer, heads, 1))

            async def tried() -> bool:
                return committer.retries > 2

            await until(tried)
            assert committer.healthy
            now[0] += 5
            assert not committer.healthy
            server.start()
            await asyncio.wait_for(appending, 20)
            assert committer.healthy
            assert (await stream_state(nc, LEDGER)).messages == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("before", [0, 3], ids=["an empty stream", "a stream that holds blocks"])
def test_a_broker_whose_file_can_t_grow_is_stuck_until_it_is_started_again_and_nothing_is_doubled(
    tmp_path: Path, before: int
) -> None:
    """RLIMIT_FSIZE of the server: as on a full disk a write fails, and the stream takes nothing more."""

    async def scenario() -> None:
        async with ledger(tmp_path) as (server, nc, committer):
            heads = Heads()
            committer = Committer(nc, LEDGER, SUBJECT, 0, ack_timeout_s=0.3, lease_s=0.5)
            written = await fill(committer, heads, before)
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
            appending = asyncio.create_task(fill(committer, heads, 1))
            async with asyncio.timeout(20):
                while not committer.stuck:  # noqa: ASYNC110 - another task
                    await asyncio.sleep(0.05)
            assert not committer.healthy
            assert not appending.done()
            server.kill()
            server.start()
            written += await asyncio.wait_for(appending, 20)
            assert not committer.stuck
            assert await replayed(nc) == written

    asyncio.run(scenario())


def test_confirm_notices_a_broker_that_went_away_while_nothing_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (server, nc, _):
            now = [0.0]
            committer = Committer(nc, LEDGER, SUBJECT, 0, lease_s=5, clock=lambda: now[0])
            await committer.confirm()
            server.kill()
            await committer.confirm()
            now[0] += 5
            assert not committer.healthy
            server.start()

            async def well() -> bool:
                await committer.confirm()
                return committer.healthy

            await until(well)

    asyncio.run(scenario())


def test_a_closed_connection_ends_an_append_instead_of_hanging(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (server, nc, _):
            async with connected(server.url) as other:
                committer = Committer(other, LEDGER, SUBJECT, 0)
                assert await committer.append(b"one") == 1
            with pytest.raises(Closed):
                await committer.append(b"two")
            assert (await stream_state(nc, LEDGER)).last == 1

    asyncio.run(scenario())


# --- full, missing, truncated -----------------------------------------------------------------------
def test_a_full_ledger_refuses_stays_readable_and_goes_on_when_enlarged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path, max_bytes=64 << 10) as (_, nc, committer):
            heads, written = Heads(), list[bytes]()
            with pytest.raises(LedgerFull, match="maximum bytes"):
                await fill_up(committer, heads, written, size=2_000)
            before = heads.block
            assert committer.healthy
            assert await replayed(nc) == written
            js = nc.jetstream()
            config = (await js.stream_info(LEDGER)).config
            config.max_bytes = 1 << 20
            await js.update_stream(config)
            written += await fill(committer, heads, 1, size=2_000)
            assert heads.block.seq == before.seq + 1
            assert await replayed(nc) == written

    asyncio.run(scenario())


def test_a_server_without_room_refuses_as_full_and_stays_readable(tmp_path: Path) -> None:
    async def scenario() -> None:
        with LedgerServer(tmp_path, max_file_store=256 << 10) as server:
            async with connected(server.url) as nc:
                await add_stream(nc)
                committer, heads, written = Committer(nc, LEDGER, SUBJECT, 0), Heads(), list[bytes]()
                with pytest.raises(LedgerFull, match="resource"):
                    await fill_up(committer, heads, written, size=8_000)
                assert len(written) > 1
                assert await replayed(nc) == written

    asyncio.run(scenario())


def test_a_message_limit_refuses_as_full(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, _):
            await nc.jetstream().add_stream(name="READS_0", subjects=[READS_SUBJECT], max_msgs=1, discard="new")
            committer = Committer(nc, READS, READS_SUBJECT, 0)
            assert await committer.append(b"one") == 1
            with pytest.raises(LedgerFull, match="maximum messages"):
                await committer.append(b"two")

    asyncio.run(scenario())


def test_an_append_that_the_stream_never_takes_is_refused_after_some_tries(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, _):
            js = nc.jetstream()
            await js.add_stream(name="READS_0", subjects=[READS_SUBJECT])
            config = (await js.stream_info("READS_0")).config
            config.sealed = True
            await js.update_stream(config)
            committer = Committer(nc, READS, READS_SUBJECT, 0)
            with pytest.raises(LedgerRefused, match="sealed") as refused:
                await committer.append(bytes(50))
            assert (type(refused.value), committer.retries > 1) == (LedgerRefused, True)

    asyncio.run(scenario())


def test_a_block_that_is_too_large_for_the_stream_is_refused_at_once_and_costs_no_smaller_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, _):
            await nc.jetstream().add_stream(name="READS_0", subjects=[READS_SUBJECT], max_msg_size=100)
            committer = Committer(nc, READS, READS_SUBJECT, 0)
            with pytest.raises(TooLarge, match="10054"):
                await committer.append(bytes(200))
            assert committer.retries == 0
            assert await committer.append(bytes(50)) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("missing", [[1], [5], [9, 10, 11], [20], [19, 20], list(range(1, 21))], ids=str)
def test_a_gap_stops_the_replay_at_its_place(tmp_path: Path, missing: list[int]) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, committer):
            await fill(committer, Heads(), 20)
            for seq in missing:
                await nc.jetstream().delete_msg(LEDGER, seq)
            seen = list[int]()

            async def read() -> None:
                async with aclosing(read_blocks(nc, LEDGER)) as blocks:
                    async for seq, _ in blocks:
                        seen.append(seq)

            with pytest.raises(LedgerGap) as caught:
                await read()
            assert seen == list(range(1, missing[0]))
            assert (caught.value.seq, caught.value.upto) == (missing[0], missing[-1])
            assert len(await replayed(nc, caught.value.upto + 1)) == 20 - missing[-1]
            assert await consumers(nc) == 0

    asyncio.run(scenario())


def test_a_truncated_stream_went_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, committer):
            heads = Heads()
            await fill(committer, heads, 5)
            assert len(await replayed(nc, 6)) == 0
            js = nc.jetstream()
            await js.delete_stream(LEDGER)
            with pytest.raises(LedgerWentBack, match="doesn't exist"):
                await replayed(nc)
            await add_stream(nc)
            await fill(Committer(nc, LEDGER, SUBJECT, 0), Heads(), 3)
            with pytest.raises(LedgerWentBack, match="ends at sequence 3; 5 was seen"):
                await replayed(nc, 6)
            with pytest.raises(LedgerWentBack):
                await replayed(nc, 1, 5)
            with pytest.raises(LedgerWentBack, match="5 was acknowledged"):
                await committer.append(next_block(heads)[1])
            with pytest.raises(LedgerWentBack):
                await committer.confirm()

    asyncio.run(scenario())


def test_a_missing_stream_stops_the_writer_once_the_lease_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, _):
            committer = Committer(nc, LEDGER, SUBJECT, 0, lease_s=0.3)
            await nc.jetstream().delete_stream(LEDGER)
            with pytest.raises(LedgerWentBack, match="doesn't exist"):
                await asyncio.wait_for(committer.append(b"lost"), 20)

    asyncio.run(scenario())


def test_a_reissued_tail_is_told_by_the_hash_at_the_position(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, committer):
            heads = Heads()
            await fill(committer, heads, 3)
            await verify_position(nc, LEDGER, *heads.block)
            await nc.jetstream().delete_stream(LEDGER)
            await add_stream(nc)
            await fill(Committer(nc, LEDGER, SUBJECT, 0), Heads(), 4)
            with pytest.raises(LedgerWentBack, match="isn't the one"):
                await verify_position(nc, LEDGER, *heads.block)
            resumed = Heads(heads.block, heads.tenants)
            with pytest.raises(LedgerWentBack, match="doesn't continue"):
                resumed.verify_block(decode((await replayed(nc, 4))[0], 4))

    asyncio.run(scenario())


# --- interrupted replays ------------------------------------------------------------------------------
def test_a_replay_survives_a_killed_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (server, nc, committer):
            written = await fill(committer, Heads(), 60, size=20_000)
            seen = []
            async with aclosing(read_blocks(nc, LEDGER)) as blocks:
                async for seq, data in blocks:
                    seen.append(data)
                    if seq == 3:
                        server.kill()
                        server.start()
            assert seen == written
            assert await consumers(nc) == 0

    asyncio.run(scenario())


def test_a_replay_left_early_or_failed_leaves_no_consumer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (_, nc, committer):
            await fill(committer, Heads(), 5)
            async with aclosing(read_blocks(nc, LEDGER)) as blocks:
                async for seq, _ in blocks:
                    assert await consumers(nc) == 1
                    if seq == 2:
                        break
            assert await consumers(nc) == 0

            async def interrupted() -> None:
                async with aclosing(read_blocks(nc, LEDGER)) as blocks:
                    async for _ in blocks:
                        await asyncio.Event().wait()

            task = asyncio.ensure_future(interrupted())

            async def reading() -> bool:
                return await consumers(nc) == 1

            await until(reading)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await consumers(nc) == 0

    asyncio.run(scenario())


# --- two streams, one order -----------------------------------------------------------------------------
class Streams:
    """LEDGER and READS of one shard, written in turns as a gatekeeper does."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.heads, self.reads_head = Heads(), ReadsHead()
        self.ledger, self.reads = Committer(nc, LEDGER, SUBJECT, 0), Committer(nc, READS, READS_SUBJECT, 0)
        self.order: list[tuple[str, int]] = []

    async def write(self, kinds: str) -> None:
        for kind in kinds:
            if kind == "L":
                block, data = next_block(self.heads, 1, 1, reads_seq=self.reads.last_seq)
                self.order.append(("L", await self.ledger.append(data)))
                self.heads.commit(block)
            else:
                records = [Record("TENANT0", b"record %d" % self.reads.last_seq)]
                read, data = self.reads_head.build(shard=0, epoch=1, ms=1, ledger_seq=self.ledger.last_seq, records=records)
                self.order.append(("R", await self.reads.append(data)))
                self.reads_head.commit(read)

    async def merged(self, ledger_from: int = 1, reads_from: int = 1, *, reads_end: int | None = None) -> list[tuple[str, int]]:
        ledger, reads = read_blocks(self.nc, LEDGER, ledger_from), read_blocks(self.nc, READS, reads_from, reads_end)
        async with aclosing(merge(ledger, reads, ledger_applied=ledger_from - 1, reads_applied=reads_from - 1)) as blocks:
            return [("R" if isinstance(b, ReadsBlock) else "L", b.header.no) async for b in blocks]


@asynccontextmanager
async def two_streams(folder: Path) -> AsyncIterator[Streams]:
    async with ledger(folder) as (_, nc, _):
        await add_stream(nc, READS, READS_SUBJECT)
        yield Streams(nc)


def test_both_streams_replay_in_the_order_they_were_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_streams(tmp_path) as s:
            await s.write("LLRLRRRLLLRRLLLLR")
            assert await s.merged() == s.order
            assert await s.merged(5, 3) == [x for x in s.order if x >= ("R", 3) or ("L", 5) <= x < ("R", 0)]
            assert await consumers(s.nc) == await consumers(s.nc, READS) == 0

    asyncio.run(scenario())


def test_reads_pruned_at_the_front_replay_from_what_is_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_streams(tmp_path) as s:
            await s.write("RLRRLRLLR")
            await s.nc.jetstream().purge_stream(READS, seq=3)
            first = (await stream_state(s.nc, READS)).first
            assert first == 3
            assert await s.merged(1, first) == [x for x in s.order if x not in [("R", 1), ("R", 2)]]
            head = ReadsHead()
            async with aclosing(read_blocks(s.nc, READS, first)) as blocks:
                async for seq, data in blocks:
                    head.commit(decode_reads(data, seq))
            assert head.block == s.reads_head.block
            await s.nc.jetstream().purge_stream(READS)
            assert await s.merged(1, (await stream_state(s.nc, READS)).first) == [x for x in s.order if x[0] == "L"]

    asyncio.run(scenario())


def test_lost_reads_are_told_by_the_ledger(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_streams(tmp_path) as s:
            await s.write("RRL")
            assert await s.merged() == s.order
            with pytest.raises(LedgerWentBack, match="READS ends at block 1"):
                await s.merged(reads_end=1)
            assert await consumers(s.nc) == await consumers(s.nc, READS) == 0

    asyncio.run(scenario())


def test_blocks_that_wait_for_each_other_are_corrupt(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_streams(tmp_path) as s:
            await s.ledger.append(s.heads.build(shard=0, epoch=1, ms=1, reads_seq=1, events={"T": [event(1)]})[1])
            await s.reads.append(s.reads_head.build(shard=0, epoch=1, ms=1, ledger_seq=1, records=[])[1])
            with pytest.raises(LedgerCorrupt, match="each say to come after"):
                await s.merged()

    asyncio.run(scenario())


def test_swapped_blocks_are_told_by_their_numbers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_streams(tmp_path) as s:
            one, one_bytes = next_block(s.heads)
            s.heads.commit(one)
            await s.ledger.append(next_block(s.heads)[1])
            await s.ledger.append(one_bytes)
            with pytest.raises(LedgerCorrupt, match="says that it is block 2"):
                await s.merged()
            assert Head(1, one.hash) == s.heads.block

    asyncio.run(scenario())
