"""Questions with candidates and labels, made from the data sets as the gatekeeper would meet them. Offline only.

Invariants: candidates come from the product's own retrieval (lexical and vector lanes, fused, at most 64), so a feature means in
training what it means at run time; every kept question has a useful and a useless candidate, so that its words alone decide nothing;
what a question may not see (access control, deletion) is policy's matter and not in here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gate.model.datasets import data_file, json_lines
from gate.model.embedder import StaticEmbedder
from gate.model.features import Candidates, concatenate
from gate.projections.lexical import LexicalIndex, terms

CANDIDATES: Final = 64
FUSION_K0: Final = 10
GATEMEM_DOMAINS: Final = ("education", "household", "medical")
_COMMON_SHARE: Final = 0.10  # an expected phrase that stands in more of the candidates says little about any of them
_DAY_S: Final = 86_400.0

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Question:
    """One question: its vector, its candidates, and which of them are useful (bool[n])."""

    vector: Floats
    candidates: Candidates
    useful: Labels


@dataclass(frozen=True, slots=True)
class Note:
    """A text as a memory: `at_s` is when it was written, unix seconds."""

    text: str
    at_s: float


class Corpus:
    """The memories of one project in the order in which they were written; questions see a prefix of them."""

    def __init__(self, embedder: StaticEmbedder, notes: Sequence[Note]) -> None:
        self.notes = list(notes)
        self._embedder = embedder
        self._vectors = embedder.encode([n.text for n in self.notes])
        self._terms = [frozenset(terms(n.text)) for n in self.notes]
        self._lexical = LexicalIndex()

    def candidates(self, question: str, prefix: int, now_s: float) -> tuple[Floats, Candidates, list[int]]:
        """The question's vector, its candidates among the first `prefix` notes, and their rows. Prefixes may not shrink."""
        if self._lexical.n < prefix:
            self._lexical.add(self._terms[self._lexical.n : prefix])
        allowed = np.arange(self._lexical.n) < prefix
        vector = self._embedder.encode([question])[0]
        lexical, _ = self._lexical.search(terms(question), CANDIDATES, allowed)
        cosines = self._vectors[:prefix] @ vector
        near = [r for r in np.argsort(-cosines, kind="stable")[:CANDIDATES].tolist() if cosines[r] > 0]
        lex = {r: 1 / (FUSION_K0 + n) for n, r in enumerate(lexical.tolist())}
        vec = {r: 1 / (FUSION_K0 + n) for n, r in enumerate(near)}
        fused = {r: lex.get(r, 0.0) + vec.get(r, 0.0) for r in lex.keys() | vec.keys()}
        rows = sorted(fused, key=lambda r: (-fused[r], -r))[:CANDIDATES]
        return vector, self._columns(rows, lex, vec, cosines, now_s), rows

    def _columns(
        self, rows: list[int], lex: dict[int, float], vec: dict[int, float], cosines: Floats, now_s: float
    ) -> Candidates:
        return Candidates(
            owner=np.zeros(len(rows), np.int32),
            lexical=np.array([lex.get(r, 0.0) for r in rows], np.float32),
            vector=np.array([vec.get(r, 0.0) for r in rows], np.float32),
            cosine=np.array([cosines[r] if r in vec else 0.0 for r in rows], np.float32),
            age_days=np.array([max(0.0, (now_s - self.notes[r].at_s) / _DAY_S) for r in rows], np.float32),
            memories=self._vectors[rows],
        )


# --- GateMem ---------------------------------------------------------------------------------------
def gatemem(domain: str, embedder: StaticEmbedder) -> list[Question]:
    """Answerable (utility) checkpoints of one domain. Useful: a turn that holds an expected phrase rare among the candidates,
    or two of any kind; a turn with an outdated value holds none. Raises `DataMissing`.
    """
    checkpoints: dict[str, list[dict[str, Any]]] = {}
    for checkpoint in json_lines(f"gatemem/{domain}_checkpoints.jsonl"):
        if checkpoint["query_type"] == "utility" and checkpoint["judge_spec"].get("include"):
            checkpoints.setdefault(checkpoint["episode_id"], []).append(checkpoint)
    questions: list[Question] = []
    for episode in json_lines(f"gatemem/{domain}_episodes.jsonl"):
        turns = episode["turns"]
        place = {t["turn_id"]: i for i, t in enumerate(turns)}
        corpus = Corpus(embedder, _gatemem_notes(turns))
        for checkpoint in sorted(checkpoints.get(episode["episode_id"], ()), key=lambda c: place[c["as_of_turn_id"]]):
            last = place[checkpoint["as_of_turn_id"]]
            vector, found, rows = corpus.candidates(checkpoint["query_text"], last + 1, corpus.notes[last].at_s)
            useful = _holding([corpus.notes[r].text for r in rows], checkpoint["judge_spec"]["include"])
            questions.append(Question(vector, found, useful))
    return _with_both(questions)


