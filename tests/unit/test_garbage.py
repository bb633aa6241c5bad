"""When the gatekeeper looks for all its garbage: in quiet moments, or else after hours; and what becomes of what was freed."""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from gate.housekeeping import GARBAGE_LATEST_S, GARBAGE_QUIET_S, Garbage, trim_heap

BLOCKS, BLOCK_BYTES = 512, 64 << 10


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


def test_what_was_freed_among_what_stays_goes_back_to_the_system() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    blocks = [libc.malloc(BLOCK_BYTES) for _ in range(BLOCKS)]  # too small for pages of their own
    for block in blocks:
        ctypes.memset(block, 1, BLOCK_BYTES)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        libc.free(block)
    before = resident()
    trim_heap()
    assert before - resident() > BLOCKS * BLOCK_BYTES / 2
    libc.free(blocks[-1])
