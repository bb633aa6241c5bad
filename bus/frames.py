"""Every frame on the wire: tagged, versioned msgspec Structs in JSON. Pure; no I/O.

`type` is the tag. New fields always have defaults; unknown fields are ignored. Times are RFC 3339 text with `Z`.
Trust is a number 0..1 with at most three decimals. What an agent sends (Draft) and what the gatekeeper stamps (Memory) are two
types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import msgspec

from . import limits
from .errors import Conflict, CordonError, Denied, FrameTooLarge, MalformedFrame, Rejected, Unavailable, WriteRejected
from .limits import WIRE_VERSION
from .prompt import render_prompt

Kind = Literal[
    "fact", "preference", "event", "rule", "procedure", "decision", "source", "tool_experience", "relationship", "task",
    "emotional_state", "constraint",
]  # fmt: skip
Scope = Literal["project", "user", "task", "operational"]
Origin = Literal["external", "agent_inferred", "tool_result", "user_stated", "human_reviewed", "system"]
Method = Literal["stated", "extracted", "summarised", "imported"]
Sensitivity = Literal["low", "high"]
Classification = Literal["public", "internal", "restricted"]
TaskState = Literal["active", "resolved", "abandoned", "superseded"]
Intent = Literal["answer", "plan", "write", "send", "execute", "configure"]
Risk = Literal["none", "read_only", "writes_local", "external_side_effect", "privileged"]
Decision = Literal["admit", "admit_summary_only", "rank_down", "quarantine", "deny"]
Surface = Literal["natural", "tentative", "background", "suppressed"]
FeedKind = Literal["memory", "held", "released", "superseded", "erased"]
NoticeKind = Literal["recall", "released"]
CaseStatus = Literal["open", "pending", "released"]
PlanKind = Literal["hold", "rollback"]
State = Literal["active", "held", "retracted", "expired", "superseded", "erased"]

# Ordered tuples: the index is the number inside the gatekeeper and the ledger. Append only.
KINDS: tuple[Kind, ...] = get_args(Kind)
SCOPES: tuple[Scope, ...] = get_args(Scope)
ORIGINS: tuple[Origin, ...] = get_args(Origin)  # weakest first
METHODS: tuple[Method, ...] = get_args(Method)
SENSITIVITIES: tuple[Sensitivity, ...] = get_args(Sensitivity)  # loosest first
CLASSIFICATIONS: tuple[Classification, ...] = get_args(Classification)  # loosest first
TASK_STATES: tuple[TaskState, ...] = get_args(TaskState)
INTENTS: tuple[Intent, ...] = get_args(Intent)
RISKS: tuple[Risk, ...] = get_args(Risk)  # least first
DECISIONS: tuple[Decision, ...] = get_args(Decision)  # loosest first

Readers = list[list[str]]

TAIL_CHARS = 8  # of an id: random, so that people name it by them
IDS_SHOWN = 8  # in one sentence


def tail(id: str) -> str:
    """An id as people see and name it."""
    return id[-TAIL_CHARS:]


def tails(ids: Sequence[str], total: int) -> str:
    """The first of `total` ids in a sentence."""
    shown = ids[:IDS_SHOWN]
    return " ".join(map(tail, shown)) + (f" and {total - len(shown):,} more" if total > len(shown) else "")


def _memories(count: int) -> str:
    return f"{count:,} memor{'y' if count == 1 else 'ies'}"


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every frame carries. `request_id` is made by the client and comes back with `agent` and `project`."""

    v: int = WIRE_VERSION
    request_id: str = ""


class Answer(Frame, frozen=True, kw_only=True, omit_defaults=False):
    """What every answer carries: to whom (`agent`, a public key) and about which project it is."""

    agent: str = ""
    project: str = ""


