"""Projections of the ledger: catalog (SQLite), lexical postings, vectors, lineage (DuckDB). None is a source of truth.

Each file keeps its position in the ledger in the transaction of its rows, so that a block is applied exactly once. One that can't
be trusted is never repaired: `ProjectionUnusable` says why, `set_aside` moves it away, and its owner rebuilds it from the ledger.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Literal

from bus.errors import CordonError

_log = logging.getLogger(__name__)

Doubt = Literal["damaged", "schema", "stream"]
COMPANIONS = ("", "-wal", "-shm", "-journal", ".wal")  # SQLite's and DuckDB's side files


class ProjectionUnusable(CordonError):
    """A projection's file can't be used. `reason`: damaged, schema (another version) or stream (it belongs to another ledger)."""

    def __init__(self, path: Path, reason: Doubt, detail: str) -> None:
        super().__init__(
            f"The projection {path.name} can't be used ({reason}: {detail}).",
            reason=reason,
            advice="Set it aside and rebuild it from the ledger; the ledger itself is not affected.",
        )
        self.path = path
        self.detail = detail


class ProjectionUnwritable(CordonError):
    """A projection's file is sound and can't be written: a full disk, no right, no file descriptor left. It passes by itself."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"The projection {path.name} can't be written ({detail}).",
            reason="store_unwritable",
            advice="Free disk space, or see who may write there; it is tried again by itself.",
        )
        self.path = path


def set_aside(path: Path, aside_dir: Path) -> list[Path]:
    """Move a file and its side files into `aside_dir`, never over something there. Returns where they are now; logs each."""
    aside_dir.mkdir(parents=True, exist_ok=True)
    moved: list[Path] = []
    for suffix in COMPANIONS:
        source = path.with_name(path.name + suffix)
        if source.exists():
            target = _free_name(aside_dir / source.name)
            os.replace(source, target)
            _log.warning("projection set aside: %s is now %s", source, target)
            moved.append(target)
    return moved


def _free_name(wanted: Path) -> Path:
    target, n = wanted, 1
    while target.exists():
        target, n = wanted.with_name(f"{wanted.name}.{n}"), n + 1
    return target
