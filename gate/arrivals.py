"""Requests that have come and wait for their turn, sorted by tenant and key before anything is done about them.

Invariant: what waits of a key is bounded and is its own share alone; the calm always have a place; the loop has its turn too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from bus.subjects import Inbound, parse_inbound
from gate.identify import Principal
from gate.quotas import Patience, units
from gate.turns import CALM_IN_FLIGHT, Turns

# Requests that wait for their turn, once more for each 4 KiB: of one key, 64 of which may be in flight, and of all together.
ARRIVED_MAX: Final = 2_048
ARRIVED_ALL_MAX: Final = 65_536
TAKING_S: Final = 0.001  # the loop has other things to do

Serve = Callable[[Principal, str, Msg], None]


class Arrived(NamedTuple):
    """A request that has its turn to come: its subject, parsed, who serves it, and what it counts for meanwhile."""

    at: Inbound
    m: Msg
    serve: Serve
    weight: int


class Arrivals:
    """`take` begins a request whose turn it is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: Patience, take: Callable[[Inbound, Msg, Serve], None]) -> None:
        self._loop, self._patience, self._take = loop, patience, take
        self._turns = Turns[Arrived]()
        self._waiting, self._waiting_all = Counter[str](), 0  # by key
        self._taking = False

    def __bool__(self) -> bool:
        return bool(self._turns)

    def of(self, key: str) -> int:
        """How many of a key wait."""
        return self._waiting.get(key, 0)

    def add(self, m: Msg, serve: Serve) -> None:
        """Queue a request: so a flood in the connection's buffer is sorted at once, and is nobody's queue but its sender's."""
        at = parse_inbound(m.subject)
        if at is None or self._patience.spent(at.key):
            return
        mine = self._waiting.get(at.key, 0)
        if mine >= ARRIVED_MAX or (mine >= CALM_IN_FLIGHT and self._waiting_all >= ARRIVED_ALL_MAX):  # the calm have a place
            self._patience.dropped += 1
            return
        self._turns.add(at.account, at.key.encode(), x := Arrived(at, m, serve, units("write", len(m.data))))
        self._wait(x, x.weight)
        if not self._taking:
            self._taking = True
            self._loop.call_soon(self._take_some)

    def _take_some(self) -> None:
        """Requests by turns, for as long as the loop can do without."""
        until = time.perf_counter() + TAKING_S
        try:
            while self._turns:
                x = self._turns.next()
                self._wait(x, -x.weight)
                self._take(x.at, x.m, x.serve)
                if time.perf_counter() >= until:
                    break
        finally:
            self._taking = bool(self._turns)
            if self._taking:
                self._loop.call_soon(self._take_some)

    def _wait(self, x: Arrived, count: int) -> None:
        self._waiting_all += count
        self._waiting[x.at.key] += count
        if not self._waiting[x.at.key]:
            del self._waiting[x.at.key]
