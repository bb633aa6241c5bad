"""The lexical index of one project: terms of texts, and postings in memory.

Owned by the index thread. Invariant: rows are consecutive numbers in the order of `add`, so postings ascend and equal input gives
equal output. The cost of a search is bounded by a posting budget, whatever the project's size. Nothing of it lies on disk.
"""

from __future__ import annotations

import math
import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import Stemmer

from gate.steps import Steps, finished, pieces

POSTING_BUDGET: Final = 1_500  # measured on LoCoMo: costs no recall, and stops growth with the project
TERM_CHARS_MAX: Final = 64  # longer runs are cut: they are keys of the index, not text
# Of one memory: 64 KiB of prose have about 2,500. A new term costs some 250 B, so that 64 KiB of nothing but new ones cost 4 MB.
INDEXED_TERMS_MAX: Final = 4_096
_STEM_CACHE: Final = 1 << 16

Rows = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]

# Function words of English: in most texts, and never the reason why one is wanted.
_STOP_TEXT: Final = """
    a about above after again against all also am an and any are aren't as at be because been before being below between both
    but by can can't cannot could couldn't did didn't do does doesn't doing don't down during each few for from further had
    hadn't has hasn't have haven't having he he'd he'll he's her here here's hers herself him himself his how how's i i'd i'll
    i'm i've if in into is isn't it it'd it'll it's its itself just let's me more most mustn't my myself no nor not of off on
    once only or other ought our ours ourselves out over own same shan't she she'd she'll she's should shouldn't so some such
    than that that's the their theirs them themselves then there there's these they they'd they'll they're they've this those
    through to too under until up very was wasn't we we'd we'll we're we've were weren't what what's when when's where where's
    which while who who's whom why why's will with won't would wouldn't you you'd you'll you're you've your yours yourself
    yourselves
"""
STOP_WORDS: Final = frozenset(_STOP_TEXT.split())

# Han, kana and Hangul: written without spaces (or, for Korean, with endings that hide the word), so characters stand for words.
_CJK: Final = re.compile(
    "([\u1100-\u11ff\u3005\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]+)"
)
_CHUNK: Final = re.compile(r"\w+(?:[.@:/'\-]+\w+)*")  # a word, or words that punctuation joins: foo_bar, a.b, x@y, don't
_WORD: Final = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
# ASCII alone, most texts: joiners and word characters in lower case, everything else a space. Split, then stripped of joiners at
# both ends, it has just the matches of _CHUNK.
_JOINERS: Final = b".@:/'-"
_ASCII: Final = bytes(
    ord(chr(i).lower()) if i < 128 and (chr(i).isalnum() or i == ord("_") or i in _JOINERS) else ord(" ") for i in range(256)
)
_IDENTIFIER: Final = re.compile(r"[_.@:/]|\d")  # what makes a joined chunk worth keeping whole; a hyphen alone doesn't

_stemmer = Stemmer.Stemmer("english", 0)  # no cache of its own: lru_cache is safe between threads, that one isn't


def terms(text: str) -> list[str]:
    """Index terms in text order, repeats included: stems without stop words, identifiers also whole, CJK as bigrams.

    Any text is accepted; equal after NFKC and case folding means equal terms.
    """
    if text.isascii():
        return list(chain.from_iterable(map(_known.__getitem__, text.encode().translate(_ASCII).split())))
    found: list[str] = []
    for run, is_cjk in _runs(text):
        if is_cjk:
            found += [run] if len(run) == 1 else [run[i : i + 2] for i in range(len(run) - 1)]
            continue
        found.extend(chain.from_iterable(map(_chunk_terms, _CHUNK.findall(run))))
    return found


def indexed(text: str) -> Steps[frozenset[str]]:
    """The terms that a memory is found by: of a text with too many, those that come first. In steps."""
    if _short(text):
        return frozenset(terms(text))
    found: dict[str, None] = {}
    for piece in pieces(text):
        found.update(dict.fromkeys(terms(piece)))
        if len(found) > INDEXED_TERMS_MAX:
            return frozenset(list(found)[:INDEXED_TERMS_MAX])
        yield
    return frozenset(found)


