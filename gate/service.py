"""The composition root of the gatekeeper: what is started, in which order, and how it ends. All control flow, no policy."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import nats
import numpy as np
from nats.aio.client import Client

from bus.errors import ConfigError, CordonError
from bus.identity import UserNats, parse_creds, verify_jwt, verify_registry
from bus.limits import RECONNECT_FIRST_S
from gate.config import DRAIN_S, NOTICE_AGAIN_S
from gate.ledger import events as E
from gate.ledger.errors import LedgerError
from gate.ledger.replay import stream_state
from gate.model.embedder import Embedder, StaticEmbedder
from gate.model.features import FEATURES
from gate.model.network import Gate, GateUnavailable
from gate.outbox import Outbox
from gate.paths import Paths
from gate.projections import ProjectionUnusable, set_aside
from gate.projections.lineage import LineageStore
from gate.reading.admit import Admission
from gate.recovery import Recovery, set_all_aside, stamp, streams
from gate.shard import Shard
from gate.state.tenant import UnknownEvent
from gate.writing.sequencer import Stored

log = logging.getLogger(__name__)
EXIT_REFUSED: Final = 65  # the ledger or a projection forbids serving: a restart changes nothing
PENDING_MESSAGES: Final = 65_536
PENDING_BYTES: Final = 256 << 20
HOUSEKEEPING_S: Final = 1.0
SHARE_EVERY_S: Final = 5.0


class Owned(CordonError):
    """Another gatekeeper serves this shard."""


@asynccontextmanager
async def owned(path: Path) -> AsyncIterator[None]:
    """The store lock: one owner serves a shard."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle: IO[str] = path.open("a+")
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Owned(
                f"Another gatekeeper holds {path}.", reason="shard_owned", advice="Stop it first: `cordon down`."
            ) from None
        yield
    finally:
        handle.close()


async def connect(paths: Paths, url: str) -> tuple[Client, str]:
    """The gatekeeper's connection, and the CORE account that it belongs to."""
    text = paths.creds.read_text()
    credential = parse_creds(text)
    core = verify_jwt(credential.jwt).body("user", UserNats).issuer_account

    async def on_error(e: Exception) -> None:
        log.warning("broker: %s", e)

    nc = await nats.connect(
        url,
        user_credentials=str(paths.creds),
        inbox_prefix=f"_INBOX.{credential.key}".encode(),
        error_cb=on_error,
        pending_size=64 << 20,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_FIRST_S,
        name="cordon-gatekeeper",
        flusher_queue_size=65_536,
    )
    return nc, core


def open_lineage(paths: Paths, identities: dict[str, str]) -> LineageStore:
    """The lineage store; one that can't be used is set aside and made anew."""
    paths.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        return LineageStore(paths.lineage, identities)
    except ProjectionUnusable as e:
        if e.reason == "stream":
            raise
        set_aside(paths.lineage, paths.aside(stamp()))
        return LineageStore(paths.lineage, identities)


def admission(embedder: Embedder) -> Admission:
    """Embedder and gate; without a usable gate, policy alone, and every recall says so."""
    try:
        gate = Gate.load(embedder_id=embedder.id)
    except GateUnavailable as e:
        log.warning("no gate, policy alone: %s", e)
        gate = None
    return Admission(embedder, gate)


@asynccontextmanager
async def opened(paths: Paths, url: str, *, accepting: bool = False) -> AsyncIterator[tuple[Shard, Client]]:
    """A shard replayed to the ledger's end, with its threads running; not serving yet. `accepting`: see Recovery."""
    loop = asyncio.get_running_loop()
    nc, core = await connect(paths, url)
    shard: Shard | None = None
    lineage: LineageStore | None = None
    try:
        states = [await stream_state(nc, name) for name in streams(paths.shard)]
        lineage = open_lineage(paths, {"LEDGER": states[0].identity, "READS": states[1].identity})
        operator = paths.operator_jwt.read_text().strip()
        registry = verify_registry(paths.registry.read_text().strip(), operator)
        shard = Shard(
            paths=paths,
            loop=loop,
            core_account=core,
            registry=registry,
            operator_jwt=operator,
            admission=admission(StaticEmbedder()),
            lineage=lineage,
            stream_identity=states[0].identity,
        )
        shard.outbox = Outbox(nc)
        shard.index.start()
        await Recovery(shard, nc, accepting=accepting).run()
        yield shard, nc
    finally:
        if shard is not None:
            await asyncio.to_thread(shard.index.stop)
            for index in shard.indexes.values():
                index.close()
        if lineage is not None:
            await asyncio.to_thread(lineage.close)
        with suppress(Exception):
            await asyncio.wait_for(nc.close(), 2)


