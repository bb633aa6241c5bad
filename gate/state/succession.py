"""Which successor of a memory is in force: one that is written, valid, not expired and not held.

A successor that has lapsed, or isn't valid yet, puts nothing in its predecessor's place: that one is current, unless the lapsed
one has itself a successor in force. A held successor leaves its predecessor current whatever came after. Who has had more than
LINKS_MAX successors in a row that lapsed stays superseded.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .columns import NEVER_MS, Columns
from .principals import Agent

Seqs = npt.NDArray[np.int32]
LINKS_MAX: Final = 64
# Of a line: more than count against it (gate/writing/supersede.py). The first, which says whose it was, stays.
TURNS_KEPT: Final = 16


class Turn(NamedTuple):
    """A memory of one agent was superseded by another's. `over`: number of the root of the agent that it was taken from."""

    over: int
    back: bool  # taken by who had been displaced in this line before
    ms: int


def turns_after(turns: tuple[Turn, ...], old: Agent, new: Agent, ms: int) -> tuple[Turn, ...]:
    """The turns of a line, newest last, when `new` supersedes what `old` wrote. An agent and its children are one."""
    if new is old:
        return turns
    back = new.root != old.root and any(turn.over == new.root for turn in turns)
    found = (*turns, Turn(old.root, back, ms))
    return found if len(found) <= TURNS_KEPT else (found[0], *found[1 - TURNS_KEPT :])


def superseded(c: Columns, seqs: Seqs, as_of: npt.NDArray[Any], held: npt.NDArray[Any] | None = None) -> npt.NDArray[np.bool_]:
    """For each memory, whether a successor was in force at its time of `as_of` (ms). `held`: instead of what is held now."""
    held = c.held if held is None else held
    hit = np.zeros(len(seqs), np.bool_)
    links = c.superseded[seqs]
    open_ = np.flatnonzero(links)
    older = seqs[open_]
    for _ in range(LINKS_MAX):
        if not len(open_):
            return hit
        by, at = c.superseded[older], as_of[open_]
        there = (by != 0) & (held[by] == 0) & (c.superseded_ms[older] <= at)
        valid = (c.valid_from[by] <= at) & (c.expires[by] > at) & (c.valid_until[by] > at)
        hit[open_[there & valid]] = True
        lapsed = there & ~valid
        open_, older = open_[lapsed], by[lapsed]
    hit[open_[c.superseded[older] != 0]] = True
    return hit


def next_change(c: Columns, seqs: Seqs, now_ms: int) -> int:
    """When time alone next changes whether one of these memories is superseded."""
    by = c.superseded[seqs]
    by = by[by != 0]
    times = np.concatenate([c.valid_from[by], c.expires[by], c.valid_until[by]])
    return int(times.min(where=times > now_ms, initial=NEVER_MS))


def successor(c: Columns, seq: int, now_ms: int) -> int:
    """The successor of one memory that is in force now; 0 = none."""
    at = c.at
    by: int = at.superseded[seq]
    for _ in range(LINKS_MAX):
        if not by or at.held[by]:
            return 0
        if not lapsed(c, by, now_ms) and at.valid_from[by] <= now_ms:
            return by
        by = at.superseded[by]
    return by


def lapsed(c: Columns, seq: int, now_ms: int) -> bool:
    """Whether its time is over."""
    at = c.at
    return bool(at.expires[seq] <= now_ms or at.valid_until[seq] <= now_ms)
