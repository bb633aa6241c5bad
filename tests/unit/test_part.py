"""Which part of a copy is restored: what fits keeps its text, what doesn't its place, and what isn't there is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bus.errors import Rejected
from bus.identity import user_token
from gate.ledger import events as E
from gate.ledger.block import ZERO_HASH, Record, decode, decode_reads
from gate.ledger.chain import Heads, ReadsHead
from gate.snapshots.check import Check
from gate.snapshots.files import Kept, SegmentWriter, Stream, write_kept
from gate.snapshots.notary import Notary
from gate.snapshots.part import Chosen, Only
from gate.state.tenant import Tenant

MS = 1_764_000_000_000
ANN, BEN, CHILD = (bytes([n]) * 16 for n in (1, 2, 3))
ALICE = user_token(b"key", "alice")


def written(n: int, agent: bytes = ANN, project: str = "p1", user: str = "") -> E.MemoryWritten:
    return E.MemoryWritten(
        ms=MS, id=bytes([n]) * 16, project=project, agent=agent, key="U1", role="agent", origin=1, trust=400, floor=400,
        ctx=agent, user=user, body=bytes(32),
    )  # fmt: skip


EVENTS: tuple[E.AnyEvent, ...] = (
    E.TenantAdded(ms=MS, name="acme", by=""),
    E.ProjectChanged(ms=MS, name="p1"),
    E.ProjectChanged(ms=MS, name="p2"),
    E.AgentIssued(ms=MS, agent=ANN, name="ann", key="U1", role="agent", projects=["p1", "p2"]),
    E.AgentIssued(ms=MS, agent=BEN, name="ben", key="U2", role="agent", projects=["p1"]),
    E.AgentDelegated(ms=MS, agent=CHILD, name="ann--child", key="U3", role="agent", parent=ANN, via="U1", expires=MS + 1),
    written(7),  # 7
    written(8, project="p2"),
    written(9, BEN),
    written(10, CHILD),
    written(11, user=ALICE),
)
MEMORIES = {7, 8, 9, 10, 11}


def chosen(only: Only) -> Chosen:
    found = Chosen(only, lambda tenant, account: b"key")
    heads = Heads()
    for account, events in (("A", EVENTS), ("B", (E.TenantAdded(ms=MS, name="other", by=""),))):
        block, _ = heads.build(shard=0, epoch=1, ms=MS, reads_seq=0, events={account: [(E.encode(e), None) for e in events]})
        heads.commit(block)
        found.then(block.sections[0])
    return found


@pytest.mark.parametrize(
    ("only", "kept"),
    [
        (Only(tenant="acme"), MEMORIES),
        (Only(tenant="acme", project="p2"), {8}),
        (Only(tenant="acme", agent="ann"), {7, 8, 10, 11}),
        (Only(tenant="acme", agent="ann", project="p1"), {7, 10, 11}),
        (Only(tenant="acme", user="alice"), {11}),
        (Only(tenant="acme", user=ALICE), {11}),
    ],
)
def test_what_fits_all_that_is_asked_for_is_kept_and_a_replay_takes_the_rest_for_erased(only: Only, kept: set[int]) -> None:
    found = chosen(only)
    found.settle(2)
    assert (found.account, found.kept, found.left_out) == ("A", len(kept), MEMORIES - kept)
    t = Tenant("A")
    restored = E.HomeRestored(ms=MS + 5, by="kim", source="s", block=2, at=MS, part=found.part)
    for seq, event in enumerate((*EVENTS, E.decode_event(E.encode(restored))), 1):
        t.apply(seq, event)
    assert {s for s in MEMORIES if not t.columns.at.erased[s]} == kept
    assert t.partial


@pytest.mark.parametrize(
    ("only", "reason", "field"),
    [
        (Only(tenant="nobody"), "part_empty", "tenant"),
        (Only(tenant="acme", project="p9"), "part_empty", "project"),
        (Only(tenant="acme", agent="zed"), "part_empty", "agent"),
        (Only(tenant="acme", agent="ben", project="p2"), "part_empty", ""),
        (Only(tenant="acme", user="zoe"), "part_empty", "user"),
        (Only(tenant="other"), "part_empty", ""),
        (Only(project="p1"), "part_tenant_missing", "tenant"),
    ],
)
def test_what_matches_nothing_is_refused_and_never_everything(only: Only, reason: str, field: str) -> None:
    with pytest.raises(Rejected) as refused:
        chosen(only).settle(2)
    assert (refused.value.reason, refused.value.field or "") == (reason, field)
    assert "zoe" not in refused.value.message


def test_a_block_of_several_tenants_keeps_one_whose_chain_still_proves_it() -> None:
    found, heads, new = chosen(Only(tenant="acme")), Heads(), Heads()
    for n in range(3):
        payload = [(E.encode(written(n)), None)]
        block, data = heads.build(
            shard=0, epoch=1, ms=MS, reads_seq=0, events={"B": payload, "A": payload} if n else {"A": payload}
        )
        heads.commit(block)
        kept = found.block(block, data, new.block.hash)
        assert (kept == data) == (n == 0), "what needs no change is as it is stored"
        new.commit(decode(kept, n + 1))
    assert new.tenants == {"A": heads.head("A")}


def test_a_block_of_reads_keeps_the_tenants_own_records() -> None:
    found, head = chosen(Only(tenant="acme")), ReadsHead()
    block, data = head.build(shard=0, epoch=1, ms=MS, ledger_seq=1, records=[Record("B", b"x"), Record("A", b"y")])
    kept = decode_reads(found.reads(block, data, None), 1)
    assert (kept.records, kept.header.prev_block) == ((Record("A", b"y"),), ZERO_HASH)
    alone, data = head.build(shard=0, epoch=1, ms=MS, ledger_seq=1, records=[Record("A", b"y")])
    assert found.reads(alone, data, None) == data
    assert msgspec.structs.asdict(kept.header) == {**msgspec.structs.asdict(block.header), "records": 1}


def test_a_copy_of_a_part_may_be_without_the_texts_that_the_part_left_out_and_no_others(tmp_path: Path) -> None:
    """Whoever can write into it could strip any text: the chain's hashes are without them."""
    heads, writer = Heads(), SegmentWriter(tmp_path, "ledger")
    restored = E.HomeRestored(ms=MS, by="kim", source="s", block=1, at=MS, part=E.Part(project="p1", agents=[ANN, CHILD]))
    block, data = heads.build(
        shard=0, epoch=1, ms=MS, reads_seq=0, events={"A": [(E.encode(e), None) for e in (*EVENTS, restored)]}
    )
    writer.add(1, data, block.hash)
    writer.close()
    ledger = Stream(identity="s", last=1, hash=block.hash.hex(), segments=writer.done)
    write_kept(tmp_path, Kept(shard=0, ledger=ledger, reads=Stream(identity="r"), ms=MS, events=len(EVENTS) + 1))
    found = Check(tmp_path, Notary(tmp_path / "no.creds")).run()
    assert [line.split(": ", 1)[1].split(" of")[0] for line in found["findings"]] == ["event 7", "event 10", "event 11"]
