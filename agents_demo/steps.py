"""What the harness tells an agent's process, and what the agent reports: one JSON line each. Data only.

A report says what the agent did *and* which recalled memories it used for it: the truth that the harness measures against. No
store ever sees it.
"""

from __future__ import annotations

import msgspec

from bus.frames import Risk


class Step(msgspec.Struct, frozen=True, kw_only=True, tag_field="do"):
    """One thing to do, in one project."""

    project: str


class Record(Step, frozen=True, kw_only=True, tag="record"):
    """A system of record states a fact through its registered tool."""

    tool: str
    content: str
    evidence: str


class Read(Step, frozen=True, kw_only=True, tag="read"):
    """Read a document and note what it says."""

    uri: str
    text: str


class Summarise(Step, frozen=True, kw_only=True, tag="summarise"):
    """Write down in own words what is known about a question."""

    text: str


class Plan(Step, frozen=True, kw_only=True, tag="plan"):
    """Decide with which value a tool is to be called. `about` and `value` (a regular expression): how it is recognised."""

    text: str
    tool: str
    about: str
    value: str


class Act(Plan, frozen=True, kw_only=True, tag="act"):
    """Call the tool, with a value that may be used for it."""

    risk: Risk


class Ask(Step, frozen=True, kw_only=True, tag="ask"):
    """A colleague's question; it is answered when a recalled text holds `answer`."""

    text: str
    answer: str = ""


class Fetch(Step, frozen=True, kw_only=True, tag="fetch"):
    """Memories by their ids."""

    ids: list[str]


class Repeat(Step, frozen=True, kw_only=True, tag="repeat"):
    """Say again, without looking, what one wrote about this before: what is in the head stays there."""

    about: str


class Settle(Step, frozen=True, kw_only=True, tag="settle"):
    """Read and acknowledge the open notices."""


AnyStep = Record | Read | Summarise | Plan | Act | Ask | Fetch | Repeat | Settle


class Wrote(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that the agent wrote, what it truly used for it, and what the store answered (a gate gives labels, too)."""

    id: str
    content: str
    used: list[str] = []
    state: str = "active"
    origin: str | None = None
    trust: float | None = None
    parents: int = 0
    reasons: list[str] = []


class PassedOver(msgspec.Struct, frozen=True, kw_only=True):
    """A value that was found and may not go into a tool call. `reasons`: those of its admission, then its constraints."""

    id: str
    value: str
    reasons: list[str]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One use of a tool. `value` None: nothing that was found may be used, so the agent asked a person."""

    tool: str
    risk: Risk
    value: str | None
    used: list[str] = []
    passed_over: list[PassedOver] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a step. `served`: ids in rank order; `withheld`: reason → count; `settled`: ids that notices were about."""

    wrote: list[Wrote] = []
    call: ToolCall | None = None
    served: list[str] = []
    withheld: dict[str, int] = {}
    why_empty: str = ""
    answered: bool | None = None
    settled: list[str] = []


_encoder = msgspec.json.Encoder()
decode_step = msgspec.json.Decoder(AnyStep).decode
decode_report = msgspec.json.Decoder(Report).decode


def line(frame: Step | Report) -> bytes:
    """One line of JSON with its end."""
    return _encoder.encode(frame) + b"\n"
