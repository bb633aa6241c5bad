"""Surface: what an admitted memory looks like in an answer. Pure over live state and the catalog's row."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from bus.frames import (
    CLASSIFICATIONS,
    DECISIONS,
    KINDS,
    METHODS,
    ORIGINS,
    SCOPES,
    SENSITIVITIES,
    TASK_STATES,
    Item,
    Lineage,
    Memory,
    Surface,
)
from bus.limits import SUMMARY_CHARS, TRUNCATED_CHARS
from gate import ids
from gate.identify import Principal
from gate.ledger.events import COPIED, DECLARED, SERVED, MemoryWritten, decode_memory
from gate.projections.catalog import MemoryRow
from gate.rights import decide
from gate.state.columns import NEVER_MS, REVIEWS
from gate.state.succession import successor
from gate.state.tenant import Tenant

from . import policy
from .ask import Found

SHOWN_MAX: Final = 8_192  # about 10 MB
SHOWN_CHARS_MAX: Final = 1_024
_SENTENCE_END: Final = re.compile(r"(?<=[.!?。！？])\s|\n")


@lru_cache(16_384)
def _minute(minute: int) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).isoformat(timespec="minutes")[:16]


def rfc3339(ms: int) -> str:
    """UTC text with milliseconds and `Z`."""
    minute, rest = divmod(ms, 60_000)
    return f"{_minute(minute)}:{rest // 1000:02}.{rest % 1000:03}Z"


def _when(ms: int) -> str | None:
    return rfc3339(ms) if 0 < ms < NEVER_MS else None


def summary(text: str) -> str:
    """The gatekeeper's extract: the first sentence, at most SUMMARY_CHARS characters."""
    first = _SENTENCE_END.split(text.strip(), maxsplit=1)[0]
    return first if len(first) <= SUMMARY_CHARS else first[: SUMMARY_CHARS - 1] + "…"


def memory_of(p: Principal, seq: int, e: MemoryWritten, row: MemoryRow, now_ms: int, content: str) -> Memory:
    """The stamped record with its facts as of now. Other memories are named only to who may know them."""
    t, c = p.tenant, p.tenant.columns.at
    agent = t.agents.by_id[e.agent]
    kinds = [edge.kind for edge in e.edges]
    by = successor(t.columns, seq, now_ms)
    return Memory(
        id=ids.text("mem_", e.id),
        content=content,
        kind=KINDS[e.kind],
        project=e.project,
        scope=SCOPES[e.scope],
        scope_id=row.scope_id if e.scope else "",
        origin=ORIGINS[e.origin],
        method=METHODS[e.method],
        trust=c.eff[seq] / 1000,
        trust_floor=e.floor / 1000,
        classification=CLASSIFICATIONS[e.class_],
        sensitivity=SENSITIVITIES[e.sens],
        opt_out=e.opt_out,
        readers=e.readers,
        actor=agent.actor(e.key),
        evidence=list(row.evidence),
        sourceless=e.nosrc,
        lineage=Lineage(declared=kinds.count(DECLARED), copied=kinds.count(COPIED), served=kinds.count(SERVED)),
        state=t.current(seq, now_ms),
        task_state=TASK_STATES[e.task_state] if e.task_state >= 0 else None,
        review=REVIEWS[c.review[seq]],
        written_at=rfc3339(e.ms),
        valid_from=_when(e.from_),
        valid_until=_when(e.until),
        expires_at=_when(c.expires[seq]),
        supersedes=t.memory_id(e.supersedes) if e.supersedes and decide(p, e.supersedes, now_ms) else "",
        superseded_by=t.memory_id(by) if by and decide(p, by, now_ms) else "",
        position=seq,
    )


class Shown:
    """Short memories as they were shown last: to make one anew takes longer than all the rest of its item.

    Only what looks the same to every reader: active, superseding nothing. Dropped when any fact of the tenant changes, so what is
    kept says what the columns say; whether it may be shown at all is never asked here.
    """

    def __init__(self) -> None:
        # account → its facts, and by tenant_seq when it ends by itself (ms) and how it was shown
        self._kept: dict[str, tuple[int, dict[int, tuple[int, Memory]]]] = {}
        self._size = 0

    def memory(self, p: Principal, seq: int, row: MemoryRow, now_ms: int) -> Memory:
        t = p.tenant
        facts, kept = self._kept.get(t.account, (-1, {}))
        if facts != t.facts:
            self._size -= len(kept)
            kept = {}
            self._kept[t.account] = t.facts, kept
        known = kept.get(seq)
        ends = min(t.columns.at.expires[seq], t.columns.at.valid_until[seq])  # a report moves it, and is no fact
        if known is not None and now_ms < known[0] == ends:
            return known[1]
        e = decode_memory(row.meta)
        found = memory_of(p, seq, e, row, now_ms, row.content)
        if found.state == "active" and not e.supersedes and len(row.content) <= SHOWN_CHARS_MAX and len(row.evidence) <= 1:
            if self._size >= SHOWN_MAX:
                self._kept, self._size = {t.account: (t.facts, kept := {})}, 0
            self._size += seq not in kept
            kept[seq] = ends, found
        return found

    def forget(self, account: str) -> None:
        """Keep nothing of this tenant: something of it was erased."""
        self._size -= len(self._kept.pop(account, (0, {}))[1])


def item_of(p: Principal, f: Found, row: MemoryRow, rank: int, now_ms: int, past: bool, shown: Shown) -> Item:
    """One admitted item, whole."""
    if f.decision == policy.SUMMARY:
        memory = memory_of(p, f.seq, decode_memory(row.meta), row, now_ms, summary(row.content))
    elif past:
        memory = memory_of(p, f.seq, decode_memory(row.meta), row, now_ms, row.content)
    else:
        memory = shown.memory(p, f.seq, row, now_ms)
    rules = policy.constraint_names(f.constraints)
    return Item(
        memory=memory,
        rank=rank,
        score=round(f.score, 2),
        decision=DECISIONS[f.decision],
        reasons=policy.codes(_shown(f)),
        constraints=rules,
        surface=_surface(p.tenant, f, rules),
        historical=past,
    )


def shortened(item: Item) -> Item:
    """What is left of an item beyond the recall's byte budget: its first characters, no evidence."""
    short = replace(item.memory, content=item.memory.content[:TRUNCATED_CHARS], evidence=[])
    return replace(item, memory=short, truncated=True)


def _shown(f: Found) -> int:
    """Reason bits of an answer: what the gate only noted in shadow is in READS, not here."""
    return f.reasons & ~(1 << policy.GATE_BIT) if f.decision == policy.ADMIT else f.reasons


def _surface(t: Tenant, f: Found, rules: list[str]) -> Surface:
    """How it should come up in an answer: natural, tentative (say that it is uncertain), background (do not lead with it)."""
    if f.decision == policy.RANK_DOWN:
        return "background"
    if rules or t.columns.at.eff[f.seq] < 500:
        return "tentative"
    return "natural"
