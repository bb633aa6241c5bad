"""What an agent imports: write, query, get, and hear of what changed.

    import bus

    async with bus.connect() as memory:                        # CORDON_URL and CORDON_CREDS say where and who
        async with memory.run("nightly"):                      # labels every call in it
            recall = await memory.query("how do we log in to staging?")
            if not recall.admitted:
                print(recall.why_empty)
            answer = await model(recall.as_prompt())           # labelled data blocks
            receipt = await memory.write(answer, kind="decision", derived_from=recall.ids)
            print(receipt)

Who wrote a memory is what the broker says; nothing here can claim it. All calls are safe to use from many tasks at once.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypedDict, Unpack

import msgspec

from .delegation import signed
from .errors import MalformedFrame
from .frames import (
    Ack,
    Classification,
    Delegate,
    Delegated,
    Draft,
    FeedKind,
    Get,
    Intent,
    Kind,
    Method,
    Notice,
    Origin,
    Query,
    Readers,
    Recall,
    Receipt,
    Report,
    Reported,
    Risk,
    Scope,
    Sensitivity,
    Sync,
    Synced,
    TaskState,
)
from .identity import Keypair, creds_text, keypair
from .session import Session, open_session
from .streams import FeedStream, NoticeStream, feed_stream
from .transport import Timing

CHILD_NAME_CHARS: Final = 8  # of its key, where a child is given no name: unique among its parent's, and three links fit


class DraftFields(TypedDict, total=False):
    """The optional fields of a Draft; its docstring says what they mean. One text stands for a list of it."""

    kind: Kind
    scope: Scope
    scope_id: str
    origin: Origin
    method: Method
    evidence: str | Sequence[str]
    derived_from: str | Sequence[str]
    run: str
    task: str
    session: str
    trace_id: str
    task_state: TaskState
    claimed_confidence: float
    sensitivity: Sensitivity
    classification: Classification
    readers: Readers
    valid_from: str
    valid_until: str
    ttl: int
    expires_at: str
    opt_out: bool
    supersedes: str
    idempotency_key: str
    tool: str
    promotes: str


_SEVERAL: Final = ("evidence", "derived_from")


class ReadFields(TypedDict, total=False):
    """The optional fields that Query and Get share."""

    as_of: str
    min_position: int
    run: str
    task: str
    turn: int
    user: str
    intent: Intent
    tool_risk: Risk


class QueryFields(ReadFields, total=False):
    """The optional fields of a Query."""

    k: int
    filters: dict[str, list[str]]
    required_origin: list[Origin]
    scene: str
    history_off: bool


class Labels(NamedTuple):
    """What a call is marked with inside `MemoryBus.run`."""

    run: str = ""
    task: str = ""
    session: str = ""


# By client, so that two agents in one process don't label each other's calls.
_labels: ContextVar[Mapping[MemoryBus, Labels]] = ContextVar("cordon_labels")


@dataclass(frozen=True)
class Child:
    """A delegated agent. `creds`: the text of its .creds file, what `connect` takes; empty if its key was made elsewhere."""

    said: Delegated = field(repr=False)
    creds: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.name}, until {self.expires_at}"

    @property
    def name(self) -> str:
        return self.said.name

    @property
    def expires_at(self) -> str:
        """RFC 3339."""
        return self.said.expires_at


class MemoryBus:
    """An agent's shared memory. `connect` makes it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._positions: dict[str, int] = {}  # project → highest position of this client's receipts

    # --- write and read ---------------------------------------------------------------------------
    async def write(self, content: str | Draft, *, project: str | None = None, **fields: Unpack[DraftFields]) -> Receipt:
        """Store a memory: `content` is its text, or a Draft that `fields` override. The receipt means: on disk and searchable.

            await memory.write("The invoice job runs at five", kind="procedure", derived_from=recall.ids)

        Without an idempotency key it gets a random one, so that the client's own retries never make two. `receipt.state` may be
        `held`: stored, but shown to nobody before an operator decided. Raises WriteRejected, Conflict (the key was used for other
        content), Denied, FrameTooLarge, DeadlineExceeded (outcome unknown; carries the key to retry with).
        """
        draft = content if isinstance(content, Draft) else Draft(content=content)
        draft = msgspec.structs.replace(draft, **_listed(fields))
        labels = self._here()
        draft = msgspec.structs.replace(
            draft,
            run=draft.run or labels.run,
            task=draft.task or labels.task,
            session=draft.session or labels.session,
            idempotency_key=draft.idempotency_key or secrets.token_hex(16),
        )
        name = self._session.project(project)
        receipt = await self._session.ask(draft, Receipt, project=name)
        self._positions[name] = max(self._positions.get(name, 0), receipt.position)
        return receipt

    async def promote(self, id: str, *, project: str | None = None, **fields: Unpack[DraftFields]) -> Receipt:
        """Have what a task learnt be a memory of the whole project: a new one, with the text, evidence and kind of `id`.

            receipt = await memory.promote(finding.id)

        It derives from the old one, so it is trusted no more, and may be held like any write. `fields` as for `write`, but for
        content, kind, scope and evidence. Raises WriteRejected (`promotes_unknown`: not of a task, over, or not yours to read),
        Conflict (`promoted_already`, or `promotion_rejected` with who did: `detail`).
        """
        return await self.write(Draft(content="", promotes=id), project=project, **fields)

    async def query(self, text: str | Query, *, project: str | None = None, **fields: Unpack[QueryFields]) -> Recall:
        """Ask a question: `text`, or a Query that `fields` override. Answers what policy and gate admit, best first.

            recall = await memory.query("staging login?", k=8, intent="execute", tool_risk="privileged")

        Sees at least this client's own writes. `recall.withheld` counts by reason what another context could see;
        `recall.why_empty` says why nothing came. Raises Rejected, Denied, Unavailable, DeadlineExceeded.
        """
        query = text if isinstance(text, Query) else Query(text=text)
        return await self._read(msgspec.structs.replace(query, **fields), project)

    async def get(self, ids: str | Iterable[str], *, project: str | None = None, **fields: Unpack[ReadFields]) -> Recall:
        """Memories by id (one, or up to 64): decided and recorded like a query. What may not be seen is simply absent."""
        wanted = [ids] if isinstance(ids, str) else list(ids)
        return await self._read(msgspec.structs.replace(Get(ids=wanted), **fields), project)

    async def report(self, used: str | Iterable[str], *, project: str | None = None) -> Reported:
        """Say which memories (ids, up to 64) were of use: they expire later, up to what their kind may live. Reading alone
        moves nothing.

            recall = await memory.query("how do we log in to staging?")
            await memory.report(recall.ids)

        `extended` are those whose end moved, with the new one. Raises Rejected (`used_unknown`) for what this agent wasn't
        served.
        """
        ids = [used] if isinstance(used, str) else list(used)
        return await self._session.ask(Report(used=ids), Reported, project=self._session.project(project))

    async def _read(self, request: Query | Get, project: str | None) -> Recall:
        labels, name = self._here(), self._session.project(project)
        request = msgspec.structs.replace(
            request,
            run=request.run or labels.run,
            task=request.task or labels.task,
            min_position=max(request.min_position, self._positions.get(name, 0)),
        )
        return await self._session.ask(request, Recall, project=name)

    # --- labels -----------------------------------------------------------------------------------
    @asynccontextmanager
    async def run(self, run: str = "", *, task: str = "", session: str = "") -> AsyncIterator[None]:
        """Label the calls inside, those of tasks started inside too. A nested one keeps what it doesn't name.

        Labels raise the confidence of lineage; they never clear what was served before.
        """
        with self._labelled(run, task=task, session=session):
            yield

    @contextmanager
    def _labelled(self, run: str, *, task: str, session: str) -> Iterator[None]:
        outer = self._here()
        labels = Labels(run or outer.run, task or outer.task, session or outer.session)
        token = _labels.set({**_labels.get({}), self: labels})
        try:
            yield
        finally:
            _labels.reset(token)

    def _here(self) -> Labels:
        return _labels.get({}).get(self, Labels())

    # --- delegation -------------------------------------------------------------------------------
    async def delegate(
        self,
        name: str = "",
        *,
        projects: Sequence[str] | None = None,
        verbs: Sequence[str] | None = None,
        clearance: Classification | None = None,
        ceiling: Origin | None = None,
        tools: Sequence[str] | None = None,
        user: str = "",
        ttl: int | None = None,
        role: str = "",
        key: str = "",
    ) -> Child:
        """A credential for a helper, never wider than this one. What isn't named it has as its parent has it.

            child = await memory.delegate("helper", projects=["p1"], verbs=["query", "get"], ttl=600)
            async with bus.connect(url, child.creds) as helper:
                recall = await helper.query("how do we log in to staging?")

        It shares this agent's context, so nothing that either was served is shed by the other, and ends with this credential. Its
        full name is this agent's, `--`, and `name` (a part of its key if none is given). `ttl` in seconds, an hour unless
        given. It may delegate on only if `verbs` says so. A user gateway gives its child a `user`: a context for each.
        Its key pair is made here and the seed isn't sent; with `key`, a public one, only that key's holder can use what comes.
        Raises Denied (`delegation_too_wide`, with the dimension as `field`), Conflict, Unavailable, DeadlineExceeded.
        """
        pair = None if key else keypair("user")
        public = pair.public if pair else key
        wish = Delegate(
            name=name or public[-CHILD_NAME_CHARS:].lower(),
            key=public,
            role=role,
            projects=None if projects is None else list(projects),
            clearance=clearance or "",
            verbs=None if verbs is None else list(verbs),
            tools=None if tools is None else list(tools),
            ceiling=ceiling or "",
            user=user,
            ttl=ttl,
            at=int(time.time()),
        )
        parent = Keypair(self._session.credential.seed)
        said = await self._session.ask(signed(wish, parent), Delegated, project=self._session.any_project())
        if said.key != public:
            raise MalformedFrame("The answer is for another child.", reason="foreign_answer")
        return Child(said, creds_text(said.jwt, pair) if pair else "")

    # --- what changed -----------------------------------------------------------------------------
    def feed(
        self,
        *,
        project: str | None = None,
        classifications: Sequence[Classification] | None = None,
        kinds: Sequence[FeedKind] | None = None,
    ) -> FeedStream:
        """Ids of what changed in a project; `get` brings the content.

            async for frame in memory.feed(kinds=["memory"]):
                recall = await memory.get(frame.ids)

        Listening begins with the loop, or with `async with memory.feed() as frames:`. At most 1,024 frames wait: when some were
        lost, there or while disconnected, the loop raises Unavailable with reason `feed_gap` after the last sure one; loop again
        over the same object to go on. Raises Denied for a classification outside the credential.
        """
        return feed_stream(self._session, self._session.project(project), classifications, kinds)

    def notices(self) -> NoticeStream:
        """Notices that a memory which this agent was served is now held, or released again: the open ones first, each once.

        async for notice in memory.notices():
            forget(notice.ids)
            await memory.ack(notice)
        """
        return NoticeStream(self._session, self.sync)

    async def ack(self, notice: Notice | str | Iterable[Notice | str]) -> Synced:
        """Acknowledge one or several notices, as frames or ids. Answers those that are still open."""
        several = [notice] if isinstance(notice, (Notice, str)) else list(notice)
        ids = [n.notice if isinstance(n, Notice) else n for n in several]
        return await self._session.ask(Ack(notices=ids), Synced, project=self._session.any_project())

    async def sync(self) -> Synced:
        """The open notices of this agent."""
        return await self._session.ask(Sync(), Synced, project=self._session.any_project())

    async def aclose(self) -> None:
        """Disconnect; calls that wait and later ones raise Closed. `async with` does it by itself."""
        await self._session.transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


