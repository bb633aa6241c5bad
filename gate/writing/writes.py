"""The write pump: micro-batches of drafts through the index thread, then to the sequencer: of one context in order of arrival.

Contexts take turns, the calm and the crowd apart (gate/turns.py), and what is slow (large texts, or a context that was served
much since it last wrote) holds up nobody else: its batch goes on in slices while later batches of other contexts overtake it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from gate.config import CROWD_WRITES_MAX, WRITE_BATCH_BYTES, WRITE_BATCH_MAX
from gate.index_thread import Place, Work
from gate.refusals import Refused
from gate.turns import Lanes, Turns

from .decide import Write
from .prepare import prepare

if TYPE_CHECKING:
    from gate.shard import Shard

log = logging.getLogger(__name__)
CATCH_UP_MAX: Final = 64  # texts that a context is behind: some ten milliseconds
Key = tuple[str, bytes]  # tenant, context


class Writes:
    """Bounded by the in-flight quotas of agents and tenants.

    Invariant: a context has drafts in one batch at a time. Two would look for lineage in texts of it that one of them is still
    bringing up to date: the other would miss what its agent was served.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.lanes = Lanes[Write](shard.pace)
        self.busy: dict[Key, deque[Write]] = {}  # contexts with drafts in a batch, and what they sent since
        self.left = Counter[Key]()  # how many of these drafts aren't prepared yet
        self.newest: dict[Key, Write] = {}  # of each context with drafts that aren't prepared yet

    def submit(self, w: Write) -> None:
        """Queue a draft."""
        self.newest[_key(w)] = w
        later = self.busy.get(_key(w))
        if later is not None:
            later.append(w)
        else:
            self._queue(w)

    def _queue(self, w: Write) -> None:
        self.lanes.add(*_key(w), w, calm=self.shard.intake.calm(w.principal))

    @property
    def quiet(self) -> bool:
        """Nothing is queued or under way."""
        return not self.newest

    async def prepared(self, key: Key) -> None:
        """Until what a context has sent so far is with the sequencer, before whatever that is given next, or refused."""
        w = self.newest.get(key)
        if w is not None:
            w.prepared = w.prepared or self.shard.loop.create_future()
            await asyncio.shield(w.prepared)

    async def run(self) -> None:
        """Until cancelled. Whatever queued meanwhile is the next batch."""
        await self.lanes.run(self._calm_batch, self._crowd_batch)

    async def _calm_batch(self) -> None:
        """Nobody waits for a context that has much to catch up with."""
        batch = _next(self.lanes.calm, WRITE_BATCH_MAX)
        contexts = {_key(w): w.context for w in batch}
        late = {key for key, ctx in contexts.items() if self.shard.context_texts.behind(key, ctx) > CATCH_UP_MAX}
        quick, slow = [w for w in batch if _key(w) not in late], [w for w in batch if _key(w) in late]
        if slow:
            self._begin(slow, "behind")
        if quick:
            await self._begin(quick).parted

    async def _crowd_batch(self, shared: bool) -> None:
        batch = _next(self.lanes.crowd, CROWD_WRITES_MAX if shared else WRITE_BATCH_MAX)
        await self._begin(batch, "crowd").parted

    def _begin(self, batch: list[Write], place: Place = "short") -> Work:
        for w in batch:
            if _key(w) not in self.busy:  # what the batch had no room for waits for it, too
                self.busy[_key(w)] = self.lanes.take(*_key(w))
            self.left[_key(w)] += 1
        return self._prepare(batch, deque(), place)

    def _prepare(self, batch: list[Write], alone: deque[Write], place: Place) -> Work:
        """One draft that fails costs no other: what is left of its batch is prepared one by one (`alone`)."""
        s = self.shard
        waiting = {id(w): w for w in batch}

        def deliver(w: Write) -> None:
            del waiting[id(w)]
            s.sequencer.submit(w.principal.tenant.account, w)
            self._prepared(w)

        def ended(done: asyncio.Future[None]) -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                if len(batch) > 1:
                    alone.extend(waiting.values())
                else:
                    log.error("a draft could not be prepared", exc_info=error)
                    s.refuse_write(batch[0], Refused("internal"))
                    self._prepared(batch[0])
            if alone:
                self._prepare([alone.popleft()], alone, place)

        work = s.index.work(prepare(batch, s.indexes, s.admission.embedder), deliver, place)
        work.done.add_done_callback(ended)
        return work

    def _prepared(self, w: Write) -> None:
        """When the last draft of a context is, those that it sent meanwhile have their turn."""
        key = _key(w)
        if w.prepared is not None:
            w.prepared.set_result(None)
        if self.newest[key] is w:
            del self.newest[key]
        self.left[key] -= 1
        if not self.left[key]:
            del self.left[key]
            for later in self.busy.pop(key):
                self._queue(later)


def _next(turns: Turns[Write], most: int) -> list[Write]:
    batch: list[Write] = []
    size = 0
    while turns and len(batch) < most and size < WRITE_BATCH_BYTES:
        batch.append(w := turns.next())
        size += w.size
    return batch


def _key(w: Write) -> Key:
    return w.principal.tenant.account, w.context.id
