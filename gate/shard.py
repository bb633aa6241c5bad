"""One shard: everything that serves it, in one place, and nothing that decides. Parts reach each other only through it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from bus import frames, subjects
from bus.errors import Unavailable
from bus.frames import Feed, FeedKind, Notice
from bus.identity import RegistryEntry
from gate.admin import Admin
from gate.clock import SteadyClock, wall_ms
from gate.config import AUDITS_PER_MINUTE, NAMESPACE_SHARD
from gate.containment.holds import Holds
from gate.delegation import Delegations
from gate.erasure.requests import Requests
from gate.erasure.stores import Erasures
from gate.event_rows import EventRows
from gate.identify import Identifier, Principal
from gate.index_state import TenantIndex
from gate.index_thread import IndexThread
from gate.intake import Intake
from gate.lease import Lease
from gate.ledger import events as E
from gate.ledger.chain import Heads, ReadsHead
from gate.ledger.committer import Committer
from gate.ledger.errors import LedgerFull
from gate.lifecycle.pruning import Pruning
from gate.lifecycle.reports import Reports
from gate.operators import Operators
from gate.outbox import Outbox
from gate.paths import Paths
from gate.projections.catalog import Catalog
from gate.projections.lineage import LineageStore
from gate.quotas import DEFAULT, Quotas, full
from gate.reading.admit import Admission
from gate.reading.ask import Ask
from gate.reading.recalls import Recalls
from gate.refusals import Refused
from gate.room import Room
from gate.state.principals import Agent
from gate.state.tenant import Tenant
from gate.turns import Pace
from gate.verifying.answers import Answers
from gate.writing.context_texts import ContextTexts
from gate.writing.decide import Write
from gate.writing.sequencer import Sequencer, receipt_of
from gate.writing.writes import Writes

log = logging.getLogger(__name__)
STORE_WAIT_S: Final = 5.0


class Shard:
    number: Final = int(NAMESPACE_SHARD)

    def __init__(
        self,
        *,
        paths: Paths,
        loop: asyncio.AbstractEventLoop,
        core_account: str,
        registry: dict[str, RegistryEntry],
        operator_jwt: str,
        admission: Admission,
        lineage: LineageStore,
        stream_identity: str,
        now_ms: Callable[[], int] = wall_ms,
        clock: SteadyClock | None = None,
    ) -> None:
        self.lease: Lease | None = None  # None: this home's own broker, where the store lock is enough
        self.read_only = False  # agents may read, not write
        self.rates, self.quotas = True, DEFAULT  # whether requests a second are limited, and what may be kept (gate/quotas.py)
        self.paths, self.loop, self.clock = paths, loop, clock
        self.now_ms = clock or now_ms
        self.unseen_ms: Callable[[int], int] = clock.unseen_ms if clock else lambda _: 0
        self.operator_jwt = operator_jwt
        self.stream_identity = stream_identity
        self.admission = admission
        self.lineage = lineage
        self.event_rows = EventRows()
        self.tenants: dict[str, Tenant] = {}
        self.indexes: dict[str, TenantIndex] = {}
        self.heads, self.reads_head = Heads(), ReadsHead()
        self.ledger_seq = self.reads_seq = 0
        self.reads_missing = 0  # READS blocks that were gone at the start
        self.bodies_missing: list[tuple[str, int]] = []  # (account, tenant_seq): gone at a start that accepts it, and not erased
        self.ledger: Committer
        self.reads: Committer
        self.outbox: Outbox
        self.identifier = Identifier(NAMESPACE_SHARD, core_account, self.tenants, registry, lambda: self.now_ms())
        self.pace = Pace()
        self.index = IndexThread(loop, self._idle, damaged=self.fail, shared=lambda: self.pace.shared)
        self.sequencer = Sequencer(self)
        self.writes = Writes(self)
        self.recalls = Recalls(self)
        self.holds = Holds(self)
        self.erasures = Erasures(self)
        self.erasing = Requests(self)
        self.pruning = Pruning(self)
        self.reports = Reports(self)
        self.operators = Operators(self)
        self.admin = Admin(self)
        self.delegations = Delegations(self)
        self.intake = Intake(self)
        self.verifying = Answers(self)
        self.state = "starting"
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self.refused: Counter[str] = Counter()
        self.started = time.monotonic()
        self.context_texts = ContextTexts()  # the index thread's
        self.replayed: dict[str, float] = {}
        self.replaying = (0, 0)  # while it starts: ledger blocks read, of how many
        self.room = Room(paths.home)
        self.ledger_replicas = 1
        self._audits: dict[tuple[str, str], tuple[int, int]] = {}  # (key, code) → (minute, count)

    @property
    def gate_id(self) -> str:
        gate = self.admission.gate
        return gate.id if gate else ""

    # --- tenants ----------------------------------------------------------------------------------
    def open_tenant(self, account: str, name: str = "", user_key: bytes = b"") -> Tenant:
        """A tenant with its catalog opened (on the caller's thread: only at start-up). Raises ProjectionUnusable."""
        t = Tenant(account, name, user_key)
        path = self.paths.catalog(account)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.indexes[account] = TenantIndex(account, Catalog(path, self.stream_identity), self.context_texts)
        self.tenants[account] = t
        return t

    async def add_tenant(self, account: str, name: str, user_key: bytes) -> Tenant:
        """A new tenant, live."""
        t = Tenant(account, name, user_key)
        t.quotas = self.quotas
        path = self.paths.catalog(account)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        index = await self.index.call(lambda: TenantIndex(account, Catalog(path, self.stream_identity), self.context_texts))
        if account in self.tenants:  # another request was faster
            await self.index.call(index.close)
            return self.tenants[account]
        self.indexes[account], self.tenants[account] = index, t
        return t

    def limit(self, quotas: Quotas) -> None:
        """From now on these are every tenant's."""
        self.quotas = quotas
        for t in self.tenants.values():
            t.quotas = quotas

    async def drop_tenant(self, t: Tenant) -> None:
        """Forget a deleted tenant: its live state at once, its catalog when this returns."""
        self.tenants[t.account] = t.remains()
        index, folder = self.indexes.pop(t.account), self.paths.catalog(t.account).parent

        def remove() -> None:
            index.close()
            self.context_texts.drop(t.account)
            shutil.rmtree(folder)

        await self.index.call(remove)

    def tenant_number(self, t: Tenant) -> int:
        return self.event_rows.numbers.get(t.account, -1)

    def _idle(self) -> bool:
        if self.state != "ready":  # a replay is no quiet moment
            return False
        indexes = list(self.indexes.values())
        for index in indexes:
            index.idle()
        return any(index.catch_up() for index in indexes)  # one step: a request that comes meanwhile waits for it

    def index_later(self, fn: Callable[..., Any], *args: Any) -> None:
        """A job for the index thread that nobody waits for; its failure stops the shard."""
        self.index.call(fn, *args).add_done_callback(
            lambda f: self.fail(f.exception()) if not f.cancelled() and f.exception() else None
        )

    def fail(self, error: BaseException | None) -> None:
        """Stop serving: live state can't be trusted to follow the ledger any more."""
        if error is not None and self.failure is None:
            self.failure = error
            self.failed.set()

    async def store_caught_up(self) -> None:
        """Wait until the lineage store has everything that is in the ledger and READS now."""
        for stream, seq in (("LEDGER", self.ledger_seq), ("READS", self.reads_seq)):
            try:
                await self.lineage.wait(stream, seq, STORE_WAIT_S)
            except Unavailable:
                raise Refused("store_behind") from None

    # --- ownership --------------------------------------------------------------------------------
    @property
    def owner_epoch(self) -> int:
        return self.lease.epoch if self.lease is not None else 1

    def ours(self) -> bool:
        """Whether live state is known to be the newest there is: another may own the shard when the lease isn't confirmed."""
        return self.lease is None or self.lease.held

    async def fence(self) -> None:
        """An empty block of the new owner in both streams: what a former one has still on its way is refused from here on.

        `SteppedDown` if something of it came in since the replay: replay again. A stream without room takes no fence, and serves
        all the same: what a former one may still get in there was answered to nobody, and the next append or question meets it.
        """
        for stream, fence in (("the ledger", self.sequencer.fence), ("READS", self.recalls.fence)):
            try:
                await fence()
            except LedgerFull:
                log.warning("%s has no room for a fence: serving without one", stream)

    # --- out --------------------------------------------------------------------------------------
    def send(self, subject: str, data: bytes) -> None:
        """An answer. Not sent while the shard may be another's, for that would be a stale one: the caller asks again."""
        if self.ours():
            self.outbox.send(subject, data)

    def refuse(self, reply: str, e: Refused, request_id: str, agent: str, project: str) -> None:
        if self.lease is not None and not self.lease.held:
            if not self.lease.unclaimed:  # another may be doing what was asked: not even a no is right
                return
            e = Refused("ledger_unreachable")  # the reason itself may be stale
        self.refused[e.code] += 1
        self.outbox.send(reply, frames.encode(e.frame(request_id, agent, project)))

    def refuse_write(self, w: Write, e: Refused) -> None:
        for p, reply, request_id in ((w.principal, w.reply, w.request_id), *w.also):
            self.refuse(reply, e, request_id, p.key, p.project)
        self.audit_refusal(w.principal, "write", e.code)
        self.finished(w)

    def refuse_ask(self, a: Ask, e: Refused) -> None:
        self.refuse(a.reply, e, a.request_id, a.principal.key, a.principal.project)
        self.ask_finished(a)

    def finished(self, w: Write) -> None:
        """It is answered, or refused: with it those that came again meanwhile."""
        self.sequencer.under_way.pop((w.principal.tenant.account, w.idem), None)
        self.count(w.principal, -w.units - len(w.also))

    def ask_finished(self, a: Ask) -> None:
        self.count(a.principal, -1)

    @staticmethod
    def count(p: Principal, by: int) -> None:
        p.tenant.agents.payer(p.agent).in_flight += by
        p.tenant.in_flight += by

    def answer_duplicate(self, p: Principal, idem: bytes, content: bytes, reply: str, request_id: str) -> None:
        """The first receipt with the current state, from the catalog, or a conflict. Ends the request."""
        t, seq = p.tenant, p.tenant.idem[idem]
        if t.deleted:
            self.count(p, -1)
            self.refuse(reply, Refused("tenant_deleted"), request_id, p.key, p.project)
            return
        fetched = self.index.call(self.indexes[t.account].catalog.fetch, [seq])

        def refuse(e: Refused) -> None:
            self.refuse(reply, e, request_id, p.key, p.project)
            self.audit_refusal(p, "write", e.code)

        def answer(done: asyncio.Future[Any]) -> None:
            self.count(p, -1)
            if done.cancelled() or done.exception() or seq not in done.result():
                refuse(Refused("internal"))
                return
            e = E.decode_memory(done.result()[seq].meta)
            if e.idem_content != content:
                refuse(Refused("idempotency_conflict", field="idempotency_key"))
                return
            receipt = receipt_of(p, seq, e, self.now_ms())
            self.send(reply, frames.encode(msgspec.structs.replace(receipt, request_id=request_id, duplicate=True)))

        fetched.add_done_callback(answer)

    def feed(self, t: Tenant, project: str, cls: int, kind: FeedKind, found: Iterable[str]) -> None:
        """Tell who follows the project. A feed can't tell roles apart, so a project with an audience has none."""
        if t.projects[project].settings.audience or t.projects[project].state == "deleted":
            return
        frame = Feed(project=project, classification=frames.CLASSIFICATIONS[cls], kind=kind, ids=list(found), position=t.position)
        self.outbox.send(subjects.feed(t.account, project, frames.CLASSIFICATIONS[cls], kind), frames.encode(frame))

    def push_notice(self, t: Tenant, key: str, notice: Notice) -> None:
        self.outbox.send(subjects.notice(t.account, key), frames.encode(notice))

    def over_share(self, t: Tenant, agent: Agent | None) -> Refused | None:
        """The refusal of one more record, where READS is nearly full, to whose family or tenant fills it."""
        if not self.room.reads_crowded:
            return None
        now_ms, q = self.now_ms(), t.quotas
        recorded = t.agents.payer(agent).recorded if agent is not None else None
        used = recorded.total(now_ms) if recorded is not None else 0
        if used >= q.agent_reads:
            return full("reads", "agent", q.agent_reads, used)
        used = t.recorded.total(now_ms)
        return full("reads", "tenant", q.tenant_reads, used) if used >= q.tenant_reads else None

    # --- audit ------------------------------------------------------------------------------------
    def audit(self, p: Principal, code: str, *, memory: int = 0) -> None:
        """Note a look at text by an operator: never folded."""
        self.recalls.record(
            p.tenant,
            E.Audit(ms=self.now_ms(), agent=p.agent.id, key=p.key, verb="why", project=p.project, code=code, memory=memory),
        )

    def audit_refusal(self, p: Principal, verb: str, code: str) -> None:
        self.audit_unknown(p.tenant, p.key, verb, p.project, code, p.agent.id)

    def audit_unknown(self, t: Tenant, key: str, verb: str, project: str, code: str, agent: bytes = b"") -> None:
        """Note a refusal: AUDITS_PER_MINUTE for each key and code, then only a count, written when the minute is over."""
        if self.over_share(t, t.agents.by_id.get(agent)) is not None:  # nobody's refusals take the room of others' questions
            return
        now_ms = self.now_ms()
        minute = now_ms // 60_000
        at, count = self._audits.get((key, code), (minute, 0))
        folded = count - AUDITS_PER_MINUTE if at != minute and count > AUDITS_PER_MINUTE else 0
        count = 1 if at != minute else count + 1
        if len(self._audits) > 10_000:
            self._audits.clear()
        self._audits[(key, code)] = (minute, count)
        if folded:
            self.recalls.record(t, E.Audit(ms=now_ms, agent=agent, key=key, verb=verb, project=project, code=code, count=folded))
        if count <= AUDITS_PER_MINUTE:
            self.recalls.record(t, E.Audit(ms=now_ms, agent=agent, key=key, verb=verb, project=project, code=code))

    # --- health -----------------------------------------------------------------------------------
    def healthy(self) -> bool:
        return self.ledger.healthy and self.ours()

    def troubles(self) -> list[str]:
        """What is wrong or not as usual, for people; [] = nothing."""
        starting = self.state == "starting"
        found = [] if starting else [self._unconfirmed(x) for x in (self.ledger, self.reads) if x.stuck or not x.healthy]
        found += self.room.trouble
        for account, index in self.indexes.items():
            if index.catalog.trouble:
                name = self.tenants[account].name
                found.append(f"the catalog of tenant {name} can't be written ({index.catalog.trouble}): its drafts are refused")
        lineage = self.lineage.failed or self.lineage.trouble
        if lineage is not None:
            found.append(f"{lineage.message} Operators' why, trace and context wait for it; agents don't.")
        found += [
            f"the ledger of tenant {t.name} is broken from event {t.broken}: see `cordon verify`"
            for t in self.tenants.values()
            if t.broken
        ]
        if self.clock is not None and self.clock.trouble:
            found.append(self.clock.trouble)
        parts = [t.name for t in self.tenants.values() if t.partial]
        found += [f"tenant {name} was restored in part: nobody can ever write in it here" for name in parts]
        if self.read_only and not parts:
            found.append("agents can't write: `read_only` in cordon.toml, as in a home that was restored to look at")
        if self.delegations.silent:
            found.append("the issuer gave no answer when it was asked last: nobody can delegate; kill -9 its pid restarts it")
        if self.delegations.without_keys:
            found.append(
                f"nobody can delegate: the issuer's {self.delegations.without_keys} is missing, or not as the registry says. "
                "`cordon tenant add NAME` again makes what is missing; one elsewhere needs trust/issuer/ and trust/registry.jwt"
            )
        if not starting and self.erasures.janitor_is_silent():
            found.append("the janitor doesn't ask for work: what is erased stays in the ledger until it does; see its log")
        return found

    @staticmethod
    def _unconfirmed(stream: Committer) -> str:
        return f"{stream.stream} " + (
            "stores nothing though the broker answers: it is started again when its disk has room"
            if stream.stuck
            else "doesn't answer: nobody is served until it does"
        )

    def status(self) -> dict[str, Any]:
        s = self.sequencer
        return {
            "state": self.state if self.state == "starting" or (self.healthy() and self.reads.healthy) else "ledger_unreachable",
            "shard": self.number,
            "owner_epoch": self.owner_epoch,
            "ledger_seq": self.ledger_seq,
            "reads_seq": self.reads_seq,
            "tenants": sum(not t.deleted for t in self.tenants.values()),
            "memories": sum(t.memories for t in self.tenants.values()),
            "held": sum(t.held_total for t in self.tenants.values()),
            "blocks": s.blocks,
            "events": s.events,
            "recalls": self.recalls.answered,
            "alarms": self.recalls.alarms,
            "retries": 0 if self.state == "starting" else self.ledger.retries + self.reads.retries,
            "refused": dict(self.refused),
            "dropped": self.intake.patience.dropped,
            "keys_shared": sum(
                1 for t in self.tenants.values() for a in t.agents.all for seats in a.seats.values() if seats.sharing
            ),
            "send_failures": dict(self.outbox.failed),
            "uptime_s": round(time.monotonic() - self.started, 1),
            "replayed": self.replayed,
            "replaying": f"{self.replaying[0]:,} of {self.replaying[1]:,} blocks" if self.state == "starting" else "",
            "broken": {t.name: t.broken for t in self.tenants.values() if t.broken},
            "ledger_full_share": round(self.room.ledger_share, 4),
            "troubles": self.troubles(),
            "erasing": len(self.erasures.open()),
            "gate": self.gate_id or "off",
            "encoder": self.admission.embedder.id,
            "lineage_failed": str(self.lineage.failed or self.lineage.trouble or ""),
        }
