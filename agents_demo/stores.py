"""Where the agents' memories lie: Cordon through `bus`, or a plain shared file. The agents can't tell which."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Protocol, Unpack

import msgspec

import bus
from bus.client import DraftFields
from bus.frames import Intent, Risk

FILE_VARIABLE: Final = "DEMO_FILE"
RECALL_K: Final = 6
# An agent that minds what it is told puts nothing that carries one of these into a tool call.
_FORBIDDEN: Final = frozenset({"forbid_tool_binding", "require_confirmation", "ask_first"})


@dataclass(frozen=True, slots=True)
class Recalled:
    """A memory as an agent gets it. `bindable`: may be used in a tool call."""

    id: str
    content: str
    bindable: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    items: list[Recalled]
    withheld: Mapping[str, int] = field(default_factory=dict)
    why_empty: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store says of a new memory; labels only where there is a gate."""

    id: str
    state: str = "active"
    origin: str = ""
    trust: float | None = None
    parents: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class Store(Protocol):
    """Shared memory, as an agent needs it."""

    async def write(self, project: str, content: str, **claims: Unpack[DraftFields]) -> Stored: ...

    async def recall(self, project: str, text: str, intent: Intent, risk: Risk) -> Answer: ...

    async def fetch(self, project: str, ids: list[str]) -> Answer: ...

    async def settle(self) -> list[str]:
        """Acknowledge open notices; the ids that they were about."""


class CordonStore:
    """Through the bus, as any agent would."""

    def __init__(self, memory: bus.MemoryBus) -> None:
        self._memory = memory

    async def write(self, project: str, content: str, **claims: Unpack[DraftFields]) -> Stored:
        r = await self._memory.write(content, project=project, **claims)
        return Stored(r.id, r.state, r.origin, r.trust, tuple(r.parents), tuple(r.reasons))

    async def recall(self, project: str, text: str, intent: Intent, risk: Risk) -> Answer:
        return _answer(await self._memory.query(text, project=project, k=RECALL_K, intent=intent, tool_risk=risk))

    async def fetch(self, project: str, ids: list[str]) -> Answer:
        return _answer(await self._memory.get(ids, project=project))

    async def settle(self) -> list[str]:
        waiting = (await self._memory.sync()).notices
        if waiting:
            await self._memory.ack([n.notice for n in waiting])
        return [id_ for n in waiting for id_ in n.ids]


def _answer(recall: bus.Recall) -> Answer:
    items = [Recalled(i.memory.id, i.memory.content, not _FORBIDDEN & set(i.constraints)) for i in recall.admitted]
    return Answer(items, dict(recall.withheld), recall.why_empty)


class Row(msgspec.Struct, frozen=True):
    """A line of the shared file."""

    id: str
    project: str
    content: str


class SharedFile:
    """An ungated store, as most swarms have: one JSON line a memory, recall by words in common, of equals the newest first."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def write(self, project: str, content: str, **claims: Unpack[DraftFields]) -> Stored:
        with self._locked() as f:
            row = Row(f"m{len(f.readlines())}", project, content)
            f.write(msgspec.json.encode(row) + b"\n")
        return Stored(row.id)

    async def recall(self, project: str, text: str, intent: Intent, risk: Risk) -> Answer:
        wanted = words(text)
        scored = [(len(wanted & words(row.content)), n, row) for n, row in enumerate(self._rows(project))]
        best = sorted((s for s in scored if s[0]), key=lambda s: (-s[0], -s[1]))[:RECALL_K]
        return Answer([Recalled(row.id, row.content) for _, _, row in best])

    async def fetch(self, project: str, ids: list[str]) -> Answer:
        return Answer([Recalled(row.id, row.content) for row in self._rows(project) if row.id in ids])

    async def settle(self) -> list[str]:
        return []

    def _rows(self, project: str) -> list[Row]:
        with self._locked() as f:
            rows = [msgspec.json.decode(line, type=Row) for line in f]
        return [row for row in rows if row.project == project]

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """The file at its beginning; what is written goes to its end."""
        with self._path.open("ab+") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            f.seek(0)
            yield f


_STOPWORDS: Final = frozenset(["the", "and", "are", "was", "which", "what", "for", "has", "when", "how", "does", "that", "with"])


def words(text: str) -> set[str]:
    """Words, and for Chinese pairs of characters."""
    found = {w.lower().rstrip("s.,") for w in re.findall(r"[A-Za-z0-9_/.-]{3,}", text)} - _STOPWORDS
    pairs = (text[i : i + 2] for i in range(len(text) - 1))
    return found | {p for p in pairs if all("\u4e00" <= c <= "\u9fff" for c in p)}


@asynccontextmanager
async def open_store() -> AsyncIterator[Store]:
    """The store that the environment names: DEMO_FILE, else the bus (CORDON_URL, CORDON_CREDS)."""
    path = os.environ.get(FILE_VARIABLE)
    if path:
        yield SharedFile(Path(path))
        return
    async with bus.connect() as memory:
        yield CordonStore(memory)
