"""What can have happened to a store's file while its home was down. Each takes the file, and a copy of it from an earlier day."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import duckdb

Damage = Callable[[Path, Path], None]


def missing(path: Path, early: Path) -> None:
    """With its write-ahead log."""
    for side in path.parent.glob(path.name + "*"):
        side.unlink()


def flipped(path: Path, early: Path) -> None:
    """Every 16th byte of the first pages."""
    data = bytearray(path.read_bytes())
    for at in range(0, min(len(data), 3 * 4096), 16):
        data[at] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path, early: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def emptied(path: Path, early: Path) -> None:
    os.truncate(path, 0)


def other_version(path: Path, early: Path) -> None:
    change(path, "UPDATE position SET schema = 99", "UPDATE about SET schema = 99")


def behind(path: Path, early: Path) -> None:
    missing(path, early)
    shutil.copy(early, path)


def change(path: Path, sqlite: str, duck: str) -> None:
    """One statement: the first in a catalog, the second in the lineage store."""
    if path.suffix == ".sqlite":
        with sqlite3.connect(path) as db:
            db.execute(sqlite)
        db.close()
        return
    with duckdb.connect(str(path)) as store:
        store.execute(duck)
