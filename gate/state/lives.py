"""How long memories live: what ended before its time, and what it takes to have that undone. The end of each is in the columns.

An end is a fact about time alone: who may read what, what came of it and what the ledger holds stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from gate import ids
from gate.ledger import events as E

Why = Literal["session", "task", "pruned"]


@dataclass(slots=True)
class Ended:
    """Memories that expired at `ms`, before their time, until it was `resumed`."""

    id: bytes
    why: Why
    agent: int
    person: str
    note: str
    members: npt.NDArray[np.int32]  # ascending
    ms: int
    position: int
    resumed_ms: int = 0
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = ids.text("end_", self.id)


def life_of(e: E.MemoryWritten) -> int:
    """How long a memory lives from a useful report on: as long as it was given at first. 0: no report moves its end."""
    return e.expires - e.ms if e.expires and not e.fixed else 0