def indexed_at_once(text: str) -> frozenset[str]:
    """The same in one go."""
    return frozenset(terms(text)) if _short(text) else finished(indexed(text))


def _short(text: str) -> bool:
    """Whether it can't have too many terms: each takes more than a character."""
    return text.isascii() and len(text) <= INDEXED_TERMS_MAX


def words(text: str) -> list[str]:
    """The normalised word sequence, for runs of equal words: nothing left out, nothing stemmed, every CJK character a word."""
    found: list[str] = []
    for run, is_cjk in _runs(text):
        found += list(run) if is_cjk else _WORD.findall(run)
    return found


def _runs(text: str) -> Iterable[tuple[str, bool]]:
    """Folded text cut where the script changes between CJK and the rest."""
    if text.isascii():
        return ((text.lower(), False),)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).replace("’", "'")
    return ((run, i % 2 == 1) for i, run in enumerate(_CJK.split(folded)) if run)


@lru_cache(_STEM_CACHE)
def _chunk_terms(chunk: str) -> tuple[str, ...]:
    if chunk.isalnum():  # most chunks are one plain word
        return () if chunk in STOP_WORDS else (_term(chunk),)
    return tuple(_joined_terms(chunk))


class _Known(dict[bytes, tuple[str, ...]]):
    """The terms of what stands between two spaces of a folded ASCII text; a look-up takes a fifth of a cached call's time."""

    def __missing__(self, raw: bytes) -> tuple[str, ...]:
        chunk = raw.strip(_JOINERS).decode()
        found = _chunk_terms(chunk) if chunk else ()
        if len(raw) <= TERM_CHARS_MAX:  # longer ones don't come again, and would fill the memory
            if len(self) >= _STEM_CACHE:
                self.clear()
            self[raw] = found
        return found


_known: Final = _Known()


def _joined_terms(chunk: str) -> list[str]:
    found = [_term(word) for word in _WORD.findall(chunk) if word not in STOP_WORDS]
    if _IDENTIFIER.search(chunk) and len(chunk) <= TERM_CHARS_MAX and (whole := chunk.strip("_")) and [whole] != found:
        found.append(whole)
    return found


def _term(word: str) -> str:
    return word[:TERM_CHARS_MAX] if len(word) > TERM_CHARS_MAX else _stem(word)


@lru_cache(_STEM_CACHE)
def _stem(word: str) -> str:
    stem: str = _stemmer.stemWord(word)
    return stem


