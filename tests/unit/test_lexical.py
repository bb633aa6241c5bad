"""Terms and the lexical index of a project."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.projections.lexical import POSTING_BUDGET, TERM_CHARS_MAX, LexicalIndex, terms, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The deployments were deployed by deployers", ["deploy", "deploy", "deploy"]),
        ("don't, it's John’s", ["john"]),
        ("call foo_bar(a.b) as x@y.org", ["call", "foo", "bar", "foo_bar", "b", "a.b", "x", "y", "org", "x@y.org"]),
        ("port 8080 and 3.14", ["port", "8080", "3", "14", "3.14"]),
        ("INC-2041 well-known", ["inc", "2041", "inc-2041", "well", "known"]),
        ("/etc/hosts:22", ["etc", "host", "22", "etc/hosts:22"]),
        ("数据库迁移 done 猫", ["数据", "据库", "库迁", "迁移", "done", "猫"]),
        ("データベース", ["デー", "ータ", "タベ", "ベー", "ース"]),
        ("한국어", ["한국", "국어"]),
        ("ＦＵＬＬ ＷＩＤＴＨ Straße STRASSE", ["full", "width", "strass", "strass"]),
        ("", []),
        ("\ud800 \x00 ... 🙂", []),
        ("x" * 500, ["x" * TERM_CHARS_MAX]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


def test_words_leave_nothing_out() -> None:
    assert words("The Server's port_22 isn't 数据 OK") == ["the", "server's", "port", "22", "isn't", "数", "据", "ok"]


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=200))
def test_no_text_is_too_odd(text: str) -> None:
    found = terms(text)
    assert all(0 < len(term) <= TERM_CHARS_MAX for term in found)
    assert terms(text) == found
    assert all(words(text))


def index_of(*texts: str) -> LexicalIndex:
    index = LexicalIndex()
    index.add([set(terms(text)) for text in texts])
    return index


def found(index: LexicalIndex, text: str, limit: int = 10, allowed: list[bool] | None = None) -> list[int]:
    mask = None if allowed is None else np.array(allowed, np.bool_)
    rows, scores = index.search(terms(text), limit, mask)
    assert rows.dtype == np.int32
    assert scores.dtype == np.float32
    assert len(rows) == len(scores) <= limit
    assert (np.diff(scores) <= 0).all()
    return [int(row) for row in rows]


def test_rarer_terms_count_more_and_more_terms_count_more() -> None:
    index = index_of("red apple", "red pear", "red apple pear", "blue sky")
    assert found(index, "blue red") == [3, 2, 1, 0]
    assert found(index, "apple pear") == [2, 1, 0]
    assert (index.n, index.df("red"), index.df("sky"), index.df("nothing")) == (4, 3, 1, 0)


def test_the_score_is_the_sum_of_idf() -> None:
    index = index_of("red apple", "red pear", "sky")
    [row], [score] = index.search(terms("apple"), 5)
    assert (row, score) == (0, pytest.approx(math.log1p((3 - 1 + 0.5) / 1.5)))


def test_equal_scores_come_newest_first_also_at_the_limit() -> None:
    index = index_of(*["same words here"] * 100)
    assert found(index, "same words", limit=3) == [99, 98, 97]
    assert found(index, "words", limit=3) == [99, 98, 97]


def test_a_row_that_is_not_allowed_is_never_found_and_never_takes_a_place() -> None:
    index = index_of("apple one", "apple two", "apple three")
    assert found(index, "apple", limit=1, allowed=[True, True, False]) == [1]
    assert found(index, "apple two three", allowed=[True, False, True]) == [2, 0]
    assert found(index, "apple two", allowed=[False] * 3) == []


def test_nothing_is_found_for_nothing() -> None:
    index = index_of("apple")
    assert found(index, "") == found(index, "the of") == found(index, "pear") == found(index, "apple", limit=0) == []
    assert found(LexicalIndex(), "apple") == []


def test_rows_can_be_added_after_a_search() -> None:
    index = index_of("apple")
    assert found(index, "apple") == [0]
    index.add([{terms("apple")[0]} for _ in range(5_000)])
    assert found(index, "apple", limit=2) == [5_000, 4_999]


def test_a_posting_budget_keeps_rare_terms_and_drops_common_ones() -> None:
    index = LexicalIndex()
    index.add([{"common", "rare"} if row == 5 else {"common"} for row in range(3 * POSTING_BUDGET)])
    rows, _ = index.search(["common", "rare"], 10)
    assert rows.tolist() == [5]
    rows, _ = index.search(["common"], 10 * POSTING_BUDGET)
    assert rows.tolist() == list(range(3 * POSTING_BUDGET - 1, 2 * POSTING_BUDGET - 1, -1))
    mask = np.zeros(index.n, np.bool_)
    mask[:4] = True
    assert index.search(["common"], 10, mask)[0].tolist() == [3, 2, 1, 0]


@given(
    st.lists(st.sets(st.sampled_from("abcdefgh")), max_size=40),
    st.lists(st.sampled_from("abcdefghx"), max_size=6),
    st.integers(1, 10),
)
def test_a_search_is_the_sorted_sum_of_idf_over_allowed_rows(rows: list[set[str]], query: list[str], limit: int) -> None:
    index = LexicalIndex()
    index.add(rows)
    mask = np.array([hash((n, len(row))) % 3 > 0 for n, row in enumerate(rows)], np.bool_)
    df = {term: sum(term in row for row in rows) for term in query}
    weight = {term: math.log1p((len(rows) - n + 0.5) / (n + 0.5)) for term, n in df.items() if n}
    score = {n: sum(weight[term] for term in set(query) & row) for n, row in enumerate(rows) if mask[n] and set(query) & row}
    expected = sorted(score, key=lambda n: (-round(score[n], 4), -n))[:limit]
    got, scores = index.search(query, limit, mask)
    assert [round(score[n], 4) for n in got.tolist()] == [round(score[n], 4) for n in expected]
    assert scores.tolist() == pytest.approx([score[n] for n in got.tolist()], rel=1e-5)
