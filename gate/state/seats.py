"""Where the keys of an agent are used from: whether one is in use on two hosts at once, which means that it was copied.

A key alone can't tell. But a connection that is used, then another from a second host, then the first again, was open all the
while. Connections are the broker's word (Nats-Request-Info). Hosts live here only: an address is personal, and what the audit
keeps can't be erased.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

CONNECTIONS_MAX: Final = 16  # of a key, the latest used
HOSTS_MAX: Final = 16
AGAIN_MS: Final = 10 * 60_000  # so often a sharing that goes on is told again
SHARED: Final = "key_shared"  # the audit's code


@dataclass(slots=True)
class Sharing:
    """A key that was used on several hosts at once: since when, when last, from where (as far as this process saw it)."""

    first_ms: int
    last_ms: int
    hosts: set[str] = field(default_factory=set)


class Seats:
    """The connections of one key, latest use last."""

    __slots__ = ("_hosts", "sharing")

    def __init__(self) -> None:
        self._hosts = OrderedDict[tuple[str, int], str]()
        self.sharing: Sharing | None = None

    def used(self, connection: tuple[str, int], host: str, now_ms: int) -> bool:
        """A request came over this connection; whether the audit should hear of a sharing now."""
        if connection in self._hosts:
            since = []
            for other in reversed(self._hosts):
                if other == connection:
                    break
                since.append(self._hosts[other])
            self._hosts.move_to_end(connection)
            found = set(since) - {host}
            return self._shared(found | {host}, now_ms) if found else False
        self._hosts[connection] = host
        if len(self._hosts) > CONNECTIONS_MAX:
            self._hosts.popitem(last=False)
        return False

    def told(self, ms: int) -> None:
        """The audit says so: of the time before a restart."""
        self.sharing = Sharing(ms, ms) if self.sharing is None else self.sharing
        self.sharing.last_ms = max(self.sharing.last_ms, ms)

    def _shared(self, hosts: set[str], now_ms: int) -> bool:
        known = self.sharing
        if known is None:
            known = self.sharing = Sharing(now_ms, now_ms - AGAIN_MS)
        new = hosts - known.hosts if len(known.hosts) < HOSTS_MAX else set()
        known.hosts |= new
        if not new and now_ms - known.last_ms < AGAIN_MS:
            return False
        known.last_ms = now_ms
        return True
