"""The process of a verification: reads both streams to their end and compares all that was made of them.

It stands beside the gatekeeper, which is asked small questions and serves on; where none runs, the stores' files are opened for
reading. Progress and the result are lines of JSON on stdout. Nothing is changed anywhere.
"""

from __future__ import annotations

import asyncio
import gc
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError

from bus import frames, subjects
from bus.errors import CordonError, Unavailable
from bus.frames import AdmVerify, Done
from bus.identity import parse_creds
from bus.limits import CONNECT_TIMEOUT_S
from bus.servers import Servers, servers
from gate.event_loop import loop_factory
from gate.ledger import erased
from gate.ledger import events as E
from gate.ledger.block import Block, ReadsBlock, decode_reads
from gate.ledger.chain import ReadsHead
from gate.ledger.errors import LedgerCorrupt, LedgerError
from gate.ledger.replay import Missing, stream_state
from gate.paths import Paths
from gate.projections import ProjectionUnusable
from gate.projections.lineage import LineageFile
from gate.reads_front import ReadsFront
from gate.verifying.expected import Expected
from gate.verifying.gaps import blocks_around_gaps, nothing_instead
from gate.verifying.live import Live
from gate.verifying.stores import Catalogs, Lineage, StoreAsked, StoreFile
from gate.verifying.survey import Survey

FINDINGS_MAX: Final = 100
ASK_TIMEOUT_S: Final = 30.0  # an answer takes moments; a gatekeeper that was killed takes a few seconds to come back
ASK_AGAIN_S: Final = 0.5
PROGRESS_S: Final = 0.25
EXIT_FOUND: Final = 1
EXIT_REFUSED: Final = 65
EXIT_UNAVAILABLE: Final = 69

Progress = Callable[[str, int, int], None]  # stage, done, of

ACCEPTED: Final = b"ledger_accepted"  # the tag of that event, in its bytes


class Asked(NamedTuple):
    """What to verify: blocks `begin` to `end` (0: the last; begin -n: the newest n); `tenant`: this account alone."""

    begin: int = 1
    end: int = 0
    tenant: str = ""

    @property
    def whole(self) -> bool:
        return self.begin == 1 and self.end == 0


