"""The catalog: exactly once, all or nothing, refused when in doubt."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gate.projections import ProjectionUnusable, ProjectionUnwritable, set_aside
from gate.projections.catalog import COMMIT_ROWS, PLANS_KEPT, Catalog, MemoryRow, Position

STREAM = "LEDGER_0@2026-11-30"


def row(seq: int, content: str = "", evidence: tuple[str, ...] = ()) -> MemoryRow:
    return MemoryRow(seq, b"meta %d" % seq, content or f"text {seq}", evidence, "run", "task", "session", "trace", "scope")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def catalog(path: Path) -> Iterator[Catalog]:
    with Catalog(path, STREAM) as opened:
        yield opened


def test_what_is_applied_is_fetched_before_it_is_committed(catalog: Catalog) -> None:
    rows = [row(1, "naïve 你好 'quoted'", ("https://a.example/x", "log.txt")), row(4)]
    assert catalog.apply(rows, ledger_seq=7, tenant_seq=5, chain=b"c" * 32) == 2
    assert catalog.fetch([4, 1, 99]) == {1: rows[0], 4: rows[1]}
    assert catalog.fetch([]) == {}
    assert catalog.position == Position(7, 5, b"c" * 32)
    assert catalog.count() == 2


def test_a_block_that_comes_again_is_skipped(catalog: Catalog) -> None:
    catalog.apply([row(1), row(2)], 1, 2, b"a")
    assert catalog.apply([row(1), row(2)], 1, 2, b"a") == 0
    assert catalog.apply([row(2, "other"), row(3)], 2, 3, b"b") == 1
    assert catalog.fetch([2])[2].content == "text 2"
    assert catalog.apply([], 3, 3, b"b") == 0
    assert catalog.position == Position(3, 3, b"b")


def test_a_ledger_that_went_back_is_refused(catalog: Catalog) -> None:
    catalog.apply([row(9)], 5, 9, b"a")
    with pytest.raises(ValueError, match="went back"):
        catalog.apply([row(8)], 6, 8, b"b")
    assert catalog.position == Position(5, 9, b"a")


def test_a_block_that_fails_leaves_no_trace_and_the_one_before_stays(catalog: Catalog) -> None:
    catalog.apply([row(1)], 1, 1, b"a")
    with pytest.raises(sqlite3.IntegrityError):
        catalog.apply([row(2), row(3), row(2)], 2, 3, b"b")
    with pytest.raises(UnicodeEncodeError):
        catalog.apply([row(2), row(3, "\ud800")], 2, 3, b"b")
    assert (catalog.count(), catalog.position) == (1, Position(1, 1, b"a"))
    assert catalog.apply([row(2), row(3)], 2, 3, b"b") == 2


def test_a_clean_close_keeps_everything(path: Path) -> None:
    with Catalog(path, STREAM) as first:
        assert first.position is None
        first.apply([row(1)], 3, 2, b"h")
    with Catalog(path, STREAM) as again:
        assert again.position == Position(3, 2, b"h")
        assert again.fetch([1]) == {1: row(1)}


def test_commits_wait_for_a_second_or_1000_rows(catalog: Catalog, path: Path) -> None:
    def committed() -> int:
        with sqlite3.connect(path) as other:
            return int(other.execute("SELECT count(*) FROM memory").fetchone()[0])

    assert not catalog.maybe_commit(0.0)
    catalog.apply([row(1)], 1, 1, b"")
    assert not catalog.maybe_commit(10.0)
    assert not catalog.maybe_commit(10.999)
    assert committed() == 0
    assert catalog.maybe_commit(11.0)
    assert committed() == 1
    catalog.apply([row(n) for n in range(2, 2 + COMMIT_ROWS)], 2, 1 + COMMIT_ROWS, b"")
    assert catalog.maybe_commit(11.01)
    assert committed() == 1 + COMMIT_ROWS
    assert not catalog.maybe_commit(20.0)


KILLED = """
import os, signal, sys
from pathlib import Path
from gate.projections.catalog import Catalog, MemoryRow
catalog = Catalog(Path(sys.argv[1]), sys.argv[2])
def apply(seq):
    catalog.apply([MemoryRow(seq, b"m", f"text {seq}", (), "", "", "", "", "")], seq, seq, b"h")
