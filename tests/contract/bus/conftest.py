"""Each test that takes an arena runs twice: on the twin and on a real home."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import bus.testing
from tests.integration.world import World, running

from .arena import Arena, HomeArena, TwinArena


@pytest.fixture(scope="session")
def real_home() -> Iterator[World]:
    with running() as world:
        yield world


@pytest.fixture
def twin() -> Iterator[TwinArena]:
    with bus.testing.bus(projects=("p1", "p2")) as world:
        yield TwinArena(world)


@pytest.fixture(params=["twin", "home"])
def arena(request: pytest.FixtureRequest) -> Arena:
    if request.param == "twin":
        found: Arena = request.getfixturevalue("twin")
        return found
    return HomeArena(request.getfixturevalue("real_home"))
