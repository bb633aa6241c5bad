"""The join: a child's labels are never better than those of its declared, copied and joined served parents.

Pure functions over integers. Trust is per mille. Sources: the project's defaults table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bus.frames import ORIGINS
from gate.state.columns import Columns
from gate.state.interned import Interned
from gate.state.tenant import Clauses

EXTERNAL, AGENT_INFERRED, TOOL_RESULT, USER_STATED, HUMAN_REVIEWED, SYSTEM = range(6)
# A memory without evidence is worth less, but for what a person or the system vouches for.
BASE_TRUST: Final = {SYSTEM: 1000, HUMAN_REVIEWED: 1000, USER_STATED: 800, TOOL_RESULT: 700, AGENT_INFERRED: 500, EXTERNAL: 250}
SOURCELESS_MALUS: Final = 100
SOURCELESS_ORIGINS: Final = frozenset({TOOL_RESULT, AGENT_INFERRED, EXTERNAL})
# A context that was served a member of an open case writes with a floor no better than something read outside.
EXPOSED_FLOOR: Final = BASE_TRUST[EXTERNAL]
assert len(ORIGINS) == len(BASE_TRUST)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The joined labels of a new memory."""

    trust: int
    floor: int
    origin: int
    cls: int
    sens: int
    opt_out: bool
    readers: Clauses
    comp: frozenset[str]
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class Own:
    """The writer's side, before any parent: origin already capped by the credential."""

    origin: int
    sourceless: bool
    confidence: int | None  # claimed, per mille: only caps
    cls: int
    sens: int
    opt_out: bool
    readers: Clauses
    comp: frozenset[str]
    written_ms: int
    context_floor: int
    exposed: bool


def capped_origin(claimed: int | None, ceiling: int, has_tool: bool) -> int:
    """Origin from the claim, the credential's ceiling and, for tool_result, a registered tool. No claim = the highest allowed.

    human_reviewed and system are never given by claim.
    """
    origin = ceiling if claimed is None else min(claimed, ceiling)
    if origin >= HUMAN_REVIEWED:
        origin = USER_STATED
    if origin == TOOL_RESULT and not has_tool:
        origin = AGENT_INFERRED
    return origin


def join(own: Own, parents: Iterable[int], c: Columns, readers: Interned[Clauses], comps: Interned[frozenset[str]]) -> Stamp:
    """The stamp of a memory with these parents (tenant_seqs: declared, copied, and served over the threshold)."""
    parents, at = list(parents), c.at
    origin = min([own.origin, *(at.origin[p] for p in parents)])
    trust = BASE_TRUST[origin]
    if own.sourceless and origin in SOURCELESS_ORIGINS:
        trust -= SOURCELESS_MALUS
    if own.confidence is not None:
        trust = min(trust, own.confidence)
    cls, sens, opt_out, oldest = own.cls, own.sens, own.opt_out, own.written_ms
    clauses, comp = dict.fromkeys(own.readers), set(own.comp)
    floor = own.context_floor
    for p in parents:
        trust = min(trust, at.eff[p])
        floor = min(floor, at.floor[p])
        cls, sens, opt_out = max(cls, at.cls[p]), max(sens, at.sens[p]), opt_out or bool(at.opt_out[p])
        oldest = min(oldest, at.oldest[p])
        clauses |= dict.fromkeys(readers[at.readers[p]])
        comp |= comps[at.comp[p]]
    floor = min(floor, trust, EXPOSED_FLOOR) if own.exposed else min(floor, trust)
    return Stamp(trust, floor, origin, cls, sens, opt_out, tuple(clauses), frozenset(comp), oldest)
