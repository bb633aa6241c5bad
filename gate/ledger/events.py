"""Events of the ledger and records of READS, as they lie on disk. Formats are dear to change: append fields with defaults,
never rename.

An event is (meta bytes, body bytes or None). Meta is msgpack, a map tagged by `e`, and holds ids, labels, decisions, edges.
Body = salt[32] ‖ msgpack and holds everything personal: content, vector, evidence, clear labels, free text.
Trust is an integer 0..1000. Times are int64 milliseconds UTC. Inside a tenant a memory is named by the `tenant_seq` of its event.
Enumerations are indexes into the ordered tuples of bus.frames. An unknown tag or version stops replay.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from bus.frames import CLASSIFICATIONS, NoticeKind

EVENT_VERSION = 1

# Edge kinds: index on disk. Append only.
EDGE_KINDS = ("declared", "copied", "served", "influence", "via_resource", "supersedes", "contradicts", "delegated")
DECLARED, COPIED, SERVED = 0, 1, 2


class Edge(msgspec.Struct, frozen=True, array_like=True):
    """Parent of the memory whose event holds it. `confidence` 0..255 for 0..1."""

    kind: int
    parent: int
    confidence: int


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="e"):
    v: int = EVENT_VERSION
    ms: int


class MemoryWritten(
    Event, frozen=True, kw_only=True, omit_defaults=True, tag="memory_written", rename={"class_": "class", "from_": "from"}
):
    """A draft that was accepted or held, with the decision taken. `state` is 'active' or 'held' at write."""

    id: bytes
    project: str
    scope: int = 0
    user: str = ""  # keyed hash usr_…, never the clear id
    agent: bytes  # 16 raw bytes of agt_…
    key: str
    role: str
    chain: list[bytes] = []
    kind: int = 0
    origin: int
    origin_claimed: int = -1
    method: int = 0
    trust: int
    floor: int
    class_: int = 1
    sens: int = 0
    opt_out: bool = False
    readers: list[list[str]] | None = None
    comp: list[str] = []  # compartments: project:<name>, user:<hash>; sorted
    holds: list[str] = []  # reasons for a review hold at write (screen:…, flow_down:…)
    reasons: list[str] = []  # everything else that the receipt says
    edges: list[Edge] = []
    cases: list[bytes] = []  # cases joined at write, because a declared or copied parent is a member
    exposed: list[bytes] = []  # open cases that the context was served members of
    ctx: bytes
    epoch: int = 0
    ctx_seq: int = 0
    from_: int = 0
    until: int = 0
    expires: int = 0
    oldest: int = 0  # oldest written time over it and its joined parents
    supersedes: int = 0  # tenant_seq
    contradicts: int = 0  # tenant_seq, when superseding was not allowed
    task_state: int = -1
    nosrc: bool = False
    evroot: bytes = b""  # 8-byte keyed hash of the first evidence item, for spreading results
    run: bytes = b""  # 8-byte keyed hashes of the labels
    task: bytes = b""
    session: bytes = b""
    red: list[list[int | str]] = []  # [type, start, end]
    tool: str = ""
    idem: bytes = b""  # 16-byte hash of (agent, project, key)
    idem_content: bytes = b""  # 16-byte keyed hash of the draft as sent, to tell a retry from a conflict
    policy: int = 0
    gate: str = ""
    enc: str = ""  # encoder id and hash of the vector in the body
    body: bytes  # H("cordon.body.1" ‖ u32 len ‖ body)
    fixed: bool = False  # its writer named the moment that it expires: no report moves it
    promotes: int = 0  # tenant_seq of the memory of a task whose text this is


_RESTRICTED: Final = CLASSIFICATIONS.index("restricted")


def is_plain(e: MemoryWritten) -> bool:
    """Whether a memory is simply there for every member of its project."""
    return e.class_ < _RESTRICTED and not (e.scope or e.readers or e.opt_out)


class MemoryBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    content: str
    vector: bytes = b""  # float16, little endian
    evidence: list[str] = []
    run: str = ""
    task: str = ""
    session: str = ""
    trace_id: str = ""
    scope_id: str = ""


class MemoryReviewed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="memory_reviewed"):
    memory: int
    verdict: str  # accept | reject
    agent: bytes
    person: str = ""
    body: bytes = b""  # NoteBody


class CasePart(Event, frozen=True, kw_only=True, omit_defaults=True, tag="case_part"):
    """A part of a case's member list: `deltas` is LEB128 of the ascending tenant_seqs, each less the one before it (the
    first as it is).
    """

    case: bytes
    part: int
    count: int
    deltas: bytes


class CaseOpened(Event, frozen=True, kw_only=True, omit_defaults=True, tag="case_opened"):
    """The seal: the case counts only when all `parts` are there, `count` members in all, and the digest fits."""

    case: bytes
    agent: bytes
    person: str = ""
    roots: list[int]
    parts: int
    count: int
    digest: bytes  # H("cordon.case.1" ‖ u32 len ‖ int32 LE members ascending)
    plan: bytes = b""
    policy: int = 0
    edges: list[int] = []  # edge kinds followed
    suspects: int = 0
    until: int = 0  # release by itself at this time (suspects' holds); 0 = never
    body: bytes = b""  # NoteBody with the reason


class CaseReleased(Event, frozen=True, kw_only=True, omit_defaults=True, tag="case_released"):
    case: bytes
    agent: bytes
    person: str = ""
    body: bytes = b""


class NoteBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Free text of a person: why."""

    text: str


