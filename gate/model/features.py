"""What the gate looks at: a few numbers per candidate, all of which the gatekeeper has at hand when it has retrieved.

Invariants: features are finite; a feature of one question's candidates depends on no other question of the micro-batch; order of
candidates does not matter. Trust, floor, origin, sensitivity, kind and source are left to policy on purpose: no training set varies
them along with usefulness, and a weight learned from nothing is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

FEATURES: Final[tuple[str, ...]] = (
    "fused",  # sum of both reciprocal ranks, 0..0.2
    "lexical",  # reciprocal rank in the lexical lane, 0 = not found there
    "vector",  # the same of the vector lane
    "cosine",  # of question and memory, 0 = not in the vector lane
    "in_both",  # found by both lanes
    "fused_share",  # of the question's best
    "cosine_share",  # of the question's best
    "cosine_gap",  # below the question's best
    "age",  # log(1 + days)
    "recency",  # place by age among the question's candidates: 0 oldest, 1 newest
    "twins",  # candidates of cosine >= 0.8 to this one, log(1 + n)
    "newer_twin",  # highest cosine to a newer candidate of the same question
)
TWIN_COSINE: Final = 0.8


@dataclass(frozen=True, slots=True)
class Candidates:
    """Columns of a micro-batch's candidates, aligned; candidates of one question stand together, `owner` ascends from 0."""

    owner: npt.NDArray[np.int32]  # number of the question
    lexical: Floats  # 1 / (10 + rank) in the lexical lane, 0 = not found by it
    vector: Floats  # 1 / (10 + rank) in the vector lane, 0 = not found by it
    cosine: Floats  # -1..1, 0 = not found by the vector lane
    age_days: Floats  # since the oldest source was written, >= 0
    memories: Floats  # float32[n, 256], rows of length 1 or zero


def concatenate(parts: Sequence[Candidates]) -> Candidates:
    """Several batches of one question each as one, with owners 0, 1, 2 …"""
    owner = np.repeat(np.arange(len(parts), dtype=np.int32), [len(p.owner) for p in parts])
    others = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Candidates) if f.name != "owner"}
    return Candidates(owner=owner, **others)


def build_features(c: Candidates) -> Floats:
    """float32[n, len(FEATURES)] for n candidates; columns in the order of FEATURES."""
    out = np.zeros((len(c.owner), len(FEATURES)), np.float32)
    starts = np.flatnonzero(np.diff(c.owner, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(c.owner)], strict=True):
        _of_one_question(c, slice(start, end), out[start:end])
    return out


def _of_one_question(c: Candidates, s: slice, out: Floats) -> None:
    lexical, vector, cosine, age = c.lexical[s], c.vector[s], c.cosine[s], c.age_days[s]
    fused = lexical + vector
    best_cosine = max(float(cosine.max()), 1e-6)
    out[:, 0], out[:, 1], out[:, 2], out[:, 3] = fused, lexical, vector, cosine
    out[:, 4] = (lexical > 0) & (vector > 0)
    out[:, 5] = fused / max(float(fused.max()), 1e-6)
    out[:, 6] = cosine / best_cosine
    out[:, 7] = best_cosine - cosine
    out[:, 8] = np.log1p(age)
    out[:, 9] = (age[None, :] > age[:, None]).mean(1)
    near = c.memories[s] @ c.memories[s].T
    out[:, 10] = np.log1p((near >= TWIN_COSINE).sum(1) - 1)
    out[:, 11] = np.where(age[None, :] < age[:, None], near, 0.0).max(1)
