"""The bytes of the ledger. Pure: encode, decode, hash, strip. The golden files under tests/contract/ledger pin every byte.

    block   = "CLB1" ‖ u32 len ‖ header ‖ section*
    section = u32 len ‖ head ‖ (u32 len ‖ meta ‖ u32 len|0xFFFFFFFF ‖ body)*      0xFFFFFFFF: no body, or an erased one
    reads   = "CRB1" ‖ u32 len ‖ header ‖ (u32 len ‖ tenant ‖ u32 len ‖ record)*  tenant: account key, ASCII

    body_hash    = sha256("cordon.body.1"    ‖ u32 len ‖ body)
    section_hash = sha256("cordon.section.1" ‖ u32 len ‖ head ‖ (u32 len ‖ meta)*)
    block_hash   = sha256("cordon.block.1"   ‖ u32 len ‖ header ‖ section_hash*)
    reads_hash   = sha256("cordon.reads.1"   ‖ u32 len ‖ header ‖ (u32 len ‖ tenant ‖ u32 len ‖ record)*)

Integers are big-endian. Header and head are msgpack maps. A header's `no` is the stream sequence that the block expects to get.
A tenant has at most one section in a block. READS has records instead of sections, each with its tenant, and one chain.

Invariant: hashes are taken over the bytes as they are stored; decoding never re-encodes. A body enters its section's hash through
its meta's `body`, so stripping a body changes no hash, and a body that is there must fit its meta. Whatever the bytes, decoding
gives a value or raises `LedgerCorrupt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from struct import Struct as Layout
from typing import Annotated, Final, TypeVar

import msgspec

from .errors import LedgerCorrupt
from .members import members_digest, pack_members, unpack_members

__all__ = [
    "ZERO_HASH", "Block", "Header", "Payload", "ReadsBlock", "ReadsHeader", "Record", "Section", "body_hash", "decode",
    "decode_reads", "encode", "encode_reads", "make_section", "members_digest", "pack_members", "strip", "unpack_members",
]  # fmt: skip

BLOCK_VERSION: Final = 1
ZERO_HASH: Final = bytes(32)
_MAGIC, _READS_MAGIC = b"CLB1", b"CRB1"
_NO_BODY: Final = 0xFFFFFFFF
_U32 = Layout(">I")
_u32 = _U32.pack

Payload = tuple[bytes, bytes | None]
"""An event: (meta, body)."""
Hash32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Account = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`reads_seq`: the last acknowledged READS sequence when this was decided. `prev_block`: block_hash of block `no` - 1."""

    v: int = BLOCK_VERSION
    shard: Count
    no: Count
    epoch: Count
    ms: Count
    reads_seq: Count
    prev_block: Hash32
    sections: Count


class ReadsHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`ledger_seq`: the last acknowledged LEDGER sequence when this was decided. `prev_block`: reads_hash of block `no` - 1."""

    v: int = BLOCK_VERSION
    shard: Count
    no: Count
    epoch: Count
    ms: Count
    ledger_seq: Count
    prev_block: Hash32
    records: Count


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    t: Account
    seq: Count
    n: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    prev: Hash32


class _BodyHash(msgspec.Struct, frozen=True):
    body: bytes = b""


class Section(msgspec.Struct, frozen=True):
    """One tenant's part of a block. `seq`: tenant_seq of the first event. `prev`: hash of the tenant's last section."""

    tenant: str
    seq: int
    prev: bytes
    events: tuple[Payload, ...]
    hash: bytes

    @property
    def last(self) -> int:
        """The tenant_seq of the last event."""
        return self.seq + len(self.events) - 1


class Block(msgspec.Struct, frozen=True):
    header: Header
    sections: tuple[Section, ...]
    hash: bytes


class Record(msgspec.Struct, frozen=True):
    """A READS record and whose it is."""

    tenant: str
    data: bytes


class ReadsBlock(msgspec.Struct, frozen=True):
    header: ReadsHeader
    records: tuple[Record, ...]
    hash: bytes


_pack = msgspec.msgpack.Encoder().encode
_header_decoder = msgspec.msgpack.Decoder(Header)
_reads_header_decoder = msgspec.msgpack.Decoder(ReadsHeader)
_head_decoder = msgspec.msgpack.Decoder(_Head)
_body_hash_decoder = msgspec.msgpack.Decoder(_BodyHash)
_T = TypeVar("_T")


# --- hashes ---------------------------------------------------------------------------------------
def body_hash(body: bytes) -> bytes:
    """What a meta's `body` must be for these bytes (salt included)."""
    return _sha256(b"cordon.body.1", _u32(len(body)), body)


