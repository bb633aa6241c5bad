"""What was planted is found and named: in the ledger's bytes, in the stores' files, in the live state. What is whole is green."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from nats.aio.client import Client

from broker_config import supervisor
from bus.frames import AdmVerify
from gate.ledger.block import ZERO_HASH, Section, decode, encode, make_section
from gate.ledger.replay import read_blocks
from gate.paths import Paths
from gate.shard import Shard
from gate.verifying.run import Asked, Verification

from .ledger_server import LedgerServer, connected
from .scenes import broker_alone, in_process
from .stored import core_client
from .test_recovery import live_a_little
from .world import World, running

LEDGER, READS = ("LEDGER_0", "ledger.0.block"), ("READS_0", "reads.0.block")
OTHER = "beta"
ALL = Asked()


@dataclass
class Whole:
    """A home that is down, what its streams hold, and a plain server on which a test plants another ledger."""

    world: World
    ledger: list[bytes]
    reads: list[bytes]
    identities: dict[str, str]
    server: LedgerServer
    shard: Path  # its projections as they were

    @property
    def account(self) -> str:
        return self._account("acme")

    def _account(self, name: str) -> str:
        from broker_config.trust import Trust

        return Trust(self.world.home, lambda: 0.0).tenant(name).account

    @property
    def other(self) -> str:
        return self._account(OTHER)

    def verify(self, ledger: list[bytes] | None = None, reads: list[bytes] | None = None, asked: Asked = ALL) -> list[str]:
        """The findings, with these blocks in the streams (None: what was there)."""

        async def scenario() -> list[str]:
            async with connected(self.server.url) as nc:
                for (name, subject), blocks in ((LEDGER, ledger), (READS, reads)):
                    there = self.ledger if name == "LEDGER_0" else self.reads
                    await _planted(nc, name, subject, there if blocks is None else blocks, self.identities[name])
                result = await Verification(nc, Paths(self.world.home.path), asked, None, lambda *_: None).run()
            assert result["ok"] is not bool(result["findings"])
            return list(result["findings"])

        return asyncio.run(scenario())

    @contextmanager
    def edited(self, edit: Callable[[Path], None], file: str) -> Iterator[None]:
        """One of the projections changed, and as it was afterwards."""
        (path,) = self.world.home.shard(0).glob(file)
        before = path.read_bytes()
        edit(path)
        yield
        path.write_bytes(before)


async def _planted(nc: Client, name: str, subject: str, blocks: list[bytes], identity: str) -> None:
    js = nc.jetstream()
    if any(s.config.name == name for s in await js.streams_info()):
        await js.delete_stream(name)
    await js.add_stream(name=name, subjects=[subject], metadata={"cordon": identity})
    for data in blocks:
        await js.publish(subject, data)


@pytest.fixture(scope="module")
def whole() -> Iterator[Whole]:
    with running() as world:
        asyncio.run(_two_tenants(world))
        supervisor.stop(world.home)
        with broker_alone(world.home):
            ledger, reads, identities = asyncio.run(_streams(world))
        folder = Path(tempfile.mkdtemp(prefix="cordon-verify-"))
        try:
            with LedgerServer(folder) as server:
                shutil.copytree(world.home.shard(0), folder / "shard")
                yield Whole(world, ledger, reads, identities, server, folder / "shard")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


async def _two_tenants(world: World) -> None:
    from broker_config.control import Control

    await live_a_little(world)
    async with Control(world.home) as control:
        await control.tenant_add(OTHER)
        await control.project_add(OTHER, "p1")
    await world.add("beta-writer", "p1", tenant=OTHER)
    async with world.agent("beta-writer", tenant=OTHER) as beta, world.agent("writer") as writer:
        for i in range(4):
            await beta.write(f"Beta fact {i}")
            await writer.write(f"Acme fact {i}")
            await writer.query(f"Acme fact {i}")


async def _streams(world: World) -> tuple[list[bytes], list[bytes], dict[str, str]]:
    async with core_client(world.home) as nc, core_client(world.home, "admin") as admin:
        js = admin.jetstream()
        identities = {name: ((await js.stream_info(name)).config.metadata or {})["cordon"] for name in ("LEDGER_0", "READS_0")}
        return (
            [data async for _, data in read_blocks(nc, "LEDGER_0")],
            [d async for _, d in read_blocks(nc, "READS_0")],
            identities,
        )


def _with_memories(whole: Whole, account: str) -> list[tuple[int, Section]]:
    """(index of the block, section) of a tenant's sections that hold a memory."""
    found = []
    for i, data in enumerate(whole.ledger):
        for section in decode(data).sections:
            if section.tenant == account and any(body and b"memory_written" in meta for meta, body in section.events):
                found.append((i, section))
    return found


