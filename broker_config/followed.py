"""A home that was restored to look at, beside the one that it was made of: what is revoked there later is revoked here, too.

Both have the same operator, keys and credentials, and agents read in both. So whoever is cut, rotated, suspended or deleted in
the live home is cut here: before the broker starts, and within LOOK_S while it is up.

Invariant: only ever more is revoked; what the live home lifts again stays revoked here until the next restore. A home that agents
may write in follows nobody: it is the one that goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio

from .control import Control
from .home import Home, write_private
from .processes import POLL_S, try_lock
from .trust import EVERYBODY, Trust

LOOK_S: Final = 5.0
PUSH_S: Final = 5.0  # the supervisor waits for the broker's answer
ALONE_S: Final = 2.0


class Followed:
    """What `home` takes over. Times of `tick` are seconds of any one clock."""

    def __init__(self, home: Home) -> None:
        self.home, self._trust = home, Trust(home, time.time)
        self._next = 0.0
        self._unpushed: set[str] = set()  # tenants

    def before_start(self) -> None:
        """While the broker is down: it reads the accounts from its folder. All, for a kill may have kept one from it."""
        source = self._source()
        if source is None:
            return
        self._unpushed = set(self._trust.tenant_names())
        with self._alone(ALONE_S):  # whoever holds it longer changes nothing: the broker is down
            self._cut(source)
        for tenant in map(self._trust.tenant, sorted(self._unpushed)):
            write_private(self.home.broker_jwt / f"{tenant.account}.jwt", self._trust.tenant_jwt(tenant))
        self._unpushed.clear()

    def tick(self, now: float) -> None:
        """While it is up. CordonError and OSError: it is tried again at the next look, as beside another change."""
        if now < self._next:
            return
        self._next = now + LOOK_S
        source = self._source()
        if source is not None:
            with self._alone(0.0) as alone:
                if alone:
                    self._cut(source)
        if self._unpushed:
            anyio.run(self._push)

    async def _push(self) -> None:
        with anyio.fail_after(PUSH_S):
            async with Control(self.home) as control:
                for name in sorted(self._unpushed):
                    await control.push_account(self._trust.tenant_jwt(self._trust.tenant(name)))
                    self._unpushed.discard(name)

    @contextmanager
    def _alone(self, wait_s: float) -> Iterator[bool]:
        """Whether nobody else changes the trust tree meanwhile."""
        deadline = time.monotonic() + wait_s
        with self.home.trust_lock.open("a") as lock:
            while not (locked := try_lock(lock.fileno())) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            yield locked

    def _cut(self, source: Home) -> None:
        """Revoke what is revoked there. Who is cut is noted first: the next tenant's files may be damaged."""
        there = Trust(source, time.time)
        for name in self._trust.tenant_names():
            revoked = {EVERYBODY: 0} if source.deleted(name).exists() else there.revocations(name)
            mine = self._trust.revocations(name)
            more = [key for key, at in revoked.items() if mine.get(key, -1) < at]
            if more:
                self._unpushed.add(name)
                self._trust.revoke(self._trust.tenant(name), more, at=max(revoked[key] for key in more))

    def _source(self) -> Home | None:
        """The home that this one was made of, if it is there and this one is for looking."""
        if not self.home.restored.exists():
            return None
        made = json.loads(self.home.restored.read_bytes())
        looked_at = self.home.settings().read_only or made.get("only")
        source = Home(Path(made["source"])) if made.get("source") and looked_at else None
        if source is None or not source.operator_jwt.exists():
            return None
        same = source.operator_jwt.read_bytes() == self.home.operator_jwt.read_bytes()
        return source if same else None
