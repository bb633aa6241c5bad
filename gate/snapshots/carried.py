"""What a ledger of an earlier time takes over from what came later. Pure.

Memories are as they were then; who there is, and what was forbidden since, is as it is now:

    taken as it is    agents, their keys, delegations and revocations; tenants; closed contexts; accepted losses
    its members only  erasures, legal holds, cases (those of memories that were there already)
    if it tightens    settings, sharing and state of a project; suspending or deleting a tenant; rejecting in review
                      ends of memories before their time
    left out          memories, feedback to them, reports that have them live longer; releases and resumptions, unless of a
                      case or an end that is carried over too

Invariant: nothing that is carried over shows more than the earlier ledger did, and no text comes back that was erased since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from bus.frames import CLASSIFICATIONS
from gate.config import ProjectSettings, decode_settings, encode_settings
from gate.ledger import events as E
from gate.ledger.block import Payload, Section
from gate.ledger.members import Members, erased_by, members_digest, pack_members, unpack_members

_GATES = ("off", "shadow", "enforce")  # from the loosest


class Earlier:
    """One tenant: feed `then` with its sections up to the cut, `later` with those after it."""

    def __init__(self) -> None:
        self.last = 0  # tenant_seq at the cut
        self.erased: set[int] = set()  # at any time, of what was there at the cut
        self._projects: dict[str, E.ProjectChanged] = {}
        self._suspended = False
        self._sealed: set[bytes] = set()  # cases of then
        self._begun: set[bytes] = set()  # cases that have parts before the cut
        self._erasures: set[bytes] = set()
        self._legal: set[bytes] = set()
        self._ends: set[bytes] = set()  # that are carried over
        self._parts: dict[bytes, dict[int, E.CasePart]] = {}
        self._names: dict[bytes, bytes] = {}  # cases that are carried over → under which id

    def then(self, section: Section) -> None:
        for seq, (meta, _) in enumerate(section.events, section.seq):
            match event := E.decode_event(meta):
                case E.ProjectChanged():
                    self._projects[event.name] = event
                case E.TenantChanged():
                    self._suspended = event.state == "suspended"
                    self._ends_all(event, seq)
                case E.CasePart():
                    self._parts.setdefault(event.case, {})[event.part] = event
                    self._begun.add(event.case)
                case E.CaseOpened():
                    self._sealed.add(event.case)
                    self._parts.pop(event.case, None)
                case E.MemoryErased():
                    self._erasures.add(event.erasure)
                    self.erased.update(erased_by(event, seq))
                case E.LedgerAccepted():
                    self.erased.update(erased_by(event, seq))
                case E.LegalHoldPlaced():
                    self._legal.add(event.hold)
        self.last = section.last

    def later(self, section: Section) -> Iterator[Payload]:
        """The events of a later section that are carried over, as they are appended."""
        for meta, body in section.events:
            event = E.decode_event(meta)
            for kept in self._carried(event):
                yield (meta if kept is event else E.encode(kept)), (body if getattr(kept, "body", b"") else None)

    def _carried(self, event: E.AnyEvent) -> list[E.AnyEvent]:
        match event:
            case E.MemoryErased():
                return self._erasure(event)
            case E.LedgerAccepted() if event.deltas:
                members = self._here([event.deltas])
                self.erased |= set(members.tolist())
                return [msgspec.structs.replace(event, deltas=b"".join(raw for _, raw in pack_members(members)))]
            case E.CasePart():
                self._parts.setdefault(event.case, {})[event.part] = event
                return []
            case E.CaseOpened():
                return self._case(event)
            case E.LegalHoldPlaced():
                members = self._here([event.deltas])
                self._legal |= {event.hold} if len(members) else set()
                return [_with(event, members)] if len(members) else []
            case E.LifeEnded():
                members = self._here([event.deltas])
                self._ends |= {event.end} if len(members) else set()
                return [_with(event, members)] if len(members) else []
            case E.ProjectChanged():
                return [self._tighter(event)]
            case E.TenantChanged():
                self._ends_all(event, self.last + 1)
                wanted = event.state != "active" or not self._suspended
                return [event] if wanted else []
        return [event] if self._as_it_is(event) else self._of_case(event)

    def _as_it_is(self, event: E.AnyEvent) -> bool:
        match event:
            case E.MemoryReviewed():
                return event.verdict == "reject" and event.memory <= self.last
            case E.ErasureDone():
                return event.erasure in self._erasures
            case E.LegalHoldLifted():
                return event.hold in self._legal
            case E.LifeResumed():
                return event.end in self._ends
            case E.MemoryWritten() | E.LifeExtended() | E.CaseReleased() | E.NoticeSent() | E.NoticeAcked():
                return False
        return True

    def _of_case(self, event: E.AnyEvent) -> list[E.AnyEvent]:
        """What belongs to a case that is carried over, or is no release of one that was there."""
        if not isinstance(event, E.CaseReleased | E.NoticeSent | E.NoticeAcked):
            return []
        name = self._names.get(event.case)
        if name is not None:
            return [msgspec.structs.replace(event, case=name)]
        released = isinstance(event, E.CaseReleased) or event.kind == "released"
        return [] if released or event.case not in self._sealed else [event]

    def _here(self, deltas: list[bytes]) -> Members:
        """Those members that were there at the cut."""
        members = unpack_members(deltas)
        return members[members <= self.last]

    def _erasure(self, event: E.MemoryErased) -> list[E.AnyEvent]:
        members = self._here([event.deltas])
        if not len(members):
            return []
        self._erasures.add(event.erasure)
        self.erased |= set(members.tolist())
        return [_with(event, members)]

    def _ends_all(self, event: E.TenantChanged, seq: int) -> None:
        """A deletion takes every text that was there before it, at `seq`."""
        if event.erasure:
            self._erasures.add(event.erasure)
            self.erased.update(erased_by(event, seq))

    def _case(self, event: E.CaseOpened) -> list[E.AnyEvent]:
        parts = self._parts.pop(event.case, {})
        if event.case in self._sealed or event.case in self._names or parts.keys() != set(range(event.parts)):
            return []
        # Parts before the cut are in the ledger already, without their seal: under a new id they aren't mixed up with these.
        name = hashlib.blake2b(event.case, digest_size=16).digest() if event.case in self._begun else event.case
        return self._sealed_anew(event, self._here([parts[i].deltas for i in sorted(parts)]), name)

    def _sealed_anew(self, event: E.CaseOpened, members: Members, name: bytes) -> list[E.AnyEvent]:
        if not len(members):
            return []
        self._names[event.case] = name
        packed = pack_members(members)
        parts = [E.CasePart(ms=event.ms, case=name, part=i, count=n, deltas=raw) for i, (n, raw) in enumerate(packed)]
        roots = [s for s in event.roots if s <= self.last] or [int(members[0])]
        seal = msgspec.structs.replace(
            event, case=name, roots=roots, parts=len(packed), count=len(members), digest=members_digest(members)
        )
        return [*parts, seal]

    def _tighter(self, event: E.ProjectChanged) -> E.ProjectChanged:
        """A project that was there: the tighter of both in everything but its members; who they are is as it is now."""
        was = self._projects.get(event.name)
        if was is not None:
            settings = tighter(decode_settings(was.settings), decode_settings(event.settings))
            event = msgspec.structs.replace(
                event,
                settings=encode_settings(settings),
                state=event.state if was.state == "active" or event.state == "deleted" else was.state,
                shared_with=[name for name in event.shared_with if name in was.shared_with],
            )
        self._projects[event.name] = event
        return event


def tighter(a: ProjectSettings, b: ProjectSettings) -> ProjectSettings:
    """The stricter of both in each setting. Where two audiences have nobody in common, the second counts."""
    both = [role for role in a.audience if role in b.audience]
    hours = (a.context_idle_hours, b.context_idle_hours)
    return ProjectSettings(
        mode="enforce" if "enforce" in (a.mode, b.mode) else "shadow",
        gate=max(a.gate, b.gate, key=_GATES.index),
        flow_from=[name for name in a.flow_from if name in b.flow_from],
        flow_to=[name for name in a.flow_to if name in b.flow_to],
        classification_max=min(a.classification_max, b.classification_max, key=CLASSIFICATIONS.index),
        context_idle_hours=0 if 0 in hours else max(hours),
        audience=both or b.audience or a.audience,
    )


def _with(event: E.MemoryErased | E.LegalHoldPlaced | E.LifeEnded, members: Members) -> E.AnyEvent:
    """An erasure, legal hold or end of these members: they were one part, and are no more now."""
    [(count, deltas)] = pack_members(members)
    return msgspec.structs.replace(event, count=count, deltas=deltas)


def record_left(record: E.AnyRecord, last: int) -> E.AnyRecord:
    """What a later READS record says beside the earlier ledger: whose head has which labels, and which of its memories."""
    if isinstance(record, E.Served):
        items, withheld = ([x for x in seen if x[0] <= last] for seen in (record.items, record.withheld))
        return msgspec.structs.replace(record, items=items, withheld=withheld)
    if isinstance(record, E.Withdrawn):
        return msgspec.structs.replace(record, items=[x for x in record.items if x <= last])
    return record
