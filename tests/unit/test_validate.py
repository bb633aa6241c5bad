"""Every field of a draft at its limit and one beyond."""

from __future__ import annotations

from typing import Any

import pytest

from bus import limits
from bus.frames import Draft
from gate.refusals import TABLE, Refused
from gate.writing.validate import check_draft

NOW = 1_800_000_000_000


def refused(**fields: Any) -> Refused:
    with pytest.raises(Refused) as e:
        check_draft(Draft(**({"content": "x"} | fields)), NOW)
    assert e.value.code in TABLE
    return e.value


def accepted(**fields: Any) -> None:
    check_draft(Draft(**({"content": "x"} | fields)), NOW)


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("content", 65_536),
        ("run", 128),
        ("task", 128),
        ("session", 128),
        ("trace_id", 128),
        ("idempotency_key", 128),
        ("scope_id", 256),
    ],
)
def test_text_is_accepted_at_its_limit_and_refused_one_byte_beyond(field: str, most: int) -> None:
    accepted(**{field: "x" * most})
    e = refused(**{field: "x" * (most + 1)})
    assert (e.code, e.field, e.limit) == ("too_long", field, most)
    assert refused(**{field: "ü" * (most // 2 + 1)}).code == "too_long", "bytes count, not characters"


@pytest.mark.parametrize("content", ["", " ", "\n\t"])
def test_empty_content_is_refused(content: str) -> None:
    assert refused(content=content).code == "too_short"


@pytest.mark.parametrize(
    ("content", "code"),
    [("a\0b", "nul_character"), ("a\u202eb", "bidi_control"), ("a\u2066b", "bidi_control"), ("a\ud83db", "malformed_frame")],
)
def test_text_that_hides_something_is_refused(content: str, code: str) -> None:
    assert refused(content=content).code == code
    accepted(content="العربية, עברית, 中文, emoji 🙂, e\u0301")


@pytest.mark.parametrize(
    "when", ["2026-01-01T00:00:00", "2026-01-01T00:00:00+02:00", "yesterday", "", "2026-01-01", "9" * 60 + "Z"]
)
def test_a_time_that_is_not_utc_is_refused(when: str) -> None:
    e = refused(valid_from=when)
    assert (e.code, e.field) == ("time_not_utc", "valid_from")


def test_utc_times_are_taken_in_either_spelling() -> None:
    accepted(valid_from="2026-01-01T00:00:00Z", valid_until="2026-01-02T00:00:00.5+00:00")


def test_times_that_contradict_each_other_are_refused() -> None:
    assert refused(valid_from="2026-01-02T00:00:00Z", valid_until="2026-01-01T00:00:00Z").code == "time_order"
    assert refused(ttl=5, expires_at="2099-01-01T00:00:00Z").code == "time_order"
    assert refused(expires_at="2001-01-01T00:00:00Z").code == "time_order"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1])
def test_a_confidence_outside_its_range_is_refused(value: float) -> None:
    assert refused(claimed_confidence=value).code == "out_of_range"
    accepted(claimed_confidence=0.0)
    accepted(claimed_confidence=1.0)


@pytest.mark.parametrize("ttl", [0, -1, limits.TTL_SECONDS_MAX + 1])
def test_a_time_to_live_outside_its_range_is_refused(ttl: int) -> None:
    assert refused(ttl=ttl).code == "out_of_range"


def test_expiry_follows_the_kind_and_its_most() -> None:
    day = 86_400_000
    assert check_draft(Draft(content="x"), NOW).end.expires_ms == NOW + 365 * day
    assert check_draft(Draft(content="x", kind="rule"), NOW).end.expires_ms == 0
    assert check_draft(Draft(content="x", kind="emotional_state", ttl=30 * 86_400), NOW).end.expires_ms == NOW + 7 * day
    assert check_draft(Draft(content="x", scope="operational"), NOW).end.expires_ms == NOW + 7 * day


@pytest.mark.parametrize("readers", [[], [[]], [["agent:a"], []], [["everyone"]], [["agent:"]], [["agent:a b"]], [["agent:*"]]])
def test_readers_that_empty_to_all_are_refused(readers: list[list[str]]) -> None:
    assert refused(readers=readers).code in ("readers_invalid", "too_short")
    accepted(readers=[["agent:a", "role:operator"], ["user:any id: of theirs"]])


def test_lists_are_bounded() -> None:
    accepted(evidence=["u"] * limits.EVIDENCE_ITEMS_MAX)
    assert refused(evidence=["u"] * (limits.EVIDENCE_ITEMS_MAX + 1)).code == "too_long"
    assert refused(evidence=["x" * (limits.EVIDENCE_BYTES_MAX + 1)]).code == "too_long"
    assert refused(derived_from=["mem_x"] * (limits.PARENTS_DECLARED_MAX + 1)).code == "too_long"
    assert refused(readers=[["agent:a"]] * (limits.READER_CLAUSES_MAX + 1)).code == "too_long"
    assert refused(readers=[["agent:a"] * (limits.READER_ENTRIES_MAX + 1)]).code == "too_long"


def test_a_scope_names_whose_it_is() -> None:
    assert refused(scope="user").code == "scope_id_missing"
    assert refused(scope="task").code == "scope_id_missing"
    accepted(scope="user", scope_id="anna@example.org")
    accepted(scope="task", task="t1")


@pytest.mark.parametrize("tool", ["a.b", "A", "a b", "*", "x" * 65])
def test_a_tool_name_is_a_token(tool: str) -> None:
    assert refused(tool=tool).code == "bad_name"