# --- agents: requests -----------------------------------------------------------------------------
class Draft(Frame, frozen=True, kw_only=True, tag="draft"):
    """What an agent asks to store: no identity, no trust. Claims can only tighten.

    `origin` empty = the key's maximum; `ttl` in seconds. `promotes`: the id of a memory of a task that is to be one of the
    project: its text, evidence and kind are taken, and this draft has none of its own.
    """

    content: str
    kind: Kind = "fact"
    scope: Scope = "project"
    scope_id: str = ""
    origin: Origin | Literal[""] = ""
    method: Method = "stated"
    evidence: list[str] = []
    derived_from: list[str] = []
    run: str = ""
    task: str = ""
    session: str = ""
    trace_id: str = ""
    task_state: TaskState | None = None
    claimed_confidence: float | None = None
    sensitivity: Sensitivity = "low"
    classification: Classification = "internal"
    readers: Readers | None = None
    valid_from: str | None = None
    valid_until: str | None = None
    ttl: int | None = None
    expires_at: str | None = None
    opt_out: bool = False
    supersedes: str = ""
    idempotency_key: str = ""
    tool: str = ""
    promotes: str = ""


class Query(Frame, frozen=True, kw_only=True, tag="query"):
    """A question with its admission context. Intent, risk and scene are claims: they only make decisions stricter."""

    text: str
    k: int = limits.K_DEFAULT
    filters: dict[str, list[str]] = {}
    as_of: str | None = None
    min_position: int = 0
    run: str = ""
    task: str = ""
    turn: int = 0
    user: str = ""
    intent: Intent = "answer"
    tool_risk: Risk = "none"
    required_origin: list[Origin] | None = None
    scene: str = ""
    history_off: bool = False


class Get(Frame, frozen=True, kw_only=True, tag="get"):
    """Content by id: authorised, decided and recorded like a recall. Unknown, foreign and unreadable ids are simply absent."""

    ids: list[str]
    as_of: str | None = None
    min_position: int = 0
    run: str = ""
    task: str = ""
    turn: int = 0
    user: str = ""
    intent: Intent = "answer"
    tool_risk: Risk = "none"


class Report(Frame, frozen=True, kw_only=True, tag="report"):
    """These memories (ids, at most 64) were of use: each lives on, up to its kind's most. Only what this agent was served."""

    used: list[str]


class Ack(Frame, frozen=True, kw_only=True, tag="ack"):
    """Acknowledges notices by their `notice` ids."""

    notices: list[str]


class Sync(Frame, frozen=True, kw_only=True, tag="sync"):
    """Asks for the open notices of this agent."""


class Delegate(Frame, frozen=True, kw_only=True, tag="delegate"):
    """Asks for a credential of the public key `key`, never wider than one's own. What is left out is the parent's.

    `ttl` in seconds; `at`: unix seconds of the asking. `proof`: the parent's signature over all of it (bus.delegation).
    """

    key: str
    name: str
    role: str = ""
    projects: list[str] | None = None
    clearance: Classification | Literal[""] = ""
    verbs: list[str] | None = None
    tools: list[str] | None = None
    ceiling: Origin | Literal[""] = ""
    user: str = ""
    ttl: int | None = None
    at: int = 0
    proof: str = ""


# --- agents: answers ------------------------------------------------------------------------------
class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote it, as the broker said. `id` is stable over key rotation; `chain` are the delegating agents' ids, root first."""

    id: str
    key: str = ""
    name: str = ""
    type: str = ""
    chain: list[str] = []
    via: str = ""


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was cut out before storage: its type and span in the stored text, never its value."""

    type: str
    start: int
    end: int


class Receipt(Answer, frozen=True, kw_only=True, tag="receipt"):
    """The answer to a draft, sent when the ledger has it on disk and it can be found."""

    id: str
    state: State
    searchable: bool = True
    trust: float
    trust_floor: float
    origin: Origin
    classification: Classification = "internal"
    actor: Actor
    reasons: list[str] = []
    redactions: list[Redaction] = []
    parents: list[str] = []
    duplicate: bool = False
    position: int

    def __str__(self) -> str:
        verb = "already stored" if self.duplicate else "stored"
        text = f"{tail(self.id)} {verb} as {self.state}, trust {self.trust:g} ({self.origin})"
        if self.parents:
            text += f", derived from {_memories(len(self.parents))}"
        if self.redactions:
            text += f", {len(self.redactions)} secret{'s' if len(self.redactions) > 1 else ''} cut out"
        if self.state == "held":
            text += f"; held for {', '.join(self.reasons) or 'an open case'}: an operator decides"
        return text + "."


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """How many parents of each edge kind the memory has."""

    declared: int = 0
    copied: int = 0
    served: int = 0


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """A stamped record, as a reader may see it."""

    id: str
    content: str
    kind: Kind
    project: str
    scope: Scope = "project"
    scope_id: str = ""
    origin: Origin
    method: Method = "stated"
    trust: float
    trust_floor: float
    classification: Classification = "internal"
    sensitivity: Sensitivity = "low"
    opt_out: bool = False
    readers: Readers | None = None
    actor: Actor
    evidence: list[str] = []
    sourceless: bool = False
    lineage: Lineage = Lineage()
    state: State = "active"
    task_state: TaskState | None = None
    review: str = ""
    written_at: str
    verified_at: str | None = None
    valid_from: str | None = None
    valid_until: str | None = None
    expires_at: str | None = None
    supersedes: str = ""
    superseded_by: str = ""
    position: int = 0


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One admitted candidate. `score` is the gate's (0..1, two digits)."""

    memory: Memory
    rank: int = 0
    score: float = 0.0
    decision: Decision
    reasons: list[str]
    constraints: list[str] = []
    surface: Surface = "natural"
    truncated: bool = False
    historical: bool = False