async def serve(paths: Paths, url: str, *, rates: bool = True) -> None:
    """Serve the shard until SIGTERM. Raises what stopped it."""
    async with owned(paths.owner_lock), opened(paths, url) as (shard, nc):
        shard.rates = rates
        stop = asyncio.Event()
        for sig in (signal.SIGTERM, signal.SIGINT):
            shard.loop.add_signal_handler(sig, stop.set)
        pumps = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("writes", shard.writes.run()),
                ("sequencer", shard.sequencer.run()),
                ("asks", shard.recalls.run_asks()),
                ("records", shard.recalls.run_records()),
                ("erasures", shard.erasures.run()),
                ("housekeeping", housekeeping(shard, nc)),
            )
        ]
        await asyncio.to_thread(warm_up, shard)
        n = shard.number
        for subject, handler in (
            (f"in.{n}.>", shard.intake.on_memory),
            (f"op.{n}.>", shard.intake.on_operator),
            (f"adm.{n}.>", shard.intake.on_admin),
        ):
            await nc.subscribe(subject, cb=handler, pending_msgs_limit=PENDING_MESSAGES, pending_bytes_limit=PENDING_BYTES)
        await nc.flush()
        await nc.flush()  # the client writes its PING ahead of what is still buffered: one flush proves nothing
        gc.collect()
        gc.freeze()
        shard.state, shard.intake.open = "ready", True
        write_atomically(paths.ready, str(os.getpid()))
        log.info("serving shard %d", n)
        try:
            waits = [asyncio.create_task(stop.wait()), asyncio.create_task(shard.failed.wait()), *pumps]
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            shard.state, shard.intake.open = "stopping", False
            for task in done:
                if task in pumps:
                    task.result()  # a dead pump stops the shard, with its error
            if shard.failure is not None:
                raise shard.failure
            with suppress(TimeoutError):
                await asyncio.wait_for(_quiet(shard), DRAIN_S)
        finally:
            paths.ready.unlink(missing_ok=True)
            for task in (*pumps, *waits):
                task.cancel()
            await asyncio.gather(*pumps, *waits, return_exceptions=True)


async def _quiet(shard: Shard) -> None:
    """Everything accepted is answered."""
    while (  # noqa: ASYNC110 - the end of queues of several tasks
        shard.writes.queue
        or shard.sequencer.turns
        or shard.recalls.asks
        or shard.recalls.records
        or any(t.in_flight for t in shard.tenants.values())
    ):
        await asyncio.sleep(0.01)
    await shard.outbox.nc.flush()


async def housekeeping(shard: Shard, nc: Client) -> None:
    """The lease's question to the ledger, its fill, notices again, holds with a time limit."""
    loop = shard.loop
    next_share, next_notice = loop.time() + SHARE_EVERY_S, loop.time() + NOTICE_AGAIN_S
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        await asyncio.gather(shard.ledger.confirm(), shard.reads.confirm())
        if loop.time() >= next_share:
            next_share = loop.time() + SHARE_EVERY_S
            with suppress(CordonError):
                state = await stream_state(nc, streams(shard.number)[0], patience_s=1)
                shard.ledger_share = state.bytes / state.max_bytes if state.max_bytes > 0 else 0.0
        if loop.time() >= next_notice:
            next_notice = loop.time() + NOTICE_AGAIN_S
            for t in shard.tenants.values():
                for case, kind in {key for open_ in t.notices.values() for key in open_}:
                    shard.holds.notices.tell(t, t.cases[case], kind)
        for t in list(shard.tenants.values()):
            await shard.holds.tend(t)


