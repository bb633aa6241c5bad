"""Faults that are planted in the gatekeeper, to see that the checker can fail: one at a time, by name.

Each takes away one thing that an invariant rests on, and one of `SEEDS` must find it. Beside a plant stands the seed
that found it when it was written: looked at first, so that it takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final
from unittest.mock import patch

from bus.errors import CordonError
from gate import intake
from gate.clock import SteadyClock
from gate.erasure.stores import Erasures
from gate.index_state import TenantIndex
from gate.janitor import Janitor
from gate.ledger import committer
from gate.ledger.events import AgentIssued
from gate.reading.recalls import Recalls
from gate.shard import Shard
from gate.state.tenant import Tenant
from gate.writing import decide

SEEDS: Final = 60
Plant = Callable[[], AbstractContextManager[Any]]


def no_fence() -> AbstractContextManager[Any]:
    """Appends go out without the sequence that they expect."""

    async def unfenced(nc: Any, subject: str, payload: bytes, **how: Any) -> bytes:
        answer: bytes = await request(nc, subject, payload, **{**how, "headers": {}})
        return answer

    request: Any = committer.__dict__["request"]
    return patch.object(committer, "request", unfenced)


def reads_not_awaited() -> AbstractContextManager[Any]:
    """A recall is answered before READS has it."""

    async def record(self: Recalls, batch: list[Any]) -> None:
        for x in batch:
            if x.ask is not None:
                self._answer(x.tenant, x.ask)
        try:
            await self._append(batch)
        except CordonError:
            return

    return patch.object(Recalls, "_record", record)


def hold_lost_at_replay() -> AbstractContextManager[Any]:
    """A replay passes by the seals of cases."""
    opened = Tenant._opened

    def forgetful(self: Tenant, seq: int, e: Any, note: str) -> None:
        known = e.case in self.cases
        opened(self, seq, e, note)
        if not known and e.case in self.cases:
            self._drop_holds(self.cases[e.case].members)

    return patch.object(Tenant, "_opened", forgetful)


def reads_lost_at_replay() -> AbstractContextManager[Any]:
    """A replay leaves contexts empty."""
    return patch.object(Tenant, "replay_read", lambda self, record: None)


def no_last_look() -> AbstractContextManager[Any]:
    """An answer goes out as it was decided, whatever was held since."""
    return patch.object(Recalls, "last_look", False)


def no_keys() -> AbstractContextManager[Any]:
    """Idempotency keys are passed by."""
    return patch.object(intake, "_idempotency", lambda p, d: (b"", b""))


def not_joined() -> AbstractContextManager[Any]:
    """A child has its writer's labels, not those of its parents."""
    join: Any = decide.__dict__["join"]
    return patch.object(decide, "join", lambda own, parents, *rest: join(own, [], *rest))


def all_released() -> AbstractContextManager[Any]:
    """A release takes away every hold on its members."""

    def drop(self: Tenant, members: Any) -> None:
        self._count_held(members[self.columns.held[members] > 0], -1)
        self.columns.held[members] = 0
        self.facts += 1

    return patch.object(Tenant, "_drop_holds", drop)


def children_free() -> AbstractContextManager[Any]:
    """A child of a held memory isn't held."""
    return patch.object(Tenant, "cases_of", lambda self, seqs: [])


def retry_is_new() -> AbstractContextManager[Any]:
    """A retry of a write that is under way is taken for another write."""
    return patch.object(intake.Intake, "_again", lambda *_: False)


def fence_needs_room() -> AbstractContextManager[Any]:
    """A new owner doesn't serve where there is no room for its fence."""

    async def fence(self: Shard) -> None:
        await self.sequencer.fence()
        await self.recalls.fence()

    return patch.object(Shard, "fence", fence)


def tenants_mixed() -> AbstractContextManager[Any]:
    """Texts of a recall come of another tenant's catalog."""
    admit = Recalls._admit

    def mixed(self: Recalls, batch: list[Any], now_ms: int) -> None:
        indexes = self.shard.indexes
        self.shard.indexes = dict(zip(indexes, [*list(indexes.values())[1:], *list(indexes.values())[:1]], strict=True))
        try:
            admit(self, batch, now_ms)
        finally:
            self.shard.indexes = indexes

    return patch.object(Recalls, "_admit", mixed)


def index_keeps_erased() -> AbstractContextManager[Any]:
    """An erasure leaves postings and catalog as they are."""
    return patch.object(TenantIndex, "erase", lambda self, seqs, tenant: len(seqs))


def janitor_only_says() -> AbstractContextManager[Any]:
    """The janitor leaves the originals in the ledger, and the gatekeeper believes it."""

    async def believed(self: Erasures, done: list[int]) -> None:
        for _, erasure in self.open():
            erasure.blocks -= set(done)
        self.wake.set()

    async def left(self: Janitor, stream: str, seq: int) -> None:
        return None

    both = ExitStack()
    both.enter_context(patch.object(Janitor, "_delete", left))
    both.enter_context(patch.object(Erasures, "_look_at", believed))
    return both


def own_proposal_is_a_refusal() -> AbstractContextManager[Any]:
    """A leader that refuses what it has proposed itself is taken at its word."""
    return patch.object(committer, "_WRONG_LAST", 0)


def agent_is_its_key() -> AbstractContextManager[Any]:
    """Who comes with another key is another: idempotency keys are of a credential."""
    known: Any = intake.__dict__["_idempotency"]

    def by_key(p: Any, d: Any) -> tuple[bytes, bytes]:
        one, content = known(p, d)
        return (p.tenant.label_hash(f"{p.key}{one.hex()}", 16) if one else one), content

    return patch.object(intake, "_idempotency", by_key)


def rotation_sheds() -> AbstractContextManager[Any]:
    """An agent's new key begins with an empty head."""
    issue: Any = Tenant.apply

    def shed(self: Tenant, seq: int, event: Any, *rest: Any) -> None:
        if isinstance(event, AgentIssued) and event.agent in self.contexts:
            self.contexts[event.agent].begin_epoch(self.contexts[event.agent].epoch + 1)
        issue(self, seq, event, *rest)

    return patch.object(Tenant, "apply", shed)


def leaps_are_lived_through() -> AbstractContextManager[Any]:
    """A start believes that all the time has passed that its clock says."""
    return patch.object(SteadyClock, "met", lambda self, ms, least_ms=0: None)


PLANTS: Final[dict[str, tuple[Plant, int]]] = {
    "no_fence": (no_fence, 4),
    "reads_not_awaited": (reads_not_awaited, 4),
    "hold_lost_at_replay": (hold_lost_at_replay, 0),
    "reads_lost_at_replay": (reads_lost_at_replay, 1),
    "no_last_look": (no_last_look, 10),
    "no_keys": (no_keys, 0),
    "not_joined": (not_joined, 0),
    "all_released": (all_released, 0),
    "children_free": (children_free, 2),
    "retry_is_new": (retry_is_new, 0),
    "fence_needs_room": (fence_needs_room, 40),
    "tenants_mixed": (tenants_mixed, 0),
    "index_keeps_erased": (index_keeps_erased, 2),
    "own_proposal_is_a_refusal": (own_proposal_is_a_refusal, 14),
    "janitor_only_says": (janitor_only_says, 6),
    "agent_is_its_key": (agent_is_its_key, 0),
    "rotation_sheds": (rotation_sheds, 5),
    "leaps_are_lived_through": (leaps_are_lived_through, 23),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With the fault of this name ("" = none)."""
    with PLANTS[name][0]() if name else nullcontext():
        yield