class Recall(Answer, frozen=True, kw_only=True, tag="recall"):
    """The answer to a query or get. `withheld` counts what this principal could see in another context.

    It is as long as what was admitted, and a loop over it gives the items.
    """

    recall_id: str
    admitted: list[Item] = []
    withheld: dict[str, int] = {}
    why_empty: str = ""
    notes: list[str] = []
    generation: int = 0
    position: int = 0

    def __iter__(self) -> Iterator[Item]:
        return iter(self.admitted)

    def __len__(self) -> int:
        return len(self.admitted)

    def __str__(self) -> str:
        if not self.admitted:
            return f"Nothing was admitted: {self.why_empty or 'nothing matched'}."
        withheld = ", ".join(f"{n} {code}" for code, n in self.withheld.items())
        return f"{len(self)} admitted: {tails(self.ids, len(self))}{f'; withheld: {withheld}' if withheld else ''}."

    @property
    def ids(self) -> list[str]:
        """Ids of what was admitted, in rank order: what `derived_from=` takes."""
        return [item.memory.id for item in self.admitted]

    def as_prompt(self) -> str:
        """Labelled data blocks for a model's context: never instructions, each with origin, trust and constraints."""
        return render_prompt(self)


class Refusal(Answer, frozen=True, kw_only=True, tag="refusal"):
    """A typed no. `error` is the class: rejected, conflict, denied, unavailable, malformed. `message` echoes no caller text."""

    error: Literal["rejected", "conflict", "denied", "unavailable", "malformed", "internal"]
    reason: str
    reasons: list[str] = []
    field: str = ""
    limit: int | None = None
    message: str = ""
    advice: str = ""
    retry_after_s: float | None = None
    detail: dict[str, Any] = {}


class Feed(Frame, frozen=True, kw_only=True, omit_defaults=False, tag="feed"):
    """What changed in a project: ids and ledger position only; content comes by `get`."""

    project: str
    classification: Classification
    kind: FeedKind
    ids: list[str]
    position: int


class Notice(Frame, frozen=True, kw_only=True, omit_defaults=False, tag="notice"):
    """'A memory that you were served is now held' (kind recall) or released. `notice` is what `ack` takes."""

    notice: str
    kind: NoticeKind
    agent: str
    case: str
    ids: list[str]
    total: int
    position: int

    def __str__(self) -> str:
        what = "you were served what is now held" if self.kind == "recall" else "what was held is released"
        return f"case {tail(self.case)}, {what}: {tails(self.ids, self.total)}"


class Synced(Answer, frozen=True, kw_only=True, tag="synced"):
    """Answer to ack and sync: the notices that are still open."""

    notices: list[Notice] = []
    position: int = 0


class Reported(Answer, frozen=True, kw_only=True, tag="reported"):
    """Answer to a report: the memories whose end moved, with the new one. Of the others it was late enough, or is fixed."""

    extended: dict[str, str] = {}
    position: int = 0


class Delegated(Answer, frozen=True, kw_only=True, tag="delegated"):
    """A child: who it is, and its signed credential `jwt`. `chain`: the delegating agents' ids, root first."""

    id: str
    name: str
    key: str
    role: str
    chain: list[str]
    projects: list[str]
    clearance: Classification
    verbs: list[str]
    tools: list[str] = []
    ceiling: Origin
    user: str = ""
    expires_at: str
    jwt: str
    duplicate: bool = False
    position: int = 0


