"""The load generator: a process of its own, plain nats-py, that does what it is told in JSON lines on its standard input.

`python -m tests.bench.load URL`. Every answer is checked: one that isn't what was asked for stops the run with its reason.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
import nats
import uvloop
from nats.aio.client import Client

from bus.frames import Draft, Get, Query
from bus.identity import parse_creds

from .texts import BIG_CHARS, Texts

TIMEOUT_S: Final = 60.0
RECENT_PARENTS: Final = 2_000
RAW_PAYLOAD: Final = bytes(900)  # about one memory's event
_encode: Final = msgspec.json.Encoder().encode


class Agent(msgspec.Struct, frozen=True):
    tenant: str
    name: str
    creds: str


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Connect these, and remember them by `tenant/name`."""

    agents: list[Agent]


class Run(msgspec.Struct, frozen=True, tag="run", kw_only=True):
    """`total` requests of one kind, `in_flight` at a time, worker j as agent j modulo their number."""

    kind: str  # echo | query | write | big | child | get | raw
    agents: list[str]
    in_flight: int
    total: int
    project: str = "p1"
    k: int = 8
    seed: int = 1
    seconds: float = 0.0  # no more requests are begun after so long; 0: all of them


class Figures(msgspec.Struct, frozen=True):
    """Seconds, and the CPU seconds of this process. `items`: admitted memories; `ids`: of the first hundred written."""

    seconds: float
    cpu: float
    total: int
    p50: float
    p99: float
    most: float = 0.0
    items: int = 0
    ids: list[str] = []

    @property
    def rate(self) -> float:
        return self.total / self.seconds


class _Answer(msgspec.Struct):
    type: str = ""
    id: str = ""
    reason: str = ""
    state: str = ""


class Load:
    def __init__(self, url: str) -> None:
        self.url = url
        self.clients: dict[str, tuple[Client, str, str]] = {}  # connection, tenant, key
        self.written: dict[tuple[str, str], list[str]] = {}  # (tenant, project) → ids
        self.items = 0

    async def open(self, agents: list[Agent]) -> None:
        for a in agents:
            key = parse_creds(Path(a.creds).read_text()).key
            nc = await nats.connect(
                self.url,
                user_credentials=a.creds,
                inbox_prefix=f"_INBOX.{key}".encode(),
                pending_size=64 << 20,
                allow_reconnect=False,
                error_cb=_ignore,
            )
            self.clients[f"{a.tenant}/{a.name}"] = (nc, a.tenant, key)

    async def run(self, r: Run) -> Figures:
        texts, rng, gets = Texts(r.seed), random.Random(r.seed), iter(range(1 << 30))
        self.items = 0

        def written(tenant: str) -> list[str]:
            return self.written.setdefault((tenant, r.project), [])

        async def ask(j: int, verb: str, data: bytes, prefix: str = "mem") -> bytes:
            nc, tenant, key = self.clients[r.agents[j % len(r.agents)]]
            answer = await nc.request(f"{prefix}.{tenant}.{r.project}.{verb}.{key}", data, timeout=TIMEOUT_S)
            return answer.data

        async def echo(j: int) -> None:
            await ask(j, "echo", question, "echo")

        async def write(j: int) -> None:
            self._keep(written(self._tenant(r, j)), await ask(j, "write", _encode(Draft(content=texts.memory()))))

        async def big(j: int) -> None:
            self._keep(written(self._tenant(r, j)), await ask(j, "write", _encode(Draft(content=texts.memory(BIG_CHARS)))))

        async def child(j: int) -> None:
            tree = written(self._tenant(r, j))
            recent = tree[-RECENT_PARENTS:]
            parents = rng.sample(recent, min(2, len(recent)))
            self._keep(tree, await ask(j, "write", _encode(Draft(content=texts.memory(), derived_from=parents))))

        async def query(j: int) -> None:
            self._count(await ask(j, "query", _encode(Query(text=texts.question(), k=r.k))))

        async def get(j: int) -> None:
            mine = written(self._tenant(r, j))
            at = next(gets) // len(r.agents) * r.k % max(1, len(mine))
            self._count(await ask(j, "get", _encode(Get(ids=mine[at : at + r.k]))))

        async def raw(j: int) -> None:
            answer = await self.clients[r.agents[0]][0].request("bench.raw", RAW_PAYLOAD, timeout=TIMEOUT_S)
            if b'"seq"' not in answer.data:
                raise SystemExit(f"JetStream refused: {answer.data!r}")

        question = _encode(Query(text=texts.question()))
        one = {"echo": echo, "write": write, "big": big, "child": child, "query": query, "get": get, "raw": raw}[r.kind]
        figures = await _drive(one, r.in_flight, r.total, r.seconds)
        ids = written(self.clients[r.agents[0]][1])[:100] if r.kind in ("write", "big", "child") else []
        return msgspec.structs.replace(figures, items=self.items, ids=ids)

    def _tenant(self, r: Run, j: int) -> str:
        return self.clients[r.agents[j % len(r.agents)]][1]

    @staticmethod
    def _keep(ids: list[str], data: bytes) -> None:
        answer = msgspec.json.decode(data, type=_Answer)
        if answer.type != "receipt":
            raise SystemExit(f"a write was refused: {data!r}")
        if answer.state != "held":  # as a parent it would hold its children, and with two parents each soon all of them
            ids.append(answer.id)

    def _count(self, data: bytes) -> None:
        if not data.startswith(b'{"type":"recall"'):
            raise SystemExit(f"a question was refused: {data[:500]!r}")
        self.items += data.count(b'"rank":')


async def _drive(one: Callable[[int], Awaitable[None]], in_flight: int, total: int, most_s: float) -> Figures:
    left, times = total, list[float]()

    async def worker(j: int) -> None:
        nonlocal left
        while left > 0 and not (most_s and time.perf_counter() - begun >= most_s):
            left -= 1
            start = time.perf_counter()
            await one(j)
            times.append(time.perf_counter() - start)

    gc.collect()
    gc.freeze()
    cpu, begun = time.process_time(), time.perf_counter()
    await asyncio.gather(*(worker(j) for j in range(in_flight)))
    seconds = time.perf_counter() - begun
    times.sort()
    done = len(times)
    return Figures(seconds, time.process_time() - cpu, done, times[len(times) // 2], times[int(len(times) * 0.99)], times[-1])


async def _ignore(error: Exception) -> None:
    """A request that can't be answered times out; what the broker said about it is not worth a traceback."""


async def main(url: str) -> None:
    load, loop = Load(url), asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command = msgspec.json.decode(line, type=Open | Run)
        if isinstance(command, Run):
            print(msgspec.json.encode(await load.run(command)).decode(), flush=True)
        else:
            await load.open(command.agents)
            print("null", flush=True)
    for nc, _, _ in load.clients.values():
        await nc.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