apply(1)
catalog.commit()
apply(2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_rows_and_position_agree(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), STREAM], env=dict(os.environ), timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    with Catalog(path, STREAM) as again:
        assert again.position is not None
        assert (again.count(), again.position.tenant_seq) == (1, 1)
        assert again.apply([row(1), row(2)], 2, 2, b"h") == 1
        assert sorted(again.fetch([1, 2])) == [1, 2]


def test_iteration_gives_every_row_once_in_order(catalog: Catalog) -> None:
    seqs = list(range(1, 60, 3))
    catalog.apply([row(n) for n in seqs], 1, 60, b"")
    batches = list(catalog.iterate(batch=7))
    assert [found.seq for batch in batches for found in batch] == seqs
    assert max(map(len, batches)) == 7


def test_a_source_finds_who_cites_it_or_a_span_of_it(catalog: Catalog) -> None:
    catalog.apply(
        [
            row(1, evidence=("https://a.example/x",)),
            row(2, evidence=("log.txt", "https://a.example/x#L10-20")),
            row(3, evidence=("https://a.example/xy",)),
            row(4),
        ],
        1, 4, b"",
    )  # fmt: skip
    assert catalog.find_source("https://a.example/x") == [1, 2]
    assert catalog.find_source("https://a.example/x#L10-20") == [2]
    assert catalog.find_source("https://a.example/") == []
    assert catalog.find_source("") == []


def test_a_plan_is_used_once_and_only_in_time(catalog: Catalog, path: Path) -> None:
    catalog.save_plan(b"p1", b"blob", expires_ms=1_000, now_ms=0)
    catalog.save_plan(b"p2", b"blob", expires_ms=1_000, now_ms=0)
    assert catalog.load_plan(b"p1", now_ms=999) == b"blob"
    assert catalog.load_plan(b"p1", now_ms=1_000) is None
    assert not catalog.use_plan(b"p1", now_ms=1_000)
    assert catalog.use_plan(b"p1", now_ms=999)
    assert not catalog.use_plan(b"p1", now_ms=999)
    assert not catalog.use_plan(b"unknown", now_ms=999)
    assert catalog.load_plan(b"p1", now_ms=999) is None
    assert plans(path) == [b"p1", b"p2"]
    catalog.save_plan(b"p3", b"blob", expires_ms=2_000, now_ms=1_000)
    assert plans(path) == [b"p3"], "what can't be used any more goes when the next one comes"


def test_no_more_plans_are_kept_than_the_newest(catalog: Catalog, path: Path) -> None:
    for n in range(PLANS_KEPT + 3):
        catalog.save_plan(bytes([n]), b"blob", expires_ms=1_000 + n, now_ms=n)
    assert plans(path) == [bytes([n]) for n in range(3, PLANS_KEPT + 3)]


def plans(path: Path) -> list[bytes]:
    """Ids of all that lie in the file."""
    with closing(sqlite3.connect(path)) as db:
        return sorted(id_ for (id_,) in db.execute("SELECT id FROM plan"))


def test_another_stream_or_schema_is_refused_and_its_own_is_taken(path: Path) -> None:
    Catalog(path, STREAM).close()
    with pytest.raises(ProjectionUnusable) as foreign:
        Catalog(path, "LEDGER_0@another")
    assert foreign.value.reason == "stream"
    with sqlite3.connect(path) as db:
        db.execute("UPDATE position SET schema = 999")
    db.close()
    with pytest.raises(ProjectionUnusable) as newer:
        Catalog(path, STREAM)
    assert newer.value.reason == "schema"
    with sqlite3.connect(path) as db:
        db.execute("UPDATE position SET schema = 1")
    db.close()
    Catalog(path, STREAM).close()


@pytest.mark.parametrize("damage", ["garbage", "page", "foreign"])
def test_a_damaged_file_is_refused_set_aside_and_made_anew(path: Path, tmp_path: Path, damage: str) -> None:
    with Catalog(path, STREAM) as first:
        first.apply([row(n, "x" * 2_000) for n in range(1, 100)], 1, 99, b"")
    content = bytearray(path.read_bytes())
    if damage == "garbage":
        path.write_bytes(b"not a database" * 1_000)
    elif damage == "page":
        content[8 * 4_096 : 9 * 4_096] = b"\xff" * 4_096
        path.write_bytes(content)
    else:
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE something (x)")
        db.close()
    with pytest.raises(ProjectionUnusable) as refused:
        Catalog(path, STREAM)
    assert refused.value.reason == ("schema" if damage == "foreign" else "damaged")
    assert refused.value.path == path
    assert set_aside(path, tmp_path / "aside")[0] == tmp_path / "aside" / path.name
    assert not path.exists()
    with Catalog(path, STREAM) as anew:
        assert (anew.position, anew.count()) == (None, 0)


