"""A growing bfloat16 matrix of unit vectors: the exact vectors of one project, and inner products with all of them.

Owned by the index thread. Invariant: row i is the i-th vector appended, scaled to length 1 (a zero vector stays zero), so an
inner product is a cosine. bfloat16 halves the memory traffic that bounds a scan; 16 queries are one `mm` (`mv` is slower even for
one). One torch thread a process: two collapse under contention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gate.model.unit import unit

from .lean_torch import torch

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

# bfloat16 has 8 bits: rounding a unit vector and its product moves a cosine by less than 0.008.
_COARSE_ERROR: Final = 0.02
_GROWTH: Final = 1.5
_WAITING_MAX: Final = 64
# oneDNN makes code for each shape of a product and keeps it (some 0.6 MB and 0.8 ms, measured): a matrix that grows by a row
# between two questions would never meet a shape again. So products have one of few.
_ROWS_STEP: Final = 64
_STEPS_AN_OCTAVE: Final = 8

torch.set_num_threads(1)


def _rows_of(n: int) -> int:
    """How many rows a product with `n` of them takes: at most an eighth more."""
    step = max(_ROWS_STEP, 1 << max(0, n.bit_length() - _STEPS_AN_OCTAVE.bit_length()))
    return -(-n // step) * step


def _nothing(rows: int, dim: int) -> torch.Tensor:
    """Zeros of bfloat16. By numpy: it leaves pages that nobody has written to yet to the system, torch writes to all of them."""
    return torch.from_numpy(np.zeros((rows, dim), np.int16)).view(torch.bfloat16)


class UnitMatrix:
    """`dim` columns; rows are appended, and can be zeroed, never moved.

    Appended rows wait until they are read, or are many: many small projects get a row at a time, and the calls that put it in
    its place cost more than the row.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._n = 0
        self._data = _nothing(0, dim)  # there are as many of these as contexts: nothing in advance
        self._waiting: list[Vectors] = []  # the last rows of the `_n`

    def __len__(self) -> int:
        return self._n

    def append(self, vectors: Vectors) -> None:
        """float32[n, dim], any length."""
        self._waiting.append(vectors)
        self._n += len(vectors)
        if len(self._waiting) >= _WAITING_MAX:
            self._all()

    def _all(self) -> torch.Tensor:
        """Every row, each in its place."""
        if self._waiting:
            new = unit(np.concatenate(self._waiting))
            self._waiting.clear()
            there = self._n - len(new)
            self._reserve(_rows_of(self._n))  # as many as a product reads
            self._data[there : self._n] = torch.from_numpy(new)
        return self._data[: self._n]

    def _reserve(self, size: int) -> None:
        """Room for so many rows. Those that aren't there yet are zero."""
        if size > len(self._data):
            data = _nothing(max(size, int(len(self._data) * _GROWTH)), self.dim)
            data[: len(self._data)] = self._data
            self._data = data

    def _products(self, queries: torch.Tensor, first: int = 0) -> torch.Tensor:
        """bfloat16[queries, rows from `first` on]."""
        self._all()
        m, n = len(queries), self._n - first
        end = first + _rows_of(n)
        self._reserve(end)
        padded = torch.zeros((1 << (m - 1).bit_length(), self.dim), dtype=torch.bfloat16)
        padded[:m] = queries
        return torch.mm(padded, self._data[first:end].T)[:m, :n]

    def zero(self, rows: Rows) -> None:
        """Overwrite rows with zeros: they are gone from memory and evidence of nothing."""
        self._all()[torch.from_numpy(rows.astype(np.int64))] = 0.0

    def only(self, rows: Sequence[int]) -> UnitMatrix:
        """Another matrix of these rows alone, in this order, bit by bit."""
        found = UnitMatrix(self.dim)
        found._data = self._rows(np.array(rows, np.int64))
        found._n = len(rows)
        return found

    def gather(self, rows: Rows) -> Vectors:
        """float32[len(rows), dim]."""
        found: Vectors = self._rows(rows).float().numpy()
        return found

    def _rows(self, rows: npt.NDArray[np.integer[Any]]) -> torch.Tensor:
        """`index_select` takes a sixth of what indexing takes."""
        return self._all().index_select(0, torch.from_numpy(rows.astype(np.int64)))

    def best(self, queries: Vectors, limit: int, allowed: Sequence[Mask | None], first: int = 0) -> list[tuple[Rows, Vectors]]:
        """Per query at most `limit` allowed rows from `first` on and their cosines, best first, equal ones newest first.

        The scan finds candidates by bfloat16 products; those are scored again in float32, since bfloat16 has many ties.
        """
        data = self._all()[first:]
        size = min(limit, len(data))
        if size <= 0:
            return [(np.empty(0, np.int32), np.empty(0, np.float32)) for _ in queries]
        exact = torch.from_numpy(queries)
        coarse = self._products(exact, first)
        same = bool(allowed) and all(mask is allowed[0] for mask in allowed)  # most often: what facts rule out for all
        for i, mask in enumerate(allowed[:1] if same else allowed):
            if mask is not None:
                (coarse if same else coarse[i]).masked_fill_(torch.from_numpy(~mask[first:]), -torch.inf)
        top = torch.topk(coarse, size, dim=1, sorted=False)
        near = data.index_select(0, top.indices.reshape(-1)).view(len(exact), size, self.dim)
        scores = (near.float() * exact[:, None, :]).sum(-1)
        scores.masked_fill_(torch.isneginf(top.values), -torch.inf)
        rows, scored = top.indices.numpy().astype(np.int32) + np.int32(first), scores.numpy()
        order = np.lexsort((-rows, -scored))
        rows, scored = np.take_along_axis(rows, order, 1), np.take_along_axis(scored, order, 1)
        evidence = (scored != 0.0) & (scored != -np.inf)
        if evidence.all():
            return list(zip(rows, scored, strict=True))
        return [(row[told], score[told]) for row, score, told in zip(rows, scored, evidence, strict=True)]

    def above(self, queries: Vectors, least: float, most: int) -> list[tuple[Rows, Vectors]]:
        """Per query the rows whose cosine is at least `least`, at most `most`, in the order of `best` and scored as there.

        Where few are, this takes a third of the time of `best`: nothing is ranked, and only these are scored again.
        """
        data, exact = self._all(), torch.from_numpy(queries)
        coarse = self._products(exact)
        hits = torch.nonzero(coarse >= least - _COARSE_ERROR)
        if not len(hits):
            return [(np.empty(0, np.int32), np.empty(0, np.float32)) for _ in queries]
        owner, rows = hits[:, 0], hits[:, 1]
        scores = (data.index_select(0, rows).float() * exact.index_select(0, owner)).sum(-1).numpy()
        owners, found = owner.numpy(), rows.numpy().astype(np.int32)
        keep = scores >= least
        parts = [(keep & (owners == i)).nonzero()[0] for i in range(len(queries))]
        ranked = [part[np.lexsort((-found[part], -scores[part]))[:most]] for part in parts]
        return [(found[part], scores[part]) for part in ranked]

    def best_among(self, query: Vectors, limit: int, rows: Rows) -> tuple[Rows, Vectors]:
        """The same for one query float32[1, dim], reading `rows` (int32, ascending) alone."""
        scores = torch.mm(torch.from_numpy(query), self._rows(rows).float().T)[0].numpy()
        found, best = best_first(rows, scores)
        return found[:limit], best[:limit]


def best_first(rows: Rows, scores: Vectors) -> tuple[Rows, Vectors]:
    """Rows by descending score, equal scores newest first, without those that are no evidence: a score of exactly 0, or -inf.

    0 means a zero vector on either side (or an orthogonal one).
    """
    evidence = (scores != 0.0) & (scores != -np.inf)
    rows, scores = rows[evidence], scores[evidence]
    order = np.lexsort((-rows, -scores))
    return rows[order], scores[order]
