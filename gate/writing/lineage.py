"""Lineage that nobody has to declare: which of the memories served to a context a new text was made from.

Owned by the index thread: one ContextText beside each Context, kept incrementally (scanning 2,048 texts per write costs
200-700 µs). Confidence is per pair, never normalised over the set. Thresholds: the project's defaults table, where they fit this
encoder; likeness was calibrated on LoCoMo (docs/decisions.md 21, tests/bench `lineage`).

A token explains itself only when the writer used it before it was served it; evidence given with a draft explains nothing,
because it is a claim, and claims can only tighten. A copy may be explained by a better copy (decision 22).
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gate.config import CONTEXT_WINDOW_IDS
from gate.model.matrix import UnitMatrix
from gate.projections.lexical import terms, words
from gate.state.contexts import Mark
from gate.steps import Steps, finished, pieces

from .fold import fold

RUN_WORDS: Final = 12  # a shared run this long is a copy
RARE_TOKENS_MIN: Final = 2
RARE_COVER_MIN: Final = 0.30  # of the parent's rare tokens
COPIED_COSINE: Final = 0.85  # with at least one rare token
SAME_COSINE: Final = 0.95  # a copy whatever its words are
COPIED_CONFIDENCE: Final = 0.60
# So much of a text again is a copy however common its words are: planting it often must not make its copies unrelated.
REPEATED_SHARE: Final = 0.90
REPEATED_TERMS_MIN: Final = 4
RARE_DF_MIN: Final = 2
RARE_DF_SHARE: Final = 0.01  # of the project's memories
SERVED_CONFIDENCE: Final = 0.50  # edges from here, joined too
SERVED_EDGES_MAX: Final = 8
COPIED_EDGES_MAX: Final = 56
LIKENESS_WEIGHT: Final = 0.5  # what likeness adds at most; it is the greater of two, each 0 at FROM and 1 from FROM + SPAN on:
COSINE_FROM, COSINE_SPAN = 0.70, 0.25  # of the vectors
NEARNESS_MAX: Final = 0.35  # of a confidence: served just now, in the same run and task
COSINE_COUNTS: Final = COSINE_FROM + COSINE_SPAN * (SERVED_CONFIDENCE - NEARNESS_MAX) / LIKENESS_WEIGHT
OVERLAP_FROM, OVERLAP_SPAN = 0.10, 0.45  # of the words, by idf: sqrt(share of mine * share of theirs)
OWN_OVERLAP: Final = 0.40  # from here a writer's own words are evidence too, of special items
OVERLAP_POSTINGS: Final = 256  # mentions looked at, rarest terms first
OVERLAP_NEAREST: Final = 8  # served texts whose overlap is worked out: those that share most
FLOW_CONFIDENCE: Final = 0.30  # restricted and user-scope items count for the flow check from here
EXPLAINING: Final = 8  # copies that may explain others: those of which most is in the text
EXPLAINED_LEFT: Final = 0.15  # of what an explained copy shares with the text, by weight, the other may leave unexplained
TEXT_TERMS_MAX, TEXT_TERMS_MIN = 2_048, 64  # kept of a served text, the fewer the more texts a context holds
CONTEXT_TERMS: Final = 1 << 18  # terms that a context keeps of hostile texts are a few times this; ordinary texts are kept whole
RUNS_AGAIN_MAX: Final = 64
CONTEXT_BYTES: Final = 4_096  # a context that holds nothing
# By RSS: of a served text with its vector, of each of its terms and runs, and of a term or run that no other text of the context
# has. LoCoMo's texts of 120 characters take 1.6 KB, nothing but new terms 300 B each.
SERVED_BYTES, MENTION_BYTES, TERM_BYTES, RUN_BYTES = 640, 12, 190, 100
OWN_BYTES: Final = 90  # of a word or run of the writer's own
STEP_TERMS: Final = 256  # of a served text with more, sampling and keeping are steps of their own
RARE_POSTINGS: Final = 1 << 17  # mentions of rare words looked at; beyond it a person looks
HALF_LIFE_MS: Final = 30 * 60_000
OWN_TERMS_MAX: Final = 8_192  # and runs
NEAREST: Final = 64  # served candidates looked at, by cosine
_IDENTIFIER: Final = re.compile(r"[_/@:]|\d")
# Years, dates, times and names of regions look like identifiers, and are in everybody's texts: how frequent they are tells.
_COMMON_FORM: Final = re.compile(
    r"(?:(?:19|20)\d\d|\d{4}-\d\d(?:-\d\d)?(?:t[\d:.]*z?)?|\d{1,2}:\d\d(?::\d\d)?|[a-z]{2,}(?:-[a-z]+)+-\d{1,2})\Z"
)
_SMALL_NUMBER: Final = re.compile(r"\d{1,2}\Z")
_NO_RUNS: Final[set[int]] = set()
_COMPACT_AT: Final = CONTEXT_WINDOW_IDS * 3 // 2

Hashed = TypeVar("Hashed", str, int)
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Text:
    """A text as lineage sees it: its terms, its words in order, its unit vector float32[d].

    `core`: the terms of the content alone, where more than the content is looked at; what is said beside it doesn't thin it out.
    """

    terms: frozenset[str]
    words: tuple[str, ...]
    vector: Vector
    core: frozenset[str] = frozenset()


def text_of(content: str, vector: Vector, beside: str = "") -> Text:
    """With disguises undone: unseen characters, accents and look-alikes make no other words."""
    return finished(read(content, vector, beside))


def read(content: str, vector: Vector, beside: str = "") -> Steps[Text]:
    """The same in steps: a text of 64 KiB takes 5-30 ms."""
    found: set[str] = set()
    in_order: list[str] = []
    for piece in pieces(content):
        seen = fold(piece).text
        found.update(terms(seen))
        in_order += words(seen)
        yield
    core = frozenset(found)
    if not beside:
        return Text(core, tuple(in_order), vector)
    for piece in pieces(beside):
        more = fold(piece).text
        found.update(terms(more))
        in_order += words(more)
        yield
    return Text(frozenset(found), tuple(in_order), vector, core)


@dataclass(frozen=True, slots=True)
class Pair:
    """One parent and how sure the edge is (0..1)."""

    parent: int
    confidence: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Edges are bounded, labels are not: `joined` and `strong` name every parent, with an edge or without."""

    copied: tuple[Pair, ...] = ()
    served: tuple[Pair, ...] = ()  # over the threshold, not copied; or copied, and explained by another
    near: tuple[int, ...] = ()  # special items over FLOW_CONFIDENCE
    joined: tuple[int, ...] = ()  # all parents whose labels count
    strong: tuple[int, ...] = ()  # all copied ones, explained or not: of a held one the child is held
    cut: bool = False  # more sources than edges, or than can be looked at: for a person to see


