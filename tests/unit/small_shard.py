"""A shard without a broker, for tests of its pumps: streams are lists of blocks, the index thread runs at once or when told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from bus import frames
from gate.containment.holds import Holds
from gate.event_rows import EventRows
from gate.ledger.block import decode, decode_reads
from gate.ledger.chain import Heads, ReadsHead
from gate.ledger.errors import LedgerFull, TooLarge
from gate.ledger.events import AnyEvent, decode_event
from gate.lifecycle.reports import Reports
from gate.operators import Operators
from gate.reading.ask import Ask
from gate.reading.recalls import Recalls
from gate.refusals import Refused
from gate.room import Room
from gate.shard import Shard
from gate.state.tenant import Tenant
from gate.turns import Pace
from gate.writing.context_texts import ContextTexts
from gate.writing.decide import Write
from gate.writing.sequencer import Sequencer
from gate.writing.writes import Writes

ROOM = (1 << 20) - 256  # what the committer takes


class Stream:
    """Blocks as they were appended. `full_after`: so many more fit."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self.blocks: list[bytes] = []
        self.full_after: int | None = None
        self.answers = asyncio.Event()  # an append waits for it
        self.answers.set()

    async def append(self, data: bytes) -> int:
        await asyncio.sleep(0)
        await self.answers.wait()
        if len(data) > self.room:
            raise TooLarge("STREAM", f"{len(data)} bytes")
        if self.full_after is not None:
            if self.full_after == 0:
                raise LedgerFull("STREAM", "full")
            self.full_after -= 1
        self.blocks.append(data)
        return len(self.blocks)


class Index:
    """The index thread: jobs run in order. `stand_still()` makes them wait until `go_on()`, as a long job would."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.stand_still, self.go_on = self.free.clear, self.free.set

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        await self.free.wait()
        return fn(*args)


class Catalog:
    """Plans and sources, in memory."""

    position = None

    def __init__(self) -> None:
        self.plans: dict[bytes, bytes] = {}
        self.used: set[bytes] = set()
        self.sources: dict[str, list[int]] = {}

    def save_plan(self, plan: bytes, blob: bytes, expires_ms: int, now_ms: int) -> None:
        self.plans[plan] = blob

    def load_plan(self, plan: bytes, now_ms: int) -> bytes | None:
        return None if plan in self.used else self.plans.get(plan)

    def plan_ids(self, now_ms: int) -> list[bytes]:
        return [x for x in self.plans if x not in self.used]

    def use_plan(self, plan: bytes, now_ms: int) -> bool:
        self.used.add(plan)
        return True

    def find_source(self, uri: str) -> list[int]:
        return self.sources.get(uri, [])


class TenantIndex:
    def __init__(self) -> None:
        self.catalog = Catalog()
        self.applied: list[int] = []

    def apply(self, new: list[Any], at: int, last: int, chain: bytes) -> None:
        self.applied.append(last)


class SmallShard:
    """As much of `gate.shard.Shard` as sequencer, recalls and holds use, around one tenant of a `Story`."""

    number, owner_epoch, gate_id = 0, 1, ""

    def __init__(self, tenant: Tenant, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.unseen_ms: Callable[[int], int] = lambda _: 0
        self.loop = asyncio.get_running_loop()
        self.tenants = {tenant.account: tenant}
        self.indexes = {tenant.account: TenantIndex()}
        self.heads, self.reads_head = Heads(), ReadsHead()
        self.follow(tenant)
        self.ledger, self.reads = Stream(), Stream()
        self.ledger_seq = self.reads_seq = 0
        self.event_rows = EventRows()
        self.event_rows.numbers[tenant.account] = 0
        self.lineage = self
        self.index, self.room, self.pace = Index(), Room(), Pace()
        self.intake = SimpleNamespace(calm=lambda p: True)  # everybody is calm
        self.sent: list[bytes] = []
        self.refused: list[Refused] = []
        me = cast(Shard, self)
        self.sequencer, self.recalls, self.holds, self.operators = Sequencer(me), Recalls(me), Holds(me), Operators(me)
        self.writes, self.reports = Writes(me), Reports(me)
        self.context_texts = ContextTexts()

    def follow(self, tenant: Tenant) -> None:
        """The story told some events itself: they count as appended."""
        self.heads.tenants[tenant.account] = self.heads.head(tenant.account)._replace(seq=tenant.position)

    def put(self, stream: str, seq: int, rows: object) -> bool:
        return True

    def send(self, subject: str, data: bytes) -> None:
        self.sent.append(data)

    def refuse_write(self, w: Write, e: Refused) -> None:
        self.refused.append(e)

    def refuse_ask(self, a: Ask, e: Refused) -> None:
        self.refused.append(e)

    def finished(self, w: Write) -> None:
        pass

    def ask_finished(self, a: Ask) -> None:
        pass

    def feed(self, *what: object) -> None:
        pass

    def push_notice(self, *what: object) -> None:
        pass

    def index_later(self, fn: Callable[..., Any], *args: Any) -> None:
        task = self.loop.create_task(self.index.call(fn, *args))
        task.add_done_callback(lambda _: None)

    # --- what a test asks -------------------------------------------------------------------------
    def events(self) -> list[list[AnyEvent]]:
        """The events of each block of the ledger."""
        blocks = [decode(data, no) for no, data in enumerate(self.ledger.blocks, 1)]
        return [[decode_event(meta) for section in b.sections for meta, _ in section.events] for b in blocks]

    def records(self) -> list[int]:
        """How many records each block of READS holds."""
        return [len(decode_reads(data, no).records) for no, data in enumerate(self.reads.blocks, 1)]

    def replies(self) -> list[frames.Frame]:
        return [frames.decode_reply(data) for data in self.sent]


async def while_running(shard: SmallShard, done: Callable[[], bool]) -> None:
    """Run the sequencer and the read pump until `done`; whatever ends a pump is raised."""
    pumps = [asyncio.create_task(work) for work in (shard.sequencer.run(), shard.recalls.run_asks(), shard.recalls.run_records())]
    try:
        async with asyncio.timeout(20):
            while not done():
                for pump in pumps:
                    if pump.done():
                        pump.result()
                await asyncio.sleep(0.001)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
