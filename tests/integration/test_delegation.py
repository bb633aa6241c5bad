"""The life of a delegated credential over a real home: kills, restarts, an issuer that is away, and the end of its time."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import bus
from broker_config import supervisor
from broker_config.control import Control
from broker_config.home import Home, write_private
from broker_config.processes import spawn, stop_child
from bus.delegation import signed
from bus.errors import CordonError, Denied, Unavailable
from bus.frames import Delegate, encode
from bus.identity import Keypair, keypair

from .rooms import room
from .scenes import kill_and_wait
from .world import World, running, until

QUICK = bus.Timing(request_s=2.0, deadline_s=10.0)
CUT_S = 1.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Of its own: its processes are killed."""
    with running() as started:
        yield started


@asynccontextmanager
async def connected(world: World, creds: str, timing: bus.Timing | None = None) -> AsyncIterator[bus.MemoryBus]:
    async with bus.connect(world.home.url, creds, timing=timing) as memory:
        yield memory


async def refusal(world: World, creds: str) -> CordonError:
    """What the holder of a credential that is cut is told."""
    with pytest.raises(CordonError) as refused:
        async with connected(world, creds, QUICK) as memory:
            await memory.query("anything")
    return refused.value


@pytest.mark.slow
def test_a_family_and_its_end_survive_kill_9_of_every_process(world: World) -> None:
    async def scenario() -> None:
        async with room(world, "chief", "other") as (name, m):
            chief = await m["chief"].write("The tide table of Skerry is wrong in March", evidence=["u"])
            child = await m["chief"].delegate("kid", verbs=["write", "query", "delegate"])
            stranger = await m["other"].delegate("kid", verbs=["query"])
            async with connected(world, child.creds) as memory:
                grandchild = await memory.delegate("kid", verbs=["write", "query"])
                source = await memory.write("Harbour fees of Skerry are 12 crowns", origin="external")
            for process in ("gatekeeper", "broker", "issuer"):
                await kill_and_wait(world, process)
            async with connected(world, grandchild.creds) as memory:
                copy = await memory.write("Harbour fees of Skerry are 12 crowns")
                assert copy.actor.chain == [chief.actor.id, child.said.id]
                assert (copy.origin, copy.parents) == ("external", [source.id])  # the family's head is as it was
            async with Control(world.home) as control:
                shown = await control.agent_revoke("acme", f"chief-{name}")
            assert shown["fallen"] == [child.name, grandchild.name]
            for killed in ("", "gatekeeper", "broker"):
                if killed:
                    await kill_and_wait(world, killed)
                for creds in (child.creds, grandchild.creds):
                    assert isinstance(await refusal(world, creds), Denied)
            async with connected(world, stranger.creds) as memory:
                writers = {x.memory.actor.name for x in (await memory.query("harbour fees of Skerry")).admitted}
                assert writers >= {child.name, grandchild.name}

    asyncio.run(scenario())


@pytest.mark.slow
def test_without_its_issuer_a_home_serves_and_delegates_again_when_it_is_back(world: World) -> None:
    async def scenario() -> None:
        async with room(world, "chief") as (name, m):
            stopped, keeper = world.pid("issuer"), world.pid("supervisor")
            seed = Keypair(world.agents[f"chief-{name}"].seed)

            async def asked() -> dict[str, Any]:
                wish = signed(Delegate(name="kid", key=keypair("user").public, at=int(time.time())), seed)
                async with world.raw(f"chief-{name}") as nc:
                    return await world.request(nc, f"chief-{name}", "delegate", encode(wish), name)

            await m["chief"].delegate("first")  # a home is ready before its issuer is, and what isn't there can't be silent
            os.kill(stopped, signal.SIGSTOP)
            try:
                answer = await asked()
                assert (answer["type"], answer["reason"]) == ("refusal", "issuer_silent")
                with pytest.raises(Unavailable) as hung:  # it doesn't pass by itself, so the client tries no longer
                    await m["chief"].delegate("kid")
                assert hung.value.reason == "issuer_silent"
                async with Control(world.home) as control:
                    assert any("issuer gave no answer" in x for x in (await control.status())["troubles"])
                assert (await m["chief"].write("The home serves on")).state == "active"
            finally:
                os.kill(stopped, signal.SIGCONT)
            os.kill(keeper, signal.SIGSTOP)
            try:
                os.kill(stopped, signal.SIGKILL)
                async with asyncio.timeout(20):
                    while (reason := (await asked())["reason"]) == "issuer_silent":  # until the broker has seen it go
                        pass
                assert reason == "issuer_unreachable"
            finally:
                os.kill(keeper, signal.SIGCONT)
            child = await m["chief"].delegate("kid")  # its client tries again until another issuer is there
            assert world.pid("issuer") != stopped
            async with connected(world, child.creds) as memory:
                assert (await memory.write("And so does the issuer")).actor.name == child.name

    asyncio.run(scenario())


