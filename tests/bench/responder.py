"""The bare echo: a process with a credential of CORE that answers requests of tenants with their own payload, under a service
import of the same shape as the gatekeeper's (`share: true`). `python -m tests.bench.responder URL CREDS SUBJECT`.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import nats
import uvloop
from nats.aio.msg import Msg

from bus.identity import parse_creds


async def _ignore(error: Exception) -> None:
    """The broker may stop before this process does."""


async def main(url: str, creds: str, subject: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with open(creds) as file:
        key = parse_creds(file.read()).key
    nc = await nats.connect(
        url,
        user_credentials=creds,
        inbox_prefix=f"_INBOX.{key}".encode(),
        flusher_queue_size=65_536,
        allow_reconnect=False,
        error_cb=_ignore,
    )

    async def echo(m: Msg) -> None:
        await nc.publish(m.reply, m.data)

    await nc.subscribe(subject, cb=echo, pending_msgs_limit=65_536)
    await nc.flush()
    print("ready", flush=True)
    await stop.wait()
    await nc.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
