"""A restored ledger against the copy that it was made of, event by event: what a drill proves. It shares nothing with `pour`.

Up to the cut every event must be there as it was, its text too, unless the restored ledger itself says why it isn't: an erasure
names it, or it isn't of the part that was asked for. Behind the cut there is what was carried over, and no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gate.ledger import events as E
from gate.ledger.block import Block, Section, decode
from gate.ledger.errors import LedgerError
from gate.ledger.members import erased_by
from gate.snapshots.files import SnapshotDamaged, read_kept, read_stream

FINDINGS_MAX: Final = 100


class Comparison:
    """`source`: the copy; `made`: a copy of what was made of it up to block `cut`."""

    def __init__(self, source: Path, made: Path, cut: int) -> None:
        self._source, self._made, self._cut = source, made, cut
        self._parts: dict[str, E.Part | None] = {}  # of the tenants that were restored
        self._erased: set[tuple[str, int]] = set()
        self._facts = self._texts = self._count = 0
        self._findings: list[str] = []

    def run(self) -> dict[str, Any]:
        """{ok, findings, findings_count, facts, texts}: so many events were the same, and so many of them had a body."""
        try:
            self._what_it_says()
            if self._parts:
                self._compare()
            else:
                self._found("nothing in it says of what it is a copy")
        except (SnapshotDamaged, LedgerError) as e:
            self._found(e.message)
        return {
            "ok": not self._count,
            "findings": self._findings,
            "findings_count": self._count,
            "facts": self._facts,
            "texts": self._texts,
        }

    def _found(self, what: str) -> None:
        self._count += 1
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(what)

    def _what_it_says(self) -> None:
        for block in _blocks(self._made):
            for section in block.sections:
                for seq, (meta, _) in enumerate(section.events, section.seq):
                    match event := E.decode_event(meta):
                        case E.MemoryErased() | E.TenantChanged():
                            self._erased.update((section.tenant, s) for s in erased_by(event, seq))
                        case E.HomeRestored() if block.header.no > self._cut:
                            self._parts[section.tenant] = event.part
                        case E.MemoryWritten() if block.header.no > self._cut:
                            self._found(f"tenant {section.tenant}: memory {seq} came after block {self._cut}")

    def _compare(self) -> None:
        """Both have the same block numbers up to the cut; of a part, other tenants' sections are missing."""
        made = _blocks(self._made)
        for was in _blocks(self._source):
            if was.header.no > self._cut:
                return
            now = next(made, None)
            if now is None or now.header.no != was.header.no:
                self._found(f"block {was.header.no} is missing")
                return
            there = {section.tenant: section for section in now.sections}
            for section in was.sections:
                if section.tenant in self._parts:
                    self._section(section, there.pop(section.tenant, None))
            for tenant in there:
                self._found(f"block {was.header.no}: it has events of tenant {tenant}, which weren't asked for")

    def _section(self, was: Section, now: Section | None) -> None:
        if now is None or (now.seq, now.hash, len(now.events)) != (was.seq, was.hash, len(was.events)):
            self._found(f"tenant {was.tenant}: events {was.seq} to {was.last} aren't as they were")
            return
        for seq, ((meta, body), (_, restored)) in enumerate(zip(was.events, now.events, strict=True), was.seq):
            self._facts += 1
            if restored is not None:
                self._texts += 1
                if restored != body or not self._wanted(was.tenant, seq, meta):
                    self._found(f"tenant {was.tenant}: the text of event {seq} isn't to be there")
            elif body is not None and self._wanted(was.tenant, seq, meta):
                self._found(f"tenant {was.tenant}: the text of event {seq} is missing")

    def _wanted(self, tenant: str, seq: int, meta: bytes) -> bool:
        """Whether the restored ledger has no reason to be without this text."""
        if (tenant, seq) in self._erased:
            return False
        part, event = self._parts[tenant], E.decode_event(meta)
        return part is None or not isinstance(event, E.MemoryWritten) or part.fits(event)


def _blocks(folder: Path) -> Iterator[Block]:
    kept = read_kept(folder)
    if kept is None:
        raise SnapshotDamaged(folder, "it has no streams.json")
    for _, no, data in read_stream(folder, kept.ledger):
        yield decode(data, no)
