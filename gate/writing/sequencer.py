"""The one writer of a shard: decides serially, appends blocks, applies them to live state, answers, feeds.

Order: decide just before encoding → append (fenced) → apply to live state → index → answer → feed. One block is outstanding;
the next
is decided and appended while the last is indexed. Tenants take turns. An Operation is a barrier: everything before it is
applied and
answered, nothing after it is decided.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from bus import frames
from bus.frames import CLASSIFICATIONS, ORIGINS, FeedKind, Receipt, Redaction
from gate import ids
from gate.config import BLOCK_BYTES_MAX, BLOCK_EVENTS_MAX, EVENT_BYTES_MAX
from gate.identify import Principal
from gate.index_state import NewMemory
from gate.ledger import events as E
from gate.ledger.block import body_hash, event_bytes
from gate.ledger.errors import LedgerFull, TooLarge
from gate.projections.catalog import MemoryRow
from gate.refusals import Refused
from gate.rights import code_here, knows
from gate.state.succession import successor
from gate.state.tenant import Tenant

from .decide import Write, decide

if TYPE_CHECKING:
    from gate.shard import Shard

log = logging.getLogger(__name__)
DECIDING_S: Final = 0.008  # a block is no larger than what is decided meanwhile: the loop serves others too
ANSWERS: Final = 32  # so many receipts leave before the loop serves others
SECTION_BYTES: Final = 192  # a section's head, generously


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that must see everything before it applied: a case, a context's end, the control plane."""

    tenant: str
    run: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Stored:
    """An event to append: its bytes, its body, and the free text that the body holds (for live state)."""

    event: E.AnyEvent
    body: bytes | None = None
    note: str = ""
    meta: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meta", E.encode(self.event))

    @property
    def weight(self) -> int:
        """Bytes that it takes in a block."""
        return event_bytes(self.meta, self.body)


def noted(make: Callable[[bytes], E.AnyEvent], text: str, salt: bytes) -> Stored:
    """An event whose body is a person's free text. `make` gets the body's hash."""
    if not text:
        return Stored(make(b""))
    body = salt + E.encode(E.NoteBody(text=text))
    return Stored(make(body_hash(body)), body, text)