# --- whole --------------------------------------------------------------------------------------------
def test_a_whole_home_has_no_findings_whichever_part_is_asked_for(whole: Whole) -> None:
    assert whole.verify() == []
    assert whole.verify(asked=Asked(tenant=whole.account)) == []
    assert whole.verify(asked=Asked(5, len(whole.ledger) - 3)) == []
    assert whole.verify(asked=Asked(5, 0, whole.other)) == []


# --- the ledger ---------------------------------------------------------------------------------------
def test_a_tail_that_was_cut_off_is_seen_by_every_projection(whole: Whole) -> None:
    found = whole.verify(whole.ledger[:-3])
    assert any(x.startswith("lineage store: it has applied block") for x in found)
    assert any("catalog of tenant" in x and "the ledger ends at" in x for x in found)


def test_a_sequence_that_was_given_out_again_is_named(whole: Whole) -> None:
    """The last block was lost and another one written in its place: its chain is right, what was made of the first isn't it."""
    i, _ = _with_memories(whole, whole.account)[-1]
    found = whole.verify([*whole.ledger[:i], _edited(whole.ledger[i], whole.account, _other_text)])
    assert any("differs from the ledger" in x for x in found)
    assert any("is another than block" in x or "has applied" in x for x in found)


def _other_text(meta: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
    """Another event in the place of this one, right in itself."""
    from gate.ledger.block import body_hash
    from gate.ledger.events import SALT_BYTES, decode_memory, decode_memory_body
    from gate.ledger.events import encode as pack

    assert body is not None
    b = decode_memory_body(body[SALT_BYTES:])
    forged = body[:SALT_BYTES] + pack(msgspec.structs.replace(b, content="Nothing of this was ever said"))
    return pack(msgspec.structs.replace(decode_memory(meta), body=body_hash(forged))), forged


def _edited(data: bytes, account: str, change: Callable[[bytes, bytes | None], tuple[bytes, bytes | None]]) -> bytes:
    """The block with the first memory of `account` changed and every hash in it made right again."""
    block = decode(data)
    sections = []
    for s in block.sections:
        events = list(s.events)
        if s.tenant == account:
            at = next(i for i, (meta, _) in enumerate(events) if b"memory_written" in meta)
            events[at] = change(*events[at])
        sections.append(make_section(s.tenant, s.seq, s.prev, events))
    return encode(block.header, sections)[1]


def _relinked(blocks: list[bytes]) -> list[bytes]:
    """Every chain made right again from the first block to the last, as who holds the gatekeeper's key could."""
    out, prev, heads = [], ZERO_HASH, dict[str, bytes]()
    for data in blocks:
        b = decode(data)
        sections = [make_section(s.tenant, s.seq, heads.get(s.tenant, ZERO_HASH), s.events) for s in b.sections]
        heads |= {s.tenant: s.hash for s in sections}
        made, raw = encode(msgspec.structs.replace(b.header, prev_block=prev), sections)
        prev = made.hash
        out.append(raw)
    return out


def test_a_section_that_was_changed_and_linked_again_differs_from_what_was_made_of_it(whole: Whole) -> None:
    i, section = _with_memories(whole, whole.account)[2]
    forged = [*whole.ledger]
    forged[i] = _edited(forged[i], whole.account, _other_text)
    forged = _relinked(forged)
    found = whole.verify(forged)
    at = next(s for s, (meta, _) in enumerate(section.events, section.seq) if b"memory_written" in meta)
    assert any(f"memory {at} differs from the ledger" in x for x in found)
    assert any(f"catalog of tenant {whole.account}: its event" in x for x in found)
    assert whole.verify(forged, asked=Asked(tenant=whole.other)) == []


def test_a_changed_byte_is_named_with_its_event_and_other_tenants_chains_stand(whole: Whole) -> None:
    i, section = _with_memories(whole, whole.account)[2]
    body = next(body for meta, body in section.events if body and b"memory_written" in meta)
    data = bytearray(whole.ledger[i])
    data[data.index(body) + 60] ^= 1
    at = next(s for s, (meta, _) in enumerate(section.events, section.seq) if b"memory_written" in meta)
    forged = [*whole.ledger[:i], bytes(data), *whole.ledger[i + 1 :]]
    found = whole.verify(forged)
    assert f"LEDGER_0 block {i + 1}: the body of event {at} isn't the one that its meta names (tenant {whole.account})" in found
    assert whole.verify(forged, asked=Asked(tenant=whole.other)) == []

    meta = next(meta for meta, body in section.events if body and b"memory_written" in meta)
    data = bytearray(whole.ledger[i])
    at_byte = data.index(meta) + meta.index(b"trust") + 7  # of its stamped trust
    data[at_byte] ^= 1
    found = whole.verify([*whole.ledger[:i], bytes(data), *whole.ledger[i + 1 :]])
    assert any(f"block {i + 2} doesn't continue block {i + 1}" in x for x in found)
    assert any("doesn't continue the one at event" in x and whole.account in x for x in found)


def test_blocks_that_changed_places_are_named(whole: Whole) -> None:
    forged = [*whole.ledger]
    forged[5], forged[6] = forged[6], forged[5]
    found = whole.verify(forged)
    assert any("block 6: " in x and "it says that it is block 7" in x for x in found)
    assert any("block 7: " in x and "it says that it is block 6" in x for x in found)


def test_a_block_that_was_put_in_is_named(whole: Whole) -> None:
    found = whole.verify([*whole.ledger[:6], whole.ledger[5], *whole.ledger[6:]])
    assert any("block 7: " in x and "it says that it is block 6" in x for x in found)


def test_a_block_that_was_taken_out_of_the_middle_is_named_unless_a_stripped_one_stands_in(whole: Whole) -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        from gate.ledger.block import strip

        async with connected(whole.server.url) as nc:
            for (name, subject), blocks in ((LEDGER, whole.ledger), (READS, whole.reads)):
                await _planted(nc, name, subject, blocks, whole.identities[name])
            await nc.jetstream().delete_msg("LEDGER_0", 4)

            async def erased(seq: int) -> bytes | None:
                return strip(whole.ledger[seq - 1]) if seq == 4 else None

            paths = Paths(whole.world.home.path)
            bare = await Verification(nc, paths, Asked(), None, lambda *_: None).run()
            filled = await Verification(nc, paths, Asked(), None, lambda *_: None, erased).run()
            return bare["findings"], filled["findings"]

    bare, filled = asyncio.run(scenario())
    assert "LEDGER_0: block 4 is missing, and nothing erased stands in for it" in bare
    assert not any("missing" in x and "LEDGER" in x for x in filled)


def test_reads_that_are_missing_in_the_middle_or_changed_are_named(whole: Whole) -> None:
    async def scenario() -> list[str]:
        async with connected(whole.server.url) as nc:
            for (name, subject), blocks in ((LEDGER, whole.ledger), (READS, whole.reads)):
                await _planted(nc, name, subject, blocks, whole.identities[name])
            deleted = await nc.request("$JS.API.STREAM.MSG.DELETE.READS_0", b'{"seq": 3, "no_erase": true}')
            assert b'"success":true' in deleted.data, (deleted.data, len(whole.reads))
            return list((await Verification(nc, Paths(whole.world.home.path), Asked(), None, lambda *_: None).run())["findings"])

    assert any(x.startswith("Block 3 of READS_0 is missing") for x in asyncio.run(scenario()))
    data = bytearray(whole.reads[2])
    data[-1] ^= 1
    found = whole.verify(reads=[*whole.reads[:2], bytes(data), *whole.reads[3:]])
    assert any(x.startswith(("READS_0: block 4 doesn't continue", "READS_0 block 3:")) for x in found)


# --- the stores ---------------------------------------------------------------------------------------
def _sql(*statements: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        if path.suffix == ".sqlite":
            with sqlite3.connect(path) as db:
                for statement in statements:
                    assert db.execute(statement).rowcount == 1
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.close()
            return
        with duckdb.connect(str(path)) as lineage:
            for statement in statements:
                assert lineage.execute(statement).fetchall() == [(1,)]

    return edit


_LAST = "(SELECT max(seq) FROM memory)"


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (f"UPDATE memory SET content = 'x' WHERE seq = {_LAST}", "differs from the ledger (content)"),
        (f"UPDATE memory SET scope_id = 'x' WHERE seq = {_LAST}", "differs from the ledger (scope_id)"),
        (f"DELETE FROM memory WHERE seq = {_LAST}", "is missing"),
        ("DELETE FROM source WHERE rowid IN (SELECT 1)", ""),
        ("UPDATE position SET chain = x'00'", "is another than block"),
        ("UPDATE position SET tenant_seq = tenant_seq + 5", "the ledger ends at"),
        ("UPDATE position SET stream = 'another'", "it follows another"),
        ("UPDATE position SET schema = 99", "version 99"),
    ],
)
def test_an_edited_catalog_is_named_with_the_record(whole: Whole, edit: str, named: str) -> None:
    if not named:  # a table without row numbers: the first citation
        edit, named = "DELETE FROM source WHERE (hash, seq) IN (SELECT hash, seq FROM source LIMIT 1)", "citations differ"
    with whole.edited(_sql(edit), f"tenants/{whole.account}/catalog.sqlite"):
        found = whole.verify()
        assert any(named in x and whole.account in x for x in found), found
        assert whole.verify(asked=Asked(tenant=whole.other)) == []


