"""Cases of a tenant: who held what, and why. A case counts only when its seal fits its parts."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from bus.frames import CaseStatus
from gate import ids

_UNSEALED: Final = 1 << 52  # beyond any position, and exact in every language's JSON


@dataclass(slots=True)
class CaseState:
    id: bytes
    agent: int  # who opened it
    person: str
    why: str
    roots: array[int]  # as members: there are thousands of them in a hold of what an agent wrote
    members: npt.NDArray[np.int32]  # ascending, as sealed
    opened_ms: int
    kinds: tuple[int, ...]  # edge kinds that were followed
    state: CaseStatus = "pending"
    position: int = 0
    suspects: int = 0
    until_ms: int = 0
    joined: list[int] = field(default_factory=list)  # later children, ascending: in ledger order
    told: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    released_ms: int = 0
    released_by: int = -1
    released_position: int = 0
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = ids.text("case_", self.id)

    @property
    def place(self) -> int:
        """Where it stands in a list: by its seal. One that has none yet stands above all that have."""
        return self.position or _UNSEALED + self.opened_ms

    @property
    def holding(self) -> bool:
        return self.state != "released"

    def __contains__(self, seq: int) -> bool:
        i, j = int(np.searchsorted(self.members, seq)), bisect_left(self.joined, seq)
        return (i < len(self.members) and int(self.members[i]) == seq) or self.joined[j : j + 1] == [seq]

    def all_members(self) -> npt.NDArray[np.int32]:
        if not self.joined:
            return self.members
        return np.concatenate([self.members, np.array(self.joined, np.int32)])