# --- inside CORE: gatekeeper and issuer -----------------------------------------------------------
class Sign(Frame, frozen=True, kw_only=True, tag="sign"):
    """The gatekeeper asks the issuer for a child's credential: the parent's JWT, its signed wish, the child's full name and end.

    `account`: the tenant's account key. `expires_at`: unix seconds.
    """

    account: str
    parent: str
    wish: Delegate
    name: str
    expires_at: int


class Signed(Frame, frozen=True, kw_only=True, omit_defaults=False, tag="signed"):
    """The issuer's answer: `jwt`, or (empty) why not: `reason` unproven, stale, too_wide (`field` the dimension) or no_keys
    (`field` the file that the issuer lacks).
    """

    jwt: str = ""
    reason: str = ""
    field: str = ""


# --- operators: requests --------------------------------------------------------------------------
class Hold(Frame, frozen=True, kw_only=True, tag="hold"):
    """Plan, apply or force a hold. `selector`: memory ids, `agent:NAME`, `run:LABEL`, `source:URI`.

    `dry_run` answers a Plan; `plan` applies one; `now` plans and applies at once. `message` is required to apply. `rollback`: a
    case; plan to hold, instead of what a selector names, all that was written in its roots' projects since its first root.
    `kind`: what the plan that is applied is of; one of the other kind is refused.
    """

    selector: list[str] = []
    dry_run: bool = False
    plan: str = ""
    now: bool = False
    suspects: bool = False
    message: str = ""
    cursor: int = 0
    rollback: str = ""
    kind: PlanKind = "hold"


class Release(Frame, frozen=True, kw_only=True, tag="release"):
    """Removes exactly one case's holds."""

    case: str
    message: str = ""


class CaseQuery(Frame, frozen=True, kw_only=True, tag="case_query"):
    """One case with a page of members, or (case empty) the list of cases."""

    case: str = ""
    cursor: int = 0


class Review(Frame, frozen=True, kw_only=True, tag="review"):
    """An operator's decision on a memory that was held at write."""

    id: str
    verdict: Literal["accept", "reject"]
    message: str = ""


class ReviewQuery(Frame, frozen=True, kw_only=True, tag="review_query"):
    """The memories that wait for one, in pages."""

    cursor: int = 0


class Trace(Frame, frozen=True, kw_only=True, tag="trace"):
    """Lineage up (ancestors) or down (descendants) from one memory.

    `hops` None = all. `edges`: which kinds to follow (None = declared and copied).
    """

    id: str
    direction: Literal["up", "down"] = "down"
    hops: int | None = None
    edges: list[Literal["declared", "copied", "served"]] | None = None
    cursor: int = 0


class Why(Frame, frozen=True, kw_only=True, tag="why"):
    """Everything known about a memory (`mem_…`) or a recall (`rec_…`). Text only with `reveal`, which is logged."""

    id: str
    reveal: bool = False


class ContextRequest(Frame, frozen=True, kw_only=True, tag="context"):
    """Show or close the context of an agent (by name or id)."""

    agent: str
    action: Literal["show", "close"] = "show"
    message: str = ""


class StatsRequest(Frame, frozen=True, kw_only=True, tag="stats_query"):
    """Counts of this tenant, as far as this operator may see them."""


class Erase(Frame, frozen=True, kw_only=True, tag="erase"):
    """Erase the text of memories, for ever. `selector` as for Hold. `derived`: what came of them too.

    `dry_run` changes nothing. `agree`: the id of another person's request that an open case or a legal hold stands against.
    """

    selector: list[str] = []
    derived: bool = False
    dry_run: bool = False
    agree: str = ""
    message: str = ""


class ErasureQuery(Frame, frozen=True, kw_only=True, tag="erasure_query"):
    """The receipt of one erasure with a page of its members, or (erasure empty) all of them."""

    erasure: str = ""
    cursor: int = 0


class LegalHoldRequest(Frame, frozen=True, kw_only=True, tag="legal_hold"):
    """Keep memories from being erased by one person alone (`selector`), end that (`lift`), or list what there is."""

    selector: list[str] = []
    lift: str = ""
    message: str = ""
    cursor: int = 0