class Verification:
    """One run. `ask` speaks to the gatekeeper; None = none serves. `elsewhere`: its catalogs lie on another machine."""

    def __init__(
        self,
        nc: Client,
        paths: Paths,
        asked: Asked,
        ask: Callable[..., Awaitable[dict[str, Any]]] | None,
        progress: Progress,
        stand_in: Missing | None = None,
        *,
        elsewhere: bool = False,
    ) -> None:
        self.nc, self.paths, self.asked, self.ask, self.progress = nc, paths, asked, ask, progress
        self.elsewhere = elsewhere
        self.stand_in = stand_in or erased.instead(nc, paths.shard)
        self.bare: list[tuple[str, int]] = []  # without their bodies
        self.findings: list[str] = []
        self.count = 0
        self.blocks = self.events = self.memories = self.reads_blocks = 0
        self.names = f"LEDGER_{paths.shard}", f"READS_{paths.shard}"
        self.survey: Survey
        self.expected = Expected(self.found, only=asked.tenant)
        self.reads_head = ReadsHead()
        self.reads_at = 0  # READS blocks up to here are done
        self.encoder = ""

    def found(self, what: str) -> None:
        self.count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(what)

    async def run(self) -> dict[str, Any]:
        started = time.perf_counter()
        cpu = time.process_time()
        there = await self.ask(what="positions") if self.ask else None
        ledger, reads = [await stream_state(self.nc, name) for name in self.names]
        self.front = ReadsFront(reads, int(time.time() * 1000))
        self.reads_at = self.front.missing
        self.catalogs = Catalogs(self.paths, ledger.identity, self.found, elsewhere=self.elsewhere)
        upto, reads_upto = ledger.last, reads.last
        if there is not None:
            upto, reads_upto, self.encoder = there["ledger_seq"], there["reads_seq"], there["encoder"]
            for state, seq in ((ledger, upto), (reads, reads_upto)):
                if state.last < seq:
                    self.found(f"{state.name} ends at {state.last}; {seq} was acknowledged")
            upto, reads_upto = min(upto, ledger.last), min(reads_upto, reads.last)
            if there["lineage_failed"]:
                self.found(f"lineage store: {there['lineage_failed']}")
        self.of = min(self.asked.end or upto, upto)
        if self.asked.begin < 1:
            self.asked = self.asked._replace(begin=max(1, self.of + self.asked.begin + 1))
        self.survey = Survey(self.names[0], self.found, begin=self.asked.begin, only=self.asked.tenant)
        await self.to(self.of, reads_upto if self.asked.whole else 0)
        identities = {self.names[0]: ledger.identity, self.names[1]: reads.identity}
        at = {account: t.position for account, t in self.expected.tenants.items()}
        for account, seq in self.bare if self.asked.whole else ():
            t = self.expected.tenants.get(account)
            if t is not None and not t.deleted and not t.columns.erased[seq]:
                self.found(f"tenant {account}: event {seq} has lost its body, and no erasure names it")
        self.catalogs.erased(self.expected.tenants if self.asked.whole else None)
        self.catalogs.finish(at, self._deleted(), counted=self.asked.whole and not self.expected.torn)
        if self.asked.whole:
            await self._stores(there, identities, upto, reads_upto)
        elif self.ask is None and (file := self._file(identities, upto, reads_upto)):
            file.close()
        return {
            "ok": not self.count,
            "findings": self.findings,
            "findings_count": self.count,
            "scope": {"from": self.asked.begin, "to": self.of, "tenant": self.asked.tenant},
            "blocks": self.blocks,
            "events": self.events,
            "reads_blocks": self.reads_blocks,
            "memories": self.memories,
            "tenants": len(self.expected.tenants),
            "seconds": round(time.perf_counter() - started, 3),
            "cpu_seconds": round(time.process_time() - cpu, 3),
        }

    def _deleted(self) -> set[str]:
        """Accounts of tenants that were deleted: the ledger says so, or, of a part of it, the home."""
        if self.asked.whole:
            return {account for account, t in self.expected.tenants.items() if t.deleted}
        return self.paths.deleted_accounts()

    # --- the walk -----------------------------------------------------------------------------------
    async def to(self, ledger_seq: int, reads_seq: int) -> None:
        """Go on with both streams, in their one order, up to these blocks."""
        begin = max(self.expected.ledger_seq + 1, self.asked.begin)
        walk = blocks_around_gaps(self.nc, self.names[0], begin, ledger_seq, self.stand_in)
        async with aclosing(walk), aclosing(self._reads(reads_seq)) as reads:
            async for first, last, data, stood_in in walk:
                self.expected.ledger_seq = last
                if data is None:
                    self.survey.gap(first, last)
                    continue
                block = self.survey.block(first, data)
                if block is not None:
                    if ACCEPTED in data and any(ACCEPTED in meta for section in block.sections for meta, _ in section.events):
                        self.expected.beside_loss = block.header.reads_seq
                    while self.reads_at < min(block.header.reads_seq, reads_seq) and await anext(reads, None) is not None:
                        pass
                    self._block(block, stood_in)
                self.progress("ledger", first, self.of)
            async for done in reads:
                self.progress("reads", done, reads_seq)

    def _block(self, block: Block, stood_in: bool) -> None:
        self.blocks += 1
        self.front.ledger_block(block.header)
        for section in block.sections:
            if not self.asked.tenant or section.tenant == self.asked.tenant:
                self.catalogs.section(block.header.no, section)
        if not self.asked.whole:
            self._bare(block)
            return
        for account, seq, event, meta, body in self.expected.ledger(block):
            self._event(account, seq, event, meta, body, stood_in)

    def _bare(self, block: Block) -> None:
        """A part of the ledger: bodies and catalogs; nothing that needs all that came before."""
        for section in block.sections:
            if self.asked.tenant and section.tenant != self.asked.tenant:
                continue
            for seq, (meta, body) in enumerate(section.events, section.seq):
                try:
                    event = E.decode_event(meta)
                except msgspec.MsgspecError as e:
                    self.found(f"tenant {section.tenant}: event {seq} (block {block.header.no}) can't be decoded ({e})")
                    continue
                self._event(section.tenant, seq, event, meta, body, stood_in=False)

    def _event(self, account: str, seq: int, event: E.AnyEvent, meta: bytes, body: bytes | None, stood_in: bool) -> None:
        self.events += 1
        self.front.ledger_event(event)
        if body is None and getattr(event, "body", None):
            self.bare.append((account, seq))
        if not isinstance(event, E.MemoryWritten):
            return
        self.memories += 1
        try:
            content = E.decode_memory_body(body[E.SALT_BYTES :]) if body is not None else None
        except (msgspec.MsgspecError, UnicodeDecodeError) as e:
            self.found(f"tenant {account}: the body of memory {seq} can't be decoded ({e})")
            return
        self.catalogs.memory(account, seq, meta, content)
        t = self.expected.tenants.get(account)
        if t is not None and not t.deleted and self.ask is not None:
            mine = content is not None and event.enc == self.encoder
            vector = content.vector if content is not None and mine else None if content is not None else bytes(512)
            self.expected.vectors[account].add(t.projects[event.project].number, vector)

    async def _reads(self, upto: int) -> AsyncGenerator[int, None]:
        """Apply READS blocks one by one; their numbers."""
        name, begin = self.names[1], max(self.reads_at + 1, 1)
        walk = blocks_around_gaps(self.nc, name, begin, upto, nothing_instead)
        async with aclosing(walk):
            async for first, last, data, _ in walk:
                self.reads_at = last
                block = self._reads_block(first, last, data)
                if block is None:
                    self.reads_head = ReadsHead()  # it goes on from what comes next
                else:
                    self.reads_blocks += 1
                    self._records(block)
                yield last

    def _reads_block(self, first: int, last: int, data: bytes | None) -> ReadsBlock | None:
        name = self.names[1]
        if data is None:
            self.front.gap(first, last)
            return None
        try:
            block = decode_reads(data, first)
        except LedgerCorrupt as e:
            self.found(f"{name} block {first}: {e.message}")
            return None
        try:
            self.reads_head.commit(block)
        except LedgerError:
            self.found(f"{name}: block {first} doesn't continue the one before it: one of them isn't what was written")
            self.reads_head = ReadsHead()
            with suppress(LedgerError):
                self.reads_head.commit(block)
        return block

    def _records(self, block: ReadsBlock) -> None:
        for record in block.records:
            with suppress(msgspec.MsgspecError):  # told when it is applied
                self.front.read(E.decode_record(record.data))
        self.expected.reads(block)

    # --- what was made of it ------------------------------------------------------------------------
    async def _stores(self, there: dict[str, Any] | None, identities: dict[str, str], upto: int, reads_upto: int) -> None:
        self.progress("stores", 0, 1)
        if self.ask is not None:
            store: StoreAsked | StoreFile = StoreAsked(self.ask)
            file = None
        else:
            file = self._file(identities, upto, reads_upto)
            if file is None:
                return
            store = StoreFile(file)
        lineage = Lineage(store, self.expected, self.found, pruned=self.front.missing > 0)
        try:
            lost = await self.front.lost(lineage)
            if lost:
                self.found(lost)
            await lineage.compare()
        except ProjectionUnusable as e:
            self.found(f"lineage store: {e.message}")
        finally:
            if file is not None:
                file.close()
        if self.ask is not None and there is not None:
            live = Live(self.ask, self.expected, self.to, self.found)
            for account in list(self.expected.tenants):
                if account in there["broken"]:
                    self.found(
                        f"tenant {account} is stopped at event {there['broken'][account]}: see what is found of its ledger"
                    )
                elif account in there["tenants"]:
                    self.progress("live state", 0, 1)
                    await live.compare(account)
                else:
                    self.found(f"tenant {account} is in the ledger and not served")
            for account, position in there["tenants"].items():
                if position and account not in self.expected.tenants and self.asked.tenant in ("", account):
                    self.found(f"tenant {account} is served and not in the ledger")

    def _file(self, identities: dict[str, str], upto: int, reads_upto: int) -> LineageFile | None:
        if not self.paths.lineage.exists():
            self.found("lineage store: it is missing; the next start makes it anew")
            return None
        try:
            file = LineageFile(self.paths.lineage, {name.split("_")[0]: value for name, value in identities.items()})
        except ProjectionUnusable as e:
            self.found(f"lineage store: {e.message}")
            return None
        for name, end in (("LEDGER", upto), ("READS", reads_upto)):
            if file.positions[name] > end:
                self.found(f"lineage store: it has applied block {file.positions[name]} of {name}, which ends at {end}")
        return file


