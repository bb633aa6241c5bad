"""What the harness and an agent's process say to each other: one JSON line each way. Pure; types and their encoding."""

from __future__ import annotations

from typing import Final

import msgspec

from .scenario import Record, Task, Verb

_encode: Final = msgspec.json.Encoder().encode


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="order"):
    """What an agent is to do next, in a project."""

    project: str


class Note(Order, frozen=True, tag="note"):
    """A system of record speaks."""

    record: Record


class Read(Order, frozen=True, tag="read"):
    """Read a document and note its facts, one a line."""

    uri: str
    text: str


class Compose(Order, frozen=True, tag="compose"):
    """Recall what there is about a question, and write something down from it. With a task: what names its value."""

    verb: Verb
    about: str
    task: Task | None = None


class Act(Order, frozen=True, tag="act"):
    """Call the task's tool, with what may be used; else ask a person."""

    task: Task


class Ask(Order, frozen=True, tag="ask"):
    """A colleague's question."""

    about: str


class Fetch(Order, frozen=True, tag="fetch"):
    """Get memories by their ids."""

    ids: list[str]


class Echo(Order, frozen=True, tag="echo"):
    """Write one's own text down again, from the head: without looking."""

    id: str


class Settle(Order, frozen=True, tag="settle"):
    """Acknowledge the open notices."""


AnyOrder = Note | Read | Compose | Act | Ask | Fetch | Echo | Settle


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that an agent was served."""

    id: str
    content: str


class Wrote(msgspec.Struct, frozen=True, kw_only=True):
    """A record, what the store stamped on it, and (the truth) the ids of what it was made from."""

    id: str
    content: str
    used: list[str] = []
    state: str = "active"
    origin: str = ""
    trust: float | None = None
    parents: list[str] = []
    reasons: list[str] = []


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call with its value and the ids that it rests on; value None: a person was asked instead."""

    tool: str
    risk: str
    value: str | None = None
    used: list[str] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent did. `error` ends it: what went wrong, as a sentence, and its `reason`."""

    wrote: list[Wrote] = []
    call: Call | None = None
    served: list[Seen] = []
    withheld: dict[str, int] = {}
    why_empty: str = ""
    settled: list[str] = []
    error: str = ""
    reason: str = ""


_orders: Final = msgspec.json.Decoder(AnyOrder)
_reports: Final = msgspec.json.Decoder(Report)


def line(value: AnyOrder | Report) -> bytes:
    return _encode(value) + b"\n"


def order_of(source: bytes) -> AnyOrder:
    return _orders.decode(source)


def report_of(source: bytes) -> Report:
    return _reports.decode(source)
