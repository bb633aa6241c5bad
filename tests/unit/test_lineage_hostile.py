"""What a writer who knows the rules may try against lineage, and what its work may cost."""

from __future__ import annotations

import numpy as np
import pytest

from gate.state.contexts import Mark
from gate.writing.lineage import (
    COPIED_EDGES_MAX,
    RUNS_AGAIN_MAX,
    TEXT_TERMS_MAX,
    ContextText,
    Evidence,
    text_of,
)

from .test_lineage_evidence import NOW, direction

HARMLESS = "the lorry leaves the yard at six in the morning and comes back at nine with all the crates"
SECRET = "The merger with Larkspur Holdings closes on the third of May"


class Head:
    """A context, and what it may be asked."""

    def __init__(self, *, df: int = 1, n: int = 100) -> None:
        self.ctx = ContextText(256)
        self.ctx.begin(0)
        self.df, self.n = df, n
        self.marks: dict[int, Mark] = {}

    def serve(self, seq: int, content: str, *, special: bool = False) -> None:
        self.ctx.serve(seq, text_of(content, direction(seq % 200)), special)
        self.marks[seq] = Mark(1, NOW, b"", b"")

    def evidence(self, content: str, *, beside: str = "", like: int = 0, cosine: float = 0.0) -> Evidence:
        vector = direction(210, direction(like % 200), cosine)
        mine = text_of(content, vector, beside)
        return self.ctx.evidence(mine, self.marks, lambda _: self.df, self.n, NOW, b"", b"")

    def wrote(self, content: str) -> None:
        self.ctx.wrote(text_of(content, direction(220)))


def copied(found: Evidence) -> set[int]:
    return {p.parent for p in found.copied}


def test_many_copies_of_one_text_dont_push_another_source_out() -> None:
    head = Head()
    head.serve(1, SECRET)
    for seq in range(2, 2 + COPIED_EDGES_MAX + 8):
        head.serve(seq, f"{HARMLESS} {seq}")
    found = head.evidence(f"{HARMLESS}. {SECRET.replace('third', 'end')}")
    assert 1 in copied(found) | {p.parent for p in found.served}
    assert len(found.copied) + len(found.served) <= COPIED_EDGES_MAX
    assert set(found.joined) == set(found.strong) == head.marks.keys()  # labels and holds of all of them count
    assert not found.cut


def test_more_sources_than_edges_are_for_a_person_to_see() -> None:
    head = Head()
    words = [f"w{i}x w{i}y w{i}z" for i in range(COPIED_EDGES_MAX + 1)]
    for seq, content in enumerate(words, 1):
        head.serve(seq, content)
    found = head.evidence(" ".join(words))
    assert found.cut
    assert len(found.joined) == len(words)


def test_what_is_explained_itself_explains_nothing() -> None:
    """Each text has one rare word more than the one before: only what the first leaves next to nothing of is explained."""
    head = Head()
    base = "Halvorsen Nordbank Skerry Larkspur Meridian Olsen"
    extra = ["quay", "barge", "winch", "crane"]
    for i in range(len(extra) + 1):
        head.serve(i + 1, " ".join([base, *extra[:i], *(f"filler{i}{j}" for j in range(i * 3))]))
    found = head.evidence(" ".join([base, *extra]))
    assert len(extra) + 1 in copied(found)


def test_a_digest_of_which_common_words_were_taken_stays_a_parent() -> None:
    head = Head(df=50)
    record = "Vendor Halvorsen, account 2210-5571 at Nordbank"
    head.serve(1, record)
    head.serve(2, f"{record}. It is closed now, send everything to the new branch office instead")
    found = head.evidence(f"{record}. It is closed now, send everything to the new office")
    assert 2 in copied(found)


@pytest.mark.parametrize(
    "disguised",
    [
        "".join(f"{c}\u200b" for c in SECRET),
        SECRET.translate(str.maketrans("aeop", "аеор")),  # Cyrillic
        SECRET.translate(str.maketrans("ae", "áé")),
    ],
    ids=["unseen characters", "look-alikes", "accents"],
)
def test_disguised_words_are_the_same_words(disguised: str) -> None:
    head = Head()
    head.serve(1, SECRET)
    assert copied(head.evidence(disguised)) == {1}


