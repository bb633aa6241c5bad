"""What is found: recall on LoCoMo by each lane, fused, and on the page; and hnswlib's recall against the exact scan."""

from __future__ import annotations

import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gate.model.datasets import DataMissing
from gate.model.embedder import StaticEmbedder
from gate.model.network import Gate
from gate.projections.lexical import terms
from gate.projections.vectors import ExactVectors, HnswVectors
from gate.reading.admit import Admission
from gate.reading.retrieve import Shelves, candidates

from .compute import timed
from .locomo import talks
from .memory_state import InMemory
from .rows import Row
from .texts import Texts

AT: Final = (5, 10, 64)
UNANSWERABLE: Final = 5  # LoCoMo's category of questions without an answer


class Conversation(NamedTuple):
    turns: list[str]
    questions: list[tuple[str, frozenset[int]]]  # and the rows of the evidence


def _conversations() -> Iterator[Conversation]:
    for one, turns, place in talks():
        asked = [
            (qa["question"], frozenset(place[e] for e in qa.get("evidence", ()) if e in place))
            for qa in one["qa"]
            if qa["category"] != UNANSWERABLE
        ]
        yield Conversation(turns, [(q, rows) for q, rows in asked if rows])


def _recall(found: Sequence[int], evidence: frozenset[int], k: int) -> float:
    return len(evidence.intersection(found[:k])) / len(evidence)


async def recall(big: bool) -> AsyncIterator[Row]:
    """Share of a question's evidence among the first 5, 10 and 64 found, each conversation a project of its own."""
    try:
        conversations = list(_conversations())
    except DataMissing as e:
        print(f"recall skipped: {e}", file=sys.stderr)
        return
    embedder = StaticEmbedder()
    admission = Admission(embedder, Gate.load(embedder_id=embedder.id))
    state = InMemory(embedder)
    hits: dict[str, dict[int, list[float]]] = {lane: {k: [] for k in AT} for lane in ("lexical", "vector", "fused", "page")}
    for n, (turns, questions) in enumerate(conversations):
        project, index = state.add(f"c{n}", turns)
        for text, evidence in questions:
            ask = state.ask(project.name, text, k=64)
            vectors = embedder.encode([text])
            shelves = Shelves(project, (), {project.number: index})
            found, _ = candidates(state.tenant, project, shelves, [ask], vectors, state.now_ms)
            admission.decide(state.tenant, project, shelves, [ask], vectors, found, state.now_ms)
            first = int(index.seqs[0])
            lanes = {
                "lexical": index.lexical.search(terms(text), 64)[0].tolist(),
                "vector": index.vectors.search(vectors, 64, [None])[0][0].tolist(),
                "fused": found.rows.tolist(),
                "page": [f.seq - first for f in ask.found],
            }
            for lane, rows in lanes.items():
                for k in AT:
                    hits[lane][k].append(_recall(rows, evidence, k))
    questions_all = len(hits["page"][5])
    for lane, by_k in hits.items():
        for k, values in by_k.items():
            yield Row(
                bench="recall",
                name=f"LoCoMo recall@{k}, {lane}",
                value=statistics.fmean(values),
                unit="",
                note=f"{questions_all:,} questions" if k == AT[0] else "",
            )


async def hnsw(big: bool) -> AsyncIterator[Row]:
    """hnswlib against the exact scan: recall of the 10 and 64 nearest, and milliseconds of a search."""
    embedder, texts = StaticEmbedder(), Texts(5)
    questions = embedder.encode([texts.question() for _ in range(200)])
    for size in (10_000, 30_000, 100_000) if big else (10_000, 30_000):
        vectors = embedder.encode([texts.memory() for _ in range(size)])
        exact, approximate = ExactVectors(), HnswVectors()
        exact.add(vectors)
        approximate.add(vectors)
        none = [None] * len(questions)
        truth, found = exact.search(questions, 64, none), approximate.search(questions, 64, none)
        one = questions[:1]
        scan, _ = timed(lambda exact=exact, one=one: exact.search(one, 64, [None]), 100)  # type: ignore[misc]
        graph, _ = timed(lambda index=approximate, one=one: index.search(one, 64, [None]), 100)  # type: ignore[misc]
        sixteen, _ = timed(lambda exact=exact: exact.search(questions[:16], 64, [None] * 16), 50)  # type: ignore[misc]
        for k in (10, 64):
            shares = [len(np.intersect1d(t[0][:k], f[0][:k])) / k for t, f in zip(truth, found, strict=True)]
            note = f"exact {scan:.2f} ms a search, {sixteen / 16:.2f} in sixteens" if k == 10 else ""
            name = f"hnswlib recall@{k} against exact, {size:,} vectors"
            yield Row(bench="hnsw", name=name, value=statistics.fmean(shares), unit="", note=note)
        yield Row(
            bench="hnsw",
            name=f"hnswlib search, {size:,} vectors",
            value=graph,
            unit="ms",
            raw_name="exact",
            raw=scan,
        )
