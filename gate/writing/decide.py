"""The decision on a write: accepted, or held and why. Pure over live state; replay never runs it.

Called by the sequencer, serially, just before encoding, so that what it sees (parents' holds, superseders, exposure) is what
holds
when the event gets its place in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from bus.frames import CLASSIFICATIONS
from bus.limits import EDGES_PER_MEMORY_MAX, READER_CLAUSES_MAX, READER_ENTRIES_MAX
from gate import ids
from gate.identify import Principal
from gate.ledger import events as E
from gate.lifecycle import promotion
from gate.quotas import full
from gate.rights import remain
from gate.state.columns import REVIEW_PENDING, REVIEW_REJECTED, Columns
from gate.state.compartments import bounded
from gate.state.contexts import Context
from gate.state.tenant import Clauses, Tenant

from .lineage import COPIED_CONFIDENCE, NO_EVIDENCE, SERVED_CONFIDENCE, Evidence, Text
from .screen import HELD_FROM, NOTED_FROM, Screening
from .supersede import place
from .trust import Own, capped_origin, join
from .validate import Checked

if TYPE_CHECKING:
    import asyncio

    from .redact import Redacted
    from .sequencer import Stored

NOBODY: Final[Clauses] = (frozenset(),)  # an empty clause: no principal is in it


COPIED_BYTE, SERVED_BYTE = int(COPIED_CONFIDENCE * 255), int(SERVED_CONFIDENCE * 255) + 1


@dataclass(slots=True)
class Write:
    """One draft on its way: who, what was checked, then what the index thread found out."""

    principal: Principal
    checked: Checked
    context: Context
    declared: list[int]
    supersedes: int
    reply: str
    request_id: str
    ms: int
    units: int = 1  # what it counts for in flight
    idem: bytes = b""
    idem_content: bytes = b""
    run: bytes = b""
    task: bytes = b""
    session: bytes = b""
    promotes: int = 0  # the memory of a task whose text it is
    evroot: bytes = b""
    # found by the index thread
    redacted: Redacted | None = None
    evidence: tuple[str, ...] = ()
    labels: tuple[str, str, str, str, str] = ("", "", "", "", "")  # run, task, session, trace_id, scope_id: redacted
    screening: Screening | None = None
    said: str = ""  # content, evidence and scope: what is screened, and compared with what the writer was served
    terms: frozenset[str] = frozenset()
    text: Text | None = None
    lineage: Evidence = NO_EVIDENCE
    body: bytes = b""
    body_hash: bytes = b""
    encoder: str = ""
    prepared: asyncio.Future[None] | None = None  # if somebody waits for that
    # given by the sequencer
    event: E.MemoryWritten | None = None
    stored: Stored | None = None  # the event as it goes into the block
    seq: int = 0
    also: list[tuple[Principal, str, str]] = field(default_factory=list)  # retries in flight: who, by which key, as above

    @property
    def size(self) -> int:
        """Of its text, its own or the one that it promotes."""
        at = self.principal.tenant.columns.at
        return at.body[self.promotes] if self.promotes else len(self.checked.draft.content)


def origin_of(p: Principal, d: Checked) -> int:
    """The origin that this credential gives this draft, before any parent."""
    has_tool = bool(d.draft.tool) and d.draft.tool in p.rights.tools
    return capped_origin(d.origin, p.rights.tool_ceiling if has_tool else p.rights.ceiling, has_tool)


def own_readers(readers: Clauses, tenant: Tenant) -> Clauses:
    """Clauses with users as their keyed hashes."""

    def entry(e: str) -> str:
        return f"user:{tenant.user_hash(e[5:])}" if e.startswith("user:") else e

    return tuple(frozenset(entry(e) for e in clause) for clause in readers)


def decide(w: Write, gate: str, now_ms: int) -> E.MemoryWritten:
    """The event of this write, with the decision taken. Refuses only what can't be stored at all (quota, supersede conflict)."""
    p, d, t, ctx = w.principal, w.checked, w.principal.tenant, w.context
    c = t.columns
    remain(p, now_ms)
    if w.promotes:
        promotion.check(p, w.promotes, now_ms)
    assert w.redacted is not None
    assert w.screening is not None
    claimed = d.origin
    origin = origin_of(p, d)
    reasons: list[str] = []
    if claimed is not None and origin < claimed:
        reasons.append("origin_capped")
    if d.end.capped:
        reasons.append("ttl_capped")
    user = t.user_hash(d.draft.scope_id) if d.scope == 1 else ""
    mine = {f"project:{p.project}"} | ({f"user:{user}"} if user else set())
    edges = _edges(w, c)
    parents = list(dict.fromkeys([*(e.parent for e in edges), *w.lineage.joined]))
    own = Own(
        origin,
        not w.evidence,
        d.confidence,
        d.cls,
        d.sens,
        d.draft.opt_out,
        own_readers(d.readers, t),
        frozenset(mine),
        now_ms,
        ctx.labels.floor,
        bool(ctx.exposed),
    )
    stamp = join(own, parents, c, t.readers, t.comps)
    cls, comp = stamp.cls, set(stamp.comp)
    cls, comp = max(cls, ctx.fallen_cls), comp | ctx.fallen_comp
    for near in w.lineage.near:
        cls = max(cls, int(c.cls[near]))
        comp |= t.comps[int(c.comp[near])]
    comp = set(bounded(comp))
    readers = stamp.readers
    holds = _flow(t, p.project, mine, comp, cls)
    wide = len(readers) > READER_CLAUSES_MAX or any(len(clause) > READER_ENTRIES_MAX for clause in readers)
    if wide or not _readers_fit(w, readers):
        holds.append("readers_too_complex")
        readers = NOBODY  # all clauses of all parents would be too long to keep; fewer would let more in
    kind = "screen" if w.screening.score >= HELD_FROM else "noted" if w.screening.score >= NOTED_FROM else ""
    (holds if kind == "screen" else reasons).extend(f"{kind}:{r}" for r in w.screening.reasons if kind)
    if cls != stamp.cls or readers is not stamp.readers:
        stamp = replace(stamp, cls=cls, readers=readers)
    supersedes, contradicts, why = place(w, stamp, user, now_ms)
    if why:
        holds.append(why)
    if w.lineage.cut:
        holds.append("too_many_sources")
    strong = list(dict.fromkeys([*(e.parent for e in edges if e.kind != E.SERVED), *w.lineage.strong]))
    holding = t.cases_of(strong)
    cases = [k for k in holding if k.state == "open"]  # a pending one isn't in the ledger: an event may not name it
    if len(cases) < len(holding) or any(int(c.review[s]) in (REVIEW_PENDING, REVIEW_REJECTED) for s in strong):
        holds.append("parent_held")
    _room(p, held=bool(holds or cases), review=bool(holds))
    if cases and "parent_held" not in holds:
        reasons.append("parent_held")
    exposed = sorted(ctx.exposed)
    if exposed:
        reasons.append("context_exposed")
    return E.MemoryWritten(
        ms=now_ms,
        id=ids.new_raw(now_ms),
        project=p.project,
        scope=d.scope,
        user=user,
        agent=p.agent.id,
        key=p.key,
        role=p.role,
        chain=list(p.agent.chain),
        kind=d.kind,
        origin=stamp.origin,
        origin_claimed=-1 if claimed is None else claimed,
        method=d.method,
        trust=stamp.trust,
        floor=stamp.floor,
        class_=stamp.cls,
        sens=stamp.sens,
        opt_out=stamp.opt_out,
        readers=[sorted(clause) for clause in stamp.readers] or None,
        comp=sorted(comp),
        holds=holds,
        reasons=reasons,
        edges=edges,
        cases=[k.id for k in cases],
        exposed=exposed,
        ctx=ctx.id,
        epoch=ctx.epoch,
        ctx_seq=ctx.recalls,
        from_=d.from_ms,
        until=d.until_ms,
        expires=d.end.expires_ms,
        fixed=d.end.fixed,
        promotes=w.promotes,
        oldest=stamp.oldest_ms,
        supersedes=supersedes,
        contradicts=contradicts,
        task_state=d.task_state,
        nosrc=not w.evidence,
        evroot=w.evroot,
        run=w.run,
        task=w.task,
        session=w.session,
        red=[[s.type, s.start, s.end] for s in w.redacted.spans],
        tool=d.draft.tool,
        idem=w.idem,
        idem_content=w.idem_content,
        policy=t.policy,
        gate=gate,
        enc=w.encoder,
        body=w.body_hash,
    )


