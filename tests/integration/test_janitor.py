"""The janitor's work on blocks, against a real server: no block is ever lost, its hash stays, and no byte is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client

from gate.janitor import Janitor, Part
from gate.ledger import erased
from gate.ledger.block import Block, body_hash, decode
from gate.ledger.chain import Heads
from gate.ledger.committer import Committer
from gate.ledger.errors import LedgerCorrupt, LedgerGap
from gate.ledger.events import SALT_BYTES
from gate.ledger.jetstream import Unanswered, secure_delete, stored
from gate.ledger.replay import read_blocks
from tests.integration.ledger_server import LedgerServer, add_stream, connected

LEDGER, A, B = "LEDGER_0", "TENANTA", "TENANTB"
BLOCKS = 6


def event(text: str) -> tuple[bytes, bytes]:
    import msgspec

    body = bytes(SALT_BYTES) + text.encode()
    return msgspec.msgpack.encode({"e": "x", "body": body_hash(body)}), body


@asynccontextmanager
async def ledger(folder: Path) -> AsyncIterator[tuple[Client, Janitor, list[Block]]]:
    """Six blocks of two tenants with two events each: `text of A 3` is tenant A's event 3, in block 2."""
    with LedgerServer(folder) as server:
        async with connected(server.url) as nc:
            await add_stream(nc)
            await add_stream(nc, "ERASED_0", "erased.0.*", max_msgs_per_subject=1)
            committer, heads, blocks = Committer(nc, LEDGER, "ledger.0.block", 0), Heads(), []
            for n in range(BLOCKS):
                events = {t: [event(f"text of {t} {seq}.") for seq in (2 * n + 1, 2 * n + 2)] for t in (A, B)}
                block, data = heads.build(shard=0, epoch=1, ms=1, reads_seq=0, events=events)
                await committer.append(data)
                heads.commit(block)
                blocks.append(block)
            yield nc, Janitor(nc, "K"), blocks


async def replayed(nc: Client) -> list[Block]:
    heads, out = Heads(), []
    async with aclosing(read_blocks(nc, LEDGER, missing=erased.instead(nc, 0))) as blocks:
        async for no, data in blocks:
            block = decode(data, no)
            heads.commit(block)
            out.append(block)
    return out


def on_disk(folder: Path, tenant: str, seq: int) -> bool:
    text = f"text of {tenant} {seq}.".encode()
    return any(text in path.read_bytes() for path in (folder / "js").rglob("*") if path.is_file())


def bodies(block: Block) -> dict[tuple[str, int], bool]:
    return {(s.tenant, seq): body is not None for s in block.sections for seq, (_, body) in enumerate(s.events, s.seq)}


@pytest.mark.parametrize("block", [1, 3, BLOCKS])
def test_a_stripped_block_lacks_exactly_the_named_bodies_and_the_chain_is_whole(tmp_path: Path, block: int) -> None:
    """The first block, one in the middle, and the last, on which the writer's fence stands."""

    async def scenario() -> None:
        async with ledger(tmp_path) as (nc, janitor, blocks):
            gone = 2 * block - 1
            assert on_disk(tmp_path, A, gone)
            await janitor.strip(Part(block, {A: [gone]}))
            assert not on_disk(tmp_path, A, gone)
            assert on_disk(tmp_path, B, gone)
            assert await stored(nc, LEDGER, block) is None
            again = await replayed(nc)
            assert [b.hash for b in again] == [b.hash for b in blocks]
            assert bodies(again[block - 1]) == {(t, s): (t, s) != (A, gone) for t in (A, B) for s in (gone, gone + 1)}
            committer = Committer(nc, LEDGER, "ledger.0.block", BLOCKS)
            await committer.confirm()
            assert await committer.append(b"the next") == BLOCKS + 1

    asyncio.run(scenario())


def test_stripping_more_of_a_block_replaces_its_copy_and_overwrites_the_old_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (nc, janitor, blocks):
            only: dict[str, list[int]] = {A: [3]}
            for tenant, seq in ((A, 3), (B, 3), (A, 4), (B, 4)):
                assert on_disk(tmp_path, tenant, seq)
                only.setdefault(tenant, [])
                only[tenant] = sorted({*only[tenant], seq})
                await janitor.strip(Part(2, only))
                assert not on_disk(tmp_path, tenant, seq)
                assert len(await erased.copies(nc, 0, 2)) == 1
            assert [b.hash for b in await replayed(nc)] == [b.hash for b in blocks]

    asyncio.run(scenario())


def test_doing_it_again_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (nc, janitor, _):
            await janitor.strip(Part(2, {A: [3, 4], B: [3]}))
            first = await erased.copies(nc, 0, 2)
            await janitor.strip(Part(2, {A: [3, 4], B: [3]}))
            await janitor.strip(Part(2, {A: [3]}))  # an old order, which came late
            assert await erased.copies(nc, 0, 2) == first

    asyncio.run(scenario())


def test_a_block_without_a_copy_is_a_gap_and_one_with_a_copy_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (nc, janitor, _):
            await janitor.strip(Part(2, {A: [3]}))
            await janitor.strip(Part(3, {A: [5]}))
            assert len(await replayed(nc)) == BLOCKS
            await secure_delete(nc, LEDGER, 5)
            with pytest.raises(LedgerGap) as gap:
                await replayed(nc)
            assert (gap.value.seq, gap.value.upto) == (5, 5)
            with pytest.raises(LedgerCorrupt):
                await janitor.strip(Part(5, {A: [9]}))

    asyncio.run(scenario())


def test_where_a_copy_can_t_be_stored_the_original_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (nc, janitor, _):
            config = (await nc.jetstream().stream_info("ERASED_0")).config
            config.max_bytes = 64
            await nc.jetstream().update_stream(config)
            with pytest.raises(Unanswered, match="maximum bytes"):
                await janitor.strip(Part(2, {A: [3]}))
            assert await stored(nc, LEDGER, 2) is not None
            assert on_disk(tmp_path, A, 3)
            config.max_bytes = -1
            await nc.jetstream().update_stream(config)
            await janitor.strip(Part(2, {A: [3]}))
            assert not on_disk(tmp_path, A, 3)

    asyncio.run(scenario())


def test_a_copy_of_another_block_under_its_name_is_no_reason_to_delete(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with ledger(tmp_path) as (nc, janitor, _):
            foreign = await stored(nc, LEDGER, 4)
            assert foreign is not None
            await nc.jetstream().publish("erased.0.2", foreign)
            await nc.jetstream().publish("erased.0.2-b", foreign)
            await janitor.strip(Part(2, {A: [3]}))
            assert [decode(c.data).header.no for c in await erased.copies(nc, 0, 2)] == [2]
            assert len(await replayed(nc)) == BLOCKS

    asyncio.run(scenario())
