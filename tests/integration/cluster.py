"""Three rendered servers with TLS on this machine's loopback and two gatekeepers on them: real processes, killed and stopped."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker_config import layouts
from broker_config.control import Control
from broker_config.home import Home
from broker_config.processes import read_pid, spawn, stop_child
from broker_config.server import find_server
from broker_config.trust import Trust
from bus.errors import Unavailable
from gate.lease import TAKE_OVER_S

from .stored import core_client
from .world import World, until

UP_S = 60.0
SERVES_S = TAKE_OVER_S + 30.0  # replay and a loaded machine


@dataclass
class Gatekeeper:
    """One `cordon gate` and its folder."""

    folder: Path
    command: list[str]
    child: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "gate.log"

    @property
    def serves(self) -> bool:
        return self.child is not None and read_pid(self.folder / "run" / "gatekeeper.ready") == self.child.pid

    def start(self) -> None:
        self.child = spawn(self.command, self.log)

    def signal(self, number: signal.Signals) -> None:
        assert self.child is not None
        self.child.send_signal(number)

    def kill9(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.child.wait()


@dataclass
class Cluster:
    """`world.home` holds the keys; `nodes` are the servers' folders by name."""

    world: World
    nodes: dict[str, Path]
    gates: list[Gatekeeper]
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_server(self, name: str) -> None:
        folder = self.nodes[name]
        self.servers[name] = spawn([str(find_server()), "-c", str(folder / "server.conf")], folder / "server.log")

    def kill_server(self, name: str) -> None:
        child = self.servers.pop(name)
        child.kill()
        child.wait()

    async def ledger_leader(self) -> str:
        async with core_client(self.world.home, "admin") as nc:
            info = await nc.jetstream().stream_info("LEDGER_0")
        assert info.cluster is not None
        return info.cluster.leader or ""

    @property
    def active(self) -> Gatekeeper:
        [serving] = [g for g in self.gates if g.serves]
        return serving

    async def serving(self, *, but: Gatekeeper | None = None) -> Gatekeeper:
        """Wait until one that isn't `but` serves."""
        deadline = time.monotonic() + SERVES_S
        while time.monotonic() < deadline:
            for gate in self.gates:
                if gate is not but and gate.serves:
                    return gate
            await asyncio.sleep(0.02)
        raise AssertionError("\n".join(f"{g.folder.name}:\n{g.log.read_text()[-1500:]}" for g in self.gates if g.log.exists()))

    async def stands_by(self, gate: Gatekeeper, since: int) -> None:
        """Wait until its log says, after its first `since` characters, that it stands by."""
        await until(lambda: "standing by: pid" in gate.log.read_text()[since:], f"{gate.folder.name} stands by", SERVES_S)

    def stop(self) -> None:
        for gate in self.gates:
            if gate.child is not None:
                gate.signal(signal.SIGCONT)
                stop_child(gate.child, 10)
        for child in self.servers.values():
            stop_child(child, 10)


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """Rendered, started, its streams made, one gatekeeper serving and one standing by. Removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="cordon-cluster-"))
    home = Home(folder / "home")
    home.create()
    Trust(home, time.time).create()
    done = layouts.render(home, "three", layouts.trial_nodes("three"), folder / "rendered")
    gates = []
    for name in ("one", "two"):
        data = shutil.copytree(done.gate, folder / name)
        command = [sys.executable, "-m", "gate", "--home", str(data), "--nats", home.url, "--ca", str(data / "ca.crt")]
        gates.append(Gatekeeper(data, command))
    made = Cluster(World(home), {f"{layouts.CLUSTER}-{i}": path for i, path in enumerate(done.nodes, 1)}, gates)
    try:
        for name in made.nodes:
            made.start_server(name)
        await until_streams(home, 3)
        gates[0].start()
        await made.serving()
        gates[1].start()
        await made.stands_by(gates[1], 0)
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def until_streams(home: Home, replicas: int) -> None:
    """Make the streams; a cluster that has no leader yet refuses for some seconds."""
    deadline = time.monotonic() + UP_S
    while True:
        try:
            async with Control(home) as control:
                await control.make_shared_streams(replicas)
                return
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
