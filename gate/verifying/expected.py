"""What the ledger and READS must have been made into: live state of each tenant, and the rows of the lineage store.

Made with the very functions that make the real ones, so a difference is a change or a bug, not another opinion.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gate.event_rows import EventRows
from gate.ledger import events as E
from gate.ledger.block import Block, ReadsBlock, event_bytes
from gate.projections.lineage import Scratch
from gate.reads_front import left_of
from gate.state.tenant import Tenant, UnknownEvent
from gate.verifying.vectors import VectorDigests


class Expected:
    """`only`: the account that counts; empty = all. `torn`: tenants whose events can't be applied any further."""

    def __init__(self, found: Callable[[str], None], *, only: str = "") -> None:
        self._found, self._only = found, only
        self.tenants: dict[str, Tenant] = {}
        self.torn: set[str] = set()
        self.rows = EventRows()
        self.beside_loss = 0  # READS blocks up to here may name what the ledger has lost, as a person accepted
        self.store = Scratch()
        self.vectors: dict[str, VectorDigests] = {}
        self.newest_ms = self.oldest_read_ms = 0
        self.ledger_seq = self.reads_seq = 0

    def number(self, account: str) -> int:
        return self.rows.numbers.get(account, -1)

    def ledger(self, block: Block) -> list[tuple[str, int, E.AnyEvent, bytes, bytes | None]]:
        """Apply a block. What it holds: (account, tenant_seq, event, meta, body) of each event that was applied."""
        self.ledger_seq, self.newest_ms = block.header.no, max(self.newest_ms, block.header.ms)
        applied, sections = [], []
        for section in block.sections:
            account, events = section.tenant, []
            if account not in self.rows.numbers and self._only:  # tenants are numbered in the order of the ledger
                self.rows.numbers[account] = len(self.rows.numbers)
            if self._only and account != self._only:
                continue
            for seq, (meta, body) in enumerate(section.events, section.seq):
                event = self._apply(account, seq, meta, body)
                if event is None:
                    break
                events.append(event)
                applied.append((account, seq, event, meta, body))
            if events:
                sections.append((account, section.seq, events))
        self.store.add(self.rows.ledger(self.tenants, sections, block.header.no))
        for account, t in [(a, self.tenants[a]) for a, _, _ in sections if self.tenants[a].deleted]:
            self.tenants[account], self.vectors[account] = t.remains(), VectorDigests()
        return applied

    def _apply(self, account: str, seq: int, meta: bytes, body: bytes | None) -> E.AnyEvent | None:
        if account in self.torn:
            return None
        t = self.tenants.get(account)
        if t is None:
            t = self.tenants[account] = Tenant(account)
            self.vectors[account] = VectorDigests()
        try:
            event = E.decode_event(meta)
            t.apply(seq, event, "", event_bytes(meta, body), len(body or b""))
        except (msgspec.MsgspecError, UnknownEvent, ValueError, LookupError, TypeError, OverflowError) as e:
            self.torn.add(account)
            self._found(
                f"tenant {account}: event {seq} can't follow those before it ({type(e).__name__}: {e}); none after it counts"
            )
            return None
        return event

    def reads(self, block: ReadsBlock) -> None:
        self.reads_seq = block.header.no
        records = []
        for record in block.records:
            account = record.tenant
            if (self._only and account != self._only) or account in self.torn:
                continue
            t = self.tenants.get(account)
            try:
                decoded: E.AnyRecord | None = E.decode_record(record.data)
                if block.header.no <= self.beside_loss:
                    decoded = left_of(t, decoded)
                    if decoded is None:
                        continue
                if t is None or decoded is None:
                    raise LookupError("the ledger doesn't know its tenant")
                t.replay_read(decoded)
            except (msgspec.MsgspecError, ValueError, LookupError, TypeError) as e:
                self._found(f"READS block {block.header.no}: a record of tenant {account} can't be read ({e})")
                continue
            self.newest_ms = max(self.newest_ms, decoded.ms)
            self.oldest_read_ms = min(self.oldest_read_ms or decoded.ms, decoded.ms)
            records.append((t, decoded))
        self.store.add(self.rows.reads(records))
