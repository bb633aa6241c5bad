"""What forgets a text in this process: postings, vectors, catalog, a context's window; and where a memory lies in the ledger."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gate.admin_tenants import _memory as exported
from gate.ledger import events as E
from gate.ledger.members import pack_members
from gate.projections.catalog import Catalog, MemoryRow
from gate.projections.lexical import LexicalIndex, terms
from gate.projections.vectors import DIM, ProjectVectors
from gate.state.contexts import Mark
from gate.state.erasures import Blocks
from gate.writing.lineage import ContextText, text_of

from .story import Story

STREAM = "home-1"


def row(seq: int, text: str) -> MemoryRow:
    return MemoryRow(seq, b"meta of %d" % seq, text, (f"mail:{text}#7",), f"run {text}", "", "", "", "")


def vector(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    made: np.ndarray[tuple[int], np.dtype[np.float32]] = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
    return made / np.float32(np.linalg.norm(made))


# --- postings and vectors -----------------------------------------------------------------------------
def test_a_removed_row_is_found_by_no_term_and_its_neighbours_are_found_as_before() -> None:
    texts = ["the heron stands", "the heron and the crane", "a crane stands"]
    index = LexicalIndex()
    index.add([terms(text) for text in texts])
    assert sorted(index.search(terms("heron"), 9)[0].tolist()) == [0, 1]
    index.remove(1, terms(texts[1]))
    index.remove(1, terms(texts[1]))
    assert index.search(terms("heron"), 9)[0].tolist() == [0]
    assert index.search(terms("crane"), 9)[0].tolist() == [2]
    assert index.df(terms("heron")[0]) == 1
    index.add([terms("a heron again")])
    assert sorted(index.search(terms("heron"), 9)[0].tolist()) == [0, 3], "numbers of rows go on"


def test_a_removed_row_that_stood_aside_counts_there_no_more() -> None:
    texts = ["heron and zirconium", "zirconium and a crane", "a crane stands", "a heron stands"]
    index, never = LexicalIndex(), LexicalIndex()
    index.add([terms(text) for text in texts], aside=[0, 1])
    for _ in range(2):
        index.remove(0, terms(texts[0]), aside=True)
    never.add([[], *(terms(text) for text in texts[1:])], aside=[0, 1])
    for question in ("zirconium", "heron", "zirconium and the crane"):
        said, wanted = index.search(terms(question), 9), never.search(terms(question), 9)
        assert (said[0].tolist(), said[1].tolist()) == (wanted[0].tolist(), wanted[1].tolist()), question
    index.remove(1, terms(texts[1]), aside=True)
    assert not index._aside


def test_a_term_that_only_the_removed_row_had_is_gone_as_a_key_too() -> None:
    index = LexicalIndex()
    index.add([terms("xylophone music"), terms("music")])
    index.remove(0, terms("xylophone music"))
    assert "xylophon" not in " ".join(index._postings)
    assert index.df(terms("music")[0]) == 1


def test_a_removed_vector_is_zero_in_memory_and_never_near() -> None:
    index = ProjectVectors()
    index.add(np.stack([vector(1), vector(2)]))
    [(rows, _)] = index.search(vector(1)[None, :], 1, [None])
    assert rows.tolist() == [0]
    index.remove(np.array([0], np.int32))
    [(rows, scores)] = index.search(vector(1)[None, :], 2, [None])
    assert not index.gather(np.array([0], np.int32)).any()
    assert all(score <= 0 for r, score in zip(rows.tolist(), scores.tolist(), strict=True) if r == 0)


# --- the catalog --------------------------------------------------------------------------------------
def files_with(folder: Path, mark: str) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if mark.encode() in p.read_bytes())


def test_an_erased_row_keeps_its_place_and_meta_and_no_byte_of_its_text(tmp_path: Path) -> None:
    path, mark = tmp_path / "catalog.sqlite", "vermilion-ptarmigan"
    long = " ".join([mark] * 20_000)  # over many overflow pages
    with Catalog(path, STREAM) as catalog:
        catalog.apply([row(1, "kept"), row(2, mark), row(3, long)], 1, 3, b"c")
        catalog.commit()
        assert files_with(tmp_path, mark)
        assert catalog.find_source(f"mail:{mark}") == [2]
        found = catalog.fetch([2, 3])
        catalog.erase(list(found.values()))
        assert catalog.scrub()
        assert files_with(tmp_path, mark) == []
        assert files_with(tmp_path, "kept")
        assert catalog.fetch([2])[2] == MemoryRow(2, b"meta of 2", "", (), "", "", "", "", "")
        assert (catalog.erased(), catalog.count()) == ([2, 3], 3)
        assert catalog.find_source(f"mail:{mark}") == []
        assert catalog.find_source("mail:kept") == [1]
        assert catalog.apply([row(2, mark)], 1, 3, b"c") == 0, "a block that comes again changes nothing"
        catalog.apply([row(4, "later")], 2, 4, b"d")
    with Catalog(path, STREAM) as again:
        assert again.erased() == [2, 3]
        assert again.position is not None
        assert again.position.tenant_seq == 4
    assert files_with(tmp_path, mark) == []


# --- a context's window -------------------------------------------------------------------------------
SECRET = "Halvorsen moved the account to Meridian under number 4471-9983 last spring"
OTHER = "The ferry to Grindavik sails from pier nineteen whenever the weather allows"


def window() -> ContextText:
    text = ContextText(DIM)
    text.begin(0)
    text.serve(5, text_of(SECRET, vector(5)), special=True)
    text.serve(6, text_of(OTHER, vector(6)), special=False)
    return text


def copied(text: ContextText, content: str) -> set[int]:
    served = {5: Mark(1, 0, b"", b""), 6: Mark(1, 0, b"", b"")}
    found = text.evidence(text_of(content, vector(9)), served, lambda term: 1, 100, 0, b"", b"")
    return {pair.parent for pair in found.copied}


def kept(text: ContextText) -> str:
    """All words that it holds anywhere, as one string."""
    own = (text._own, text._echoed, *text.taken.values(), text._having)
    return " ".join(sorted({w for words in own for w in words} | {t for s in text.texts.values() for t in s.terms}))


def test_a_window_forgets_an_erased_text_and_still_knows_copies_of_the_others() -> None:
    text = window()
    assert copied(text, SECRET) == {5}
    assert copied(text, OTHER) == {6}
    assert "4471-9983" in kept(text)
    assert text.forget({5}, own=False)
    assert "4471-9983" not in kept(text)
    assert "meridian" not in kept(text)
    assert copied(text, SECRET) == set()
    assert copied(text, OTHER) == {6}
    assert not text.forget({5}, own=False), "nothing is left to forget"


@pytest.mark.parametrize("own", [False, True])
def test_the_copies_of_a_window_that_forgot_something_are_seen_however_many_there_are(own: bool) -> None:
    """Each copy makes its words more frequent in the project; that those were this writer's is not forgotten."""
    text, copies, served = window(), 150, {6: Mark(1, 0, b"", b"")}
    for i in range(copies):
        text.wrote(text_of(f"{OTHER} {i}", vector(7)))
    assert text.forget({5}, own=own)
    paraphrase = " and then ".join(reversed(OTHER.split()))
    found = text.evidence(text_of(paraphrase, vector(9)), served, lambda term: 1 + copies, 2 * copies, 0, b"", b"")
    assert {pair.parent for pair in found.copied} == {6}
    assert "4471-9983" not in kept(text)


