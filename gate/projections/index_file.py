"""A vector index on disk: the library's file and a sidecar with what it holds and its checksum.

Invariant: the sidecar is written last and names the file's sha256, so a pair that a kill tore or that anybody changed is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

FILE_VERSION: Final = 1


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` rows of `dim` numbers, of which `removed` are dead; `position`: the ledger position that they reach to."""

    dim: int
    count: int
    position: int
    removed: list[int]


class _Sidecar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    sha256: str
    about: About


class IndexFileDoubted(Exception):
    """The file can't be trusted: build the index again from the exact vectors."""


def write(path: Path, save: Callable[[str], None], about: About) -> None:
    """Have `save` write the index to the path it is given, then put file and sidecar in place."""
    draft = path.with_name(path.name + ".part")
    save(str(draft))
    sidecar = msgspec.json.encode(_Sidecar(FILE_VERSION, _digest(draft), about))
    _put(draft, path)
    draft.write_bytes(sidecar)
    _put(draft, _sidecar_path(path))


def read(path: Path) -> About | None:
    """What a file holds, its checksum verified; None if there is none. IndexFileDoubted otherwise."""
    try:
        sidecar = msgspec.json.decode(_sidecar_path(path).read_bytes(), type=_Sidecar)
        digest = _digest(path)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise IndexFileDoubted(str(error)) from error
    if sidecar.version != FILE_VERSION:
        raise IndexFileDoubted(f"version {sidecar.version}, this program writes {FILE_VERSION}")
    if digest != sidecar.sha256:
        raise IndexFileDoubted("its checksum is wrong")
    return sidecar.about


def _sidecar_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put(draft: Path, path: Path) -> None:
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(draft, path)
