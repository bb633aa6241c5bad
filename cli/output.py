"""What goes to stdout and stderr, and nothing else does.

Invariants: with --json stdout carries JSON alone (ASCII, so no terminal can be driven by it); progress goes to stderr, and only
to a terminal; no console reads markup, emoji codes or highlights, so brackets in anybody's text stay brackets.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from .exits import Exit

if TYPE_CHECKING:
    import msgspec
    from rich.console import Console, RenderableType
    from rich.table import Table

PIPED_COLUMNS: Final = 160  # a pipe has no width; wide enough that tables don't wrap
WORDS_SHOWN: Final = 50  # ids or names on one line
_STDERR: Final = 2

STATE_STYLES: Final = {
    "active": "green", "held": "yellow", "retracted": "red", "expired": "dim", "superseded": "dim", "erased": "red",
    "open": "yellow", "pending": "red", "released": "green",
}  # fmt: skip
DECISION_STYLES: Final = {
    "admit": "green",
    "admit_summary_only": "yellow",
    "rank_down": "yellow",
    "quarantine": "red",
    "deny": "red",
}


def to_json(value: msgspec.Struct | Mapping[str, Any]) -> str:
    """One line of JSON: a frame with all its fields, or plain values."""
    import msgspec

    return json.dumps(msgspec.to_builtins(value))


def print_json(value: msgspec.Struct | Mapping[str, Any]) -> None:
    print(to_json(value), flush=True)


def note(line: str) -> None:
    """A line for people, on stderr. The caller has rendered what isn't his."""
    with suppress(OSError):  # nobody reads stderr: that changes neither what was done nor its exit code
        print(line, file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> Console:
    """Respects NO_COLOR, TERM and pipes."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_COLUMNS
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def show(*parts: RenderableType) -> None:
    """Print for people, on stdout."""
    out = console()
    if out.is_terminal:
        for part in parts:
            out.print(part)
        return
    with out.capture() as captured:
        for part in parts:
            out.print(part)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    sys.stdout.flush()


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr while a long thing runs (a line, where a terminal can't); nothing at all unless it is a terminal.

    Gives what changes its words.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    terminal = console(stderr=True)
    if terminal.is_dumb_terminal:
        note(f"{what} …")
        yield lambda _: None
        return
    with terminal.status(what) as status:
        yield status.update


def table(columns: Sequence[str], rows: Sequence[Sequence[RenderableType]], title: str = "") -> Table:
    """A compact table. The last column takes what width is left."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for i, name in enumerate(columns):
        last = i == len(columns) - 1
        made.add_column(name, overflow="fold" if last else "ellipsis", no_wrap=not last)
    for row in rows:
        made.add_row(*row)
    return made


def facts(pairs: Mapping[str, RenderableType]) -> Table:
    """Name and value, one pair a line."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        made.add_row(name, value)
    return made


def styled(word: str, styles: Mapping[str, str]) -> RenderableType:
    from rich.text import Text

    return Text(word, style=styles.get(word, ""))


def first_of(words: Sequence[str], total: int, between: str = " ") -> str:
    """The first of `total` words on one line, and how many more there are."""
    shown = words[:WORDS_SHOWN]
    return between.join(shown) + (f" … and {total - len(shown):,} more" if total > len(shown) else "")


def short(id: str) -> str:
    """An id as people see and type it."""
    from bus.frames import tail

    return tail(id)


# --- streams that fail --------------------------------------------------------------------------------
def prepare_streams() -> None:
    """A stdin, stdout or stderr that was closed (`>&-`) becomes /dev/null, else the next file that is opened takes its number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(fd)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    sys.stdout = cast(TextIO, _Stdout(sys.stdout))


class _Stdout:
    """stdout that remembers why it failed: the error alone doesn't say that it was stdout's, and it may come but once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._noting():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._noting():
            self._stream.flush()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            self.error = e
            raise


def reader_left() -> int:
    """The reader of our pipe is gone: that is its right."""
    _drop_output()
    return Exit.PIPE_CLOSED


def output_error() -> OSError | None:
    """Why stdout took nothing; None if it did, or wasn't prepared. What it didn't take is dropped."""
    error: OSError | None = getattr(sys.stdout, "error", None)
    if error is not None:
        _drop_output()
    return error


def _drop_output() -> None:
    """Without this Python would try again at exit, and complain."""
    with suppress(OSError, ValueError):  # not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
