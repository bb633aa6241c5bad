"""What an operator imports: find out, hold, release, review, erase.

    async with bus.connect_operator() as desk:
        plan = await desk.plan("mem_01jd…")
        print(plan.count, plan.by_agent, plan.agents_to_tell)
        case = await desk.apply(plan.plan, "the source was forged")
        await desk.release(case.case, "false alarm")

Invariants: a change (apply, hold_now, release, review, close_context, erase, prune, undo_end, a legal hold) is sent again only if
the broker proves that nobody got it, so it never happens twice: when its answer is lost it raises DeadlineExceeded, and
`cases()`, `erasures()` or `ends()` tells what happened. Paged answers come whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Literal, Protocol, Self, TypeVar

import msgspec

from .errors import Conflict, MalformedFrame
from .frames import (
    Answer,
    Case,
    CaseQuery,
    Cases,
    ContextAnswer,
    ContextRequest,
    Erase,
    Erasure,
    ErasureQuery,
    Erasures,
    Hold,
    Kind,
    LegalHold,
    LegalHoldRequest,
    LegalHolds,
    OpsRequest,
    Plan,
    Prune,
    Pruned,
    Prunings,
    Release,
    Review,
    Stats,
    StatsRequest,
    Trace,
    TraceAnswer,
    Why,
    WhyAnswer,
)
from .session import Session, open_session
from .transport import Timing

PRUNE_AFTER_S: Final = 90 * 86_400  # as long as who was served what is kept at least
Selector = str | Sequence[str]
EdgeKind = Literal["declared", "copied", "served"]
A = TypeVar("A", bound=Answer)


class _Page(Protocol):
    @property
    def next(self) -> int | None: ...


P = TypeVar("P", bound=_Page)


class Desk:
    """An operator's desk. `connect_operator` makes it.

    A selector is one of or a list of memory ids, `agent:NAME`, `user:ID`, `run:LABEL`, `source:URI`. Every call may raise Denied,
    Rejected (an id that is unknown or ambiguous, a missing message), Unavailable and DeadlineExceeded.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    # --- hold and release -------------------------------------------------------------------------
    async def plan(self, selector: Selector, suspects: bool = False) -> Plan:
        """What a hold would do, with all members; nothing is changed. Its `plan` id is good for one `apply` within 60 minutes.

        suspects: list probable descendants by `served` edges too.
        """
        return await self._plan(Hold(selector=_selected(selector), dry_run=True, suspects=suspects))

    async def plan_rollback(self, case: str) -> Plan:
        """What takes the projects of a case's roots back to before its first root; `apply_rollback` applies it.

        All that was written into them since is held with what came of it; `again` names what is current then. `release` of the
        case that this opens undoes it.
        """
        return await self._plan(Hold(rollback=case, dry_run=True))

    async def _plan(self, request: Hold) -> Plan:
        first = await self._look(request, Plan)
        pages = await self._rest(
            first, lambda cursor: self._look(msgspec.structs.replace(request, plan=first.plan, cursor=cursor), Plan)
        )
        if any(page.plan != first.plan for page in pages):
            raise Conflict("The plan changed while it was read.", reason="plan_stale", advice="Make a new one.")
        return msgspec.structs.replace(
            first,
            roots=[r for page in pages for r in page.roots],
            members=[m for page in pages for m in page.members],
            suspects=[m for page in pages for m in page.suspects],
            again=[m for page in pages for m in page.again],
            agents_to_tell=[name for page in pages for name in page.agents_to_tell],
            next=None,
        )

    async def apply(self, plan: str, message: str) -> Case:
        """Hold what the plan says. Conflict if it is used, too old, of a rollback, or what it would hold has changed since."""
        return await self._change_case(Hold(plan=plan, message=message))

    async def apply_rollback(self, plan: str, message: str) -> Case:
        """Hold what the plan of a rollback says. Conflict as for `apply`, and if it is of a hold."""
        return await self._change_case(Hold(plan=plan, message=message, kind="rollback"))

    async def hold_now(self, selector: Selector, message: str, suspects: bool = False) -> Case:
        """Plan and hold at once."""
        return await self._change_case(Hold(selector=_selected(selector), now=True, suspects=suspects, message=message))

    async def release(self, case: str, message: str) -> Case:
        """Remove exactly this case's holds. Conflict if it is released already."""
        return await self._change_case(Release(case=case, message=message))

    async def review(self, id: str, verdict: Literal["accept", "reject"], message: str) -> WhyAnswer:
        """Decide on a memory that was held when it was written. Answers what is known of it then."""
        return await self._change(Review(id=id, verdict=verdict, message=message), WhyAnswer)

    # --- erase ------------------------------------------------------------------------------------
    async def plan_erasure(self, selector: Selector, derived: bool = False) -> Erasure:
        """What `erase` would erase, what derives from it (`left`, unless `derived`), and what stands against it."""
        return await self._look(Erase(selector=_selected(selector), derived=derived, dry_run=True), Erasure)

    async def erase(self, selector: Selector, message: str, derived: bool = False) -> Erasure:
        """Erase the text of memories for ever; with `derived` also of what came of them. The receipt.

        Conflict (erasure_contested) where an open case or a legal hold has one of them: another person may then `agree_to_erase`
        `error.detail["request"]`, within 60 minutes.
        """
        return await self._change(Erase(selector=_selected(selector), derived=derived, message=message), Erasure)

    async def agree_to_erase(self, request: str) -> Erasure:
        """The second person's yes to exactly what another one asked for. Denied to the same person."""
        return await self._change(Erase(agree=request), Erasure)

    async def erasure(self, id: str) -> Erasure:
        """A receipt as it is now, with all its members."""
        first = await self._look(ErasureQuery(erasure=id), Erasure)
        pages = await self._rest(first, lambda cursor: self._look(ErasureQuery(erasure=first.erasure, cursor=cursor), Erasure))
        return msgspec.structs.replace(first, members=[m for page in pages for m in page.members], next=None)

    async def erasures(self) -> list[Erasure]:
        """All receipts, newest first, without their members."""
        first = await self._look(ErasureQuery(), Erasures)
        pages = await self._rest(first, lambda cursor: self._look(ErasureQuery(cursor=cursor), Erasures), down=True)
        return [erasure for page in pages for erasure in page.erasures]

    async def place_legal_hold(self, selector: Selector, message: str) -> LegalHold:
        """From now on erasing one of these memories, as far as they exist now, takes two persons. They are read as before."""
        return (await self._change(LegalHoldRequest(selector=_selected(selector), message=message), LegalHolds)).holds[0]

    async def lift_legal_hold(self, hold: str, message: str) -> LegalHold:
        """End it. Denied to any other person than who placed it."""
        return (await self._change(LegalHoldRequest(lift=hold, message=message), LegalHolds)).holds[0]

    async def legal_holds(self) -> list[LegalHold]:
        """All of them, newest first, the lifted ones too."""
        first = await self._look(LegalHoldRequest(), LegalHolds)
        pages = await self._rest(first, lambda cursor: self._look(LegalHoldRequest(cursor=cursor), LegalHolds), down=True)
        return [hold for page in pages for hold in page.holds]

    # --- end what nobody needs --------------------------------------------------------------------
    async def plan_pruning(self, project: str, kinds: Sequence[Kind] = (), older_than_s: int = PRUNE_AFTER_S) -> Pruned:
        """What `prune` would end: memories of the project that are as old, name no source, and that nobody was ever served.

        kinds: only these; none = all but rule, decision, constraint. Nothing is changed; `plan` is good for 60 minutes.
        """
        return await self._look(Prune(action="plan", project=project, kinds=list(kinds), older_than=older_than_s), Pruned)

    async def plan_compaction(self, project: str, task: str) -> Pruned:
        """What `prune` would end of a task that is over: its task-scoped memories, but for what lasts or a person stated.

        Rejected (`task_open`) until a memory of the task says that it is resolved or abandoned.
        """
        return await self._look(Prune(action="plan", project=project, task=task), Pruned)

    async def prune(self, plan: str, message: str) -> Pruned:
        """Have the members of a plan expire, but for those that were read, held or promoted since. `undo_end` takes its `end`."""
        return await self._change(Prune(action="apply", plan=plan, message=message), Pruned)

    async def undo_end(self, end: str, message: str) -> Pruned:
        """Have what one `end` took live on. Conflict if that was done already."""
        return await self._change(Prune(action="undo", end=end, message=message), Pruned)

    async def ends(self) -> list[Pruned]:
        """What was pruned or compacted, or ended with its session, newest first, without members."""
        first = await self._look(Prune(), Prunings)
        pages = await self._rest(first, lambda cursor: self._look(Prune(cursor=cursor), Prunings), down=True)
        return [end for page in pages for end in page.ends]

    # --- find out ---------------------------------------------------------------------------------
    async def case(self, id: str) -> Case:
        """One case with all its roots, members, and agents that were told."""
        return await self._whole_case(await self._look(CaseQuery(case=id), Case))

    async def cases(self) -> list[Case]:
        """All cases, without their members, and with the first of their roots and of those told."""
        first = await self._look(CaseQuery(), Cases)
        pages = await self._rest(first, lambda cursor: self._look(CaseQuery(cursor=cursor), Cases), down=True)
        return [case for page in pages for case in page.cases]

    async def trace(
        self, id: str, direction: Literal["up", "down"], hops: int | None = None, edges: Sequence[EdgeKind] | None = None
    ) -> TraceAnswer:
        """Ancestors (`up`) or descendants (`down`) of a memory, whole. hops None = all; edges None = declared and copied."""
        request = Trace(id=id, direction=direction, hops=hops, edges=list(edges) if edges else None)
        first = await self._look(request, TraceAnswer)
        pages = await self._rest(first, lambda cursor: self._look(msgspec.structs.replace(request, cursor=cursor), TraceAnswer))
        nodes, among = [n for page in pages for n in page.nodes], [e for page in pages for e in page.edges]
        return msgspec.structs.replace(first, nodes=nodes, edges=among, next=None)

    async def why(self, id: str, reveal: bool = False) -> WhyAnswer:
        """Everything known about a memory or a recall. reveal: with its text, which is logged."""
        return await self._look(Why(id=id, reveal=reveal), WhyAnswer)

    async def context(self, agent: str) -> ContextAnswer:
        """What may still be in an agent's head. agent: name or id."""
        return await self._look(ContextRequest(agent=agent), ContextAnswer)

    async def close_context(self, agent: str, message: str) -> ContextAnswer:
        """Declare an agent's head empty: what it was served before no longer marks what it writes."""
        return await self._change(ContextRequest(agent=agent, action="close", message=message), ContextAnswer)

    async def stats(self) -> Stats:
        """Counts of the tenant, as far as this operator may see them."""
        return await self._look(StatsRequest(), Stats)

    async def aclose(self) -> None:
        """Disconnect; calls that wait and later ones raise Closed. `async with` does it by itself."""
        await self._session.transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    # --- how --------------------------------------------------------------------------------------
    async def _look(self, request: OpsRequest, answer: type[A]) -> A:
        return await self._session.ask(request, answer)

    async def _change(self, request: OpsRequest, answer: type[A]) -> A:
        return await self._session.ask(request, answer, repeatable=False)

    async def _change_case(self, request: Hold | Release) -> Case:
        return await self._whole_case(await self._change(request, Case))

    async def _whole_case(self, first: Case) -> Case:
        pages = await self._rest(first, lambda cursor: self._look(CaseQuery(case=first.case, cursor=cursor), Case))
        return msgspec.structs.replace(
            first,
            roots=[r for page in pages for r in page.roots],
            members=[m for page in pages for m in page.members],
            told=[name for page in pages for name in page.told],
            acked=[name for page in pages for name in page.acked],
            next=None,
        )

    async def _rest(self, first: P, ask: Callable[[int], Awaitable[P]], *, down: bool = False) -> list[P]:
        """The first page and all that follow. A cursor that goes back (`down`: up) would never end: MalformedFrame."""
        pages, last = [first], sys.maxsize if down else -1
        while (cursor := pages[-1].next) is not None:
            if (cursor >= last) if down else (cursor <= last):
                raise MalformedFrame(f"The pages don't end: cursor {cursor} follows {last}.", reason="cursor_stuck")
            pages.append(await ask(cursor))
            last = cursor
        return pages


def _selected(selector: Selector) -> list[str]:
    return [selector] if isinstance(selector, str) else list(selector)


@asynccontextmanager
async def connect_operator(
    url: str | Sequence[str] | None = None,
    creds: str | os.PathLike[str] | None = None,
    *,
    name: str = "",
    ca_file: str | None = None,
    timing: Timing | None = None,
) -> AsyncIterator[Desk]:
    """Connect an operator; arguments and errors as for `bus.connect`.

    async with bus.connect_operator(creds="ops.creds") as desk:
        for case in await desk.cases():
            print(case.case, case.state, case.why)
    """
    async with open_session(url, creds, project=None, name=name, ca_file=ca_file, timing=timing) as session:
        yield Desk(session)