class NoticeSent(Event, frozen=True, kw_only=True, omit_defaults=True, tag="notice_sent"):
    """To every agent that was served a member. kind: recall | released."""

    case: bytes
    kind: NoticeKind
    agents: list[bytes]


class NoticeAcked(Event, frozen=True, kw_only=True, omit_defaults=True, tag="notice_acked"):
    case: bytes
    kind: NoticeKind
    agent: bytes


class ContextClosed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="context_closed"):
    ctx: bytes
    epoch: int  # the epoch that begins
    agent: bytes  # who closed it
    person: str = ""
    body: bytes = b""


class TenantAdded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="tenant_added"):
    name: str
    by: str


class ProjectChanged(Event, frozen=True, kw_only=True, omit_defaults=True, tag="project_changed"):
    """The project as it is from here on. `settings` is JSON of gate.config.ProjectSettings, `state` active, archived or deleted.

    Members are told by their change: `joined` and `left` are ids of agents. An agent also joins by its agent_issued.
    """

    name: str
    state: str = "active"
    settings: bytes = b"{}"
    by: str = ""
    display: str = ""
    shared_with: list[str] = []  # projects whose agents may read what it lends (gate.rights)
    joined: list[bytes] = []
    left: list[bytes] = []
    body: bytes = b""  # NoteBody with the reason


