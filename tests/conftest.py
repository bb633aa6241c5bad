"""Which tests share a process when there are several (`pytest -n 2 --dist loadgroup`): those of a file, and all attacks, since
they share one arena."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

TOGETHER: Final = frozenset({"attacks"})  # folders whose files share what they set up


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        folder = item.path.parent.name
        group = folder if folder in TOGETHER else item.path.relative_to(Path(__file__).parent).as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
