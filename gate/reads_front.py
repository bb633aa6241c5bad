"""Whether READS has all that age lets it have. A beginning that was lost sheds the labels of every context, a gap those of some.

READS is pruned at its front when its records are older than the stream's `max_age`. What is gone left two traces: ledger blocks
say up to which READS block was acknowledged when they were decided, so the next one is younger than they are; and the lineage
store has the times of the recalls that it applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from bus.errors import Unavailable
from gate.config import DAY_MS
from gate.ledger import events as E
from gate.ledger.block import Header
from gate.ledger.replay import StreamState
from gate.state.columns import NEVER_MS
from gate.state.tenant import Tenant

SLACK_MS: Final = 60_000  # an acknowledgement on its way, and the broker's own moment of pruning


class Reads(Protocol):
    """What answers the named queries of the lineage store."""

    async def query(self, name: str, params: Mapping[str, object]) -> list[tuple[Any, ...]]: ...


class ReadsFront:
    """Fed with what a replay meets, in any order; then asked. `missing`: the last of the READS blocks that are gone; 0 = none."""

    def __init__(self, state: StreamState, now_ms: int) -> None:
        self.missing = state.first - 1 if state.messages else state.last
        self._oldest_ms = NEVER_MS  # of the records that are there
        self._name, self._days = state.name, state.max_age_ms // DAY_MS
        self._cutoff_ms = now_ms - state.max_age_ms + SLACK_MS if state.max_age_ms else -NEVER_MS
        self._newer_than_ms = -NEVER_MS  # the last that is gone was written after this
        self._accepted = 0
        self._gaps: list[tuple[int, int]] = []

    def gap(self, first: int, last: int) -> None:
        """These blocks are missing between others: no age takes them."""
        self._gaps.append((first, last))
        self.missing = max(self.missing, last)

    def ledger_block(self, header: Header) -> None:
        if header.reads_seq < self.missing:
            self._newer_than_ms = max(self._newer_than_ms, header.ms)

    def ledger_event(self, event: E.AnyEvent) -> None:
        if isinstance(event, E.LedgerAccepted):
            self._accepted = max(self._accepted, event.reads_missing)

    def read(self, record: E.AnyRecord) -> None:
        self._oldest_ms = min(self._oldest_ms, record.ms)

    async def lost(self, lineage: Reads) -> str:
        """What is missing too early, as a sentence; empty if nothing is, or if a person accepted it."""
        if self.missing <= self._accepted:
            return ""
        for first, last in self._gaps:
            if last > self._accepted:
                span = f"Block {first} of {self._name} is" if first == last else f"Blocks {first} to {last} of {self._name} are"
                return f"{span} missing: contexts may have forgotten what they were served."
        with suppress(Unavailable):  # a store that can't be asked is made anew, and knows nothing
            [(newest,)] = await lineage.query("newest_read", {"before": self._oldest_ms})
            self._newer_than_ms = max(self._newer_than_ms, -NEVER_MS if newest is None else newest)
        if self._newer_than_ms <= self._cutoff_ms:
            return ""
        kept = f"reads are kept for {self._days} days" if self._days else "reads are kept for ever"
        return f"The first {self.missing} blocks of {self._name} are gone, and not for their age: {kept}."


def left_of(t: Tenant | None, record: E.AnyRecord | None) -> E.AnyRecord | None:
    """What a record still says beside a lost tail of the ledger: its labels, and the memories that are left. None: nothing."""
    if t is None:
        return None
    n = t.columns.n
    if isinstance(record, E.Served):
        if record.agent not in t.agents.by_id or record.ctx not in t.agents.by_id:
            return None
        items, withheld = ([x for x in seen if x[0] < n] for seen in (record.items, record.withheld))
        return msgspec.structs.replace(record, items=items, withheld=withheld)
    if isinstance(record, E.Withdrawn):
        return msgspec.structs.replace(record, items=[x for x in record.items if x < n])
    return record
