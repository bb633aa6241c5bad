"""Where requests come in: they wait by tenant and key, as the subject names them, and take turns; then identity, quotas,
decoding, checks; then a write, an ask or an operation. Everything here is synchronous and short.

No exception leaves this module: each request gets a receipt, a recall, an answer or a typed refusal, unless its key has far more
waiting than any quota lets through.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from nats.aio.msg import Msg

from bus import frames, limits
from bus.frames import (
    INTENTS,
    ORIGINS,
    RISKS,
    Ack,
    AdminRequest,
    Delegate,
    Draft,
    Frame,
    Get,
    NoticeKind,
    OpsRequest,
    Query,
    Report,
    Sync,
    Synced,
)
from bus.subjects import Inbound
from gate import ids
from gate.arrivals import Arrivals, Serve
from gate.identify import Principal, presented_jwt
from gate.ledger import events as E
from gate.lifecycle import promotion
from gate.projections import ProjectionUnwritable
from gate.quotas import READ_UNIT_ITEMS, Bucket, Patience, full, too_many, units
from gate.reading.ask import Ask
from gate.refusals import Refused
from gate.rights import TABLE, decide, lent
from gate.state.seats import SHARED
from gate.writing.decide import Write
from gate.writing.sequencer import Stored
from gate.writing.validate import check_draft, text_ok, time_ms

if TYPE_CHECKING:
    from gate.shard import Shard

log = logging.getLogger(__name__)
FILTERS: Final = {
    "kind": frozenset(frames.KINDS),
    "origin": frozenset(frames.ORIGINS),
    "scope": frozenset(frames.SCOPES),
    "classification": frozenset(frames.CLASSIFICATIONS),
    "task_state": frozenset(frames.TASK_STATES),
    "agent": None,
}
EVIDENCE: Final = frozenset({"why", "trace", "case", "context", "stats"})  # of what came before a break in a tenant's chain
WRITING: Final = frozenset({"write", "report", "delegate"})  # verbs of agents that a read-only home refuses
_REQUEST_ID: Final = re.compile(rb'"request_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
_ID: Final = re.compile(r"[A-Za-z0-9_-]*\Z")
_PATH: Final = re.compile(r"`\$\.([A-Za-z_]+)")
_decode_ops: Final = msgspec.json.Decoder(OpsRequest).decode
_decode_admin: Final = msgspec.json.Decoder(AdminRequest).decode
_decode_draft: Final = msgspec.json.Decoder(Draft).decode
_decoders: Final[dict[str, Any]] = {
    "write": _decode_draft,
    "query": msgspec.json.Decoder(Query).decode,
    "get": msgspec.json.Decoder(Get).decode,
    "report": msgspec.json.Decoder(Report).decode,
    "ack": msgspec.json.Decoder(Ack).decode,
    "sync": msgspec.json.Decoder(Sync).decode,
    "delegate": msgspec.json.Decoder(Delegate).decode,
}


class Intake:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.tasks: set[asyncio.Task[None]] = set()
        self.open = False
        self.patience = Patience(shard.loop)
        self.arrivals = Arrivals(shard.loop, self.patience, self._take)

    # --- agents -----------------------------------------------------------------------------------
    async def on_memory(self, m: Msg) -> None:
        """A request on in.…"""
        self.arrivals.add(m, self._remember)

    def calm(self, p: Principal) -> bool:
        """Whether an agent's family has few requests open, with those of this key whose turn has yet to come."""
        payer = p.tenant.agents.payer(p.agent)
        return payer.crowding.calm(payer.in_flight + self.arrivals.of(p.key), time.monotonic())

    def _take(self, at: Inbound, m: Msg, serve: Serve) -> None:
        """Identify, check the verb, serve; whatever goes wrong becomes a typed refusal. `serve` decodes the frame of the verb."""
        p: Principal | None = None
        if self.shard.state == "starting":  # who may ask what isn't known yet
            self.shard.refuse(m.reply, self._starting(), _request_id(m.data), at.key, at.project)
            return
        try:
            p = self.shard.identifier.identify(at, m.headers)
            if p.host and p.agent.seats[p.key].used(p.connection, p.host, self.shard.now_ms()):
                self.shard.audit_unknown(p.tenant, p.key, at.verb, p.project, SHARED, p.agent.id)
            if not p.row.served:
                raise Refused("verb_not_available")
            self._may_serve(p, at.verb, len(m.data))
            serve(p, at.verb, m)
        except Refused as e:
            self._refuse(at, m, e, p)
        except Exception:
            log.exception("request failed: %s", at.verb)
            self._refuse(at, m, Refused("internal"), p)

    def _starting(self) -> Refused:
        done, of = self.shard.replaying
        return Refused("starting", detail={"done": done, "of": of})

    def _remember(self, p: Principal, verb: str, m: Msg) -> None:
        req = _decode(verb, m.data)
        request_id = _checked(req)
        match req:
            case Draft():
                self._write(p, req, m.reply, request_id, units(verb, len(m.data)))
            case Query() | Get():
                self._ask(p, req, m.reply, request_id)
            case Report():
                self._may_store(p)
                self._count_items(p, len(req.used), stores=True)
                self._spawn(self._report(p, req, m.reply), m.reply, request_id, p.key, p.project, p)
            case Ack():
                self._spawn(self._ack(p, req, m.reply, request_id), m.reply, request_id, p.key, p.project, p)
            case Sync():
                self._spawn(self._sync(p, m.reply, request_id), m.reply, request_id, p.key, p.project, p)
            case Delegate():
                self._spawn(self._delegate(p, req, m), m.reply, request_id, p.key, p.project, p)

    def _refuse(self, at: Inbound, m: Msg, e: Refused, p: Principal | None) -> None:
        request_id, reply = _request_id(m.data), m.reply
        count = units(at.verb, len(m.data))
        self.patience.answer(at.key, lambda: self.shard.refuse(reply, e, request_id, at.key, at.project), count)
        t = self.shard.tenants.get(at.account)
        if t is not None and e.code not in ("starting", "ledger_unreachable", "over_quota"):
            self.shard.audit_unknown(t, at.key, at.verb[:16], at.project[:64], e.code, p.agent.id if p else b"")

    def _may_serve(self, p: Principal, verb: str, size: int) -> None:
        if not self.open:
            raise Refused("stopping" if self.shard.state == "stopping" else "starting")
        if p.tenant.broken and verb not in EVIDENCE:
            raise Refused("tenant_broken")
        if (self.shard.read_only or p.tenant.partial) and verb in WRITING:
            raise Refused("read_only")
        if not self.shard.healthy():
            raise Refused("ledger_unreachable")
        t, q = p.tenant, p.tenant.quotas
        a = t.agents.payer(p.agent)
        if a.in_flight >= q.agent_in_flight:
            raise too_many("in_flight", "agent", q.agent_in_flight, a.in_flight)
        if t.in_flight >= q.tenant_in_flight:
            raise too_many("in_flight", "tenant", q.tenant_in_flight, t.in_flight)
        if p.row.stores:
            self._count("writes_per_second", a.writes, t.writes, units(verb, size))
        else:
            self._count("reads_per_second", a.reads, t.reads, 1)

    def _count_items(self, p: Principal, items: int, *, stores: bool = False) -> None:
        """What a request that names or brings many memories counts for beyond one."""
        t, payer = p.tenant, p.tenant.agents.payer(p.agent)
        more = min(items, limits.K_MAX) // READ_UNIT_ITEMS
        if more > 0 and stores:
            self._count("writes_per_second", payer.writes, t.writes, more)
        elif more > 0:
            self._count("reads_per_second", payer.reads, t.reads, more)

    def _count_text(self, p: Principal, size: int, counted: int) -> int:
        """What a draft of so many bytes counts for, of which so much is counted."""
        count = max(counted, units("write", size))
        if count > counted:
            self._count("writes_per_second", p.tenant.agents.payer(p.agent).writes, p.tenant.writes, count - counted)
        return count

    def _count(self, field: str, agent: Bucket, tenant: Bucket, count: int) -> None:
        """Take a request that counts for so many from what agent and tenant may send a second."""
        if not self.shard.rates:
            return
        if not agent.take(count=count):
            raise too_many(field, "agent", int(agent.limit.per_s))
        if not tenant.take(count=count):
            raise too_many(field, "tenant", int(tenant.limit.per_s))

    def _write(self, p: Principal, d: Draft, reply: str, request_id: str, count: int) -> None:
        s, t = self.shard, p.tenant
        idem, content = _idempotency(p, d)
        if self._again(p, idem, content, reply, request_id):
            return
        if idem in t.idem:  # before all that time may have changed since: a retry is answered however late
            s.count(p, 1)
            s.answer_duplicate(p, idem, content, reply, request_id)
            return
        self._may_store(p)
        now_ms = s.now_ms()
        promotes = self._promoted(p, d, now_ms)
        checked = promotion.checked(p, d, promotes, now_ms) if promotes else check_draft(d, now_ms)
        if p.rights.ceiling < 0:
            raise Refused("verb_denied")
        ctx = t.context_of(p.agent)
        declared = list(dict.fromkeys([*([promotes] if promotes else []), *(self._known(p, x, now_ms) for x in d.derived_from)]))
        if 0 in declared:
            raise Refused("parent_unknown", field="derived_from")
        supersedes = self._known(p, d.supersedes, now_ms)
        # Only within a project: readers of the other one would see the old go, and an id that is not theirs.
        if d.supersedes and (not supersedes or t.columns.project[supersedes] != t.projects[p.project].number):
            raise Refused("supersede_unknown", field="supersedes")
        self._one_user(p, checked.scope, d.scope_id)
        if promotes:  # it costs what its text costs, though that isn't sent
            count = self._count_text(p, t.columns.at.body[promotes], count)
        w = Write(
            p,
            checked,
            ctx,
            declared,
            supersedes,
            reply,
            request_id,
            now_ms,
            count,
            run=t.label_hash(d.run),
            task=t.label_hash(d.task),
            session=t.label_hash(d.session),
            promotes=promotes,
            idem=idem,
            idem_content=content,
        )
        s.count(p, w.units)
        if idem:
            s.sequencer.under_way[(t.account, idem)] = w
        s.writes.submit(w)

    def _again(self, p: Principal, idem: bytes, content: bytes, reply: str, request_id: str) -> bool:
        """Whether it is a retry of a write that is under way: what holds now doesn't count, the first may be stored already."""
        first = self.shard.sequencer.under_way.get((p.tenant.account, idem)) if idem else None
        if first is None:
            return False
        if first.idem_content != content:
            raise Refused("idempotency_conflict", field="idempotency_key")
        self.shard.count(p, 1)
        first.also.append((p, reply, request_id))
        return True

    def _may_store(self, p: Principal) -> None:
        """Whether the ledger, the catalog, and what its agent and tenant may keep there, have room."""
        s, t = self.shard, p.tenant
        s.room.check_draft()
        if s.indexes[t.account].catalog.trouble:
            raise Refused("store_unwritable")
        kept = t.agents.payer(p.agent).bytes
        if kept >= t.quotas.agent_bytes:
            raise full("bytes", "agent", t.quotas.agent_bytes, kept)
        if t.bytes >= t.quotas.tenant_bytes:
            raise full("bytes", "tenant", t.quotas.tenant_bytes, t.bytes)

    def _promoted(self, p: Principal, d: Draft, now_ms: int) -> int:
        """The memory that a draft promotes, 0 if it is an ordinary one."""
        if not d.promotes:
            return 0
        text_ok(d.promotes, "promotes", limits.NAME_CHARS_MAX)
        s = self._resolve(p, d.promotes)
        promotion.check(p, s, now_ms)
        return s

    @staticmethod
    def _one_user(p: Principal, scope: int, scope_id: str) -> None:
        """A credential of one user may not write notes on another."""
        if scope == 1 and p.user_hash and p.tenant.user_hash(scope_id) != p.user_hash:
            raise Refused("verb_denied", field="scope_id")

    @staticmethod
    def _known(p: Principal, id_: str, now_ms: int) -> int:
        """The tenant_seq of a memory that a draft may name: in the tenant, and served to this context or readable now, holds set
        aside. 0 for all others alike.
        """
        s = p.tenant.find(id_)
        return s if s and (s in p.tenant.context_of(p.agent).served or decide(p, s, now_ms)) else 0

    def _ask(self, p: Principal, q: Query | Get, reply: str, request_id: str) -> None:
        s, t = self.shard, p.tenant
        if not s.reads.healthy:
            raise Refused("ledger_unreachable")
        s.room.check_read()
        if (over := s.over_share(t, p.agent)) is not None:
            raise over
        if q.min_position > t.position:
            raise Refused("behind", field="min_position")
        for field, most in (
            ("run", limits.LABEL_BYTES_MAX),
            ("task", limits.LABEL_BYTES_MAX),
            ("user", limits.SCOPE_ID_BYTES_MAX),
        ):
            text_ok(getattr(q, field), field, most)
        self._count_items(p, q.k if isinstance(q, Query) else len(q.ids))
        now_ms, as_of_ms = s.now_ms(), time_ms(q.as_of, "as_of")
        if as_of_ms > now_ms:  # it would open what is not valid yet
            raise Refused("time_order", field="as_of")
        if not 0 <= q.turn <= limits.TURN_MAX:
            raise Refused("out_of_range", field="turn", limit=limits.TURN_MAX)
        a = Ask(
            p,
            "get" if isinstance(q, Get) else "query",
            t.context_of(p.agent),
            reply,
            request_id,
            now_ms,
            as_of_ms=as_of_ms,
            intent=INTENTS.index(q.intent),
            risk=RISKS.index(q.tool_risk),
            user=(t.users.find(t.user_hash(q.user)) or -1) if q.user else 0,
            run=t.label_hash(q.run),
            task=t.label_hash(q.task),
        )
        if isinstance(q, Query):
            self._question(q, a)
        else:
            if not 1 <= len(q.ids) <= limits.GET_IDS_MAX:
                raise Refused("too_long" if q.ids else "too_short", field="ids", limit=limits.GET_IDS_MAX)
            a.seqs = tuple(dict.fromkeys(seq for x in q.ids if (seq := self._resolve(p, x))))
        s.count(p, 1)
        s.recalls.submit(a)

    def _resolve(self, p: Principal, id_: str) -> int:
        t = p.tenant
        if len(id_) > limits.NAME_CHARS_MAX:
            raise Refused("too_long", field="ids", limit=limits.NAME_CHARS_MAX)
        exact = t.find(id_)
        if exact:
            return exact
        number = t.projects[p.project].number
        short = [s for s in t.find_short(id_) if t.columns.project[s] == number or lent(p, s)]
        return short[0] if len(short) == 1 else 0

    def _question(self, q: Query, a: Ask) -> None:
        text_ok(q.text, "text", limits.QUERY_TEXT_BYTES_MAX, 1)
        text_ok(q.scene, "scene", limits.SCENE_BYTES_MAX)
        if not 1 <= q.k <= limits.K_MAX:
            raise Refused("out_of_range", field="k", limit=limits.K_MAX)
        if len(q.filters) > limits.FILTER_KEYS_MAX:
            raise Refused("too_long", field="filters", limit=limits.FILTER_KEYS_MAX)
        for key, values in q.filters.items():
            if len(values) > limits.FILTER_VALUES_MAX:
                raise Refused("too_long", field="filters", limit=limits.FILTER_VALUES_MAX)
            for value in values:
                text_ok(value, "filters", limits.FILTER_VALUE_BYTES_MAX)
            known = FILTERS.get(key, frozenset())
            if not values or (known is not None and not set(values) <= known):
                raise Refused("filter_invalid", field="filters")
        if q.required_origin is not None:
            if not q.required_origin:
                raise Refused("filter_invalid", field="required_origin")
            a.origins = sum({1 << ORIGINS.index(o) for o in q.required_origin})
        a.text, a.k, a.history_off = q.text, q.k, q.history_off
        a.filters = {k: frozenset(v) for k, v in q.filters.items()}

    async def _report(self, p: Principal, req: Report, reply: str) -> None:
        self.shard.send(reply, frames.encode(await self.shard.reports.answer(p, req)))

    async def _delegate(self, p: Principal, req: Delegate, m: Msg) -> None:
        try:
            answer = await self.shard.delegations.answer(p, req, presented_jwt(m.headers))
        except Refused as e:
            self.shard.audit_refusal(p, "delegate", e.code)
            raise
        self.shard.send(m.reply, frames.encode(answer))

    # --- notices ----------------------------------------------------------------------------------
    async def _sync(self, p: Principal, reply: str, request_id: str) -> None:
        t = p.tenant
        open_ = t.notices.get(p.agent.number, {})
        shown = list(open_)[: limits.SYNC_NOTICES_MAX]  # oldest first; the others come when these are acknowledged
        notices = []
        for case, kind in shown:
            notices.append(self.shard.holds.notices.notice(t, t.cases[case], kind, p.agent, p.key))
            await asyncio.sleep(0)  # of a large case it takes a while
        synced = Synced(request_id=request_id, agent=p.key, project=p.project, notices=notices, position=t.position)
        self.shard.send(reply, frames.encode(synced))

    async def _ack(self, p: Principal, req: Ack, reply: str, request_id: str) -> None:
        t = p.tenant
        if not 1 <= len(req.notices) <= limits.GET_IDS_MAX:
            raise Refused("too_long" if req.notices else "too_short", field="notices", limit=limits.GET_IDS_MAX)
        wanted: list[tuple[bytes, NoticeKind]] = []
        for notice in req.notices:
            text, _, kind = notice.partition(".")
            raw = ids.raw(text)
            case = t.cases.get(raw) if raw else None
            if case is None or kind not in ("recall", "released") or p.agent.number not in case.told:
                raise Refused("notice_unknown", field="notices")
            wanted.append((case.id, "recall" if kind == "recall" else "released"))

        async def run() -> None:
            open_ = t.notices.get(p.agent.number, {})
            now_ms = self.shard.now_ms()
            events = [
                Stored(E.NoticeAcked(ms=now_ms, case=c, kind=k, agent=p.agent.id))
                for c, k in dict.fromkeys(wanted)
                if (c, k) in open_
            ]
            await self.shard.sequencer.commit(t, events)

        await self.shard.operators.acting(p, run)
        await self._sync(p, reply, request_id)

    # --- operators and the home -------------------------------------------------------------------
    async def on_operator(self, m: Msg) -> None:
        """A request on op.…"""
        self.arrivals.add(m, self._ordered)

    def _ordered(self, p: Principal, verb: str, m: Msg) -> None:
        req = _decoded(_decode_ops, m.data)
        request_id = _checked(req)
        if frames.VERB_OF[type(req)] != verb:
            raise Refused("malformed_frame")
        self._spawn(self._operate(p, req, m.reply), m.reply, request_id, p.key, "", p)

    async def _operate(self, p: Principal, req: Frame, reply: str) -> None:
        self.shard.send(reply, _fitting(req, await self.shard.operators.answer(p, req)))

    async def on_admin(self, m: Msg) -> None:
        """A request on adm.<shard>.<verb>.<key>: the grant holds the literal key."""
        parts = m.subject.split(".")
        if len(parts) != 4:
            return
        verb, key = parts[2], parts[3]
        request_id = _request_id(m.data)
        try:
            if verb not in TABLE["adm"]:
                raise Refused("verb_unknown")
            req = _decoded(_decode_admin, m.data, limits.REGISTRY_FRAME_BYTES_MAX)
            request_id = _checked(req)
            if frames.VERB_OF[type(req)] != verb:
                raise Refused("malformed_frame")
            if not self.open and verb != "status":
                raise self._starting()
            if not self.shard.ours():
                raise Refused("ledger_unreachable")
            self._spawn(self._administer(req, m.reply), m.reply, request_id, key, "")
        except Refused as e:
            self.shard.refuse(m.reply, e, request_id, key, "")
        except Exception:
            log.exception("control request failed: %s", verb)
            self.shard.refuse(m.reply, Refused("internal"), request_id, key, "")

    async def _administer(self, req: Any, reply: str) -> None:
        self.shard.send(reply, _fitting(req, await self.shard.admin.answer(req)))

    # --- tasks ------------------------------------------------------------------------------------
    def _spawn(self, work: Any, reply: str, request_id: str, key: str, project: str, p: Principal | None = None) -> None:
        task = asyncio.create_task(self._guarded(work, reply, request_id, key, project))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        if p is not None:  # in flight from now on: a task that has not begun is bounded too
            self.shard.count(p, 1)
            task.add_done_callback(lambda _: self.shard.count(p, -1))

    async def _guarded(self, work: Any, reply: str, request_id: str, key: str, project: str) -> None:
        try:
            await work
        except Refused as e:
            self.shard.refuse(reply, e, request_id, key, project)
        except ProjectionUnwritable:
            self.shard.refuse(reply, Refused("store_unwritable"), request_id, key, project)
        except Exception:
            log.exception("request failed")
            self.shard.refuse(reply, Refused("internal"), request_id, key, project)


