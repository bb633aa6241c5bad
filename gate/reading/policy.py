"""The hard policy: one table of named rules over columns, each with its reason code and sentence. No rule that says yes means no.

Rules see only joined labels, the asker's rights, the claimed intent and risk, and now. They are numpy expressions over all
candidates
of a micro-batch at once. A rule may lower a decision; nothing here or after raises one. Bits of reasons and constraints are
positions in
RULES and CONSTRAINTS: append only, they stand in READS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bus.frames import DECISIONS, INTENTS, KINDS, RISKS, TASK_STATES
from gate.state.columns import REVIEW_ACCEPTED, Columns
from gate.state.succession import superseded

ADMIT, SUMMARY, RANK_DOWN, QUARANTINE, DENY = range(5)
assert DECISIONS[DENY] == "deny"
# By decision: an excerpt is stricter than the whole text further down.
STRICTNESS: Final = np.array([0, 2, 1, 3, 4], np.int8)
NONE, READ_ONLY, WRITES_LOCAL, EXTERNAL_EFFECT, PRIVILEGED = range(5)
assert RISKS[PRIVILEGED] == "privileged"

# Trust that an intent needs at a risk, per mille. Rows: intents; columns: risks.
FLOORS: Final = np.array(
    [
        [100, 100, 300, 600, 800],  # answer
        [150, 150, 400, 600, 800],  # plan
        [150, 200, 400, 600, 800],  # write
        [300, 300, 500, 600, 800],  # send
        [300, 300, 500, 700, 850],  # execute
        [500, 500, 600, 800, 950],  # configure
    ],
    np.int16,
)
assert FLOORS.shape == (len(INTENTS), len(RISKS))
SUMMARY_BAND: Final = 200  # this far below the floor a summary is still shown
LOW_TRUST: Final = 300
AUTHORITY_KINDS: Final = tuple(KINDS.index(k) for k in ("rule", "procedure", "constraint"))
HISTORY_KINDS: Final = tuple(KINDS.index(k) for k in ("preference", "event", "relationship", "emotional_state", "task"))
AUTHORITY_ROLES: Final = frozenset({"operator", "user_session"})  # who may write what counts as a rule
EXTERNAL, AGENT_INFERRED = 0, 1
HIGH: Final = 1

_IS_RULE: Final = np.isin(np.arange(len(KINDS)), AUTHORITY_KINDS)  # by kind
_IS_HISTORY: Final = np.isin(np.arange(len(KINDS)), HISTORY_KINDS)

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[Any]


class Rows:
    """The candidates' columns, gathered once. `authority`: written by a role that may set rules."""

    project: Ints
    kind: Ints
    origin: Ints
    cls: Ints
    sens: Ints
    eff: Ints
    floor: Ints
    actor: Ints
    held: Ints
    readers: Ints
    opt_out: Bools
    nosrc: Bools
    review: Ints
    task_state: Ints
    erased: Ints
    expires: Ints
    ended: Ints
    valid_from: Ints
    valid_until: Ints
    written: Ints

    def __init__(self, c: Columns, seqs: npt.NDArray[np.int32], authority: npt.NDArray[np.bool_]) -> None:
        for name in _GATHERED:
            setattr(self, name, getattr(c, name)[seqs])
        self._columns, self._seqs = c, seqs
        self.authority = authority[self.actor]
        self.unreviewed_rule: Bools = _IS_RULE[self.kind] & ~self.authority & (self.review != REVIEW_ACCEPTED)

    def weigh(self, ask: Ask) -> None:
        """Set `superseded` (at the time asked for), `below` (its trust is below what this question needs) and `in_band` (so
        little that an excerpt may be shown).

        What counts: its own trust up to writes_local, the floor of what its writer had seen from external effects on.
        """
        self.superseded: Bools = superseded(self._columns, self._seqs, ask.as_of)
        needed = FLOORS[ask.intent, ask.risk]
        trust = np.where(ask.risk >= EXTERNAL_EFFECT, np.minimum(self.floor, self.eff), self.eff)
        self.below: Bools = trust < needed
        self.in_band: Bools = self.below & (ask.risk >= WRITES_LOCAL) & (trust >= needed - SUMMARY_BAND)


_GATHERED: Final = tuple(Rows.__annotations__)


class Ask(NamedTuple):
    """The asker's side, one entry per candidate (already broadcast over the micro-batch)."""

    project: Ints
    clearance: Ints
    readers_ok: Bools
    agent: Ints
    intent: Ints
    risk: Ints
    origins: Ints  # bit mask of required origins; 0 = any
    history_off: Bools
    as_of: Ints  # ms; now when the present is asked for
    past: Bools
    now: int


class Rule(NamedTuple):
    code: str
    decision: int
    sentence: str
    hit: Callable[[Rows, Ask], Bools]


