"""When the gatekeeper looks for all its garbage: in quiet moments, or else after hours."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from gate.housekeeping import GARBAGE_LATEST_S, GARBAGE_QUIET_S, Garbage


class _Knot:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize(
    ("later", "work", "found"),
    [(0, 1, False), (GARBAGE_QUIET_S, 2, False), (GARBAGE_QUIET_S, 1, True), (GARBAGE_LATEST_S, 2, True)],
)
def test_a_frozen_cycle_is_found_when_it_is_quiet_or_has_been_long(later: float, work: int, found: bool) -> None:
    garbage = Garbage()
    knot = _Knot()
    seen = weakref.ref(knot)
    garbage.collect(1.0, 1)
    del knot
    garbage.collect(1.0 + later, work)
    assert (seen() is None) == found
    garbage.collect(1.0 + 10 * GARBAGE_LATEST_S, work)
    assert seen() is None
