"""How much room the ledger and the disk have left, and who may still use it.

Order of giving way: drafts of memories, then reads (on a full disk) and whatever else appends; what holds, releases, erases or
cuts off goes on to the last byte. So a flood of drafts can't take away the room that its containment needs; and where containment
itself comes to the end, more is lent (broker_config/ledger_room.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gate.config import LEDGER_FULL_SHARE
from gate.ledger import events as E
from gate.refusals import Refused

READS_SHARED_SHARE: Final = 0.8  # beyond it who has used most of READS records no more there
LEDGER_RESERVED_SHARE: Final = 0.95  # beyond it containment alone: 500 MiB of 10 GiB, a case of 8,192 members takes 30 KiB
DRAFTS_FREE_BYTES: Final = 256 << 20  # with less than this on the disk no drafts …
DRAFTS_FREE_SHARE: Final = 0.1  # … or on a small one less than this
OTHERS_FREE_BYTES: Final = 64 << 20
OTHERS_FREE_SHARE: Final = 0.025
LEDGER_LAST_SHARE: Final = 0.99  # beyond it the supervisor, who may change streams, lends it some
MESSAGE_BYTES: Final = 64  # what a stream adds to a message: its header and subject
# What makes a home safer, or says that it was: these may use what is left.
CONTAINMENT: Final = (
    E.CasePart, E.CaseOpened, E.CaseReleased, E.MemoryReviewed, E.NoticeSent, E.NoticeAcked, E.ContextClosed, E.AgentRevoked,
    E.TenantChanged, E.PolicyChanged, E.LedgerAccepted, E.HomeRestored, E.MemoryErased, E.ErasureDone, E.LegalHoldPlaced,
    E.LegalHoldLifted,
)  # fmt: skip


class Room:
    """`folder`: on the disk that is looked at; None: none is. Sizes in bytes."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._bytes = self._max = 0
        self._reads = self._reads_max = 0
        self._free = self._disk = 0

    # --- what is known
    def ledger_is(self, size: int, most: int) -> None:
        """As the broker says; `most` ≤ 0: without a limit."""
        self._bytes, self._max = size, max(0, most)

    def reads_are(self, size: int, most: int) -> None:
        """The same of READS."""
        self._reads, self._reads_max = size, max(0, most)

    def recorded(self, size: int) -> None:
        """A block was added to READS since."""
        self._reads += size + MESSAGE_BYTES

    def appended(self, size: int) -> None:
        """A block was added since."""
        self._bytes += size + MESSAGE_BYTES

    def look(self) -> None:
        """Ask the disk."""
        if self._folder is None:
            return
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return
        self._free, self._disk = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    @property
    def ledger_share(self) -> float:
        return self._bytes / self._max if self._max else 0.0

    @property
    def ledger_at_end(self) -> bool:
        """Whether containment may soon find no room."""
        return self.ledger_share >= LEDGER_LAST_SHARE

    @property
    def reads_crowded(self) -> bool:
        """Whether READS has no room for whoever has used most of it."""
        return bool(self._reads_max) and self._reads >= READS_SHARED_SHARE * self._reads_max

    # --- who may
    def check_draft(self) -> None:
        """Raises Refused (ledger_full, disk_full) when no draft of a memory is taken."""
        self._check(LEDGER_FULL_SHARE, DRAFTS_FREE_BYTES, DRAFTS_FREE_SHARE)

    def check_read(self) -> None:
        """Raises Refused (disk_full) when no question is answered, for its record may find no room."""
        self._check(float("inf"), OTHERS_FREE_BYTES, OTHERS_FREE_SHARE)

    def check_event(self, event: E.AnyEvent) -> None:
        """Raises Refused when no such event is appended."""
        if not isinstance(event, CONTAINMENT):
            self._check(LEDGER_RESERVED_SHARE, OTHERS_FREE_BYTES, OTHERS_FREE_SHARE)

    def _check(self, share: float, free: int, free_share: float) -> None:
        if self.ledger_share >= share:
            raise Refused("ledger_full")
        if self._disk_below(free, free_share):
            raise Refused("disk_full")

    def _disk_below(self, free: int, free_share: float) -> bool:
        return bool(self._disk) and self._free < min(free, self._disk * free_share)

    @property
    def trouble(self) -> list[str]:
        """For people."""
        found = []
        if self.ledger_share >= LEDGER_FULL_SHARE:
            who = "drafts are" if self.ledger_share < LEDGER_RESERVED_SHARE else "all but questions, holds and erasures is"
            way = "`cordon broker room --ledger GIB` gives it more"
            found.append(f"the ledger is {self.ledger_share:.0%} full: {who} refused (ledger_full); {way}")
        if self.reads_crowded:
            share, way = self._reads / self._reads_max, "`cordon broker room --reads GIB` gives it more"
            found.append(f"READS is {share:.0%} full: questions of those who fill it are refused (quota_full reads); {way}")
        if self._disk_below(DRAFTS_FREE_BYTES, DRAFTS_FREE_SHARE):
            who = "drafts and questions" if self._disk_below(OTHERS_FREE_BYTES, OTHERS_FREE_SHARE) else "drafts"
            found.append(f"the disk has {self._free >> 20} MiB left: {who} are refused (disk_full); make room")
        return found
