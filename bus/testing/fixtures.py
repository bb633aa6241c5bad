"""Pytest fixtures of the plugin `bus.testing` (`pytest -p bus.testing`).

A conftest may give other projects to both: a fixture `cordon_projects` of session scope.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..errors import ConfigError
from .home import EmbeddedHome, home, require_home
from .rights import Projects
from .world import World, bus


@pytest.fixture(scope="session")
def cordon_projects() -> Projects:
    """Projects of `cordon_bus` and `cordon_home`: names, or names with settings."""
    return ("p1",)


@pytest.fixture
def cordon_bus(cordon_projects: Projects) -> Iterator[World]:
    """A bus in memory, new for each test; works in tests of any event loop, and in tests of none (`blocking`)."""
    with bus(projects=cordon_projects) as world:
        yield world


@pytest.fixture(scope="session")
def cordon_home(cordon_projects: Projects) -> Iterator[EmbeddedHome]:
    """A real home, one for the session. Skips, with the reason, where the gate extra isn't installed."""
    try:
        require_home()
    except ConfigError as e:
        pytest.skip(str(e))
    with home(cordon_projects) as running:
        yield running