class Sequencer:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.queues: dict[str, deque[Write | Operation]] = {}
        self.turns: deque[str] = deque()
        self.wake = asyncio.Event()
        self.indexing: asyncio.Task[None] | None = None
        # By tenant and idempotency key, from the intake to the answer: what comes again meanwhile is answered with the first.
        self.under_way: dict[tuple[str, bytes], Write] = {}
        self.blocks = self.events = 0

    # --- in ---------------------------------------------------------------------------------------
    def submit(self, tenant: str, item: Write | Operation) -> None:
        queue = self.queues.get(tenant)
        if queue is None:
            queue = self.queues[tenant] = deque()
        if not queue:
            self.turns.append(tenant)
        queue.append(item)
        self.wake.set()

    async def run(self) -> None:
        """Until cancelled. A ledger error that is not a refusal ends it, and with it the shard."""
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self.turns:
                operation = self._next_operation()
                if operation is not None:
                    await self.drained()
                    await operation.run()  # one, then others' writes: whoever asks for one after another stops nobody
                writes = self._decide_block()
                if writes:
                    await self._append_writes(writes)
            if self.indexing:
                await self.drained()

    async def drained(self) -> None:
        """Everything appended so far is indexed and answered."""
        if self.indexing:
            await self.indexing
            self.indexing = None

    def _take(self, tenant: str) -> None:
        queue = self.queues[tenant]
        queue.popleft()
        self.turns.popleft()
        if queue:
            self.turns.append(tenant)

    def _next_operation(self) -> Operation | None:
        for _ in range(len(self.turns)):
            tenant = self.turns[0]
            head = self.queues[tenant][0]
            if isinstance(head, Operation):
                self._take(tenant)
                return head
            self.turns.rotate(-1)
        return None

    # --- writes -----------------------------------------------------------------------------------
    def _decide_block(self) -> list[Write]:
        """Decide on writes, a turn each, until the block is full. An operation ends its tenant's part."""
        out: list[Write] = []
        size, skipped = 0, 0
        sections: set[str] = set()
        named: set[tuple[str, int]] = set()  # what drafts of this block supersede or promote: each once
        now_ms, until = self.shard.now_ms(), time.perf_counter() + DECIDING_S
        while self.turns and skipped < len(self.turns) and len(out) < BLOCK_EVENTS_MAX:
            if out and time.perf_counter() > until:
                break
            tenant = self.turns[0]
            w = self.queues[tenant][0]
            if isinstance(w, Operation) or not named.isdisjoint(_named(tenant, w)):
                self.turns.rotate(-1)
                skipped += 1
                continue
            if out and size + len(w.body) > BLOCK_BYTES_MAX:
                break
            accepted = self._decide(w, now_ms)
            weight = (w.stored.weight if w.stored else 0) + (0 if tenant in sections else SECTION_BYTES)
            if accepted and out and size + weight > BLOCK_BYTES_MAX:
                self._undecide(w)
                break
            self._take(tenant)
            skipped = 0
            if accepted:
                out.append(w)
                sections.add(tenant)
                size += weight
                named |= _named(tenant, w)
        return out

    def _decide(self, w: Write, now_ms: int) -> bool:
        """Whether the write gets an event, or was refused."""
        try:
            self._begin_idle_epoch(w, now_ms)
            w.event = decide(w, self.shard.gate_id, now_ms)
            w.stored = Stored(w.event, w.body)
            if w.stored.weight > EVENT_BYTES_MAX:
                raise Refused("event_too_large", limit=EVENT_BYTES_MAX)
        except Refused as e:
            self.shard.refuse_write(w, e)
            return False
        return True

    def _undecide(self, w: Write) -> None:
        """It didn't fit: it is decided again for the next block, on what holds then."""
        w.event = w.stored = None

    def _begin_idle_epoch(self, w: Write, now_ms: int) -> None:
        ctx = w.context
        if ctx.idle(now_ms, w.principal.tenant.context_idle_ms(w.principal.agent), self.shard.unseen_ms):
            ctx.begin_epoch(ctx.epoch + 1)

    async def _append_writes(self, writes: list[Write]) -> None:
        """Append one block; where the broker finds it too large, each half, down to the one write that is refused."""
        by: dict[str, list[Write]] = {}
        for w in writes:
            by.setdefault(w.principal.tenant.account, []).append(w)
        try:
            self.shard.room.check_draft()  # those that were taken before it filled up
            await self._append({account: [w.stored for w in ws if w.stored] for account, ws in by.items()})
        except LedgerFull:
            self._not_stored(writes, Refused("ledger_full"))
            return
        except Refused as e:
            self._not_stored(writes, e)
            return
        except TooLarge as e:
            if len(writes) == 1:
                log.error("a write of tenant %s is refused: %s", writes[0].principal.tenant.account, e)
                self._not_stored(writes, Refused("event_too_large"))
                return
            half = len(writes) // 2
            await self._append_writes(writes[:half])
            await self._append_writes(writes[half:])
            return
        ledger_seq = self.shard.ledger_seq
        for account, ws in by.items():
            last = self.shard.tenants[account].position
            for i, w in enumerate(ws):
                w.seq = last - len(ws) + 1 + i
                if w.evidence:
                    self.shard.tenants[account].cited.append((w.seq, w.evidence))
        if self.indexing:
            await self.indexing
        self.indexing = asyncio.create_task(self._index_and_answer(by, ledger_seq))

    def _not_stored(self, writes: list[Write], e: Refused) -> None:
        for w in writes:
            self.shard.refuse_write(w, e)

    async def fence(self) -> None:
        """Append a block without events, before anything else is taken: see Shard.fence."""
        await self._append({})

    async def _append(self, events: dict[str, list[Stored]]) -> None:
        """Append one block and apply it to live state."""
        s = self.shard
        payloads = {a: [(x.meta, x.body) for x in stored] for a, stored in events.items()}
        block, data = s.heads.build(shard=s.number, epoch=s.owner_epoch, ms=s.now_ms(), reads_seq=s.reads_seq, events=payloads)
        seq = await s.ledger.append(data)
        s.heads.commit(block)
        s.ledger_seq = seq
        s.room.appended(len(data))
        for section, stored in zip(block.sections, events.values(), strict=True):
            t = s.tenants[section.tenant]
            t.blocks.note(section.seq, seq)
            for at, x in enumerate(stored, section.seq):
                t.apply(at, x.event, x.note, x.weight, len(x.body or b""))
        sections = [(x.tenant, x.seq, [y.event for y in events[x.tenant]]) for x in block.sections]
        s.lineage.put("LEDGER", seq, s.event_rows.ledger(s.tenants, sections, seq))
        self.blocks += 1
        self.events += sum(map(len, events.values()))

    async def _index_and_answer(self, by: dict[str, list[Write]], ledger_seq: int) -> None:
        s = self.shard
        jobs = []
        for account, ws in by.items():
            t = s.tenants[account]
            chain = s.heads.head(account)
            new = [_new_memory(t, w) for w in ws]
            jobs.append((s.indexes[account], new, ledger_seq, ws[-1].seq, chain.hash))

        def index() -> None:
            for tenant_index, new, at, last, chain in jobs:
                tenant_index.apply(new, at, last, chain)

        await s.index.call(index)
        for account, ws in by.items():
            t = s.tenants[account]
            for i, w in enumerate(ws, 1):
                if i % ANSWERS == 0:
                    await asyncio.sleep(0)
                assert w.event is not None
                s.send(w.reply, frames.encode(receipt_of(w.principal, w.seq, w.event, s.now_ms(), w.request_id)))
                for p, reply, request_id in w.also:
                    again = receipt_of(p, w.seq, w.event, s.now_ms(), request_id)
                    s.send(reply, frames.encode(msgspec.structs.replace(again, duplicate=True)))
                s.finished(w)
            self._feed(t, ws)

    def _feed(self, t: Tenant, ws: Sequence[Write]) -> None:
        """One frame per project, classification and kind. User-scope and held-at-write memories aren't fed."""
        groups: dict[tuple[str, int, FeedKind], list[str]] = {}
        for w in ws:
            e = w.event
            assert e is not None
            if e.holds or e.cases:
                continue
            if not e.user and not e.readers and not e.opt_out:
                groups.setdefault((e.project, e.class_, "memory"), []).append(ids.text("mem_", e.id))
            c, old = t.columns, e.supersedes
            in_force = bool(old) and successor(c, old, e.ms) == w.seq
            if in_force and not int(c.user[old]) and not int(c.readers[old]) and not bool(c.opt_out[old]):
                cls = int(c.cls[old])
                groups.setdefault((e.project, cls, "superseded"), []).append(t.memory_id(e.supersedes))
        for (project, cls, kind), found in groups.items():
            self.shard.feed(t, project, cls, kind, found)

    # --- operations -------------------------------------------------------------------------------
    async def commit(self, tenant: Tenant, stored: Sequence[Stored]) -> int:
        """Append events of one tenant, in as many blocks as they need, and apply them. Only within an Operation. The last
        tenant_seq. Refuses before the first one if any is too large to be stored at all.
        """
        if tenant.broken:
            raise Refused("tenant_broken")
        if any(x.weight > EVENT_BYTES_MAX for x in stored):
            raise Refused("event_too_large", limit=EVENT_BYTES_MAX)
        for x in stored:
            self.shard.room.check_event(x.event)
        batch: list[Stored] = []
        size = 0
        for x in stored:
            if batch and (len(batch) >= BLOCK_EVENTS_MAX or size + x.weight > BLOCK_BYTES_MAX):
                await self._append_events(tenant, batch)
                batch, size = [], 0
            batch.append(x)
            size += x.weight
        if batch:
            await self._append_events(tenant, batch)
        s = self.shard
        head, at = s.heads.head(tenant.account), s.ledger_seq
        if not tenant.deleted or tenant.account in s.indexes:  # that it is, is the last that its catalog has
            s.index_later(s.indexes[tenant.account].apply, [], at, tenant.position, head.hash)
        return tenant.position

    async def _append_events(self, tenant: Tenant, batch: list[Stored]) -> None:
        try:
            await self._append({tenant.account: batch})
        except TooLarge:
            if len(batch) == 1:
                raise Refused("event_too_large") from None
            half = len(batch) // 2
            await self._append_events(tenant, batch[:half])
            await self._append_events(tenant, batch[half:])


