"""Work in steps gives what it gives in one go, and no step is long."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.projections.lexical import INDEXED_TERMS_MAX, indexed, terms, words
from gate.steps import PIECE_CHARS, Steps, finished, pieces
from gate.writing.fold import fold
from gate.writing.lineage import read
from gate.writing.redact import cut, redact
from gate.writing.screen import look, screen

VECTOR = np.zeros(256, np.float32)
PARTS = ["plain", "don't", "foo_bar@x.example", "é", "́", "中文字", "a-b.c/d", "Å", "ﬁne", "İ", "'", "’s", "2026-01-31"]


def counted(steps: Steps[Any]) -> int:
    n = 0
    while True:
        try:
            next(steps)
        except StopIteration:
            return n
        n += 1


@given(st.lists(st.sampled_from(PARTS), max_size=60), st.lists(st.sampled_from([" ", "\n", "\t", "  "]), min_size=1, max_size=5))
def test_a_text_in_pieces_has_the_words_and_terms_of_the_whole(parts: list[str], gaps: list[str]) -> None:
    text = "".join(p + gaps[i % len(gaps)] for i, p in enumerate(parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gate.steps.PIECE_CHARS", 24)
        cuts = list(pieces(text))
    assert [t for p in cuts for t in terms(p)] == terms(text)
    assert [w for p in cuts for w in words(fold(p).text)] == words(fold(text).text)


def test_a_text_without_white_space_is_cut_too_and_nothing_of_it_is_lost() -> None:
    text = "\u4e2d\u6587" * (3 * PIECE_CHARS)
    assert max(map(len, pieces(text))) <= 2 * PIECE_CHARS
    assert "".join(pieces(text)) == text


def test_a_long_text_is_read_redacted_and_screened_in_many_steps_to_the_same_end() -> None:
    rng = random.Random(3)
    text = " ".join(f"w{rng.randrange(10**6)}" for _ in range(7_000)) + " the door code is 48213"
    assert counted(read(text, VECTOR)) >= 5
    assert counted(cut(text)) >= 3
    assert counted(look(text, origin=0)) >= 5
    assert redact(text).spans[-1].type == "access_code"
    assert screen(text, origin=0) == finished(look(text, origin=0))
    assert counted(cut("the door code is 48213")) == 0


def test_a_memory_is_found_by_its_first_terms_and_by_so_many_at_most() -> None:
    text = " ".join(f"w{i}x" for i in range(3 * INDEXED_TERMS_MAX))
    found = finished(indexed(text))
    assert len(found) == INDEXED_TERMS_MAX
    assert found == set(terms(text)[:INDEXED_TERMS_MAX])
    assert finished(indexed("a short text")) == set(terms("a short text"))