NO_EVIDENCE: Final = Evidence()


class _Served(NamedTuple):
    """What is kept of a served text beside its vector; of a long one a sample by hash, which a writer can't foresee. No sets:
    small ones take a kilobyte each.
    """

    terms: tuple[str, ...]
    runs: tuple[int, ...]


class _Mentions:
    """Rows that terms were found in, a row once for each of its terms, and the terms' weights."""

    def __init__(self) -> None:
        self.rows = array("i")
        self.weights = array("d")
        self.lengths = array("q")

    def add(self, rows: array[int], weight: float) -> None:
        self.rows.extend(rows)
        self.weights.append(weight)
        self.lengths.append(len(rows))

    def add_all(self, others: _Mentions) -> None:
        self.rows.extend(others.rows)
        self.weights.extend(others.weights)
        self.lengths.extend(others.lengths)

    def count(self, n: int) -> npt.NDArray[np.intp]:
        """Of each of `n` rows how many terms it has."""
        return np.bincount(np.frombuffer(self.rows, np.intc), minlength=n)

    def weigh(self, n: int) -> npt.NDArray[np.float64]:
        """Of each of `n` rows the sum of its terms' weights."""
        weights = np.frombuffer(self.weights).repeat(np.frombuffer(self.lengths, np.int64))
        return np.asarray(np.bincount(np.frombuffer(self.rows, np.intc), weights, n), np.float64)


