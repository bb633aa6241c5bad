"""The last look: one synchronous function that checks every item once more, encodes, and leaves the answer for the connection.

Nothing may run between the look and the hand-over to the client's FIFO buffer: no await. The guarantee is that of one
connection per
shard, over which receipts of holds go too: an answer buffered before a hold is on the wire before the hold's receipt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from bus import frames
from bus.limits import RECALL_FRAME_BYTES_MAX
from gate import ids
from gate.refusals import Refused
from gate.state.tenant import Tenant

from . import policy
from .ask import Ask, Found
from .surface import item_of

ITEM_OVERHEAD_BYTES: Final = 2_048  # labels around a content, generously: evidence and readers come on top
HELD_SINCE: Final = "held_since"


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer's bytes, and the tenant_seqs that were dropped at the last moment."""

    data: bytes
    withdrawn: tuple[int, ...]


def look(a: Ask, now_ms: int, *, enabled: bool = True) -> Looked:
    """Encode the recall of an ask whose READS record is on disk. Raises Refused when it must not be sent.

    `enabled` False is only for the control run of the race test.
    """
    t, p = a.principal.tenant, a.principal
    if a.context.epoch != a.epoch:
        raise Refused("context_changed")
    keep: list[Found] = []
    withdrawn: list[int] = []
    for f in a.found:
        if enabled:
            _alarm(t, a, f)
            if t.columns.held[f.seq] or (not a.as_of_ms and t.current(f.seq, now_ms) != "active"):
                withdrawn.append(f.seq)
                continue
        keep.append(f)
    counts = Counter(policy.codes(f.reasons)[0] for f in a.withheld)
    if withdrawn:
        counts[HELD_SINCE] += len(withdrawn)
    items, budget = [], RECALL_FRAME_BYTES_MAX // 2
    for rank, f in enumerate(keep):
        row = a.rows[f.seq]
        size = len(row.content.encode()) + sum(map(len, row.evidence)) * 4 + ITEM_OVERHEAD_BYTES
        whole = size <= budget
        items.append(item_of(t, f, row, rank, now_ms, bool(a.as_of_ms), whole))
        budget -= size if whole else ITEM_OVERHEAD_BYTES
    recall = frames.Recall(
        request_id=a.request_id,
        agent=p.key,
        project=p.project,
        recall_id=ids.text("rec_", a.recall),
        admitted=items,
        withheld=dict(counts),
        why_empty="" if items else _why_empty(a, counts),
        notes=a.notes,
        generation=t.generation,
        position=t.position,
    )
    return Looked(frames.encode(recall), tuple(withdrawn))


def _alarm(t: Tenant, a: Ask, f: Found) -> None:
    """What can't be explained by a race is a bug: the answer is not sent."""
    c, p = t.columns, a.principal
    project = t.projects[p.project]
    if c.project[f.seq] != project.number or c.cls[f.seq] > p.rights.clearance:
        raise Refused("integrity_alarm")
    if c.held[f.seq] and any(
        k.position and k.position <= a.snapshot and f.seq in k for k in t.cases.values() if k.state == "open"
    ):
        raise Refused("integrity_alarm")


def _why_empty(a: Ask, counts: Counter[str]) -> str:
    if not counts:
        return "nothing in this project matches" if a.verb == "query" else "no such memory is readable here"
    said = ", ".join(f"{n} {code.replace('_', ' ')}" for code, n in counts.most_common())
    return f"all that matched is withheld: {said}"
