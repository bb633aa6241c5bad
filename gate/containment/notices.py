"""Who is told: notices to exactly the agents that were served a member, and ids on the feeds.

Invariant: however many there are to tell, nobody else waits for it longer than a slice: the first slice of notices is sent at
once, the others, and the feeds a page at a time, between what else the loop has to do.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from bus.frames import CaseStatus, FeedKind, Notice, NoticeKind
from bus.limits import GET_IDS_MAX, PAGE_ITEMS_MAX
from gate.ledger import events as E
from gate.state.cases import CaseState
from gate.state.columns import REVIEW_PENDING, REVIEW_REJECTED
from gate.state.principals import Agent
from gate.state.tenant import Tenant
from gate.steps import Steps
from gate.writing.sequencer import Stored

if TYPE_CHECKING:
    from gate.shard import Shard

log = logging.getLogger(__name__)
NOTICE_IDS_MAX: Final = GET_IDS_MAX
TOLD_MAX: Final = 4_096  # agents that one event names: 74 KB
KEPT_MAX: Final = 4_096  # of what agents were served of cases: 4 MB
SLICE_S: Final = 0.004  # of the loop, for telling, before others have their turn


class Mine(NamedTuple):
    """What an agent was served of a case, while that has this state and so many that joined it."""

    state: tuple[CaseStatus, int]
    first: list[int]
    total: int


def notices_of(case: CaseState, kind: NoticeKind, told: Sequence[Agent], now_ms: int) -> list[Stored]:
    """The events that name whom it concerns; a popular memory was served to more agents than one event has room for."""
    parts = (told[i : i + TOLD_MAX] for i in range(0, len(told), TOLD_MAX))
    return [Stored(E.NoticeSent(ms=now_ms, case=case.id, kind=kind, agents=[a.id for a in part])) for part in parts]


class Notices:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._mine: dict[tuple[str, bytes, int], Mine] = {}  # by account, case and agent number, newest last
        self._telling: deque[Steps[None]] = deque()  # one for each case that somebody is still to be told of
        self._feeding: deque[Iterator[None]] = deque()  # one for each change that feeds are still to hear of

    def notice(self, t: Tenant, case: CaseState, kind: NoticeKind, agent: Agent, key: str) -> Notice:
        """What the holder of one of an agent's keys is told: only ids that the agent was served itself."""
        mine = self._served(t, case, agent)
        return Notice(
            notice=f"{case.text}.{kind}",
            kind=kind,
            agent=key,
            case=case.text,
            ids=[t.memory_id(s) for s in mine.first],
            total=mine.total,
            position=t.position,
        )

    def _served(self, t: Tenant, case: CaseState, agent: Agent) -> Mine:
        """What of a case an agent was served, as it was when it was told first: `sync` may be asked again and again, and of ten
        thousands of members it takes milliseconds.
        """
        key, state = (t.account, case.id, agent.number), (case.state, len(case.joined))
        kept = self._mine.get(key)
        if kept is not None and kept.state == state:
            return kept
        found = t.served_to.those(agent.number, case.all_members().tolist())
        mine = Mine(state, found[:NOTICE_IDS_MAX], len(found))
        self._mine.pop(key, None)
        if len(self._mine) >= KEPT_MAX:
            del self._mine[next(iter(self._mine))]
        self._mine[key] = mine
        return mine

    def tell(self, t: Tenant, case: CaseState, kind: NoticeKind) -> None:
        """Tell all who were served a member and haven't said yet that they know."""
        self._telling.append(self._told(t, case, kind))
        if len(self._telling) == 1:
            self._send()

    def _send(self) -> None:
        over = time.perf_counter() + SLICE_S
        while self._telling:
            try:
                next(self._telling[0])
            except StopIteration:
                self._telling.popleft()
            except Exception:  # the others are told all the same, and these at the next round
                log.exception("telling of a case broke off")
                self._telling.popleft()
            if self._telling and time.perf_counter() >= over:
                self.shard.loop.call_soon(self._send)
                return

    def _told(self, t: Tenant, case: CaseState, kind: NoticeKind) -> Steps[None]:
        for number in sorted(case.told):
            agent, now_ms = t.agents.all[number], self.shard.now_ms()
            if not t.deleted and (case.id, kind) in t.notices.get(number, {}):
                for key in (k for k in agent.keys if agent.stands(k, now_ms)):  # who is over hears nothing
                    self.shard.push_notice(t, key, self.notice(t, case, kind, agent, key))
            yield

    def feed(self, t: Tenant, case: CaseState, kind: FeedKind) -> None:
        self.feed_members(t, case.all_members(), kind)

    def feed_members(self, t: Tenant, members: npt.NDArray[np.int32], kind: FeedKind) -> None:
        """Whom it concerns is settled now; what is sent follows, in the order of the changes."""
        c = t.columns
        fed = (c.user[members] == 0) & (c.readers[members] == 0) & ~c.opt_out[members]
        fed &= ~np.isin(c.review[members], (REVIEW_PENDING, REVIEW_REJECTED))  # nobody was told of those
        if kind == "released":
            fed &= c.held[members] == 0  # the others are held all the same
        self._feeding.append(self._pages(t, members[fed], kind))
        if len(self._feeding) == 1:
            self.shard.loop.call_soon(self._feed_page)

    @property
    def telling(self) -> bool:
        """Whether somebody is still to be told of something."""
        return bool(self._telling or self._feeding)

    def _feed_page(self) -> None:
        try:
            next(self._feeding[0])
        except StopIteration:
            self._feeding.popleft()
        except Exception:  # else no feed would hear of anything any more
            log.exception("feeding a change broke off")
            self._feeding.popleft()
        if self._feeding:
            self.shard.loop.call_soon(self._feed_page)

    def _pages(self, t: Tenant, members: npt.NDArray[np.int32], kind: FeedKind) -> Iterator[None]:
        c = t.columns
        groups = c.project[members].astype(np.int32) << 8 | c.cls[members]  # one number each: pairs sort in ten times the time
        for group in np.unique(groups).tolist():
            project, cls = divmod(group, 1 << 8)
            found = members[groups == group].tolist()
            for i in range(0, len(found), PAGE_ITEMS_MAX):
                if t.deleted:
                    return
                page = [t.memory_id(s) for s in found[i : i + PAGE_ITEMS_MAX]]
                self.shard.feed(t, t.project_names[project], cls, kind, page)
                yield
