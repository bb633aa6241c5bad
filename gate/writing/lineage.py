"""Lineage that nobody has to declare: which of the memories served to a context a new text was made from.

Owned by the index thread: one ContextText beside each Context, kept incrementally (scanning 2,048 texts per write costs
200-700 µs). Confidence is per pair, never normalised over the set. Thresholds: the project's defaults table.

A token explains itself only when the writer used it before it was served it; evidence given with a draft explains nothing,
because it
is a claim, and claims can only tighten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt

from gate.config import CONTEXT_WINDOW_IDS
from gate.model.matrix import UnitMatrix
from gate.state.contexts import Mark

RUN_WORDS: Final = 12  # a shared run this long is a copy
RARE_TOKENS_MIN: Final = 2
RARE_COVER_MIN: Final = 0.30  # of the parent's rare tokens
COPIED_COSINE: Final = 0.85  # with at least one rare token
COPIED_CONFIDENCE: Final = 0.60
# So much of a text again is a copy however common its words are: planting it often must not make its copies unrelated.
REPEATED_SHARE: Final = 0.90
REPEATED_TERMS_MIN: Final = 4
RARE_DF_MIN: Final = 2
RARE_DF_SHARE: Final = 0.01  # of the project's memories
SERVED_CONFIDENCE: Final = 0.50  # edges from here, joined too
SERVED_EDGES_MAX: Final = 8
COPIED_EDGES_MAX: Final = 32
COSINE_FROM, COSINE_SPAN, COSINE_WEIGHT = 0.3, 0.6, 0.5  # what likeness adds: nothing at .3, .50 from .9 on
FLOW_CONFIDENCE: Final = 0.30  # restricted and user-scope items count for the flow check from here
HALF_LIFE_MS: Final = 30 * 60_000
OWN_TERMS_MAX: Final = 65_536
NEAREST: Final = 64  # served candidates looked at, by cosine
_IDENTIFIER: Final = re.compile(r"[_/@:]|\d")
_SMALL_NUMBER: Final = re.compile(r"\d{1,2}\Z")
_COMPACT_AT: Final = CONTEXT_WINDOW_IDS * 3 // 2

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Text:
    """A text as lineage sees it: its terms, its words in order, its unit vector float32[d]."""

    terms: frozenset[str]
    words: tuple[str, ...]
    vector: Vector


@dataclass(frozen=True, slots=True)
class Pair:
    """One parent and how sure the edge is (0..1)."""

    parent: int
    confidence: float


@dataclass(frozen=True, slots=True)
class Evidence:
    copied: tuple[Pair, ...] = ()
    served: tuple[Pair, ...] = ()  # over the threshold, not copied
    near: tuple[int, ...] = ()  # special items over FLOW_CONFIDENCE


NO_EVIDENCE: Final = Evidence()


class ContextText:
    """Terms, 12-word runs and vectors of what a context was served, and the words that the writer brought itself."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.epoch = -1
        self._clear()

    def _clear(self) -> None:
        self.texts: dict[int, Text] = {}
        self.special: set[int] = set()
        self._having: dict[str, list[int]] = {}
        self._runs: dict[int, int] = {}
        self._runs_again: dict[int, list[int]] = {}  # later texts with a run that is known already: few
        self._own: set[str] = set()
        self._echoed: dict[str, int] = {}  # how often the writer itself repeated a term that it was served
        self._matrix = UnitMatrix(self.dim)
        self._rows: list[int] = []

    def begin(self, epoch: int) -> None:
        if epoch != self.epoch:
            self._clear()
            self.epoch = epoch

    def serve(self, seq: int, text: Text, special: bool) -> None:
        """A memory that is about to be served. `special`: restricted or of a user."""
        if seq in self.texts:
            return
        self.texts[seq] = text
        if special:
            self.special.add(seq)
        for t in text.terms:
            self._having.setdefault(t, []).append(seq)
        for h in _runs(text.words):
            if self._runs.setdefault(h, seq) != seq:
                self._runs_again.setdefault(h, []).append(seq)
        self._matrix.append(text.vector[None, :])
        self._rows.append(seq)

    def wrote(self, text: Text) -> None:
        """The writer's own text: terms that it was not served before are its own from now on. Repeating the others doesn't make
        them common.
        """
        if len(self._own) < OWN_TERMS_MAX:  # beyond it nothing more is explained: more copies, never fewer
            self._own |= {t for t in text.terms if t not in self._having}
        for t in text.terms:
            if t in self._having:
                self._echoed[t] = self._echoed.get(t, 0) + 1

    def compact(self, served: Mapping[int, Mark]) -> None:
        """Forget what fell out of the context's window."""
        if len(self._rows) <= _COMPACT_AT:
            return
        texts, special, own, echoed = self.texts, self.special, self._own, self._echoed
        self._clear()
        self._own, self._echoed = own, echoed
        for seq, text in texts.items():
            if seq in served:
                self.serve(seq, text, seq in special)

    def nearest(self, vectors: Vector) -> list[dict[int, float]]:
        """For each row of float32[n, dim] the cosines of the nearest served texts. One product for all is a third of the time."""
        known = self._rows
        return [
            {known[r]: s for r, s in zip(rows.tolist(), scores.tolist(), strict=True)}
            for rows, scores in self._matrix.best(vectors, NEAREST, [None] * len(vectors))
        ]

    def evidence(
        self,
        mine: Text,
        served: Mapping[int, Mark],
        df: Callable[[str], int],
        n: int,
        now_ms: int,
        run: bytes,
        task: bytes,
        cosines: Mapping[int, float] | None = None,
    ) -> Evidence:
        """What `mine` was made from. `df` and `n`: document frequency of a term and size of the project it is written into.
        `cosines`: what `nearest` gives for it, if that is known.
        """
        if not self.texts:
            return NO_EVIDENCE
        common = max(RARE_DF_MIN, n * RARE_DF_SHARE)
        rare: dict[str, bool] = {}

        def is_rare(term: str) -> bool:
            known = rare.get(term)
            if known is None:
                known = _rare_by_form(term)
                if known is None:
                    known = df(term) - self._echoed.get(term, 0) <= common
                rare[term] = known
            return known

        if cosines is None:
            [cosines] = self.nearest(mine.vector[None, :])
        copied: dict[int, float] = {}
        hits: dict[int, int] = {}
        for term in mine.terms:
            having = self._having.get(term)
            if having and term not in self._own and is_rare(term):
                for seq in having:
                    hits[seq] = hits.get(seq, 0) + 1
        for seq, count in hits.items():
            cosine = cosines.get(seq, 0.0)
            if cosine >= COPIED_COSINE:
                copied[seq] = min(1.0, cosine)
            if count >= RARE_TOKENS_MIN:
                cover = count / max(1, sum(map(is_rare, self.texts[seq].terms)))
                if cover >= RARE_COVER_MIN:
                    copied[seq] = max(copied.get(seq, 0.0), COPIED_CONFIDENCE, min(1.0, cover))
        for seq, cosine in cosines.items():
            if cosine >= COPIED_COSINE and self._repeats(mine, seq):
                copied[seq] = max(copied.get(seq, 0.0), min(1.0, cosine))
        for h in _runs(mine.words):
            found = self._runs.get(h)
            if found is not None:
                for seq in (found, *self._runs_again.get(h, ())):
                    copied[seq] = 1.0
        # The loop goes on serving meanwhile: what fell out of the window since then has no mark, and is no parent.
        strong = sorted((s for s in copied if s in served), key=lambda s: (-copied[s], s))[:COPIED_EDGES_MAX]

        def confidence(seq: int, cosine: float) -> float:
            mark = None if seq in copied else served.get(seq)
            return 0.0 if mark is None else _served(mark, cosine, now_ms, run, task)

        special = {s: confidence(s, cosines.get(s) or float(self.texts[s].vector @ mine.vector)) for s in self.special}
        near = tuple(s for s, sure in special.items() if sure >= FLOW_CONFIDENCE)
        over = _surest(cosines, confidence, _nearness(0, bool(run), bool(task)), special)
        return Evidence(tuple(Pair(s, copied[s]) for s in strong), over, near)

    def _repeats(self, mine: Text, seq: int) -> bool:
        """Whether `mine` holds nearly all of what a served text has and the writer didn't."""
        theirs = self.texts[seq].terms - self._own
        return len(theirs) >= REPEATED_TERMS_MIN and len(theirs & mine.terms) >= REPEATED_SHARE * len(theirs)


