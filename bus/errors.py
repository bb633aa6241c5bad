"""The error tree. The branch is the advice.

    CordonError
    ├── Rejected              don't retry as it is: change the request (carries a reason code)
    │   ├── WriteRejected     a draft was refused
    │   ├── Conflict          same idempotency key with other content, a stale plan
    │   └── Denied            this credential may not do that
    ├── Unavailable           retry later (`retry_after_s`)
    │   └── DeadlineExceeded  the client's own deadline passed; a write with an idempotency key may be retried
    ├── WireError             a bug or a foreign peer
    │   ├── MalformedFrame
    │   └── FrameTooLarge     refused before it was sent
    ├── ConfigError           credentials, URL or project missing or unreadable
    └── Closed                the bus object was used outside its `async with`

Every error says what happened, to what, and what to do: `str(error)` is that sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sentence(message: str, advice: str, field: str, limit: int | None) -> str:
    """What people are told: `[field, limit N] message advice`, as far as there is each. On the command line too."""
    most = f", limit {limit:,}" if limit is not None else ""
    return f"{f'[{field}{most}] ' if field else ''}{message} {advice}".strip()


class CordonError(Exception):
    """Base of all errors of Cordon. `reason` is a stable code, `advice` says what to do."""

    def __init__(
        self, message: str, *, reason: str = "error", advice: str = "", field: str = "", limit: int | None = None
    ) -> None:
        super().__init__(sentence(message, advice, field, limit))
        self.message = message
        self.reason = reason
        self.advice = advice


class Rejected(CordonError):
    """The request as it is can't be granted.

    `field` and `limit` name the offending part, `detail` holds facts (a stale plan's diff).
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "rejected",
        advice: str = "",
        reasons: tuple[str, ...] = (),
        field: str = "",
        limit: int | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, reason=reason, advice=advice, field=field, limit=limit)
        self.reasons = reasons or (reason,)
        self.field = field
        self.limit = limit
        self.detail = dict(detail or {})


class WriteRejected(Rejected):
    """A draft was refused; nothing was stored."""


class Conflict(Rejected):
    """The request contradicts what is already recorded (idempotency key, plan, supersede)."""


class Denied(Rejected):
    """The credential does not carry this right."""


class Unavailable(CordonError):
    """The bus can't answer now. Retry after `retry_after_s` seconds; `field` and `limit`: the quota that was met, if any."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "unavailable",
        advice: str = "",
        retry_after_s: float = 1.0,
        field: str = "",
        limit: int | None = None,
    ) -> None:
        super().__init__(message, reason=reason, advice=advice, field=field, limit=limit)
        self.retry_after_s = retry_after_s
        self.field = field
        self.limit = limit


class DeadlineExceeded(Unavailable):
    """No answer within the client's deadline. `reason` is outcome_unknown or not_delivered.

    `idempotency_key` is the one of a write: the same write with it never makes a second memory.
    """

    def __init__(self, message: str, *, reason: str = "outcome_unknown", advice: str = "", idempotency_key: str = "") -> None:
        super().__init__(message, reason=reason, advice=advice)
        self.idempotency_key = idempotency_key


class WireError(CordonError):
    """A frame that breaks the contract."""


class MalformedFrame(WireError):
    """A frame that can't be decoded."""


class FrameTooLarge(WireError):
    """A frame over its limit, refused before sending. `size` and `limit` are bytes."""

    def __init__(self, message: str, *, size: int, limit: int, advice: str = "") -> None:
        super().__init__(message, reason="frame_too_large", advice=advice)
        self.size = size
        self.limit = limit


class ConfigError(CordonError):
    """Credentials, URL or project are missing or can't be read."""


class Closed(CordonError):
    """Used after it was closed, or before it was opened."""
