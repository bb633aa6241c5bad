"""To which agents each memory of a tenant was ever served: who must be told when it is held.

Agents are never forgotten, and a gateway makes some million of them a day. Bounds: a memory takes room for those that it was
served to (SPAN bits for each span of agents with one of them), not for all that there are, and noting a recall takes no longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

SPAN: Final = 1_024  # agents to a bit mask


@dataclass(slots=True)
class ServedTo:
    """By tenant_seq. Of the first SPAN agents one mask, which most tenants never go beyond; of the others one for each span."""

    _first: list[int] = field(default_factory=lambda: [0])
    _others: dict[int, dict[int, int]] = field(default_factory=dict)  # tenant_seq → span → mask

    def extend(self) -> None:
        """One more event."""
        self._first.append(0)

    def note(self, agent: int, seqs: Iterable[int]) -> None:
        """These were served to the agent of this number."""
        span, at = divmod(agent, SPAN)
        bit = 1 << at
        if not span:
            for s in seqs:
                self._first[s] |= bit
            return
        for s in seqs:
            masks = self._others.setdefault(s, {})
            masks[span] = masks.get(span, 0) | bit

    def has(self, agent: int, seq: int) -> bool:
        span, at = divmod(agent, SPAN)
        mask = self._others.get(seq, {}).get(span, 0) if span else self._first[seq]
        return bool(mask >> at & 1)

    def those(self, agent: int, seqs: Iterable[int]) -> list[int]:
        """Of `seqs` those that were served to this agent."""
        span, at = divmod(agent, SPAN)
        if not span:
            first = self._first
            return [s for s in seqs if first[s] >> at & 1]
        others = self._others
        return [s for s in seqs if s in others and others[s].get(span, 0) >> at & 1]

    def count(self, seq: int) -> int:
        """To how many agents."""
        return self._first[seq].bit_count() + sum(mask.bit_count() for mask in self._others.get(seq, {}).values())

    def agents(self, seqs: Iterable[int]) -> list[int]:
        """Numbers of the agents that were served any of `seqs`, ascending."""
        spans = {0: 0}
        for s in seqs:
            spans[0] |= self._first[s]
            for span, mask in self._others.get(s, {}).items():
                spans[span] = spans.get(span, 0) | mask
        return [span * SPAN + at for span in sorted(spans) for at in _bits(spans[span])]


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
