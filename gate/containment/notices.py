"""Who is told: notices to exactly the agents that were served a member, and ids on the feeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from bus.frames import FeedKind, Notice, NoticeKind
from bus.limits import GET_IDS_MAX, PAGE_ITEMS_MAX
from gate.ledger import events as E
from gate.state.cases import CaseState
from gate.state.columns import REVIEW_PENDING, REVIEW_REJECTED
from gate.state.principals import Agent
from gate.state.tenant import Tenant
from gate.writing.sequencer import Stored

if TYPE_CHECKING:
    from gate.shard import Shard

NOTICE_IDS_MAX: Final = GET_IDS_MAX
TOLD_MAX: Final = 4_096  # agents that one event names: 74 KB


def notices_of(case: CaseState, kind: NoticeKind, told: Sequence[Agent], now_ms: int) -> list[Stored]:
    """The events that name whom it concerns; a popular memory was served to more agents than one event has room for."""
    parts = (told[i : i + TOLD_MAX] for i in range(0, len(told), TOLD_MAX))
    return [Stored(E.NoticeSent(ms=now_ms, case=case.id, kind=kind, agents=[a.id for a in part])) for part in parts]


class Notices:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def notice(self, t: Tenant, case: CaseState, kind: NoticeKind, agent: Agent, key: str) -> Notice:
        """What the holder of one of an agent's keys is told: only ids that the agent was served itself."""
        mine = [s for s in case.all_members().tolist() if t.was_served(agent, s)]
        return Notice(
            notice=f"{case.text}.{kind}",
            kind=kind,
            agent=key,
            case=case.text,
            ids=[t.memory_id(s) for s in mine[:NOTICE_IDS_MAX]],
            total=len(mine),
            position=t.position,
        )

    def tell(self, t: Tenant, case: CaseState, kind: NoticeKind) -> None:
        now_ms = self.shard.now_ms()
        for number in sorted(case.told):
            agent = t.agents.all[number]
            if (case.id, kind) in t.notices.get(number, {}):
                for key in (k for k in agent.keys if agent.stands(k, now_ms)):  # who is over hears nothing
                    self.shard.push_notice(t, key, self.notice(t, case, kind, agent, key))

    def feed(self, t: Tenant, case: CaseState, kind: FeedKind) -> None:
        self.feed_members(t, case.all_members(), kind)

    def feed_members(self, t: Tenant, members: npt.NDArray[np.int32], kind: FeedKind) -> None:
        c = t.columns
        fed = (c.user[members] == 0) & (c.readers[members] == 0) & ~c.opt_out[members]
        fed &= ~np.isin(c.review[members], (REVIEW_PENDING, REVIEW_REJECTED))  # nobody was told of those
        if kind == "released":
            fed &= c.held[members] == 0  # the others are held all the same
        members = members[fed]
        groups = c.project[members].astype(np.int32) << 8 | c.cls[members]  # one number each: pairs sort in ten times the time
        for group in np.unique(groups).tolist():
            project, cls = divmod(group, 1 << 8)
            found = members[groups == group].tolist()
            for i in range(0, len(found), PAGE_ITEMS_MAX):
                page = [t.memory_id(s) for s in found[i : i + PAGE_ITEMS_MAX]]
                self.shard.feed(t, t.project_names[project], cls, kind, page)