def _surest(
    cosines: Mapping[int, float], confidence: Callable[[int, float], float], nearness: float, known: Mapping[int, float]
) -> tuple[Pair, ...]:
    """The at most SERVED_EDGES_MAX of surest confidence from SERVED_CONFIDENCE on, surest first, of equal ones the oldest.

    `cosines`, best first, are read only as far as they can get in with the most that nearness gives; `known` are all looked at.
    """
    best = [(sure, -s) for s, sure in known.items() if s not in cosines and sure >= SERVED_CONFIDENCE]
    heapify(best)
    for seq, cosine in cosines.items():
        most = nearness + _likeness(cosine)
        if most < SERVED_CONFIDENCE or (len(best) >= SERVED_EDGES_MAX and most < best[0][0]):
            break
        sure = confidence(seq, cosine)
        if sure >= SERVED_CONFIDENCE:
            heappush(best, (sure, -seq))
        while len(best) > SERVED_EDGES_MAX:
            heappop(best)
    return tuple(Pair(-s, sure) for sure, s in sorted(best, reverse=True)[:SERVED_EDGES_MAX])


def _served(mark: Mark, cosine: float, now_ms: int, run: bytes, task: bytes) -> float:
    """Confidence that something served was used: nearness in time alone (at most .35) never joins."""
    near = _nearness(now_ms - mark.ms, bool(run) and mark.run == run, bool(task) and mark.task == task)
    return near + _likeness(cosine)


def _likeness(cosine: float) -> float:
    return COSINE_WEIGHT * min(1.0, max(0.0, (cosine - COSINE_FROM) / COSINE_SPAN))


def _nearness(age_ms: int, same_run: bool, same_task: bool) -> float:
    recency: float = 2.0 ** (-max(0, age_ms) / HALF_LIFE_MS)
    return 0.05 + 0.10 * same_run + 0.05 * same_task + 0.15 * recency


@lru_cache(1 << 16)
def _rare_by_form(term: str) -> bool | None:
    """Whether a term is rare (an identifier) or not (a small number) by its form; None: its frequency tells."""
    return False if _SMALL_NUMBER.match(term) else True if _IDENTIFIER.search(term) else None


def _runs(words: tuple[str, ...]) -> Iterable[int]:
    return (hash(words[i : i + RUN_WORDS]) for i in range(len(words) - RUN_WORDS + 1))
