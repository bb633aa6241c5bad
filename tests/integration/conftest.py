"""One shared home for the tests that only read and write; tests that kill or stop things make their own with `running()`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .world import World, running


@pytest.fixture(scope="session")
def shared_world() -> Iterator[World]:
    with running() as world:
        yield world
