"""The composition root of the gatekeeper: what is started, in which order, and how it ends. All control flow, no policy."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from nats.aio.client import Client

from bus.errors import ConfigError, CordonError
from bus.identity import RegistryEntry, UserNats, parse_creds, verify_jwt, verify_registry
from bus.limits import RECONNECT_FIRST_S
from bus.servers import KEPT_PING_S, SERVER_VERSION_MIN, Servers, Troubles
from gate.clock import SteadyClock
from gate.config import DRAIN_S
from gate.housekeeping import housekeeping, tending
from gate.lease import Lease
from gate.ledger import erased
from gate.ledger import events as E
from gate.ledger.block import decode
from gate.ledger.errors import LedgerCorrupt, LedgerError, SteppedDown
from gate.ledger.jetstream import Unanswered, stored
from gate.ledger.members import pack_members
from gate.ledger.replay import stream_state
from gate.model.embedder import Embedder, StaticEmbedder
from gate.model.features import FEATURES
from gate.model.network import Gate, GateUnavailable
from gate.outbox import Outbox
from gate.paths import Paths
from gate.projections import ProjectionUnusable, set_aside
from gate.projections.lineage import LineageStore
from gate.quotas import DEFAULT, Quotas
from gate.reading.admit import Admission
from gate.recovery import Recovery, set_all_aside, stamp, streams
from gate.shard import Shard
from gate.shared_registry import fetch_registry, publish_registry
from gate.verifying.gaps import blocks_around_gaps
from gate.verifying.survey import Survey
from gate.writing.sequencer import Stored

log = logging.getLogger(__name__)
PENDING_MESSAGES: Final = 65_536
PENDING_BYTES: Final = 256 << 20
# Collecting everything stops all tenants for 280 ms at 25,000 memories, and for longer with more: gate.housekeeping says when.
GC_THRESHOLDS: Final = (2_000, 5, 1 << 30)
OWNED_WAIT_S: Final = 5.0  # for the lock: a gatekeeper that was killed holds it till its memory is given back
OWNED_POLL_S: Final = 0.05


class Owned(CordonError):
    """Another gatekeeper serves this shard."""


@asynccontextmanager
async def owned(path: Path) -> AsyncIterator[None]:
    """The store lock: one owner serves a shard."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle: IO[str] = path.open("a+")
    try:
        deadline = time.monotonic() + OWNED_WAIT_S
        while not _locked(handle):
            if time.monotonic() > deadline:
                raise Owned(f"Another gatekeeper holds {path}.", reason="shard_owned", advice="Stop it first: `cordon down`.")
            await asyncio.sleep(OWNED_POLL_S)
        yield
    finally:
        handle.close()


