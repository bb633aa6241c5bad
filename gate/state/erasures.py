"""What a tenant has erased, what may not be erased by one person alone, and in which block of the ledger a memory's text lies."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gate import ids

Members = npt.NDArray[np.int32]


@dataclass(slots=True)
class Erasure:
    """`done_ms` 0 = some store may still hold text. `purged` and `blocks` are this process's progress: a restart begins again."""

    id: bytes
    agent: int  # who asked for it; -1 = the home, with a deleted tenant
    person: str
    second: str  # who agreed, where a case or a legal hold had a member
    why: str
    members: Members  # ascending; none of a deleted tenant, of which every event before `position` is one
    derived: int  # how many of them only derive from what was named
    ms: int
    position: int
    count: int  # memories
    done_ms: int = 0
    stores: dict[str, int] = field(default_factory=dict)
    purged: bool = False
    blocks: set[int] = field(default_factory=set)  # of the ledger, that aren't known to be without the text
    trouble: str = ""  # why the last attempt didn't get on
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = ids.text("era_", self.id)


@dataclass(slots=True)
class LegalHold:
    """Memories that are kept until it is lifted: erasing one takes two persons. Reading is not affected."""

    id: bytes
    agent: int
    person: str
    why: str
    members: Members  # ascending
    ms: int
    position: int
    lifted_ms: int = 0
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = ids.text("lgl_", self.id)


class Blocks:
    """tenant_seq → block of the ledger, as the beginnings of the tenant's sections (16 bytes a section)."""

    def __init__(self) -> None:
        self._first = array("q")
        self._block = array("q")

    def note(self, first: int, block: int) -> None:
        """The tenant's section that begins at tenant_seq `first` lies in `block`. In ledger order."""
        self._first.append(first)
        self._block.append(block)

    def of(self, seq: int) -> int:
        """The block that holds this event."""
        return self._block[bisect_right(self._first, seq) - 1]

    def before(self, seq: int) -> set[int]:
        """The blocks that hold events before this one."""
        return set(self._block[: bisect_left(self._first, seq)])

    def span(self, block: int, end: int) -> range:
        """The tenant_seqs in a block, `end` being one past the tenant's last; empty if it has no section there."""
        i = bisect_right(self._block, block) - 1
        if i < 0 or self._block[i] != block:
            return range(0)
        return range(self._first[i], self._first[i + 1] if i + 1 < len(self._first) else end)