def _room(p: Principal, *, held: bool, review: bool) -> None:
    """Refuse what would be one held, or one to review, too many."""
    t, q = p.tenant, p.tenant.quotas
    a = t.agents.payer(p.agent)
    if review and a.review >= q.agent_review:
        raise full("review", "agent", q.agent_review, a.review)
    if review and t.review_total >= q.tenant_review:
        raise full("review", "tenant", q.tenant_review, t.review_total)
    if held and a.held >= q.agent_held:
        raise full("held", "agent", q.agent_held, a.held)
    if held and t.held_total >= q.tenant_held:
        raise full("held", "tenant", q.tenant_held, t.held_total)


def _readers_fit(w: Write, readers: Clauses) -> bool:
    """Whether there is room to keep these clauses. Refuses a draft that names readers itself; of parents' it is no fault."""
    p, t, q = w.principal, w.principal.tenant, w.principal.tenant.quotas
    if t.readers.find(readers) is not None:
        return True
    entries, a = sum(map(len, readers)), t.agents.payer(p.agent)
    if w.checked.readers:
        if a.readers + entries > q.agent_readers:
            raise full("readers", "agent", q.agent_readers, a.readers)
        if t.reader_entries + entries > q.tenant_readers:
            raise full("readers", "tenant", q.tenant_readers, t.reader_entries)
    return t.reader_entries + entries <= q.tenant_readers


