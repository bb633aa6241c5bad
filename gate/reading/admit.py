"""Admission of a micro-batch: candidates → policy → gate → the page. Runs on the index thread; reads columns, writes only
the asks.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from gate.model.embedder import Embedder
from gate.model.features import Candidates as GateCandidates
from gate.model.features import build_features
from gate.model.network import Gate
from gate.projections.catalog import Catalog
from gate.state.tenant import Project, Tenant

from . import policy
from .ask import Ask, Found
from .retrieve import Candidates, ProjectIndex, candidates, readers_ok, spread, visible

log = logging.getLogger(__name__)
NOTE_GATE_OFF: Final = "gate_unavailable"
NOTE_SHADOW: Final = "policy_shadow"
WITHHELD_MAX: Final = 64
DAY_MS: Final = 86_400_000
# What is ranked down counts half. As a tier behind all that is admitted, notes from outside were never found once a project had k
# records of its own (docs/decisions.md 23).
LOWERED: Final = 0.5


class Admission:
    """Owns embedder and gate. `gate` None = policy alone, and every recall says so."""

    def __init__(self, embedder: Embedder, gate: Gate | None) -> None:
        self.embedder = embedder
        self.gate = gate

    def answer(
        self, tenant: Tenant, project: Project, index: ProjectIndex | None, catalog: Catalog, asks: list[Ask], now_ms: int
    ) -> None:
        """Fill found, withheld, rows and notes of asks of one project."""
        snapshot = tenant.generation  # before the columns are read: what it names, the columns have
        for a in asks:
            a.snapshot = snapshot
        if index is None or not index.n:
            return
        queries = [a for a in asks if a.verb == "query"]
        if queries:
            vectors = self.embedder.encode([a.text for a in queries])
            found, withheld = candidates(tenant, project, index, queries, vectors, now_ms)
            self.decide(tenant, project, index, queries, vectors, found, now_ms)
            self._withheld(tenant, project, queries, withheld, now_ms)
        for a in asks:
            if a.verb == "get":
                self._get(tenant, project, a, now_ms)
        rows = catalog.fetch(list({f.seq for a in asks for f in a.found}))
        for a in asks:
            a.rows = rows

    def _get(self, t: Tenant, project: Project, a: Ask, now_ms: int) -> None:
        c = t.columns
        seqs = np.array([s for s in a.seqs if c.project[s] == project.number], np.int32)
        seen = visible(t, project, c, seqs, a)
        if seen is not None:
            seqs = seqs[seen]
        if not len(seqs):
            return
        owner = np.zeros(len(seqs), np.int32)
        rows, ask = _asked(t, project, [a], seqs, owner, now_ms)
        decision, reasons = policy.decide(rows, ask)
        if project.settings.mode == "shadow":
            decision = _shadow(decision, reasons, a)
        constraints = policy.constraints(rows, ask, decision)
        for i, s in enumerate(seqs.tolist()):
            f = Found(s, int(decision[i]), int(reasons[i]), int(constraints[i]), 0.0)
            (a.found if f.decision < policy.QUARANTINE else a.withheld).append(f)

    def decide(
        self,
        t: Tenant,
        project: Project,
        index: ProjectIndex,
        asks: list[Ask],
        vectors: npt.NDArray[np.float32],
        found: Candidates,
        now_ms: int,
    ) -> None:
        """Policy, then the gate, over all candidates of a micro-batch; fill found, withheld and notes of its asks."""
        if not len(found.seqs):
            return
        c, seqs, owner = t.columns, found.seqs, found.owner
        rows, ask = _asked(t, project, asks, seqs, owner, now_ms)
        decision, reasons = policy.decide(rows, ask)
        score, lowered = self._gate(project, index, vectors, found)
        if lowered is not None:
            hit = lowered & (decision == policy.ADMIT)
            reasons |= hit.astype(np.int32) << policy.GATE_BIT
            if project.settings.gate == "enforce":
                decision = np.where(hit, np.int8(policy.RANK_DOWN), decision)
        constraints = policy.constraints(rows, ask, decision)
        starts = np.searchsorted(owner, np.arange(len(asks) + 1))
        if project.settings.mode == "shadow":
            parts = [slice(a, b) for a, b in pairwise(starts.tolist())]
            decision = np.concatenate([_shadow(decision[s], reasons[s], a) for s, a in zip(parts, asks, strict=True)])
        worth = found.fused * (500 + rows.eff) / 1500  # deterministic: fused rank by trust, then age in whole days
        worth = np.where(decision == policy.ADMIT, worth, worth * LOWERED)
        age = (now_ms - c.oldest[seqs]) // DAY_MS
        order = np.lexsort((-seqs, age, -worth, owner))
        in_order = [x[order].tolist() for x in (seqs, decision, reasons, constraints, score, rows.actor, c.evroot[seqs])]
        for a, (start, end) in zip(asks, pairwise(starts.tolist()), strict=True):
            ids, decided, why, bits, scores, actors, roots = (x[start:end] for x in in_order)
            open_ = [j for j, d in enumerate(decided) if d < policy.QUARANTINE]
            a.found += [Found(ids[j], decided[j], why[j], bits[j], scores[j]) for j in spread(open_, actors, roots, a.k)]
            if len(open_) < len(decided):
                closed = [j for j, d in enumerate(decided) if d >= policy.QUARANTINE][:WITHHELD_MAX]
                a.withheld += [Found(ids[j], decided[j], why[j], 0, scores[j]) for j in closed]
            if self.gate is None or project.settings.gate == "off":
                a.notes.append(NOTE_GATE_OFF)

    def _gate(
        self,
        project: Project,
        index: ProjectIndex,
        vectors: npt.NDArray[np.float32],
        found: Candidates,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_] | None]:
        """Scores, and which candidates the gate would lower; (zeros, None) when there is no gate."""
        n = len(found.seqs)
        if self.gate is None or project.settings.gate == "off":
            return np.zeros(n, np.float32), None
        try:
            features = build_features(GateCandidates(found.owner, found.lexical, found.vector, found.overlap, found.cosine))
            score = self.gate.score(vectors, found.owner, index.vectors.gather(found.rows), features)
        except Exception:  # a failing gate never costs an answer: policy alone
            log.exception("the gate failed; policy alone")
            self.gate = None
            return np.zeros(n, np.float32), None
        return score, score < self.gate.threshold

    def _withheld(self, t: Tenant, project: Project, asks: list[Ask], hidden: list[list[int]], now_ms: int) -> None:
        """Decide on matches that stored facts rule out, so that they are counted with their reason."""
        kept = [found[: WITHHELD_MAX - len(a.withheld)] for a, found in zip(asks, hidden, strict=True)]
        seqs = np.array([s for found in kept for s in found], np.int32)
        if not len(seqs):
            return
        owner = np.repeat(np.arange(len(asks), dtype=np.int32), [len(found) for found in kept])
        decision, reasons = policy.decide(*_asked(t, project, asks, seqs, owner, now_ms))
        for s, i, decided, why in zip(seqs.tolist(), owner.tolist(), decision.tolist(), reasons.tolist(), strict=True):
            if decided >= policy.QUARANTINE:
                asks[i].withheld.append(Found(s, decided, why, 0, 0.0))


def _asked(
    t: Tenant, project: Project, asks: list[Ask], seqs: npt.NDArray[np.int32], owner: npt.NDArray[np.int32], now_ms: int
) -> tuple[policy.Rows, policy.Ask]:
    """The candidates' columns, and the askers' side broadcast to them."""
    rows = policy.Rows(t.columns, seqs, _authority(t))
    if project.special:
        readers = np.concatenate([readers_ok(t, a)[rows.readers[owner == i]] for i, a in enumerate(asks)])
    else:
        readers = np.ones(len(seqs), np.bool_)

    sides = [
        (
            a.principal.rights.clearance,
            a.principal.agent.number,
            a.intent,
            a.risk,
            a.origins,
            a.history_off,
            a.as_of_ms or now_ms,
            bool(a.as_of_ms),
        )
        for a in asks
    ]
    clearance, agent, intent, risk, origins, history_off, as_of, past = np.array(sides, np.int64).T[:, owner]
    return rows, policy.Ask(
        project=np.full(len(seqs), project.number, np.int16),
        clearance=clearance,
        readers_ok=readers,
        agent=agent,
        intent=intent,
        risk=risk,
        origins=origins,
        history_off=history_off != 0,
        as_of=as_of,
        past=past != 0,
        now=now_ms,
    )


def _authority(t: Tenant) -> npt.NDArray[np.bool_]:
    """By agent number: whether its role may set rules. Roles never change, agents only come."""
    agents = t.agents.all
    if len(t.authority) < len(agents):
        t.authority = np.fromiter((a.role in policy.AUTHORITY_ROLES for a in agents[: len(agents)]), np.bool_)
    return t.authority


def _shadow(decision: npt.NDArray[np.int8], reasons: npt.NDArray[np.int32], a: Ask) -> npt.NDArray[np.int8]:
    """Shadow mode: everything is decided and recorded, nothing changes — but for what no mode lifts."""
    hard = np.zeros(len(decision), np.bool_)
    for bit, rule in zip(policy.BITS, policy.RULES, strict=True):
        if rule.code in ("other_project", "above_clearance", "not_a_reader", "held", "erased"):
            hard |= (reasons >> bit & 1).astype(np.bool_)
    if bool(((decision != policy.ADMIT) & ~hard).any()) and NOTE_SHADOW not in a.notes:
        a.notes.append(NOTE_SHADOW)
    return np.where(hard, decision, np.int8(policy.ADMIT))
