"""Live state of one tenant, and the one function that applies an event to it: live and on replay alike. Applying decides nothing.

The loop owns everything here. `apply` is called in ledger order with every event of the tenant, once.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from bus.frames import ORIGINS, NoticeKind, Readers, State
from bus.identity import user_token
from bus.subjects import is_user_token
from gate import ids
from gate.config import DAY_MS
from gate.containment.closure import Adjacency
from gate.ledger import events as E
from gate.ledger.block import members_digest, unpack_members
from gate.ledger.members import erased_by
from gate.quotas import DEFAULT, TENANT_READS, TENANT_WRITES, Aging, Bucket

from .cases import CaseState
from .columns import NEVER_MS, REVIEW_ACCEPTED, REVIEW_PENDING, REVIEW_REJECTED, Columns
from .compartments import MANY
from .contexts import Context
from .erasures import Blocks, Erasure, LegalHold
from .interned import Interned
from .lives import Ended, life_of
from .principals import Agent, Agents
from .projects import Project
from .seats import SHARED
from .served import ServedTo
from .succession import Turn, successor, turns_after

Clauses = tuple[frozenset[str], ...]
EXTERNAL: Final = ORIGINS.index("external")
CITED_MAX: Final = 1_024  # more than the sequencer can be ahead of the catalog: a block being indexed, and one appended


class UnknownEvent(Exception):
    """The ledger holds an event that this version does not know: replay stops rather than guess."""


class Tenant:
    def __init__(self, account: str, name: str = "", user_key: bytes = b"") -> None:
        self.account = account
        self.name = name
        self.user_key = user_key
        self.position = 0
        self.generation = 0
        self.columns = Columns()
        self.ids: list[bytes] = [b""]  # by tenant_seq
        self.by_id: dict[bytes, int] = {}
        self.by_tail: dict[int, int] = {}  # the first with that tail; the others, which are hardly any:
        self.same_tail: dict[int, list[int]] = {}
        self.agents = Agents()
        self.authority = np.zeros(0, np.bool_)  # by agent number, kept by the reading side
        self.projects: dict[str, Project] = {}
        self.project_names = Interned[str]()
        self.users = Interned[str]("")
        self.readers = Interned[Clauses](())
        self.reader_entries = 0  # of all of them
        self.reader_masks: dict[tuple[int, str], npt.NDArray[np.bool_]] = {}  # kept by the reading side: see retrieve.readers_ok
        self.comps = Interned[frozenset[str]](frozenset())
        self.down, self.up = Adjacency("down"), Adjacency("up")  # parent → children, child → parents
        self.contexts: dict[bytes, Context] = {}
        self._looking: Iterator[bytes] = iter(())  # contexts whose idle time isn't looked at in this round yet
        self.cases: dict[bytes, CaseState] = {}
        self.parts: dict[bytes, dict[int, E.CasePart]] = {}  # of cases without their seal so far, by number
        self.turns: dict[int, tuple[Turn, ...]] = {}  # memories that superseded another agent's, or one of these
        self.promoted: dict[int, int] = {}  # memory of a task → the newest that it became in its project
        self.promoted_with = set[int]()  # those that were held for what their promoter brought along, not for their text
        self.plans_used: set[bytes] = set()
        self.erasures: dict[bytes, Erasure] = {}
        self.legal_holds: dict[bytes, LegalHold] = {}
        self.ends: dict[bytes, Ended] = {}
        self.blocks = Blocks()
        self.cited = deque[tuple[int, tuple[str, ...]]](maxlen=CITED_MAX)  # (memory, its evidence) of the newest, live only
        self.idem: dict[bytes, int] = {}
        self.served_to = ServedTo()
        self.notices: dict[int, dict[tuple[bytes, NoticeKind], int]] = {}  # agent number → open notices → ms
        self.reviewed_at: dict[int, int] = {}  # memory → position of its last review
        self.rejected_by: dict[int, int] = {}  # memory → agent, while a review's no stands
        self.policy = 0
        self.suspended = False
        self.broken = 0  # the first event of its chain that can't be trusted: nothing from there on counts; 0 = none
        self.deleted = False  # nothing of it is kept but its name and position
        self.end: Erasure | None = None  # of all its texts, with its deletion
        self.partial = False  # a restored part of a ledger, in which nothing is written
        self.held_total = 0
        self.facts = 0  # changes with every fact about an older memory, after it: what was worked out before it is void
        self.memories = 0
        self.review_total = 0  # memories that wait for one
        self.bytes = 0  # of all its events in the ledger
        self.recorded = Aging()  # bytes in READS
        self.quotas = DEFAULT
        self.in_flight = 0
        self.writes, self.reads = Bucket(TENANT_WRITES), Bucket(TENANT_READS)

    def remains(self) -> Tenant:
        """What is left of a deleted tenant."""
        left = Tenant(self.account, self.name)
        left.deleted, left.position = True, self.position
        left.end, left.blocks = self.end, self.blocks
        self.deleted = True  # for whatever of it is still under way
        return left

    # --- names and hashes -------------------------------------------------------------------------
    def user_hash(self, user: str) -> str:
        """The token that stands for an end user outside of bodies."""
        return user_token(self.user_key, user)

    def user_of(self, tag: str) -> str:
        """The token of the user that a credential's tag names: made when it was signed, or to be made of what a gateway said."""
        return tag if not tag or is_user_token(tag) else self.user_hash(tag)

    def label_hash(self, label: str, size: int = 8) -> bytes:
        """Keyed hash of a label (run, task, session, key, content); empty stays empty."""
        return hashlib.blake2b(label.encode(), key=self.user_key[:64], digest_size=size).digest() if label else b""

    def memory_id(self, seq: int) -> str:
        return ids.text("mem_", self.ids[seq])

    def find(self, id_: str) -> int:
        """tenant_seq of a memory by its full id; 0 if unknown."""
        raw = ids.raw(id_)
        return self.by_id.get(raw, 0) if raw and id_.startswith("mem_") else 0

    def find_short(self, tail: str) -> list[int]:
        """tenant_seqs whose id ends with `tail` (at least 8 characters, the rest of the id is checked too)."""
        bare = tail.removeprefix("mem_")
        end = ids.ending_of(bare)
        if end is None:
            return []
        first = self.by_tail.get(end)
        found = [first, *self.same_tail.get(end, ())] if first else []
        return [s for s in found if ids.text("", self.ids[s]).endswith(bare)]

    def context_of(self, agent: Agent) -> Context:
        """The context of the root of an agent's delegation chain; its id is the root's with another prefix."""
        root = self.agents.all[agent.root]
        ctx = self.contexts.get(root.id)
        if ctx is None:
            ctx = self.contexts[root.id] = Context(root.id, root.number, root.family)
            ctx.user = root.user
        return ctx

    def context_idle_ms(self, agent: Agent) -> int:
        """Idle time that ends the context: the longest over the projects of its root, which has all of them, and those that it
        was served memories of (it may have left them since, or have read what they share); 0 = never.
        """
        comp = self.context_of(agent).labels.comp
        heard = self.projects if MANY in comp else (c.removeprefix("project:") for c in comp if c.startswith("project:"))
        names = {*self.agents.all[agent.root].projects, *heard}
        hours = [p.settings.context_idle_hours for n in names if (p := self.projects.get(n))] or [24]
        return 0 if 0 in hours else max(hours) * DAY_MS // 24

    def end_idle(self, now_ms: int, most: int, unseen_ms: Callable[[int], int] = lambda _: 0) -> list[tuple[bytes, int]]:
        """Of the next `most` contexts, round and round, let go what those had in their heads that nobody read in for their idle
        time. Their next request would: but of an agent that doesn't come back, as sessions do, it would stay for ever. Returns
        (context, epoch that is over) of each.
        """
        ended = []
        for id_ in islice(self._looking, most):
            ctx = self.contexts.get(id_)
            if ctx is not None and ctx.served and ctx.idle(now_ms, self.context_idle_ms(self.agents.all[ctx.root]), unseen_ms):
                ended.append((id_, ctx.epoch))
                ctx.begin_epoch(ctx.epoch + 1)
            most -= 1
        if most:
            self._looking = iter(list(self.contexts))
        return ended

    # --- facts ------------------------------------------------------------------------------------
    def current(self, seq: int, now_ms: int) -> State:
        """The derived state of a memory: erased > held > retracted > expired > superseded > active."""
        at = self.columns.at
        if at.erased[seq]:
            return "erased"
        if at.held[seq]:
            return "held"
        if at.ended[seq] or at.expires[seq] <= now_ms or at.valid_until[seq] <= now_ms:
            return "expired"
        return "superseded" if successor(self.columns, seq, now_ms) else "active"

    def cases_of(self, seqs: Iterable[int]) -> list[CaseState]:
        """Cases that hold any of `seqs`, in order of opening."""
        held = self.columns.at.held
        wanted = [s for s in seqs if held[s]]
        return [k for k in self.cases.values() if k.holding and any(s in k for s in wanted)] if wanted else []

    # --- apply ------------------------------------------------------------------------------------
    def apply(self, seq: int, event: E.AnyEvent, note: str = "", weight: int = 0, body: int = 0) -> None:
        """Apply the event with this tenant_seq. `note`: the text of its body, for events that carry one. `weight`: the bytes that
        it takes in the ledger, `body`: how many of them are its body's.
        """
        if self.deleted:
            self.position = seq
            self._forgotten(seq, event, note)
            return
        self._extend(seq)
        self.bytes += weight
        match event:
            case E.MemoryWritten():
                self._memory(seq, event)
                for agent in self.agents.counted(self.agents.by_id[event.agent]):
                    agent.bytes += weight
                self.columns.at.body[seq] = body
            case E.MemoryReviewed():
                self._reviewed(seq, event)
            case E.CasePart():
                self.parts.setdefault(event.case, {})[event.part] = event  # one that was written again is the same
            case E.CaseOpened():
                self._opened(seq, event, note)
            case E.CaseReleased():
                self._released(seq, event)
            case E.NoticeSent():
                self._notice_sent(event)
            case E.NoticeAcked():
                agent = self.agents.by_id[event.agent]
                self.notices.get(agent.number, {}).pop((event.case, event.kind), None)
                if event.kind == "recall" and event.case in self.cases:
                    self.cases[event.case].acked.add(agent.number)
            case E.ContextClosed():
                ctx = self.context_of(self.agents.by_id[event.ctx])
                if event.epoch > ctx.epoch:  # else it went idle meanwhile, or a replay met later reads first
                    ctx.begin_epoch(event.epoch)
            case E.TenantAdded():
                self.name = event.name
            case E.ProjectChanged():
                self._project(event, note)
            case E.AgentIssued():
                self.agents.issue(event)
            case E.AgentDelegated():
                self.agents.delegate(event)
            case E.AgentRevoked():
                self.agents.revoke(event)
            case E.TenantChanged():
                self.suspended, self.deleted = event.state == "suspended", event.state == "deleted"
                self._forgotten(seq, event, note)
            case E.PolicyChanged():
                self.policy = event.number
                self.generation = seq
            case E.LedgerAccepted():
                self.columns.erased[erased_by(event, seq)] = event.ms  # whether they were, nobody can say any more
            case E.HomeRestored():
                self._restored(seq, event)
            case E.MemoryErased():
                self._erased(seq, event, note)
            case E.ErasureDone():
                erasure = self.erasures[event.erasure]
                erasure.done_ms, erasure.stores = event.ms, dict(event.stores)
            case E.LegalHoldPlaced():
                by = self.agents.by_id[event.agent].number
                members = unpack_members([event.deltas])
                self.legal_holds[event.hold] = LegalHold(event.hold, by, event.person, note, members, event.ms, seq)
            case E.LegalHoldLifted():
                self.legal_holds[event.hold].lifted_ms = event.ms
            case E.LifeExtended():
                for agent in self.agents.counted(self.agents.by_id[event.agent]):
                    agent.bytes += weight
                for s, expires in event.items:
                    self.columns.at.expires[s] = expires
            case E.LifeEnded():
                self._ended(seq, event, note)
            case E.LifeResumed():
                self._resumed(event)
            case _:
                raise UnknownEvent(f"{type(event).__name__} at {self.account}:{seq}")
        self.position = seq

    def _extend(self, seq: int) -> None:
        c = self.columns
        if seq != c.n:
            raise ValueError(f"tenant {self.account}: event {seq} does not follow {c.n - 1}")
        c.reserve(seq + 1)
        c.n = seq + 1
        self.ids.append(b"")
        self.served_to.extend()

    def _project(self, e: E.ProjectChanged, why: str) -> None:
        project = self.projects.get(e.name)
        if project is None:
            project = self.projects[e.name] = Project(e.name, self.project_names.number(e.name))
        joined, left = ([self.agents.by_id[raw] for raw in raws] for raws in (e.joined, e.left))
        for agent in joined:
            agent.projects = tuple(dict.fromkeys((*agent.projects, e.name)))
        for agent in left:
            agent.projects = tuple(name for name in agent.projects if name != e.name)
        project.apply(e, [a.name for a in joined], [a.name for a in left], why)

    def _memory(self, s: int, e: E.MemoryWritten) -> None:
        c, project, agent = self.columns.at, self.projects[e.project], self.agents.by_id[e.agent]
        c.kind[s], c.project[s], c.row[s], c.actor[s] = e.kind, project.number, project.rows, agent.number
        project.rows += 1
        c.trust[s] = c.eff[s] = e.trust
        c.floor[s], c.origin[s], c.cls[s], c.sens[s], c.opt_out[s], c.scope[s] = (
            e.floor,
            e.origin,
            e.class_,
            e.sens,
            e.opt_out,
            e.scope,
        )
        c.user[s] = self.users.number(e.user)
        c.readers[s] = self._readers_of(agent, e.readers) if e.readers else 0
        c.comp[s] = self.comps.number(frozenset(e.comp))
        c.task[s], c.run[s], c.task_state[s] = _int(e.task), _int(e.run), e.task_state
        c.written[s], c.oldest[s] = e.ms, e.oldest or e.ms
        c.valid_from[s], c.valid_until[s], c.expires[s] = e.from_, e.until or NEVER_MS, e.expires or NEVER_MS
        c.life[s] = life_of(e)
        c.nosrc[s], c.evroot[s] = e.nosrc, _int(e.evroot)
        project.special = project.special or not E.is_plain(e)
        self.ids[s] = e.id
        self.by_id[e.id] = s
        if self.by_tail.setdefault(end := ids.ending(e.id), s) != s:
            self.same_tail.setdefault(end, []).append(s)
        self.memories += 1
        for edge in e.edges:
            self.down.add(edge.parent, s, edge.kind, edge.confidence)
            self.up.add(edge.parent, s, edge.kind, edge.confidence)
        if e.idem:
            self.idem[e.idem] = s
        if e.supersedes:
            c.superseded[e.supersedes], c.superseded_ms[e.supersedes] = s, e.ms
            turns = turns_after(self.turns.get(e.supersedes, ()), self.agents.all[c.actor[e.supersedes]], agent, e.ms)
            if turns:
                self.turns[s] = turns
        if e.promotes:
            self.promoted[e.promotes] = s
            if e.holds and not any(code.startswith("screen:") for code in e.holds):
                self.promoted_with.add(s)
        held = len(e.cases)
        for case in e.cases:
            self.cases[case].joined.append(s)
        if e.holds:
            c.review[s] = REVIEW_PENDING
            held += 1
            self._count_review(agent, 1)
        if held:
            c.held[s] = held
            self.held_total += 1
            for one in self.agents.counted(agent):
                one.held += 1
        if held or e.supersedes:
            self.facts += 1
        ctx = self.contexts.get(e.ctx)
        if ctx is not None and e.epoch > ctx.epoch:
            ctx.begin_epoch(e.epoch)
        if noted_from_outside(e.role, e.origin_claimed):
            ctx = self.context_of(agent)
            if e.epoch > ctx.epoch:
                ctx.begin_epoch(e.epoch)
            if e.epoch == ctx.epoch:
                ctx.noted(self.columns, self.comps, s, e.ms, e.run, e.task)

    def _readers_of(self, agent: Agent, readers: Readers) -> int:
        """The number of these clauses; new ones count for whose memory has them first."""
        clauses, known = tuple([frozenset(clause) for clause in readers]), len(self.readers)
        number = self.readers.number(clauses)
        if number == known:
            entries = sum(map(len, clauses))
            self.reader_entries += entries
            for one in self.agents.counted(agent):
                one.readers += entries
        return number

    def _reviewed(self, seq: int, e: E.MemoryReviewed) -> None:
        c, s = self.columns, e.memory
        was = int(c.review[s])
        now = REVIEW_ACCEPTED if e.verdict == "accept" else REVIEW_REJECTED
        c.review[s] = now
        self.reviewed_at[s] = seq
        if now == REVIEW_REJECTED:
            self.rejected_by[s] = self.agents.by_id[e.agent].number
        else:
            self.rejected_by.pop(s, None)
        if was == REVIEW_PENDING:
            self._count_review(self.agents.all[int(c.actor[s])], -1)
        if was in (REVIEW_PENDING, REVIEW_REJECTED) and now == REVIEW_ACCEPTED:
            self._drop_holds(np.array([s], np.int32))
        elif was == REVIEW_ACCEPTED and now == REVIEW_REJECTED:
            self.raise_holds(np.array([s], np.int32))
        self.generation = seq

    def raise_holds(self, members: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        """One more hold on each member (ascending, each once)."""
        held = self.columns.held
        self._count_held(members[held[members] == 0], 1)
        held[members] += 1
        self.facts += 1

    def _drop_holds(self, members: np.ndarray[tuple[int], np.dtype[np.int32]]) -> None:
        held = self.columns.held
        held[members] -= 1
        self.facts += 1
        self._count_held(members[held[members] == 0], -1)

    def _count_held(self, members: np.ndarray[tuple[int], np.dtype[np.int32]], by: int) -> None:
        self.held_total += by * len(members)
        actors, counts = np.unique(self.columns.actor[members], return_counts=True)
        for actor, n in zip(actors.tolist(), counts.tolist(), strict=True):
            for agent in self.agents.counted(self.agents.all[actor]):
                agent.held += by * n

    def _count_review(self, agent: Agent, by: int) -> None:
        self.review_total += by
        for one in self.agents.counted(agent):
            one.review += by

    @staticmethod
    def expose(case: CaseState, members: AbstractSet[int], contexts: Iterable[Context]) -> None:
        """Mark those of these contexts that were served a member (within their window)."""
        for ctx in contexts:
            if not ctx.served.keys().isdisjoint(members):
                ctx.exposed.add(case.id)

    def _opened(self, seq: int, e: E.CaseOpened, note: str) -> None:
        parts = self.parts.pop(e.case, {})
        members = unpack_members([parts[i].deltas for i in sorted(parts)])
        whole = parts.keys() == set(range(e.parts)) and len(members) == e.count and members_digest(members) == e.digest
        case = self.cases.get(e.case)
        if case is not None and case.state != "pending":  # its seal was written twice: the first counts
            return
        if case is None:  # replay: the live path holds in memory first
            if not whole:
                return
            agent = self.agents.by_id[e.agent]
            case = CaseState(
                e.case,
                agent.number,
                e.person,
                note,
                array("i", e.roots),
                members,
                e.ms,
                tuple(e.edges),
                suspects=e.suspects,
                until_ms=e.until,
            )
            self.cases[e.case] = case
            if e.plan:
                self.plans_used.add(e.plan)
            self.raise_holds(members)
            self.expose(case, set(members.tolist()), self.contexts.values())
        case.state, case.position = "open", seq
        self.generation = seq

    def _notice_sent(self, e: E.NoticeSent) -> None:
        case = self.cases.get(e.case)
        if case is None:  # its seal didn't fit its parts, so it doesn't count, nor does what was told of it
            return
        for raw in e.agents:
            agent = self.agents.by_id[raw]
            open_ = self.notices.setdefault(agent.number, {})
            if e.kind == "released":
                open_.pop((e.case, "recall"), None)
            open_[(e.case, e.kind)] = e.ms
            if e.kind == "recall":
                case.told.add(agent.number)

    def _released(self, seq: int, e: E.CaseReleased) -> None:
        case = self.cases[e.case]
        case.state, case.released_ms, case.released_by = "released", e.ms, self.agents.by_id[e.agent].number
        case.released_position = seq
        self._drop_holds(np.sort(case.all_members()))
        for ctx in self.contexts.values():
            ctx.exposed.discard(e.case)
        self.generation = seq

    def _erased(self, seq: int, e: E.MemoryErased, note: str) -> None:
        members = unpack_members([e.deltas])
        erased = self.columns.erased
        for s in members[erased[members] == 0].tolist():
            self._lose_body(s)
        erased[members] = np.where(erased[members] == 0, e.ms, erased[members])
        by = self.agents.by_id[e.agent].number
        self.erasures[e.erasure] = Erasure(e.erasure, by, e.person, e.second, note, members, e.derived, e.ms, seq, len(members))
        gone = set(members.tolist())
        self.cited = deque(((s, evidence) for s, evidence in self.cited if s not in gone), maxlen=CITED_MAX)
        self.facts += 1
        self.generation = seq

    def _forgotten(self, seq: int, event: E.AnyEvent, note: str) -> None:
        """What is still of interest of a deleted tenant: that its texts are to go, and that they are gone."""
        match event:
            case E.TenantChanged() if event.erasure:
                none, n = np.empty(0, np.int32), event.memories
                self.end = Erasure(event.erasure, -1, event.by, event.second, note, none, 0, event.ms, seq, n)
            case E.ErasureDone() if self.end is not None and event.erasure == self.end.id:
                self.end.done_ms, self.end.stores = event.ms, dict(event.stores)
                self.blocks = Blocks()

    def _restored(self, seq: int, e: E.HomeRestored) -> None:
        """Of a part, what was left out is there as what was erased is: its place, its labels and its edges."""
        if e.part is None:
            return
        self.partial, self.generation = True, seq
        c, part = self.columns, e.part
        out = np.zeros(c.n, np.bool_)
        if part.project:
            out |= c.project[: c.n] != self.projects[part.project].number
        if part.user:
            user = self.users.find(part.user)
            out |= c.user[: c.n] != (-1 if user is None else user)
        if part.agents:
            out |= ~np.isin(c.actor[: c.n], [self.agents.by_id[x].number for x in part.agents])
        left = np.flatnonzero(out & (c.kind[: c.n] >= 0) & (c.erased[: c.n] == 0))
        for s in left.tolist():
            self._lose_body(s)
        c.erased[left] = e.ms
        self.facts += 1

    def _ended(self, seq: int, e: E.LifeEnded, note: str) -> None:
        members, ended = unpack_members([e.deltas]), self.columns.ended
        by = self.agents.by_id[e.agent].number
        self.ends[e.end] = Ended(e.end, e.why, by, e.person, note, members, e.ms, seq)
        ended[members] = np.where(ended[members] == 0, e.ms, ended[members])
        if e.plan:
            self.plans_used.add(e.plan)
        self.facts += 1

    def _resumed(self, e: E.LifeResumed) -> None:
        """Only those that this one ended: of two ends the first stands."""
        end, ended = self.ends[e.end], self.columns.ended
        end.resumed_ms = e.ms
        ended[end.members[ended[end.members] == end.ms]] = 0
        self.facts += 1

    def _lose_body(self, seq: int) -> None:
        """What an erasure gives back of the quotas of bytes; nothing if a replay met the memory without its body."""
        at = self.columns.at
        self.bytes -= at.body[seq]
        for agent in self.agents.counted(self.agents.all[at.actor[seq]]):
            agent.bytes -= at.body[seq]
        at.body[seq] = 0

    # --- READS ------------------------------------------------------------------------------------
    def expose_to_held(self, ctx: Context, seqs: Iterable[int]) -> None:
        """A hold that came while an answer was under way marks the context, whichever of the two a replay meets first."""
        ctx.exposed |= {case.id for case in self.cases_of(seqs)}

    def note_served(self, agent: Agent, seqs: Iterable[int]) -> None:
        self.served_to.note(agent.number, seqs)

    def was_served(self, agent: Agent, seq: int) -> bool:
        return self.served_to.has(agent.number, seq)

    def note_recorded(self, record: E.AnyRecord, size: int) -> None:
        """A record of so many bytes is in READS."""
        self.recorded.add(record.ms, size)
        agent = None if isinstance(record, E.Withdrawn) else self.agents.by_id.get(record.agent)
        if agent is not None:
            payer = self.agents.payer(agent)
            payer.recorded = payer.recorded or Aging()
            payer.recorded.add(record.ms, size)

    def replay_read(self, record: E.AnyRecord) -> None:
        """Apply a READS record to the context it belongs to, or what the audit noted of a key."""
        if isinstance(record, E.Audit) and record.code == SHARED and record.agent in self.agents.by_id:
            self.agents.by_id[record.agent].seats[record.key].told(record.ms)
        if not isinstance(record, E.Served):
            return
        agent = self.agents.by_id[record.agent]
        seqs = [s for s, _, _ in record.items]
        root = self.agents.by_id[record.ctx]
        ctx = self.context_of(root)
        ctx.restore(
            self.columns, self.comps, record.epoch, record.ctx_seq, seqs, record.ms, record.run, record.task, record.joined
        )
        self.note_served(agent, seqs)
        if record.epoch == ctx.epoch:
            self.expose_to_held(ctx, seqs)


def noted_from_outside(role: str, claimed: int) -> bool:
    """Whether a write tells what its writer read elsewhere, by its own word. An ingest key writes nothing else anyway."""
    return claimed == EXTERNAL and role != "ingest"


def _int(hash_: bytes) -> int:
    """8 hash bytes as a signed integer; empty is 0."""
    return int.from_bytes(hash_, "big", signed=True) if hash_ else 0
