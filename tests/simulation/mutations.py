"""Faults that are planted in the gatekeeper, to see that the checker can fail. One at a time, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

Plant = Callable[[ExitStack], Any]
PLANTS: Final[dict[str, Plant]] = {}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With the fault of this name ("" = none)."""
    with ExitStack() as stack:
        if name:
            PLANTS[name](stack)
        yield


assert patch
