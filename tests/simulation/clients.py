"""Agents and operators of a simulation: each does one thing after another, on a line that loses, doubles and delays."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple

from bus import frames
from bus.frames import Case, Cases, Draft, Frame, Get, Plan, Query, Recall, Receipt, Refusal
from bus.subjects import inbox
from bus.testing.transport import HEADER

from .broker import Broker, Message
from .cast import Member
from .history import Asked, Erased, HeldThat, History, LetGo, Shed, Wrote
from .plan import Plan as Drawn

ANSWER_S: Final = 5.0  # one attempt, as bus.limits has it
DEADLINE_S: Final = 15.0
CLOSED_S: Final = 60.0  # after its answer: what was sent may be carried out that late
PASSING: Final = frozenset({"unavailable"})


class Told(NamedTuple):
    frame: Frame
    wire: int


@dataclass
class Common:
    """What the clients of a simulation share: ids that somebody was told, by (tenant, project)."""

    broker: Broker
    plan: Drawn
    history: History
    chance: random.Random
    known: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))  # (id, content)
    calm: bool = False  # nothing goes wrong any more
    words: Any = None
    numbers: Any = field(default_factory=lambda: count(1))

    def word(self) -> str:
        """One that nobody has used before."""
        return "".join(self.chance.choice("bdfgklmnprstvz") + self.chance.choice("aeiou") for _ in range(4))

    def text(self, member: Member) -> str:
        words = max(4, int(self.chance.expovariate(1 / self.plan.words)))
        return f"note {next(self.numbers)} of {member.tenant}: " + " ".join(self.word() for _ in range(words))


class Client:
    def __init__(self, member: Member, common: Common) -> None:
        self.member, self.common = member, common
        self.broker, self.history, self.chance = common.broker, common.history, common.chance
        self.heard: list[Recall] = []
        self.loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self.notices: list[str] = []
        self._listen()

    def _listen(self) -> None:
        self.broker.listen(f"notice.{self.member.account}.{self.member.key}", self._noticed)

    def rotated(self, member: Member) -> None:
        """The same agent with another key, from its next attempt on."""
        self.broker.forget(f"notice.{self.member.account}.{self.member.key}")
        self.member = member
        self._listen()

    def _noticed(self, data: bytes, wire: int) -> None:
        frame = frames.decode_push(data)
        if isinstance(frame, frames.Notice):
            self.notices.append(frame.notice)

    # --- the line ---------------------------------------------------------------------------------
    async def ask(self, subject: str, frame: Frame, deadline_s: float = DEADLINE_S, *, again: bool = True) -> Told | None:
        """The answer, or None: nobody told. A refusal that passes is asked again."""
        give_up = self.loop.time() + deadline_s
        pause_s = 0.1
        while True:
            key = self.member.key
            told = await self._attempt(f"{subject.rpartition('.')[0]}.{key}", frame)
            if told is not None and isinstance(told.frame, Refusal) and told.frame.error == "internal":
                self.history.internal.append(f"{type(frame).__name__} of {self.member.name} of {self.member.tenant}")
            passing = told is None or (isinstance(told.frame, Refusal) and told.frame.error in PASSING)
            cut = key != self.member.key and told is not None and isinstance(told.frame, Refusal)
            if not passing and not cut:
                return told
            if not again or self.loop.time() + pause_s > give_up:
                return None
            await asyncio.sleep(pause_s * self.chance.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, 2.0)

    async def _attempt(self, subject: str, frame: Frame) -> Told | None:
        reply = f"{inbox(self.member.key)}.{next(self._numbers)}"
        answer: asyncio.Future[Told | None] = self.loop.create_future()

        def told(data: bytes, wire: int) -> None:
            if not self._lost():
                self.loop.call_later(self._late(), put, data, wire)

        def put(data: bytes, wire: int) -> None:
            if not answer.done():
                answer.set_result(Told(frames.decode_reply(data), wire))

        def send() -> None:
            if not self.broker.request(message) and not answer.done():
                answer.set_result(None)  # no responders

        self.broker.listen(reply, told)
        try:
            message = Message(subject, reply, frames.encode(frame), {HEADER: self.member.info})
            for _ in range(2 if self._lost() else 1):
                if not self._lost():
                    self.loop.call_later(self._late(), send)
            return await asyncio.wait_for(answer, ANSWER_S)
        except TimeoutError:
            return None
        finally:
            self.broker.forget(reply)

    def _lost(self) -> bool:
        return not self.common.calm and self.chance.random() < self.common.plan.line_faults

    def _late(self) -> float:
        slow = not self.common.calm and self.chance.random() < self.common.plan.line_faults
        return self.chance.uniform(0, 7 if slow else 2 * self.broker.latency_s)

    def memory(self, project: str, verb: str) -> str:
        return f"in.0.{self.member.account}.{project}.{verb}.{self.member.key}"

    # --- an agent's -------------------------------------------------------------------------------
    async def write(self, project: str, content: str, *, copied: str = "", **more: Any) -> Wrote:
        n = next(self.common.numbers)
        draft = Draft(content=content, idempotency_key=f"key {n}", request_id=f"w{n}", **more)
        wrote = Wrote(self.member, project, draft, self.loop.time(), copied)
        self.history.wrote.append(wrote)
        await self.send(wrote)
        return wrote

    async def send(self, wrote: Wrote, deadline_s: float = DEADLINE_S) -> None:
        told = await self.ask(self.memory(wrote.project, "write"), wrote.draft, deadline_s)
        if told is None:
            return
        if isinstance(told.frame, Receipt):
            if wrote.receipt is None:
                wrote.receipt, wrote.told_s = told.frame, self.loop.time()
                self.common.known[self.member.tenant, wrote.project].append((told.frame.id, wrote.draft.content))
            else:
                wrote.again.append(told.frame)
        elif isinstance(told.frame, Refusal):
            wrote.refused = told.frame.reason

    @property
    def open(self) -> list[Wrote]:
        """Drafts of which nobody told what became of them."""
        return [w for w in self.history.wrote if w.by.who == self.member.who and w.receipt is None and not w.refused]

    async def recall(self, project: str, frame: Query | Get) -> Recall | None:
        sent_s = self.loop.time()
        told = await self.ask(self.memory(project, "get" if isinstance(frame, Get) else "query"), frame, again=self.common.calm)
        if told is None or not isinstance(told.frame, Recall):
            return None
        self.heard.append(told.frame)
        probe = frame.ids if isinstance(frame, Get) and self.common.calm else None
        self.history.asked.append(Asked(self.member, project, sent_s, self.loop.time(), told.wire, told.frame, probe))
        return told.frame

    def query(self, project: str) -> Query:
        known = self.common.known[self.member.tenant, project]
        text = self.chance.choice(known)[1] if known else "anything at all"
        words = text.split()
        some = " ".join(self.chance.sample(words, min(4, len(words))))
        return Query(text=some, k=self.common.plan.k, request_id=f"q{next(self.common.numbers)}")

    def get(self, project: str) -> Get:
        known = self.common.known[self.member.tenant, project]
        found = [self.chance.choice(known)[0] for _ in range(min(len(known), 3))]
        return Get(ids=list(dict.fromkeys(found)), request_id=f"g{next(self.common.numbers)}")

    async def live(self) -> None:
        """One thing after another, until cancelled."""
        acts = self._acts()
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / self.common.plan.pause_s))
            [act] = self.chance.choices([a for a, _ in acts], [w for _, w in acts])
            await act()

    def _acts(self) -> list[tuple[Any, int]]:
        if self.member.role == "operator":
            acts = [(self.hold, 4), (self.planned, 2), (self.release, 4), (self.review, 3), (self.close, 1)]
            return [*acts, (self.erase, self.common.plan.erasures)]
        if self.member.role == "ingest":
            return [(self.feed, 1)]
        return [
            (self.note, 3), (self.look, 4), (self.fetch, 4), (self.derive, 3), (self.copy, 4), (self.correct, 1),
            (self.repeat, 1), (self.contradict, 1), (self.acknowledge, 1),
        ]  # fmt: skip

    def _project(self) -> str:
        return self.chance.choice(self.member.projects)

    async def feed(self) -> None:
        await self.write(self._project(), self.common.text(self.member), evidence=["https://wiki.example/outside"])

    async def note(self) -> None:
        see = self.chance.choice(("public", "internal", "internal", "restricted"))
        sure: Any = self.chance.choice((None, None, 0.3))
        await self.write(self._project(), self.common.text(self.member), classification=see, claimed_confidence=sure)

    async def look(self) -> None:
        project = self._project()
        await self.recall(project, self.query(project))

    async def fetch(self) -> None:
        project = self._project()
        if (frame := self.get(project)).ids:
            await self.recall(project, frame)

    async def derive(self) -> None:
        if self.heard and (admitted := self.chance.choice(self.heard[-4:])).admitted:
            parents = self.chance.sample(admitted.ids, min(2, len(admitted.ids)))
            await self.write(self._project(), self.common.text(self.member), derived_from=parents)

    async def copy(self) -> None:
        """Says again what it was served, and not whose words they are."""
        if self.heard and (recall := self.heard[-1]).admitted:
            memory = self.chance.choice(recall.admitted).memory
            if not memory.content.startswith("they say"):
                await self.write(self._project(), f"they say {self.common.word()}: {memory.content}", copied=memory.id)

    async def correct(self) -> None:
        mine = [w for w in self.history.wrote if w.by.who == self.member.who and w.receipt and not w.copied]
        if mine:
            old = self.chance.choice(mine)
            assert old.receipt
            await self.write(old.project, self.common.text(self.member), supersedes=old.receipt.id)

    async def repeat(self) -> None:
        """Sends again what was answered: the first receipt must come."""
        mine = [w for w in self.history.wrote if w.by.who == self.member.who and w.receipt]
        if mine:
            await self.send(self.chance.choice(mine), ANSWER_S)

    async def contradict(self) -> None:
        """The same key for something else."""
        mine = [w for w in self.history.wrote if w.by.who == self.member.who and w.receipt]
        if mine:
            old = self.chance.choice(mine)
            draft = Draft(content=self.common.text(self.member), idempotency_key=old.draft.idempotency_key, request_id="other")
            other = Wrote(self.member, old.project, draft, self.loop.time())
            told = await self.ask(self.memory(old.project, "write"), draft)
            if told is not None and isinstance(told.frame, Receipt):
                other.receipt = told.frame
                self.history.wrote.append(other)

    async def acknowledge(self) -> None:
        if self.notices:
            some = self.notices.pop()
            await self.ask(self.memory(self.member.projects[0], "ack"), frames.Ack(notices=[some], request_id="ack"), ANSWER_S)

    # --- an operator's ----------------------------------------------------------------------------
    def _op(self, verb: str) -> str:
        return f"op.0.{self.member.account}.{verb}.{self.member.key}"

    def _any(self) -> str:
        known = [id_ for (tenant, _), ids in self.common.known.items() for id_, _ in ids if tenant == self.member.tenant]
        return self.chance.choice(known) if known else ""

    async def hold(self) -> None:
        if root := self._any():
            frame = frames.Hold(selector=[root], now=True, message="it looks wrong", request_id=f"h{next(self.common.numbers)}")
            self._held(root, await self.ask(self._op("hold"), frame, again=False))

    def _held(self, root: str, told: Told | None) -> None:
        if told is not None and isinstance(told.frame, Case):
            self.history.holds.append(HeldThat(self.member, root, self.loop.time(), told.wire, told.frame))

    async def planned(self) -> None:
        if not (root := self._any()):
            return
        told = await self.ask(self._op("hold"), frames.Hold(selector=[root], dry_run=True, request_id="plan"), ANSWER_S)
        if told is not None and isinstance(told.frame, Plan):
            await asyncio.sleep(self.chance.uniform(0, 5))
            frame = frames.Hold(plan=told.frame.plan, message="as planned", request_id="apply")
            self._held(root, await self.ask(self._op("hold"), frame, again=False))

    async def release(self) -> None:
        told = await self.ask(self._op("case"), frames.CaseQuery(request_id="cases"), ANSWER_S)
        if told is None or not isinstance(told.frame, Cases):
            return
        standing = [c.case for c in told.frame.cases if c.state != "released"]
        if standing:
            case = self.chance.choice(standing)
            self.history.let_go.append(LetGo(self.member, self.loop.time(), self.broker.wire, case=case))
            await self.ask(self._op("release"), frames.Release(case=case, message="it was right", request_id="r"), ANSWER_S)

    async def review(self) -> None:
        held = [
            w.receipt.id
            for w in self.history.wrote
            if w.by.tenant == self.member.tenant and w.receipt and w.receipt.state == "held"
        ]
        if held:
            memory, accepted = self.chance.choice(held), self.chance.choice((True, False))
            self.history.let_go.append(LetGo(self.member, self.loop.time(), self.broker.wire, memory=memory, accepted=accepted))
            frame = frames.Review(id=memory, verdict="accept" if accepted else "reject", message="looked at", request_id="v")
            await self.ask(self._op("review"), frame, ANSWER_S, again=False)

    async def erase(self) -> None:
        if memory := self._any():
            erased = Erased(self.member, memory, self.loop.time())
            self.history.erased.append(erased)
            number = next(self.common.numbers)
            frame = frames.Erase(selector=[memory], message="as its subject wants", request_id=f"e{number}")
            told = await self.ask(self._op("erase"), frame, again=False)
            if told is not None and isinstance(told.frame, frames.Erasure):
                erased.wire = told.wire

    async def close(self) -> None:
        agents = [w.by for w in self.history.wrote if w.by.tenant == self.member.tenant and w.by.role == "agent"]
        if agents:
            agent = self.chance.choice(agents)
            shed = Shed(agent, self.loop.time(), inf)
            self.history.shed.append(shed)
            frame = frames.ContextRequest(agent=agent.name, action="close", message="a new day", request_id="c")
            await self.ask(self._op("context"), frame, ANSWER_S, again=False)
            shed.to_s = self.loop.time() + CLOSED_S