class LexicalIndex:
    """Postings of one project: term → ascending rows."""

    def __init__(self) -> None:
        self._postings: dict[str, array[int]] = {}
        self._n = 0
        self._aside: dict[str, int] = {}  # term → how many of its rows are aside
        self._aside_n = 0
        self._sums = np.zeros(1_024, np.float32)  # scratch of `search`, all zero between calls
        self._last = np.zeros(1_024, np.int32)  # scratch of `search`, of no meaning between calls

    @property
    def n(self) -> int:
        """Number of rows."""
        return self._n

    def add(self, terms_of: Sequence[Collection[str]], aside: Collection[int] = ()) -> None:
        """Index the next rows by their terms; repeats within a row count once.

        `aside`: those of them (from 0) that not everybody may know of: they are found, and make no term more or less rare, else
        the score of what one may see would tell of what one may not.
        """
        postings = self._postings
        for i in aside:
            for term in set(terms_of[i]):
                self._aside[term] = self._aside.get(term, 0) + 1
        self._aside_n += len(aside)
        for row, found in enumerate(terms_of, self._n):
            for term in found if isinstance(found, (set, frozenset)) else set(found):
                rows = postings.get(term)
                if rows is None:
                    rows = postings[term] = array("i")
                rows.append(row)
        self._n += len(terms_of)
        if self._n > len(self._sums):
            self._sums = np.zeros(max(self._n, 2 * len(self._sums)), np.float32)
            self._last = np.zeros(len(self._sums), np.int32)

    def remove(self, row: int, terms_of: Iterable[str], *, aside: bool = False) -> None:
        """Forget a row; its number stays. `terms_of`, `aside`: what it was added with. Removing twice is allowed."""
        for term in set(terms_of):
            rows = self._postings.get(term)
            if rows is None:
                continue
            at = bisect_left(rows, row)
            if at < len(rows) and rows[at] == row:
                del rows[at]
                if aside:
                    self._aside[term] -= 1
                    if not self._aside[term]:
                        del self._aside[term]
            if not rows:
                del self._postings[term]

    def df(self, term: str) -> int:
        """In how many rows a term is."""
        return len(self._postings.get(term, ()))

    def rows(self, term: str) -> Rows:
        """The rows that a term is in, ascending; a copy."""
        return np.array(self._postings.get(term, ()), np.int32)

    def search(self, query: Iterable[str], limit: int, allowed: npt.NDArray[np.bool_] | None = None) -> tuple[Rows, Scores]:
        """At most `limit` rows by the sum of their terms' idf, best first, equal scores newest first.

        `allowed`: one bool a row; None = all. No length normalisation (measured: it costs time, and recall on short texts).
        Rarest terms are read first, until the posting budget is spent; of a single over-long list only the newest allowed rows.
        """
        return self.search_beside(query, limit, allowed, None)[0]

    def search_beside(
        self, query: Iterable[str], limit: int, allowed: npt.NDArray[np.bool_] | None, hidden: npt.NDArray[np.bool_] | None
    ) -> tuple[tuple[Rows, Scores], Rows]:
        """The same, and at most as many rows among `hidden`, best first (None = no row is), in one pass over the postings."""
        views = self._views(query)
        if not views or limit <= 0:
            return (np.empty(0, np.int32), np.empty(0, np.float32)), np.empty(0, np.int32)
        found, scores = self._added_up(views) if len(views) > 1 else (views[0][0], None)

        def best(mask: npt.NDArray[np.bool_] | None) -> tuple[Rows, Scores]:
            keep = slice(None) if mask is None else mask[found]
            rows = found[keep] if scores is not None else found[keep][-POSTING_BUDGET:].copy()
            return _best(rows, scores[keep] if scores is not None else np.full(len(rows), views[0][1], np.float32), limit)

        return best(allowed), best(hidden)[0] if hidden is not None else np.empty(0, np.int32)

    def _added_up(self, views: list[tuple[Rows, float]]) -> tuple[Rows, Scores]:
        """Each row of the views once, with the sum of its terms' idf."""
        sums, found = self._sums, np.concatenate([rows for rows, _ in views])
        for rows, weight in views:
            sums[rows] += np.float32(weight)
        scores = sums[found]
        sums[found] = 0.0
        # Of a row that several terms found only the last mention stays; the scratch is dense, so nothing is sorted for it.
        last, mention = self._last, np.arange(len(found), dtype=np.int32)
        last[found] = mention
        keep = last[found] == mention
        return found[keep], scores[keep]

    def _views(self, query: Iterable[str]) -> list[tuple[Rows, float]]:
        """The postings to read and their idf. The views must be gone before the next `add`: an array can't grow under one."""
        known = sorted((len(rows), term) for term in set(query) if (rows := self._postings.get(term)) is not None)
        views: list[tuple[Rows, float]] = []
        left = POSTING_BUDGET
        for df, term in known:
            left -= df
            if views and left < 0:
                break
            known_of = df - self._aside.get(term, 0)
            weight = math.log1p((self._n - self._aside_n - known_of + 0.5) / (known_of + 0.5))
            views.append((np.frombuffer(self._postings[term], np.int32), weight))
        return views


def _best(rows: Rows, scores: Scores, limit: int) -> tuple[Rows, Scores]:
    """The best `limit`, best first, ties by descending row. Each row once."""
    if len(rows) > limit:
        least = np.partition(scores, len(scores) - limit)[len(scores) - limit]
        keep = scores >= least
        rows, scores = rows[keep], scores[keep]
    order = np.lexsort((-rows, -scores))[:limit]
    return rows[order], scores[order]
