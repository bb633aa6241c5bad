"""Blocks: what is encoded comes back, whatever is changed is noticed, heads move by commit alone."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.ledger.block import (
    ZERO_HASH,
    Block,
    Header,
    Payload,
    ReadsBlock,
    ReadsHeader,
    Record,
    Section,
    body_hash,
    decode,
    decode_reads,
    encode,
    encode_reads,
    make_section,
    members_digest,
    pack_members,
    strip,
    unpack_members,
)  # fmt: skip
from gate.ledger.chain import Head, Heads, ReadsHead
from gate.ledger.errors import LedgerCorrupt, LedgerWentBack

A, B = "ACCOUNTA", "ACCOUNTB"


def event(n: int, body: bytes | None = None) -> Payload:
    """A meta with its body's hash, as every event with a body has it."""
    meta = {"e": "test", "v": 1, "n": n} if body is None else {"e": "test", "v": 1, "n": n, "body": body_hash(body)}
    return msgspec.msgpack.encode(meta), body


def block_of(heads: Heads, **events: list[Payload]) -> tuple[Block, bytes]:
    return heads.build(shard=0, epoch=1, ms=1_764_000_000_000, reads_seq=7, events=events)


def sample() -> tuple[Block, bytes]:
    return block_of(Heads(), ACCOUNTA=[event(1, b"first"), event(2)], ACCOUNTB=[event(3, b""), event(4, bytes(300))])


payloads = st.builds(event, st.integers(0, 1 << 40), st.none() | st.binary(max_size=80))
contents = st.dictionaries(st.text("ABC234", min_size=1, max_size=8), st.lists(payloads, min_size=1, max_size=4), max_size=4)
records = st.lists(st.builds(Record, st.text("ABC234", min_size=1, max_size=8), st.binary(max_size=60)), max_size=6)


# --- round trip -----------------------------------------------------------------------------------
@given(contents)
def test_a_block_comes_back_as_it_was(events: dict[str, list[Payload]]) -> None:
    block, data = Heads().build(shard=3, epoch=9, ms=5, reads_seq=2, events=events)
    assert decode(data) == decode(data, 1) == block
    assert encode(block.header, block.sections) == (block, data)


@given(records)
def test_a_reads_block_comes_back_as_it_was(given_records: list[Record]) -> None:
    block, data = ReadsHead().build(shard=0, epoch=1, ms=5, ledger_seq=8, records=given_records)
    assert decode_reads(data, 1) == block
    assert encode_reads(block.header, block.records) == (block, data)


def test_a_section_numbers_its_events() -> None:
    section = make_section(A, 5, ZERO_HASH, [event(1), event(2), event(3)])
    assert (section.seq, section.last) == (5, 7)


# --- damage ---------------------------------------------------------------------------------------
def mutations(size: int) -> st.SearchStrategy[tuple[str, int, bytes]]:
    ways = st.sampled_from(["set", "insert", "delete", "cut"])
    return st.tuples(ways, st.integers(0, size - 1), st.binary(min_size=1, max_size=5))


def mutated(data: bytes, how: str, at: int, new: bytes) -> bytes:
    match how:
        case "set":
            return data[:at] + new + data[at + len(new) :]
        case "insert":
            return data[:at] + new + data[at:]
        case "delete":
            return data[:at] + data[at + len(new) :]
        case _:
            return data[:at]


BLOCK, BYTES = sample()
READS_BLOCK, READS_BYTES = ReadsHead().build(
    shard=0, epoch=1, ms=5, ledger_seq=8, records=[Record(A, b"one"), Record(B, b"two"), Record(A, bytes(20))]
)


@given(mutations(len(BYTES)))
def test_any_damage_to_a_block_is_corrupt_or_another_hash(mutation: tuple[str, int, bytes]) -> None:
    damaged = mutated(BYTES, *mutation)
    try:
        block = decode(damaged)
    except LedgerCorrupt:
        return
    assert (block.hash != BLOCK.hash) == (damaged != BYTES)


@given(mutations(len(READS_BYTES)))
def test_any_damage_to_a_reads_block_is_corrupt_or_another_hash(mutation: tuple[str, int, bytes]) -> None:
    damaged = mutated(READS_BYTES, *mutation)
    try:
        block = decode_reads(damaged)
    except LedgerCorrupt:
        return
    assert (block.hash != READS_BLOCK.hash) == (damaged != READS_BYTES)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    for read in (decode, decode_reads):
        for prefix in (b"", b"CLB1", b"CRB1"):
            with pytest.raises(LedgerCorrupt):
                read(prefix + data)


