"""What tests of the whole do again and again in a world: bring a document in, let an agent be served it, kill and wait; and the
gatekeeper in the test's own process, on the home's real broker, where a test must see live state or set the clock.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

import bus
from broker_config import supervisor
from broker_config.control import Control
from broker_config.home import Home
from broker_config.server import start_server, stop_server
from bus.frames import AdmProject, Receipt, decode_reply
from bus.servers import servers
from gate.paths import Paths
from gate.service import listen, opened
from gate.shard import Shard

from .world import World

EXTERNAL = 0.25  # what the gatekeeper trusts an ingested document that names its source
OWN = 0.4  # an agent's own sentence without a source

_WRITE = """
import asyncio, bus, msgspec, sys
async def main():
    async with bus.connect() as memory, memory.run(sys.argv[2]):
        print(msgspec.json.encode(await memory.write(sys.argv[1])).decode())
asyncio.run(main())
"""


async def document(world: World, name: str, text: str, project: str = "p1") -> str:
    """A document from outside, ingested by an agent of its own; its id."""
    await world.add(f"{name}-ingest", project, role="ingest")
    async with world.agent(f"{name}-ingest", project) as ingest:
        receipt = await ingest.write(text, evidence=[f"https://wiki.example/{name}"])
    assert (receipt.trust, receipt.origin, receipt.state) == (EXTERNAL, "external", "active")
    return receipt.id


@asynccontextmanager
async def served(world: World, name: str, id_: str, question: str, *projects: str) -> AsyncIterator[bus.MemoryBus]:
    """A new agent that has just been served `id_` in its first project, in run a."""
    await world.add(name, *projects)
    async with world.agent(name, (*projects, "p1")[0]) as memory:
        async with memory.run("a"):
            assert id_ in (await memory.query(question)).ids
        yield memory


async def in_another_process(world: World, name: str, text: str, run: str, project: str = "p1") -> Receipt:
    """A write by a client process that knows nothing of an earlier one."""
    env = {**os.environ, "CORDON_URL": world.home.url, "CORDON_CREDS": world.creds(name), "CORDON_PROJECT": project}
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", _WRITE, text, run, env=env, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()
    assert child.returncode == 0
    receipt: Receipt = decode_reply(out)
    return receipt


async def add_project(world: World, name: str, **settings: object) -> None:
    async with Control(world.home) as control:
        await control.project_add("acme", name, settings)


async def set_project(world: World, name: str, **settings: object) -> None:
    async with Control(world.home) as control:
        account = control.trust.tenant("acme").account
        await control._ask(AdmProject(action="set", account=account, name=name, settings=settings))


async def kill_and_wait(world: World, process: str) -> None:
    """kill -9, and wait until another one of it runs and the home is ready."""
    was = world.pid(process)
    world.kill9(process)
    await world.ready_again(was, process)


# --- without the home's own processes -----------------------------------------------------------------
@contextmanager
def broker_alone(home: Home) -> Iterator[None]:
    """The home's broker without a gatekeeper. The home is down before and after."""
    supervisor.stop(home)
    child = start_server(home)
    try:
        yield
    finally:
        stop_server(child, home)


@asynccontextmanager
async def in_process(home: Home) -> AsyncIterator[Shard]:
    """A gatekeeper that serves from this process; the home's broker runs. `shard.now_ms` may be replaced: another test may have
    left blocks of days to come.
    """
    today = datetime.now(UTC).date().isoformat()
    async with opened(Paths(home.path), servers(home.url), day=today) as (shard, nc):
        work = (shard.writes.run(), shard.sequencer.run(), shard.recalls.run_asks(), shard.recalls.run_records())
        pumps = [asyncio.create_task(w) for w in work]
        await listen(shard, nc)
        shard.state, shard.intake.open = "ready", True
        try:
            yield shard
        finally:
            shard.intake.open = False
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
