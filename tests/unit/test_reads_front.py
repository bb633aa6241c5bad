"""Which beginnings of READS age explains, and which it doesn't."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gate.config import DAY_MS
from gate.ledger import events as E
from gate.ledger.block import ZERO_HASH, Header
from gate.ledger.jetstream import StreamState
from gate.projections.lineage import LineageStore
from gate.reads_front import ReadsFront

NOW, AGE = 1_800_000_000_000, 90 * DAY_MS


class Store:
    """A lineage store that has applied recalls of these times."""

    def __init__(self, *times: int) -> None:
        self.times = times

    async def query(self, name: str, params: dict[str, Any]) -> list[tuple[int | None]]:
        return [(max((t for t in self.times if t < params["before"]), default=None),)]


def lost(
    first: int, last: int, *, ledger: dict[int, int] | None = None, store: Store | None = None, there: tuple[int, ...] = (),
    accepted: int = 0, age: int = AGE,
) -> bool:  # fmt: skip
    """`ledger`: READS blocks acknowledged at a ledger block → its time. `there`: times of the records that are left."""
    front = ReadsFront(StreamState(first, last, max(0, last - first + 1), 0, -1, "", "", "READS_0", age), NOW)
    for reads_seq, ms in (ledger or {}).items():
        front.ledger_block(Header(shard=0, no=1, epoch=1, ms=ms, reads_seq=reads_seq, prev_block=ZERO_HASH, sections=1))
    for ms in there:
        front.read(E.Audit(ms=ms, code="x"))
    front.ledger_event(E.LedgerAccepted(ms=1, by="jo", position=1, reads_missing=accepted))
    said = asyncio.run(front.lost(cast(LineageStore, store or Store())))
    assert not said or f"{first - 1} blocks of READS_0" in said
    return bool(said)


@pytest.mark.parametrize(("first", "last"), [(1, 9), (0, 0), (1, 0)])
def test_what_has_lost_nothing_is_whole(first: int, last: int) -> None:
    assert not lost(first, last, ledger={0: NOW, 5: NOW}, store=Store(NOW - 5))


def test_a_beginning_that_is_younger_than_reads_are_kept_was_lost() -> None:
    old, young = NOW - AGE - DAY_MS, NOW - AGE + DAY_MS
    assert not lost(6, 9, ledger={4: old, 5: young})  # block 5 was acknowledged by then, so it may be old
    assert lost(6, 9, ledger={4: young})  # block 5 came after this
    assert lost(10, 9, ledger={8: young})  # nothing is left
    assert not lost(10, 9, ledger={8: old})
    assert lost(6, 9, ledger={4: old}, age=0)  # kept for ever


def test_the_lineage_store_knows_of_recalls_that_no_ledger_block_came_after() -> None:
    old, young = NOW - AGE - DAY_MS, NOW - AGE + DAY_MS
    assert lost(10, 9, ledger={0: old}, store=Store(old, young))
    assert not lost(10, 9, ledger={0: old}, store=Store(old))
    assert not lost(6, 9, ledger={0: old}, store=Store(old, young), there=(young,))  # that one is there
    assert not lost(6, 9, ledger={0: old}, store=Store(old, young), there=(young + 9, young))  # also where a clock was set back
    assert lost(6, 9, ledger={0: old}, store=Store(old, young), there=(young + 1,))


def test_what_a_person_accepted_is_no_loss_any_more_but_more_is() -> None:
    assert not lost(6, 9, ledger={4: NOW}, accepted=5)
    assert lost(7, 9, ledger={5: NOW}, accepted=5)