def test_every_single_changed_byte_is_noticed() -> None:
    for at in range(len(BYTES)):
        damaged = mutated(BYTES, "set", at, bytes([BYTES[at] ^ 1]))
        try:
            found = decode(damaged).hash
        except LedgerCorrupt:
            continue
        assert found != BLOCK.hash, at


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begins with"),
        (b"CLB2" + BYTES[4:], "begins with"),
        (BYTES[:-1], "are announced"),
        (BYTES + b"\0", "1 bytes follow its end"),
        (BYTES[:6], "ends within a length"),
        (BYTES[:4] + b"\xff\xff\xff\xff" + BYTES[8:], "4294967295 bytes are announced"),
    ],
)
def test_malformed_framing_says_where(data: bytes, message: str) -> None:
    with pytest.raises(LedgerCorrupt, match=message) as caught:
        decode(data)
    assert caught.value.offset is not None
    assert decode(BYTES) == BLOCK


def header(**changed: object) -> bytes:
    raw = {**msgspec.to_builtins(BLOCK.header, builtin_types=(bytes,)), **changed}
    packed = msgspec.msgpack.encode(raw)
    return b"CLB1" + len(packed).to_bytes(4, "big") + packed + BYTES[8 + len(msgspec.msgpack.encode(BLOCK.header)) :]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"v": 2}, "version 2 is unknown"),
        ({"sections": 3}, "ends within a length"),
        ({"sections": 1}, "follow its end"),
        ({"extra": 1}, "can't be decoded"),
        ({"no": -1}, "can't be decoded"),
        ({"prev_block": b"short"}, "can't be decoded"),
        ({"no": 2}, "says that it is block 2"),
    ],
)
def test_a_header_that_is_not_understood_stops(changed: dict[str, object], message: str) -> None:
    with pytest.raises(LedgerCorrupt, match=message):
        decode(header(**changed), 1)
    assert decode(header(), 1) == BLOCK


def test_a_tenant_with_two_sections_is_corrupt() -> None:
    twice = [make_section(A, 1, ZERO_HASH, [event(1)]), make_section(A, 2, ZERO_HASH, [event(2)])]
    head = Header(shard=0, no=1, epoch=1, ms=1, reads_seq=0, prev_block=ZERO_HASH, sections=2)
    with pytest.raises(LedgerCorrupt, match="two sections"):
        decode(encode(head, twice)[1])
    apart = [twice[0], make_section(B, 1, ZERO_HASH, [event(2)])]
    assert len(decode(encode(head, apart)[1]).sections) == 2


def test_a_reads_record_without_a_proper_tenant_is_corrupt() -> None:
    head = ReadsHeader(shard=0, no=1, epoch=1, ms=1, ledger_seq=0, prev_block=ZERO_HASH, records=1)
    for tenant in ("", "é", "A" * 65):
        with pytest.raises(LedgerCorrupt, match="account key"):
            decode_reads(encode_reads(head, [Record(tenant, b"x")])[1])
    assert decode_reads(encode_reads(head, [Record("A" * 56, b"x")])[1]).records == (Record("A" * 56, b"x"),)


# --- bodies ---------------------------------------------------------------------------------------
def test_a_changed_body_is_corrupt_and_an_erased_one_is_not() -> None:
    with pytest.raises(LedgerCorrupt, match="the body is not the one") as caught:
        decode(BYTES.replace(b"first", b"First"), 1)
    assert caught.value.block == 1
    assert caught.value.offset == BYTES.index(b"first")
    erased = decode(strip(BYTES), 1)
    assert erased.hash == BLOCK.hash
    assert [e[1] for s in erased.sections for e in s.events] == [None] * 4


def test_a_body_that_no_meta_names_is_corrupt() -> None:
    head = Header(shard=0, no=1, epoch=1, ms=1, reads_seq=0, prev_block=ZERO_HASH, sections=1)
    for meta in (event(1)[0], b"\xc1", b"\x81\xa4body\xa5short"):
        with pytest.raises(LedgerCorrupt):
            decode(encode(head, [make_section(A, 1, ZERO_HASH, [(meta, b"stowaway")])])[1])
        decode(encode(head, [make_section(A, 1, ZERO_HASH, [(meta, None)])])[1])


