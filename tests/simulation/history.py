"""What clients did and saw, with the times at which they did: all that the checker knows beside the streams. No opinions."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from bus.frames import Case, Draft, Recall, Receipt

from .cast import Member


@dataclass
class Wrote:
    """A draft. `receipt` None: nobody told what became of it, or (`refused`) it was refused for good.

    `copied`: the id of the memory whose words it repeats.
    """

    by: Member
    project: str
    draft: Draft
    sent_s: float
    copied: str = ""
    receipt: Receipt | None = None
    told_s: float = inf
    refused: str = ""
    again: list[Receipt] = field(default_factory=list)


@dataclass
class Asked:
    """A question that was answered. `wire`: the place of the answer among all that gatekeepers sent. `probe`: asked when all was
    calm, for exactly these.
    """

    by: Member
    project: str
    sent_s: float
    told_s: float
    wire: int
    recall: Recall
    probe: list[str] | None = None


@dataclass
class HeldThat:
    """A hold that was answered."""

    by: Member
    root: str
    told_s: float
    wire: int
    case: Case


@dataclass
class LetGo:
    """A release or a review that was asked for, whatever became of it."""

    by: Member
    sent_s: float
    sent_wire: int
    case: str = ""
    memory: str = ""
    accepted: bool = False


@dataclass
class Erased:
    """An erasure that was asked for; `wire` None: nobody told what became of it, or it was refused."""

    by: Member
    memory: str
    sent_s: float
    wire: int | None = None


@dataclass
class Shed:
    """Within this time a context may have forgotten what it was served: `by`'s, or (None) anybody's."""

    by: Member | None
    from_s: float
    to_s: float


@dataclass
class History:
    wrote: list[Wrote] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    holds: list[HeldThat] = field(default_factory=list)
    let_go: list[LetGo] = field(default_factory=list)
    erased: list[Erased] = field(default_factory=list)
    shed: list[Shed] = field(default_factory=list)
    internal: list[str] = field(default_factory=list)  # requests that a gatekeeper failed at
    told: list[str] = field(default_factory=list)  # what happened, for people

    def tell(self, now_s: float, what: str) -> None:
        self.told.append(f"{now_s:8.3f}  {what}")