def test_what_a_writer_wrote_itself_is_forgotten_with_its_own_words() -> None:
    text = window()
    text.wrote(text_of("my own remark on zeppelins over Trondheim", vector(7)))
    assert "zeppelin" in kept(text)
    assert text.forget({9}, own=True)
    assert "zeppelin" not in kept(text)
    assert copied(text, OTHER) == {6}


# --- exports ------------------------------------------------------------------------------------------
def test_an_export_has_no_text_that_is_erased_though_the_catalog_has_it_still() -> None:
    """Stores forget after the event; an export that was made in between would keep the text for ever."""
    story = Story()
    writer, boss = story.agent("writer"), story.agent("boss", "operator")
    event = story.written(writer)
    s = story.apply(event)
    kept = MemoryRow(s, E.encode(event), "secret", ("mail:secret",), "secret", "secret", "secret", "secret", "secret")
    fields = ("content", "evidence", "run", "task", "session", "trace_id", "scope_id")
    assert all(exported(story.t, kept, story.ms)[name] for name in fields)
    [(count, deltas)] = pack_members(np.array([s], np.int32))
    story.apply(E.MemoryErased(ms=story.ms, erasure=b"e" * 16, agent=boss.agent.id, count=count, deltas=deltas))
    line = exported(story.t, kept, story.ms)
    assert (line["state"], *(line[name] for name in fields)) == ("erased", "", [], "", "", "", "", "")


# --- where it lies ------------------------------------------------------------------------------------
def test_blocks_tell_where_an_event_lies_and_what_lies_in_a_block() -> None:
    blocks = Blocks()
    for first, block in ((1, 3), (4, 4), (5, 9)):
        blocks.note(first, block)
    assert [blocks.of(seq) for seq in (1, 3, 4, 5, 8)] == [3, 3, 4, 9, 9]
    assert [list(blocks.span(block, 8)) for block in (2, 3, 4, 5, 9, 10)] == [[], [1, 2, 3], [4], [], [5, 6, 7], []]


# --- quotas -------------------------------------------------------------------------------------------
def test_an_erasure_gives_back_the_bytes_of_bodies_once_and_as_a_replay_without_them_counts() -> None:
    def told(*, stripped: bool) -> tuple[int, int, int]:
        story = Story()
        ann = story.agent("ann")
        for n in (b"a", b"b"):
            body = 0 if stripped else 300
            written = story.written(ann, id=n * 16)
            story.t.apply(story.t.position + 1, written, weight=100 + body, body=body)  # the only events that weigh anything
        first = story.t.by_id[b"a" * 16]
        [(count, deltas)] = pack_members([first, story.t.by_id[b"b" * 16]])
        for erasure in (b"1" * 16, b"2" * 16):
            story.apply(E.MemoryErased(ms=story.ms, erasure=erasure, agent=ann.agent.id, count=count, deltas=deltas))
        return story.t.bytes, ann.agent.bytes, int(story.t.columns.erased[first])

    assert told(stripped=False) == told(stripped=True)
    assert told(stripped=False)[:2] == (200, 200)
