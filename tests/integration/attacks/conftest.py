"""The one arena of the suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..world import World
from .arena import Arena


@pytest.fixture(scope="package")
def arena(shared_world: World) -> Iterator[Arena]:
    made = Arena(shared_world)
    with made.runner:
        made.run(made.build())
        yield made
        made.run(made.close())


@pytest.fixture(autouse=True)
def _guests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whoever a test lets in leaves at its end."""
    yield
    if "arena" in request.fixturenames:
        arena: Arena = request.getfixturevalue("arena")
        arena.run(arena.see_off())
