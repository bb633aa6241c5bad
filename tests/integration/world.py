"""A real home for tests: supervisor, broker and gatekeeper as processes, tenants and agents made while they run."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

import bus
from broker_config import gate_runs, supervisor
from broker_config.control import Control
from broker_config.home import Home, private_folder
from bus.identity import Credential, parse_creds

UP_S = 30.0


@dataclass
class World:
    """`acme` with projects p1 and p2, and whatever agents a test adds."""

    home: Home
    agents: dict[str, Credential] = field(default_factory=dict)

    def creds(self, name: str, tenant: str = "acme") -> str:
        return str(self.home.agent_creds(tenant, name))

    async def add(self, name: str, *projects: str, tenant: str = "acme", role: str = "agent", **more: Any) -> Credential:
        """A new agent; its credential as its client knows it."""
        async with Control(self.home) as control:
            await control.agent_add(tenant, name, role=role, projects=projects or ("p1",), **more)
        credential = parse_creds(Path(self.creds(name, tenant)).read_text())
        self.agents[name] = credential
        return credential

    @asynccontextmanager
    async def agent(self, name: str, project: str = "p1", tenant: str = "acme") -> AsyncIterator[bus.MemoryBus]:
        where, creds = self.home.url, self.creds(name, tenant)
        async with bus.connect(url=where, creds=creds, project=project, ca_file=self.home.ca_file) as memory:
            yield memory

    @asynccontextmanager
    async def desk(self, name: str = "ops", tenant: str = "acme") -> AsyncIterator[bus.Desk]:
        where, creds = self.home.url, self.creds(name, tenant)
        async with bus.connect_operator(url=where, creds=creds, ca_file=self.home.ca_file) as desk:
            yield desk

    @asynccontextmanager
    async def raw(self, name: str, tenant: str = "acme") -> AsyncIterator[Client]:
        """A plain NATS client with an agent's credentials."""
        key = self.agents[name].key
        errors: list[Exception] = []

        async def on_error(e: Exception) -> None:
            errors.append(e)

        nc = await nats.connect(
            self.home.url, user_credentials=self.creds(name, tenant), inbox_prefix=f"_INBOX.{key}".encode(), error_cb=on_error
        )
        try:
            yield nc
        finally:
            await nc.close()

    async def request(
        self,
        nc: Client,
        name: str,
        verb: str,
        payload: bytes | dict[str, Any],
        project: str = "p1",
        tenant: str = "acme",
        timeout: float = 10,
    ) -> dict[str, Any]:
        """One request of an agent by hand: the frame as a dict."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        answer = await nc.request(f"mem.{tenant}.{project}.{verb}.{self.agents[name].key}", data, timeout=timeout)
        decoded: dict[str, Any] = json.loads(answer.data)
        return decoded

    # --- processes --------------------------------------------------------------------------------
    def pid(self, process: str) -> int:
        status = supervisor.read_status(self.home)
        assert status is not None
        return status.pids[process]

    def cpu_s(self, process: str) -> float:
        """Processor time that it has used: a machine that is busy with others adds nothing to it."""
        user, system = Path(f"/proc/{self.pid(process)}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def kill9(self, process: str) -> None:
        os.kill(self.pid(process), signal.SIGKILL)

    async def ready_again(self, was: int, process: str = "gatekeeper") -> None:
        """Wait until `process` has another pid than `was`, and the home is ready."""
        deadline = time.monotonic() + UP_S
        while time.monotonic() < deadline:
            status = supervisor.read_status(self.home)
            if status is not None and status.state == "ready" and status.pids.get(process) not in (None, was):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"no {process} after {UP_S} s: {supervisor.read_status(self.home)}")

    async def restart_gatekeeper(self) -> None:
        """kill -9 of the gatekeeper, and wait for the next."""
        was = self.pid("gatekeeper")
        os.kill(was, signal.SIGKILL)
        await self.ready_again(was)


async def _populate(world: World) -> None:
    async with Control(world.home) as control:
        await control.tenant_add("acme")
        for project in ("p1", "p2"):
            await control.project_add("acme", project)
    await world.add("ops", "p1", "p2", role="operator", see=("public", "internal", "restricted"))


@contextmanager
def running(populate: bool = True) -> Iterator[World]:
    """A home that is up, in a temporary folder; stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="cordon-test-"))
    home = Home(folder / "home")
    try:
        supervisor.start(home, detach=True, ready_timeout_s=UP_S)
        world = World(home)
        if populate:
            asyncio.run(_populate(world))
        yield world
    finally:
        supervisor.stop(home)
        shutil.rmtree(folder, ignore_errors=True)


async def verified(home: Home) -> dict[str, Any]:
    """What `cordon verify --json` prints."""
    return (await asyncio.to_thread(gate_runs.verify, home)).last


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    """Poll a condition; AssertionError naming `what` when it doesn't come true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        await asyncio.sleep(0.01)


@contextmanager
def lock_left_behind(path: Path) -> Iterator[Callable[[], None]]:
    """A lock as a killed process leaves it: held by one that it had started, until that ends. What is yielded ends it, soon."""
    code = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    private_folder(path.parent)
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        child = subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(lock.fileno(),))
    assert child.stdin is not None
    assert child.stdout is not None
    ends = threading.Timer(0.3, child.stdin.close)
    with child, child.stdin:
        child.stdout.readline()
        yield ends.start
        assert child.wait(UP_S) == 0
        ends.join()
