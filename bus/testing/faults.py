"""What goes wrong between a client and the bus, and when: said beforehand by a test. Pure.

    faults = FaultPlan().unavailable("query", times=2).drop_reply("write")

Each attempt of a request meets at most one fault: the first one planned that fits it and isn't used up. The client's own retries
are attempts too, so `times` says how often it must try before it succeeds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

FaultKind = Literal["drop_reply", "delay", "duplicate", "unavailable", "deny"]


class Fault(NamedTuple):
    kind: FaultKind
    seconds: float = 0.0


@dataclass
class _Planned:
    fault: Fault
    verb: str
    agent: str
    left: int

    def fits(self, verb: str, agent: str) -> bool:
        return bool(self.left) and self.verb in ("", verb) and self.agent in ("", agent)


class FaultPlan:
    """Faults for a `verb` (write, query, get, ack, sync; hold, release, case …; "" = any) of an `agent` ("" = any)."""

    def __init__(self) -> None:
        self._planned: list[_Planned] = []
        self._lock = threading.Lock()  # clients may live on several threads

    def drop_reply(self, verb: str = "", *, agent: str = "", times: int = 1) -> Self:
        """It is done, but its answer is lost. The client learns it at once, as the time-out it would have been."""
        return self._plan(Fault("drop_reply"), verb, agent, times)

    def delay(self, seconds: float, verb: str = "", *, agent: str = "", times: int = 1) -> Self:
        """It is done at once, and its answer comes `seconds` of real time later: a time-out, if that is longer."""
        return self._plan(Fault("delay", seconds), verb, agent, times)

    def duplicate(self, verb: str = "", *, agent: str = "", times: int = 1) -> Self:
        """It arrives twice, and is answered twice."""
        return self._plan(Fault("duplicate"), verb, agent, times)

    def unavailable(self, verb: str = "", *, agent: str = "", times: int = 1) -> Self:
        """Nobody is there to get it."""
        return self._plan(Fault("unavailable"), verb, agent, times)

    def deny(self, verb: str = "", *, agent: str = "", times: int = 1) -> Self:
        """The broker forbids it (Denied, `permission_violation`): nobody gets it."""
        return self._plan(Fault("deny"), verb, agent, times)

    @property
    def left(self) -> int:
        """How many planned faults no request has met yet: a test that counts on them ends with `assert not faults.left`."""
        return sum(p.left for p in self._planned)

    def clear(self) -> None:
        """From now on everything works."""
        with self._lock:
            self._planned.clear()

    def take(self, verb: str, agent: str) -> Fault | None:
        """The fault that this attempt meets; it is used up by it."""
        with self._lock:
            planned = next((p for p in self._planned if p.fits(verb, agent)), None)
            if planned is None:
                return None
            planned.left -= 1
            return planned.fault

    def _plan(self, fault: Fault, verb: str, agent: str, times: int) -> Self:
        if times < 1:
            raise ValueError("A fault happens at least once: times must be 1 or more.")
        self._planned.append(_Planned(fault, verb, agent, times))
        return self
