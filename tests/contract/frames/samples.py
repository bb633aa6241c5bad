"""One sample of every frame on the wire. `python -m tests.contract.frames.samples` writes the golden bytes of new ones.

A golden file that exists is never rewritten: bytes that change are a change of the wire, and need a new WIRE_VERSION.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bus.frames import (
    Ack,
    Actor,
    AdmAgent,
    AdmErased,
    AdmProject,
    AdmRegistry,
    AdmStatus,
    AdmTenant,
    AdmVerify,
    Case,
    CaseQuery,
    Cases,
    ContextAnswer,
    ContextRequest,
    Delegate,
    Delegated,
    Done,
    Draft,
    Edge,
    Erase,
    Erasure,
    ErasureQuery,
    Erasures,
    Feed,
    Frame,
    Get,
    Hold,
    Item,
    LegalHold,
    LegalHoldRequest,
    LegalHolds,
    Lineage,
    Member,
    Memory,
    Notice,
    Plan,
    Prune,
    Pruned,
    Prunings,
    Query,
    Recall,
    Receipt,
    Redaction,
    Refusal,
    Release,
    Report,
    Reported,
    Review,
    ReviewQuery,
    Reviews,
    Sign,
    Signed,
    Stats,
    StatsRequest,
    Store,
    Sync,
    Synced,
    Trace,
    TraceAnswer,
    Why,
    WhyAnswer,
    encode,
)

FOLDER: Final = Path(__file__).parent
R: Final = "0123456789abcdef01234567"
KEY: Final = "U" + "A" * 55
ACCOUNT: Final = "A" + "B" * 55
MEM_1, MEM_2 = "mem_" + "0" * 25 + "1", "mem_" + "0" * 25 + "2"
CASE, PLAN, REC = "case_" + "0" * 25 + "3", "plan_" + "0" * 25 + "4", "rec_" + "0" * 25 + "5"
AT: Final = "2026-01-31T12:00:00Z"

ACTOR: Final = Actor(
    id="agt_" + "0" * 25 + "6", key=KEY, name="writer", type="agent", chain=["agt_" + "0" * 25 + "7"], via="query"
)
MEMORY: Final = Memory(
    id=MEM_1, content="The staging database uses rotating keys – “weekly” 🗝", kind="fact", project="p1",
    origin="agent_inferred",
    trust=0.5, trust_floor=0.25, actor=ACTOR, evidence=["https://example.org/runbook#3"], lineage=Lineage(declared=1,
    copied=2),
    readers=[["agent:reader", "role:operator"], ["user:u-1"]], written_at=AT, valid_until="2027-01-31T12:00:00Z",
    position=7,
)  # fmt: skip
MEMBER: Final = Member(id=MEM_2, agent="writer", project="p1", kind="fact", hops=1, state="held", confidence=0.75)
HELD: Final = Case(
    request_id=R, agent=KEY, case=CASE, state="open", by="ops", person="kim", why="forged source", roots=[MEM_1],
    count=2, joined=1,
    members=[MEMBER], told=["reader"], told_elsewhere=1, opened_at=AT, position=9, closure_ms=0.25, hold_ms=1.5,
    told_count=1,
)  # fmt: skip
NOTICE: Final = Notice(
    notice="n-1", kind="recall", agent=KEY, case=CASE, ids=[MEM_1, MEM_2], total=2, position=9,
)  # fmt: skip
WISH: Final = Delegate(
    request_id=R, name="helper", key="U" + "B" * 55, role="agent", projects=["p1"], clearance="internal",
    verbs=["query", "get"], tools=["erp"], ceiling="agent_inferred", user="ann", ttl=600, at=1_769_990_000, proof="c2ln",
)  # fmt: skip

ERASURE, LEGAL = "era_" + "0" * 25 + "9", "lgl_" + "0" * 25 + "a"
ERASED: Final = Erasure(
    request_id=R, agent=KEY, erasure=ERASURE, state="erasing", by="ops", person="kim", second="lee", why="asked for",
    members=[MEMBER], count=2, derived=1, left=[MEMBER], left_count=1, elsewhere=1, cases=[CASE], legal_holds=[LEGAL],
    stores=[Store(name="ledger", count=2, state="pending", note="stripped")], pending=["1 block"], out_of_reach=["backups"],
    erased_at=AT, done_at=AT, position=9, next=500,
)  # fmt: skip
PLAN_ID, END = "plan_" + "0" * 25 + "9", "end_" + "0" * 25 + "7"
PRUNED = Pruned(
    request_id=R, agent=KEY, project="p1", plan=PLAN_ID, end=END, state="undone", why="task", message="tidying", by="ops",
    members=[MEMBER], count=2, more=1, promoted=1, left=1, by_kind={"event": 2}, by_agent={"writer": 2}, kept={"read": 3},
    until=AT, ended_at=AT, undone_at=AT, position=9,
)  # fmt: skip
SAMPLES: Final[dict[str, Frame]] = {
    "draft": Draft(
        request_id=R, content="The invoice job runs at five", kind="procedure", origin="tool_result",
        method="extracted",
        evidence=["crontab:12"], derived_from=[MEM_1], run="nightly", task="t1", session="s1", trace_id="0af7",
        task_state="active",
        claimed_confidence=0.8, sensitivity="high", classification="restricted", readers=[["role:agent"]],
        valid_from=AT, ttl=3600,
        opt_out=True, supersedes=MEM_2, idempotency_key="k-1", tool="cron",
    ),
    "draft-least": Draft(content="a"),
    "draft-promotes": Draft(request_id=R, content="", promotes=MEM_1),
    "query": Query(
        request_id=R, text="staging login?", k=4, filters={"kind": ["fact", "rule"]}, as_of=AT, min_position=7,
        run="nightly", turn=2,
        intent="execute", tool_risk="privileged", required_origin=["user_stated"], scene="ops", history_off=True,
    ),
    "get": Get(request_id=R, ids=[MEM_1, MEM_2], min_position=7),
    "report": Report(request_id=R, used=[MEM_1, MEM_2]),
    "reported": Reported(request_id=R, agent=KEY, project="p1", extended={MEM_1: AT}, position=9),
    "ack": Ack(request_id=R, notices=["n-1"]),
    "sync": Sync(request_id=R),
    "delegate": WISH,
    "delegated": Delegated(
        request_id=R, agent=KEY, project="p1", id="agt_" + "0" * 25 + "8", name="writer--helper", key="U" + "B" * 55,
        role="agent", chain=["agt_" + "0" * 25 + "6"], projects=["p1"], clearance="internal", verbs=["get", "query"],
        tools=["erp"], ceiling="agent_inferred", expires_at=AT, jwt="e30.e30.e30", position=9,
    ),
    "sign": Sign(
        request_id=R, account=ACCOUNT, parent="e30.e30.e30", wish=WISH, name="writer--helper", expires_at=1_770_000_000
    ),
    "signed": Signed(request_id=R, jwt="e30.e30.e30"),
    "receipt": Receipt(
        request_id=R, agent=KEY, project="p1", id=MEM_1, state="held", trust=0.5, trust_floor=0.25,
        origin="agent_inferred",
        actor=ACTOR, reasons=["instruction_shaped"], redactions=[Redaction(type="aws_key", start=4, end=24)],
        parents=[MEM_2],
        position=7,
    ),
    "recall": Recall(
        request_id=R, agent=KEY, project="p1", recall_id=REC,
        admitted=[
            Item(
                memory=MEMORY, rank=1, score=0.91, decision="rank_down", reasons=["within_policy"],
                constraints=["require_citation"],
                surface="tentative",
            ),
        ],
        withheld={"below_floor": 2}, notes=["history_off"], generation=3, position=9,
    ),
    "refusal": Refusal(
        request_id=R, agent=KEY, project="p1", error="rejected", reason="too_long", reasons=["too_long"],
        field="content", limit=65536,
        message="A field is over its limit.", advice="Shorten it.", detail={"size": 65537},
    ),
    "feed": Feed(project="p1", classification="internal", kind="memory", ids=[MEM_1], position=7),
    "notice": NOTICE,
    "synced": Synced(request_id=R, agent=KEY, project="p1", notices=[NOTICE], position=9),
    "hold": Hold(
        request_id=R, selector=["agent:writer", MEM_1], dry_run=True, suspects=True, cursor=500, rollback=CASE, kind="rollback"
    ),
    "release": Release(request_id=R, case=CASE, message="false alarm"),
    "case_query": CaseQuery(request_id=R, case=CASE, cursor=500),
    "review": Review(request_id=R, id=MEM_1, verdict="accept", message="checked"),
    "trace": Trace(request_id=R, id=MEM_1, direction="up", hops=2, edges=["declared", "served"]),
    "why": Why(request_id=R, id=MEM_1, reveal=True),
    "context": ContextRequest(request_id=R, agent="writer", action="close", message="restarted"),
    "prune": Prune(
        request_id=R, action="plan", project="p1", kinds=["event"], older_than=7_776_000, task="t1", plan=PLAN_ID, end=END,
        message="tidying", cursor=500,
    ),
    "pruned": PRUNED,
    "prunings": Prunings(request_id=R, agent=KEY, project="p1", ends=[PRUNED], position=9, next=500),
    "stats_query": StatsRequest(request_id=R),
    "plan": Plan(
        request_id=R, agent=KEY, plan=PLAN, roots=[MEM_1], members=[MEMBER], count=2, elsewhere=1,
        by_agent={"writer": 2},
        by_project={"p1": 1}, by_kind={"fact": 2}, by_depth={"0": 1, "1": 1}, suspects=[MEMBER],
        agents_to_tell=["reader"], told_elsewhere=1, roots_count=1, suspects_count=1, agents_to_tell_count=1,
        reads_lost=3, expires_at=AT, position=8, next=500, closure_ms=0.25, again=[MEMBER], again_count=1, rollback=CASE,
    ),
    "case": HELD,
    "cases": Cases(request_id=R, agent=KEY, cases=[HELD], position=9, next=1),
    "trace_answer": TraceAnswer(
        request_id=R, agent=KEY, root=MEM_1, direction="down", nodes=[MEMBER],
        edges=[Edge(from_=MEM_1, to=MEM_2, kind="copied", confidence=0.75)], count=2, position=9,
    ),
    "why_answer": WhyAnswer(
        request_id=R, agent=KEY, id=MEM_1, kind="memory", sentences=["Written by writer."], facts={"trust": 0.5,
        "holds": []},
        parents=[Edge(from_=MEM_2, to=MEM_1, kind="declared")], reads=[{"recall": REC}], cases=[CASE], position=9,
        cases_count=1,
    ),
    "context_answer": ContextAnswer(
        request_id=R, agent=KEY, context="ctx_" + "0" * 25 + "8", root="writer", epoch=2, recalls=5, served=9,
        trust_floor=0.25,
        compartments=["p1"], elsewhere=1, exposed=[CASE], last_read_at=AT, position=9,
        exposed_count=1,
    ),
    "stats": Stats(request_id=R, agent=KEY, counts={"memories": 12}, position=9),
    "erase": Erase(request_id=R, selector=["user:u-1", MEM_1], derived=True, dry_run=True, agree=PLAN, message="asked for"),
    "erasure_query": ErasureQuery(request_id=R, erasure=ERASURE, cursor=500),
    "legal_hold": LegalHoldRequest(request_id=R, selector=[MEM_1], lift=LEGAL, message="12/26", cursor=100),
    "erasure": ERASED,
    "review_query": ReviewQuery(request_id=R, cursor=500),
    "reviews": Reviews(
        request_id=R, agent=KEY, members=[Member(id=MEM_1, agent="writer", project="p1", kind="rule", state="held")], count=3,
        elsewhere=1, position=9, next=500,
    ),
    "erasures": Erasures(request_id=R, agent=KEY, erasures=[ERASED], position=9, next=100),
    "legal_holds": LegalHolds(
        request_id=R, agent=KEY,
        holds=[
            LegalHold(
                hold=LEGAL, by="ops", person="kim", why="12/26", ids=[MEM_1], count=2, elsewhere=1, placed_at=AT, lifted_at=AT
            )
        ],
        position=9, next=100,
    ),
    "adm_erased": AdmErased(request_id=R, done=[7, 9], trouble="block 8: no copy"),
    "adm_tenant": AdmTenant(request_id=R, action="add", account=ACCOUNT, name="acme", user_key="00ff"),
    "adm_project": AdmProject(request_id=R, action="add", account=ACCOUNT, name="p1", settings={"context_idle_s": 3600}),
    "adm_project.share": AdmProject(
        request_id=R, action="share", account=ACCOUNT, name="p1", display="Prag", others=["p2"], agent="a", by="ann",
        message="one product",
    ),
    "adm_tenant.delete": AdmTenant(
        request_id=R, action="delete", account=ACCOUNT, what="lineage", cursor=7, position=9, exported=True, by="ann",
        message="over",
    ),
    "adm_agent": AdmAgent(request_id=R, action="add", account=ACCOUNT, name="writer", key=KEY, projects=["p1"], person="kim"),
    "adm_registry": AdmRegistry(request_id=R, jwt="e30.e30.c2ln"),
    "adm_status": AdmStatus(request_id=R),
    "adm_verify": AdmVerify(request_id=R),
    "done": Done(request_id=R, agent=KEY, result={"agent_id": "agt_1"}, position=9),
}  # fmt: skip


def golden(name: str) -> Path:
    return FOLDER / f"{name}.json"


def write_new() -> list[str]:
    """Write the missing golden files; returns their names."""
    new = [name for name in SAMPLES if not golden(name).exists()]
    for name in new:
        golden(name).write_bytes(encode(SAMPLES[name]))
    return new


if __name__ == "__main__":
    print("written:", ", ".join(write_new()) or "nothing new")
