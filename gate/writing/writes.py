"""The write pump: micro-batches of drafts through the index thread, then to the sequencer in order of arrival."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from gate.config import WRITE_BATCH_MAX
from gate.refusals import Refused

from .decide import Write
from .prepare import prepare

if TYPE_CHECKING:
    from gate.shard import Shard

log = logging.getLogger(__name__)


class Writes:
    """Bounded by the in-flight quotas of agents and tenants."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.queue: deque[Write] = deque()
        self.wake = asyncio.Event()

    def submit(self, w: Write) -> None:
        self.queue.append(w)
        self.wake.set()

    async def run(self) -> None:
        """Until cancelled: whatever queued meanwhile is the next batch. One draft that fails costs no other."""
        s = self.shard
        while True:
            await self.wake.wait()
            self.wake.clear()
            while self.queue:
                batch = [self.queue.popleft() for _ in range(min(len(self.queue), WRITE_BATCH_MAX))]
                for w in await self._prepared(batch):
                    s.sequencer.submit(w.principal.tenant.account, w)

    async def _prepared(self, batch: list[Write]) -> list[Write]:
        s = self.shard
        try:
            await s.index.call(prepare, batch, s.indexes, s.admission.embedder)
            return batch
        except Exception:
            if len(batch) == 1:
                log.exception("a draft could not be prepared")
                s.refuse_write(batch[0], Refused("internal"))
                return []
        return [w for one in batch for w in await self._prepared([one])]
