"""The vectors of one project: an exact matrix, and above a size an HNSW index beside it. The only user of hnswlib.

Owned by the index thread (hnswlib isn't safe for a search beside an add). Invariants: rows are consecutive numbers in the order
of `add`; the exact matrix is the truth and the HNSW index is made from it, and of neither is there a file; a search gives fewer
results, not an exception; a zero vector is evidence of nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import hnswlib
import numpy as np

from gate.model.matrix import Mask, Rows, UnitMatrix, Vectors, best_first
from gate.model.unit import unit

DIM: Final = 256  # of the default encoder
# Measured: a bfloat16 scan of 20,000 rows costs about what HNSW does. The gap between the two keeps a project from flapping.
HNSW_FROM: Final = 20_000
EXACT_BELOW: Final = 15_000
M: Final = 16
EF_CONSTRUCTION: Final = 200
EF_LEAST: Final = 256  # of 30k short texts the 10 nearest are found with .978 (128: .953), in 0.35 ms (0.18)
OVER_FETCH: Final = 4
SCAN_ROWS_MAX: Final = 4_096  # so many rows (allowed by a mask, or not indexed yet) are scanned: exact, and about as cheap
CATCH_UP_ROWS: Final = 64  # about 15 ms of indexing a step
SEARCH_CATCH_UP_ROWS: Final = 32  # by a search that scans everything meanwhile, which takes about as long
_FIRST_CAPACITY: Final = 1_024
_GROWTH: Final = 1.5

Hits = list[tuple[Rows, Vectors]]
Allowed = Sequence[Mask | None]


class InvalidVectors(ValueError):
    """Not float32[n, dim] of finite numbers: a bug of the caller, or a foreign encoder."""


class VectorIndex(Protocol):
    def add(self, vectors: Vectors) -> None:
        """Append float32[n, dim]; their rows follow the last one. InvalidVectors leaves the index as it was."""

    def remove(self, rows: Rows) -> None:
        """Rows that will never be found again; their numbers stay. Removing twice is allowed."""

    def search(self, queries: Vectors, limit: int, allowed: Allowed) -> Hits:
        """Per query of float32[q, dim] at most `limit` rows (int32) and cosines (float32), best first, equal ones newest first.

        `allowed`: per query one bool a row, None = all.
        """


def _checked(vectors: Vectors, dim: int) -> Vectors:
    if vectors.dtype != np.float32 or vectors.ndim != 2 or vectors.shape[1] != dim:
        raise InvalidVectors(f"expected float32[n, {dim}], got {vectors.dtype}{list(vectors.shape)}")
    if not np.isfinite(vectors).all():
        raise InvalidVectors("vectors with NaN or infinity can't be compared; check the encoder")
    return vectors


class ExactVectors:
    """Every search reads every row: right, and fastest, up to about 20,000 rows."""

    def __init__(self, dim: int = DIM) -> None:
        self.dim = dim
        self.removed: set[int] = set()
        self._matrix = UnitMatrix(dim)

    def __len__(self) -> int:
        return len(self._matrix)

    @property
    def live(self) -> int:
        return len(self) - len(self.removed)

    def add(self, vectors: Vectors) -> None:
        self._matrix.append(_checked(vectors, self.dim))

    def remove(self, rows: Rows) -> None:
        self._matrix.zero(rows)
        self.removed.update(rows.tolist())

    def search(self, queries: Vectors, limit: int, allowed: Allowed, first: int = 0) -> Hits:
        """As VectorIndex.search, over the rows from `first` on."""
        return self._matrix.best(unit(_checked(queries, self.dim)), limit, allowed, first)

    def search_among(self, query: Vectors, limit: int, rows: Rows) -> tuple[Rows, Vectors]:
        """One query float32[1, dim] over ascending `rows` alone."""
        return self._matrix.best_among(unit(_checked(query, self.dim)), limit, rows)

    def gather(self, rows: Rows) -> Vectors:
        """float32[len(rows), dim] of unit vectors."""
        return self._matrix.gather(rows)


class HnswVectors:
    """Approximate nearest neighbours by cosine (inner product of unit vectors)."""

    def __init__(self, dim: int = DIM) -> None:
        self.dim = dim
        self._n = 0
        self._removed: set[int] = set()
        self._index: Any = hnswlib.Index(space="ip", dim=dim)
        self._index.init_index(max_elements=_FIRST_CAPACITY, M=M, ef_construction=EF_CONSTRUCTION)

    def __len__(self) -> int:
        return self._n

    @property
    def live(self) -> int:
        return self._n - len(self._removed)

    def add(self, vectors: Vectors) -> None:
        ready = unit(_checked(vectors, self.dim))
        need = self._n + len(ready)
        if need > self._index.get_max_elements():
            self._index.resize_index(max(need, int(self._index.get_max_elements() * _GROWTH)))
        if len(ready):
            self._index.add_items(ready, np.arange(self._n, need), num_threads=1)
        self._n = need

    def remove(self, rows: Rows) -> None:
        """Overwritten with zeros, so that none is in memory any more, and marked: it's a way to its neighbours still."""
        nothing = np.zeros((1, self.dim), np.float32)
        for row in set(rows.tolist()) - self._removed:  # hnswlib raises on a second mark
            self._index.add_items(nothing, np.array([row]), num_threads=1)
            self._index.mark_deleted(row)
            self._removed.add(row)

    def search(self, queries: Vectors, limit: int, allowed: Allowed) -> Hits:
        ready = unit(_checked(queries, self.dim))
        return [self._search_one(query, limit, mask) for query, mask in zip(ready, allowed, strict=True)]

    def _search_one(self, query: Vectors, limit: int, mask: Mask | None) -> tuple[Rows, Vectors]:
        """Over-fetch, filter, and double until there is enough or nothing more to fetch."""
        fetch = limit if mask is None else limit * OVER_FETCH
        while True:
            size = min(fetch, self.live)
            rows, scores = best_first(*self._nearest(query, size))
            if mask is not None:
                keep = mask[rows]
                rows, scores = rows[keep], scores[keep]
            if len(rows) >= limit or size >= self.live:
                return rows[:limit], scores[:limit]
            fetch *= 2

    def _nearest(self, query: Vectors, size: int) -> tuple[Rows, Vectors]:
        if size <= 0 or not query.any():
            return np.empty(0, np.int32), np.empty(0, np.float32)
        self._index.set_ef(max(EF_LEAST, 2 * size))  # it is the index's, not a search's
        try:
            labels, distances = self._index.knn_query(query[None, :], k=size, num_threads=1)
        except RuntimeError:  # part of the graph is out of reach, as can be with many removed: half is better than none
            return self._nearest(query, size // 2)
        return labels[0].astype(np.int32), (1.0 - distances[0]).astype(np.float32)


class ProjectVectors:
    """Exact up to a size, then HNSW for the indexed rows and a scan for the rest. `add` never waits for indexing.

    The owner calls `catch_up` when it has time; until then the rows that aren't indexed are scanned, so all are visible at once.
    An owner who never has time catches up by searching.
    """

    def __init__(self, dim: int = DIM, hnsw_from: int = HNSW_FROM, exact_below: int = EXACT_BELOW) -> None:
        if exact_below > hnsw_from:
            raise ValueError(f"exact_below {exact_below} must not be above hnsw_from {hnsw_from}")
        self._hnsw_from, self._exact_below = hnsw_from, exact_below
        self._exact = ExactVectors(dim)
        self._hnsw: HnswVectors | None = None

    def __len__(self) -> int:
        return len(self._exact)

    @property
    def backlog(self) -> int:
        """Rows that `catch_up` has yet to index; 0 while the project is small."""
        return 0 if self._hnsw is None else len(self._exact) - len(self._hnsw)

    @property
    def approximate(self) -> bool:
        """Whether searches use the HNSW index now."""
        return self._hnsw is not None and self.backlog <= SCAN_ROWS_MAX

    def add(self, vectors: Vectors) -> None:
        self._exact.add(vectors)
        if self._hnsw is None and self._exact.live >= self._hnsw_from:
            self._hnsw = HnswVectors(self._exact.dim)

    def remove(self, rows: Rows) -> None:
        self._exact.remove(rows)
        if self._hnsw is not None:
            self._hnsw.remove(rows[rows < len(self._hnsw)])
            if self._exact.live < self._exact_below:
                self._hnsw = None

    def catch_up(self, rows: int = CATCH_UP_ROWS) -> int:
        """Index up to `rows` more rows (about 0.2 ms each); returns the backlog that is left."""
        if self._hnsw is not None and self.backlog:
            first = len(self._hnsw)
            todo = np.arange(first, min(first + rows, len(self._exact)), dtype=np.int32)
            self._hnsw.add(self._exact.gather(todo))
            self._hnsw.remove(np.array([row for row in todo.tolist() if row in self._exact.removed], np.int32))
        return self.backlog

    def search(self, queries: Vectors, limit: int, allowed: Allowed) -> Hits:
        if self._hnsw is None or not self.approximate:
            self.catch_up(SEARCH_CATCH_UP_ROWS)
            return self._exact.search(queries, limit, allowed)
        tail = self._exact.search(queries, limit, allowed, first=len(self._hnsw))
        rounds = zip(_checked(queries, self._exact.dim), allowed, tail, strict=True)
        return [self._merged(self._hnsw, query[None, :], limit, mask, scanned) for query, mask, scanned in rounds]

    def _merged(
        self, hnsw: HnswVectors, query: Vectors, limit: int, mask: Mask | None, scanned: tuple[Rows, Vectors]
    ) -> tuple[Rows, Vectors]:
        if mask is not None and np.count_nonzero(mask) <= SCAN_ROWS_MAX:
            return self._exact.search_among(query, limit, np.flatnonzero(mask).astype(np.int32))
        [indexed] = hnsw.search(query, limit, [mask])
        rows, scores = best_first(*(np.concatenate(pair) for pair in zip(indexed, scanned, strict=True)))
        return rows[:limit], scores[:limit]

    def gather(self, rows: Rows) -> Vectors:
        return self._exact.gather(rows)
