"""What the gate is worth on sources it was not trained on: `python -m gate.model.evaluate`. MODEL_CARD.md holds its output.

Invariant: no figure comes from a network that saw its source. GateMem is scored domain by domain by networks trained on the other
two; PersistBench and LoCoMo were never trained on, so the shipped weights score them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from gate.model.embedder import StaticEmbedder
from gate.model.examples import BENEFICIAL, GATEMEM_DOMAINS, PERSISTBENCH, Batch, batch, gatemem, locomo, persistbench
from gate.model.features import FEATURES
from gate.model.network import DEFAULT, Gate
from gate.model.train import held_out_scores

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.bool_]

LISTS_KEPT: Final = 0.5  # PersistBench is read where half of the beneficial lists show a memory


def auroc(score: Floats, positive: Labels) -> float:
    """Chance that a positive scores above a negative, ties as half."""
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    p = int(positive.sum())
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * (len(positive) - p)))


def average_precision(score: Floats, positive: Labels) -> float:
    hits = positive[np.argsort(-score, kind="stable")]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def of_questions(b: Batch) -> Iterator[npt.NDArray[np.int64]]:
    """The candidates of each question."""
    for i in range(len(b.queries)):
        yield np.flatnonzero(b.owner == i)


def within_questions(score: Floats, b: Batch) -> float:
    """Mean AUROC inside one question: what is left when the question's words can decide nothing."""
    return float(np.mean([auroc(score[i], b.useful[i]) for i in of_questions(b)]))


def recall_at(score: Floats, b: Batch, evidence: list[int], k: int) -> float:
    """Mean share of a question's evidence among its k best candidates."""
    best = (i[np.argsort(-score[i], kind="stable")[:k]] for i in of_questions(b))
    return float(np.mean([b.useful[i].sum() / n for i, n in zip(best, evidence, strict=True)]))


def without_words(b: Batch, *, ranks: bool) -> Batch:
    """The same candidates, their question's words hidden: every question has the mean vector. Without `ranks` its features, which
    come from its words too, are hidden as well: what is then still told apart is a habit of the data's memories.
    """
    queries = np.repeat(b.queries.mean(0, keepdims=True), len(b.queries), axis=0)
    features = b.features if ranks else np.repeat(b.features.mean(0, keepdims=True), len(b.features), axis=0)
    return Batch(queries, b.owner, b.memories, features, b.useful)


def lowered(score: Floats, threshold: float, useful: Labels) -> tuple[float, float]:
    """Shares of the useful and of the other candidates that lie below the threshold."""
    below = score < threshold
    return float(below[useful].mean()), float(below[~useful].mean())


# --- reports ----------------------------------------------------------------------------------------
def report_gatemem(embedder: StaticEmbedder, threshold: float, say: Callable[[str], object]) -> None:
    batches = {d: batch(gatemem(d, embedder)) for d in GATEMEM_DOMAINS}
    held_out = held_out_scores(batches)
    only_ranks = held_out_scores({d: without_words(b, ranks=True) for d, b in batches.items()})
    hidden = held_out_scores({d: without_words(b, ranks=False) for d, b in batches.items()})
    say("GateMem, each domain scored by a network trained on the other two")
    for name, b in batches.items():
        fused = b.features[:, FEATURES.index("fused")]
        say(f"  {name}: {len(b.queries)} questions, {len(b.useful)} candidates, {int(b.useful.sum())} useful")
        rows = {
            "fused rank alone": fused,
            "gate": held_out[name],
            "trained without the words, with ranks": only_ranks[name],
            "trained without the question": hidden[name],
        }
        for label, s in rows.items():
            figures = f"AUROC {auroc(s, b.useful):.3f}, AP {average_precision(s, b.useful):.3f}"
            say(f"    {label:38} {figures}, within one question {within_questions(s, b):.3f}")
        of_useful, of_others = lowered(held_out[name], threshold, b.useful)
        say(f"    below the threshold: {of_useful:.1%} of the useful, {of_others:.1%} of the others")


def report_persistbench(embedder: StaticEmbedder, gate: Gate, say: Callable[[str], object]) -> None:
    say(f"PersistBench: lists that show a memory where {LISTS_KEPT:.0%} of the beneficial lists do (never trained on)")
    batches = {name: batch(persistbench(name, embedder)) for name in PERSISTBENCH}
    gate_scores = {n: gate.score(b.queries, b.owner, b.memories, b.features) for n, b in batches.items()}
    cosines = {n: b.features[:, FEATURES.index("cosine")] for n, b in batches.items()}
    for label, by_name in (("cosine", cosines), ("gate", gate_scores)):
        best = {n: np.array([by_name[n][i].max() for i in of_questions(b)]) for n, b in batches.items()}
        cut = np.quantile(best[BENEFICIAL], 1 - LISTS_KEPT)
        say(f"  {label:7} " + ", ".join(f"{n} {(s >= cut).mean():.0%} of {len(s)}" for n, s in best.items()))


def report_locomo(embedder: StaticEmbedder, gate: Gate, say: Callable[[str], object]) -> None:
    say("LoCoMo: order of the same candidates (never trained on)")
    found = locomo(embedder)
    evidence = [n for _, n in found]
    b = batch([q for q, _ in found])
    score = gate.score(b.queries, b.owner, b.memories, b.features)
    fused = b.features[:, FEATURES.index("fused")]
    # what the gatekeeper does: the order of the fused rank, candidates below the threshold last
    page = np.where(score < gate.threshold, fused - 1, fused).astype(np.float32)
    for label, s in (("fused rank alone", fused), ("gate as order", score), ("fused, lowered last", page)):
        say(f"  {label:19} recall@5 {recall_at(s, b, evidence, 5):.3f}, @10 {recall_at(s, b, evidence, 10):.3f}")
    of_useful, of_others = lowered(score, gate.threshold, b.useful)
    useful, others = int(b.useful.sum()), int((~b.useful).sum())
    say(f"  below the threshold: {of_useful:.1%} of {useful} useful, {of_others:.1%} of {others} others")


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate the gate on held-out sources (CORDON_DATA).")
    parser.add_argument("--weights", type=Path, default=DEFAULT)
    embedder = StaticEmbedder()
    gate = Gate.load(parser.parse_args().weights, embedder.id)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")

    say(f"{gate.id}, threshold {gate.threshold}, vectors {embedder.id}")
    report_gatemem(embedder, gate.threshold, say)
    report_persistbench(embedder, gate, say)
    report_locomo(embedder, gate, say)


if __name__ == "__main__":
    main()
