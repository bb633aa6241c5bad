"""Member lists of cases, as they lie in `case_part` events: ascending tenant_seqs, delta-encoded in bounded parts.

Invariant: every part stands alone (its first number is as it is), deltas are at least 1, and each list has exactly one encoding:
what `unpack_members` accepts, `pack_members` gives back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import events as E
from .errors import LedgerCorrupt

PART_MEMBERS_MAX: Final = 8_192
_VARINT_BYTES_MAX: Final = 5  # 31 bits
_LIMITS = np.array([1 << 7, 1 << 14, 1 << 21, 1 << 28], dtype=np.int64)

Members = NDArray[np.int32]


def pack_members(members: ArrayLike) -> list[tuple[int, bytes]]:
    """Strictly ascending tenant_seqs (1 to 2^31 - 1, else `ValueError`) as [(count, LEB128 deltas)…], 8,192 a part at most."""
    whole = np.asarray(members, dtype=np.int64)
    parts = []
    for at in range(0, len(whole), PART_MEMBERS_MAX):
        part = whole[at : at + PART_MEMBERS_MAX]
        parts.append((len(part), _leb128(np.diff(part, prepend=0))))
    if len(whole) and (whole[0] < 1 or whole[-1] >= 1 << 31 or (np.diff(whole) < 1).any()):
        raise ValueError("members must ascend, from 1 to 2^31 - 1")
    return parts


def unpack_members(parts: Sequence[bytes]) -> Members:
    """The members of all `parts` in order, as int32. `LedgerCorrupt` if a part is malformed or they don't ascend."""
    whole = np.concatenate([np.zeros(1, np.int64), *[np.cumsum(_unleb128(part)) for part in parts]])
    if len(whole) > 1 and (int(whole.max()) >= 1 << 31 or (np.diff(whole) < 1).any()):
        raise LedgerCorrupt("a case's members don't ascend.")
    return whole[1:].astype(np.int32)


def erased_by(event: E.AnyEvent, seq: int) -> list[int]:
    """The tenant_seqs whose bodies this event, at `seq`, says are gone."""
    match event:
        case E.MemoryErased():
            return [int(s) for s in unpack_members([event.deltas])]
        case E.LedgerAccepted() if event.deltas:
            return [int(s) for s in unpack_members([event.deltas])]
        case E.TenantChanged() if event.erasure:
            return list(range(1, seq))
    return []


def members_digest(members: ArrayLike) -> bytes:
    """sha256("cordon.case.1" ‖ u32 len ‖ int32 LE members ascending)."""
    raw = np.asarray(members, dtype="<i4").tobytes()
    return hashlib.sha256(b"cordon.case.1" + len(raw).to_bytes(4, "big") + raw).digest()


def _leb128(values: NDArray[np.int64]) -> bytes:
    sizes = np.searchsorted(_LIMITS, values, side="right") + 1
    starts = np.cumsum(sizes) - sizes
    out = np.zeros(int(sizes.sum()), dtype=np.uint8)
    for k in range(_VARINT_BYTES_MAX):
        here = sizes > k
        more = np.where(sizes[here] > k + 1, 0x80, 0)
        out[starts[here] + k] = (values[here] >> (7 * k)) & 0x7F | more
    return out.tobytes()


def _unleb128(raw: bytes) -> NDArray[np.int64]:
    data = np.frombuffer(raw, dtype=np.uint8).astype(np.int64)
    ends = np.flatnonzero(data < 0x80)
    if not len(data) or data[-1] >= 0x80:
        raise LedgerCorrupt("a part of a case ends within a number.")
    sizes = np.diff(ends, prepend=-1)
    if int(sizes.max()) > _VARINT_BYTES_MAX or ((sizes > 1) & (data[ends] == 0)).any():
        raise LedgerCorrupt("a part of a case holds a number that is too long.")
    starts = ends - sizes + 1
    values = np.zeros(len(ends), dtype=np.int64)
    for k in range(int(sizes.max())):
        here = sizes > k
        values[here] |= (data[starts[here] + k] & 0x7F) << (7 * k)
    return values