class Prune(Frame, frozen=True, kw_only=True, tag="prune"):
    """End memories that nobody needs. plan: of a project what nobody was served, names no source and is older than `older_than`
    seconds, of these `kinds` (none = all but rule, decision, constraint); or, with a `task` that is over, what is left of it.

    apply: the plan `plan`. undo: the end `end`. list: a page of ends from `cursor` on. `message` is required to apply and undo.
    """

    action: Literal["plan", "apply", "undo", "list"] = "list"
    project: str = ""
    kinds: list[Kind] = []
    older_than: int = 0
    task: str = ""
    plan: str = ""
    end: str = ""
    message: str = ""
    cursor: int = 0


# --- operators: answers ---------------------------------------------------------------------------
class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a plan, case or trace."""

    id: str
    agent: str = ""
    project: str = ""
    kind: str = ""
    hops: int = 0
    state: State = "active"
    mixed: bool = False
    confidence: float | None = None
    content: str | None = None


class Plan(Answer, frozen=True, kw_only=True, tag="plan"):
    """What a hold would do. `members` is one page of `count`; `elsewhere` counts those in projects this operator may not see.

    `roots`, `suspects`, `again` and `agents_to_tell` are pages from the same cursor on, of as many as their `…_count` says.
    `again`: memories that are superseded by a member, and current once that is held. `rollback`: the case that it goes back
    before.
    """

    plan: str
    roots: list[str]
    members: list[Member]
    count: int
    elsewhere: int = 0
    by_agent: dict[str, int] = {}
    by_project: dict[str, int] = {}
    by_kind: dict[str, int] = {}
    by_depth: dict[str, int] = {}
    suspects: list[Member] = []
    mixed: int = 0
    already_held: int = 0
    contexts_exposed: int = 0
    agents_to_tell: list[str] = []
    told_elsewhere: int = 0
    reads_lost: int = 0
    expires_at: str = ""
    position: int = 0
    next: int | None = None
    closure_ms: float = 0.0
    again: list[Member] = []
    again_count: int = 0
    rollback: str = ""
    roots_count: int = 0
    suspects_count: int = 0
    agents_to_tell_count: int = 0

    def __str__(self) -> str:
        told = self.agents_to_tell_count + self.told_elsewhere
        return f"{self.plan} would hold {_memories(self.count)} and tell {told} agent{'' if told == 1 else 's'}."


class Case(Answer, frozen=True, kw_only=True, tag="case"):
    """A case: who, why, roots, members. `pending`: in force, and not in the ledger yet.

    `members`, `roots`, `told` and `acked` are pages from the same cursor on; `told_count` and `acked_count` are all of them,
    `told_elsewhere` counts the agents in projects that this operator may not see. `added`: the first of `added_count`.
    """

    case: str
    state: CaseStatus
    by: str
    person: str = ""
    why: str = ""
    roots: list[str] = []
    count: int
    joined: int = 0
    added: list[str] = []
    members: list[Member] = []
    elsewhere: int = 0
    told: list[str] = []
    acked: list[str] = []
    told_elsewhere: int = 0
    opened_at: str = ""
    released_at: str | None = None
    released_by: str = ""
    position: int = 0
    next: int | None = None
    closure_ms: float = 0.0
    hold_ms: float = 0.0
    roots_count: int = 0
    added_count: int = 0
    told_count: int = 0
    acked_count: int = 0

    def __str__(self) -> str:
        told = f"{self.acked_count} of {self.told_count} told have acknowledged" if self.told_count else "nobody was told"
        return f"{tail(self.case)} is {self.state}: {_memories(self.count)}; {told}."


class Cases(Answer, frozen=True, kw_only=True, tag="cases"):
    """A page of cases, without their members, and with the first of their roots and of those told."""

    cases: list[Case]
    position: int = 0
    next: int | None = None


class Edge(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """`to` is derived from `from_` (on the wire `from`). `kind`: declared, copied, served."""

    from_: str
    to: str
    kind: str
    confidence: float | None = None


class TraceAnswer(Answer, frozen=True, kw_only=True, tag="trace_answer"):
    """Nodes in order of hops (the asked one first, hops 0), and the edges among them."""

    root: str
    direction: Literal["up", "down"]
    nodes: list[Member]
    edges: list[Edge]
    count: int
    elsewhere: int = 0
    position: int = 0
    next: int | None = None


class WhyAnswer(Answer, frozen=True, kw_only=True, tag="why_answer"):
    """Facts and their explanation in sentences. `facts` holds plain JSON values; agent text only in `content` when revealed.

    `cases`: the newest of `cases_count`.
    """

    id: str
    kind: Literal["memory", "recall"]
    sentences: list[str]
    facts: dict[str, Any]
    parents: list[Edge] = []
    reads: list[dict[str, Any]] = []
    cases: list[str] = []
    content: str | None = None
    position: int = 0
    cases_count: int = 0


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """One store of an erasure's receipt. `no_text`: there is nothing to erase in it."""

    name: str
    count: int = 0
    state: Literal["done", "pending", "no_text"]
    note: str = ""


