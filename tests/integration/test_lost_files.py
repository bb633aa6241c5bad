"""Files of a home that are lost or cut short while it is down: the next start names them, and makes no others in their place."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config import supervisor
from broker_config.control import Control
from broker_config.home import Home
from bus.errors import ConfigError

from .world import UP_S, World, running

pytestmark = pytest.mark.slow

GONE, EMPTY = "gone", "empty"


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """A copy of a home that is down, with a tenant and a memory; the home itself stands beside it."""
    with running() as world:

        async def live() -> None:
            await world.add("writer")
            async with world.agent("writer") as writer:
                await writer.write("A heron was ringed at the weir")

        asyncio.run(live())
        supervisor.stop(world.home)
        yield Path(shutil.copytree(world.home.path, world.home.path.parent / "whole"))


def put_back(whole: Path) -> World:
    home = Home(whole.parent / "home")
    supervisor.stop(home)
    shutil.rmtree(home.path)
    shutil.copytree(whole, home.path)
    return World(home)


def damage(home: Home, *names: str, how: str = GONE) -> None:
    for name in names:
        path = home.path / name
        if how == EMPTY:
            path.write_bytes(b"")
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def seeds(home: Home) -> dict[str, bytes]:
    return {str(p.relative_to(home.path)): p.read_bytes() for p in home.secrets()}


def start(home: Home) -> tuple[str, str]:
    """(reason, message) of what keeps the home from serving; nothing if it serves."""
    try:
        status = supervisor.start(home, detach=True, ready_timeout_s=UP_S)
    except ConfigError as e:
        return e.reason, e.message
    return (status.error.reason, status.error.message) if status.error else ("", "")


@pytest.mark.parametrize(
    ("lost", "how", "reason"),
    [
        (("trust/operator.jwt",), GONE, "trust_lost"),
        (("trust/operator.jwt", "shards"), GONE, "trust_lost"),
        (("trust",), GONE, "trust_lost"),
        (("trust/operator.jwt",), EMPTY, "trust_damaged"),
        (("trust/core/account.jwt",), GONE, "trust_damaged"),
        (("trust/registry.jwt",), GONE, "registry_damaged"),
        (("creds/_core/gatekeeper.creds",), GONE, "file_missing"),
        (("trust/tenants/acme/user-ids.key",), EMPTY, "trust_lost"),
        (("shards", "broker/js"), GONE, "stream_missing"),
        (("shards", "run", "policy", "broker/server.conf"), GONE, ""),
    ],
)
def test_what_is_lost_is_named_and_never_made_anew_in_the_place_of_what_was_there(
    whole: Path, lost: tuple[str, ...], how: str, reason: str
) -> None:
    home = put_back(whole).home
    damage(home, *lost, how=how)
    left = seeds(home)
    try:
        found, message = start(home)
        assert found == reason, message
        assert not reason or reason == "stream_missing" or Path(lost[0]).name in message
        assert seeds(home) == left, "no key was made or written over"
        if reason == "stream_missing":
            assert not home.streams(0).exists()
    finally:
        supervisor.stop(home)


def test_a_tenant_whose_key_is_lost_gets_no_other_one(whole: Path) -> None:
    world = put_back(whole)
    key = world.home.tenant_trust("acme") / "account.nk"
    kept = key.read_bytes()
    damage(world.home, "trust/tenants/acme/account.nk")
    left = seeds(world.home)
    assert start(world.home) == ("", "")

    async def again() -> None:
        async with Control(world.home) as control:
            with pytest.raises(ConfigError) as refused:
                await control.tenant_add("acme")
            assert refused.value.reason == "trust_lost"
            assert seeds(world.home) == left, "the key of its end users' ids, above all"
            key.write_bytes(kept)
            key.chmod(0o600)
            await control.tenant_add("acme")
        async with world.agent("writer") as writer:
            assert (await writer.query("heron")).admitted

    try:
        asyncio.run(again())
    finally:
        supervisor.stop(world.home)