class _Shared(NamedTuple):
    """Of each row of a context what it has in common with a new text."""

    weights: npt.NDArray[np.float64]  # of the words
    rare: npt.NDArray[np.intp]  # how many of them are rare
    bounded: bool  # more than can be looked at


class ContextText:
    """Terms, 12-word runs and vectors of what a context was served, and the words that the writer brought itself."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.epoch = -1
        self.under_way = False  # it is being brought up to what was served
        self._clear()

    def _clear(self) -> None:
        self.texts: dict[int, _Served] = {}
        self.special: set[int] = set()
        self._having: dict[str, array[int]] = {}  # term → rows
        self._runs: dict[int, int] = {}
        self._weights: dict[int, float] = {}  # sum of idf of a served text's terms, when it was first asked for
        self._rare_counts: dict[int, int] = {}  # the same: how many of its terms are rare
        self.taken: dict[int, set[str]] = {}  # of special texts: the rare words that earlier writes took, a few at a time
        self._runs_again: dict[int, list[int]] = {}  # later texts with a run that is known already: few
        self._own: set[str] = set()
        self._own_runs: set[int] = set()
        self._echoed: dict[str, int] = {}  # how often the writer itself repeated a term that it was served
        self._matrix = UnitMatrix(self.dim)
        self._rows: list[int] = []  # the texts, in order of coming
        self._mentions = 0
        self._row_of: dict[int, int] = {}

    def begin(self, epoch: int) -> bool:
        """Forget everything when another epoch has begun; whether it has."""
        if epoch == self.epoch:
            return False
        self._clear()
        self.epoch = epoch
        return True

    def serve(self, seq: int, text: Text, special: bool) -> None:
        """A memory that is about to be served. `special`: restricted or of a user."""
        finished(self.hear(seq, text, special))

    def hear(self, seq: int, text: Text, special: bool) -> Steps[None]:
        """The same in steps."""
        if seq in self.texts:
            return
        most = min(TEXT_TERMS_MAX, max(TEXT_TERMS_MIN, CONTEXT_TERMS // (len(self.texts) + 1)))
        terms, runs = _sample(text.terms, most), _sample(frozenset(_runs(text.words)), most)
        if len(runs) > STEP_TERMS:
            yield
        self._keep(seq, _Served(tuple(terms), tuple(runs)), special)
        self._matrix.append(text.vector[None, :])

    def _keep(self, seq: int, text: _Served, special: bool) -> None:
        """All but its vector."""
        self.texts[seq] = text
        if special:
            self.special.add(seq)
        row = self._row_of[seq] = len(self._rows)
        having = self._having
        for t in text.terms:
            rows = having.get(t)
            if rows is None:
                rows = having[t] = array("i")
            rows.append(row)
        for h in text.runs:
            if self._runs.setdefault(h, seq) != seq and len(again := self._runs_again.setdefault(h, [])) < RUNS_AGAIN_MAX:
                again.append(seq)
        self._rows.append(seq)
        self._mentions += len(text.terms) + len(text.runs)

    @property
    def size(self) -> int:
        """Bytes that it takes, about: itself, what was served, and the words that the writer brought or repeated."""
        served = SERVED_BYTES * len(self.texts) + MENTION_BYTES * self._mentions
        found = TERM_BYTES * len(self._having) + RUN_BYTES * len(self._runs)
        return CONTEXT_BYTES + served + found + OWN_BYTES * (len(self._own) + len(self._own_runs) + len(self._echoed))

    def wrote(self, text: Text) -> None:
        """The writer's own text: terms and runs that it was not served before are its own from now on. Repeating the others
        doesn't make them common.
        """
        if len(self._own) < OWN_TERMS_MAX:  # beyond it nothing more is explained: more copies, never fewer
            self._own |= {t for t in text.terms if t not in self._having}
        if len(self._own_runs) < OWN_TERMS_MAX:
            self._own_runs |= {h for h in _runs(text.words) if h not in self._runs}
        for t in text.terms:
            if t in self._having:
                self._echoed[t] = self._echoed.get(t, 0) + 1

    def echoes(self, terms: Iterable[str]) -> None:
        """Of a text that it promoted: none of its words are taken for its own."""
        for t in set(terms):
            self._echoed[t] = self._echoed.get(t, 0) + 1

    def heard(self) -> list[str]:
        """The terms of what was served."""
        return list(self._having)

    def oldest_with(self, term: str) -> int:
        """The oldest served memory that has a term; 0 = none."""
        return min((self._rows[row] for row in self._having.get(term, ())), default=0)

    def echoed(self, term: str, times: int) -> None:
        """The writer repeated a term of what it was served so often, at least, before this context was looked at."""
        if term in self._having and times > self._echoed.get(term, 0):
            self._echoed[term] = times

    def compact(self, served: Mapping[int, Mark]) -> None:
        """Forget what fell out of the context's window."""
        if len(self._rows) <= _COMPACT_AT:
            return
        was = (self._own, self._own_runs, self._echoed, self.taken)
        self._keep_only([s for s in self.texts if s in served])
        self._own, self._own_runs, self._echoed, self.taken = was

    def _keep_only(self, seqs: list[int]) -> None:
        """Of the served texts these, in their order; and nothing else."""
        texts, special, rows, matrix = self.texts, self.special, self._row_of, self._matrix
        self._clear()
        for seq in seqs:
            self._keep(seq, texts[seq], seq in special)
        self._matrix = matrix.only([rows[s] for s in seqs])

    def forget(self, seqs: Collection[int], *, own: bool) -> bool:
        """Memories that were erased: nothing of their texts stays here; whether anything of them could be.

        `own`: the writer wrote one of them itself. Its own words aren't kept by memory, so all of them go: until it writes again
        nothing explains a word, which finds more copies, never fewer. How often it repeated a word stays for words that it was
        served elsewhere too: else its own copies would make them common, and its next ones unseen.
        """
        gone = self.texts.keys() & set(seqs)
        if not gone and not own:
            return False
        taken, echoed, was = self.taken, self._echoed, (self._own, self._own_runs)
        self._keep_only([s for s in self.texts if s not in gone])
        if not own:
            self._own, self._own_runs = was
        self.taken = {s: words for s, words in taken.items() if s not in gone}
        self._echoed = {t: n for t, n in echoed.items() if t in self._having}
        return True

    def nearest(self, vectors: Vector) -> list[dict[int, float]]:
        """For each row of float32[n, dim] the cosines of the nearest served texts. One product for all is a third of the time.

        Of plain texts only those that can make an edge: below COSINE_COUNTS a cosine changes nothing.
        """
        known = self._rows
        found = (
            self._matrix.best(vectors, NEAREST, [None] * len(vectors))
            if self.special
            else self._matrix.above(vectors, COSINE_COUNTS, NEAREST)
        )
        return [{known[r]: s for r, s in zip(rows.tolist(), scores.tolist(), strict=True)} for rows, scores in found]

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
        known = _Frequencies(df, n, self._echoed)
        if cosines is None:
            [cosines] = self.nearest(mine.vector[None, :])
        shared = self._shared(mine, known)
        runs = self._same_runs(mine)
        copied = self._copied(mine, cosines, shared, runs, known)
        # The loop goes on serving meanwhile: what fell out of the window since then has no mark, and is no parent.
        all_copied = sorted((s for s in copied if s in served), key=lambda s: (-copied[s], s))
        kept, cut = self._kept(mine, all_copied, runs)
        explained = self._explained(mine, kept, runs, shared, known) if len(kept) > 1 else set()
        alike = self._alike(mine, cosines, shared, known, _nearness(0, bool(run), bool(task)))
        sure = {
            s: _served(mark, like, now_ms, run, task)
            for s, like in alike.items()
            if s not in copied and (mark := served.get(s)) is not None
        }
        near = {s for s in self.special if sure.get(s, 0.0) >= FLOW_CONFIDENCE} | self._taken_bit_by_bit(mine, shared, known)
        over = sorted((s for s, c in sure.items() if c >= SERVED_CONFIDENCE), key=lambda s: (-sure[s], s))
        return Evidence(
            tuple(Pair(s, copied[s]) for s in kept if s not in explained),
            (*(Pair(s, copied[s]) for s in kept if s in explained), *(Pair(s, sure[s]) for s in over[:SERVED_EDGES_MAX])),
            tuple(near),
            (*all_copied, *over),
            tuple(all_copied),
            cut or shared.bounded,
        )

    def _kept(self, mine: Text, copied: list[int], runs: Mapping[int, set[int]]) -> tuple[list[int], bool]:
        """The at most COPIED_EDGES_MAX that get an edge, surest first, and whether one that is needed got none.

        Needed is the oldest source of each shared word and run: many copies of one text can't push the others out.
        """
        if len(copied) <= COPIED_EDGES_MAX:
            return copied, False
        seen: set[str | int] = set()
        needed: list[int] = []
        for s in sorted(copied):
            new = (mine.terms.intersection(self.texts[s].terms) - self._own | runs.get(s, _NO_RUNS)) - seen
            if new:
                needed.append(s)
                seen |= new
        kept = set(needed[:COPIED_EDGES_MAX])
        kept.update([s for s in copied if s not in kept][: COPIED_EDGES_MAX - len(kept)])
        return [s for s in copied if s in kept], len(needed) > COPIED_EDGES_MAX

    def _taken_bit_by_bit(self, mine: Text, shared: _Shared, known: _Frequencies) -> set[int]:
        """Special texts of which this write and earlier ones together took as much as makes a copy."""
        found = set()
        for s in self.special:
            if not shared.rare[self._row_of[s]]:
                continue
            taken = self.taken.setdefault(s, set())
            before = len(taken)
            taken |= {t for t in mine.terms.intersection(self.texts[s].terms) - self._own if known.rare(t)}
            if (
                len(taken) > before
                and len(taken) >= RARE_TOKENS_MIN
                and len(taken) >= RARE_COVER_MIN * self._rare_count(s, known)
            ):
                found.add(s)
        return found

    def _shared(self, mine: Text, known: _Frequencies) -> _Shared:
        """What each served text shares with `mine` that the writer didn't bring."""
        own, all_having = self._own, self._having
        having = [(len(h), t) for t in mine.terms if (h := all_having.get(t)) is not None and t not in own]
        having.sort()
        rare, common = _Mentions(), _Mentions()
        left, left_rare = OVERLAP_POSTINGS, RARE_POSTINGS
        for size, term in having:
            left -= size
            telling, weight = known.of(term)
            if telling:
                left_rare -= size
                if left_rare < 0:
                    break
                rare.add(all_having[term], weight)
            elif left >= 0:
                common.add(all_having[term], weight)
        counts = rare.count(len(self._rows))
        rare.add_all(common)
        return _Shared(rare.weigh(len(self._rows)), counts, left_rare < 0)

    def _same_runs(self, mine: Text) -> dict[int, set[int]]:
        """By served text: the runs of words that it shares with `mine` and that the writer didn't bring."""
        same: dict[int, set[int]] = {}
        for h in set(_runs(mine.words)):
            found = self._runs.get(h)
            if found is not None and h not in self._own_runs:
                for seq in (found, *self._runs_again.get(h, ())):
                    same.setdefault(seq, set()).add(h)
        return same

    def _copied(
        self, mine: Text, cosines: Mapping[int, float], shared: _Shared, runs: Iterable[int], known: _Frequencies
    ) -> dict[int, float]:
        copied: dict[int, float] = {}
        for row in np.flatnonzero(shared.rare >= RARE_TOKENS_MIN).tolist():
            seq = self._rows[row]
            cover = int(shared.rare[row]) / self._rare_count(seq, known)
            if cover >= RARE_COVER_MIN:
                copied[seq] = max(COPIED_CONFIDENCE, min(1.0, cover))
        for seq, cosine in cosines.items():
            if cosine >= SAME_COSINE or (
                cosine >= COPIED_COSINE and (shared.rare[self._row_of[seq]] or self._repeats(mine, seq))
            ):
                copied[seq] = max(copied.get(seq, 0.0), min(1.0, cosine))
        return copied | dict.fromkeys(runs, 1.0)

    def _explained(
        self, mine: Text, strong: list[int], runs: Mapping[int, set[int]], shared: _Shared, known: _Frequencies
    ) -> set[int]:
        """Of several copies those that another served memory accounts for, of which a greater part is in `mine`.

        What is left of them, the other's words and runs taken out, is next to nothing: no run, no identifier, at most one word
        and little of the weight. So a plan made from a record is no copy of a digest that quotes the record among others: that
        is a suspect, joined like a parent.
        """
        mine_terms = mine.terms - self._own
        shares = {s: mine_terms.intersection(self.texts[s].terms) for s in strong}
        cover = {s: float(shared.weights[self._row_of[s]]) / max(self._weight(s, known), 1e-9) for s in strong}

        def accounts(a: int, b: int) -> bool:
            left = shares[b] - shares[a]
            return (
                cover[b] < cover[a]
                and runs.get(b, _NO_RUNS) <= runs.get(a, _NO_RUNS)
                and len(left) < RARE_TOKENS_MIN
                and not any(map(_rare_by_form, left))
                and known.total(left) <= EXPLAINED_LEFT * known.total(shares[b])
            )

        explaining: list[int] = []  # what is explained itself explains nothing
        explained: set[int] = set()
        for b in sorted(strong, key=lambda s: (-cover[s], s)):
            if any(accounts(a, b) for a in explaining):
                explained.add(b)
            elif len(explaining) < EXPLAINING:
                explaining.append(b)
        return explained

    def _alike(
        self, mine: Text, cosines: Mapping[int, float], shared: _Shared, known: _Frequencies, nearest: float
    ) -> dict[int, float]:
        """Likeness (0..1) of all special texts, and of those that are alike enough for an edge where nearness is greatest."""
        least = (SERVED_CONFIDENCE - nearest) / LIKENESS_WEIGHT
        whole = known.total(mine.core or mine.terms)
        beyond = min(cosines.values(), default=0.0) if len(cosines) >= NEAREST else 0.0  # no other is nearer

        def overlapping(seq: int, weight: float) -> float:
            return weight / math.sqrt(whole * max(self._weight(seq, known), weight)) if weight else 0.0

        def likeness(seq: int) -> float:
            """The greater of both, so neither other words nor a weak encoder hide a source alone."""
            cosine = cosines.get(seq, 0.0)
            overlap = overlapping(seq, float(shared.weights[self._row_of[seq]]))
            if seq in self.special:
                if not cosine and beyond > COSINE_FROM:
                    cosine = float(self._matrix.gather(np.array([self._row_of[seq]]))[0] @ mine.vector)
                both = mine.terms.intersection(self.texts[seq].terms)
                if (
                    cosine and (again := overlapping(seq, known.total(both))) >= OWN_OVERLAP
                ):  # who wrote it itself may say it no further down either
                    overlap = again
            return min(1.0, max(0.0, (cosine - COSINE_FROM) / COSINE_SPAN, (overlap - OVERLAP_FROM) / OVERLAP_SPAN))

        alike = {s: likeness(s) for s in self.special}
        for seq, cosine in cosines.items():  # best first
            if cosine < COSINE_FROM + least * COSINE_SPAN:
                break
            if seq not in alike:
                alike[seq] = likeness(seq)
        need = (OVERLAP_FROM + least * OVERLAP_SPAN) ** 2 * whole
        over = np.flatnonzero((shared.weights >= need) & (shared.weights > 0))
        for row in over[np.argsort(-shared.weights[over], kind="stable")[:OVERLAP_NEAREST]].tolist():
            seq = self._rows[row]
            if seq not in alike and (like := likeness(seq)) >= least:
                alike[seq] = like
        return alike

    def _rare_count(self, seq: int, known: _Frequencies) -> int:
        count = self._rare_counts.get(seq)
        if count is None:
            count = self._rare_counts[seq] = max(1, sum(map(known.rare, self.texts[seq].terms)))
        return count

    def _weight(self, seq: int, known: _Frequencies) -> float:
        weight = self._weights.get(seq)
        if weight is None:
            weight = self._weights[seq] = known.total(self.texts[seq].terms)
        return weight

    def _repeats(self, mine: Text, seq: int) -> bool:
        """Whether `mine` holds nearly all of what a served text has and the writer didn't."""
        theirs = set(self.texts[seq].terms) - self._own
        return len(theirs) >= REPEATED_TERMS_MIN and len(theirs & mine.terms) >= REPEATED_SHARE * len(theirs)