class AgentIssued(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent_issued"):
    agent: bytes
    name: str
    key: str
    role: str
    projects: list[str] = []
    person: str = ""
    parent: bytes = b""  # never written: a child's event is agent_delegated
    by: str = ""
    user: str = ""  # keyed hash of the one user that it speaks for


class AgentDelegated(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent_delegated"):
    """An agent that another one made, and how far it may go at most. It stands as long as the parent's key `via` does.

    `clearance`, `ceiling`: indexes of the highest classification and origin. `user`: keyed hash. `expires`: ms.
    """

    agent: bytes
    name: str
    key: str
    role: str
    parent: bytes
    via: str
    projects: list[str] = []
    verbs: list[str] = []
    tools: list[str] = []
    clearance: int = 0
    ceiling: int = 0
    user: str = ""
    person: str = ""
    expires: int


class AgentRevoked(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent_revoked"):
    """These keys speak for the agent no more; `whole`: nor will any other. What it wrote stays attributed to it."""

    agent: bytes
    keys: list[str]
    whole: bool = False
    by: str = ""


class TenantChanged(Event, frozen=True, kw_only=True, omit_defaults=True, tag="tenant_changed"):
    """`state`: active, suspended or deleted, from here on; after deleted only the end of its erasure counts.

    `erasure`: a deletion's: the body of every event before it is gone from here on. `second`: who agreed, where a case was open.
    """

    state: str
    by: str = ""
    exported: bool = False  # a deletion came after an export of all before it
    erasure: bytes = b""
    memories: int = 0  # how many had a text
    second: str = ""
    body: bytes = b""  # NoteBody with the reason


class PolicyChanged(Event, frozen=True, kw_only=True, omit_defaults=True, tag="policy_changed"):
    number: int
    registry: bytes = b""  # sha256 of the registry JWT
    by: str = ""


class LedgerAccepted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="ledger_accepted"):
    """A person accepted the ledger as it is after it had gone back behind a projection: what was lost is lost.

    So do those who restore from a copy that has forgotten texts, and nobody is there who could say why.
    """

    by: str
    position: int  # the tenant's position that was accepted
    reads_missing: int = 0  # the READS blocks up to here were gone, and it was accepted
    deltas: bytes = b""  # as of a case part: the events whose bodies were gone, and it was accepted; of no others


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which of a tenant's memories a restored ledger has the text of: all that is said must fit; nothing said = all.

    `project`: its name; `user`: the token of the end user; `agents`: ids of who wrote.
    """

    project: str = ""
    user: str = ""
    agents: list[bytes] = []

    def fits(self, e: MemoryWritten) -> bool:
        return self.has(e.project, e.user, e.agent)

    def has(self, project: str, user: str, agent: bytes) -> bool:
        """Whether the text of a memory of these is in it."""
        return self.project in ("", project) and self.user in ("", user) and (not self.agents or agent in self.agents)


class HomeRestored(Event, frozen=True, kw_only=True, omit_defaults=True, tag="home_restored"):
    """This ledger was made of a copy of another one, up to here. What was written there later is not in it.

    `source`: the id of that ledger's stream; `block`, `at`: the last block that was taken, and when it was decided. `later`: up
    to which block of the source erasures, holds, revocations and settings were carried over; 0 = nobody could look.

    `part`: the ledger isn't whole. It has this tenant alone, and of its memories the text of these; of all others ids, labels and
    edges are left. Nothing may be written after it.
    """

    by: str
    source: str
    block: int
    at: int
    later: int = 0
    read_only: bool = False
    part: Part | None = None
    body: bytes = b""  # NoteBody with the reason


class MemoryErased(Event, frozen=True, kw_only=True, omit_defaults=True, tag="memory_erased"):
    """The text of these memories is gone from here on; their meta, edges and attribution stay.

    `deltas` as in CasePart. `derived`: how many of them only derive from what was named. `second`, `second_agent`: who agreed,
    where an open case or a legal hold had one of them.
    """

    erasure: bytes
    agent: bytes
    person: str = ""
    second: str = ""
    second_agent: bytes = b""
    count: int
    deltas: bytes
    derived: int = 0
    body: bytes = b""  # NoteBody


class ErasureDone(Event, frozen=True, kw_only=True, omit_defaults=True, tag="erasure_done"):
    """Every store in reach has been seen to be without the text. `stores`: what was cleaned in each, by name."""

    erasure: bytes
    stores: dict[str, int] = {}


class LegalHoldPlaced(Event, frozen=True, kw_only=True, omit_defaults=True, tag="legal_hold_placed"):
    """These memories are not to be erased by one person alone; they are read as before. `deltas` as in CasePart."""

    hold: bytes
    agent: bytes
    person: str
    count: int
    deltas: bytes
    body: bytes = b""  # NoteBody


class LegalHoldLifted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="legal_hold_lifted"):
    hold: bytes
    agent: bytes
    person: str
    body: bytes = b""  # NoteBody


class LifeExtended(Event, frozen=True, kw_only=True, omit_defaults=True, tag="life_extended"):
    """An agent reported that these memories were of use to it: they expire later. `items`: [tenant_seq, the new end in ms]."""

    agent: bytes
    items: list[tuple[int, int]]


class LifeEnded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="life_ended"):
    """These memories have expired from here on, whatever end they had. Nothing is erased. `deltas` as in CasePart.

    `why`: `session` (the context that wrote them was closed), `task` (a finished task was compacted) or `pruned`.
    """

    end: bytes
    why: Literal["session", "task", "pruned"]
    agent: bytes
    person: str = ""
    count: int
    deltas: bytes
    plan: bytes = b""
    body: bytes = b""  # NoteBody


class LifeResumed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="life_resumed"):
    """What was ended by `end` lives on, as if it had not been, up to the time to live that it has."""

    end: bytes
    agent: bytes
    person: str = ""
    body: bytes = b""  # NoteBody


AnyEvent = (
    MemoryWritten
    | MemoryReviewed
    | CasePart
    | CaseOpened
    | CaseReleased
    | NoticeSent
    | NoticeAcked
    | ContextClosed
    | TenantAdded
    | ProjectChanged
    | AgentIssued
    | AgentDelegated
    | AgentRevoked
    | TenantChanged
    | PolicyChanged
    | LedgerAccepted
    | HomeRestored
    | MemoryErased
    | ErasureDone
    | LegalHoldPlaced
    | LegalHoldLifted
    | LifeExtended
    | LifeEnded
    | LifeResumed
)


# --- READS ------------------------------------------------------------------------------------------
class Joined(msgspec.Struct, frozen=True, array_like=True):
    """A context's joined labels after a read, so that a pruned READS can't launder."""

    floor: int
    origin: int
    class_: int
    sens: int
    opt_out: bool
    comp: list[str]


class ReadRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="r"):
    v: int = EVENT_VERSION
    ms: int


class Served(ReadRecord, frozen=True, kw_only=True, omit_defaults=True, tag="served"):
    """A recall that was answered: all candidates shown or decided, at most 64 of each. `items`: [tenant_seq, decision,
    reason bits].
    """

    recall: bytes
    ctx: bytes
    epoch: int
    ctx_seq: int
    agent: bytes
    project: str
    verb: str
    intent: int = 0
    risk: int = 0
    run: bytes = b""
    task: bytes = b""
    items: list[tuple[int, int, int]] = []  # served: decision < quarantine
    withheld: list[tuple[int, int, int]] = []  # decided against
    joined: Joined


class Withdrawn(ReadRecord, frozen=True, kw_only=True, omit_defaults=True, tag="withdrawn"):
    """Items of a recall that the last look dropped."""

    recall: bytes
    items: list[int]


class Audit(ReadRecord, frozen=True, kw_only=True, omit_defaults=True, tag="audit"):
    """A refusal (nobody waits for it), or a look at text by an operator. `count` > 1 when more were folded into it."""

    agent: bytes = b""
    key: str = ""
    verb: str = ""
    project: str = ""
    code: str
    count: int = 1
    memory: int = 0


AnyRecord = Served | Withdrawn | Audit

encode = msgspec.msgpack.Encoder().encode
decode_event = msgspec.msgpack.Decoder(AnyEvent).decode
decode_record = msgspec.msgpack.Decoder(AnyRecord).decode
decode_memory = msgspec.msgpack.Decoder(MemoryWritten).decode
decode_memory_body = msgspec.msgpack.Decoder(MemoryBody).decode
decode_note = msgspec.msgpack.Decoder(NoteBody).decode
SALT_BYTES = 32
