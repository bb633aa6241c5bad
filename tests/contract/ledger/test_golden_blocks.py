"""The ledger's bytes are what is committed here, and the hashes are WIRE's formulas, computed a second time by hand."""

from __future__ import annotations

from hashlib import sha256
from typing import get_args

import msgspec
import pytest

from gate.ledger import events as E
from gate.ledger.block import decode, decode_reads, unpack_members
from gate.ledger.chain import Heads
from tests.contract.ledger import golden_values as G

NAMES = sorted(G.golden())


def u32(n: int) -> bytes:
    return n.to_bytes(4, "big")


def framed(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes behind the length at `at`, and where they end."""
    size = int.from_bytes(data[at : at + 4], "big")
    return data[at + 4 : at + 4 + size], at + 4 + size


@pytest.mark.parametrize("name", NAMES)
def test_these_bytes_never_change(name: str) -> None:
    path = G.FOLDER / f"{name}.hex"
    assert path.exists(), f"{path.name} is new: write it with `python -m tests.contract.ledger.golden_values`, and commit it"
    assert G.golden()[name] == G.read(name)


def test_no_golden_file_is_left_over() -> None:
    assert sorted(path.stem for path in G.FOLDER.glob("*.hex")) == NAMES


def test_every_event_and_record_has_golden_bytes() -> None:
    assert {type(e) for e in G.EVENTS.values()} == set(get_args(E.AnyEvent))
    assert {type(r) for r in G.RECORDS.values()} == set(get_args(E.AnyRecord))


@pytest.mark.parametrize("name", sorted(G.EVENTS))
def test_a_stored_event_reads_as_it_was_written(name: str) -> None:
    assert E.decode_event(G.read(f"event.{name}")) == G.EVENTS[name]


@pytest.mark.parametrize("name", sorted(G.RECORDS))
def test_a_stored_record_reads_as_it_was_written(name: str) -> None:
    assert E.decode_record(G.read(f"record.{name}")) == G.RECORDS[name]


def test_stored_bodies_read_as_they_were_written() -> None:
    assert E.decode_memory_body(G.read("body.memory")) == G.MEMORY_BODY
    assert E.decode_note(G.read("body.note")) == G.NOTE


def test_an_unknown_event_or_record_stops_reading() -> None:
    for decoder in (E.decode_event, E.decode_record):
        with pytest.raises(msgspec.ValidationError):
            decoder(msgspec.msgpack.encode({"e": "memory_dreamt", "r": "dreamt", "v": 1, "ms": 1}))


def test_no_personal_text_stands_outside_a_body() -> None:
    stripped = G.read("block.first.stripped")
    whole = G.read("block.first")
    for text in (G.MEMORY_BODY.content, *G.MEMORY_BODY.evidence, G.MEMORY_BODY.run, G.MEMORY_BODY.task, G.MEMORY_BODY.trace_id):
        assert text.encode() in whole
        assert text.encode() not in stripped


def test_the_stored_chain_is_whole() -> None:
    heads = Heads()
    for no, name in enumerate(["block.first.stripped-one", "block.second"], 1):
        heads.commit(decode(G.read(name), no))
    assert heads.head(G.TENANT_A).seq == 3
    assert heads.head(G.TENANT_B).seq == 2


def test_a_block_is_framed_and_hashed_as_wire_says() -> None:
    data = G.read("block.first")
    assert data[:4] == b"CLB1"
    header, at = framed(data, 4)
    sections = []
    for _ in range(msgspec.msgpack.decode(header)["sections"]):
        head, at = framed(data, at)
        hashed = b"cordon.section.1" + u32(len(head)) + head
        for _ in range(msgspec.msgpack.decode(head)["n"]):
            meta, at = framed(data, at)
            hashed += u32(len(meta)) + meta
            if data[at : at + 4] == b"\xff\xff\xff\xff":
                at += 4
            else:
                body, at = framed(data, at)
                assert msgspec.msgpack.decode(meta)["body"] == sha256(b"cordon.body.1" + u32(len(body)) + body).digest()
        sections.append(sha256(hashed).digest())
    assert at == len(data)
    block = decode(data)
    assert [s.hash for s in block.sections] == sections
    assert block.hash == sha256(b"cordon.block.1" + u32(len(header)) + header + b"".join(sections)).digest()
    assert block.hash == G.read("hash.block.first") == decode(G.read("block.first.stripped")).hash


def test_a_header_and_a_head_have_the_keys_that_wire_says() -> None:
    header, at = framed(G.read("block.second"), 4)
    assert list(msgspec.msgpack.decode(header)) == ["v", "shard", "no", "epoch", "ms", "reads_seq", "prev_block", "sections"]
    assert list(msgspec.msgpack.decode(framed(G.read("block.second"), at)[0])) == ["t", "seq", "n", "prev"]
    header, _ = framed(G.read("reads"), 4)
    assert list(msgspec.msgpack.decode(header)) == ["v", "shard", "no", "epoch", "ms", "ledger_seq", "prev_block", "records"]


def test_a_reads_block_is_framed_and_hashed_as_its_module_says() -> None:
    data = G.read("reads")
    assert data[:4] == b"CRB1"
    header, at = framed(data, 4)
    records, hashed = [], b"cordon.reads.1" + u32(len(header)) + header
    while at < len(data):
        tenant, at = framed(data, at)
        record, at = framed(data, at)
        records.append((tenant.decode(), record))
        hashed += u32(len(tenant)) + tenant + u32(len(record)) + record
    block = decode_reads(data, 5)
    assert [(r.tenant, r.data) for r in block.records] == records
    assert block.hash == sha256(hashed).digest() == G.read("hash.reads")


def test_members_are_delta_encoded_and_digested_as_wire_says() -> None:
    members = [3, 7, 300, 70_000]
    assert unpack_members([G.DELTAS]).tolist() == members
    assert bytes([3, 4, 0xA5, 0x02]) == G.DELTAS[:4]
    raw = b"".join(m.to_bytes(4, "little") for m in members)
    assert G.read("hash.members") == sha256(b"cordon.case.1" + u32(len(raw)) + raw).digest()