class Erasure(Answer, frozen=True, kw_only=True, tag="erasure"):
    """A plan of an erasure, or its receipt. `members` is one page of `count`; `derived` of them only derive from what was named.

    Plan: `left` would stay although it derives from them; `cases` and `legal_holds` (the first of as many as their counts say)
    stand against it: it takes a second person.
    Receipt: `erasing` until every store in reach is without the text, `pending` says what isn't yet. `out_of_reach`: copies that
    this home doesn't have.
    """

    erasure: str = ""
    state: Literal["plan", "erasing", "done"]
    by: str = ""
    person: str = ""
    second: str = ""
    why: str = ""
    members: list[Member] = []
    count: int
    derived: int = 0
    left: list[Member] = []
    left_count: int = 0
    elsewhere: int = 0
    cases: list[str] = []
    legal_holds: list[str] = []
    stores: list[Store] = []
    pending: list[str] = []
    out_of_reach: list[str] = []
    erased_at: str = ""
    done_at: str | None = None
    position: int = 0
    next: int | None = None
    cases_count: int = 0
    legal_holds_count: int = 0


class Reviews(Answer, frozen=True, kw_only=True, tag="reviews"):
    """A page of what waits for a review, oldest first, in this operator's projects; `elsewhere` of all `count` are in others."""

    members: list[Member]
    count: int
    elsewhere: int = 0
    position: int = 0
    next: int | None = None


class Erasures(Answer, frozen=True, kw_only=True, tag="erasures"):
    """A page of erasures, newest first, without their members."""

    erasures: list[Erasure]
    position: int = 0
    next: int | None = None


class LegalHold(msgspec.Struct, frozen=True, kw_only=True):
    """Who keeps which memories from being erased, and why. `ids`: at most a page, of those that this operator may see."""

    hold: str
    by: str
    person: str = ""
    why: str = ""
    ids: list[str] = []
    count: int
    elsewhere: int = 0
    placed_at: str = ""
    lifted_at: str | None = None


class LegalHolds(Answer, frozen=True, kw_only=True, tag="legal_holds"):
    """A page of legal holds, newest first; or the one that was just placed or lifted."""

    holds: list[LegalHold]
    position: int = 0
    next: int | None = None


class Pruned(Answer, frozen=True, kw_only=True, tag="pruned"):
    """A plan to end memories, or what came of it: they have expired, nothing is erased. `members`: the first of `count`.

    `why`: pruned, task, or session (a closed context's operational notes). `kept`: how many it spares, by reason; `more`: beyond
    what one plan takes. `promoted`: members that live on in their project. `left`: members of the plan that may end no more.
    """

    plan: str = ""
    end: str = ""
    state: Literal["plan", "ended", "undone"]
    why: Literal["pruned", "task", "session"]
    message: str = ""
    by: str = ""
    members: list[Member] = []
    count: int
    more: int = 0
    promoted: int = 0
    left: int = 0
    by_kind: dict[str, int] = {}
    by_agent: dict[str, int] = {}
    kept: dict[str, int] = {}
    until: str = ""
    ended_at: str = ""
    undone_at: str | None = None
    position: int = 0


class Prunings(Answer, frozen=True, kw_only=True, tag="prunings"):
    """A page of ends, newest first, without their members."""

    ends: list[Pruned]
    position: int = 0
    next: int | None = None


class ContextAnswer(Answer, frozen=True, kw_only=True, tag="context_answer"):
    """What the gatekeeper believes is still in an agent's head. `elsewhere` counts compartments that the operator may not see.

    `exposed`: the newest of `exposed_count` cases.
    """

    context: str
    root: str
    epoch: int
    recalls: int
    served: int
    trust_floor: float
    classification: Classification = "internal"
    compartments: list[str] = []
    elsewhere: int = 0
    exposed: list[str] = []
    last_read_at: str | None = None
    closed: bool = False
    position: int = 0
    exposed_count: int = 0


