"""The event loop of the gatekeeper's processes: uvloop where it is installed, which takes half of asyncio's time."""

from __future__ import annotations

from typing import Any


def loop_factory() -> Any:
    """For asyncio.Runner; None = asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
