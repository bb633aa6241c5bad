"""The streams' bytes, read by the letter of docs/wire.md and by nothing of the gatekeeper's. Raises Broken."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

SALT_BYTES: Final = 32
NO_BODY: Final = 0xFFFFFFFF
ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


class Broken(Exception):
    """Stored bytes that can't be."""


@dataclass(frozen=True)
class Event:
    tenant: str  # account
    seq: int
    meta: dict[str, Any]
    body: dict[str, Any]


@dataclass
class Read:
    """All of both streams. `records`: (account, record)."""

    events: list[Event] = field(default_factory=list)
    records: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        self.at += 4
        return int.from_bytes(self.data[self.at - 4 : self.at], "big")

    def take(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            raise Broken("a length goes beyond the end")
        return self.data[self.at - size : self.at]

    def part(self) -> bytes:
        return self.take(self.number())


def sized(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def digest(domain: str, *parts: bytes) -> bytes:
    return hashlib.sha256(domain.encode() + b"".join(parts)).digest()


def read(ledger: dict[int, bytes], reads: dict[int, bytes]) -> Read:
    found = Read()
    before, epoch = bytes(32), 0
    heads: dict[str, tuple[int, bytes]] = {}
    for no, data in _contiguous("LEDGER", ledger):
        b = _Bytes(data)
        if b.take(4) != b"CLB1":
            raise Broken(f"block {no} is none")
        raw = b.part()
        header = msgspec.msgpack.decode(raw)
        if (header["no"], header["prev_block"]) != (no, before) or header["epoch"] < epoch:
            raise Broken(f"block {no} doesn't follow")
        epoch, hashes = header["epoch"], []
        for _ in range(header["sections"]):
            events, hash_ = _section(b, heads)
            found.events += events
            hashes.append(hash_)
        before = digest("cordon.block.1", sized(raw), *hashes)
    before = bytes(32)
    for no, data in _contiguous("READS", reads):
        b = _Bytes(data)
        if b.take(4) != b"CRB1":
            raise Broken(f"READS block {no} is none")
        raw = b.part()
        header = msgspec.msgpack.decode(raw)
        if (header["no"], header["prev_block"]) != (no, before):
            raise Broken(f"READS block {no} doesn't follow")
        parts = [raw]
        for _ in range(header["records"]):
            tenant, record = b.part(), b.part()
            parts += [tenant, record]
            found.records.append((tenant.decode(), msgspec.msgpack.decode(record)))
        before = digest("cordon.reads.1", *map(sized, parts))
    return found


def _section(b: _Bytes, heads: dict[str, tuple[int, bytes]]) -> tuple[list[Event], bytes]:
    raw = b.part()
    head = msgspec.msgpack.decode(raw)
    account, seq = head["t"], head["seq"]
    if (seq - 1, head["prev"]) != heads.get(account, (0, bytes(32))):
        raise Broken(f"the section at event {seq} of {account} doesn't follow")
    events, metas = [], []
    for at in range(head["n"]):
        meta = b.part()
        size = b.number()
        body = b"" if size == NO_BODY else b.take(size)
        metas.append(sized(meta))
        decoded = msgspec.msgpack.decode(meta)
        if body and decoded["body"] != digest("cordon.body.1", sized(body)):
            raise Broken(f"the body of event {seq + at} of {account} isn't that of its meta")
        events.append(Event(account, seq + at, decoded, msgspec.msgpack.decode(body[SALT_BYTES:]) if body else {}))
    hash_ = digest("cordon.section.1", sized(raw), *metas)
    heads[account] = (seq + head["n"] - 1, hash_)
    return events, hash_


def _contiguous(name: str, blocks: dict[int, bytes]) -> Iterator[tuple[int, bytes]]:
    for no in range(1, max(blocks, default=0) + 1):
        if no not in blocks:
            raise Broken(f"block {no} of {name} is missing")
        yield no, blocks[no]


def members(deltas: list[bytes]) -> list[int]:
    """The members of a case's parts: LEB128 of the differences, each part from 0."""
    found = []
    for part in deltas:
        last = number = shift = 0
        for byte in part:
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                last += number
                found.append(last)
                number = shift = 0
    return found


def text_id(prefix: str, raw: bytes) -> str:
    """16 bytes as 26 characters of Crockford's base32."""
    number = int.from_bytes(raw, "big")
    return prefix + "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))
