"""A folder of segments read again, block by block: chains, bodies, ends. It needs no broker; the gatekeeper's credential only
where texts were taken out of it.

A finding names the file; the walk goes on after it. Only what the ledger in it says was erased may be without its text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from gate import ids
from gate.ledger import events as E
from gate.ledger.block import Header, decode_reads
from gate.ledger.chain import ReadsHead
from gate.ledger.errors import LedgerError
from gate.ledger.members import erased_by
from gate.snapshots.files import Kept, Segment, SnapshotDamaged, Stream, forgotten, read_kept, read_segment
from gate.snapshots.notary import Notary
from gate.verifying.survey import Survey

FINDINGS_MAX: Final = 100
Whose = tuple[str, str, bytes]  # project, end user, agent


class Cut(msgspec.Struct, kw_only=True):
    """Where a restore would stop. `block`: the last one; `at_ms`: when it was decided; `reads_first`: where its READS begins."""

    block: int = 0
    at_ms: int = 0
    reads_first: int = 1


class Check:
    """`position`: a restore's last block, 0 = the copy's. `before_ms`: the last one that was decided by then; 0 = any."""

    def __init__(self, folder: Path, notary: Notary, position: int = 0, before_ms: int = 0) -> None:
        self.folder, self._notary = folder, notary
        self._position, self._before_ms = position, before_ms
        self._cut = Cut()
        self._named = 0  # the last READS block that a block up to the cut names
        self.findings: list[str] = []
        self.count = 0
        self._bare: dict[tuple[str, int], Whose | None] = {}  # without their bodies; of memories: whose they are
        self._whose: dict[Whose, Whose] = {}  # each once
        self._blocks = self._events = 0
        self._middle = 0  # the block in the middle
        self._names: dict[str, str] = {}  # tenants
        self._users: Counter[tuple[str, str]] = Counter()  # (tenant, user's token) → memories
        self._drill: dict[str, Any] = {}

    def found(self, what: str) -> None:
        self.count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(what)

    def run(self) -> dict[str, Any]:
        """{ok, findings, findings_count, blocks, events, cut, drill}. `drill`: what of it a drill may choose: the time of the
        middle block, a memory in it, the end user with the most memories.
        """
        try:
            kept = read_kept(self.folder)
            if kept is None:
                raise SnapshotDamaged(self.folder, "it has no streams.json: no copy into it was ever finished")
            self._ledger(kept)
            self._excuse(forgotten(self.folder, kept.ledger, self._notary))
            self._reads(kept.reads)
        except SnapshotDamaged as e:
            self.found(e.message)
        for tenant, seq in sorted(self._bare):
            self.found(f"{self.folder}: event {seq} of tenant {tenant} has lost its body, and no erasure in it names it")
        return {
            "ok": not self.count,
            "findings": self.findings,
            "findings_count": self.count,
            "blocks": self._blocks,
            "events": self._events,
            "cut": msgspec.to_builtins(self._cut),
            "drill": self._drill | {"user": self._busiest()},
        }

    def _busiest(self) -> dict[str, str]:
        [((tenant, user), _)] = self._users.most_common(1) or [(("", ""), 0)]
        return {"tenant": self._names.get(tenant, ""), "user": user} if user else {}

    def _ledger(self, kept: Kept) -> None:
        at = [""]
        self._middle = (kept.ledger.last + 1) // 2
        survey = Survey("LEDGER", lambda what: self.found(f"{self.folder / at[0]}: {what}"))

        def block(no: int, data: bytes) -> bytes:
            found = survey.block(no, data)
            if found is None:
                return b""
            self._reached(no, found.header)
            if no <= self._middle:
                self._drill |= {"ms": found.header.ms, "block": no}
            for section in found.sections:
                for seq, (meta, body) in enumerate(section.events, section.seq):
                    self._event(section.tenant, seq, meta, body)
            return found.hash

        self._walk(kept.ledger, at, block)
        if not self.count and self._events != kept.events:
            self.found(f"{self.folder}: it has {self._events} events; {kept.events} were written")

    def _reached(self, no: int, header: Header) -> None:
        if (not self._position or no <= self._position) and (not self._before_ms or header.ms <= self._before_ms):
            self._cut.block, self._cut.at_ms = no, header.ms
            self._named = max(self._named, header.reads_seq)
            self._cut.reads_first = self._named + 1

    def _event(self, tenant: str, seq: int, meta: bytes, body: bytes | None) -> None:
        self._events += 1
        try:
            event = E.decode_event(meta)
        except msgspec.MsgspecError as e:
            self.found(f"{self.folder}: event {seq} of tenant {tenant} can't be decoded ({e})")
            return
        if body is None and getattr(event, "body", None):
            whose = (event.project, event.user, event.agent) if isinstance(event, E.MemoryWritten) else None
            self._bare[tenant, seq] = self._whose.setdefault(whose, whose) if whose else None
        match event:
            case E.TenantAdded():
                self._names[tenant] = event.name
            case E.MemoryWritten():
                if event.user and body is not None:
                    self._users[tenant, event.user] += 1
                if body is not None and (("ms" in self._drill and event.ms <= self._drill["ms"]) or "memory" not in self._drill):
                    self._drill |= {"memory": ids.text("mem_", event.id), "tenant": self._names.get(tenant, "")}
        if isinstance(event, E.MemoryErased | E.LedgerAccepted):
            self._excuse((tenant, s) for s in erased_by(event, seq))
        elif isinstance(event, E.TenantChanged) and event.state == "deleted":
            self._excuse([x for x in self._bare if x[0] == tenant])
        elif isinstance(event, E.HomeRestored) and event.part is not None:  # a part: those that it left out, and no others
            part = event.part
            self._excuse([x for x, whose in self._bare.items() if x[0] == tenant and whose and not part.has(*whose)])

    def _excuse(self, texts: Iterable[tuple[str, int]]) -> None:
        """Their bodies are gone for a reason that the copy proves."""
        for x in texts:
            self._bare.pop(x, None)

    def _reads(self, stream: Stream) -> None:
        head, at = ReadsHead(), [""]

        def block(no: int, data: bytes) -> bytes:
            nonlocal head
            try:
                read = decode_reads(data, no)
                head.commit(read)
            except LedgerError as e:
                self.found(f"{self.folder / at[0]}: {e.message}")
                head = ReadsHead()
                return b""
            if read.header.ledger_seq <= self._cut.block:
                self._cut.reads_first = stream.first
            return read.hash

        self._walk(stream, at, block)

    def _walk(self, stream: Stream, at: list[str], block: Callable[[int, bytes], bytes]) -> None:
        """Every block of a stream's segments; `at` is told the file. What is said of ends must fit what is there."""
        expected = stream.first
        for segment in stream.segments:
            at[0] = segment.file
            if segment.first != expected:
                self.found(f"{self.folder / segment.file}: it begins at block {segment.first}, not {expected}")
            expected = segment.last + 1
            self._segment(segment, block)
        if expected != stream.last + 1:
            self.found(f"{self.folder}: {stream.identity} ends at block {expected - 1}; {stream.last} was written")

    def _segment(self, segment: Segment, block: Callable[[int, bytes], bytes]) -> None:
        last = b""
        try:
            for no, data in read_segment(self.folder, segment):
                last = block(no, data)
                self._blocks += 1
        except SnapshotDamaged as e:
            self.found(e.message)
            return
        if last and last.hex() != segment.hash:
            self.found(f"{self.folder / segment.file}: its last block isn't the one that was written")