def _fitting(req: Frame, answer: Frame) -> bytes:
    """An answer's bytes. Lists are paged, so none should be more than a message holds: it would not leave, and be waited for."""
    data = frames.encode(answer)
    if len(data) > limits.PAYLOAD_BYTES_MAX:
        log.error("an answer to %s of %d bytes is more than a message holds", type(req).__name__, len(data))
        raise Refused("answer_too_large", limit=limits.PAYLOAD_BYTES_MAX)
    return data


def _content_of(d: Draft) -> str:
    """What a retry must have in common with the first: everything that says what is stored, and for whom. Labels of the run
    may differ: it may be another one.
    """
    what = [d.content, d.kind, d.scope, d.scope_id, d.evidence, d.derived_from, d.supersedes]
    what += [d.promotes] if d.promotes else []
    return json.dumps([*what, d.classification, d.sensitivity, d.readers, d.opt_out], ensure_ascii=False)


def _idempotency(p: Principal, d: Draft) -> tuple[bytes, bytes]:
    """Hashes of (agent, project, key) and of what is stored; empty without a key."""
    if not d.idempotency_key:
        return b"", b""
    text_ok(d.idempotency_key, "idempotency_key", limits.LABEL_BYTES_MAX)
    t = p.tenant
    return t.label_hash(f"{p.agent.text}\0{p.project}\0{d.idempotency_key}", 16), t.label_hash(_content_of(d), 16)


