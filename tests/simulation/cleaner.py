"""The janitor of a simulation: the real one, on a connection of its own. Killed, it begins again with nothing in its head."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from gate.janitor import Janitor

from .broker import Broker, Connection

KEY: Final = "UJANITOR"
AGAIN_S: Final = 1.0


class Cleaner:
    def __init__(self, broker: Broker) -> None:
        self._broker, self._loop = broker, asyncio.get_running_loop()
        self._begin()

    def _begin(self) -> None:
        nc: Any = Connection(self._broker, self)
        self._nc = nc
        self._task = self._loop.create_task(Janitor(nc, KEY).run(), name="janitor")

    def kill_soon(self) -> None:
        self._nc.drop()
        self._task.cancel()
        self._loop.call_later(AGAIN_S, self._begin)

    async def ended(self) -> None:
        """Its end. Raises whatever it met that it shouldn't."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