def test_setting_aside_takes_side_files_along_and_overwrites_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"c{suffix}").write_text(suffix)
        set_aside(tmp_path / "c", tmp_path / "aside")
    names = sorted(found.name for found in (tmp_path / "aside").iterdir())
    assert names == ["c", "c-shm", "c-shm.1", "c-wal", "c-wal.1", "c.1"]
    assert set_aside(tmp_path / "c", tmp_path / "aside") == []


def test_a_second_close_is_harmless(path: Path) -> None:
    catalog = Catalog(path, STREAM)
    catalog.close()
    catalog.close()


# --- a file that can't be written ---------------------------------------------------------------------
def no_more_pages(catalog: Catalog, most: int = 0) -> None:
    """As on a full disk: SQLITE_FULL for whatever needs a page more. 0: from now on; else a limit in pages."""
    now = catalog._db.execute("PRAGMA page_count").fetchone()[0]
    catalog._db.execute(f"PRAGMA max_page_count={most or now}")


LARGE = "x" * 50_000


def test_what_can_t_be_written_is_served_from_memory_and_written_when_it_goes_again(path: Path) -> None:
    with Catalog(path, STREAM) as catalog:
        catalog.apply([row(1, evidence=("a",))], 1, 1, b"a")
        no_more_pages(catalog)
        assert catalog.apply([row(2, LARGE, ("a#1",))], 2, 2, b"b") == 1
        assert "full" in catalog.trouble
        assert catalog.apply([], 3, 4, b"c") == 0  # the position goes on
        assert catalog.position == Position(3, 4, b"c")
        assert catalog.fetch([1, 2, 3]) == {1: row(1, evidence=("a",)), 2: row(2, LARGE, ("a#1",))}
        assert [r.seq for r in catalog.after(0, 10)] == [1, 2]
        assert [r.seq for r in catalog.after(0, 1)] == [1]
        assert catalog.find_source("a") == [1, 2]
        assert catalog.apply([row(2)], 2, 2, b"b") == 0  # a block that comes again is skipped here too
        for refused in (catalog.commit, catalog.scrub, lambda: catalog.save_plan(b"p", b"blob", 9, 0)):
            with pytest.raises(ProjectionUnwritable):
                refused()
        assert not catalog.maybe_commit(10.0)
        no_more_pages(catalog, 1 << 30)
        assert not catalog.maybe_commit(10.5)  # not at each call
        assert catalog.maybe_commit(11.5)
        assert not catalog.trouble
        catalog.save_plan(b"p", b"blob", 9, 0)
    with Catalog(path, STREAM) as again:
        assert again.position == Position(3, 4, b"c")
        assert again.fetch([1, 2]) == {1: row(1, evidence=("a",)), 2: row(2, LARGE, ("a#1",))}


def test_a_kill_while_nothing_can_be_written_leaves_the_last_commit(path: Path) -> None:
    catalog = Catalog(path, STREAM)
    catalog.apply([row(1)], 1, 1, b"a")
    catalog.commit()
    no_more_pages(catalog)
    catalog.apply([row(2, LARGE)], 2, 2, b"b")
    catalog.close()  # what couldn't be written comes again by replay
    with Catalog(path, STREAM) as again:
        assert again.position == Position(1, 1, b"a")
        assert again.apply([row(2, LARGE)], 2, 2, b"b") == 1
        assert again.count() == 2


def test_an_erasure_that_can_t_be_written_changes_nothing(path: Path) -> None:
    with Catalog(path, STREAM) as catalog:
        catalog.apply([row(1)], 1, 1, b"a")
        no_more_pages(catalog)
        catalog.apply([row(2, LARGE)], 2, 2, b"b")
        with pytest.raises(ProjectionUnwritable):
            catalog.erase([row(1)])
        assert catalog.fetch([1]) == {1: row(1)}
        no_more_pages(catalog, 1 << 30)
        catalog.erase([row(1)])
        assert catalog.erased() == [1]


def test_a_catalog_that_can_t_be_opened_is_no_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(ProjectionUnwritable):
        Catalog(tmp_path / "no" / "catalog.sqlite", STREAM)
