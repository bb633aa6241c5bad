"""Exit codes, and what an error becomes: one code, one line on stderr, one refusal on stdout with --json.

Invariant: every exception has exactly one code, and nobody sees a traceback unless CORDON_DEBUG asks for it. The fields of a
refusal are always all there, so a script never has to ask which kind it got.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from .render import render_untrusted

DEBUG_VARIABLE: Final = "CORDON_DEBUG"
_LINE_CHARS: Final = 2_000
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    CONFLICT = 3
    NOT_PERMITTED = 4
    INCOMPLETE = 5
    UNAVAILABLE = 6
    INTERNAL = 70
    OUTPUT = 74  # EX_IOERR of sysexits.h, as 70 is its EX_SOFTWARE
    INTERRUPTED = 130
    PIPE_CLOSED = 141  # as any Unix tool whose reader left


NAMES: Final = {
    Exit.REFUSED: "refused",
    Exit.USAGE: "usage",
    Exit.CONFLICT: "conflict",
    Exit.NOT_PERMITTED: "not permitted",
    Exit.INCOMPLETE: "incomplete",
    Exit.UNAVAILABLE: "unavailable",
    Exit.INTERNAL: "internal",
    Exit.OUTPUT: "output",
    Exit.INTERRUPTED: "interrupted",
}


class Failure(Exception):
    """A command's no: its exit code and the fields of a refusal frame. Commands may raise it themselves."""

    def __init__(
        self,
        code: Exit,
        message: str,
        *,
        reason: str,
        advice: str = "",
        error: str = "",
        reasons: Sequence[str] = (),
        field: str = "",
        limit: int | None = None,
        retry_after_s: float | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.advice, self.reason = code, message, advice, reason
        self.error = error or NAMES[code].replace(" ", "_")
        self.reasons = list(reasons) or [reason]
        self.field, self.limit, self.retry_after_s, self.detail = field, limit, retry_after_s, detail or {}

    def document(self) -> dict[str, Any]:
        """What --json prints."""
        names = ("error", "reason", "reasons", "field", "limit", "message", "advice", "retry_after_s", "detail")
        return {"type": "refusal", **{name: getattr(self, name) for name in names}}

    def line(self) -> str:
        """What stderr gets: the code's name first."""
        from bus.errors import sentence

        said = sentence(self.message, self.advice, self.field, self.limit)
        return render_untrusted(f"cordon: {NAMES[self.code]}: {said}", _LINE_CHARS)


def usage(message: str, *, reason: str = "usage", advice: str = "", field: str = "") -> Failure:
    """The caller's own mistake: exit 2."""
    return Failure(Exit.USAGE, message, reason=reason, advice=advice, field=field)


def cause_of(error: BaseException) -> BaseException:
    """The error itself, or the first cause of a task group's."""
    return cause_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def failure_of(error: BaseException, logs: Path) -> Failure:
    """The failure that `error` means. An unforeseen one is written to a file in `logs`, if that folder is there."""
    from bus.errors import CordonError

    error = cause_of(error)
    if isinstance(error, Failure):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Failure(Exit.INTERRUPTED, "Stopped by the keyboard.", reason="interrupted")
    if isinstance(error, CordonError):
        return _of_cordon(error)
    if isinstance(error, TimeoutError):
        return Failure(Exit.UNAVAILABLE, "No answer in time.", reason="timeout", advice="Try again.")
    if isinstance(error, PermissionError):
        return usage(
            f"{error.filename} can't be used: {error.strerror}.", reason="no_access", advice="Run this as the owner of the home."
        )
    if isinstance(error, OSError) and (error.filename or error.errno in _DISK_FULL):
        return _of_system(error)
    return _internal(error, logs)


def _of_system(error: OSError) -> Failure:
    """What the operating system refused: a path that is wrong, or a disk that is full."""
    what = f"{error.filename or 'A file'} can't be used: {error.strerror}."
    if error.errno in _DISK_FULL:
        return Failure(Exit.UNAVAILABLE, what, reason="disk_full", advice="Make room, then try again.")
    return usage(what, reason="no_access", advice="Check that path, and --home.")


def _of_cordon(error: Any) -> Failure:
    code, name = _code(error)
    return Failure(
        code,
        error.message,
        reason=error.reason,
        advice=error.advice,
        error=name,
        reasons=getattr(error, "reasons", ()),
        field=getattr(error, "field", "") or ("frame" if hasattr(error, "size") else ""),
        limit=getattr(error, "limit", None),
        retry_after_s=getattr(error, "retry_after_s", None),
        detail=getattr(error, "detail", None),
    )


def _code(error: Any) -> tuple[Exit, str]:
    from bus import errors as e

    if isinstance(error, e.Unavailable) and error.reason == "internal":
        return Exit.INTERNAL, "internal"  # the gatekeeper's own failure, which the client may retry
    table: tuple[tuple[type[e.CordonError], Exit, str], ...] = (
        (e.Conflict, Exit.CONFLICT, "conflict"),
        (e.Denied, Exit.NOT_PERMITTED, "denied"),
        (e.Rejected, Exit.REFUSED, "rejected"),
        (e.FrameTooLarge, Exit.REFUSED, "rejected"),
        (e.WireError, Exit.REFUSED, "malformed"),
        (e.ConfigError, Exit.USAGE, "usage"),
        (e.Unavailable, Exit.UNAVAILABLE, "unavailable"),
        (e.Closed, Exit.UNAVAILABLE, "unavailable"),
    )
    return next(((code, name) for kind, code, name in table if isinstance(error, kind)), (Exit.INTERNAL, "internal"))


def _internal(error: BaseException, logs: Path) -> Failure:
    advice = f"Set {DEBUG_VARIABLE}=1 to see where."
    if logs.is_dir():
        log = logs / "cli.log"
        with log.open("a") as out:
            out.write(f"--- {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n")
            traceback.print_exception(error, file=out)
        advice = f"It is in {log}; report it."
    kind = type(error).__name__
    return Failure(Exit.INTERNAL, f"An error that nobody foresaw: {kind}: {error}.", reason="internal", advice=advice)