def _listed(fields: DraftFields) -> dict[str, Any]:
    """The fields as a Draft has them: one source or parent, and those in a tuple, as a list."""
    given: dict[str, Any] = {**fields}
    for name in _SEVERAL:
        if (value := given.get(name)) is not None:
            given[name] = [value] if isinstance(value, str) else list(value)
    return given


@asynccontextmanager
async def connect(
    url: str | Sequence[str] | None = None,
    creds: str | os.PathLike[str] | None = None,
    *,
    project: str | None = None,
    name: str = "",
    ca_file: str | None = None,
    timing: Timing | None = None,
) -> AsyncIterator[MemoryBus]:
    """Connect an agent.

        async with bus.connect("nats://127.0.0.1:4222", "writer.creds", project="p1") as memory:
            print(await memory.write("The staging database uses rotating keys"))

    url: `nats://`, `tls://`, `ws://` or `wss://`, several of one cluster as a list or with commas between; else CORDON_URL.
    creds: path or text of a .creds file; else CORDON_CREDS. project: default of all calls; else CORDON_PROJECT, else the
    credential's only one. name: shown by the broker's monitoring. ca_file: PEM of a private CA; else CORDON_CA. With it, or with
    `tls://`, nothing is sent to a server that doesn't prove its name. Raises ConfigError, Denied (credential refused) or
    Unavailable (nobody there within 5 s).
    """
    async with open_session(url, creds, project=project, name=name, ca_file=ca_file, timing=timing) as session:
        yield MemoryBus(session)
