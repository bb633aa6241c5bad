"""Compartments: the projects and users that a text or a context has words of. Kept short, and strict where they would grow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gate.config import COMPARTMENTS_MAX

MANY: Final = "many"  # no project's or user's label: nothing names it as its own, and no policy lets it flow
_ONLY_MANY: Final = frozenset({MANY})


def bounded(labels: Collection[str]) -> Collection[str]:
    """The labels, or `many` alone in place of too many: a label that is kept grows with nobody's number of users."""
    return _ONLY_MANY if len(labels) > COMPARTMENTS_MAX or MANY in labels else labels
