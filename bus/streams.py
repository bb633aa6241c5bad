"""What the bus pushes: the feed of a project, and the notices to one agent. Bounded; never silently incomplete.

Invariants: a frame for somebody else, or of another type, is dropped (a receipt aimed at a feed subject is not a feed frame); a
gap in the feed is raised; a gap in the notices is healed by `sync`, and each notice comes once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from . import limits, subjects
from .errors import Denied, MalformedFrame, Rejected, Unavailable
from .frames import CLASSIFICATIONS, Classification, Feed, FeedKind, Notice, Synced, decode_push
from .queue import Gap
from .session import Session
from .transport import Subscription

F = TypeVar("F", Feed, Notice)

NOTICES_REMEMBERED: Final = 4_096  # ids by which repeats are known; far above what one agent has open at a time


class FrameStream(Generic[F]):
    """Frames in order, by `async for`. Listening begins with the loop, or earlier with `async with stream:`."""

    def __init__(self, session: Session, patterns: Sequence[str], capacity: int) -> None:
        self._session = session
        self._patterns = patterns
        self._capacity = capacity
        self._subscription: Subscription | None = None

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[F]:
        opened_here = self._subscription is None
        await self._open()
        try:
            while True:
                yield await self._next()
        finally:
            if opened_here:
                await self.aclose()

    async def aclose(self) -> None:
        """Stop listening. Harmless when it is closed already."""
        subscription, self._subscription = self._subscription, None
        if subscription:
            await subscription.aclose()

    async def _open(self) -> None:
        if self._subscription is None:
            self._subscription = await self._session.transport.subscribe(self._patterns, self._capacity)

    async def _receive(self) -> Feed | Notice | Gap | None:
        """The next frame or gap; None for what is no frame at all."""
        assert self._subscription is not None, "opened by __aenter__ or __aiter__"
        data = await self._subscription.receive()
        if isinstance(data, Gap):
            return data
        try:
            frame: Feed | Notice = decode_push(data)
        except MalformedFrame:
            return None
        return frame

    async def _next(self) -> F:
        raise NotImplementedError


class FeedStream(FrameStream[Feed]):
    """Ids and positions of what changed in one project. `position` is that of the last frame."""

    def __init__(self, session: Session, project: str, classifications: Sequence[str], kinds: Sequence[str]) -> None:
        tenant = session.credential.tenant
        patterns = [subjects.feed(tenant, project, c, k) for c in classifications for k in kinds or ("*",)]
        super().__init__(session, patterns, limits.FEED_QUEUE_FRAMES)
        self._project = project
        self.position = 0

    async def _next(self) -> Feed:
        while True:
            frame = await self._receive()
            if isinstance(frame, Gap):
                raise self._gap(frame)
            if isinstance(frame, Feed) and frame.project == self._project:
                self.position = max(self.position, frame.position)
                return frame

    def _gap(self, gap: Gap) -> Unavailable:
        what = f"{gap.lost} frames were dropped, read faster" if gap.cause == "overflow" else "the connection was down"
        return Unavailable(
            f"The feed of {self._project!r} has a gap after position {self.position}: {what}.",
            reason="feed_gap",
            advice="Query again for what you need, then go on with the feed.",
            retry_after_s=0.0,
        )


class NoticeStream(FrameStream[Notice]):
    """Notices to this agent, each once: the open ones first, by `sync`, and again after every reconnect."""

    def __init__(self, session: Session, sync: Callable[[], Awaitable[Synced]]) -> None:
        credential = session.credential
        super().__init__(session, [subjects.notice(credential.tenant, credential.key)], limits.NOTICE_QUEUE_FRAMES)
        self._key = credential.key
        self._sync = sync
        self._ready: deque[Notice] = deque()  # bounded by one answer of sync
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._synced = False

    async def _next(self) -> Notice:
        while True:
            if not self._synced:
                self._ready.extend((await self._sync()).notices)
                self._synced = True
            frame = self._ready.popleft() if self._ready else await self._receive()
            if isinstance(frame, Gap):
                self._synced = False
            elif isinstance(frame, Notice) and frame.agent in ("", self._key) and self._is_new(frame.notice):
                return frame

    def _is_new(self, notice: str) -> bool:
        if notice in self._seen:
            return False
        self._seen[notice] = None
        if len(self._seen) > NOTICES_REMEMBERED:
            self._seen.popitem(last=False)
        return True


def feed_stream(
    session: Session, project: str, classifications: Sequence[Classification] | None, kinds: Sequence[FeedKind] | None
) -> FeedStream:
    """The feed of a project, as far as the credential's `see:` tags reach. Raises Denied or Rejected before anything is sent."""
    sees = session.credential.classifications
    wanted = tuple(classifications or sees)
    _check_values(wanted, CLASSIFICATIONS, "classifications")
    _check_values(tuple(kinds or ()), subjects.FEED_KINDS, "kinds")
    if not wanted or not set(wanted) <= set(sees):
        raise Denied(
            f"This credential sees {', '.join(sees) or 'no classification'}.",
            reason="classification_denied",
            advice="Ask for those, or for a credential with more `see:` tags.",
            field="classifications",
        )
    return FeedStream(session, project, wanted, tuple(kinds or ()))


def _check_values(given: Sequence[str], allowed: Sequence[str], field: str) -> None:
    if not set(given) <= set(allowed):
        raise Rejected(f"{field} knows only {', '.join(allowed)}.", reason="bad_field", field=field)