def _named(tenant: str, w: Write) -> set[tuple[str, int]]:
    return {(tenant, s) for s in (w.supersedes, w.promotes) if s}


def _new_memory(t: Tenant, w: Write) -> NewMemory:
    assert w.stored is not None
    assert w.redacted is not None
    assert w.text is not None
    run, task, session, trace_id, scope_id = w.labels
    row = MemoryRow(w.seq, w.stored.meta, w.redacted.text, w.evidence, run, task, session, trace_id, scope_id)
    assert w.event is not None
    return NewMemory(row, t.projects[w.principal.project].number, w.terms, w.text.vector, not E.is_plain(w.event))


def receipt_of(p: Principal, seq: int, e: E.MemoryWritten, now_ms: int, request_id: str = "") -> Receipt:
    """The receipt of a stored memory for its writer, with its state as of now. Names nothing from elsewhere."""
    t = p.tenant
    agent = t.agents.by_id[e.agent]
    parents = [x.parent for x in e.edges if x.kind == E.DECLARED or knows(p, x.parent, now_ms)]
    heard = {f"flow_down:project:{t.project_names[t.columns.at.project[s]]}" for s in parents}
    reasons = [*dict.fromkeys(x if x in heard else code_here(p, x) for x in e.holds), *e.reasons] or ["within_policy"]
    return Receipt(
        request_id=request_id,
        agent=p.key,
        project=e.project,
        id=ids.text("mem_", e.id),
        state=t.current(seq, now_ms),
        searchable=True,
        trust=t.columns.at.eff[seq] / 1000,
        trust_floor=e.floor / 1000,
        origin=ORIGINS[e.origin],
        classification=CLASSIFICATIONS[e.class_],
        actor=agent.actor(e.key),
        reasons=reasons,
        redactions=[Redaction(type=str(kind), start=int(a), end=int(b)) for kind, a, b in e.red],
        parents=[t.memory_id(s) for s in parents],
        position=seq,
    )
