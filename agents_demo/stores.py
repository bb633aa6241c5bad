"""Where the agents' memories lie: Cordon through `bus`, or a plain shared file. The agents can't tell which."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import bus
from bus.frames import Intent, Risk

RECALL_K = 4


@dataclass(frozen=True, slots=True)
class Recalled:
    """A memory as an agent gets it. `bindable`: may be used in a tool call."""

    id: str
    content: str
    bindable: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    items: list[Recalled]
    withheld: dict[str, int] = field(default_factory=dict)


class Store(Protocol):
    async def write(self, project: str, content: str, **claims: Any) -> str:
        """The id of the new memory."""

    async def recall(self, project: str, text: str, intent: Intent, risk: Risk) -> Answer: ...

    async def settle(self) -> list[str]:
        """Acknowledge open notices; the ids that they were about."""


class CordonStore:
    """Through the bus, as any agent would."""

    def __init__(self, memory: bus.MemoryBus) -> None:
        self.memory = memory

    async def write(self, project: str, content: str, **claims: Any) -> str:
        return (await self.memory.write(content, project=project, **claims)).id

    async def recall(self, project: str, text: str, intent: Intent, risk: Risk) -> Answer:
        recall = await self.memory.query(text, project=project, k=RECALL_K, intent=intent, tool_risk=risk)
        items = [Recalled(i.memory.id, i.memory.content, not _FORBIDDEN & set(i.constraints)) for i in recall.admitted]
        return Answer(items, dict(recall.withheld))

    async def settle(self) -> list[str]:
        open_ = (await self.memory.sync()).notices
        if open_:
            await self.memory.ack([n.notice for n in open_])
        return [id_ for n in open_ for id_ in n.ids]


_FORBIDDEN = {"forbid_tool_binding", "require_confirmation", "ask_first"}


class SharedFile:
    """An ungated shared store: one JSON line a memory, recall by words in common. What most swarms have."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def write(self, project: str, content: str, **claims: Any) -> str:
        with self.path.open("a+") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            f.seek(0)
            id_ = f"m{sum(1 for _ in f)}"
            f.write(json.dumps({"id": id_, "project": project, "content": content}) + "\n")
        return id_

    async def recall(self, project: str, text: str, intent: Intent, risk: Risk) -> Answer:
        wanted = _terms(text)
        rows = [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []
        scored = [(len(wanted & _terms(r["content"])), -n, r) for n, r in enumerate(rows) if r["project"] == project]
        best = sorted((s for s in scored if s[0]), key=lambda s: (-s[0], s[1]))[:RECALL_K]  # of equals the newest
        return Answer([Recalled(r["id"], r["content"]) for _, _, r in best])

    async def settle(self) -> list[str]:
        return []


def _terms(text: str) -> set[str]:
    """Words, and for Chinese pairs of characters."""
    words = {w.lower().rstrip("s") for w in re.findall(r"[A-Za-z0-9_/.-]{3,}", text)}
    return words | {
        text[i : i + 2] for i in range(len(text) - 1) if "\u4e00" <= text[i] <= "\u9fff" and "\u4e00" <= text[i + 1] <= "\u9fff"
    }


@asynccontextmanager
async def open_store() -> AsyncIterator[Store]:
    """The store that the environment names: DEMO_FILE, else the bus (CORDON_URL, CORDON_CREDS)."""
    path = os.environ.get("DEMO_FILE")
    if path:
        yield SharedFile(Path(path))
        return
    async with bus.connect() as memory:
        yield CordonStore(memory)
