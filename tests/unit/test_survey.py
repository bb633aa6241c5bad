"""Chains followed through damage: who is named, and when it is nobody else's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gate.ledger import events as E
from gate.ledger.block import Payload, body_hash
from gate.ledger.chain import Heads
from gate.verifying.survey import Survey

A, B = "AAAA", "BBBB"


def event(n: int) -> Payload:
    body = bytes(32) + E.encode(E.NoteBody(text=f"why {n}"))
    return E.encode(E.MemoryReviewed(ms=n, memory=1, verdict="accept", agent=bytes(16), body=body_hash(body))), body


def ledger(*tenants: str) -> list[bytes]:
    """A block for each string: a section of two events for each of its letters."""
    heads, blocks = Heads(), []
    for no, names in enumerate(tenants, 1):
        events = {{"a": A, "b": B}[name]: [event(2 * no), event(2 * no + 1)] for name in names}
        block, data = heads.build(shard=0, epoch=1, ms=no, reads_seq=0, events=events)
        heads.commit(block)
        blocks.append(data)
    return blocks


def survey(blocks: list[bytes | None], **how: str) -> tuple[list[str], dict[str, int]]:
    told: list[str] = []
    s = Survey("LEDGER_0", told.append, only=how.get("only", ""))
    for no, data in enumerate(blocks, 1):
        s.gap(no, no) if data is None else s.block(no, data)
    return told, s.confined()


def with_byte(blocks: list[bytes], no: int, find: bytes, skip: int = 0, nth: int = 1) -> list[bytes]:
    data, at = bytearray(blocks[no - 1]), -1
    for _ in range(nth):
        at = data.index(find, at + 1)
    data[at + skip] ^= 1
    return [*blocks[: no - 1], bytes(data), *blocks[no:]]


def in_body(blocks: list[bytes]) -> list[bytes]:
    return with_byte(blocks, 2, b"why 4", 4)


def in_meta(blocks: list[bytes]) -> list[bytes]:
    return with_byte(blocks, 2, b"accept")


def test_a_whole_ledger_has_nothing_to_tell() -> None:
    assert survey([*ledger("ab", "ab", "b", "a")]) == ([], {})


@pytest.mark.parametrize(("change", "first"), [(in_body, 3), (in_meta, 3)])
def test_a_changed_section_is_its_tenant_s_alone(change: Callable[[list[bytes]], list[bytes]], first: int) -> None:
    told, confined = survey([*change(ledger("ab", "ab", "ab", "ab"))])
    assert told
    assert confined == {A: first}
    assert survey([*change(ledger("ab", "ab", "ab", "ab"))], only=B)[0] == []


def test_who_has_nothing_after_a_changed_block_cannot_prove_its_part() -> None:
    assert survey([*in_meta(ledger("ab", "ab", "a", "a"))])[1] == {A: 3, B: 3}


def test_two_tenants_that_were_changed_are_both_named() -> None:
    blocks = with_byte(with_byte(ledger("ab", "ab", "ab", "ab"), 2, b"why 4", 4), 3, b"why 6", 4, nth=2)
    assert survey([*blocks])[1] == {A: 3, B: 5}


@pytest.mark.parametrize(
    "change",
    [
        lambda b: with_byte(b, 2, b"\xa2ms", 3),  # the header's time
        lambda b: [b[0], None, *b[2:]],
        lambda b: [b[1], b[0], *b[2:]],
        lambda b: [b[0], b[1][:-3], *b[2:]],
        lambda b: [b[0], b[1], b[1], *b[2:]],
    ],
)
def test_what_is_nobody_s_alone_stops_everybody(change: Callable[[list[bytes]], list[bytes | None]]) -> None:
    told, confined = survey(change(ledger("ab", "ab", "ab", "ab")))
    assert told
    assert confined == {}