# --- the process ------------------------------------------------------------------------------------------
class Asker:
    """Questions to the gatekeeper that serves. Unavailable when it doesn't answer; a refusal may pass."""

    def __init__(self, nc: Client, shard: int, key: str) -> None:
        self._nc, self._subject = nc, subjects.admin(shard, "verify", key)

    async def __call__(self, **what: Any) -> dict[str, Any]:
        give_up, answer = time.monotonic() + ASK_TIMEOUT_S, None
        while (left := give_up - time.monotonic()) > 0:
            request = AdmVerify(request_id=secrets.token_hex(8), **what)
            with suppress(NatsError, TimeoutError):
                raw = await self._nc.request(self._subject, frames.encode(request), timeout=left)
                answer = frames.decode_reply(raw.data)
            if isinstance(answer, Done):
                return answer.result
            await asyncio.sleep(ASK_AGAIN_S)  # it is being started again, or its store is behind
        why = answer.message if isinstance(answer, frames.Refusal) else "It doesn't answer."
        raise Unavailable(
            f"The gatekeeper can't be asked about its state: {why}",
            reason="gatekeeper_silent",
            advice="See `cordon status`, then verify again; the walk of the ledger changes nothing.",
        )


async def verify(
    paths: Paths, where: Servers, asked: Asked, progress: Callable[[str, int, int], None], *, live: bool, elsewhere: bool = False
) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        nc = await _connected(where, paths.creds, stack)
        ask = None
        if live:
            key = parse_creds(paths.admin_creds.read_text()).key
            ask = Asker(await _connected(where, paths.admin_creds, stack), paths.shard, key)
        return await Verification(nc, paths, asked, ask, progress, elsewhere=elsewhere).run()