class Stats(Answer, frozen=True, kw_only=True, tag="stats"):
    """Counts by name."""

    counts: dict[str, int]
    position: int = 0


# --- the home's control plane (adm.…) --------------------------------------------------------------
class AdmTenant(Frame, frozen=True, kw_only=True, tag="adm_tenant"):
    """Add, suspend, resume, export, delete or list tenants. `account`: the tenant's account key; `user_key`: hex secret for end
    users' ids.

    list, export (of `what`): a page from `cursor` on. delete: at exactly `position`; `exported`: whether an export of it exists.
    consent: before it, to a deletion that open cases stand against; the second one, of another `by`, within an hour agrees.
    """

    action: Literal["add", "suspend", "resume", "export", "consent", "delete", "list"] = "list"
    account: str = ""
    name: str = ""
    user_key: str = ""
    what: Literal["memories", "lineage", "cases", "members", "projects", "agents"] = "memories"
    cursor: int = 0
    position: int = 0
    exported: bool = False
    by: str = ""
    message: str = ""


class AdmProject(Frame, frozen=True, kw_only=True, tag="adm_project"):
    """Add, list and change projects of a tenant. `settings` see gate.config.ProjectSettings.

    share, unshare: with `others`. join, leave: the agent `agent`. `by`, `message`: who does it and why, for the record.
    list: a page from `cursor` on.
    """

    action: Literal["add", "list", "show", "set", "share", "unshare", "archive", "restore", "delete", "join", "leave"] = "list"
    account: str
    name: str = ""
    settings: dict[str, Any] = {}
    display: str | None = None
    others: list[str] = []
    agent: str = ""
    by: str = ""
    message: str = ""
    cursor: int = 0


class AdmAgent(Frame, frozen=True, kw_only=True, tag="adm_agent"):
    """Register, rotate, revoke or list agents of a tenant.

    rotate: `key` is one more key of the agent `name`. revoke: the keys `revoked` speak for it no more; none given = no key does.
    list: a page of those that the home issued, or (`name`) of that one and those that it delegated. `user`: whom it speaks for.
    """

    action: Literal["add", "rotate", "revoke", "list"] = "list"
    account: str
    name: str = ""
    key: str = ""
    role: str = "agent"
    projects: list[str] = []
    person: str = ""
    revoked: list[str] = []
    user: str = ""
    cursor: int = 0


class AdmRegistry(Frame, frozen=True, kw_only=True, tag="adm_registry"):
    """The new registry JWT; verified against the operator before it is used."""

    jwt: str


class AdmStatus(Frame, frozen=True, kw_only=True, tag="adm_status"):
    """Health, positions and counts of the gatekeeper."""


class AdmVerify(Frame, frozen=True, kw_only=True, tag="adm_verify"):
    """What a verification asks of a gatekeeper that serves, a part at a time; `gate/verifying/answers.py` has the answers.

    positions: how far everything is. Of one `account` (all numbers are the gatekeeper's own): state, rows, cases and
    contexts (from `first`), vectors (of project `part`), lineage (digests of the store, or the rows of one `part` of a `table`).
    """

    what: Literal["positions", "state", "rows", "cases", "contexts", "vectors", "lineage"] = "positions"
    account: str = ""
    table: Literal[
        "", "memory", "edge", "case_member", "case_event", "notice", "recall", "served", "withdrawn", "audit", "newest_read"
    ] = ""
    part: int = 0
    first: int = 0
    upto: int = 0
    ledger: int = 0
    since: int = 0
    until: int = 0


class AdmErased(Frame, frozen=True, kw_only=True, tag="adm_erased"):
    """The janitor asks for blocks to strip, and tells which are done and what went wrong. Answered late when there are none."""

    done: list[int] = []
    trouble: str = ""


class Done(Answer, frozen=True, kw_only=True, tag="done"):
    """Answer of the control plane. `result` holds plain JSON values."""

    result: dict[str, Any]
    position: int = 0


