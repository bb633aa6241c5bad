"""Retrieval: what a principal may see at all, then lexical and vector candidates of its project, fused. Runs on the index thread.

What a principal may never see is taken out before retrieval and counts nowhere. What it could see but may not have now
(held, expired,
superseded) never takes a candidate's place; matches among it are counted as withheld.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from bus.frames import CLASSIFICATIONS, KINDS, ORIGINS, SCOPES, TASK_STATES
from gate.projections.lexical import LexicalIndex, terms
from gate.projections.vectors import DIM, ProjectVectors
from gate.state.columns import Columns
from gate.state.tenant import Project, Tenant

from .ask import Ask

CANDIDATES_MIN: Final = 64
CANDIDATES_PER_K: Final = 4
FUSION_K0: Final = 10  # reciprocal rank fusion; 60 is clearly worse on LoCoMo
INTERNAL = CLASSIFICATIONS.index("internal")
USER, TASK, OPERATIONAL = SCOPES.index("user"), SCOPES.index("task"), SCOPES.index("operational")

Mask = npt.NDArray[np.bool_]
Seqs = npt.NDArray[np.int32]


class ProjectIndex:
    """Lexical index and vectors of one project. Row i is the project's i-th memory; `seqs[i]` its tenant_seq, ascending."""

    def __init__(self) -> None:
        self.n = 0
        self._seqs = np.zeros(256, np.int32)
        self.lexical = LexicalIndex()
        self.vectors = ProjectVectors(DIM)

    @property
    def seqs(self) -> Seqs:
        return self._seqs[: self.n]

    def add(self, seqs: list[int], terms_of: list[frozenset[str]], vectors: npt.NDArray[np.float32]) -> None:
        need = self.n + len(seqs)
        if need > len(self._seqs):
            larger = np.zeros(max(2 * len(self._seqs), need), np.int32)
            larger[: self.n] = self.seqs
            self._seqs = larger
        self._seqs[self.n : need] = seqs
        self.lexical.add(terms_of)
        self.vectors.add(vectors)
        self.n = need


class Candidates:
    """Fused candidates of a micro-batch: aligned arrays, asks one after another. `owner[i]` is the ask's number."""

    def __init__(
        self,
        seqs: list[int],
        rows: list[int],
        owner: list[int],
        fused: list[float],
        lexical: list[float],
        vector: list[float],
        overlap: list[float],
        cosine: list[float],
    ) -> None:
        self.seqs = np.array(seqs, np.int32)
        self.rows = np.array(rows, np.int32)
        self.owner = np.array(owner, np.int32)
        self.fused = np.array(fused, np.float32)
        self.lexical = np.array(lexical, np.float32)  # reciprocal rank, 0 = not found by this lane
        self.vector = np.array(vector, np.float32)
        self.overlap = np.array(overlap, np.float32)  # summed idf of the question's terms, the lexical lane's score
        self.cosine = np.array(cosine, np.float32)


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
    for key, values in a.filters.items():
        mask &= _filter(t, c, seqs, key, values)
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


def readers_ok(t: Tenant, a: Ask) -> Mask:
    """For each interned set of clauses, whether the principal matches every clause."""
    p = a.principal
    me = {f"agent:{p.agent.name}", f"role:{p.role}"} | ({f"user:{p.user_hash}"} if p.user_hash else set())
    return np.fromiter(
        (all(not clause.isdisjoint(me) for clause in clauses) for clauses in t.readers.values), np.bool_, len(t.readers)
    )


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


def usable(c: Columns, seqs: Seqs, now_ms: int) -> Mask:
    """Rows that stored facts do not rule out now: not held, current, in time."""
    by = c.superseded[seqs]
    ok: Mask = (
        (c.held[seqs] == 0)
        & ((by == 0) | (c.held[by] != 0))
        & (c.expires[seqs] > now_ms)
        & (c.valid_until[seqs] > now_ms)
        & (c.valid_from[seqs] <= now_ms)
    )
    return ok


def candidates(
    t: Tenant, project: Project, index: ProjectIndex, asks: list[Ask], vectors: npt.NDArray[np.float32], now_ms: int
) -> tuple[Candidates, list[list[int]]]:
    """Candidates of all asks of one project, and for each ask the rows that match but that stored facts withhold now."""
    c, seqs = t.columns, index.seqs
    facts = usable(c, seqs, now_ms)
    all_usable = bool(facts.all())
    allowed: list[Mask | None] = []
    hidden: list[Mask | None] = []
    for a in asks:
        seen = visible(t, project, c, seqs, a)
        if a.as_of_ms:  # the past is asked for: policy sorts out what was current then
            present, rest = c.held[seqs] == 0, c.held[seqs] != 0
        else:
            present, rest = facts, ~facts
        if a.as_of_ms or not all_usable:
            allowed.append(present if seen is None else seen & present)
            hidden.append(rest if seen is None else seen & rest)
        else:
            allowed.append(seen)
            hidden.append(None)
    limit = [max(CANDIDATES_MIN, CANDIDATES_PER_K * a.k) for a in asks]
    words = [terms(a.text) for a in asks]
    nearest = index.vectors.search(vectors, max(limit, default=CANDIDATES_MIN), allowed)
    rows: list[int] = []
    owner: list[int] = []
    fusions: list[float] = []
    lexicals: list[float] = []
    vecs: list[float] = []
    overlaps: list[float] = []
    cosines: list[float] = []
    withheld: list[list[int]] = []
    for i in range(len(asks)):
        lexical, sums = index.lexical.search(words[i], limit[i], allowed[i])
        near, scores = nearest[i]
        lex = {r: 1 / (FUSION_K0 + n) for n, r in enumerate(lexical.tolist())}
        overlap = dict(zip(lexical.tolist(), sums.tolist(), strict=True))
        vec = {r: (1 / (FUSION_K0 + n), s) for n, (r, s) in enumerate(zip(near.tolist(), scores.tolist(), strict=True)) if s > 0}
        fused = {r: lex.get(r, 0.0) + vec.get(r, (0.0, 0.0))[0] for r in lex.keys() | vec.keys()}
        best = sorted(fused, key=lambda r: (-fused[r], -r))[: limit[i]]
        rows += best
        owner += [i] * len(best)
        fusions += [fused[r] for r in best]
        lexicals += [lex.get(r, 0.0) for r in best]
        overlaps += [overlap.get(r, 0.0) for r in best]
        vecs += [vec.get(r, (0.0, 0.0))[0] for r in best]
        cosines += [vec.get(r, (0.0, 0.0))[1] for r in best]
        mask = hidden[i]
        withheld.append(index.lexical.search(words[i], CANDIDATES_MIN, mask)[0].tolist() if mask is not None else [])
    out = Candidates(seqs[rows].tolist() if rows else [], rows, owner, fusions, lexicals, vecs, overlaps, cosines)
    return out, [[int(seqs[r]) for r in found] for found in withheld]


def spread(order: list[int], actors: npt.NDArray[np.int32], roots: npt.NDArray[np.int64], k: int) -> list[int]:
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
        root, actor = int(roots[i]), int(actors[i])
        if by_actor.get(actor, 0) >= per_actor or (root and by_root.get(root, 0) >= per_root):
            passed.append(i)
            continue
        taken.append(i)
        by_actor[actor] = by_actor.get(actor, 0) + 1
        by_root[root] = by_root.get(root, 0) + 1
    chosen = set(taken + passed[: k - len(taken)])
    return [i for i in order if i in chosen]
