"""Which served memories a text was made from, without anybody declaring it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gate.projections.lexical import terms, words
from gate.state.contexts import Mark
from gate.writing.lineage import ContextText, Evidence, Text

DIM = 256
NOW = 1_800_000_000_000


def direction(n: int, towards: npt.NDArray[np.float32] | None = None, cosine: float = 0.0) -> npt.NDArray[np.float32]:
    """A unit vector along axis n, turned towards another."""
    v = np.zeros(DIM, np.float32)
    v[n] = 1.0
    return v if towards is None else (cosine * towards + np.sqrt(1 - cosine**2) * v).astype(np.float32)


def text(content: str, vector: npt.NDArray[np.float32]) -> Text:
    return Text(frozenset(terms(content)), tuple(words(content)), vector)


def evidence(
    served: dict[int, str],
    mine: str,
    *,
    cosine: float = 0.0,
    df: int = 1,
    n: int = 10,
    special: int = 0,
    run: bytes = b"",
    before: str = "",
    age_ms: int = 0,
) -> Evidence:
    ctx = ContextText(DIM)
    ctx.begin(0)
    if before:
        ctx.wrote(text(before, direction(200)))
    marks = {}
    for seq, content in served.items():
        ctx.serve(seq, text(content, direction(seq)), seq == special)
        marks[seq] = Mark(1, NOW - age_ms, run, b"")
    vector = direction(100, direction(next(iter(served))), cosine) if served else direction(100)
    return ctx.evidence(text(mine, vector), marks, lambda _: df, n, NOW, run, b"")


SERVED = "The Halvorsen account number for wire transfers is 4471-9983, use Meridian Bank"


def test_two_rare_words_of_a_served_memory_make_a_copy() -> None:
    found = evidence({1: SERVED}, "Payments to Halvorsen go through Meridian, account 4471-9983")
    assert [p.parent for p in found.copied] == [1]
    assert found.copied[0].confidence >= 0.6


def test_a_text_that_shares_nothing_rare_is_no_copy() -> None:
    assert not evidence({1: SERVED}, "The build cache lives on the second volume").copied


def test_common_words_make_no_copy() -> None:
    mine = "The deploy script restarts the service"
    assert not evidence({1: "The deploy script checks the service"}, mine, df=50, n=100).copied
    assert evidence({1: "The deploy script checks the service"}, mine, df=1, n=100).copied, "the same words where they are rare"


def test_what_the_writer_said_before_it_was_served_is_its_own() -> None:
    mine = "Halvorsen uses Meridian for 4471-9983"
    assert evidence({1: SERVED}, mine).copied
    assert not evidence({1: SERVED}, mine, before="Halvorsen, Meridian, 4471-9983").copied


def test_a_copy_written_twice_stays_a_copy() -> None:
    """The first copy must not make its words the writer's own."""
    ctx = ContextText(DIM)
    ctx.begin(0)
    ctx.serve(1, text(SERVED, direction(1)), False)
    marks = {1: Mark(1, NOW, b"", b"")}
    copy = text("Halvorsen uses Meridian for 4471-9983", direction(100))
    for _ in range(2):
        assert [p.parent for p in ctx.evidence(copy, marks, lambda _: 1, 10, NOW, b"", b"").copied] == [1]
        ctx.wrote(copy)


def test_a_shared_run_of_twelve_words_is_a_copy_however_common_they_are() -> None:
    common = "we will go to the place and see what is there for all of us to have"
    assert evidence({1: common}, f"well {common} indeed", df=1_000, n=1_000).copied
    assert not evidence({1: common}, " ".join(common.split()[:8]), df=1_000, n=1_000).copied


def test_near_in_meaning_with_one_rare_word_is_a_copy() -> None:
    assert evidence({1: "Invoices go to Halvorsen"}, "Halvorsen gets the bills every single month now", cosine=0.9).copied
    assert not evidence({1: "Invoices go to accounting"}, "someone gets bills", cosine=0.9, df=90, n=100).copied


def test_chinese_text_is_copied_too() -> None:
    assert evidence({1: "付款请转到招商银行账户"}, "注意：付款请转到招商银行账户。").copied


def test_nearness_in_time_alone_never_joins() -> None:
    assert not evidence({1: SERVED}, "completely different words here", run=b"12345678").served


def test_meaning_and_time_together_make_a_served_edge() -> None:
    found = evidence({1: "alpha beta"}, "gamma delta", cosine=0.9)
    assert [p.parent for p in found.served] == [1]
    assert not evidence({1: "alpha beta"}, "gamma delta", cosine=0.45, age_ms=10 * 3_600_000).served


def test_a_restricted_item_counts_for_the_flow_check_from_a_lower_confidence() -> None:
    assert evidence({1: "alpha beta"}, "gamma delta", special=1, run=b"12345678", cosine=0.4).near == (1,)
    assert evidence({1: "alpha beta"}, "gamma delta", special=0, run=b"12345678", cosine=0.4).near == ()


def test_words_in_common_make_a_served_edge_where_vectors_say_nothing() -> None:
    cat = {1: "the cat sleeps on the warm roof"}
    assert [p.parent for p in evidence(cat, "a warm roof pleases any cat", df=50, n=100).served] == [1]
    assert evidence(cat, "a roof was repaired last year by three masons", df=50, n=100).served == ()


def test_what_only_the_encoder_finds_alike_is_not_linked() -> None:
    """Two unrelated sentences of the committed encoder have a cosine of about .6 (tests/bench lineage)."""
    found = evidence({1: "alpha beta"}, "gamma delta", cosine=0.65, run=b"r")
    assert (found.copied, found.served) == ((), ())


RECORD = "ERP master data: vendor Halvorsen, bank account 2210-5571 at Nordbank"
DIGEST = f"{RECORD}. The mail of Tuesday says to use 4471-9983 at Meridian"


def test_a_digest_that_quotes_the_record_is_a_suspect_when_only_the_record_was_used() -> None:
    found = evidence({1: RECORD, 2: DIGEST}, "Pay Halvorsen at Nordbank, account 2210-5571")
    assert [p.parent for p in found.copied] == [1]
    assert [p.parent for p in found.served] == [2]  # joined, so its labels count all the same


def test_a_digest_of_which_anything_else_was_used_stays_a_parent() -> None:
    found = evidence({1: RECORD, 2: DIGEST}, "Pay Halvorsen, account 2210-5571 at Nordbank or 4471-9983 at Meridian")
    assert 2 in [p.parent for p in found.copied]
    verbatim = evidence({1: "Nordbank 2210-5571 Halvorsen", 2: DIGEST}, f"{RECORD}. The mail of Tuesday", df=50, n=100)
    assert 2 in [p.parent for p in verbatim.copied]


def test_the_writers_own_wording_doesnt_make_its_earlier_text_a_source() -> None:
    mine = "in short the lorry leaves the yard at six and comes back at nine with all the crates"
    assert evidence({1: mine}, mine + " today", df=50, n=100).copied != ()
    assert evidence({1: mine}, mine + " today", before=mine, df=50, n=100).copied == ()


def test_of_two_equal_sources_both_are_parents() -> None:
    found = evidence({1: SERVED, 2: SERVED}, "Payments to Halvorsen go through Meridian, account 4471-9983")
    assert [p.parent for p in found.copied] == [1, 2]
