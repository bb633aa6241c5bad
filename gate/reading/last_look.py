"""The last look: one synchronous function that checks every item once more, encodes, and leaves the answer for the connection.

Nothing may run between the look and the hand-over to the client's FIFO buffer: no await. The guarantee is that of one
connection per
shard, over which receipts of holds go too: an answer buffered before a hold is on the wire before the hold's receipt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from bus import frames
from bus.limits import RECALL_FRAME_BYTES_MAX
from gate import ids
from gate.refusals import Refused
from gate.rights import lent, remain
from gate.state.tenant import Tenant

from . import policy
from .ask import Ask, Found
from .surface import Shown, item_of, shortened

REST_BYTES: Final = 8_192  # of a recall beside its items, generously
HELD_SINCE: Final = "held_since"
OVER_FRAME: Final = "over_frame"
_CHAR_BYTES_MAX: Final = 6  # of JSON: a control character
_ESCAPED_TWICE: Final = b'\b\t\n\f\r"\\'  # two bytes of JSON each
_ESCAPED_SIX: Final = bytes(set(range(32)) - set(_ESCAPED_TWICE))
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Looked:
    """The answer's bytes, and the tenant_seqs that were dropped at the last moment."""

    data: bytes
    withdrawn: tuple[int, ...]


def look(a: Ask, now_ms: int, shown: Shown, *, enabled: bool = True) -> Looked:
    """Encode the recall of an ask whose READS record is on disk. Raises Refused when it must not be sent.

    `enabled` False is only for the control run of the race test.
    """
    t, p = a.principal.tenant, a.principal
    if a.context.closing or a.context.epoch != a.epoch:
        raise Refused("context_changed")
    remain(p, now_ms)
    keep: list[Found] = []
    withdrawn: list[int] = []
    for f in a.found:
        if enabled:
            _alarm(t, a, f)
            at = t.columns.at
            gone = _unlent(t, a, f) or at.held[f.seq] or at.erased[f.seq]
            if gone or (not a.as_of_ms and t.current(f.seq, now_ms) != "active"):
                withdrawn.append(f.seq)
                continue
        keep.append(f)
    counts = Counter(policy.codes(f.reasons)[0] for f in a.withheld)
    if withdrawn:
        counts[HELD_SINCE] += len(withdrawn)
    items = [item_of(p, f, a.rows[f.seq], rank, now_ms, bool(a.as_of_ms), shown) for rank, f in enumerate(keep)]
    data = frames.encode(_recall(a, items, counts)) if _may_fit(items) else b""
    if not data or len(data) > RECALL_FRAME_BYTES_MAX:
        fitting = _within_budget(items)
        withdrawn += [f.seq for f, item in zip(keep, fitting, strict=True) if item is None]
        if None in fitting:
            counts[OVER_FRAME] += fitting.count(None)
        data = frames.encode(_recall(a, [item for item in fitting if item is not None], counts))
    return Looked(data, tuple(withdrawn))


def _recall(a: Ask, items: list[frames.Item], counts: Counter[str]) -> frames.Recall:
    t, p = a.principal.tenant, a.principal
    return frames.Recall(
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


def _within_budget(items: list[frames.Item]) -> list[frames.Item | None]:
    """The items as they fit a frame: shortened, but in order of rank whole while there is room; None = in no way.

    Bytes are those on the wire: JSON makes six of one control character. Those of whole items are counted, not encoded: 64 of the
    longest texts are 25 MB of JSON, a fifth of a second for everybody, and nearly all of it is left out anyway.
    """
    left = RECALL_FRAME_BYTES_MAX - REST_BYTES
    out: list[frames.Item | None] = []
    for item in items:
        short = shortened(item)
        size = len(_encode(short)) + 1
        fits = size <= left
        left -= size if fits else 0
        out.append(short if fits else None)
    for i, item in enumerate(items):
        cut = out[i]
        if cut is not None and (more := _texts(item) - _texts(cut) + 1) <= left:
            left -= more
            out[i] = item
    return out


def _may_fit(items: list[frames.Item]) -> bool:
    """Whether it is worth while to encode them all. Nearly always it is, and seen from their length alone."""
    chars = sum(len(i.memory.content) + sum(map(len, i.memory.evidence)) for i in items)
    return _CHAR_BYTES_MAX * chars <= RECALL_FRAME_BYTES_MAX or sum(map(_texts, items)) <= RECALL_FRAME_BYTES_MAX


def _texts(item: frames.Item) -> int:
    """Bytes that an item's texts take on the wire, at most."""
    return _on_wire(item.memory.content) + sum(_on_wire(x) + 3 for x in item.memory.evidence)


def _on_wire(text: str) -> int:
    raw = text.encode()
    twice, six = (len(raw) - len(raw.translate(None, escaped)) for escaped in (_ESCAPED_TWICE, _ESCAPED_SIX))
    return len(raw) + twice + 5 * six


def _alarm(t: Tenant, a: Ask, f: Found) -> None:
    """What can't be explained by a race is a bug: the answer is not sent."""
    at, p = t.columns.at, a.principal
    if at.cls[f.seq] > p.rights.clearance or (_unlent(t, a, f) and t.generation <= a.snapshot):
        raise Refused("integrity_alarm")
    if at.held[f.seq] and any(
        k.position and k.position <= a.snapshot and f.seq in k for k in t.cases.values() if k.state == "open"
    ):
        raise Refused("integrity_alarm")


def _unlent(t: Tenant, a: Ask, f: Found) -> bool:
    """It is another project's, which doesn't lend it (any more)."""
    p = a.principal
    return t.columns.at.project[f.seq] != t.projects[p.project].number and not lent(p, f.seq)


def _why_empty(a: Ask, counts: Counter[str]) -> str:
    if not counts:
        return "nothing in this project matches" if a.verb == "query" else "no such memory is readable here"
    said = ", ".join(f"{n} {code.replace('_', ' ')}" for code, n in counts.most_common())
    return f"all that matched is withheld: {said}"
