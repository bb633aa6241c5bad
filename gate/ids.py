"""Ids: a typed prefix and 128 bits, time-ordered with a random tail, as 26 characters of lower-case Crockford base32.

In the ledger an id is its 16 raw bytes. Time and chance are passed in where a test needs them.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache

from bus.frames import TAIL_CHARS

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUE = {c: i for i, c in enumerate(_ALPHABET)}
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]  # by 10 bits
ID_CHARS = 26
TAIL_BYTES = 10
_DRAWN = 256
_tails: list[bytes] = []
PREFIXES = ("mem_", "rec_", "out_", "act_", "case_", "plan_", "ctx_", "agt_", "era_", "lgl_")


def new_raw(ms: int | None = None, tail: bytes | None = None) -> bytes:
    """16 bytes: 48 bits of unix milliseconds, 80 bits of chance."""
    stamp = int(time.time() * 1000) if ms is None else ms
    return stamp.to_bytes(6, "big") + (_tail() if tail is None else tail)


def made_ms(raw: bytes) -> int:
    """When an id was made: unix milliseconds."""
    return int.from_bytes(raw[:-TAIL_BYTES], "big")


def _tail() -> bytes:
    """10 random bytes, drawn many at a time: a system call for each id costs more than all the rest of it."""
    try:
        return _tails.pop()
    except IndexError:  # also when another thread was faster
        drawn = os.urandom(TAIL_BYTES * _DRAWN)
        _tails.extend(drawn[i : i + TAIL_BYTES] for i in range(TAIL_BYTES, len(drawn), TAIL_BYTES))
        return drawn[:TAIL_BYTES]


@lru_cache(1 << 15)
def text(prefix: str, raw: bytes) -> str:
    """`prefix` + 26 characters for 16 raw bytes."""
    n, pairs = int.from_bytes(raw, "big"), _PAIRS
    high, low = n >> 60, n & 0xFFFFFFFFFFFFFFF  # 7 and 6 pairs of characters: a quarter of base64's time
    return (
        f"{prefix}{pairs[high >> 60]}{pairs[high >> 50 & 1023]}{pairs[high >> 40 & 1023]}{pairs[high >> 30 & 1023]}"
        f"{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}{pairs[low >> 50]}{pairs[low >> 40 & 1023]}"
        f"{pairs[low >> 30 & 1023]}{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )


def ending(raw: bytes) -> int:
    """The last 5 bytes of an id as a number: what its last TAIL_CHARS characters spell."""
    return int.from_bytes(raw[-5:], "big")


def ending_of(tail: str) -> int | None:
    """The same of the end of an id as people name it, at least TAIL_CHARS characters; None if no id ends so."""
    probe = raw("mem_" + "0" * (ID_CHARS - TAIL_CHARS) + tail[-TAIL_CHARS:]) if len(tail) >= TAIL_CHARS else None
    return None if probe is None else ending(probe)


def new(prefix: str, ms: int | None = None) -> str:
    return text(prefix, new_raw(ms))


def raw(id_: str) -> bytes | None:
    """The 16 bytes of an id with any known prefix; None if it isn't one."""
    body = id_.rpartition("_")[2]
    if len(body) != ID_CHARS or id_[:-ID_CHARS] not in PREFIXES:
        return None
    n = 0
    for c in body:
        v = _VALUE.get(c)
        if v is None:
            return None
        n = n << 5 | v
    return n.to_bytes(17, "big")[-16:] if n < 1 << 128 else None