RULES: Final[tuple[Rule, ...]] = (
    Rule("other_project", DENY, "It belongs to another project.", lambda r, a: r.project != a.project),
    Rule("above_clearance", DENY, "It is classified above this credential's clearance.", lambda r, a: r.cls > a.clearance),
    Rule("not_a_reader", DENY, "Its readers do not include this principal.", lambda r, a: ~a.readers_ok),
    Rule("held", QUARANTINE, "It is held by an open case or waits for a review.", lambda r, a: r.held != 0),
    Rule(
        "expired",
        DENY,
        "It has expired or is no longer valid.",
        lambda r, a: (r.expires <= a.as_of) | (r.valid_until <= a.as_of) | ((r.ended != 0) & (r.ended <= a.as_of)),
    ),
    Rule("not_yet_valid", DENY, "It is not valid yet.", lambda r, a: (r.valid_from > a.as_of) | (r.written > a.as_of)),
    Rule("superseded", DENY, "A newer memory replaces it.", lambda r, a: r.superseded),
    Rule("opted_out", DENY, "Its owner opted out of recall by others.", lambda r, a: r.opt_out & (r.actor != a.agent)),
    Rule(
        "history_off",
        DENY,
        "The question asks to leave personal history out.",
        lambda r, a: a.history_off & _IS_HISTORY[r.kind],
    ),
    Rule(
        "task_closed", DENY, "Its task was abandoned or superseded.", lambda r, a: r.task_state >= TASK_STATES.index("abandoned")
    ),
    Rule("task_resolved", RANK_DOWN, "Its task is resolved.", lambda r, a: r.task_state == TASK_STATES.index("resolved")),
    Rule(
        "sensitive_external",
        DENY,
        "High sensitivity from outside is not used where something is changed.",
        lambda r, a: (r.sens == HIGH) & (r.origin == EXTERNAL) & (a.risk >= WRITES_LOCAL),
    ),
    Rule(
        "origin_too_weak",
        DENY,
        "External origin never drives a privileged tool.",
        lambda r, a: (r.origin == EXTERNAL) & (a.risk >= PRIVILEGED),
    ),
    Rule(
        "origin_not_required",
        DENY,
        "Its origin is not among those the question requires.",
        lambda r, a: (a.origins != 0) & ((a.origins >> r.origin.astype(np.int64)) & 1 == 0),
    ),
    Rule(
        "trust_below_floor",
        DENY,
        "Its trust is below what this intent and risk need.",
        lambda r, a: r.below & ~r.in_band,
    ),
    Rule(
        "trust_near_floor",
        SUMMARY,
        "Its trust is a little below what this intent and risk need: an excerpt only.",
        lambda r, a: r.in_band,
    ),
    Rule(
        "lineage_incomplete",
        DENY,
        "It names no source, and the risk is high.",
        lambda r, a: r.nosrc & (r.origin <= AGENT_INFERRED) & (a.risk >= EXTERNAL_EFFECT),
    ),
    Rule(
        "kind_unauthorised",
        DENY,
        "A rule, procedure or constraint without review can't drive a change.",
        lambda r, a: r.unreviewed_rule & (a.risk >= WRITES_LOCAL),
    ),
    Rule(
        "kind_unreviewed",
        RANK_DOWN,
        "A rule, procedure or constraint without review ranks below facts.",
        lambda r, a: r.unreviewed_rule & (a.risk < WRITES_LOCAL),
    ),
    Rule("low_trust", RANK_DOWN, "Its trust is low.", lambda r, a: r.eff < LOW_TRUST),
    Rule("erased", DENY, "It was erased: its text is gone.", lambda r, a: r.erased != 0),
)
WITHIN_POLICY: Final = "within_policy"
GATE_LOW: Final = "gate_low"  # the learned gate ranked it down
SENTENCES: Final = {r.code: r.sentence for r in RULES} | {
    WITHIN_POLICY: "No rule speaks against it.",
    GATE_LOW: "The gate finds it unlikely to help this question.",
    "held_since": "It was held or erased between the decision and the answer.",
    "over_frame": "It did not fit into the answer's frame: ask for fewer, or get it by its id.",
}
GATE_BIT: Final = 20  # it came after the first twenty rules: later ones have the bits above it
BITS: Final = tuple(i + (i >= GATE_BIT) for i in range(len(RULES)))  # the bit of each rule
ERASED: Final = 1 << BITS[next(i for i, r in enumerate(RULES) if r.code == "erased")]

CONSTRAINTS: Final = ("require_citation", "require_confirmation", "forbid_tool_binding", "ask_first")


def decide(rows: Rows, ask: Ask) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """(decision, bits of the rules that hit) for every candidate."""
    n = len(rows.kind)
    decision, reasons = np.zeros(n, np.int8), np.zeros(n, np.int32)
    rows.weigh(ask)
    for bit, rule in zip(BITS, RULES, strict=True):
        hit = rule.hit(rows, ask)
        if hit.any():
            decision[hit & (STRICTNESS[decision] < STRICTNESS[rule.decision])] = rule.decision
            reasons |= hit.astype(np.int32) << bit
    reasons[reasons & ERASED != 0] = ERASED  # of what is erased nothing else is told
    return decision, reasons


def constraints(rows: Rows, ask: Ask, decision: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Bits of CONSTRAINTS for every candidate."""
    summary = decision == SUMMARY
    cite = (rows.origin == EXTERNAL) | summary
    confirm = (rows.origin <= AGENT_INFERRED) & (ask.risk >= EXTERNAL_EFFECT)
    unbound = ((rows.origin == EXTERNAL) & (ask.risk >= WRITES_LOCAL)) | summary | ask.past
    first = rows.unreviewed_rule | ((rows.sens == HIGH) & (ask.intent >= INTENTS.index("send")))
    bits = cite.astype(np.int8) | confirm.astype(np.int8) << 1 | unbound.astype(np.int8) << 2 | first.astype(np.int8) << 3
    return np.asarray(bits, np.int8)


def codes(bits: int) -> list[str]:
    """Reason codes of a bit mask; never empty."""
    return [*_codes(bits)]


@lru_cache(4_096)
def _codes(bits: int) -> tuple[str, ...]:
    found = [r.code for i, r in zip(BITS, RULES, strict=True) if bits >> i & 1]
    if bits >> GATE_BIT & 1:
        found.append(GATE_LOW)
    return tuple(found) or (WITHIN_POLICY,)


def constraint_names(bits: int) -> list[str]:
    return [name for i, name in enumerate(CONSTRAINTS) if bits >> i & 1] if bits else []
