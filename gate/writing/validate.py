"""Checks every field of a draft against its limit and meaning, before anything else happens to it. Pure; refuses with field
and limit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from bus import limits
from bus.frames import CLASSIFICATIONS, KINDS, METHODS, ORIGINS, SCOPES, SENSITIVITIES, TASK_STATES, Draft, Readers
from bus.subjects import is_token
from gate.refusals import Refused
from gate.state.tenant import Clauses

from .lifetime import End, end_of

_BIDI: Final = re.compile("[\u202a-\u202e\u2066-\u2069]")
_READER_KINDS: Final = ("agent", "role", "user")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LABEL_FIELDS: Final = ("run", "task", "session", "trace_id", "idempotency_key")


@dataclass(frozen=True, slots=True)
class Checked:
    """A draft whose fields are all within their limits. Times are ms; 0 = none."""

    draft: Draft
    kind: int
    scope: int
    method: int
    origin: int | None
    cls: int
    sens: int
    task_state: int
    readers: Clauses
    from_ms: int
    until_ms: int
    end: End
    confidence: int | None


def text_ok(value: str, field: str, most: int, least: int = 0) -> None:
    """Refuse text over `most` UTF-8 bytes, under `least`, or with NUL, bidi overrides or lone surrogates."""
    if len(value) > most:
        raise Refused("too_long", field=field, limit=most)
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise Refused("malformed_frame", field=field) from None
    if size > most:
        raise Refused("too_long", field=field, limit=most)
    if size < least or (least and not value.strip()):
        raise Refused("too_short", field=field, limit=least)
    if "\0" in value:
        raise Refused("nul_character", field=field)
    if not value.isascii() and _BIDI.search(value):
        raise Refused("bidi_control", field=field)


def time_ms(value: str | None, field: str) -> int:
    """Milliseconds of an RFC 3339 UTC time; None → 0. A naive or zoned time is refused."""
    if value is None:
        return 0
    if len(value) > 40 or not value.endswith(("Z", "+00:00")):
        raise Refused("time_not_utc", field=field)
    try:
        at = datetime.fromisoformat(value)
        if at.utcoffset() != timedelta(0):
            raise ValueError
    except ValueError:
        raise Refused("time_not_utc", field=field) from None
    # Whole numbers: a float would round the last moment of 9999 up into a year that can't be shown. 0 means none.
    return (at - _EPOCH) // timedelta(milliseconds=1) or 1


def check_readers(readers: Readers | None, field: str = "readers") -> Clauses:
    """Clauses as frozen sets; null = (). An empty list or clause is refused, never 'all'."""
    if readers is None:
        return ()
    if not readers or not all(readers):
        raise Refused("readers_invalid", field=field)
    if len(readers) > limits.READER_CLAUSES_MAX:
        raise Refused("too_long", field=field, limit=limits.READER_CLAUSES_MAX)
    out = []
    for clause in readers:
        if len(clause) > limits.READER_ENTRIES_MAX:
            raise Refused("too_long", field=field, limit=limits.READER_ENTRIES_MAX)
        for entry in clause:
            kind, _, value = entry.partition(":")
            text_ok(value, field, limits.SCOPE_ID_BYTES_MAX, 1)
            if kind not in _READER_KINDS or (kind != "user" and not is_token(value)):
                raise Refused("readers_invalid", field=field)
        out.append(frozenset(clause))
    return tuple(dict.fromkeys(out))


def check_draft(d: Draft, now_ms: int) -> Checked:
    """Every field of the draft, or a typed refusal."""
    if d.promotes:  # what it says is another memory's
        for field, own in (("content", d.content), ("evidence", d.evidence), ("scope", d.scope != "project")):
            if own:
                raise Refused("bad_field", field=field)
    text_ok(d.content, "content", limits.CONTENT_BYTES_MAX, 0 if d.promotes else 1)
    for field in _LABEL_FIELDS:
        text_ok(getattr(d, field), field, limits.LABEL_BYTES_MAX)
    text_ok(d.scope_id, "scope_id", limits.SCOPE_ID_BYTES_MAX)
    _check_list(d.evidence, "evidence", limits.EVIDENCE_ITEMS_MAX, limits.EVIDENCE_BYTES_MAX)
    _check_list(d.derived_from, "derived_from", limits.PARENTS_DECLARED_MAX, limits.NAME_CHARS_MAX)
    if d.tool and not is_token(d.tool):
        raise Refused("bad_name", field="tool", limit=limits.NAME_CHARS_MAX)
    if (d.scope == "user" and not d.scope_id) or (d.scope == "task" and not d.task):
        raise Refused("scope_id_missing", field="scope_id" if d.scope == "user" else "task")
    confidence = None
    if d.claimed_confidence is not None:
        if not (math.isfinite(d.claimed_confidence) and 0 <= d.claimed_confidence <= 1):
            raise Refused("out_of_range", field="claimed_confidence", limit=1)
        confidence = int(d.claimed_confidence * 1000)
    from_ms, until_ms = time_ms(d.valid_from, "valid_from"), time_ms(d.valid_until, "valid_until")
    if from_ms and until_ms and until_ms <= from_ms:
        raise Refused("time_order", field="valid_until")
    return Checked(
        d,
        KINDS.index(d.kind),
        SCOPES.index(d.scope),
        METHODS.index(d.method),
        ORIGINS.index(d.origin) if d.origin else None,
        CLASSIFICATIONS.index(d.classification),
        SENSITIVITIES.index(d.sensitivity),
        TASK_STATES.index(d.task_state) if d.task_state else -1,
        check_readers(d.readers),
        from_ms,
        until_ms,
        _end(d, now_ms),
        confidence,
    )


def _check_list(values: list[str], field: str, items: int, size: int) -> None:
    if len(values) > items:
        raise Refused("too_long", field=field, limit=items)
    for value in values:
        text_ok(value, field, size, 1)


def _end(d: Draft, now_ms: int) -> End:
    if d.ttl is not None and d.expires_at is not None:
        raise Refused("time_order", field="expires_at")
    if d.ttl is not None and not 0 < d.ttl <= limits.TTL_SECONDS_MAX:
        raise Refused("out_of_range", field="ttl", limit=limits.TTL_SECONDS_MAX)
    at_ms = time_ms(d.expires_at, "expires_at")
    if d.expires_at is not None and at_ms <= now_ms:
        raise Refused("time_order", field="expires_at")
    return end_of(KINDS.index(d.kind), SCOPES.index(d.scope), now_ms, ttl_s=d.ttl or 0, at_ms=at_ms)
