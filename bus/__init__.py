"""Cordon's client: shared memory for agents, over NATS.

    import bus

    async with bus.connect() as memory:
        receipt = await memory.write("The staging database uses rotating keys")
        recall = await memory.query("how do we log in to staging?")
        print(recall.as_prompt())

Agents use `connect`, operators `connect_operator`. All errors are `CordonError`s; the branch says what to do (bus.errors).
Everything runs on asyncio, through anyio.
"""

from .client import Child, MemoryBus, connect
from .errors import (
    Closed,
    ConfigError,
    Conflict,
    CordonError,
    DeadlineExceeded,
    Denied,
    FrameTooLarge,
    MalformedFrame,
    Rejected,
    Unavailable,
    WireError,
    WriteRejected,
)
from .frames import (
    Actor,
    Case,
    ContextAnswer,
    Draft,
    Edge,
    Erasure,
    Feed,
    Item,
    LegalHold,
    Member,
    Memory,
    Notice,
    Plan,
    Pruned,
    Query,
    Recall,
    Receipt,
    Reported,
    Stats,
    Store,
    Synced,
    TraceAnswer,
    WhyAnswer,
)
from .operator import Desk, connect_operator
from .transport import Timing

__all__ = [
    "Actor",
    "Case",
    "Child",
    "Closed",
    "ConfigError",
    "Conflict",
    "ContextAnswer",
    "CordonError",
    "DeadlineExceeded",
    "Denied",
    "Desk",
    "Draft",
    "Edge",
    "Erasure",
    "Feed",
    "FrameTooLarge",
    "Item",
    "LegalHold",
    "MalformedFrame",
    "Member",
    "Memory",
    "MemoryBus",
    "Notice",
    "Plan",
    "Pruned",
    "Query",
    "Recall",
    "Receipt",
    "Rejected",
    "Reported",
    "Stats",
    "Store",
    "Synced",
    "Timing",
    "TraceAnswer",
    "Unavailable",
    "WhyAnswer",
    "WireError",
    "WriteRejected",
    "connect",
    "connect_operator",
]
