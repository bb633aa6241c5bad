"""Heads of the chains: who came last, in the shard and per tenant. Pure.

Invariant: heads move by `commit` alone, when a block is known to be in the ledger; building and verifying leave them as they are,
so a refused append costs nothing. A block follows its predecessor's number and hash, a section its tenant's last event and hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .block import ZERO_HASH, Block, Header, Payload, ReadsBlock, ReadsHeader, Record, Section, encode, encode_reads, make_section
from .errors import LedgerCorrupt, LedgerWentBack


class Head(NamedTuple):
    """The last number of a chain and the hash there. A chain that hasn't begun is at (0, 32 zero bytes)."""

    seq: int
    hash: bytes


START = Head(0, ZERO_HASH)


class Heads:
    """The chains of one shard's LEDGER: `block` is the last block, `tenants` the last event of each account.

    Give both back from a projection to go on where it stands: then a first block that doesn't fit is `LedgerWentBack`.
    """

    def __init__(self, block: Head = START, tenants: Mapping[str, Head] | None = None) -> None:
        self.block = block
        self.tenants = dict(tenants or {})
        self._resumed_at = block.seq

    def head(self, tenant: str) -> Head:
        return self.tenants.get(tenant, START)

    def build(
        self, *, shard: int, epoch: int, ms: int, reads_seq: int, events: Mapping[str, Sequence[Payload]]
    ) -> tuple[Block, bytes]:
        """The next block and its bytes: one section for each tenant of `events`, in that order. Moves nothing."""
        sections = [self._section(tenant, payloads) for tenant, payloads in events.items()]
        header = Header(
            shard=shard,
            no=self.block.seq + 1,
            epoch=epoch,
            ms=ms,
            reads_seq=reads_seq,
            prev_block=self.block.hash,
            sections=len(sections),
        )
        return encode(header, sections)

    def _section(self, tenant: str, events: Sequence[Payload]) -> Section:
        last = self.head(tenant)
        return make_section(tenant, last.seq + 1, last.hash, events)

    def verify(self, section: Section) -> None:
        """Raise unless the section follows its tenant's head. Moves nothing."""
        last = self.head(section.tenant)
        if section.seq <= last.seq:
            raise LedgerWentBack(f"Event {section.seq} of tenant {section.tenant} comes again: {last.seq} was seen before.")
        if section.seq != last.seq + 1:
            raise LedgerCorrupt(f"event {section.seq} of tenant {section.tenant} follows event {last.seq}.")
        if section.prev != last.hash:
            raise LedgerCorrupt(f"the section at event {section.seq} of tenant {section.tenant} doesn't continue its last one.")

    def verify_block(self, block: Block) -> None:
        """Raise unless the block and all its sections follow. Moves nothing."""
        _follows(self.block, block.header.no, block.header.prev_block, resumed=self._resumed_at == self.block.seq)
        for section in block.sections:
            self.verify(section)

    def commit(self, block: Block) -> None:
        """The block is in the ledger: move to its end. Verified here, so that a chain can't be moved to what doesn't follow."""
        self.verify_block(block)
        self.follow(block)

    def follow(self, block: Block) -> None:
        """Move to the end of a block that isn't verified here: where a survey of the whole ledger has told what is broken."""
        for section in block.sections:
            self.tenants[section.tenant] = Head(section.last, section.hash)
        self.block = Head(block.header.no, block.hash)


class ReadsHead:
    """The chain of one shard's READS. Its front is pruned by age: a chain that hasn't begun accepts any first block."""

    def __init__(self, block: Head = START) -> None:
        self.block = block
        self._resumed_at = block.seq

    def build(self, *, shard: int, epoch: int, ms: int, ledger_seq: int, records: Sequence[Record]) -> tuple[ReadsBlock, bytes]:
        """The next READS block and its bytes. Moves nothing."""
        header = ReadsHeader(
            shard=shard,
            no=self.block.seq + 1,
            epoch=epoch,
            ms=ms,
            ledger_seq=ledger_seq,
            prev_block=self.block.hash,
            records=len(records),
        )
        return encode_reads(header, records)

    def verify_block(self, block: ReadsBlock) -> None:
        """Raise unless the block follows. Moves nothing."""
        if self.block.seq == 0 and block.header.no > 1:
            return
        _follows(self.block, block.header.no, block.header.prev_block, resumed=self._resumed_at == self.block.seq)

    def commit(self, block: ReadsBlock) -> None:
        """The block is in READS: move to it."""
        self.verify_block(block)
        self.block = Head(block.header.no, block.hash)


def _follows(last: Head, no: int, prev: bytes, *, resumed: bool) -> None:
    """`resumed`: nothing came since the head was given back, so a misfit tells that the stream isn't the one that was applied."""
    if no == last.seq + 1 and prev == last.hash:
        return
    if last.seq and (no <= last.seq or (resumed and no == last.seq + 1)):
        raise LedgerWentBack(f"Block {no} doesn't continue block {last.seq}, which was applied before.")
    raise LedgerCorrupt(f"it doesn't continue block {last.seq}.", block=no)