def warm_up(shard: Shard) -> None:
    """First calls of torch, the tokenizer and numpy's lazy parts cost 5-10 ms each: pay them before `ready`."""
    vectors = shard.admission.embedder.encode(["warm up"] * 4)
    gate = shard.admission.gate
    if gate is None:
        return
    for n in (1, 64, 1_024):
        gate.score(vectors, np.zeros(n, np.int32), np.repeat(vectors[:1], n, 0), np.zeros((n, len(FEATURES)), np.float32))


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    os.replace(temporary, path)


async def rebuild(paths: Paths, url: str, accept_by: str | None) -> dict[str, Any]:
    """Offline: move all projections aside, replay everything. With `accept_by`, note who accepted the ledger as it is."""
    async with owned(paths.owner_lock):
        moved = set_all_aside(paths.folder, paths.aside(stamp()))
        async with opened(paths, url, accepting=bool(accept_by)) as (shard, _):
            if accept_by:
                await _accept(shard, accept_by)
            await shard.store_caught_up()
            return {
                "replayed": int(shard.replayed["events"]),
                "reads": int(shard.replayed["reads"]),
                "position": shard.ledger_seq,
                "seconds": shard.replayed["seconds"],
                "set_aside": [str(p) for p in moved],
                "accepted_by": accept_by or "",
            }


async def _accept(shard: Shard, by: str) -> None:
    for t in [t for t in shard.tenants.values() if not t.deleted]:
        accepted = E.LedgerAccepted(ms=shard.now_ms(), by=by, position=t.position, reads_missing=shard.reads_missing)
        await shard.sequencer.commit(t, [Stored(accepted)])


async def verify_offline(paths: Paths, url: str) -> dict[str, Any]:
    async with owned(paths.owner_lock), opened(paths, url) as (shard, _):
        return await shard.verify()


def refusal(e: BaseException) -> dict[str, str]:
    """What the supervisor and the operator see when the gatekeeper will not serve."""
    if isinstance(e, CordonError):
        return {"reason": e.reason, "message": e.message, "advice": e.advice}
    if isinstance(e, UnknownEvent):
        return {
            "reason": "unknown_event",
            "message": f"The ledger holds an event that this version doesn't know: {e}.",
            "advice": "Use the version that wrote it, or a newer one.",
        }
    return {"reason": "internal", "message": f"The gatekeeper failed: {type(e).__name__}.", "advice": "See its log."}


def run(home: Path, shard: int, mode: str, accept_by: str | None, *, rates: bool = True) -> int:
    """The process: serve, rebuild or verify. Returns the exit code."""
    paths = Paths(home, shard)
    paths.error.unlink(missing_ok=True)
    try:
        url = str(json.loads(paths.status.read_text())["url"]) if "CORDON_URL" not in os.environ else os.environ["CORDON_URL"]
    except (OSError, ValueError, KeyError):
        print("cordon gate: no broker: run/status.json names no url and CORDON_URL is not set", file=sys.stderr)
        return 2
    try:
        runner = asyncio.Runner(loop_factory=_loop_factory())
        with runner:
            if mode == "serve":
                runner.run(serve(paths, url, rates=rates))
                return 0
            result = runner.run(rebuild(paths, url, accept_by) if mode == "rebuild" else verify_offline(paths, url))
        print(json.dumps(result))
        return 0 if result.get("ok", True) else 1
    except (LedgerError, ProjectionUnusable, UnknownEvent, ConfigError, Owned) as e:
        log.error("refusing to serve: %s", e)
        write_atomically(paths.error, json.dumps(refusal(e)))
        print(
            json.dumps(refusal(e)) if mode != "serve" else f"cordon gate: {e}", file=sys.stdout if mode != "serve" else sys.stderr
        )
        return EXIT_REFUSED
    except Exception as e:
        log.exception("stopped")
        write_atomically(paths.error, json.dumps(refusal(e)))
        return 70


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