@pytest.mark.parametrize(
    ("edit", "table"),
    [
        ("UPDATE memory SET trust = 999 WHERE tenant = 0 AND seq = (SELECT max(seq) FROM memory WHERE tenant = 0)", "memory"),
        ("DELETE FROM edge WHERE rowid = (SELECT min(rowid) FROM edge)", "edge"),
        ("INSERT INTO edge SELECT * FROM edge LIMIT 1", "edge"),
        ("DELETE FROM case_member WHERE rowid = (SELECT min(rowid) FROM case_member)", "case_member"),
        ("UPDATE served SET decision = 0, reasons = 7 WHERE rowid = (SELECT min(rowid) FROM served)", "served"),
        ("DELETE FROM recall WHERE rowid = (SELECT max(rowid) FROM recall)", "recall"),
        ("DELETE FROM notice WHERE rowid = (SELECT min(rowid) FROM notice)", "notice"),
        ("UPDATE case_event SET members = 0 WHERE kind = 'released'", "case_event"),
    ],
)
def test_an_edited_lineage_store_is_named_with_the_row(whole: Whole, edit: str, table: str) -> None:
    with whole.edited(_sql(edit), "lineage.duckdb"):
        found = whole.verify()
    assert any(x.startswith(f"lineage store of tenant {whole.account}: {table}: row (") for x in found), found


