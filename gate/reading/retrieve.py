"""Retrieval: what a principal may see at all, then lexical and vector candidates of its project, fused. Runs on the index thread.

What a principal may never see is taken out before retrieval and counts nowhere. What it could see but may not have now
(held, expired,
superseded) never takes a candidate's place; matches among it are counted as withheld.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bus.frames import CLASSIFICATIONS, KINDS, ORIGINS, SCOPES, TASK_STATES
from gate.projections.lexical import LexicalIndex, terms
from gate.projections.vectors import DIM, ProjectVectors
from gate.rights import is_reader, lenders, lent_by
from gate.state.columns import NEVER_MS, Columns
from gate.state.projects import Project
from gate.state.succession import next_change, superseded
from gate.state.tenant import Tenant

from .ask import Ask

CANDIDATES_MIN: Final = 64
MASKS_KEPT: Final = 256  # of a tenant's agents, the latest that asked: a byte for each set of readers
CANDIDATES_PER_K: Final = 4
FUSION_K0: Final = 10  # reciprocal rank fusion; 60 is clearly worse on LoCoMo
INTERNAL = CLASSIFICATIONS.index("internal")
USER, TASK, OPERATIONAL = SCOPES.index("user"), SCOPES.index("task"), SCOPES.index("operational")

Mask = npt.NDArray[np.bool_]
Seqs = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Lane = Sequence[tuple[Seqs, Floats]]  # per ask: (rows, scores), best first


class ProjectIndex:
    """Lexical index and vectors of one project. Row i is the project's i-th memory; `seqs[i]` its tenant_seq, ascending."""

    def __init__(self) -> None:
        self.n = 0
        self._seqs = np.zeros(256, np.int32)
        self.lexical = LexicalIndex()
        self.vectors = ProjectVectors(DIM)
        self.usable = Usable()

    @property
    def seqs(self) -> Seqs:
        return self._seqs[: self.n]

    def add(
        self, seqs: list[int], terms_of: Sequence[Collection[str]], vectors: npt.NDArray[np.float32], aside: Sequence[int] = ()
    ) -> None:
        """The next rows; `aside` as in LexicalIndex.add."""
        need = self.n + len(seqs)
        if need > len(self._seqs):
            larger = np.zeros(max(2 * len(self._seqs), need), np.int32)
            larger[: self.n] = self.seqs
            self._seqs = larger
        self._seqs[self.n : need] = seqs
        self.lexical.add(terms_of, aside)
        self.vectors.add(vectors)
        self.n = need

    def remove(self, row: int, terms_of: frozenset[str], *, aside: bool = False) -> None:
        """Forget what a row says; it keeps its place. `terms_of`, `aside`: what it was added with."""
        self.lexical.remove(row, terms_of, aside=aside)
        self.vectors.remove(np.array([row], np.int32))


class Shelves:
    """What questions in a project are asked over: its own memories, and those that other projects lend it. Rows are numbered
    through, its own first.
    """

    def __init__(self, project: Project, lending: Sequence[Project], indexes: Mapping[int, ProjectIndex]) -> None:
        found = [(x, indexes[x.number]) for x in (project, *lending) if x.number in indexes and indexes[x.number].n]
        self.parts = [(x, index, index.seqs) for x, index in found]
        self.starts = np.cumsum([0, *(len(seqs) for _, _, seqs in self.parts)], dtype=np.int32)
        one = len(self.parts) == 1
        self.seqs = self.parts[0][2] if one else np.concatenate([np.zeros(0, np.int32), *(seqs for _, _, seqs in self.parts)])

    def gather(self, rows: Seqs) -> Floats:
        """The vectors of rows, in their order."""
        if len(self.parts) == 1:
            return self.parts[0][1].vectors.gather(rows)
        out = np.zeros((len(rows), DIM), np.float32)
        for (_, index, _), start, end in zip(self.parts, self.starts[:-1], self.starts[1:], strict=True):
            here = (rows >= start) & (rows < end)
            out[here] = index.vectors.gather(rows[here] - start)
        return out