class _Frequencies:
    """How telling terms are in the project that is written into, each looked up once."""

    def __init__(self, df: Callable[[str], int], n: int, echoed: Mapping[str, int]) -> None:
        self._df, self._n, self._echoed = df, n, echoed
        self._common = max(RARE_DF_MIN, n * RARE_DF_SHARE)
        self._known: dict[str, tuple[bool, float]] = {}

    def of(self, term: str) -> tuple[bool, float]:
        """Whether it is rare, and its weight: BM25's idf as if the text were in the project already, so that a new word weighs
        no more than one of a single memory.
        """
        known = self._known.get(term)
        if known is None:
            df = self._df(term)
            others = df - self._echoed.get(term, 0)
            rare = _rare_by_form(term)
            if rare is None:
                rare = (df if _COMMON_FORM.match(term) else others) <= self._common
            least = max(1, others)
            known = rare, math.log1p((max(self._n + 1, least) - least + 0.5) / (least + 0.5))
            self._known[term] = known
        return known

    def rare(self, term: str) -> bool:
        return self.of(term)[0]

    def total(self, terms: Iterable[str]) -> float:
        return sum([self.of(term)[1] for term in terms])


def _served(mark: Mark, likeness: float, now_ms: int, run: bytes, task: bytes) -> float:
    """Confidence that something served was used: nearness in time alone (at most .35) never joins."""
    near = _nearness(now_ms - mark.ms, bool(run) and mark.run == run, bool(task) and mark.task == task)
    return near + LIKENESS_WEIGHT * likeness


def _nearness(age_ms: int, same_run: bool, same_task: bool) -> float:
    recency: float = 2.0 ** (-max(0, age_ms) / HALF_LIFE_MS)
    return 0.05 + 0.10 * same_run + 0.05 * same_task + 0.15 * recency


@lru_cache(1 << 16)
def _rare_by_form(term: str) -> bool | None:
    """Whether a term is rare (an identifier) or not (a small number) by its form; None: its frequency tells."""
    if _SMALL_NUMBER.match(term):
        return False
    return True if _IDENTIFIER.search(term) and not _COMMON_FORM.match(term) else None


def _sample(things: frozenset[Hashed], most: int) -> frozenset[Hashed]:
    """All, or of many those whose hash (another in each process) falls on one of every few."""
    if len(things) <= most:
        return things
    step = -(-len(things) // most)
    return frozenset(x for x in things if hash(x) % step == 0)


def _runs(words: tuple[str, ...]) -> Iterable[int]:
    return (hash(words[i : i + RUN_WORDS]) for i in range(len(words) - RUN_WORDS + 1))
