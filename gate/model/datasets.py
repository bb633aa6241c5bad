"""Where training and evaluation data are. None of it is part of the project; nothing at run time reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_DEFAULT: Final = Path(__file__).parents[3] / "shared" / "data"


class DataMissing(Exception):
    """A data file is not there; the message says which and what to do."""


def data_file(name: str) -> Path:
    """The path of `folder/file` under `CORDON_DATA` (by default ../shared/data beside the repository). Raises `DataMissing`."""
    path = Path(os.environ.get("CORDON_DATA") or _DEFAULT) / name
    if not path.exists():
        raise DataMissing(f"{path} is not there: set CORDON_DATA to the folder that holds {name.partition('/')[0]}/")
    return path


def json_lines(name: str) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file. Raises `DataMissing`."""
    with data_file(name).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
