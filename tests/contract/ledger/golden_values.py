"""The values behind the golden files: every event, body and READS record, blocks of both streams, and their hashes.

`python -m tests.contract.ledger.golden_values` writes the files of new values. It never touches one that exists: bytes that are
in a ledger somewhere don't change; a new field comes last and has a default, a new meaning gets a new tag or version.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from gate.ledger import events as E
from gate.ledger.block import (
    ZERO_HASH,
    Header,
    ReadsHeader,
    Record,
    body_hash,
    decode,
    decode_reads,
    encode,
    encode_reads,
    make_section,
    members_digest,
    pack_members,
    strip,
)  # fmt: skip
from gate.ledger.chain import Heads

FOLDER = Path(__file__).parent / "golden"
TENANT_A, TENANT_B = "A" + "B2" * 27 + "C", "A" + "D3" * 27 + "E"
SALT = bytes(range(32))
MS = 1_764_000_000_123


def raw(n: int, size: int = 16) -> bytes:
    return bytes((n + i) % 256 for i in range(size))


MEMORY_BODY = E.MemoryBody(
    content="Prag, 12. März: pay 4 000 € to account 7 ✓",
    vector=raw(9, 8),
    evidence=["https://example.org/a#L3", "line 2"],
    run="run-1",
    task="task-2",
    session="session-3",
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    scope_id="sprint-7",
)
NOTE = E.NoteBody(text="confirmed by telephone")
BODY, NOTE_BODY = SALT + E.encode(MEMORY_BODY), SALT + E.encode(NOTE)

FULL = E.MemoryWritten(
    ms=MS, id=raw(1), project="billing", scope=1, user="usr_abcdefghijklmnop", agent=raw(2), key="U" + "A2" * 27 + "B",
    role="agent", chain=[raw(3), raw(4)], kind=5, origin=1, origin_claimed=2, method=2, trust=480, floor=250, class_=2, sens=1,
    opt_out=True, readers=[["agent:a", "role:operator"], ["user:u"]], comp=["project:billing", "user:usr_x"],
    holds=["screen:instruction"], reasons=["sourceless"], edges=[E.Edge(0, 3, 255), E.Edge(1, 4, 200), E.Edge(2, 70_000, 130)],
    cases=[raw(5)], exposed=[raw(6)], ctx=raw(7), epoch=2, ctx_seq=300, from_=MS - 1_000, until=MS + 1_000, expires=MS + 2_000,
    oldest=MS - 5_000, supersedes=3, contradicts=4, task_state=1, nosrc=True, evroot=raw(8, 8), run=raw(9, 8), task=raw(10, 8),
    session=raw(11, 8), red=[["api_key", 4, 20]], tool="browser", idem=raw(12), idem_content=raw(13), policy=6, gate="gate-1",
    enc="static-256:0123456789abcdef", body=body_hash(BODY),
)  # fmt: skip
LEAST = E.MemoryWritten(
    ms=MS, id=raw(1), project="billing", agent=raw(2), key="K", role="agent", origin=1, trust=500, floor=500, ctx=raw(7),
    body=body_hash(BODY),
)  # fmt: skip

NOTE_HASH = body_hash(NOTE_BODY)
[(COUNT, DELTAS)] = pack_members([3, 7, 300, 70_000])

EVENTS: dict[str, E.AnyEvent] = {
    "memory_written": FULL,
    "memory_written.least": LEAST,
    "memory_written.later_fields": msgspec.structs.replace(LEAST, expires=MS + 9, fixed=True, promotes=5),
    "memory_reviewed": E.MemoryReviewed(ms=MS, memory=5, verdict="accept", agent=raw(2), person="p-1", body=NOTE_HASH),
    "case_part": E.CasePart(ms=MS, case=raw(5), part=1, count=COUNT, deltas=DELTAS),
    "case_opened": E.CaseOpened(
        ms=MS, case=raw(5), agent=raw(2), person="p-1", roots=[3], parts=1, count=4, digest=raw(14, 32), plan=raw(15), policy=6,
        edges=[0, 1, 4], suspects=2, until=MS + 9, body=NOTE_HASH,
    ),
    "case_released": E.CaseReleased(ms=MS, case=raw(5), agent=raw(2), person="p-1", body=NOTE_HASH),
    "notice_sent": E.NoticeSent(ms=MS, case=raw(5), kind="recall", agents=[raw(2), raw(3)]),
    "notice_acked": E.NoticeAcked(ms=MS, case=raw(5), kind="recall", agent=raw(2)),
    "context_closed": E.ContextClosed(ms=MS, ctx=raw(7), epoch=3, agent=raw(2), person="p-1", body=NOTE_HASH),
    "tenant_added": E.TenantAdded(ms=MS, name="acme", by="U1"),
    "project_changed": E.ProjectChanged(ms=MS, name="billing", state="archived", settings=b'{"mode":"shadow"}', by="U1"),
    "project_changed.full": E.ProjectChanged(
        ms=MS, name="billing", state="active", settings=b"{}", by="ann", display="Prag, März", shared_with=["support"],
        joined=[raw(2)], left=[raw(3)], body=NOTE_HASH,
    ),
    "agent_issued": E.AgentIssued(
        ms=MS, agent=raw(2), name="planner", key="U2", role="agent", projects=["billing", "ops"], person="p-1", parent=raw(3),
        by="U1",
    ),
    "agent_delegated": E.AgentDelegated(
        ms=MS, agent=raw(4), name="planner--helper", key="U5", role="agent", parent=raw(2), via="U2", projects=["billing"],
        verbs=["get", "query"], tools=["erp"], clearance=1, ceiling=1, user="usr_abcdefghijklmnop", person="p-1",
        expires=MS + 3_600_000,
    ),
    "agent_revoked": E.AgentRevoked(ms=MS, agent=raw(2), keys=["U2", "U3"], whole=True, by="U1"),
    "tenant_changed": E.TenantChanged(ms=MS, state="suspended", by="U1"),
    "tenant_changed.deleted": E.TenantChanged(ms=MS, state="deleted", by="ann", exported=True, body=NOTE_HASH),
    "tenant_changed.erased": E.TenantChanged(
        ms=MS, state="deleted", by="ann", second="lee", exported=True, erasure=raw(18), memories=3, body=NOTE_HASH
    ),
    "policy_changed": E.PolicyChanged(ms=MS, number=6, registry=raw(16, 32), by="U1"),
    "ledger_accepted": E.LedgerAccepted(ms=MS, by="U1", position=70_000),
    "ledger_accepted.bodies": E.LedgerAccepted(ms=MS, by="U1", position=70_000, deltas=b"\x05\x01"),
    "home_restored": E.HomeRestored(
        ms=MS, by="kim", source="0a" * 16, block=70_000, at=MS - 9, later=70_009, read_only=True, body=NOTE_HASH
    ),
    "home_restored.part": E.HomeRestored(
        ms=MS, by="kim", source="0a" * 16, block=70_000, at=MS - 9, read_only=True,
        part=E.Part(project="p1", user="usr_abcdefghijklmnop", agents=[raw(2), raw(3)]),
    ),
    "memory_erased": E.MemoryErased(
        ms=MS, erasure=raw(18), agent=raw(2), person="p-1", second="p-2", second_agent=raw(3), count=COUNT, deltas=DELTAS,
        derived=1, body=NOTE_HASH,
    ),
    "erasure_done": E.ErasureDone(ms=MS, erasure=raw(18), stores={"catalog": 4, "ledger": 2}),
    "legal_hold_placed": E.LegalHoldPlaced(
        ms=MS, hold=raw(19), agent=raw(2), person="p-1", count=COUNT, deltas=DELTAS, body=NOTE_HASH
    ),
    "legal_hold_lifted": E.LegalHoldLifted(ms=MS, hold=raw(19), agent=raw(2), person="p-1", body=NOTE_HASH),
    "life_extended": E.LifeExtended(ms=MS, agent=raw(2), items=[(3, MS + 9), (70_000, MS + 99)]),
    "life_ended": E.LifeEnded(
        ms=MS, end=raw(22), why="pruned", agent=raw(2), person="p-1", count=COUNT, deltas=DELTAS, plan=raw(15), body=NOTE_HASH
    ),
    "life_resumed": E.LifeResumed(ms=MS, end=raw(22), agent=raw(2), person="p-1", body=NOTE_HASH),
}  # fmt: skip

RECORDS: dict[str, E.AnyRecord] = {
    "served": E.Served(
        ms=MS, recall=raw(17), ctx=raw(7), epoch=2, ctx_seq=300, agent=raw(2), project="billing", verb="query", intent=3, risk=2,
        run=raw(9, 8), task=raw(10, 8), items=[(5, 0, 1), (70_000, 2, 12)], withheld=[(9, 4, 1 << 20)],
        joined=E.Joined(250, 0, 2, 1, True, ["project:billing"]),
    ),
    "withdrawn": E.Withdrawn(ms=MS, recall=raw(17), items=[5, 70_000]),
    "audit": E.Audit(ms=MS, agent=raw(2), key="U2", verb="query", project="billing", code="denied", count=3, memory=5),
}  # fmt: skip


def blocks() -> dict[str, bytes]:
    """Two chained LEDGER blocks (with, without and with erased bodies) and two READS blocks."""
    heads = Heads()
    written: list[tuple[bytes, bytes | None]] = [(E.encode(FULL), BODY), (E.encode(EVENTS["tenant_added"]), None)]
    first, first_bytes = heads.build(shard=0, epoch=1, ms=MS, reads_seq=0, events={TENANT_A: written, TENANT_B: written[:1]})
    heads.commit(first)
    later = {TENANT_B: written[1:], TENANT_A: written[:1]}
    _, second_bytes = heads.build(shard=0, epoch=2, ms=MS + 1, reads_seq=70_000, events=later)
    records = [Record(TENANT_A, E.encode(RECORDS["served"])), Record(TENANT_B, E.encode(RECORDS["audit"]))]
    header = ReadsHeader(shard=0, no=5, epoch=2, ms=MS, ledger_seq=70_000, prev_block=raw(20, 32), records=2)
    empty_reads = ReadsHeader(shard=0, no=1, epoch=0, ms=0, ledger_seq=0, prev_block=ZERO_HASH, records=0)
    empty = Header(shard=3, no=1, epoch=0, ms=0, reads_seq=0, prev_block=ZERO_HASH, sections=0)
    return {
        "block.first": first_bytes,
        "block.second": second_bytes,
        "block.first.stripped": strip(first_bytes),
        "block.first.stripped-one": strip(first_bytes, {(TENANT_A, 1)}),
        "block.empty": encode(empty, [])[1],
        "reads": encode_reads(header, records)[1],
        "reads.empty": encode_reads(empty_reads, [])[1],
    }


def hashes() -> dict[str, bytes]:
    """One of each hash."""
    given = blocks()
    section = make_section(TENANT_A, 9, raw(21, 32), [(b"\x80", None), (b"\x81\xa1a\x01", None)])
    return {
        "hash.body": body_hash(BODY),
        "hash.section": section.hash,
        "hash.block.first": decode(given["block.first"]).hash,
        "hash.block.second": decode(given["block.second"]).hash,
        "hash.reads": decode_reads(given["reads"]).hash,
        "hash.members": members_digest([3, 7, 300, 70_000]),
    }


def golden() -> dict[str, bytes]:
    """File name without `.hex` → the bytes it must hold."""
    return {
        **{f"event.{name}": E.encode(event) for name, event in EVENTS.items()},
        **{f"record.{name}": E.encode(record) for name, record in RECORDS.items()},
        "body.memory": E.encode(MEMORY_BODY),
        "body.note": E.encode(NOTE),
        **blocks(),
        **hashes(),
    }


def read(name: str) -> bytes:
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text())


def write_new() -> None:
    for name, data in golden().items():
        path = FOLDER / f"{name}.hex"
        if not path.exists():
            text = data.hex()
            path.write_text("".join(f"{text[at : at + 96]}\n" for at in range(0, len(text), 96)))


if __name__ == "__main__":
    write_new()
