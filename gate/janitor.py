"""The janitor's process: `python -m gate.janitor --home H [--shard 0]`. It strips blocks of the ledger that hold erased text.

It alone may delete, and that is all it may: its key can't append to the ledger, read a tenant or answer anybody. What to strip
the gatekeeper tells it (`adm.<shard>.erased`), after the ledger says that the text is gone; what it did is looked at again there.

    copy       the block without these bodies, every hash as it was, stored in ERASED and read back
    delete     the original in LEDGER overwritten
    tidy       an older copy in ERASED overwritten

Invariant: at no moment is a block neither in LEDGER nor, with the same hash, in ERASED; so it may be killed anywhere, and
whoever begins again finishes it. A second janitor at the same time breaks nothing: a copy is stored only under a free name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import secrets
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from nats.aio.client import Client

from bus import frames, subjects
from bus.errors import Closed, CordonError, MalformedFrame
from bus.frames import AdmErased, Done
from bus.identity import parse_creds
from bus.servers import CA_VARIABLE, Servers, servers
from gate.ledger import erased
from gate.ledger.block import decode, strip
from gate.ledger.errors import LedgerCorrupt, LedgerError
from gate.ledger.jetstream import ApiError, Unanswered, request, secure_delete, stored

log = logging.getLogger(__name__)
ASK_TIMEOUT_S: Final = 20.0  # the gatekeeper answers after ten seconds when there is nothing to do
RETRY_S: Final = 0.5
RETRY_MOST_S: Final = 5.0
TROUBLE_CHARS_MAX: Final = 200
_NO_COPY: Final = "neither it nor a copy of it is there"


class Part(msgspec.Struct, frozen=True):
    """One block to strip: by account the tenant_seqs of the memories whose bodies go."""

    block: int
    only: dict[str, list[int]]


class Work(msgspec.Struct, frozen=True):
    blocks: list[Part] = []


class _Ack(msgspec.Struct):
    seq: int = 0
    error: ApiError | None = None


class Janitor:
    """Asks, strips, tells. `key`: its own public key."""

    def __init__(self, nc: Client, key: str, shard: int = 0) -> None:
        self.nc, self.shard = nc, shard
        self.ledger = f"LEDGER_{shard}"
        self.subject = subjects.admin(shard, frames.VERB_OF[AdmErased], key)

    async def run(self) -> None:
        """Until cancelled. What fails is tried again; the next question says what it was."""
        done: list[int] = []
        trouble, pause_s = "", RETRY_S
        while True:
            try:
                work = await self._ask(done, trouble)
                done, trouble = await self._strip_all(work)
            except (Unanswered, CordonError) as e:
                if self.nc.is_closed:
                    raise
                log.info("no work: %s", e)
                await asyncio.sleep(pause_s)
                pause_s = min(RETRY_MOST_S, 2 * pause_s)
                continue
            pause_s = RETRY_S
            if trouble:
                await asyncio.sleep(RETRY_MOST_S)

    async def _ask(self, done: list[int], trouble: str) -> Work:
        ask = AdmErased(request_id=secrets.token_hex(8), done=done, trouble=trouble[:TROUBLE_CHARS_MAX])
        answer = frames.decode_reply(await request(self.nc, self.subject, frames.encode(ask), timeout_s=ASK_TIMEOUT_S))
        if isinstance(answer, frames.Refusal):
            raise frames.raise_refusal(answer, AdmErased)
        if not isinstance(answer, Done) or answer.request_id != ask.request_id:
            raise MalformedFrame("The answer belongs to another request.", reason="foreign_answer")
        try:
            return msgspec.convert(answer.result, Work)
        except msgspec.ValidationError as e:
            raise MalformedFrame(f"The gatekeeper's answer is no work for a janitor: {e}.", reason="malformed_frame") from None

    async def _strip_all(self, work: Work) -> tuple[list[int], str]:
        """The blocks that are stripped now, and what kept one from being."""
        done, trouble = [], ""
        for part in work.blocks:
            try:
                await self.strip(part)
                done.append(part.block)
                log.info("block %d is stripped", part.block)
            except (Unanswered, LedgerError) as e:
                trouble = f"block {part.block}: {e}"
                log.warning("%s", trouble)
        return done, trouble

    # --- one block ------------------------------------------------------------------------------------
    async def strip(self, part: Part) -> None:
        """Copy, delete, tidy. `LedgerCorrupt`: there is nothing to copy, or it isn't what it should be; the original stays."""
        block = part.block
        original = await stored(self.nc, self.ledger, block)
        known = await erased.copies(self.nc, self.shard, block)
        source = original if original is not None else known[0].data if known else None
        if source is None:
            raise LedgerCorrupt(_NO_COPY, block=block)
        wanted = strip(source, {(account, seq) for account, seqs in part.only.items() for seq in seqs})
        if not known or known[0].data != wanted:
            await self._copy(block, wanted, known)
        kept = await self._stored_copy(block, wanted, decode(source, block).hash)
        if original is not None:
            await self._delete(self.ledger, block)
        for older in await erased.copies(self.nc, self.shard, block):
            if older.seq != kept.seq:
                await self._delete(erased.stream(self.shard), older.seq)

    async def _copy(self, block: int, wanted: bytes, known: list[erased.Copy]) -> None:
        """Store a copy under the name that the newest one doesn't have, which is made free first."""
        for older in known[1:]:
            await self._delete(erased.stream(self.shard), older.seq)
        newest = known[0].subject if known else ""
        name = next(s for s in erased.subjects(self.shard, block) if s != newest)
        raw = await request(self.nc, name, wanted, headers={"Nats-Expected-Last-Subject-Sequence": "0"})
        try:
            ack = msgspec.json.decode(raw, type=_Ack)
        except msgspec.MsgspecError as e:
            raise Unanswered(f"{name}: a foreign answer ({e})") from e
        if ack.error is not None:
            raise Unanswered(f"{name}: {ack.error}")

    async def _stored_copy(self, block: int, wanted: bytes, hash_: bytes) -> erased.Copy:
        """The newest copy as the broker has it: only after this look is anything deleted."""
        found = await erased.copies(self.nc, self.shard, block)
        if not found or found[0].data != wanted or decode(found[0].data, block).hash != hash_:
            raise LedgerCorrupt("its copy in ERASED is not what was stored.", block=block)
        return found[0]

    async def _delete(self, stream: str, seq: int) -> None:
        await secure_delete(self.nc, stream, seq)


