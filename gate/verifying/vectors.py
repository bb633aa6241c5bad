"""Digests of a tenant's vectors by project, from the bodies of its events: as the matrix of the gatekeeper keeps them.

Both sides scale to unit length and round to bfloat16, so the bits are the same or the vector is another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from gate.model.unit import CHUNK_ROWS, unit

PART_ROWS: Final = 1_024
DIM: Final = 256


def digest(chunks: Iterable[npt.NDArray[np.float32]]) -> str:
    """Of float32[n, dim], one after another, whose numbers are bfloat16 ones."""
    found = hashlib.sha256()
    for chunk in chunks:
        found.update((chunk.view(np.uint32) >> 16).astype("<u2").data)
    return found.hexdigest()[:32]


def rounded(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Unit vectors as bfloat16 keeps them: to the nearest, halves to even."""
    bits = unit(vectors).view(np.uint32)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    found: npt.NDArray[np.float32] = kept.astype(np.uint32).view(np.float32)
    return found


class VectorDigests:
    """`add` in ledger order; `parts(project)` gives a digest of each PART_ROWS rows, None where another encoder made one."""

    def __init__(self) -> None:
        self._done: dict[int, list[str | None]] = {}
        self._open: dict[int, list[bytes | None]] = {}

    def add(self, project: int, vector: bytes | None) -> None:
        """`vector`: float16, little endian; None if its event has none that this encoder made."""
        rows = self._open.setdefault(project, [])
        rows.append(vector)
        if len(rows) == PART_ROWS:
            self._done.setdefault(project, []).append(_part(rows))
            rows.clear()

    def parts(self, project: int) -> list[str | None]:
        rows = self._open.get(project, [])
        return [*self._done.get(project, []), *([_part(rows)] if rows else [])]

    @property
    def projects(self) -> list[int]:
        return list(self._open)


def _part(rows: list[bytes | None]) -> str | None:
    whole = [row for row in rows if row is not None]
    if len(whole) < len(rows):
        return None
    chunks = (b"".join(whole[i : i + CHUNK_ROWS]) for i in range(0, len(whole), CHUNK_ROWS))
    return digest(rounded(np.frombuffer(chunk, "<f2").reshape(-1, DIM).astype(np.float32)) for chunk in chunks)