@dataclass(frozen=True, slots=True)
class Candidates:
    """Fused candidates of a micro-batch: aligned arrays, asks one after another, best first. `owner[i]` is the ask's number."""

    seqs: Seqs
    rows: Seqs
    owner: Seqs
    fused: Floats
    lexical: Floats  # reciprocal rank, 0 = not found by this lane
    vector: Floats
    overlap: Floats  # summed idf of the question's terms, the lexical lane's score
    cosine: Floats


def visible(t: Tenant, project: Project, c: Columns, seqs: Seqs, a: Ask) -> Mask | None:
    """Rows that this principal may know of in this question; None = all."""
    p = a.principal
    if not project.special and not a.filters and p.rights.clearance >= INTERNAL:
        return None
    scope = c.scope[seqs]
    mask = (c.cls[seqs] <= p.rights.clearance) & readers_ok(t, a)[c.readers[seqs]]
    users = _users_ok(t, c, seqs, a)
    task = c.task[seqs] == (int.from_bytes(a.task, "big", signed=True) if a.task else 1)
    mask &= ~c.opt_out[seqs] | (c.actor[seqs] == p.agent.number)
    asked = "operational" in a.filters.get("scope", ())
    mask &= (scope == 0) | ((scope == USER) & users) | ((scope == TASK) & task) | ((scope == OPERATIONAL) & asked)
    return _filtered(t, seqs, a, mask)


def _visible_elsewhere(t: Tenant, lender: Project, seqs: Seqs, a: Ask) -> Mask:
    """The same of another project's rows: what it lends."""
    lends = lender in lenders(a.principal)
    return _filtered(t, seqs, a, lent_by(a.principal, lender, seqs) if lends else np.zeros(len(seqs), np.bool_))


def _filtered(t: Tenant, seqs: Seqs, a: Ask, mask: Mask) -> Mask:
    for key, values in a.filters.items():
        mask &= _filter(t, t.columns, seqs, key, values)
    return mask


def _users_ok(t: Tenant, c: Columns, seqs: Seqs, a: Ask) -> Mask:
    """User-scope rows: of the credential's own user, or this agent's own notes on the user that the question names."""
    p = a.principal
    if p.user_hash:
        own = t.users.find(p.user_hash)
        ok: Mask = c.user[seqs] == (own if own else -1)
        if a.user:
            ok &= c.user[seqs] == a.user
        return ok
    mine: Mask = (c.user[seqs] == a.user) & (c.actor[seqs] == p.agent.number) if a.user else np.zeros(len(seqs), np.bool_)
    return mine


_NONE: Final[Mask] = np.zeros(0, np.bool_)


def readers_ok(t: Tenant, a: Ask) -> Mask:
    """For each interned set of clauses, whether the principal matches every clause. Worked out once for an agent and its user: an
    agent's name, roles and chain never change, and sets only come.
    """
    key, n = (a.principal.agent.number, a.principal.user_hash), len(t.readers)
    kept = t.reader_masks.pop(key, _NONE)
    if len(kept) < n:
        new = np.fromiter(map(is_reader(a.principal), t.readers.values[len(kept) : n]), np.bool_, n - len(kept))
        kept = np.concatenate([kept, new])
    t.reader_masks[key] = kept  # the latest used last
    if len(t.reader_masks) > MASKS_KEPT:
        del t.reader_masks[next(iter(t.reader_masks))]
    return kept


def _filter(t: Tenant, c: Columns, seqs: Seqs, key: str, values: frozenset[str]) -> Mask:
    column, names = {
        "kind": (c.kind, KINDS),
        "origin": (c.origin, ORIGINS),
        "scope": (c.scope, SCOPES),
        "classification": (c.cls, CLASSIFICATIONS),
        "task_state": (c.task_state, TASK_STATES),
    }.get(key, (c.actor, ()))
    if key == "agent":
        numbers = [agent.number for v in values if (agent := t.agents.by_name.get(v))]
    else:
        numbers = [names.index(v) for v in values]
    found: Mask = np.isin(column[seqs], numbers)
    return found


