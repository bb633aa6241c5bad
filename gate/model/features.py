"""What the gate looks at: a few numbers per candidate, all of which the gatekeeper has at hand when it has retrieved.

Invariants: features are finite; a feature of one question's candidates depends on no other question of the micro-batch; the order
of candidates does not matter. Left out on purpose: trust, floor, origin, sensitivity, kind and source, which are policy's (no
training set varies them along with usefulness, and a weight learned from nothing is noise); age and near-twins, which helped on
unseen GateMem domains (AUROC .74 to .77) and halved recall on LoCoMo, so what they had learned was a habit of that data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Owners = npt.NDArray[np.int32]

FEATURES: Final[tuple[str, ...]] = (
    "fused",  # sum of both reciprocal ranks, 0..0.2
    "lexical",  # reciprocal rank in the lexical lane
    "vector",  # the same of the vector lane
    "cosine",  # of question and memory
    "in_both",  # found by both lanes, 0 or 1
    "fused_share",  # of the question's best, 0..1
    "overlap_share",  # of the question's best, 0..1
    "cosine_share",  # of the question's best
    "cosine_gap",  # below the question's best
)
_LEAST: Final = np.float32(1e-6)  # of nothing, each has no share


@dataclass(frozen=True, slots=True)
class Candidates:
    """Columns of a micro-batch's candidates, aligned. Candidates of one question stand together; `owner` ascends."""

    owner: Owners  # number of the question, 0..q-1
    lexical: Floats  # 1 / (10 + rank) in the lexical lane, 0 = not found by it
    vector: Floats  # 1 / (10 + rank) in the vector lane, 0 = not found by it
    overlap: Floats  # summed idf of the question's terms in the memory (the lexical lane's score), 0 = not found by it
    cosine: Floats  # -1..1, 0 = not found by the vector lane


def concatenate(parts: Sequence[Candidates]) -> Candidates:
    """Batches of one question each as one batch, with owners 0, 1, 2 …"""
    owner = np.repeat(np.arange(len(parts), dtype=np.int32), [len(p.owner) for p in parts])
    others = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Candidates) if f.name != "owner"}
    return Candidates(owner=owner, **others)


def build_features(c: Candidates) -> Floats:
    """float32[n, len(FEATURES)] for n candidates; columns in the order of FEATURES."""
    if not len(c.owner):
        return np.zeros((0, len(FEATURES)), np.float32)
    starts = np.flatnonzero(np.diff(c.owner, prepend=c.owner[0] - 1))
    lengths = np.diff(starts, append=len(c.owner))

    def best(values: Floats) -> Floats:
        """Per candidate, the highest value of its question."""
        highest: Floats = np.repeat(np.maximum.reduceat(values, starts), lengths)
        return highest

    def share(values: Floats) -> Floats:
        return np.asarray(np.maximum(values, 0) / np.maximum(best(values), _LEAST), np.float32)

    fused = c.lexical + c.vector
    columns = (
        fused,
        c.lexical,
        c.vector,
        c.cosine,
        ((c.lexical > 0) & (c.vector > 0)).astype(np.float32),
        share(fused),
        share(c.overlap),
        share(c.cosine),
        best(c.cosine) - c.cosine,
    )
    return np.stack(columns, axis=1).astype(np.float32, copy=False)
