"""The policy table: every rule hits what it says and nothing beside it, and no claim makes a decision looser."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.frames import INTENTS, KINDS, ORIGINS, RISKS, TASK_STATES
from gate.reading import policy
from gate.state.columns import NEVER_MS, REVIEW_ACCEPTED, Columns
from gate.state.succession import LINKS_MAX

NOW = 1_700_000_000_000
DAY = 86_400_000
OWNER, STRANGER, OPERATOR = 0, 1, 2

# A memory that every question of the base asker is answered with.
ROW: dict[str, Any] = {
    "project": 0, "kind": KINDS.index("fact"), "origin": 3, "cls": 1, "sens": 0, "eff": 1000, "floor": 1000, "actor": OWNER,
    "held": 0, "opt_out": False, "nosrc": False, "review": 0, "task_state": -1, "expires": NEVER_MS, "valid_from": 0,
    "valid_until": NEVER_MS, "written": NOW - DAY, "superseded": 0, "superseded_ms": 0,
}  # fmt: skip
ASK: dict[str, Any] = {
    "project": 0, "clearance": 1, "readers_ok": True, "agent": STRANGER, "intent": 0, "risk": 0, "origins": 0,
    "history_off": False, "as_of": NOW, "past": False,
}  # fmt: skip
_DTYPES = {"readers_ok": np.bool_, "history_off": np.bool_, "past": np.bool_, "origins": np.int64, "as_of": np.int64}


def risk(name: str) -> int:
    return [str(r) for r in RISKS].index(name)


def intent(name: str) -> int:
    return [str(i) for i in INTENTS].index(name)


class Outcome(NamedTuple):
    decision: int
    reasons: list[str]
    constraints: list[str]


def outcome(
    row: Mapping[str, Any] | None = None, ask: Mapping[str, Any] | None = None, *successors: Mapping[str, Any]
) -> Outcome:
    """Decide on one memory (row 1; rows 2, 3 … are what supersedes it, where something does)."""
    c = Columns()
    for name, value in {**ROW, **(row or {})}.items():
        getattr(c, name)[1] = value
    for s, changes in enumerate(successors or ({},), 2):
        for name, value in {"valid_until": NEVER_MS, "expires": NEVER_MS, **changes}.items():
            getattr(c, name)[s] = value
    authority = np.array([False, False, True])
    rows = policy.Rows(c, np.array([1], np.int32), authority)
    one: dict[str, Any] = {n: np.array([v], _DTYPES.get(n, np.int16)) for n, v in {**ASK, **(ask or {})}.items()}
    asked = policy.Ask(**one, now=NOW)
    decision, reasons = policy.decide(rows, asked)
    constraints = policy.constraints(rows, asked, decision)
    return Outcome(int(decision[0]), policy.codes(int(reasons[0])), policy.constraint_names(int(constraints[0])))


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Case(NamedTuple):
    """The rule `code` hits with these changes, and not with `beside`, which differs in as little as can be."""

    code: str
    row: Mapping[str, Any] = _NOTHING
    ask: Mapping[str, Any] = _NOTHING
    beside_row: Mapping[str, Any] = _NOTHING
    beside_ask: Mapping[str, Any] = _NOTHING


EFFECT, LOCAL, PRIVILEGED = {"risk": risk("external_side_effect")}, {"risk": risk("writes_local")}, {"risk": risk("privileged")}
RULE = {"kind": KINDS.index("rule")}
CASES = [
    Case("other_project", {"project": 1}, {}, {"project": 0}),
    Case("above_clearance", {"cls": 2}, {}, {"cls": 1}),
    Case("above_clearance", {"cls": 1}, {"clearance": 0}, {"cls": 0}, {"clearance": 0}),
    Case("not_a_reader", {}, {"readers_ok": False}),
    Case("held", {"held": 1}, {}, {"held": 0}),
    Case("held", {"held": 65_535}),
    Case("expired", {"expires": NOW}, {}, {"expires": NOW + 1}),
    Case("expired", {"valid_until": NOW}, {}, {"valid_until": NOW + 1}),
    Case("not_yet_valid", {"valid_from": NOW + 1}, {}, {"valid_from": NOW}),
    Case("not_yet_valid", {}, {"as_of": NOW - 2 * DAY, "past": True}, {}, {"as_of": NOW - DAY, "past": True}),
    Case("superseded", {"superseded": 2, "superseded_ms": NOW}, {}, {"superseded": 0}),
    Case(
        "superseded",
        {"superseded": 2, "superseded_ms": NOW - DAY // 2},
        {},
        {"superseded": 2, "superseded_ms": NOW - DAY // 2},
        {"as_of": NOW - DAY // 2 - 1, "past": True},
    ),
    Case("opted_out", {"opt_out": True}, {}, {"opt_out": True}, {"agent": OWNER}),
    Case("history_off", {"kind": KINDS.index("event")}, {"history_off": True}, {"kind": KINDS.index("event")}),
    Case("history_off", {"kind": KINDS.index("preference")}, {"history_off": True}, {}, {"history_off": True}),
    Case("task_closed", {"task_state": TASK_STATES.index("abandoned")}, {}, {"task_state": TASK_STATES.index("active")}),
    Case("task_closed", {"task_state": TASK_STATES.index("superseded")}),
    Case("task_resolved", {"task_state": TASK_STATES.index("resolved")}, {}, {"task_state": TASK_STATES.index("active")}),
    Case("sensitive_external", {"sens": 1, "origin": 0}, LOCAL, {"sens": 1, "origin": 1}, LOCAL),
    Case("sensitive_external", {"sens": 1, "origin": 0}, LOCAL, {"sens": 1, "origin": 0}, {"risk": risk("read_only")}),
    Case("origin_too_weak", {"origin": 0}, PRIVILEGED, {"origin": 1}, PRIVILEGED),
    Case("origin_too_weak", {"origin": 0}, PRIVILEGED, {"origin": 0}, EFFECT),
    Case("origin_not_required", {"origin": 3}, {"origins": 1 << 2}, {"origin": 2}, {"origins": 1 << 2}),
    Case("trust_below_floor", {"eff": 99}, {}, {"eff": 100}),
    Case("trust_below_floor", {"eff": 99}, LOCAL, {"eff": 100}, LOCAL),
    Case("trust_below_floor", {"floor": 399}, EFFECT, {"floor": 400}, EFFECT),
    Case("trust_near_floor", {"eff": 299}, LOCAL, {"eff": 300}, LOCAL),
    Case("trust_near_floor", {"floor": 599}, EFFECT, {"floor": 600}, EFFECT),
    Case("lineage_incomplete", {"nosrc": True, "origin": 1}, EFFECT, {"nosrc": False, "origin": 1}, EFFECT),
    Case("lineage_incomplete", {"nosrc": True, "origin": 1}, EFFECT, {"nosrc": True, "origin": 2}, EFFECT),
    Case("kind_unauthorised", RULE, LOCAL, {**RULE, "review": REVIEW_ACCEPTED}, LOCAL),
    Case("kind_unauthorised", RULE, LOCAL, {**RULE, "actor": OPERATOR}, LOCAL),
    Case("kind_unreviewed", RULE, {}, {**RULE, "review": REVIEW_ACCEPTED}),
    Case("kind_unreviewed", {"kind": KINDS.index("procedure")}, {}, {"kind": KINDS.index("decision")}),
    Case("low_trust", {"eff": 299}, {}, {"eff": 300}),
    Case("erased", {"erased": NOW - DAY}, {}, {"erased": 0}),
]
DECISION = {rule.code: rule.decision for rule in policy.RULES}


@pytest.mark.parametrize("case", CASES, ids=[f"{c.code}-{i}" for i, c in enumerate(CASES)])
def test_a_rule_hits_what_it_says_and_not_what_stands_beside_it(case: Case) -> None:
    hit = outcome(case.row, case.ask)
    assert case.code in hit.reasons
    assert policy.STRICTNESS[hit.decision] >= policy.STRICTNESS[DECISION[case.code]]
    assert case.code not in outcome(case.beside_row, case.beside_ask).reasons


def test_every_rule_has_a_case_a_sentence_and_a_code_of_its_own() -> None:
    assert {c.code for c in CASES} == {r.code for r in policy.RULES}
    assert len({r.code for r in policy.RULES}) == len(policy.RULES)
    assert all(r.sentence.endswith(".") for r in policy.RULES)
    assert len(policy.RULES) < 31  # bits of an int32, the gate's beside them


def test_of_what_is_erased_nothing_else_is_told() -> None:
    assert outcome({"erased": NOW, "held": 1, "eff": 0, "superseded": 2, "superseded_ms": NOW}) == Outcome(
        policy.DENY, ["erased"], []
    )
    assert outcome({"held": 1, "eff": 0}).reasons != ["erased"]


def test_a_bit_of_reads_means_what_it_meant_when_it_was_written() -> None:
    assert policy.codes(1 << 19 | 1 << 20) == ["low_trust", "gate_low"]
    assert policy.codes(1 << 21) == ["erased"]
    assert policy.ERASED == 1 << 21


def test_without_a_rule_that_says_no_it_is_admitted_with_a_reason() -> None:
    assert outcome() == Outcome(policy.ADMIT, ["within_policy"], [])


def test_a_held_successor_leaves_its_predecessor_current() -> None:
    old = {"superseded": 2, "superseded_ms": NOW - 1}
    assert outcome(old).decision == policy.DENY
    assert outcome(old, {}, {"held": 1}).decision == policy.ADMIT


@pytest.mark.parametrize("nowhere", [{"expires": NOW}, {"valid_until": NOW}, {"valid_from": NOW + 1}])
def test_a_successor_that_has_lapsed_or_is_not_valid_yet_leaves_its_predecessor_current(nowhere: dict[str, Any]) -> None:
    old, past = {"superseded": 2, "superseded_ms": NOW - 9}, {"as_of": NOW - 1, "past": True}
    assert outcome(old, {}, nowhere).decision == policy.ADMIT
    assert (outcome(old, past, nowhere).decision == policy.DENY) == ("valid_from" not in nowhere)  # as things were then
    again = {**nowhere, "superseded": 3, "superseded_ms": NOW - 5}  # what lapsed has a successor of its own
    assert outcome(old, {}, again, {}).decision == policy.DENY
    assert outcome(old, {}, again, {"held": 1}).decision == policy.ADMIT
    assert outcome(old, {}, again, {"expires": NOW}).decision == policy.ADMIT


def test_a_long_row_of_lapsed_successors_is_looked_through_to_a_bound() -> None:
    def row(n: int) -> list[dict[str, Any]]:
        links = [{"expires": NOW, "superseded": s + 1, "superseded_ms": NOW - 5} for s in range(2, n + 2)]
        return [*links[:-1], {"expires": NOW}]

    old = {"superseded": 2, "superseded_ms": NOW - 9}
    assert outcome(old, {}, *row(LINKS_MAX - 1)).decision == policy.ADMIT
    assert outcome(old, {}, *row(LINKS_MAX + 1)).decision == policy.DENY


def test_effects_outside_look_at_what_the_writer_had_seen_and_not_at_the_memory_alone() -> None:
    laundered = {"eff": 1000, "floor": 250}
    assert outcome(laundered, LOCAL).decision == policy.ADMIT
    assert outcome(laundered, EFFECT).decision == policy.DENY
    assert outcome({"eff": 1000, "floor": 600}, EFFECT).decision == policy.ADMIT


def test_an_excerpt_stays_an_excerpt_when_another_rule_only_ranks_it_down() -> None:
    low = outcome({"eff": 250}, LOCAL)
    assert (low.decision, low.reasons) == (policy.SUMMARY, ["trust_near_floor", "low_trust"])
    assert outcome({"eff": 250}).decision == policy.RANK_DOWN


# --- constraints --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("row", "ask", "expected"),
    [
        ({"origin": 0}, {}, ["require_citation"]),
        ({"origin": 0}, LOCAL, ["require_citation", "forbid_tool_binding"]),
        ({"origin": 1}, LOCAL, []),
        ({"origin": 1}, EFFECT, ["require_confirmation"]),
        ({"origin": 2}, EFFECT, []),
        ({"eff": 299}, LOCAL, ["require_citation", "forbid_tool_binding"]),
        ({}, {"as_of": NOW - 1, "past": True}, ["forbid_tool_binding"]),
        (RULE, {}, ["ask_first"]),
        ({"sens": 1}, {"intent": intent("send")}, ["ask_first"]),
        ({"sens": 1}, {"intent": intent("write")}, []),
    ],
)
def test_constraints_say_how_an_admitted_memory_may_be_used(
    row: dict[str, Any], ask: dict[str, Any], expected: list[str]
) -> None:
    assert outcome(row, ask).constraints == expected


# --- properties ---------------------------------------------------------------------------------------
FACTS = st.fixed_dictionaries(
    {
        "kind": st.integers(0, len(KINDS) - 1), "origin": st.integers(0, len(ORIGINS) - 1), "cls": st.integers(0, 2),
        "sens": st.integers(0, 1), "eff": st.integers(0, 1000), "floor": st.integers(0, 1000), "held": st.integers(0, 2),
        "opt_out": st.booleans(), "nosrc": st.booleans(), "review": st.integers(0, 3), "actor": st.integers(0, 2),
        "task_state": st.integers(-1, 3), "expires": st.sampled_from([NOW - 1, NEVER_MS]),
    }
)  # fmt: skip
QUESTION = st.fixed_dictionaries(
    {
        "clearance": st.integers(0, 2), "intent": st.integers(0, len(INTENTS) - 1), "risk": st.integers(0, len(RISKS) - 1),
        "history_off": st.booleans(), "readers_ok": st.booleans(), "agent": st.integers(0, 2),
    }
)  # fmt: skip


@given(FACTS, QUESTION, st.integers(0, len(RISKS) - 1), st.integers(0, len(INTENTS) - 1))
def test_more_risk_or_a_stronger_intent_is_never_decided_more_loosely(
    row: dict[str, Any], ask: dict[str, Any], more: int, stronger: int
) -> None:
    """Ranking apart: claims can only make it stricter. Rank-down and summary are both admitted, so they count as one."""
    higher = {**ask, "risk": max(more, ask["risk"]), "intent": max(stronger, ask["intent"])}
    assert _admitted(outcome(row, higher)) <= _admitted(outcome(row, ask))


@given(FACTS, QUESTION, st.integers(0, 1000), st.integers(0, 1000))
def test_less_trust_is_never_decided_more_loosely(row: dict[str, Any], ask: dict[str, Any], eff: int, floor: int) -> None:
    lower = {**row, "eff": min(eff, row["eff"]), "floor": min(floor, row["floor"])}
    assert _admitted(outcome(lower, ask)) <= _admitted(outcome(row, ask))


@given(FACTS, QUESTION)
def test_isolation_and_holds_are_absolute(row: dict[str, Any], ask: dict[str, Any]) -> None:
    for bad in ({"held": 1}, {"cls": ask["clearance"] + 1}, {"project": 1}, {"expires": NOW}):
        assert outcome({**row, **bad}, ask).decision >= policy.QUARANTINE
    assert outcome(row, {**ask, "readers_ok": False}).decision == policy.DENY


@given(FACTS, QUESTION)
def test_every_decision_has_a_reason_that_explains_it(row: dict[str, Any], ask: dict[str, Any]) -> None:
    found = outcome(row, ask)
    assert found.reasons
    assert found.decision == max((DECISION.get(code, policy.ADMIT) for code in found.reasons), key=lambda d: policy.STRICTNESS[d])
    assert all(code in policy.SENTENCES for code in found.reasons)


def _admitted(found: Outcome) -> int:
    """1 admitted in some form, 0 not."""
    return int(found.decision < policy.QUARANTINE)
