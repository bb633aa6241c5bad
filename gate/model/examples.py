"""Questions with candidates and labels, made from the data sets as the gatekeeper would meet them. Offline only.

Invariants: candidates come from the product's own retrieval (lexical and vector lanes, fused, at most 64), so a feature means
in training what it means at run time; every kept question has a useful and a useless candidate, so that its words alone decide
nothing; what a question may not see (access control, deletion) is policy's matter and not in here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gate.model.datasets import data_file, json_lines
from gate.model.embedder import StaticEmbedder
from gate.model.features import Candidates, build_features, concatenate
from gate.projections.lexical import LexicalIndex, terms

CANDIDATES: Final = 64
FUSION_K0: Final = 10
GATEMEM_DOMAINS: Final = ("education", "household", "medical")
BENEFICIAL: Final = "beneficial_samples"
PERSISTBENCH: Final = ("cross_domain", "sycophancy", BENEFICIAL)
_COMMON_SHARE: Final = 0.10  # an expected phrase that stands in more of the candidates says little about any of them

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Question:
    """One question: its vector, its candidates, their vectors (float32[n, 256]), and which of them are useful (bool[n])."""

    vector: Floats
    candidates: Candidates
    memories: Floats
    useful: Labels


class Corpus:
    """The memories of one project in the order in which they were written; questions see a prefix of them."""

    def __init__(self, embedder: StaticEmbedder, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self._embedder = embedder
        self._vectors = embedder.encode(self.texts)
        self._terms = [frozenset(terms(t)) for t in self.texts]
        self._lexical = LexicalIndex()

    def question(self, text: str, prefix: int, useful: Callable[[list[int]], Labels]) -> Question:
        """Candidates among the first `prefix` texts; `useful` labels their rows. Prefixes may not shrink."""
        self._lexical.add(self._terms[self._lexical.n : prefix])
        vector = self._embedder.encode([text])[0]
        by_term, sums = self._lexical.search(terms(text), CANDIDATES)
        cosines = self._vectors[:prefix] @ vector
        near = [r for r in np.argsort(-cosines, kind="stable")[:CANDIDATES].tolist() if cosines[r] > 0]
        lexical = {r: 1 / (FUSION_K0 + n) for n, r in enumerate(by_term.tolist())}
        nearest = {r: 1 / (FUSION_K0 + n) for n, r in enumerate(near)}
        overlap = dict(zip(by_term.tolist(), sums.tolist(), strict=True))
        fused = {r: lexical.get(r, 0.0) + nearest.get(r, 0.0) for r in lexical.keys() | nearest.keys()}
        rows = sorted(fused, key=lambda r: (-fused[r], -r))[:CANDIDATES]
        found = Candidates(
            owner=np.zeros(len(rows), np.int32),
            lexical=np.array([lexical.get(r, 0.0) for r in rows], np.float32),
            vector=np.array([nearest.get(r, 0.0) for r in rows], np.float32),
            overlap=np.array([overlap.get(r, 0.0) for r in rows], np.float32),
            cosine=np.array([cosines[r] if r in nearest else 0.0 for r in rows], np.float32),
        )
        return Question(vector, found, self._vectors[rows], useful(rows))


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
        place = {t["turn_id"]: i for i, t in enumerate(episode["turns"])}
        corpus = Corpus(embedder, [t["text"] for t in episode["turns"]])
        for checkpoint in sorted(checkpoints.get(episode["episode_id"], ()), key=lambda c: place[c["as_of_turn_id"]]):
            label = partial(_holding, corpus.texts, checkpoint["judge_spec"]["include"])
            questions.append(corpus.question(checkpoint["query_text"], place[checkpoint["as_of_turn_id"]] + 1, label))
    return [q for q in questions if 0 < q.useful.sum() < len(q.useful)]


def _holding(texts: list[str], phrases: list[str], rows: list[int]) -> Labels:
    hits = np.zeros((len(phrases), len(rows)), np.bool_)
    for i, phrase in enumerate(phrases):
        pattern = _phrase_pattern(phrase)
        hits[i] = [pattern.search(texts[r]) is not None for r in rows]
    rare = hits[hits.mean(1) <= _COMMON_SHARE]
    return np.asarray(rare.any(0) | (hits.sum(0) >= 2), np.bool_)


def _phrase_pattern(phrase: str) -> re.Pattern[str]:
    """Expected phrases are plain text or regular expressions; both stand between non-word characters."""
    try:
        return re.compile(rf"(?<!\w)(?:{phrase})(?!\w)", re.IGNORECASE)
    except re.error:
        return re.compile(rf"(?<!\w)(?:{re.escape(phrase)})(?!\w)", re.IGNORECASE)


# --- PersistBench: lists without labels per memory ---------------------------------------------------
def persistbench(name: str, embedder: StaticEmbedder) -> list[Question]:
    """One list per question. `useful` labels the list, not its memories: all true where it is beneficial, else all false."""
    questions: list[Question] = []
    for case in json_lines(f"persistbench/{name}.jsonl"):
        corpus = Corpus(embedder, case["memories"])
        questions.append(corpus.question(case["query"], len(corpus.texts), lambda rows: np.full(len(rows), name == BENEFICIAL)))
    return questions


# --- LoCoMo: a benchmark of retrieval, never trained on (CC BY-NC) -----------------------------------
def locomo(embedder: StaticEmbedder) -> list[tuple[Question, int]]:
    """Answerable questions (categories 1-4) with evidence, and how many evidence turns there are, found or not."""
    out: list[tuple[Question, int]] = []
    for conversation in json.loads(data_file("locomo/locomo10.json").read_text(encoding="utf-8")):
        texts, place = _locomo_turns(conversation["conversation"])
        corpus = Corpus(embedder, texts)
        for qa in conversation["qa"]:
            evidence = [place[e] for e in set(qa.get("evidence", ())) if e in place]
            if qa["category"] != 5 and evidence:
                label = partial(np.isin, test_elements=evidence)
                out.append((corpus.question(qa["question"], len(texts), label), len(evidence)))
    return out


def _locomo_turns(conversation: dict[str, Any]) -> tuple[list[str], dict[str, int]]:
    """Texts in order, and the place of each dialogue id."""
    texts: list[str] = []
    place: dict[str, int] = {}
    for s in sorted(int(k.removeprefix("session_")) for k, v in conversation.items() if isinstance(v, list)):
        for turn in conversation[f"session_{s}"]:
            place[turn["dia_id"]] = len(texts)
            texts.append(f"{turn['speaker']}: {turn['text']}")
    return texts, place


# --- batches ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Batch:
    """Many questions as one micro-batch: float32[q, 256], owners 0..q-1, float32[n, 256], float32[n, F], bool[n]."""

    queries: Floats
    owner: npt.NDArray[np.int32]
    memories: Floats
    features: Floats
    useful: Labels


def batch(questions: Sequence[Question]) -> Batch:
    found = concatenate([q.candidates for q in questions])
    return Batch(
        queries=np.stack([q.vector for q in questions]),
        owner=found.owner,
        memories=np.concatenate([q.memories for q in questions]),
        features=build_features(found),
        useful=np.concatenate([q.useful for q in questions]),
    )
