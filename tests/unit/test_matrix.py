"""Products with a matrix that grows by a row at a time: the right ones, and of few shapes, since oneDNN keeps code for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gate.model.matrix import UnitMatrix
from gate.model.unit import unit
from gate.verifying.vectors import rounded

DIM = 32


def test_a_growing_matrix_finds_the_same_as_an_exact_scan_with_products_of_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    rows = unit(rng.standard_normal((1_500, DIM)).astype(np.float32))
    queries = unit(rng.standard_normal((16, DIM)).astype(np.float32))
    shapes, product = set[tuple[Any, ...]](), torch.mm

    def seen(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype == torch.bfloat16:
            shapes.add((*a.shape, *b.shape))
        return product(a, b)

    monkeypatch.setattr(torch, "mm", seen)
    matrix = UnitMatrix(DIM)
    for n in range(1, len(rows) + 1):
        matrix.append(rows[n - 1 : n])
        some = queries[: 1 + n % 16]
        found = matrix.best(some, 3, [None] * len(some))
        over = matrix.above(some, 0.4, 64)
        if n % 97 == 0 or n < 5:
            exact = some @ matrix.gather(np.arange(n, dtype=np.int32)).T
            for i, cosines in enumerate(exact):
                assert np.allclose(found[i][1], np.sort(cosines)[::-1][:3], atol=0.02)  # candidates are chosen in bfloat16
                assert np.allclose(found[i][1], cosines[found[i][0]], atol=1e-5)
                assert sorted(over[i][0].tolist()) == np.flatnonzero(cosines >= 0.4).tolist()
    assert len(shapes) <= 5 * 20, len(shapes)  # 1, 2, 4, 8, 16 questions; an eighth of an octave of rows


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_a_vector_of_any_length_is_scaled_to_one(scale: float) -> None:
    vectors = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
    vectors[2] = 0.0
    scaled = unit((vectors * np.float32(scale)).astype(np.float32))
    assert scaled.dtype == np.float32
    assert np.allclose(np.linalg.norm(scaled.astype(np.float64), axis=1), [1, 1, 0, 1], atol=1e-6)
    assert np.allclose(scaled, unit(vectors), atol=1e-6)


def test_rows_that_are_kept_are_the_same_bit_by_bit() -> None:
    matrix = UnitMatrix(8)
    matrix.append(np.random.default_rng(4).standard_normal((100, 8)).astype(np.float32))
    kept, again = [3, 50, 99], matrix
    for _ in range(5):
        again = again.only(kept)
        assert np.array_equal(again.gather(np.arange(3, dtype=np.int32)), matrix.gather(np.array(kept, np.int32)))
        again.append(np.ones((2, 8), np.float32))
        assert len(again) == 5
        kept = [0, 1, 2]
        matrix = again


def test_a_verification_expects_the_very_bits_that_the_matrix_keeps() -> None:
    """As they come: one at a time, a few, many. Of a million numbers some lie next to a boundary of rounding."""
    vectors = np.random.default_rng(5).standard_normal((4_000, 256)).astype(np.float16).astype(np.float32)
    matrix = UnitMatrix(256)
    for start, end in ((0, 1), (1, 3), (3, 100), (100, 1_100), (1_100, 4_000)):
        matrix.append(vectors[start:end])
        assert len(matrix.gather(np.array([0], np.int32))) == 1  # it is put in its place at once
    assert np.array_equal(matrix.gather(np.arange(4_000, dtype=np.int32)), rounded(vectors))
