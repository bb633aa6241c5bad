"""Who works at this home, as the record takes it."""

from __future__ import annotations

import getpass
import re
from typing import Final

_UNSAFE: Final = re.compile(r"[^a-z0-9_-]+")


def me() -> str:
    """The login name as an identity token; empty if there is none."""
    try:
        return _UNSAFE.sub("-", getpass.getuser().lower())[:64]
    except (OSError, KeyError):
        return ""
