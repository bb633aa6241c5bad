"""The lineage store: exactly once, rows and position together, bounded, and refused when in doubt."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from bus.errors import Unavailable
from bus.frames import DECISIONS
from gate.projections import ProjectionUnusable, ProjectionUnwritable, lineage, lineage_rows, set_aside
from gate.projections.lineage import LineageStore
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
from gate.projections.queries import load_queries

STREAMS = {"LEDGER": "LEDGER_0@a", "READS": "READS_0@b"}
QUARANTINE = DECISIONS.index("quarantine")
ANN, BOB = b"a" * 16, b"b" * 16


def memory(seq: int, tenant: int = 0, ctx: bytes = ANN, ctx_seq: int = 0) -> MemoryLine:
    return MemoryLine(tenant, seq, b"m%015d" % seq, "notes", ANN, 0, 1, 500, 500, 1, "active", 1_000 + seq, ctx, 0, ctx_seq)


def recall(n: int, agent: bytes = ANN, tenant: int = 0, ctx_seq: int = 1) -> RecallLine:
    return RecallLine(tenant, b"r%015d" % n, agent, 0, ctx_seq, agent, "notes", 5_000 + n, "query", 0, 0)


def served(n: int, seq: int, decision: int = 0, tenant: int = 0) -> ServedLine:
    return ServedLine(tenant, b"r%015d" % n, seq, decision, 1 << 63)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lineage.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[LineageStore]:
    opened = LineageStore(path, STREAMS)
    yield opened
    opened.close()


def counts(store: LineageStore, tenant: int = 0) -> dict[str, int]:
    async def ask() -> dict[str, int]:
        for stream, seq in store._accepted.items():
            await store.wait(stream, seq, 10)
        return {name: rows for name, rows in await store.query("counts", {"tenant": tenant}) if rows}

    return asyncio.run(ask())


def test_rows_of_every_table_arrive_and_stay(path: Path) -> None:
    store = LineageStore(path, STREAMS)
    everything = Rows(
        tenant=[TenantLine(0, "ACCOUNT")],
        memory=[memory(1), memory(2)],
        edge=[EdgeLine(0, 1, 2, 1, 200)],
        recall=[recall(1)],
        served=[served(1, 1), served(1, 2, 4)],
        withdrawn=[WithdrawnLine(0, b"r%015d" % 1, 1)],
        case_event=[CaseEventLine(0, 7, b"c" * 16, "opened", 9, ANN, 2)],
        case_member=[CaseMemberLine(0, b"c" * 16, 1)],
        notice=[NoticeLine(0, b"c" * 16, "recall", BOB, "sent", 9)],
        audit=[AuditLine(0, 9, "K", "write", "notes", "over_quota", 3, ANN, 0)],
    )
    assert everything.count() == 12
    assert store.put("LEDGER", 4, everything)
    store.close()
    again = LineageStore(path, STREAMS)
    assert again.positions == {"LEDGER": 4, "READS": 0}
    twice = {"memory", "served"}
    once = {"edge", "recall", "withdrawn", "case_event", "case_member", "notice", "audit"}
    assert counts(again) == dict.fromkeys(twice, 2) | dict.fromkeys(once, 1)
    assert counts(again, tenant=1) == {}
    again.close()


def test_a_block_that_comes_again_is_skipped_also_after_a_restart(path: Path) -> None:
    store = LineageStore(path, STREAMS)
    assert store.put("LEDGER", 1, Rows(memory=[memory(1)]))
    assert not store.put("LEDGER", 1, Rows(memory=[memory(1)]))
    assert store.put("READS", 1, Rows(recall=[recall(1)]))
    store.close()
    again = LineageStore(path, STREAMS)
    assert not again.put("LEDGER", 1, Rows(memory=[memory(1)]))
    assert again.put("LEDGER", 3, Rows(memory=[memory(2)]))
    assert counts(again) == {"memory": 2, "recall": 1}
    assert again.positions == {"LEDGER": 3, "READS": 1}
    again.close()


def test_a_tenant_that_is_gone_leaves_its_number_alone_and_the_others_stay(path: Path) -> None:
    def lines(tenant: int) -> Rows:
        return Rows(tenant=[TenantLine(tenant, f"A{tenant}")], memory=[memory(1, tenant)], edge=[EdgeLine(tenant, 1, 2, 0, 9)])

    store = LineageStore(path, STREAMS)
    for seq, rows in enumerate((lines(0), lines(1), Rows(recall=[recall(1, tenant=1)]), Rows(gone={1})), 1):
        store.put("LEDGER", seq, rows)
    store.close()
    store = LineageStore(path, STREAMS)
    try:
        assert (counts(store, 0), counts(store, 1)) == ({"memory": 1, "edge": 1}, {})
    finally:
        store.close()
    both = lines(1)
    both.extend(Rows(gone={1}))  # in one batch with what it takes away
    assert (both.tables(), both.gone) == ([("tenant", [TenantLine(1, "A1")])], {1})


def test_waiting_ends_when_the_rows_are_there_or_the_time_is_over(store: LineageStore) -> None:
    async def scenario() -> None:
        waits = asyncio.gather(*(store.wait("LEDGER", seq, 10) for seq in (1, 2, 2)))
        await asyncio.sleep(0)
        store.put("LEDGER", 1, Rows(memory=[memory(1)]))
        store.put("LEDGER", 2, Rows(memory=[memory(2)]))
        await waits
        assert store.positions["LEDGER"] == 2
        assert dict(await store.query("counts", {"tenant": 0}))["memory"] == 2
        with pytest.raises(Unavailable, match="applied up to 2, not 3"):
            await store.wait("LEDGER", 3, 0.01)
        await store.wait("LEDGER", 1, 0.01)

    asyncio.run(scenario())


def test_an_error_rolls_everything_back_and_stops_the_store(path: Path) -> None:
    store = LineageStore(path, STREAMS)
    store.put("LEDGER", 1, Rows(memory=[memory(1)]))
    assert counts(store) == {"memory": 1}
    poisoned = memory(2)._replace(trust=1 << 40)
    store.put("LEDGER", 2, Rows(memory=[memory(2), poisoned], edge=[EdgeLine(0, 1, 2, 0, 0)]))

    async def scenario() -> None:
        with pytest.raises(Unavailable):
            await store.wait("LEDGER", 2, 10)
        with pytest.raises(Unavailable):
            await store.wait("LEDGER", 1, 10)
        assert dict(await store.query("counts", {"tenant": 0}))["edge"] == 0, "what is on disk can still be asked"

    asyncio.run(scenario())
    assert store.failed is not None
    assert not store.put("LEDGER", 3, Rows(memory=[memory(3)]))
    store.close()
    again = LineageStore(path, STREAMS)
    assert again.positions["LEDGER"] == 1
    assert again.put("LEDGER", 2, Rows(memory=[memory(2)]))
    assert counts(again) == {"memory": 2}
    again.close()


def test_a_queue_that_is_full_stops_the_store_instead_of_leaving_a_gap(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LineageStore(path, STREAMS)
    monkeypatch.setattr(lineage, "QUEUE_ROWS_MAX", 10)
    assert store.put("LEDGER", 1, Rows(memory=[memory(n) for n in range(5)]))
    assert counts(store) == {"memory": 5}
    assert not store.put("LEDGER", 2, Rows(memory=[memory(n) for n in range(5, 20)]))
    assert store.failed is not None
    assert store.failed.reason == "lineage_behind"
    assert not store.put("LEDGER", 3, Rows(memory=[memory(30)]))
    assert store.positions["LEDGER"] == 1
    store.close()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gate.projections.lineage import LineageStore
from gate.projections.lineage_rows import EdgeLine, Rows
store = LineageStore(Path(sys.argv[1]), {"LEDGER": "LEDGER_0@a", "READS": "READS_0@b"})
for seq in range(1, 400):
    store.put("LEDGER", seq, Rows(edge=[EdgeLine(0, seq, seq + 1, 0, 0)] * 10))
asyncio.run(store.wait("LEDGER", 20, 30))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_rows_and_position_agree(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=dict(os.environ), timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    store = LineageStore(path, STREAMS)
    at = store.positions["LEDGER"]
    assert at >= 20
    assert counts(store) == {"edge": 10 * at}
    for seq in range(1, 400):
        store.put("LEDGER", seq, Rows(edge=[EdgeLine(0, seq, seq + 1, 0, 0)] * 10))
    assert counts(store) == {"edge": 3_990}
    store.close()


# --- queries ------------------------------------------------------------------------------------------
def asked(store: LineageStore, name: str, **params: object) -> list[tuple[object, ...]]:
    counts(store)
    return asyncio.run(store.query(name, {"tenant": 0, **params}))


@pytest.fixture
def told(store: LineageStore) -> LineageStore:
    """Ann was served 1 (recall 1), then 1 and 2 (recall 2, 2 withdrawn); Bob was served 2 and denied 1 (recall 3)."""
    written = [memory(1), memory(2), memory(8, ctx=BOB, ctx_seq=1), memory(9, ctx_seq=2), memory(10, ctx_seq=0)]
    store.put("LEDGER", 1, Rows(memory=written))
    store.put(
        "READS",
        1,
        Rows(
            recall=[recall(1), recall(2, ctx_seq=2), recall(3, BOB), recall(1, tenant=1)],
            served=[served(1, 1), served(2, 1, 2), served(2, 2), served(3, 2), served(3, 1, QUARANTINE), served(1, 1, tenant=1)],
            withdrawn=[WithdrawnLine(0, b"r%015d" % 2, 2)],
        ),
    )
    return store


def test_exposure_is_who_was_shown_a_memory_newest_first(told: LineageStore) -> None:
    rows = asked(told, "exposure", memories=[1], quarantine=QUARANTINE, most=10)
    assert [(r[0], r[2], *r[7:]) for r in rows] == [(5_002, ANN, 1, 2, 1 << 63, False), (5_001, ANN, 1, 0, 1 << 63, False)]
    rows = asked(told, "exposure", memories=[1, 2], quarantine=QUARANTINE, most=2)
    assert [(r[1], r[7], r[10]) for r in rows] == [(b"r%015d" % 3, 2, False), (b"r%015d" % 2, 1, False)]
    assert asked(told, "exposure", memories=[], quarantine=QUARANTINE, most=2) == []


def test_the_decisions_of_a_recall_include_what_it_withheld(told: LineageStore) -> None:
    assert asked(told, "decisions", recall=b"r%015d" % 3) == [(1, QUARANTINE, 1 << 63, False), (2, 0, 1 << 63, False)]
    assert asked(told, "decisions", recall=b"r%015d" % 2) == [(1, 2, 1 << 63, False), (2, 0, 1 << 63, True)]
    assert asked(told, "decisions", recall=b"unknown") == []
    assert asked(told, "recall", recall=b"r%015d" % 2)[0][:3] == (5_002, ANN, "notes")


def test_agents_served_leaves_out_who_was_denied_or_never_got_it(told: LineageStore) -> None:
    assert asked(told, "agents_served", memories=[1], quarantine=QUARANTINE) == [(ANN, 2, 5_002)]
    assert asked(told, "agents_served", memories=[2], quarantine=QUARANTINE) == [(BOB, 1, 5_003)]


def test_exposed_writes_are_those_after_the_recall_in_the_same_context(told: LineageStore) -> None:
    rows = asked(told, "exposed_writes", memories=[1], quarantine=QUARANTINE, most=10)
    assert [r[0] for r in rows] == [9]
    rows = asked(told, "exposed_writes", memories=[2], quarantine=QUARANTINE, most=10)
    assert [r[0] for r in rows] == [8, 9]


def test_cases_notices_and_audit_are_told_in_order(store: LineageStore) -> None:
    case = b"c" * 16
    store.put(
        "LEDGER",
        1,
        Rows(
            case_event=[CaseEventLine(0, 9, case, "released", 3, ANN, 2), CaseEventLine(0, 8, case, "opened", 2, ANN, 2)],
            case_member=[CaseMemberLine(0, case, 5), CaseMemberLine(0, case, 4), CaseMemberLine(0, case, 5)],
            notice=[NoticeLine(0, case, "recall", BOB, "acked", 5), NoticeLine(0, case, "recall", BOB, "sent", 4)],
            audit=[AuditLine(0, ms, "K", "write", "notes", "over_quota", 1, ANN, 0) for ms in (1, 3, 2)],
        ),
    )
    assert [r[1] for r in asked(store, "case_history", case_id=case)] == ["opened", "released"]
    assert asked(store, "case_members", case_id=case) == [(4,), (5,)]
    assert [r[2] for r in asked(store, "notices", case_id=case)] == ["sent", "acked"]
    assert [r[0] for r in asked(store, "audit", since_ms=2, most=10)] == [3, 2]


def test_a_query_that_takes_too_long_is_interrupted_and_the_next_one_runs(store: LineageStore) -> None:
    chain = [EdgeLine(0, n, n + 1, 0, 0) for n in range(8_000)]
    store.put("LEDGER", 1, Rows(edge=chain))
    counts(store)

    async def scenario() -> None:
        params = {"tenant": 0, "roots": [0], "kinds": [0], "hops": 1 << 20}
        with pytest.raises(Unavailable) as slow:
            await store.query("closure_down", params, timeout_s=0.05)
        assert slow.value.reason == "lineage_slow"
        assert len(await store.query("closure_down", {**params, "hops": 2})) == 3

    asyncio.run(scenario())


def test_a_wrong_query_is_a_bug_and_not_a_reason_to_retry(store: LineageStore) -> None:
    with pytest.raises(KeyError):
        asyncio.run(store.query("nothing", {}))
    with pytest.raises(duckdb.InvalidInputException):
        asyncio.run(store.query("counts", {"tenants": 0}))
    assert store.failed is None


def test_sql_reaches_no_other_file_and_no_setting(store: LineageStore, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a,b\n")
    cursor = store._root.cursor()
    for statement in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"COPY memory TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/other.duckdb'",
        "SET enable_external_access = true",
        "SET memory_limit = '8GB'",
        "INSTALL httpfs",
    ):
        with pytest.raises(duckdb.Error):
            cursor.execute(statement)
    assert sorted(found.name for found in tmp_path.iterdir() if found.name.startswith(("out", "other"))) == []


# --- the file -----------------------------------------------------------------------------------------
def test_row_types_are_the_tables() -> None:
    con = duckdb.connect()
    for statement in load_queries("lineage_schema").values():
        con.execute(statement.sql)
    fields = {name: line._fields for name, line in vars(lineage_rows).items() if name.endswith("Line")}
    assert len(fields) == len(lineage_rows.TABLES)
    for table in lineage_rows.TABLES:
        columns = [row[0] for row in con.execute(f"SELECT column_name FROM (DESCRIBE {table})").fetchall()]
        line = table.title().replace("_", "") + "Line"
        assert columns == [name.rstrip("_") for name in fields[line]], table
    con.close()


def test_another_stream_or_schema_is_refused_and_its_own_is_taken(path: Path) -> None:
    LineageStore(path, STREAMS).close()
    with pytest.raises(ProjectionUnusable) as foreign:
        LineageStore(path, {**STREAMS, "READS": "READS_0@another"})
    assert foreign.value.reason == "stream"
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE about SET schema = 999")
    with pytest.raises(ProjectionUnusable) as newer:
        LineageStore(path, STREAMS)
    assert newer.value.reason == "schema"
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE about SET schema = 1")
    LineageStore(path, STREAMS).close()


@pytest.mark.parametrize("damage", ["garbage", "block", "end", "foreign"])
def test_a_damaged_file_is_refused_set_aside_and_made_anew(path: Path, tmp_path: Path, damage: str) -> None:
    store = LineageStore(path, STREAMS)
    store.put("LEDGER", 1, Rows(memory=[memory(n) for n in range(50_000)]))
    store.close()
    content = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"not a database" * 1_000)
    elif damage == "block":
        path.write_bytes(content[:4_096] + bytes(8_192) + content[12_288:])
    elif damage == "end":
        path.write_bytes(content[: len(content) * 2 // 3])
    else:
        path.unlink()
        with duckdb.connect(str(path)) as con:
            con.execute("CREATE TABLE something (x INTEGER)")
    with pytest.raises(ProjectionUnusable) as refused:
        LineageStore(path, STREAMS)
    assert refused.value.reason == ("schema" if damage == "foreign" else "damaged")
    assert set_aside(path, tmp_path / "aside")
    anew = LineageStore(path, STREAMS)
    assert anew.positions == {"LEDGER": 0, "READS": 0}
    anew.close()


def test_a_file_that_another_process_has_open_is_no_damage(path: Path) -> None:
    LineageStore(path, STREAMS).close()
    holder = subprocess.Popen(
        [sys.executable, "-c", f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        with pytest.raises(Unavailable) as locked:
            LineageStore(path, STREAMS)
        assert locked.value.reason == "lineage_locked"
    finally:
        holder.communicate(timeout=30)
    LineageStore(path, STREAMS).close()


def test_positions_stay_few_over_restarts(path: Path) -> None:
    for start in range(0, 30, 10):
        store = LineageStore(path, STREAMS)
        for seq in range(start + 1, start + 11):
            store.put("LEDGER", seq, Rows())
            asyncio.run(store.wait("LEDGER", seq, 10))
        store.close()
    store = LineageStore(path, STREAMS)
    assert store.positions["LEDGER"] == 30
    assert store._root.cursor().execute("SELECT count(*) FROM position").fetchall() == [(1,)]
    store.close()


def test_a_closed_store_takes_and_tells_nothing(path: Path) -> None:
    store = LineageStore(path, STREAMS)
    store.close()
    assert not store.put("LEDGER", 1, Rows(memory=[memory(1)]))
    with pytest.raises(Unavailable):
        asyncio.run(store.query("counts", {"tenant": 0}))
    assert "lineage" not in {thread.name for thread in threading.enumerate()}


# --- a file that can't be written ---------------------------------------------------------------------
@contextmanager
def no_file_grows(most: int) -> Iterator[None]:
    """EFBIG for whatever would become larger than so many bytes. Of the whole process: nothing else is written meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_can_t_be_written_is_tried_again_and_nothing_is_lost_or_doubled(path: Path) -> None:
    store = LineageStore(path, STREAMS)
    store.put("LEDGER", 1, Rows(memory=[memory(1)]))
    assert counts(store) == {"memory": 1}
    many = 40_000

    async def scenario() -> None:
        with no_file_grows(path.stat().st_size // 2):
            store.put("LEDGER", 2, Rows(memory=[memory(n) for n in range(2, many)]))
            with pytest.raises(Unavailable):
                await store.wait("LEDGER", 2, 20)
            assert store.trouble is not None
            assert store.failed is None
            assert dict(await store.query("counts", {"tenant": 0}))["memory"] == 1  # what is there is read
            assert store.put("LEDGER", 3, Rows(memory=[memory(many)]))
        async with asyncio.timeout(20):
            while store.trouble is not None:  # noqa: ASYNC110 - another thread
                await asyncio.sleep(0.05)
        await store.wait("LEDGER", 3, 20)

    asyncio.run(scenario())
    assert counts(store) == {"memory": many}
    store.close()
    again = LineageStore(path, STREAMS)
    assert again.positions == {"LEDGER": 3, "READS": 0}
    assert counts(again) == {"memory": many}
    again.close()


def test_a_store_that_can_t_be_opened_for_the_machine_s_sake_is_no_damaged_one(path: Path) -> None:
    store = LineageStore(path, STREAMS)
    store.put("LEDGER", 1, Rows(memory=[memory(1)]))
    store.close()
    with no_file_grows(0), pytest.raises(ProjectionUnwritable):
        LineageStore(path, STREAMS)
    again = LineageStore(path, STREAMS)
    assert counts(again) == {"memory": 1}
    again.close()