def test_an_issuer_without_its_keys_says_so_and_what_the_operator_does_not_that_the_agent_lied(shared_world: World) -> None:
    """And it signs again as soon as they are back."""
    world = shared_world
    folder = world.home.issuer_trust("acme")

    async def scenario() -> None:
        async with room(world, "chief") as (_, m):
            for path in (folder / "role-agent.nk", world.home.registry):
                whole = path.read_bytes()
                for spoilt in (None, b"garbage"):
                    path.unlink() if spoilt is None else path.write_bytes(spoilt)
                    try:
                        with pytest.raises(Unavailable) as refused:
                            await m["chief"].delegate("kid")
                        assert refused.value.reason == "issuer_without_keys"
                        assert "operator" in refused.value.advice
                        async with Control(world.home) as control:
                            named = str(path.relative_to(world.home.path))
                            assert any(named in x for x in (await control.status())["troubles"])
                    finally:
                        write_private(path, whole.decode())
            assert (await m["chief"].delegate("kid")).said.role == "agent"
            async with Control(world.home) as control:
                assert not any("nobody can delegate" in x for x in (await control.status())["troubles"])

    asyncio.run(scenario())


@pytest.mark.slow
def test_children_of_an_issuer_whose_keys_were_lost_end_with_them_and_the_next_ones_share_the_same_head(world: World) -> None:
    async def scenario() -> None:
        async with room(world, "chief") as (_, m):
            old = await m["chief"].delegate("old", verbs=["write", "query"])
            async with connected(world, old.creds) as memory:
                source = await memory.write("Pilot dues of Skerry are 40 crowns", origin="external")
            registry, folder = world.home.registry.read_text(), world.home.issuer_trust("acme")
            shutil.rmtree(folder)
            async with Control(world.home) as control:
                await control.tenant_add("acme")  # makes what is missing
            assert isinstance(await refusal(world, old.creds), Denied)
            new = await m["chief"].delegate("new", verbs=["write", "query"])
            async with connected(world, new.creds) as memory:
                copy = await memory.write("Pilot dues of Skerry are 40 crowns")
                assert (copy.origin, copy.parents) == ("external", [source.id])
            write_private(world.home.registry, registry)  # as it was, in which the lost keys count and the new ones don't
            await kill_and_wait(world, "gatekeeper")
            for creds in (old.creds, new.creds):
                assert isinstance(await refusal(world, creds), Denied)
            async with Control(world.home) as control:
                await control.tenant_add("acme")
                assert isinstance(await refusal(world, old.creds), Denied)
                async with connected(world, new.creds) as memory:
                    assert copy.id in (await memory.query("pilot dues of Skerry")).ids
                assert (await control.agent_revoke("acme", old.name))["state"] == "revoked"
            assert (await m["chief"].query("pilot dues of Skerry")).admitted, "what they wrote stays"

    asyncio.run(scenario())


def test_a_childs_time_ends_it_within_a_second(shared_world: World) -> None:
    world = shared_world

    async def scenario() -> None:
        async with room(world, "chief") as (name, m):
            child = await m["chief"].delegate("kid", ttl=3)
            ends = served = time.time() + 3
            async with connected(world, child.creds, QUICK) as memory:
                assert (await memory.write("Still here")).state == "active"
                with suppress(CordonError):
                    while served < ends + CUT_S:
                        await memory.query("anything")
                        served = time.time()
            assert served < ends + CUT_S
            assert isinstance(await refusal(world, child.creds), Denied)
            async with Control(world.home) as control:
                assert (await control.agent_show("acme", child.name))["state"] == "expired"
            again = await m["chief"].delegate("kid2", ttl=60)
            async with connected(world, again.creds) as memory:
                assert (await memory.write("A new one")).actor.name == f"chief-{name}--kid2"

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_issuer_that_keeps_dying_is_left_alone_and_the_home_serves_on(world: World, tmp_path: Path) -> None:
    """And one that runs elsewhere, from the least that it needs, takes over. The last of this file: the home's own is gone."""
    creds, elsewhere = world.home.core_creds("issuer"), Home(tmp_path / "elsewhere")
    for path in (world.home.config, world.home.registry, world.home.operator_jwt, creds):
        copy = elsewhere.path / path.relative_to(world.home.path)
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copy(path, copy)
    shutil.copytree(world.home.trust / "issuer", elsewhere.trust / "issuer")
    creds.write_text("damaged")

    async def scenario() -> None:
        def given_up() -> bool:
            status = supervisor.read_status(world.home)
            return status is not None and status.error is not None and status.error.reason == "issuer_keeps_dying"

        async with room(world, "chief") as (_, m):
            os.kill(world.pid("issuer"), signal.SIGKILL)
            await until(given_up, "the supervisor gives up", 30.0)
            status = supervisor.read_status(world.home)
            assert status is not None
            assert (status.state, "issuer" in status.pids) == ("ready", False)
            assert (await m["chief"].write("The home serves on")).state == "active"
            child = spawn(
                [sys.executable, "-m", "broker_config.issuer_process", "--home", str(elsewhere.path)],
                tmp_path / "issuer.log",
                {"CORDON_URL": world.home.url},
            )
            try:
                assert (await m["chief"].delegate("kid")).said.role == "agent"
            finally:
                stop_child(child, 5.0)

    asyncio.run(scenario())
