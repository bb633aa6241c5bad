"""What happens, as it happens: the feed of a project, and the notices to one agent.

Invariant: with --json each line is one frame, whole; a gap in the feed is said, never passed over.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from .call import Call
from .command import MEMORY, command
from .exits import NAMES, Exit
from .output import note, print_json, show
from .render import render_untrusted

if TYPE_CHECKING:
    from bus import Feed, MemoryBus, Notice


def register(app: typer.Typer) -> None:
    command(app, "watch", example="cordon watch --as acme/reader --project p1", panel=MEMORY)(watch)


def watch(
    call: Call,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="End after N lines.")] = None,
    ack: Annotated[bool, typer.Option("--ack", metavar="", help="Acknowledge the notices that are shown.")] = False,
) -> int | None:
    """Print what is new, held or released, live. Ctrl-C ends it.

    The feed names what is new in the project; a notice says that something this agent was served is held, or free again.
    Open notices come first. With --json each line is one frame.
    """
    call.ask_bus(lambda memory: _watch(memory, _Printer(call.json, count), ack))
    return None


class _Printer:
    """Prints frames; `left` counts down to the end, None = never."""

    def __init__(self, json: bool, count: int | None) -> None:
        self._json, self.left = json, count

    def frame(self, frame: Feed | Notice, line: str) -> bool:
        """Whether this was the last one."""
        if self.left == 0:
            return True
        if self._json:
            print_json(frame)
        else:
            show(f"{datetime.now():%H:%M:%S} {line}")
        if self.left is not None:
            self.left -= 1
        return self.left == 0


async def _watch(memory: MemoryBus, out: _Printer, ack: bool) -> None:
    import anyio

    async with anyio.create_task_group() as tasks:

        async def feed() -> None:
            from bus import Unavailable

            frames = memory.feed()
            while True:
                try:
                    async for frame in frames:
                        if out.frame(frame, _feed_line(frame)):
                            tasks.cancel_scope.cancel()
                except Unavailable as e:
                    if e.reason != "feed_gap":
                        raise
                    note(f"cordon: {NAMES[Exit.INCOMPLETE]}: {render_untrusted(str(e))}")

        async def notices() -> None:
            async for notice in memory.notices():
                last = out.frame(notice, f"notice     {notice}")
                if ack:
                    await memory.ack(notice)
                if last:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(feed)
        tasks.start_soon(notices)


def _feed_line(frame: Feed) -> str:
    from bus.frames import tails

    return f"{frame.kind:<10} {frame.project} {frame.classification} @{frame.position} {tails(frame.ids, len(frame.ids))}"