@given(contents, st.data())
def test_stripping_keeps_every_hash_and_all_other_bodies(events: dict[str, list[Payload]], data: st.DataObject) -> None:
    block, raw = Heads().build(shard=0, epoch=1, ms=1, reads_seq=0, events=events)
    places = [(s.tenant, s.seq + i) for s in block.sections for i in range(len(s.events))]
    gone = set(data.draw(st.lists(st.sampled_from(places)))) if places else set[tuple[str, int]]()
    stripped = decode(strip(raw, gone))
    assert (stripped.hash, stripped.header) == (block.hash, block.header)
    assert [s.hash for s in stripped.sections] == [s.hash for s in block.sections]
    for before, after in zip(block.sections, stripped.sections, strict=True):
        for i, (was, now) in enumerate(zip(before.events, after.events, strict=True)):
            assert now == (was[0], None if (before.tenant, before.seq + i) in gone else was[1])
    assert strip(raw, ()) == raw


# --- chains ---------------------------------------------------------------------------------------
def test_building_and_verifying_move_nothing_and_commit_moves_all() -> None:
    heads = Heads()
    block, _ = block_of(heads, ACCOUNTA=[event(1), event(2)], ACCOUNTB=[event(3)])
    heads.verify_block(block)
    assert (heads.block, heads.tenants) == (Head(0, ZERO_HASH), {})
    again, _ = block_of(heads, ACCOUNTA=[event(1), event(2)], ACCOUNTB=[event(3)])
    assert again == block
    heads.commit(block)
    assert heads.block == Head(1, block.hash)
    assert heads.tenants == {A: Head(2, block.sections[0].hash), B: Head(1, block.sections[1].hash)}


def chain(length: int = 4) -> tuple[list[Block], list[bytes], Heads]:
    heads, blocks, raw = Heads(), list[Block](), list[bytes]()
    for n in range(length):
        block, data = block_of(heads, ACCOUNTA=[event(10 * n, b"a%d" % n), event(10 * n + 1)], ACCOUNTB=[event(10 * n + 2, b"b")])
        heads.commit(block)
        blocks.append(block)
        raw.append(data)
    return blocks, raw, heads


def replay(raw: list[bytes], *, numbered: bool = True) -> Heads:
    heads = Heads()
    for no, data in enumerate(raw, 1):
        heads.commit(decode(data, no if numbered else 0))
    return heads


def test_an_untouched_chain_replays_to_the_same_heads() -> None:
    _, raw, heads = chain()
    again = replay(raw)
    assert (again.block, again.tenants) == (heads.block, heads.tenants)


def rebuilt(block: Block, sections: list[Section]) -> bytes:
    return encode(block.header, sections)[1]


def test_a_forged_meta_with_its_hashes_made_to_fit_breaks_the_next_block() -> None:
    blocks, raw, _ = chain()
    honest = blocks[1].sections
    forged = make_section(A, honest[0].seq, honest[0].prev, [event(99, b"forged"), honest[0].events[1]])
    raw[1] = rebuilt(blocks[1], [forged, honest[1]])
    with pytest.raises(LedgerCorrupt, match="block 3"):
        replay(raw)


def test_a_forged_last_block_is_told_from_the_one_that_was_applied() -> None:
    blocks, _, heads = chain()
    forged, _ = Heads(Head(3, blocks[2].hash), {}).build(shard=0, epoch=1, ms=1, reads_seq=0, events={A: [event(99)]})
    assert forged.hash != heads.block.hash
    after, _ = Heads(Head(4, forged.hash), {}).build(shard=0, epoch=1, ms=1, reads_seq=0, events={A: [event(100)]})
    with pytest.raises(LedgerWentBack):
        Heads(heads.block, heads.tenants).verify_block(after)


def test_swapped_missing_and_doubled_blocks_are_noticed() -> None:
    _, raw, _ = chain()
    for order in ([1, 0, 2, 3], [0, 2, 1, 3], [0, 1, 3], [0, 0, 1, 2], [1, 2, 3]):
        with pytest.raises((LedgerCorrupt, LedgerWentBack)):
            replay([raw[at] for at in order])
        with pytest.raises((LedgerCorrupt, LedgerWentBack)):
            replay([raw[at] for at in order], numbered=False)


@pytest.mark.parametrize("seq", [1, 2, 4])
def test_a_section_with_another_number_is_refused_by_name(seq: int) -> None:
    blocks, _, _ = chain(1)
    heads = Heads()
    heads.commit(blocks[0])
    prev = heads.head(A).hash
    with pytest.raises((LedgerCorrupt, LedgerWentBack), match=rf"[Ee]vent {seq} of tenant {A}"):
        heads.verify(make_section(A, seq, prev, [event(1)]))
    heads.verify(make_section(A, 3, prev, [event(1)]))


