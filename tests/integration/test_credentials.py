"""The life of a credential: rotated, revoked, suspended, all while everything runs, and the same after a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import bus
from broker_config.control import Control
from broker_config.home import write_private
from bus.errors import Conflict, CordonError, Denied, Rejected
from bus.identity import parse_creds

from .rooms import desk, room
from .scenes import kill_and_wait
from .world import World, running

CUT_S = 1.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as started:
        yield started


QUICK = bus.Timing(request_s=2.0, deadline_s=10.0)


@asynccontextmanager
async def with_file(world: World, creds: Path, project: str) -> AsyncIterator[bus.MemoryBus]:
    async with bus.connect(world.home.url, str(creds), project=project, timing=QUICK) as memory:
        yield memory


async def until_refused(ask: Callable[[], Awaitable[Any]]) -> CordonError:
    """What a client that keeps asking is told in the end; within CUT_S of now."""
    end = time.monotonic() + CUT_S
    while True:
        try:
            await ask()
        except CordonError as e:
            return e
        assert time.monotonic() < end, "still served"


def kept(world: World, name: str, tmp_path: Path) -> Path:
    """A copy of a credential file, as a thief would have it."""
    copy = tmp_path / f"{name}.creds"
    copy.write_text(Path(world.creds(name)).read_text())
    copy.chmod(0o600)
    return copy


def test_a_revoked_agent_is_cut_within_a_second_and_stays_cut_and_what_it_wrote_stays(world: World, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with room(world, "mole", "reader") as (name, m), desk(world, name) as operator:
            mole = f"mole-{name}"
            copy = kept(world, mole, tmp_path)
            note = await m["mole"].write("The lighthouse is dark on Mondays", evidence=["u"])
            async with Control(world.home) as control:
                shown = await control.agent_revoke("acme", mole)
            assert (shown["state"], shown["revoked"]) == ("revoked", shown["keys"])
            refused = await until_refused(lambda: m["mole"].get(note.id))
            assert isinstance(refused, Denied), refused
            assert not Path(world.creds(mole)).exists()
            for restart in (False, True):
                if restart:
                    await kill_and_wait(world, "gatekeeper")
                    await kill_and_wait(world, "broker")
                with pytest.raises(CordonError):
                    async with with_file(world, copy, name) as again:
                        await again.get(note.id)
            item = (await m["reader"].get(note.id)).admitted[0]
            assert item.memory.actor.name == mole
            assert [x.id for x in (await operator.plan(f"agent:{mole}")).members] == [note.id]
            async with Control(world.home) as control:
                with pytest.raises(Conflict) as taken:
                    await control.agent_add("acme", mole, projects=[name])
                assert taken.value.reason == "name_taken"
                assert (await control.agent_revoke("acme", mole))["state"] == "revoked"  # again: harmless
                write_private(Path(world.creds(mole)), copy.read_text())
                with pytest.raises(Denied) as gone:
                    await control.agent_rotate("acme", mole)
                assert gone.value.reason == "agent_revoked"
                assert parse_creds(Path(world.creds(mole)).read_text()).key == parse_creds(copy.read_text()).key

    asyncio.run(scenario())


def test_a_rotated_agent_is_the_same_agent_and_its_old_credential_is_cut(world: World, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with room(world, "ann", "page", page={"role": "ingest"}) as (name, m), desk(world, name) as operator:
            ann = f"ann-{name}"
            source = await m["page"].write("The gateway of Skerry answers on port 8441", evidence=["https://wiki.example"])
            assert (await m["ann"].query("which port does the gateway of Skerry answer on?")).ids == [source.id]
            first = await m["ann"].write("An idempotent note", evidence=["u"], idempotency_key="k-1")
            copy = kept(world, ann, tmp_path)
            async with Control(world.home) as control:
                before = await control.agent_show("acme", ann)
                made = await control.agent_rotate("acme", ann)
                assert made["agent_id"] == before["agent_id"]
                assert (made["revoked"], len(made["keys"])) == ([before["key"]], 2)
            assert isinstance(await until_refused(lambda: m["ann"].get(source.id)), Denied)
            with pytest.raises(CordonError):
                async with with_file(world, copy, name) as thief:
                    await thief.get(source.id)
            new = parse_creds(Path(made["creds"]).read_text())
            assert (new.key, new.projects) == (made["key"], (name,))
            async with with_file(world, Path(made["creds"]), name) as memory:
                same = await memory.write("An idempotent note", evidence=["u"], idempotency_key="k-1")
                assert (same.id, same.duplicate) == (first.id, True)
                restated = await memory.write("Skerry: its gateway answers on port 8441")
                assert (restated.origin, restated.parents[0]) == ("external", source.id)  # the context went along
                case = await operator.hold_now(source.id, "forged")
                assert [n.case for n in (await memory.sync()).notices] == [case.case]
                await kill_and_wait(world, "gatekeeper")
                assert [n.case for n in (await memory.sync()).notices] == [case.case]

    asyncio.run(scenario())


def test_an_old_credential_may_be_kept_until_the_next_rotation(world: World, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with room(world, "bob") as (name, m), Control(world.home) as control:
            bob = f"bob-{name}"
            note = await m["bob"].write("Two keys for a while", evidence=["u"])
            made = await control.agent_rotate("acme", bob, keep_old=True, ttl=3_600)
            assert made["revoked"] == []
            with pytest.raises(Rejected) as wider:  # the old key would still write into the old project
                await control.agent_rotate("acme", bob, keep_old=True, projects=["p1"])
            assert wider.value.reason == "keep_old_not_allowed"
            assert (parse_creds(Path(made["creds"]).read_text()).expires_at or 0) > time.time() + 3_000
            async with with_file(world, Path(made["creds"]), name) as new:
                assert (await new.get(note.id)).ids == (await m["bob"].get(note.id)).ids == [note.id]
                last = await control.agent_rotate("acme", bob)
                assert len(last["revoked"]) == 2
                for old in (m["bob"], new):
                    assert isinstance(await until_refused(lambda old=old: old.get(note.id)), Denied)  # type: ignore[misc]

    asyncio.run(scenario())


def test_a_suspended_tenant_is_cut_whole_and_goes_on_where_it_was(world: World, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Control(world.home) as control:
            await control.tenant_add("umbrella")
            await control.project_add("umbrella", "p1")
            await world.add("agent", "p1", tenant="umbrella")
            gone = await world.add("gone", "p1", tenant="umbrella")
            async with room(world, "other") as (_, m), world.agent("agent", "p1", "umbrella") as agent:
                note = await agent.write("Before the storm", evidence=["u"])
                await control.agent_revoke("umbrella", "gone")
                await control.tenant_suspend("umbrella")
                assert isinstance(await until_refused(lambda: agent.get(note.id)), Denied)
                assert {t["name"]: t["state"] for t in await control.tenant_list()}["umbrella"] == "suspended"
                for act in (control.agent_rotate("umbrella", "agent"), control.agent_add("umbrella", "new", projects=["p1"])):
                    with pytest.raises(Conflict) as suspended:  # it would connect
                        await act
                    assert suspended.value.reason == "tenant_suspended"
                assert (await m["other"].write("The others go on", evidence=["u"])).state == "active"
                await kill_and_wait(world, "gatekeeper")
                with pytest.raises(CordonError):
                    async with with_file(world, Path(world.creds("agent", "umbrella")), "p1") as again:
                        await again.get(note.id)
            assert (await control.tenant_resume("umbrella"))["state"] == "active"
            async with world.agent("agent", "p1", "umbrella") as agent:
                assert (await agent.get(note.id)).ids == [note.id]
            assert control.trust.revocations("umbrella").keys() == {gone.key}

    asyncio.run(scenario())


def test_who_isnt_there_or_has_lost_its_file_is_named(world: World) -> None:
    async def scenario() -> None:
        async with room(world, "carl", "dora") as (name, _), Control(world.home) as control:
            for act in (control.agent_revoke, control.agent_rotate, control.agent_show):
                with pytest.raises(Rejected) as unknown:
                    await act("acme", f"carll-{name}")
                assert (unknown.value.reason, unknown.value.advice) == ("agent_unknown", f"Did you mean 'carl-{name}'?")
            Path(world.creds(f"carl-{name}")).unlink()
            with pytest.raises(Rejected) as lost:
                await control.agent_rotate("acme", f"carl-{name}")
            assert lost.value.reason == "creds_missing"
            write_private(Path(world.creds(f"carl-{name}")), Path(world.creds(f"dora-{name}")).read_text())
            with pytest.raises(Rejected) as foreign:  # its rights would be another's
                await control.agent_rotate("acme", f"carl-{name}")
            assert foreign.value.reason == "creds_foreign"
            with pytest.raises(Rejected):
                await control.tenant_suspend("acmee")

    asyncio.run(scenario())


def test_a_rotation_may_give_other_projects_and_the_ledger_knows_them(world: World, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with room(world, "dora", "reader") as (name, m), Control(world.home) as control:
            dora, more = f"dora-{name}", f"{name}-more"
            await control.project_add("acme", more)
            first = await m["dora"].write("Written in the first project", evidence=["u"], idempotency_key="k-1")
            with pytest.raises(Rejected) as unknown:
                await control.agent_rotate("acme", dora, projects=[name, f"{more}x"])
            assert (unknown.value.reason, unknown.value.advice) == ("project_unknown", f"Did you mean '{more}'?")
            assert (await m["dora"].get(first.id)).ids == [first.id]  # nothing was changed, the key still counts
            before = await control.agent_show("acme", dora)
            made = await control.agent_rotate("acme", dora, projects=[more, name, more])
            assert (made["agent_id"], made["projects"]) == (before["agent_id"], [more, name])
            assert parse_creds(Path(made["creds"]).read_text()).projects == (more, name)
            assert isinstance(await until_refused(lambda: m["dora"].get(first.id)), Denied)
            for restart in (False, True):
                if restart:
                    await kill_and_wait(world, "gatekeeper")
                assert (await control.agent_show("acme", dora))["projects"] == [more, name]
                async with with_file(world, Path(made["creds"]), more) as memory:
                    assert (await memory.write("Written in the second", evidence=["u"])).project == more
                async with with_file(world, Path(made["creds"]), name) as memory:
                    again = await memory.write("Written in the first project", evidence=["u"], idempotency_key="k-1")
                    assert (again.id, again.duplicate) == (first.id, True)
            kept_ones = await control.agent_rotate("acme", dora)
            assert kept_ones["projects"] == [more, name]
            only = await control.agent_rotate("acme", dora, projects=[more])
            with pytest.raises(CordonError) as gone:
                async with with_file(world, Path(only["creds"]), name) as memory:
                    await memory.get(first.id)
            assert isinstance(gone.value, Denied | bus.ConfigError), gone.value
            assert (await control.agent_show("acme", dora))["projects"] == [more]

    asyncio.run(scenario())
