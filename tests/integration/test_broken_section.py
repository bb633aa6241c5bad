"""A tenant's section that isn't what was written stops that tenant, and nobody else; a lost record of reads says its way out."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator

import pytest

import bus
from broker_config import gate_runs, supervisor
from broker_config.control import Control
from broker_config.home import Home
from broker_config.trust import Trust
from gate import ids
from gate.ledger import events as E
from gate.ledger.block import decode
from gate.ledger.replay import read_blocks
from gate.verifying.survey import Survey

from .scenes import broker_alone
from .stored import any_right, core_client
from .test_recovery import _cordon, _start
from .world import World, running, verified

pytestmark = pytest.mark.slow
OTHER = "beta"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:
        asyncio.run(_populate(world))
        supervisor.stop(world.home)
        shutil.copytree(world.home.broker_js, world.home.path.parent / "js")
        shutil.copytree(world.home.shard(0), world.home.path.parent / "shard")
        yield world


async def _populate(world: World) -> None:
    async with Control(world.home) as control:
        await control.tenant_add(OTHER)
        await control.project_add(OTHER, "p1")
    await world.add("writer", "p1")
    await world.add("beta", "p1", tenant=OTHER)
    async with world.agent("writer") as writer, world.agent("beta", tenant=OTHER) as beta:
        for i in range(6):
            await asyncio.gather(writer.write(f"Acme fact {i}"), beta.write(f"Beta fact {i}"))
            await asyncio.gather(writer.query("fact"), beta.query("fact"))


def _as_it_was(world: World) -> None:
    supervisor.stop(world.home)
    for name, target in (("js", world.home.broker_js), ("shard", world.home.shard(0))):
        shutil.rmtree(target)
        shutil.copytree(world.home.path.parent / name, target)
    shutil.rmtree(world.home.run, ignore_errors=True)


def _replace(home: Home, stream: str, edit: dict[int, bytes]) -> list[bytes]:
    """What is in a stream of a home that is down; with `edit` it is made anew with these blocks in the place of those."""

    async def scenario() -> list[bytes]:
        async with any_right(home) as nc:
            blocks = [data async for _, data in read_blocks(nc, stream)]
            if edit:
                js = nc.jetstream()
                config = (await js.stream_info(stream)).config
                assert config.subjects
                await js.delete_stream(stream)
                await js.add_stream(config)
                for no, data in enumerate(blocks, 1):
                    await js.publish(config.subjects[0], edit.get(no, data))
            return blocks

    with broker_alone(home):
        return asyncio.run(scenario())


def _changed_body(blocks: list[bytes], account: str) -> tuple[int, int, bytes]:
    """(block, event, bytes) with one bit of the third memory of `account` changed."""
    seen = 0
    for no, data in enumerate(blocks, 1):
        for section in decode(data).sections:
            for seq, (meta, body) in enumerate(section.events, section.seq):
                if section.tenant == account and body is not None and b"memory_written" in meta:
                    seen += 1
                    if seen == 3:
                        forged = bytearray(data)
                        forged[data.index(body) + 50] ^= 1
                        return no, seq, bytes(forged)
    raise AssertionError("no such memory")


def test_a_changed_memory_stops_its_tenant_while_the_others_write_and_read(world: World) -> None:
    _as_it_was(world)
    home = world.home
    account = Trust(home, lambda: 0.0).tenant("acme").account
    no, seq, forged = _changed_body(_replace(home, "LEDGER_0", {}), account)
    _replace(home, "LEDGER_0", {no: forged})
    assert _start(home).state == "ready"

    async def scenario() -> None:
        async with world.agent("writer") as writer, world.agent("beta", tenant=OTHER) as beta, world.desk() as desk:
            assert (await beta.write("Beta goes on")).state == "active"
            assert (await beta.query("Beta goes on")).ids
            for call in (writer.write("Acme goes on"), writer.query("fact"), desk.hold_now("agent:writer", "why")):
                with pytest.raises(bus.Denied) as refused:
                    await call
                assert refused.value.reason == "tenant_broken"
            first = next(e for a, e, _ in (await _memories_before(home, no)) if a == account)
            assert (await desk.why(first)).sentences
            found = (await verified(home))["findings"]
            assert any(f"block {no}: the body of event {seq}" in x for x in found), found
        async with Control(home) as control:
            assert (await control.status())["broken"] == {"acme": seq}

    asyncio.run(scenario())
    supervisor.stop(home)


async def _memories_before(home: Home, no: int) -> list[tuple[str, str, int]]:
    """(account, memory id, event) of the memories in the blocks before `no`."""
    found = []
    async with core_client(home) as nc:
        async for _, data in read_blocks(nc, "LEDGER_0", 1, no - 1):
            for section in decode(data).sections:
                for seq, (meta, _) in enumerate(section.events, section.seq):
                    event = E.decode_event(meta)
                    if isinstance(event, E.MemoryWritten):
                        found.append((section.tenant, ids.text("mem_", event.id), seq))
    return found


def test_a_changed_header_is_nobody_s_alone_and_stops_the_shard(world: World) -> None:
    _as_it_was(world)
    blocks = _replace(world.home, "LEDGER_0", {})
    told: list[str] = []
    survey = Survey("LEDGER_0", told.append)
    for no, data in enumerate(blocks, 1):
        forged = bytearray(data)
        if no == 5:
            at = data.index(b"\xa2ms") + 8  # a byte of its time
            forged[at] ^= 1
        survey.block(no, bytes(forged))
    assert told
    assert survey.confined() == {}


def test_reads_that_are_missing_in_the_middle_stop_the_shard_until_a_person_accepts_it(world: World) -> None:
    _as_it_was(world)
    home = world.home

    async def delete() -> None:
        async with any_right(home) as nc:
            answer = await nc.request("$JS.API.STREAM.MSG.DELETE.READS_0", b'{"seq": 3}')
            assert b'"success":true' in answer.data, answer.data

    with broker_alone(home):
        asyncio.run(delete())
    status = _start(home)
    assert (status.state, status.error.reason if status.error else "") == ("degraded", "ledger_went_back")
    assert status.error is not None
    assert "Block 3 of READS_0 is missing" in status.error.message
    assert "--accept-ledger" in status.error.advice
    supervisor.stop(home)
    assert _cordon(home, "rebuild")[0] != 0
    assert _cordon(home, "rebuild", "--accept-ledger", "jo")[0] == 0
    assert _start(home).state == "ready"
    assert asyncio.run(verified(home))["findings"] == []
    supervisor.stop(home)
    assert _start(home).state == "ready"  # and stays accepted
    supervisor.stop(home)


def test_a_verification_outlives_a_gatekeeper_that_is_killed_meanwhile_and_gives_up_when_none_comes(world: World) -> None:
    _as_it_was(world)
    home = world.home
    assert _start(home).state == "ready"
    world.kill9("gatekeeper")  # it is asked while it starts again
    ended = gate_runs.run_gate(home, "--verify", "--live")
    assert (ended.code, ended.last["findings"]) == (0, [])
    supervisor.stop(home)
    with broker_alone(home):
        ended = gate_runs.run_gate(home, "--verify", "--live")
    assert (ended.code, ended.last["reason"]) == (69, "gatekeeper_silent")