class Usable:
    """Rows that stored facts do not rule out now: not held, current, in time. Kept until a fact changes or a time has come."""

    def __init__(self) -> None:
        self._mask: Mask = np.zeros(0, np.bool_)
        self._facts = -1
        self._from_ms = self._until_ms = 0
        self._all = True

    def now(self, t: Tenant, seqs: Seqs, now_ms: int) -> tuple[Mask, bool]:
        """(one bool a row, whether all are true)."""
        facts = t.facts  # before the columns are read
        if facts != self._facts or not self._from_ms <= now_ms < self._until_ms or len(seqs) < len(self._mask):
            self._mask, self._facts, self._all = np.zeros(0, np.bool_), facts, True
            self._from_ms, self._until_ms = now_ms, NEVER_MS
        if len(seqs) > len(self._mask):
            new, until_ms = _usable(t.columns, seqs[len(self._mask) :], now_ms)
            self._mask, self._all = np.concatenate([self._mask, new]), self._all and bool(new.all())
            self._until_ms = min(self._until_ms, until_ms)
        return self._mask, self._all


def _usable(c: Columns, seqs: Seqs, now_ms: int) -> tuple[Mask, int]:
    """Rows that are usable now, and when time alone changes that of one of them."""
    ok: Mask = (c.held[seqs] == 0) & (c.erased[seqs] == 0) & (c.ended[seqs] == 0)
    until_ms = next_change(c, seqs, now_ms)
    for ends in (c.expires[seqs], c.valid_until[seqs]):
        ahead = ends > now_ms
        ok &= ahead
        until_ms = min(until_ms, int(ends.min(where=ahead, initial=NEVER_MS)))
    begins = c.valid_from[seqs]
    begun = begins <= now_ms
    ok &= begun
    able = np.flatnonzero(ok)  # only these need a look at their successors
    ok[able] = ~superseded(c, seqs[able], np.broadcast_to(np.int64(now_ms), len(able)))
    return ok, min(until_ms, int(begins.min(where=~begun, initial=NEVER_MS)))


def candidates(
    t: Tenant, project: Project, shelves: Shelves, asks: list[Ask], vectors: npt.NDArray[np.float32], now_ms: int
) -> tuple[Candidates, list[list[int]]]:
    """Candidates of all asks of one project, and for each ask the rows that match but that stored facts withhold now."""
    limit = [max(CANDIDATES_MIN, CANDIDATES_PER_K * a.k) for a in asks]
    words = [terms(a.text) for a in asks]
    found = [_lanes(t, project, part, asks, words, vectors, limit, now_ms) for part in shelves.parts]
    if len(found) == 1:
        lexical, near, withheld = found[0]
    else:
        lexical, near = (
            [_merged([lanes[i] for lanes in side], shelves.starts, most) for i, most in enumerate(limit)]
            for side in ([x[0] for x in found], [x[1] for x in found])
        )
        withheld = [[s for part in found for s in part[2][i]] for i in range(len(asks))]
    return fuse(shelves.seqs, lexical, near, np.array(limit, np.int32)), withheld


def _merged(parts: Lane, starts: Seqs, most: int) -> tuple[Seqs, Floats]:
    """One lane over several shelves, best first: what is more alike comes first, wherever it stands."""
    rows = np.concatenate([found + start for (found, _), start in zip(parts, starts, strict=False)])
    scores = np.concatenate([x for _, x in parts])
    order = np.argsort(-scores, kind="stable")[:most]
    return rows[order].astype(np.int32), scores[order]


