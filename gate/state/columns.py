"""Struct of arrays over a tenant's events, indexed by `tenant_seq`. Rows that are no memory have kind -1.

Growth replaces the arrays, on the loop only: a reader on another thread then sees an older copy, which the last look makes good.
Trust is an integer per mille: a float32 column hands 0.2 back as 0.200000003, above its parent.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

NEVER_MS: Final = (1 << 62) - 1  # "does not expire"
REVIEW_NONE, REVIEW_PENDING, REVIEW_ACCEPTED, REVIEW_REJECTED = range(4)
REVIEWS = ("", "pending", "accepted", "rejected")
_FIRST_CAPACITY: Final = 1_024

Array = npt.NDArray[Any]


class Scalars:
    """The same columns for one row at a time: `at.held[s]` is a Python int, in a quarter of the time of numpy's scalars."""

    kind: memoryview
    project: memoryview
    row: memoryview
    actor: memoryview
    trust: memoryview
    eff: memoryview
    floor: memoryview
    origin: memoryview
    cls: memoryview
    sens: memoryview
    opt_out: memoryview
    scope: memoryview
    user: memoryview
    readers: memoryview
    comp: memoryview
    task: memoryview
    run: memoryview
    task_state: memoryview
    written: memoryview
    oldest: memoryview
    valid_from: memoryview
    valid_until: memoryview
    expires: memoryview
    life: memoryview
    ended: memoryview
    superseded: memoryview
    superseded_ms: memoryview
    held: memoryview
    review: memoryview
    erased: memoryview
    body: memoryview
    nosrc: memoryview
    evroot: memoryview

    def __init__(self, columns: Columns) -> None:
        for name in Scalars.__annotations__:
            setattr(self, name, getattr(columns, name).data)


class Columns:
    """`n` is one past the highest tenant_seq applied. `at`: the same columns for single rows."""

    at: Scalars

    kind: npt.NDArray[np.int8]
    project: npt.NDArray[np.int16]
    row: npt.NDArray[np.int32]  # row in the project's index
    actor: npt.NDArray[np.int32]  # agent number
    trust: npt.NDArray[np.int16]  # stamped, immutable
    eff: npt.NDArray[np.int16]  # effective
    floor: npt.NDArray[np.int16]
    origin: npt.NDArray[np.int8]
    cls: npt.NDArray[np.int8]
    sens: npt.NDArray[np.int8]
    opt_out: npt.NDArray[np.bool_]
    scope: npt.NDArray[np.int8]
    user: npt.NDArray[np.int32]  # interned usr_ hash, 0 = none
    readers: npt.NDArray[np.int32]  # interned clauses, 0 = the project
    comp: npt.NDArray[np.int32]  # interned compartments
    task: npt.NDArray[np.int64]  # keyed hash, 0 = none
    run: npt.NDArray[np.int64]
    task_state: npt.NDArray[np.int8]
    written: npt.NDArray[np.int64]
    oldest: npt.NDArray[np.int64]
    valid_from: npt.NDArray[np.int64]
    valid_until: npt.NDArray[np.int64]
    expires: npt.NDArray[np.int64]
    ended: npt.NDArray[np.int64]  # ms of an end before its time, 0 = none
    life: npt.NDArray[np.int64]  # ms that each useful report gives it anew; 0 = none moves its end
    superseded: npt.NDArray[np.int32]  # tenant_seq of the superseder, 0 = none
    superseded_ms: npt.NDArray[np.int64]
    held: npt.NDArray[np.uint16]  # open cases, plus one for a pending or rejected review
    review: npt.NDArray[np.int8]
    erased: npt.NDArray[np.int64]  # ms, 0 = not erased
    body: npt.NDArray[np.int32]  # bytes of its body in the ledger: an erasure takes them away
    nosrc: npt.NDArray[np.bool_]
    evroot: npt.NDArray[np.int64]

    _TYPES: Final = {
        "kind": np.int8,
        "project": np.int16,
        "row": np.int32,
        "actor": np.int32,
        "trust": np.int16,
        "eff": np.int16,
        "floor": np.int16,
        "origin": np.int8,
        "cls": np.int8,
        "sens": np.int8,
        "opt_out": np.bool_,
        "scope": np.int8,
        "user": np.int32,
        "readers": np.int32,
        "comp": np.int32,
        "task": np.int64,
        "run": np.int64,
        "task_state": np.int8,
        "written": np.int64,
        "oldest": np.int64,
        "valid_from": np.int64,
        "valid_until": np.int64,
        "expires": np.int64,
        "ended": np.int64,
        "life": np.int64,
        "superseded": np.int32,
        "superseded_ms": np.int64,
        "held": np.uint16,
        "review": np.int8,
        "erased": np.int64,
        "body": np.int32,
        "nosrc": np.bool_,
        "evroot": np.int64,
    }

    def __init__(self) -> None:
        self.n = 1  # tenant_seq starts at 1; row 0 is no memory
        self.capacity = 0
        self._grow(_FIRST_CAPACITY)

    def reserve(self, n: int) -> None:
        """Make room for tenant_seqs below `n`."""
        if n > self.capacity:
            self._grow(max(self.capacity * 2, n))

    def _grow(self, capacity: int) -> None:
        for name, dtype in self._TYPES.items():
            new: Array = np.zeros(capacity, dtype)
            if name == "kind":
                new[:] = -1
            if self.capacity:
                new[: self.capacity] = getattr(self, name)
            setattr(self, name, new)
        self.at = Scalars(self)
        self.capacity = capacity