# --- the process --------------------------------------------------------------------------------------
async def serve(home: Path, where: Servers, shard: int) -> None:
    """Work until SIGTERM or Ctrl-C."""
    creds = home / "creds" / "_core" / "janitor.creds"
    key = parse_creds(creds.read_text()).key
    nc = await where.kept(creds, "cordon-janitor")
    log.info("waiting for work of shard %d", shard)
    work = asyncio.create_task(Janitor(nc, key, shard).run())
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, work.cancel)
    try:
        await work
    except (asyncio.CancelledError, Closed):
        log.info("stops")
    finally:
        with suppress(Exception):
            await asyncio.wait_for(nc.close(), 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gate.janitor", description="Cordon's janitor for one shard.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--shard", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)sZ %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.Formatter.converter = time.gmtime
    home: Path = args.home.resolve()
    try:
        url = os.environ.get("CORDON_URL") or str(json.loads((home / "run" / "status.json").read_text())["url"])
    except (OSError, ValueError, KeyError):
        print("cordon janitor: no broker: run/status.json names no url and CORDON_URL is not set", file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(home, servers(url, os.environ.get(CA_VARIABLE)), args.shard))
    except Exception as e:
        log.error("stopped: %s: %s", type(e).__name__, e)
        return 70
    return 0


if __name__ == "__main__":
    sys.exit(main())
