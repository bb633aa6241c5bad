"""The embedder splits plain ASCII texts by itself: never another token than the tokenizer's own."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gate.model.embedder import CHARS_MAX, STATIC_MINILM, TOKENS_MAX, StaticEmbedder

EMBEDDER = StaticEmbedder()
TOKENIZER = Tokenizer.from_file(str(STATIC_MINILM / "tokenizer.json"))
TOKENIZER.no_padding()
TOKENIZER.enable_truncation(TOKENS_MAX)


def expected(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text[:CHARS_MAX], add_special_tokens=False).ids
    return ids


@given(st.text(string.printable + "\x00\x07\x7fé中", max_size=300))
def test_a_text_has_the_tokens_that_the_tokenizer_gives_it(text: str) -> None:
    assert list(EMBEDDER._ids(text)) == expected(text)


@pytest.mark.parametrize(
    "text",
    ["[UNK] a [PAD] b", "[unk]", "snake_case it's e.g. 3.14 $5 ^~`|", "a" * 101 + " b", "word " * 1_000, "a\x0bb\tc\r\nd", ""],
)
def test_odd_texts_have_the_tokens_that_the_tokenizer_gives_them(text: str) -> None:
    assert list(EMBEDDER._ids(text[:CHARS_MAX])) == expected(text)


def test_a_batch_gives_the_vectors_of_its_texts_one_by_one() -> None:
    texts = ["one fish", "", "two fish [PAD] 中", "red fish"]
    together = EMBEDDER.encode(texts)
    assert np.array_equal(together, np.concatenate([EMBEDDER.encode([t]) for t in texts]))