def _locked(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def connect(paths: Paths, where: Servers) -> tuple[Client, str]:
    """The gatekeeper's connection, and the CORE account that it belongs to."""
    credential = parse_creds(_text(paths.creds))
    core = verify_jwt(credential.jwt).body("user", UserNats).issuer_account

    async def on_reconnected() -> None:
        if _version(nc) < SERVER_VERSION_MIN:
            log.error("the server that answers now is too old to tell who asks: leaving")
            await nc.close()

    nc = where.client()
    await nc.connect(
        **where.options(credential),
        inbox_prefix=f"_INBOX.{credential.key}".encode(),
        error_cb=Troubles(log).told,
        reconnected_cb=on_reconnected,
        pending_size=64 << 20,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_FIRST_S,  # type: ignore[arg-type]  # seconds of any kind, it sleeps for them
        ping_interval=KEPT_PING_S,
        name="cordon-gatekeeper",
        flusher_queue_size=65_536,
    )
    if _version(nc) < SERVER_VERSION_MIN:
        await nc.close()
        raise ConfigError(
            f"The server at {where} is too old: it doesn't protect who asks.",
            reason="server_too_old",
            advice=f"Run nats-server {'.'.join(map(str, SERVER_VERSION_MIN))} or later.",
        )
    return nc, core


def _version(nc: Client) -> tuple[int, int, int]:
    shown = nc.connected_server_version
    return shown.major, shown.minor, shown.patch


def open_lineage(paths: Paths, identities: dict[str, str]) -> LineageStore:
    """The lineage store; one that can't be used is set aside and made anew."""
    paths.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if paths.lineage_doubted.exists():  # it was found damaged while it was in use; opened, it may look whole
        set_aside(paths.lineage, paths.aside(stamp()))
        paths.lineage_doubted.unlink()
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


def no_progress(done: int, of: int) -> None:
    """Nobody wants to know."""


@asynccontextmanager
async def opened(
    paths: Paths,
    where: Servers,
    *,
    accepting: bool = False,
    progress: Callable[[int, int], None] = no_progress,
    listen: Callable[[Shard, Client], Awaitable[None]] | None = None,
    broken: Mapping[str, int] | None = None,
    day: str = "",
) -> AsyncIterator[tuple[Shard, Client]]:
    """A shard replayed to the ledger's end, with its threads running; not serving yet. `accepting`, `progress`, `broken`: see
    Recovery. `day`: see SteadyClock.begin.

    `listen` is called before the replay, so that who asks meanwhile is told how far it is.
    """
    loop = asyncio.get_running_loop()
    nc, core = await connect(paths, where)
    shard: Shard | None = None
    lineage: LineageStore | None = None
    try:
        states = [await stream_state(nc, name) for name in streams(paths.shard)]
        clock = SteadyClock()
        clock.begin(await _newest_ms(nc, paths.shard, states[0].last), day)
        lineage = open_lineage(paths, {"LEDGER": states[0].identity, "READS": states[1].identity})
        operator = _text(paths.operator_jwt).strip()
        registry = _registry(paths, operator)
        shard = Shard(
            paths=paths,
            loop=loop,
            core_account=core,
            registry=registry,
            operator_jwt=operator,
            admission=admission(StaticEmbedder()),
            lineage=lineage,
            stream_identity=states[0].identity,
            clock=clock,
        )
        shard.outbox = Outbox(nc)
        shard.index.start()
        if listen is not None:
            await listen(shard, nc)
        async with connection(paths, where) as records:  # of its own: no acknowledgement waits behind what agents send
            await Recovery(shard, records, progress, accepting=accepting, broken=broken).run()
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


def _text(path: Path) -> str:
    """`ConfigError` (file_missing) where a file that a start needs can't be read: a restart won't bring it."""
    try:
        return path.read_text()
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is no text"
        raise ConfigError(f"{path} can't be read: {why}.", reason="file_missing", advice="Put it back from a copy.") from None


def _registry(paths: Paths, operator: str) -> dict[str, RegistryEntry]:
    try:
        return verify_registry(paths.registry.read_text().strip(), operator)
    except (ConfigError, OSError, ValueError) as e:
        why = e.message if isinstance(e, ConfigError) else e.strerror if isinstance(e, OSError) else "it is no text"
        raise ConfigError(
            f"{paths.registry} can't be used: {why}",
            reason="registry_damaged",
            advice="Put it back from a copy (each snapshot has one), then `cordon tenant add` again each tenant that came later.",
        ) from None


async def _newest_ms(nc: Client, shard: int, last: int) -> int:
    """When the newest block of the ledger was made; 0 where that can't be told: the replay says why."""
    try:
        data = await stored(nc, streams(shard)[0], last) or await erased.instead(nc, shard)(last) if last else None
        return decode(data, last).header.ms if data else 0
    except (Unanswered, LedgerError):
        return 0


class Limits(NamedTuple):
    """What requests are held to."""

    rates: bool = True
    quotas: Quotas = DEFAULT
    read_only: bool = False
    day: str = ""


DEFAULT_LIMITS: Final = Limits()


async def serve(paths: Paths, where: Servers, limits: Limits = DEFAULT_LIMITS) -> None:
    """Serve the shard of a home's own broker until SIGTERM. Raises what stopped it."""
    async with owned(paths.owner_lock):
        await _serve(paths, where, limits)


async def serve_in_turn(paths: Paths, where: Servers, limits: Limits = DEFAULT_LIMITS) -> None:
    """Serve a shard that others may serve too, until SIGTERM: stand by, own it, step down and stand by again."""
    async with owned(paths.owner_lock), connection(paths, where) as nc:  # of its own: no answer delays a renewal
        lease = Lease(nc, paths.shard)
        try:
            while not await _one_turn(paths, where, nc, lease, limits):
                log.info("standing by")
        finally:
            await lease.release()


async def _one_turn(paths: Paths, where: Servers, nc: Client, lease: Lease, limits: Limits) -> bool:
    """Wait for the lease and serve. True: it was stopped on request; False: another gatekeeper came in between."""
    await lease.acquire()
    keeping = asyncio.create_task(lease.keep(), name="lease")
    try:
        await fetch_registry(nc, paths)
        await _serve(paths, where, limits, lease, keeping)
    except SteppedDown as e:
        log.warning("stepping down: %s", e.message)
        return False
    finally:
        gc.unfreeze()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    return True


@asynccontextmanager
async def connection(paths: Paths, where: Servers) -> AsyncIterator[Client]:
    nc, _ = await connect(paths, where)
    try:
        yield nc
    finally:
        with suppress(Exception):
            await asyncio.wait_for(nc.close(), 2)


async def surveyed(paths: Paths, where: Servers) -> dict[str, int]:
    """Account → its first event that can't be trusted, where nothing but these tenants' sections is wrong; else {}."""
    async with connection(paths, where) as nc:
        name = streams(paths.shard)[0]
        survey = Survey(name, lambda what: log.error("%s", what))
        walk = blocks_around_gaps(nc, name, 1, (await stream_state(nc, name)).last, erased.instead(nc, paths.shard))
        async with aclosing(walk):
            async for first, last, data, _ in walk:
                if data is None:
                    survey.gap(first, last)
                else:
                    survey.block(first, data)
        return survey.confined()


async def _serve(
    paths: Paths, where: Servers, limits: Limits, lease: Lease | None = None, keeping: asyncio.Task[None] | None = None
) -> None:
    """Where only some tenants' chains are broken, the others are served."""
    try:
        await _serve_all_but(paths, where, limits, {}, lease, keeping)
    except LedgerCorrupt as e:
        broken = await surveyed(paths, where)
        if not broken:
            raise
        for account, seq in broken.items():
            log.error("tenant %s is stopped at event %d: its ledger can't be trusted from there (%s)", account, seq, e)
        await _serve_all_but(paths, where, limits, broken, lease, keeping)


async def _serve_all_but(
    paths: Paths,
    where: Servers,
    limits: Limits,
    broken: dict[str, int],
    lease: Lease | None,
    keeping: asyncio.Task[None] | None,
) -> None:
    async def begin(shard: Shard, nc: Client) -> None:
        shard.lease = lease
        await listen(shard, nc)

    async with opened(paths, where, listen=begin, broken=broken, day=limits.day) as (shard, nc):
        shard.rates, shard.read_only = limits.rates, limits.read_only
        shard.limit(limits.quotas)
        if lease is not None:
            shard.admin.publish_registry = partial(publish_registry, nc, paths.shard)
            await shard.fence()
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
                ("tending", tending(shard)),
            )
        ]
        await asyncio.to_thread(warm_up, shard)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        shard.state, shard.intake.open = "ready", True
        write_atomically(paths.ready, str(os.getpid()))
        log.info("serving shard %d", shard.number)
        try:
            waits = [asyncio.create_task(stop.wait()), asyncio.create_task(shard.failed.wait()), *pumps]
            watched = waits if keeping is None else [*waits, keeping]
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            shard.state, shard.intake.open = "stopping", False
            for task in done:
                if task in pumps or task is keeping:
                    task.result()  # a dead pump, or a lease that is another's, stops the shard, with its error
            if shard.failure is not None:
                raise shard.failure
            with suppress(TimeoutError):
                await asyncio.wait_for(_quiet(shard), DRAIN_S)
        finally:
            paths.ready.unlink(missing_ok=True)
            for sig in (signal.SIGTERM, signal.SIGINT):
                shard.loop.remove_signal_handler(sig)
            for task in (*pumps, *waits):
                task.cancel()
            await asyncio.gather(*pumps, *waits, return_exceptions=True)


