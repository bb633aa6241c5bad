"""A client that gives way to nobody: a process of its own that keeps `in_flight` requests of one kind open until told to stop.

`python -m tests.bench.flooder URL KIND IN_FLIGHT CREDS…` prints `ready`, floods from one line on its standard input to the
next, prints what the answers were, {reason or type: count}, and waits for a line to flood again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import nats
import uvloop
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeout

from bus.frames import Draft, Query
from bus.identity import parse_creds

from .texts import BIG_CHARS, Texts

BIG_TEXTS: Final = 32  # made beforehand; each is told apart by its first words
KINDS: Final = ("small", "query", "big", "invalid")
_encode: Final = msgspec.json.Encoder().encode


def requests(kind: str) -> tuple[str, Callable[[], bytes]]:
    """(verb, what makes the next request's bytes)."""
    rng, texts = random.Random(11), Texts(11)
    if kind == "query":
        return "query", lambda: _encode(Query(text=texts.question()))
    if kind == "invalid":
        return "write", lambda: b'{"type":"draft","content":7,"request_id":"flood"}'
    if kind == "small":
        return "write", lambda: _encode(Draft(content=texts.memory()))
    big = [texts.memory(BIG_CHARS) for _ in range(BIG_TEXTS)]
    return "write", lambda: _encode(Draft(content=f"{rng.getrandbits(64):x} {rng.choice(big)}"))


async def _ignore(error: Exception) -> None:
    """What the broker says about a flood is not worth a traceback."""


async def main(url: str, kind: str, in_flight: int, creds: list[str]) -> None:
    verb, make = requests(kind)
    clients: list[tuple[Client, str]] = []
    for path in creds:
        key = parse_creds(Path(path).read_text()).key
        nc = await nats.connect(
            url, user_credentials=path, inbox_prefix=f"_INBOX.{key}".encode(), error_cb=_ignore, allow_reconnect=False
        )
        tenant = Path(path).parent.name
        clients.append((nc, f"mem.{tenant}.p1.{verb}.{key}"))
    answers = Counter[str]()
    flooding = False

    async def worker(j: int) -> None:
        nc, subject = clients[j % len(clients)]
        while flooding:  # a cancellation can be lost in a wait whose answer comes at the same moment
            try:
                answer = json.loads((await nc.request(subject, make(), timeout=20)).data)
            except NatsTimeout:
                answers["no answer"] += 1
                continue
            answers[answer.get("reason") or answer["type"]] += 1

    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print("ready", flush=True)
    while await lines.readline():
        flooding = True
        workers = [asyncio.create_task(worker(j)) for j in range(in_flight)]
        await lines.readline()
        flooding = False
        for w in workers:
            w.cancel()
        await asyncio.wait(workers)
        print(json.dumps(answers), flush=True)
        answers.clear()


if __name__ == "__main__":
    os.nice(15)  # a flood comes from another machine: what it costs there is no part of what is measured
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