def test_a_store_that_is_missing_or_damaged_is_named(whole: Whole) -> None:
    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])

    for file in (f"tenants/{whole.account}/catalog.sqlite", "lineage.duckdb"):
        for edit in (cut, Path.unlink):
            with whole.edited(edit, file):
                found = whole.verify()
            assert any("catalog of tenant" in x if "sqlite" in file else x.startswith("lineage store: ") for x in found), found


# --- live state ---------------------------------------------------------------------------------------
def _hold_removed(shard: Shard, account: str) -> str:
    t = shard.tenants[account]
    held = int(t.columns.held.nonzero()[0][0])
    t.columns.held[held] = 0
    return f"held of memory {held} is 0, the ledger says"


def _edge_changed(shard: Shard, account: str) -> str:
    t = shard.tenants[account]
    t.down._links.to[0] += 1
    return "child of edge 0 is"


def _trust_raised(shard: Shard, account: str) -> str:
    t = shard.tenants[account]
    seq = int((t.columns.kind[: t.columns.n] >= 0).nonzero()[0][-1])
    t.columns.trust[seq] = 1000
    return f"trust of memory {seq} is 1000"


def _case_released(shard: Shard, account: str) -> str:
    case = next(c for c in shard.tenants[account].cases.values() if c.state == "open")
    case.state = "released"
    return f"{case.text} is released"


