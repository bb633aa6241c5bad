"""Named SQL: files under sql/ hold `-- name: <name>`, one line that says what it is for, and the statement.

Invariant: every statement has a name, a description and exactly one place; a file that breaks this is refused at import.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


class NamedQuery(NamedTuple):
    name: str
    description: str
    sql: str


def load_queries(file: str) -> dict[str, NamedQuery]:
    """The statements of sql/<file>.sql, in file order. ValueError: no description, no statement, or a name used twice."""
    parts = _NAME.split(files(__package__).joinpath("sql", f"{file}.sql").read_text(encoding="utf-8"))
    found: dict[str, NamedQuery] = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        first, _, sql = text.strip().partition("\n")
        if not first.startswith("-- ") or not sql.strip() or name in found:
            raise ValueError(f"sql/{file}.sql: query {name} needs a description line, a statement and a name of its own")
        found[name] = NamedQuery(name, first[3:], sql.strip().rstrip(";"))
    return found
