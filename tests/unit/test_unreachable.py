"""Servers that aren't there: commands say so and end, processes that wait for them don't fill their log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from broker_config.connection import connected
from broker_config.home import Home, free_port
from broker_config.trust import Trust
from bus.errors import Unavailable
from bus.servers import TROUBLE_AGAIN_S, Troubles, servers
from gate.paths import Paths
from gate.verifying.run import Asked, verify

PATIENCE_S = 30.0  # far above the one connection's time, far below what nats-py would try by itself


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("away") / "home")
    home.create()
    Trust(home, lambda: 1_800_000_000.0).create()
    return home


def test_a_command_names_the_server_that_is_away_and_ends(home: Home) -> None:
    url = f"nats://127.0.0.1:{free_port()}"

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), connected(url, home.core_creds("admin")):
            pass

    with pytest.raises(Unavailable, match="ConnectionRefusedError") as refused:
        asyncio.run(scenario())
    assert (refused.value.reason, url in refused.value.message) == ("broker_unreachable", True)


def test_a_verification_of_servers_that_are_away_ends(home: Home) -> None:
    where = servers(f"nats://127.0.0.1:{free_port()}")

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await verify(Paths(home.path), where, Asked(), lambda *_: None, live=False, elsewhere=True)

    with pytest.raises(Unavailable) as refused:
        asyncio.run(scenario())
    assert refused.value.reason == "broker_unreachable"


def test_the_same_trouble_is_logged_again_after_a_while_and_another_at_once(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    troubles = Troubles(logging.getLogger("away"), clock=lambda: now)

    async def scenario() -> None:
        nonlocal now
        for text in ("refused", "refused", "reset", "reset"):
            await troubles.told(OSError(text))
        now = TROUBLE_AGAIN_S
        await troubles.told(OSError("reset"))

    with caplog.at_level(logging.WARNING, logger="away"):
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["broker: refused", "broker: reset", "broker: reset"]
