"""Three rendered servers with TLS on this machine's loopback and two gatekeepers on them: real processes, killed, stopped, and
cut off from each other.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker_config import layouts
from broker_config.control import Control
from broker_config.home import Home, free_port
from broker_config.processes import read_pid, spawn, stop_child
from broker_config.server import find_server
from broker_config.trust import Trust
from bus.errors import Unavailable
from gate.lease import TAKE_OVER_S

from .ledger_server import Relay
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
class Lines:
    """What can fail between machines. `routes`: between the first server and both others; `gates`: between the first gatekeeper
    and the first server, and between the second ones.
    """

    routes: Relay
    gates: tuple[Relay, Relay]


@dataclass
class Cluster:
    """`world.home` holds the keys; `nodes` are the servers' folders by name."""

    world: World
    nodes: dict[str, Path]
    gates: list[Gatekeeper]
    servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    urls: tuple[str, ...] = ()
    lines: Lines | None = None

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
async def cluster(*, relayed: bool = False) -> AsyncIterator[Cluster]:
    """Rendered, started, its streams made, one gatekeeper serving and one standing by. Removed at the end.

    `relayed`: with `lines`; the first server and the first gatekeeper are then reached through them alone, and the home's own
    clients are on the side of the other two.
    """
    folder = Path(tempfile.mkdtemp(prefix="cordon-cluster-"))
    home = Home(folder / "home")
    home.create()
    Trust(home, time.time).create()
    nodes = layouts.trial_nodes("three")
    done = layouts.render(home, "three", nodes, folder / "rendered")
    stack = AsyncExitStack()
    lines = await _relayed(stack, nodes, done.nodes) if relayed else None
    where = [f"tls://127.0.0.1:{relay.port}" for relay in lines.gates] if lines else 2 * [home.url]
    if lines:
        home.point_to(done.urls[1:], "ca.crt")
    gates = []
    for name, url in zip(("one", "two"), where, strict=True):
        data = shutil.copytree(done.gate, folder / name)
        command = [sys.executable, "-m", "gate", "--home", str(data), "--nats", url, "--ca", str(data / "ca.crt")]
        gates.append(Gatekeeper(data, command))
    names = {f"{layouts.CLUSTER}-{i}": path for i, path in enumerate(done.nodes, 1)}
    made = Cluster(World(home), names, gates, urls=done.urls, lines=lines)
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
        await stack.aclose()
        shutil.rmtree(folder, ignore_errors=True)


async def _relayed(stack: AsyncExitStack, nodes: Sequence[layouts.Node], folders: Sequence[Path]) -> Lines:
    """Servers tell each other where the others are: so the first knows no true address of another, and none its own."""
    routes = await stack.enter_async_context(Relay(nodes[0].route_port))
    gates = [await stack.enter_async_context(Relay(node.client_port)) for node in nodes[:2]]
    nowhere = free_port()
    for i, folder in enumerate(folders):
        conf = folder / "server.conf"
        text = conf.read_text()
        for j, node in enumerate(nodes):
            seen = routes.port if j == 0 else nowhere if i == 0 else node.route_port
            text = text.replace(f"nats-route://127.0.0.1:{node.route_port}", f"nats-route://127.0.0.1:{seen}")
        known_as = f"127.0.0.1:{nowhere if i else routes.port}"
        conf.write_text(text.replace("  no_advertise: true", f'  advertise: "{known_as}"\n  no_advertise: true'))
    return Lines(routes, (gates[0], gates[1]))


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