def test_a_section_relinked_to_an_older_hash_is_refused() -> None:
    blocks, _, _ = chain(2)
    heads = Heads()
    heads.commit(blocks[0])
    heads.commit(blocks[1])
    with pytest.raises(LedgerCorrupt, match="doesn't continue its last one"):
        heads.verify(make_section(A, 5, blocks[0].sections[0].hash, [event(1)]))
    heads.verify(make_section(A, 5, blocks[1].sections[0].hash, [event(1)]))


def test_a_section_moved_to_another_tenant_is_refused() -> None:
    blocks, _, _ = chain(2)
    heads = Heads()
    heads.commit(blocks[0])
    mine = blocks[1].sections[0]
    with pytest.raises(LedgerCorrupt):
        heads.verify(make_section(B, mine.seq, mine.prev, mine.events))
    heads.verify(mine)


def test_a_block_that_fails_moves_no_head_at_all() -> None:
    blocks, _, _ = chain(2)
    heads = Heads()
    heads.commit(blocks[0])
    before = (heads.block, dict(heads.tenants))
    good, bad = blocks[1].sections[0], make_section(B, 9, ZERO_HASH, [event(1)])
    with pytest.raises(LedgerCorrupt):
        heads.commit(decode(rebuilt(blocks[1], [good, bad])))
    assert (heads.block, heads.tenants) == before


def test_reads_may_begin_late_but_not_skip() -> None:
    writer, blocks = ReadsHead(), list[ReadsBlock]()
    for n in range(4):
        block, data = writer.build(shard=0, epoch=1, ms=1, ledger_seq=0, records=[Record(A, b"%d" % n)])
        writer.commit(block)
        blocks.append(decode_reads(data, n + 1))
    late = ReadsHead()
    for block in blocks[2:]:
        late.commit(block)
    assert late.block == writer.block
    skipping = ReadsHead()
    skipping.commit(blocks[0])
    with pytest.raises(LedgerCorrupt, match="doesn't continue block 1"):
        skipping.commit(blocks[2])
    with pytest.raises(LedgerWentBack):
        ReadsHead(Head(1, ZERO_HASH)).commit(blocks[1])


# --- members --------------------------------------------------------------------------------------
ascending = st.sets(st.integers(1, (1 << 31) - 1), max_size=300).map(sorted)


@given(ascending)
def test_members_come_back_as_they_were(members: list[int]) -> None:
    parts = pack_members(members)
    assert unpack_members([deltas for _, deltas in parts]).tolist() == members
    assert sum(count for count, _ in parts) == len(members)


def test_members_are_leb128_deltas_in_parts_of_8192_that_each_stand_alone() -> None:
    assert pack_members([1, 2, 130, 16_514]) == [(4, bytes([1, 1, 0x80, 1, 0x80, 0x80, 1]))]
    assert pack_members([]) == []
    members = np.arange(1, 20_001)
    parts = pack_members(members)
    assert [count for count, _ in parts] == [8_192, 8_192, 3_616]
    assert unpack_members([parts[1][1]]).tolist() == list(range(8_193, 16_385))
    assert unpack_members([p for _, p in parts]).tolist() == members.tolist()


@pytest.mark.parametrize("members", [[0], [2, 1], [1, 1], [1 << 31], [-1, 5]])
def test_members_that_do_not_ascend_are_not_packed(members: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        pack_members(members)


@pytest.mark.parametrize(
    "parts",
    [[b""], [b"\x80"], [b"\1\0"], [b"\0"], [b"\5", b"\5"], [b"\x81\0"], [b"\xff" * 5 + b"\1"], [b"\xff\xff\xff\xff\x7f"]],
)
def test_malformed_parts_are_corrupt(parts: list[bytes]) -> None:
    with pytest.raises(LedgerCorrupt):
        unpack_members(parts)
    assert unpack_members([b"\x05", b"\x06"]).tolist() == [5, 6]


@given(st.lists(st.binary(max_size=12), max_size=3))
def test_what_unpacks_has_one_encoding(parts: list[bytes]) -> None:
    try:
        members = unpack_members(parts)
    except LedgerCorrupt:
        return
    assert b"".join(parts) == b"".join(_joined(members.tolist(), parts))


def _joined(members: list[int], parts: list[bytes]) -> list[bytes]:
    out, at = [], 0
    for part in parts:
        count = len(unpack_members([part]))
        out += [deltas for _, deltas in pack_members(members[at : at + count])]
        at += count
    return out


def test_the_digest_tells_members_apart() -> None:
    assert members_digest([1, 2, 3]) == members_digest(np.array([1, 2, 3], dtype=np.int32))
    assert members_digest([1, 2, 3]) != members_digest([1, 2, 4])