def _decode(verb: str, data: bytes) -> Frame:
    most = limits.DRAFT_FRAME_BYTES_MAX if verb == "write" else limits.QUERY_FRAME_BYTES_MAX
    if len(data) > most:
        raise Refused("frame_too_large", limit=most)
    frame: Frame = _decoded(_decoders[verb], data)
    return frame


def _decoded(decode: Any, data: bytes, most: int = limits.DRAFT_FRAME_BYTES_MAX) -> Any:
    if len(data) > most:
        raise Refused("frame_too_large", limit=most)
    try:
        return decode(data)
    except msgspec.ValidationError as e:
        found = _PATH.search(str(e))
        raise Refused("bad_field" if found else "malformed_frame", field=found[1] if found else "") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused("malformed_frame") from None


def _checked(req: Frame) -> str:
    """The request id of a frame of this version: the one thing of the caller's that is ever echoed, so it can't be prose."""
    if req.v != limits.WIRE_VERSION:
        raise Refused("bad_field", field="v", limit=limits.WIRE_VERSION)
    if len(req.request_id) > limits.REQUEST_ID_CHARS_MAX:
        raise Refused("too_long", field="request_id", limit=limits.REQUEST_ID_CHARS_MAX)
    if not _ID.match(req.request_id):
        raise Refused("bad_field", field="request_id")
    return req.request_id


def _request_id(data: bytes) -> str:
    """The request id of a frame that may not decode: only its own restricted alphabet is ever echoed."""
    found = _REQUEST_ID.search(data[:4096]) or _REQUEST_ID.search(data[-4096:])
    return found[1].decode() if found else ""