def _edges(w: Write, c: Columns) -> list[E.Edge]:
    """Declared first, then copied and served that are not declared, bounded; what gave the worst labels has one in any case."""
    edges = {s: E.Edge(E.DECLARED, s, 255) for s in w.declared}
    for kind, pairs in ((E.COPIED, w.lineage.copied), (E.SERVED, w.lineage.served)):
        for pair in pairs:
            edges.setdefault(pair.parent, E.Edge(kind, pair.parent, int(pair.confidence * 255)))
    bounded = dict(list(edges.items())[:EDGES_PER_MEMORY_MAX])
    without = [s for s in w.lineage.joined if s not in bounded]
    if without:
        at = c.at
        worst = {
            min(without, key=lambda s: at.eff[s]),
            min(without, key=lambda s: at.origin[s]),
            max(without, key=lambda s: at.cls[s]),
        }
        for s in list(bounded)[EDGES_PER_MEMORY_MAX - len(worst) :]:
            del bounded[s]
        strong = set(w.lineage.strong)
        bounded |= {
            s: E.Edge(E.COPIED, s, COPIED_BYTE) if s in strong else E.Edge(E.SERVED, s, SERVED_BYTE) for s in sorted(worst)
        }
    return list(bounded.values())


def _flow(t: Tenant, project: str, mine: set[str], comp: set[str], cls: int) -> list[str]:
    """Labels that this project, scope or user may not take in."""
    settings = t.projects[project].settings
    holds = []
    for label in sorted(comp - mine):
        source = label.removeprefix("project:")
        other = t.projects.get(source) if label.startswith("project:") else None
        if other is None or other.state == "deleted" or source not in settings.flow_from or project not in other.settings.flow_to:
            holds.append(f"flow_down:{label}")
    if cls > CLASSIFICATIONS.index(settings.classification_max):
        holds.append(f"flow_down:{CLASSIFICATIONS[cls]}")
    return holds
