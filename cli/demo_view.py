"""The demo while it runs, on a terminal's stderr: who wrote, who was served what, what was withheld and why.

Invariant: nothing is drawn unless stderr is a terminal; texts of agents and scenarios are rendered harmless.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .output import console, table
from .render import render_untrusted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agents_demo.harness import Watch
    from agents_demo.truth import Event

LINES: Final = 8  # of what happened last
TEXT_CHARS: Final = 90
FRAMES_PER_S: Final = 8


@dataclass(slots=True)
class Tally:
    """What one agent did and got in this run."""

    wrote: int = 0
    poisoned: int = 0
    served: int = 0
    served_poison: int = 0
    withheld: Counter[str] = field(default_factory=Counter)


class View:
    """What is on the screen; `tell` takes what happened."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._begin()

    def _begin(self) -> None:
        self.agents: dict[str, Tally] = {}
        self._poisoned: set[str] = set()
        self._lines.clear()

    def tell(self, event: Event) -> None:
        """Enter one event; the first of a run clears what the last run left."""
        if event.n == 0:
            self._begin()
        self._poisoned.update(event.poisoned)
        tally = self.agents.setdefault(event.agent, Tally())
        tally.wrote += len(event.wrote)
        tally.poisoned += len(event.poisoned)
        tally.served += len(event.served)
        tally.served_poison += sum(seen.id in self._poisoned for seen in event.served)
        tally.withheld.update(event.withheld)
        self._lines.append(_line(event))

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        rows = [
            (
                Text(render_untrusted(name)),
                _count(t.wrote, t.poisoned),
                _count(t.served, t.served_poison),
                Text(", ".join(f"{n} {render_untrusted(why).replace('_', ' ')}" for why, n in t.withheld.most_common())),
            )
            for name, t in self.agents.items()
        ]
        seen = table(["agent", "wrote (poison)", "was served (poison)", "withheld from it"], rows)
        return Group(seen, *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._lines))


def _count(all_: int, poison: int) -> RenderableType:
    from rich.text import Text

    return Text.assemble(str(all_), (f" ({poison})", "red") if poison else "")


def _line(event: Event) -> str:
    """What happened, in one line."""
    mark = "! " if event.poisoned or event.on_poison else "  "
    held = " [held for review]" if any(w.state == "held" for w in event.wrote) else ""
    return f"{mark}{render_untrusted(event.agent)} {event.do}: {_what(event)}{held}"


def _what(event: Event) -> str:
    if event.call is None:
        return render_untrusted(event.wrote[0].content if event.wrote else event.about, TEXT_CHARS)
    value = event.call.value
    said = "asks a person" if value is None else f"uses {render_untrusted(value, TEXT_CHARS)}"
    return f"{render_untrusted(event.call.tool)}: {said}"


@contextmanager
def view() -> Iterator[Watch]:
    """Where the harness tells what happens."""
    if not sys.stderr.isatty():
        yield lambda moment: None
        return
    from rich.live import Live
    from rich.text import Text

    seen = View()
    with Live(console=console(stderr=True), refresh_per_second=FRAMES_PER_S, transient=True) as live:

        def watch(moment: str | Event) -> None:
            if isinstance(moment, str):
                live.console.print(Text(f"· {render_untrusted(moment)}", style="bold"))
            else:
                seen.tell(moment)
                live.update(seen.render())

        yield watch
