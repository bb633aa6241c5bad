"""The chains of one shard's LEDGER, followed through damage: what doesn't fit is told, and whose it is. Pure.

A block's hash covers its header and the hashes of its sections, a section's hash its tenant's events: so where one tenant's
section was changed, the chains of all others still prove that theirs were not. `confined` says when that is all that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gate.ledger.block import ZERO_HASH, Block, Section, decode
from gate.ledger.errors import LedgerCorrupt


class _Tail(NamedTuple):
    """Where a tenant's chain stands: the block of its last section, that section's first and last event, and its hash."""

    block: int
    first: int
    last: int
    hash: bytes


class Survey:
    """Give it every block of the stream in order. `found` is told each thing that is wrong, as a sentence.

    `begin`: the first block. From one after 1 on, the heads are taken from what comes first. `only`: the account whose chain
    alone counts; what is wrong with others or with the shard's own chain isn't told.
    """

    def __init__(self, stream: str, found: Callable[[str], None], *, begin: int = 1, only: str = "") -> None:
        self._stream, self._found, self._only = stream, found, only
        self._whole = begin == 1
        self._head: tuple[int, bytes] | None = (0, ZERO_HASH) if self._whole else None  # None: what came before is unknown
        self._tails: dict[str, _Tail] = {}
        self._lost = False  # a block was missing or couldn't be read: nobody knows whose
        self._loose: dict[int, tuple[str, ...]] = {}  # blocks that the next one doesn't continue, and whose sections they have
        self._changed: set[tuple[int, str]] = set()  # (block, tenant) of sections that their successors don't continue
        self.broken: dict[str, int] = {}  # account → the first of its events that can't be trusted

    def block(self, no: int, data: bytes) -> Block | None:
        """The decoded block; None if it can't be read at all."""
        wrong: list[tuple[str, int]] = []
        try:
            block = decode(data, no, wrong)
        except LedgerCorrupt as e:
            self._tell("", f"{self._stream} block {no}: {e.message}")
            self._forget()
            return None
        self._follows(block)
        for section in block.sections:
            self._section(no, section)
        for tenant, seq in wrong:
            self._break(tenant, seq, f"block {no}: the body of event {seq} isn't the one that its meta names")
        return block

    def gap(self, first: int, last: int) -> None:
        span = f"block {first} is" if first == last else f"blocks {first} to {last} are"
        self._tell("", f"{self._stream}: {span} missing, and nothing erased stands in for it")
        self._forget()

    def _forget(self) -> None:
        self._head, self._lost = None, True

    def _follows(self, block: Block) -> None:
        no = block.header.no
        if self._head is not None and self._head[1] != block.header.prev_block:
            before = self._head[0]
            self._tell("", f"{self._stream}: block {no} doesn't continue block {before}: one of them isn't what was written")
            self._loose[before] = tuple(tenant for tenant, tail in self._tails.items() if tail.block == before)
        self._head = (no, block.hash)

    def _section(self, no: int, section: Section) -> None:
        tenant, seq = section.tenant, section.seq
        tail = self._tails.get(tenant)
        if tail is None and (self._whole and not self._lost):
            tail = _Tail(0, 0, 0, ZERO_HASH)
        if tail is not None:
            if seq <= tail.last:
                self._break(tenant, seq, f"block {no}: event {seq} comes again, {tail.last} was before (block {tail.block})")
            elif seq > tail.last + 1:
                self._break(tenant, tail.last + 1, f"block {no}: events {tail.last + 1} to {seq - 1} are missing before it")
            elif section.prev != tail.hash:
                what = f"the section at event {seq} doesn't continue the one at event {tail.first} (block {tail.block})"
                self._break(tenant, tail.first or seq, f"block {no}: {what}: one of them isn't what was written")
                self._changed |= {(tail.block, tenant), (no, tenant)}
        self._tails[tenant] = _Tail(no, seq, section.last, section.hash)

    def _break(self, tenant: str, seq: int, what: str) -> None:
        self.broken[tenant] = min(seq, self.broken.get(tenant, seq))
        self._tell(tenant, f"{self._stream} {what} (tenant {tenant})")

    def _tell(self, tenant: str, what: str) -> None:
        if not self._only or tenant == self._only:
            self._found(what)

    def confined(self) -> dict[str, int]:
        """At the end: account → its first event that can't be trusted, if that is all that is wrong; else {}.

        A tenant that has nothing after a block that was changed can't prove its part of it: it counts as changed too.
        """
        if self._lost:
            return {}
        broken = dict(self.broken)
        for block, tenants in self._loose.items():
            guilty = {t for t in tenants if (block, t) in self._changed}
            for t in tenants:
                if (tail := self._tails[t]).block == block:
                    broken[t] = min(tail.first, broken.get(t, tail.first))
                    guilty.add(t)
            if not guilty:
                return {}  # its header, or the next one's
        return broken
