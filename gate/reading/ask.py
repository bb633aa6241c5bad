"""One question on its way through the gatekeeper, and what was found for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gate.identify import Principal
from gate.projections.catalog import MemoryRow
from gate.state.contexts import Context


@dataclass(slots=True)
class Found:
    """A candidate with its decision. `score` is the gate's (0..1), 0 without a gate."""

    seq: int
    decision: int
    reasons: int
    constraints: int
    score: float


@dataclass(slots=True)
class Ask:
    principal: Principal
    verb: str  # query | get
    context: Context
    reply: str
    request_id: str
    ms: int
    text: str = ""
    k: int = 8
    seqs: tuple[int, ...] = ()  # what `get` asks for
    filters: dict[str, frozenset[str]] = field(default_factory=dict)
    as_of_ms: int = 0  # 0 = now
    intent: int = 0
    risk: int = 0
    origins: int = 0
    history_off: bool = False
    user: int = 0  # interned hash of the user named in the question
    run: bytes = b""
    task: bytes = b""
    # found by the index thread
    snapshot: int = 0  # the tenant's generation when the decision was taken
    found: list[Found] = field(default_factory=list)
    withheld: list[Found] = field(default_factory=list)
    rows: dict[int, MemoryRow] = field(default_factory=dict)  # of the whole micro-batch: only what `found` names is this ask's
    notes: list[str] = field(default_factory=list)
    # given by the loop
    recall: bytes = b""
    epoch: int = 0
    recall_no: int = 0

    def forget(self) -> None:
        """Drop what was found: it is asked again."""
        self.found, self.withheld, self.rows, self.notes = [], [], {}, []