MemoryRequest = Draft | Query | Get | Report | Ack | Sync | Delegate
OpsRequest = (
    Hold | Release | CaseQuery | Review | ReviewQuery | Trace | Why | ContextRequest | StatsRequest | Erase | ErasureQuery
    | LegalHoldRequest | Prune
)  # fmt: skip
AdminRequest = AdmTenant | AdmProject | AdmAgent | AdmRegistry | AdmStatus | AdmVerify | AdmErased
Reply = (
    Receipt | Recall | Refusal | Reported | Synced | Delegated | Plan | Case | Cases | TraceAnswer | WhyAnswer | ContextAnswer
    | Stats | Erasure | Erasures | LegalHolds | Pruned | Prunings | Reviews | Done
)  # fmt: skip
Push = Feed | Notice

# The verb of the subject decides which request a frame must be: one table for client and gatekeeper.
VERB_OF: dict[type[Frame], str] = {
    Draft: "write", Query: "query", Get: "get", Report: "report", Ack: "ack", Sync: "sync", Delegate: "delegate",
    Hold: "hold", Release: "release", CaseQuery: "case", Review: "review", Trace: "trace", Why: "why",
    ContextRequest: "context", StatsRequest: "stats", Erase: "erase", ErasureQuery: "erase", LegalHoldRequest: "erase",
    Prune: "prune", ReviewQuery: "review",
    AdmTenant: "tenant", AdmProject: "project", AdmAgent: "agent", AdmRegistry: "registry", AdmStatus: "status",
    AdmVerify: "verify", AdmErased: "erased",
}  # fmt: skip
FRAME_BYTES_MAX: dict[type[Frame], int] = {  # others: QUERY_FRAME_BYTES_MAX
    Draft: limits.DRAFT_FRAME_BYTES_MAX,
    AdmRegistry: limits.REGISTRY_FRAME_BYTES_MAX,
}

_encoder = msgspec.json.Encoder()
_reply_decoder = msgspec.json.Decoder(Reply)
_push_decoder = msgspec.json.Decoder(Push)
F = TypeVar("F", bound=Frame)


def encode(frame: Frame) -> bytes:
    """JSON bytes of a frame; `FrameTooLarge` if a request is over its limit."""
    data = _encoder.encode(frame)
    if type(frame) in VERB_OF:
        limit = FRAME_BYTES_MAX.get(type(frame), limits.QUERY_FRAME_BYTES_MAX)
        if len(data) > limit:
            raise FrameTooLarge(
                f"A {frame.__struct_config__.tag} frame of {len(data):,} bytes is over the limit of {limit:,}.",
                size=len(data),
                limit=limit,
                advice="Send less text in one call.",
            )
    return data


def decode_reply(data: bytes) -> Any:
    """Any answer of the gatekeeper. Raises MalformedFrame."""
    try:
        return _reply_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise MalformedFrame(f"The answer is not a frame of version {WIRE_VERSION}: {e}.", reason="malformed_frame") from None


def decode_push(data: bytes) -> Any:
    """A feed or notice frame. Raises MalformedFrame."""
    try:
        return _push_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise MalformedFrame(f"Not a feed or notice frame: {e}.", reason="malformed_frame") from None


def words_of(frame: type[msgspec.Struct], field: str) -> list[str]:
    """The values of a field that takes one of a few words; none of another. `field` may be a path into it, as `kinds[...]`."""

    def within(hint: Any) -> list[str]:
        return [hint] if isinstance(hint, str) else [word for part in get_args(hint) for word in within(part)]

    return [word for word in within(get_type_hints(frame).get(field.partition("[")[0])) if word]


def raise_refusal(r: Refusal, request: type[Frame]) -> CordonError:
    """The exception for a refusal (returned, not raised, so that the caller's traceback is its own)."""
    if r.error == "unavailable" or r.error == "internal":
        return Unavailable(
            r.message, reason=r.reason, advice=r.advice, retry_after_s=r.retry_after_s or 1.0, field=r.field, limit=r.limit
        )
    if r.error == "malformed":
        return MalformedFrame(r.message, reason=r.reason, advice=r.advice)
    kind = {"conflict": Conflict, "denied": Denied}.get(r.error, WriteRejected if request is Draft else Rejected)
    return kind(
        r.message, reason=r.reason, advice=r.advice, reasons=tuple(r.reasons), field=r.field, limit=r.limit, detail=r.detail
    )