def _lanes(
    t: Tenant,
    project: Project,
    part: tuple[Project, ProjectIndex, Seqs],
    asks: list[Ask],
    words: list[list[str]],
    vectors: npt.NDArray[np.float32],
    limit: list[int],
    now_ms: int,
) -> tuple[list[tuple[Seqs, Floats]], list[tuple[Seqs, Floats]], list[list[int]]]:
    """The lexical and the vector lane of each ask on one shelf, and its matches that stored facts withhold now."""
    (owner, index, seqs), c = part, t.columns
    facts, all_usable = index.usable.now(t, seqs, now_ms)
    ruled_out = ~facts
    allowed: list[Mask | None] = []
    hidden: list[Mask | None] = []
    for a in asks:
        seen = visible(t, project, c, seqs, a) if owner is project else _visible_elsewhere(t, owner, seqs, a)
        if a.as_of_ms:  # the past is asked for: policy sorts out what was current then
            rest = (c.held[seqs] != 0) | (c.erased[seqs] != 0)
            present = ~rest
        else:
            present, rest = facts, ruled_out
        if a.as_of_ms or not all_usable:
            allowed.append(present if seen is None else seen & present)
            hidden.append(rest if seen is None else seen & rest)
        else:
            allowed.append(seen)
            hidden.append(None)
    near = index.vectors.search(vectors, max(limit, default=CANDIDATES_MIN), allowed)
    near = [(rows[scores > 0], scores[scores > 0]) for rows, scores in near]
    lexical = [index.lexical.search_beside(*question) for question in zip(words, limit, allowed, hidden, strict=True)]
    withheld = [seqs[rows[:CANDIDATES_MIN]].tolist() for _, rows in lexical]
    return [found for found, _ in lexical], near, withheld


def fuse(seqs: Seqs, lexical: Lane, near: Lane, limit: Seqs) -> Candidates:
    """Reciprocal rank fusion of two lanes, per ask: (rows, scores), best first, and at most `limit` rows of each ask."""
    n_lexical = sum(len(rows) for rows, _ in lexical)
    found, owner, rank = _flat([*lexical, *near], len(lexical))
    keys, at = np.unique(owner.astype(np.int64) << 32 | found, return_inverse=True)
    columns = np.zeros((4, len(keys)), np.float32)  # lexical, vector, overlap, cosine
    by_rank = (1 / (FUSION_K0 + rank)).astype(np.float32)
    in_lexical, in_near = at[:n_lexical], at[n_lexical:]
    columns[0, in_lexical], columns[1, in_near] = by_rank[:n_lexical], by_rank[n_lexical:]
    for row, where, lane in ((2, in_lexical, lexical), (3, in_near, near)):
        columns[row, where] = np.concatenate([scores for _, scores in lane])
    fused = columns[0] + columns[1]
    rows, owner = (keys & 0xFFFFFFFF).astype(np.int32), (keys >> 32).astype(np.int32)
    order = np.lexsort((-rows, -fused, owner))  # of equal ones the newest first
    starts = np.searchsorted(owner, np.arange(len(limit)))
    order = order[np.arange(len(order)) - starts[owner] < limit[owner]]
    rows = rows[order]
    return Candidates(seqs[rows], rows, owner[order], fused[order], *columns[:, order])


def _flat(lanes: Lane, asks: int) -> tuple[Seqs, Seqs, Seqs]:
    """Rows of all lanes, each with the number of its ask and its rank."""
    lengths = np.array([len(rows) for rows, _ in lanes], np.int32)
    ends = np.cumsum(lengths)
    rank = np.arange(int(ends[-1]), dtype=np.int32) - np.repeat(ends - lengths, lengths).astype(np.int32)
    return np.concatenate([rows for rows, _ in lanes]), np.repeat(np.arange(len(lanes), dtype=np.int32) % asks, lengths), rank


def spread(order: list[int], actors: Sequence[int], roots: Sequence[int], k: int) -> list[int]:
    """The first `k` of `order`, so that one evidence root (3) or actor (half) doesn't fill the page while others have something.

    Soft: what was passed over fills the page again, so never fewer than policy admits.
    """
    per_root, per_actor = 3, -(-k // 2)
    taken: list[int] = []
    passed: list[int] = []
    by_root: dict[int, int] = {}
    by_actor: dict[int, int] = {}
    for i in order:
        if len(taken) == k:
            break
        root, actor = roots[i], actors[i]
        if by_actor.get(actor, 0) >= per_actor or (root and by_root.get(root, 0) >= per_root):
            passed.append(i)
            continue
        taken.append(i)
        by_actor[actor] = by_actor.get(actor, 0) + 1
        by_root[root] = by_root.get(root, 0) + 1
    chosen = set(taken + passed[: k - len(taken)])
    return [i for i in order if i in chosen]
