"""A bounded queue of frames that never loses one silently: what was dropped is reported as a `Gap`, in its place. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

import anyio

from .errors import CordonError

Cause = Literal["overflow", "reconnected"]


@dataclass(frozen=True)
class Gap:
    """Frames are missing here: the queue overflowed, or the connection was down. `lost` counts them where it is known."""

    cause: Cause
    lost: int = 0


class FrameQueue:
    """At most `capacity` frames and `bytes_max` bytes. Frames before a loss come first, then the Gap, then what follows it."""

    def __init__(self, capacity: int, bytes_max: int) -> None:
        self.capacity = capacity
        self.bytes_max = bytes_max
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._gap: Gap | None = None
        self._error: CordonError | None = None
        self._changed = anyio.Event()

    def put(self, frame: bytes) -> None:
        # Behind a gap everything is dropped until the reader has seen it: the order stays true.
        if self._gap or len(self._frames) >= self.capacity or self._bytes + len(frame) > self.bytes_max:
            self.lose("overflow", 1)
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._notify()

    def lose(self, cause: Cause, frames: int = 0) -> None:
        """Note that frames were lost after the queued ones."""
        first = self._gap.cause if self._gap else cause
        self._gap = Gap(first, frames + (self._gap.lost if self._gap else 0))
        self._notify()

    def fail(self, error: CordonError) -> None:
        """End the queue: what is in it can still be read, then `get` raises `error` (the first one given)."""
        self._error = self._error or error
        self._notify()

    async def get(self) -> bytes | Gap:
        """The next frame or gap; waits for one."""
        while True:
            if self._frames:
                frame = self._frames.popleft()
                self._bytes -= len(frame)
                return frame
            if self._gap:
                gap, self._gap = self._gap, None
                return gap
            if self._error:
                raise self._error
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