def _section_hash(head: bytes, events: Sequence[Payload]) -> bytes:
    parts = [b"cordon.section.1", _u32(len(head)), head]
    for meta, _ in events:
        parts += (_u32(len(meta)), meta)
    return _sha256(*parts)


def _block_hash(header: bytes, sections: Sequence[Section]) -> bytes:
    return _sha256(b"cordon.block.1", _u32(len(header)), header, *[s.hash for s in sections])


def _sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


# --- encode ---------------------------------------------------------------------------------------
def make_section(tenant: str, seq: int, prev: bytes, events: Sequence[Payload]) -> Section:
    """A section with its hash. `seq` is the tenant_seq that the first event gets."""
    return Section(tenant, seq, prev, tuple(events), _section_hash(_pack(_Head(tenant, seq, len(events), prev)), events))


def encode(header: Header, sections: Sequence[Section]) -> tuple[Block, bytes]:
    """The block and its bytes. `header.sections` must be the number of sections."""
    assert header.sections == len(sections)
    raw = _pack(header)
    parts = [_MAGIC, _u32(len(raw)), raw]
    for section in sections:
        head = _pack(_Head(section.tenant, section.seq, len(section.events), section.prev))
        parts += (_u32(len(head)), head)
        for meta, body in section.events:
            parts += _frame_event(meta, body)
    return Block(header, tuple(sections), _block_hash(raw, sections)), b"".join(parts)


def event_bytes(meta: bytes, body: bytes | None) -> int:
    """What an event takes in a block: its two parts and their lengths."""
    return len(meta) + len(body or b"") + 8


def _frame_event(meta: bytes, body: bytes | None) -> tuple[bytes, ...]:
    framed = (_u32(len(meta)), meta)
    return (*framed, _u32(_NO_BODY)) if body is None else (*framed, _u32(len(body)), body)


def encode_reads(header: ReadsHeader, records: Sequence[Record]) -> tuple[ReadsBlock, bytes]:
    """The READS block and its bytes. `header.records` must be the number of records."""
    assert header.records == len(records)
    head = _pack(header)
    parts = [_u32(len(head)), head]
    for record in records:
        tenant = record.tenant.encode()
        parts += (_u32(len(tenant)), tenant, _u32(len(record.data)), record.data)
    framed = b"".join(parts)
    return ReadsBlock(header, tuple(records), _sha256(b"cordon.reads.1", framed)), _READS_MAGIC + framed


# --- decode ---------------------------------------------------------------------------------------
class _Reader:
    """A cursor over one block's bytes. Every step past the end, or over something else than was announced, is `LedgerCorrupt`."""

    __slots__ = ("at", "data", "no")

    def __init__(self, data: bytes, magic: bytes, no: int) -> None:
        self.data = data
        self.no = no
        self.at = len(magic)
        if data[: self.at] != magic:
            raise LedgerCorrupt(f"it begins with {data[: self.at]!r}, not {magic!r}.", block=no, offset=0)

    def corrupt(self, message: str) -> LedgerCorrupt:
        return LedgerCorrupt(message, block=self.no, offset=self.at)

    def length(self) -> int:
        at = self.at
        if at + 4 > len(self.data):
            raise self.corrupt("it ends within a length.")
        self.at = at + 4
        size: int = _U32.unpack_from(self.data, at)[0]
        return size

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise self.corrupt(f"{size} bytes are announced, {len(self.data) - self.at} are left.")
        part = self.data[self.at : end]
        self.at = end
        return part

    def framed(self) -> bytes:
        start = self.at + 4
        if start <= len(self.data):
            end = start + _U32.unpack_from(self.data, self.at)[0]
            if end <= len(self.data):
                self.at = end
                return self.data[start:end]
        return self.take(self.length())  # which says what is wrong

    def parse(self, what: str, decoder: msgspec.msgpack.Decoder[_T], raw: bytes) -> _T:
        try:
            return decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            self.at -= len(raw)
            raise self.corrupt(f"the {what} can't be decoded ({e}).") from e

    def opened(self, header: Header | ReadsHeader) -> None:
        """Check what both kinds of header promise; from here on errors name the block by its own number."""
        if header.v != BLOCK_VERSION:
            raise self.corrupt(f"version {header.v} is unknown, this program reads version {BLOCK_VERSION}.")
        if self.no and header.no != self.no:
            raise self.corrupt(f"it says that it is block {header.no}.")
        self.no = header.no

    def closed(self) -> None:
        if self.at != len(self.data):
            raise self.corrupt(f"{len(self.data) - self.at} bytes follow its end.")


