"""Vectors of length 1. Without torch: `cordon verify` makes what it expects of the matrix by the same numbers, bit by bit."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

CHUNK_ROWS: Final = 128  # at once: what is made meanwhile stays in the cache, and needs no fresh pages from the system


def unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32[n, d], rows scaled to length 1; zero rows stay zero. In float64, so that neither order nor size of sums shows."""
    found = np.empty(vectors.shape, np.float32)
    for first in range(0, len(vectors), CHUNK_ROWS):
        wide = vectors[first : first + CHUNK_ROWS].astype(np.float64)
        norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        norms[norms == 0.0] = 1.0
        wide /= norms[:, None]
        found[first : first + CHUNK_ROWS] = wide
    return found
