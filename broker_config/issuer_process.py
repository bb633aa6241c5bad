"""The issuer's process: `python -m broker_config.issuer_process --home H [--shard 0]`. Answers the gatekeeper.

Its credential may subscribe to `iss.<shard>.sign` and its own inbox, and reply; the broker refuses it everything else.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec
import nats
from nats.aio.msg import Msg

from bus.errors import ConfigError, CordonError
from bus.frames import Signed, encode
from bus.limits import PAYLOAD_BYTES_MAX, QUERY_FRAME_BYTES_MAX
from bus.servers import CA_VARIABLE, URL_VARIABLE, Servers, servers
from bus.subjects import sign

from .home import Home
from .issuer import Issuer, decode_request

PENDING_MESSAGES: Final = 1_024  # far more than the gatekeeper has waiting; what is beyond is asked again
EXIT_CONFIG: Final = 2
log = logging.getLogger(__name__)


async def serve(home: Home, where: Servers, shard: int) -> None:
    """Until SIGTERM or SIGINT, while it waits for a server too."""
    signing = asyncio.create_task(_sign(home, where, shard))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signing.cancel)
    with suppress(asyncio.CancelledError):
        await signing


async def _sign(home: Home, where: Servers, shard: int) -> None:
    issuer, creds = Issuer(home, time.time), home.core_creds("issuer")

    async def on_request(m: Msg) -> None:
        if not m.reply:
            return
        try:
            if len(m.data) > QUERY_FRAME_BYTES_MAX:
                raise ValueError("too large")
            request = decode_request(m.data)
            answer = issuer.answer(request)
            if answer.reason == "no_keys":
                log.error("%s is missing here, or not as the registry says: bring it from the home", answer.field)
            outcome = f"signed {request.name} of {request.account}" if answer.jwt else f"refused: {answer.reason} {answer.field}"
            log.info("%s", outcome)
        except (msgspec.MsgspecError, ValueError):
            answer = Signed(reason="unproven")
            log.info("refused: no request")
        except Exception:  # one bad request must not end it
            log.exception("request failed")
            return
        await m.respond(encode(answer))

    nc = await where.kept(creds, "cordon-issuer")
    try:
        await nc.subscribe(
            sign(shard), cb=on_request, pending_msgs_limit=PENDING_MESSAGES, pending_bytes_limit=16 * PAYLOAD_BYTES_MAX
        )
        log.info("signing for shard %d", shard)
        await asyncio.Event().wait()
    finally:
        await asyncio.wait_for(nc.close(), 2)


def _where(home: Home) -> Servers:
    url = os.environ.get(URL_VARIABLE)
    return servers(url or home.url, os.environ.get(CA_VARIABLE) or (None if url else home.ca_file))


def run(home: Home, shard: int = 0) -> int:
    """Serve; the exit code. CORDON_URL and CORDON_CA overrule the home's own address."""
    try:
        home.check_private()
        asyncio.run(serve(home, _where(home), shard))
    except ConfigError as e:
        print(f"cordon issuer: {e}", file=sys.stderr)
        return EXIT_CONFIG
    except (CordonError, OSError, nats.errors.Error) as e:
        log.error("stopped: %s", e)
        return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m broker_config.issuer_process", description="Cordon's issuer for one home.")
    parser.add_argument("--home", required=True, type=Home)
    parser.add_argument("--shard", type=int, default=0)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)sZ %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.Formatter.converter = time.gmtime
    return run(args.home, args.shard)


if __name__ == "__main__":
    sys.exit(main())