def _gatemem_notes(turns: list[dict[str, Any]]) -> list[Note]:
    """A turn without a time (a few have none) is as old as the one before it."""
    notes: list[Note] = []
    for turn in turns:
        stamp = turn.get("timestamp")
        at = datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp() if stamp else notes[-1].at_s if notes else 0.0
        notes.append(Note(turn["text"], at))
    return notes


def _holding(texts: list[str], phrases: list[str]) -> Labels:
    hits = np.zeros((len(phrases), len(texts)), np.bool_)
    for i, phrase in enumerate(phrases):
        pattern = _phrase_pattern(phrase)
        hits[i] = [pattern.search(t) is not None for t in texts]
    rare = hits[hits.mean(1) <= _COMMON_SHARE]
    return np.asarray(rare.any(0) | (hits.sum(0) >= 2), np.bool_)


def _phrase_pattern(phrase: str) -> re.Pattern[str]:
    """Expected phrases are plain text or regular expressions; both stand between non-word characters."""
    try:
        return re.compile(rf"(?<!\w)(?:{phrase})(?!\w)", re.IGNORECASE)
    except re.error:
        return re.compile(rf"(?<!\w)(?:{re.escape(phrase)})(?!\w)", re.IGNORECASE)


def _with_both(questions: Iterable[Question]) -> list[Question]:
    return [q for q in questions if 0 < q.useful.sum() < len(q.useful)]


# --- PersistBench: lists without labels per memory ---------------------------------------------------
def persistbench(name: str, embedder: StaticEmbedder) -> list[Question]:
    """One list per question; `useful` is all true where the list is beneficial, else all false: a label of lists, not of memories."""
    questions: list[Question] = []
    for case in json_lines(f"persistbench/{name}.jsonl"):
        corpus = Corpus(embedder, [Note(m, 0.0) for m in case["memories"]])
        vector, found, rows = corpus.candidates(case["query"], len(corpus.notes), 0.0)
        questions.append(Question(vector, found, np.full(len(rows), name.startswith("beneficial"))))
    return questions


# --- LoCoMo: a benchmark of retrieval, never trained on (CC BY-NC) -----------------------------------
def locomo(embedder: StaticEmbedder) -> list[tuple[Question, int]]:
    """Answerable questions (categories 1-4) with evidence, and how many evidence turns there are, found or not."""
    out: list[tuple[Question, int]] = []
    for conversation in json.loads(data_file("locomo/locomo10.json").read_text(encoding="utf-8")):
        notes, place = _locomo_notes(conversation["conversation"])
        corpus = Corpus(embedder, notes)
        for qa in conversation["qa"]:
            evidence = {place[e] for e in qa.get("evidence", ()) if e in place}
            if qa["category"] == 5 or not evidence:
                continue
            vector, found, rows = corpus.candidates(qa["question"], len(notes), notes[-1].at_s)
            out.append((Question(vector, found, np.array([r in evidence for r in rows])), len(evidence)))
    return out


def _locomo_notes(conversation: dict[str, Any]) -> tuple[list[Note], dict[str, int]]:
    notes: list[Note] = []
    place: dict[str, int] = {}
    sessions = sorted(int(k.removeprefix("session_")) for k, v in conversation.items() if isinstance(v, list))
    for s in sessions:
        at = datetime.strptime(conversation[f"session_{s}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
        for turn in conversation[f"session_{s}"]:
            place[turn["dia_id"]] = len(notes)
            notes.append(Note(f"{turn['speaker']}: {turn['text']}", at))
    return notes, place


# --- batches ----------------------------------------------------------------------------------------
def batch(questions: Sequence[Question]) -> tuple[Floats, Candidates, Labels]:
    """All questions as one micro-batch: vectors float32[q, 256], candidates with owners 0..q-1, labels bool[n]."""
    vectors = np.stack([q.vector for q in questions])
    return vectors, concatenate([q.candidates for q in questions]), np.concatenate([q.useful for q in questions])