async def listen(shard: Shard, nc: Client) -> None:
    """Subscribe to everything that this shard answers."""
    n = shard.number
    for subject, handler in (
        (f"in.{n}.>", shard.intake.on_memory),
        (f"op.{n}.>", shard.intake.on_operator),
        (f"adm.{n}.>", shard.intake.on_admin),
    ):
        await nc.subscribe(subject, cb=handler, pending_msgs_limit=PENDING_MESSAGES, pending_bytes_limit=PENDING_BYTES)
    await nc.flush()
    await nc.flush()  # the client writes its PING ahead of what is still buffered: one flush proves nothing


async def _quiet(shard: Shard) -> None:
    """Everything accepted is answered, and all are told."""
    while (  # noqa: ASYNC110 - the end of queues of several tasks
        shard.intake.arrivals
        or not shard.writes.quiet
        or shard.sequencer.turns
        or shard.recalls.asks
        or shard.recalls.records
        or any(t.in_flight for t in shard.tenants.values())
        or shard.holds.notices.telling
    ):
        await asyncio.sleep(0.01)
    await shard.outbox.nc.flush()


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


async def rebuild(paths: Paths, where: Servers, accept_by: str | None, day: str = "") -> dict[str, Any]:
    """Offline: move all projections aside, replay everything. With `accept_by`, note who accepted the ledger as it is."""
    async with owned(paths.owner_lock):
        moved = set_all_aside(paths.folder, paths.aside(stamp()))
        async with opened(paths, where, accepting=bool(accept_by), progress=_print_progress, day=day) as (shard, _):
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


def _print_progress(done: int, of: int) -> None:
    print(json.dumps({"progress": {"stage": "replay", "done": done, "of": of}}), flush=True)


async def _accept(shard: Shard, by: str) -> None:
    for t in [t for t in shard.tenants.values() if not t.deleted]:
        gone = [seq for account, seq in shard.bodies_missing if account == t.account]
        parts = [deltas for _, deltas in pack_members(gone)] or [b""]
        ms, position, reads = shard.now_ms(), t.position, shard.reads_missing
        for deltas in parts:
            accepted = E.LedgerAccepted(ms=ms, by=by, position=position, reads_missing=reads, deltas=deltas)
            await shard.sequencer.commit(t, [Stored(accepted)])