def test_who_wrote_a_dictionary_first_still_copies_what_means_the_same() -> None:
    head = Head()
    head.wrote(SECRET)  # every word of it, before it was served
    head.serve(1, SECRET)
    assert copied(head.evidence(SECRET, like=1, cosine=0.97)) == {1}
    assert copied(head.evidence(SECRET, like=1, cosine=0.5)) == set()


def test_what_is_put_beside_the_content_counts_and_thins_nothing_out() -> None:
    head = Head()
    head.serve(1, SECRET)
    assert copied(head.evidence("A note on the canteen", beside=SECRET)) == {1}
    head = Head(df=50)
    head.serve(1, SECRET)
    alone = head.evidence("a merger that closes in spring")
    beside = head.evidence("a merger that closes in spring", beside=" ".join(f"pad{i}" for i in range(300)))
    assert [p.parent for p in alone.served] == [p.parent for p in beside.served] == [1]


def test_a_secret_that_is_passed_on_bit_by_bit_is_near_when_enough_of_it_has_gone() -> None:
    head = Head()
    head.serve(1, SECRET, special=True)
    bits = [
        "Larkspur is a flower that grows well beside our old garden wall where visitors gather every summer evening",
        "The library grew again last year: its holdings now fill two floors and a cellar under the market square",
        "A merger of two lanes near town makes drivers wait behind lorries, buses and bicycles each morning",
    ]
    assert [1 in head.evidence(bit).near for bit in bits] == [False, True, True]


def test_a_text_of_one_run_a_thousand_times_over_is_one_run() -> None:
    head = Head()
    for seq in range(1, 200):
        head.serve(seq, "a " * 5_000 + str(seq))
    assert max(map(len, head.ctx._runs_again.values())) <= RUNS_AGAIN_MAX
    assert sum(len(t.runs) for t in head.ctx.texts.values()) < 200 * 30
    assert head.evidence("a " * 5_000).copied


def test_of_a_long_text_a_sample_is_kept_that_finds_its_copies() -> None:
    head = Head()
    long = " ".join(f"term{i}" for i in range(11_000))
    head.serve(1, long)
    assert len(head.ctx.texts[1].terms) <= TEXT_TERMS_MAX * 1.2
    assert copied(head.evidence(long)) == {1}
    passage = " ".join(f"term{i}" for i in range(4_000, 4_120))
    assert copied(head.evidence(passage)) == {1}  # 109 runs, each kept with a chance of 1 in 6
    for seq in range(2, 120):
        head.serve(seq, " ".join(f"term{seq}x{i}" for i in range(3_000)))
    assert sum(len(t.terms) for t in head.ctx.texts.values()) < 300_000


def test_vectors_of_this_file_are_unit() -> None:
    assert float(np.linalg.norm(direction(210, direction(1), 0.97))) == pytest.approx(1.0)


def test_a_common_date_or_region_makes_no_copy_and_a_rare_number_does() -> None:
    mail = "Greetings for 2026 from eu-west-1, sent 2026-12-05"
    line = "2026-12-05 job finished in eu-west-1 during 2026"
    common = Head(df=50)
    common.serve(1, mail)
    for _ in range(20):
        common.wrote(line)
    assert copied(common.evidence(line)) == set()
    common.serve(2, "Pay account 4471-9983 today")
    assert copied(common.evidence("account 4471-9983 it is")) == {2}


def test_once_all_of_a_secret_is_taken_an_old_word_of_it_alone_is_nothing_new() -> None:
    head = Head()
    head.serve(1, SECRET, special=True)
    assert 1 in head.evidence("Larkspur, a merger, holdings and the third: " + "padding of other words all around it " * 12).near
    again = "Larkspur is a flower that grows well beside our old garden wall where visitors gather every summer evening"
    assert 1 not in head.evidence(again).near