async def _connected(where: Servers, creds: Path, stack: AsyncExitStack) -> Client:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S * len(where.urls)):
            nc = await where.kept(creds, "cordon-verify")
    except TimeoutError:
        raise Unavailable(
            f"The broker at {where} can't be reached.",
            reason="broker_unreachable",
            advice="See whether its server runs, then verify again: nothing was changed.",
        ) from None
    stack.push_async_callback(nc.close)
    return nc


class Lines:
    """Progress, as lines of JSON and not too many."""

    def __init__(self) -> None:
        self._next, self._stage = 0.0, ""

    def __call__(self, stage: str, done: int, of: int) -> None:
        now = time.monotonic()
        if now >= self._next or stage != self._stage:
            self._next, self._stage = now + PROGRESS_S, stage
            print(json.dumps({"progress": {"stage": stage, "done": done, "of": of}}), flush=True)


def run(home: Path, shard: int, url: str, asked: Asked, *, live: bool, elsewhere: bool = False, ca: str = "") -> int:
    """The process. `live`: a gatekeeper serves and is asked; `elsewhere`: its files aren't here. `ca`: PEM of a private CA.

    The exit code; stdout ends with the result or a refusal.
    """
    gc.disable()  # a pass over all that is kept costs more than the few cycles would
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            where = servers(url, ca or None)
            result = runner.run(verify(Paths(home, shard), where, asked, Lines(), live=live, elsewhere=elsewhere))
    except CordonError as e:
        print(json.dumps({"reason": e.reason, "message": e.message, "advice": e.advice}))
        return EXIT_UNAVAILABLE if isinstance(e, Unavailable) else EXIT_REFUSED
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else EXIT_FOUND
