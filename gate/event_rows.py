"""What the lineage store gets of the ledger and READS: the one place where events become rows. Pure but for the tenants'
dense numbers.

Invariant: a tenant's number is given by its first section in the ledger, so that a rebuild gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

from gate.ledger import events as E
from gate.projections.lineage_rows import (
    AuditLine,
    CaseEventLine,
    CaseMemberLine,
    EdgeLine,
    MemoryLine,
    NoticeLine,
    RecallLine,
    Rows,
    ServedLine,
    TenantLine,
    WithdrawnLine,
)
from gate.state.tenant import Tenant

_tuple: Final = tuple.__new__  # of what there are many: `_make`, which is Python, takes ten times as long


class EventRows:
    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, account: str) -> int:
        """A tenant's number; its own from its first section on."""
        return self.numbers.setdefault(account, len(self.numbers))

    def ledger(
        self, tenants: dict[str, Tenant], sections: Iterable[tuple[str, int, Sequence[E.AnyEvent]]], ledger_seq: int
    ) -> Rows:
        """Rows of one block: (account, first tenant_seq, events) of each section, already applied to `tenants`."""
        rows = Rows()
        for account, first, events in sections:
            n = self.numbers.get(account)
            if n is None:
                n = self.numbers[account] = len(self.numbers)
                rows.tenant.append(TenantLine(n, account))
            if any(isinstance(e, E.TenantChanged) and e.state == "deleted" for e in events):
                rows.gone.add(n)
            if tenants[account].deleted or n in rows.gone:
                continue
            for seq, e in enumerate(events, first):
                self._event(rows, tenants[account], n, seq, e, ledger_seq)
        return rows

    def _event(self, rows: Rows, t: Tenant, n: int, seq: int, e: E.AnyEvent, ledger_seq: int) -> None:
        match e:
            case E.MemoryWritten():
                state = "held" if e.holds or e.cases else "active"
                rows.memory.append(
                    MemoryLine(
                        n,
                        seq,
                        e.id,
                        e.project,
                        e.agent,
                        e.kind,
                        e.origin,
                        e.trust,
                        e.floor,
                        e.class_,
                        state,
                        e.ms,
                        e.ctx,
                        e.epoch,
                        e.ctx_seq,
                    )
                )
                rows.edge += [_tuple(EdgeLine, (n, x.parent, seq, x.kind, x.confidence)) for x in e.edges]
                for case in e.cases:
                    rows.case_event.append(CaseEventLine(n, ledger_seq, case, "joined", e.ms, e.agent, 1))
                    rows.case_member.append(CaseMemberLine(n, case, seq))
            case E.CaseOpened():
                rows.case_event.append(CaseEventLine(n, ledger_seq, e.case, "opened", e.ms, e.agent, e.count))
                if e.case in t.cases:  # sealed and whole
                    members = t.cases[e.case].members.tolist()
                    rows.case_member += map(_tuple, repeat(CaseMemberLine), zip(repeat(n), repeat(e.case), members, strict=False))
            case E.CaseReleased():
                rows.case_event.append(
                    CaseEventLine(n, ledger_seq, e.case, "released", e.ms, e.agent, len(t.cases[e.case].all_members()))
                )
            case E.NoticeSent():
                rows.notice += [NoticeLine(n, e.case, e.kind, a, "sent", e.ms) for a in e.agents]
            case E.NoticeAcked():
                rows.notice.append(NoticeLine(n, e.case, e.kind, e.agent, "acked", e.ms))

    def reads(self, records: Iterable[tuple[Tenant, E.AnyRecord]]) -> Rows:
        """Rows of one READS block."""
        rows = Rows()
        for t, r in records:
            if t.deleted:
                continue
            n = self.numbers[t.account]
            match r:
                case E.Served():
                    rows.recall.append(
                        RecallLine(n, r.recall, r.ctx, r.epoch, r.ctx_seq, r.agent, r.project, r.ms, r.verb, r.intent, r.risk)
                    )
                    rows.served += [
                        ServedLine(n, r.recall, seq, decision, reasons) for seq, decision, reasons in (*r.items, *r.withheld)
                    ]
                case E.Withdrawn():
                    rows.withdrawn += [WithdrawnLine(n, r.recall, seq) for seq in r.items]
                case E.Audit():
                    rows.audit.append(AuditLine(n, r.ms, r.key, r.verb, r.project, r.code, r.count, r.agent, r.memory))
        return rows