def _context_shed(shard: Shard, account: str) -> str:
    t = shard.tenants[account]
    ctx = next(c for c in t.contexts.values() if c.recalls and c.labels.floor < 1000)
    ctx.labels.floor = 1000
    return f"the context of {t.agents.by_id[ctx.id].name} has better labels"


def _vector_changed(shard: Shard, account: str) -> str:
    index = next(iter(shard.indexes[account].projects.values()))
    import numpy as np

    index.vectors._exact._matrix.zero(np.array([1], np.int32))
    return "vectors of its rows 0 to"


@pytest.mark.slow
def test_a_file_that_the_gatekeeper_did_not_make_is_named(whole: Whole) -> None:
    mine, other = (Paths(whole.world.home.path).catalog(account) for account in (whole.account, whole.other))
    planted = {"vectors/p1.hnsw": b"an index of another project", "catalog.sqlite.1": other.read_bytes(), "two\nlines": b""}
    for name, content in planted.items():
        path = mine.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    try:
        found = whole.verify()
    finally:
        for name in planted:
            (mine.parent / name).unlink()
        (mine.parent / "vectors").rmdir()
    assert sorted(found) == [
        f"catalog of tenant {whole.account}: {name!r} beside it isn't the gatekeeper's; nothing reads it"
        for name in sorted(planted)
    ]
    assert whole.verify() == []


def test_a_live_state_that_differs_is_named_and_one_that_serves_meanwhile_is_not(whole: Whole) -> None:
    world, account = whole.world, whole.account

    async def scenario() -> None:
        async with in_process(world.home) as shard, core_client(world.home) as nc, world.agent("writer") as writer:

            async def ask(**what: Any) -> dict[str, Any]:
                answer = await shard.verifying.answer(AdmVerify(**what))
                return msgspec.json.decode(msgspec.json.encode(answer), type=dict[str, Any])

            async def findings() -> list[str]:
                run = Verification(nc, Paths(world.home.path), Asked(), ask, lambda *_: None)
                return list((await run.run())["findings"])

            assert await findings() == []
            done = asyncio.Event()

            async def busy() -> int:
                n = 0
                while not done.is_set():
                    await writer.write(f"While it is verified, {n}")
                    await writer.query("gulls")
                    n += 1
                return n

            task = asyncio.create_task(busy())
            assert await findings() == []
            done.set()
            assert await task > 0
            for plant in (_hold_removed, _edge_changed, _trust_raised, _case_released, _context_shed, _vector_changed):
                named = plant(shard, account)
                found = await findings()
                assert any(x.startswith(f"live state of tenant {account}: {named}") or named in x for x in found), (named, found)

    with broker_alone(world.home):
        asyncio.run(scenario())