def decode(data: bytes, seq: int = 0, wrong: list[tuple[str, int]] | None = None) -> Block:
    """The block in `data`, every body checked against its meta. `seq`: the stream sequence that it must name (0: any).

    `wrong`: where bodies that aren't the ones that their metas name are noted as (tenant, tenant_seq), not raised.
    """
    reader = _Reader(data, _MAGIC, seq)
    raw = reader.framed()
    header = reader.parse("header", _header_decoder, raw)
    reader.opened(header)
    sections = tuple([_section(reader, wrong) for _ in range(header.sections)])
    reader.closed()
    if len({s.tenant for s in sections}) != len(sections):
        raise LedgerCorrupt("a tenant has two sections.", block=header.no)
    return Block(header, sections, _block_hash(raw, sections))


def _section(reader: _Reader, wrong: list[tuple[str, int]] | None) -> Section:
    raw = reader.framed()
    head = reader.parse("section's head", _head_decoder, raw)
    events = tuple([_event(reader, head, at, wrong) for at in range(head.n)])
    return Section(head.t, head.seq, head.prev, events, _section_hash(raw, events))


def _event(reader: _Reader, head: _Head, at: int, wrong: list[tuple[str, int]] | None) -> Payload:
    meta = reader.framed()
    size = reader.length()
    if size == _NO_BODY:
        return meta, None
    body = reader.take(size)
    if body_hash(body) != _named_body(reader, meta, size):
        if wrong is not None:
            wrong.append((head.t, head.seq + at))
            return meta, body
        reader.at -= size
        raise reader.corrupt("the body is not the one that its meta names.")
    return meta, body


def _named_body(reader: _Reader, meta: bytes, size: int) -> bytes:
    try:
        return _body_hash_decoder.decode(meta).body
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        reader.at -= size + 4 + len(meta)
        raise reader.corrupt(f"the meta can't be decoded ({e}).") from e


def decode_reads(data: bytes, seq: int = 0) -> ReadsBlock:
    """The READS block in `data`. `seq`: the stream sequence it must name (0: any)."""
    reader = _Reader(data, _READS_MAGIC, seq)
    header = reader.parse("header", _reads_header_decoder, reader.framed())
    reader.opened(header)
    records = tuple([_record(reader) for _ in range(header.records)])
    reader.closed()
    return ReadsBlock(header, records, _sha256(b"cordon.reads.1", data[len(_READS_MAGIC) :]))


def _record(reader: _Reader) -> Record:
    raw = reader.framed()
    if not (1 <= len(raw) <= 64 and raw.isascii()):
        reader.at -= len(raw)
        raise reader.corrupt("a record's tenant is not an account key.")
    return Record(raw.decode(), reader.framed())


# --- erasure --------------------------------------------------------------------------------------
def strip(data: bytes, only: Container[tuple[str, int]] | None = None) -> bytes:
    """The same block without bodies: all of them, or those of `only` = {(tenant, tenant_seq)…}. Every hash stays as it was."""
    block = decode(data)
    reader = _Reader(data, _MAGIC, block.header.no)
    parts = [_MAGIC, *_reframe(reader)]
    for section in block.sections:
        parts += _reframe(reader)
        for seq, (meta, body) in enumerate(section.events, section.seq):
            kept = None if only is None or (section.tenant, seq) in only else body
            parts += _frame_event(meta, kept)
            reader.take(4 + len(meta) + 4 + len(body or b""))
    return b"".join(parts)


def _reframe(reader: _Reader) -> tuple[bytes, bytes]:
    raw = reader.framed()  # copied as stored, never encoded again
    return _u32(len(raw)), raw
