"""One seed: a world is drawn, lives under faults, grows calm, and is judged.

Order of a run: set up without faults → clients live while faults happen → calm: whoever wasn't answered asks again, everybody
looks once at all there is → the facts of the living gatekeeper and of one that replays into empty stores → the checker.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import gate.service as service
from bus.errors import CordonError
from bus.frames import AdmAgent, AdmProject, AdmTenant, Get, Recall
from gate.clock import LEAP_MS
from gate.refusals import Refused

from . import checker
from .broker import Broker, Connection, Fate
from .cast import PROJECTS, TENANTS, Cast
from .cleaner import Cleaner
from .clients import ANSWER_S, Client, Common
from .clock import CLOCK, Loop, Stuck, reseed
from .facts import HEARD, differing, facts
from .history import History, Shed
from .plan import CLOCK_STEPS_S, Plan, drawn
from .process import Process, stage

STREAMS: Final = {"LEDGER_0": "ledger.0.block", "READS_0": "reads.0.block", "ERASED_0": "erased.0.>", "OWNER_0": "owner.0.>"}
IDLE_S: Final = 80_000.0  # a context that isn't read for a day forgets
CALM_S: Final = 120.0  # so long it may take until a gatekeeper serves again, and until everybody is answered
SETTLED_S: Final = 5.0  # then whatever nobody waits for is done
FATES: Final[tuple[Fate, ...]] = ("lost", "unanswered", "busy", "kill before", "kill after")
CLUSTER_FATES: Final[tuple[Fate, ...]] = (*FATES, "late", "twice")


@dataclass
class Verdict:
    seed: int
    plan: Plan
    wrong: list[str]
    history: History
    counts: dict[str, int] = field(default_factory=dict)
    digest: str = ""  # of all that the streams hold


class Run:
    def __init__(self, seed: int, cast: Cast, folder: Path) -> None:
        self.seed, self.cast, self.folder = seed, cast, folder
        self.chance = random.Random(f"cordon {seed}")
        self.keys = random.Random(f"keys of cordon {seed}")
        self.plan = drawn(self.chance, self.keys)
        self.members = list(cast.members)  # and those with other keys, as they come
        self.history = History()
        self.wrong: list[str] = []
        self.broker = Broker(STREAMS, random.Random(self.chance.random()), self.plan.latency_s)
        self.loop = asyncio.get_running_loop()
        self.common = Common(self.broker, self.plan, self.history, random.Random(self.chance.random()))
        self._calm(True)
        stage(
            with_gate=self.plan.gate, index_slow_s=self.plan.index_slow_s, lineage_every_s=self.plan.lineage_every_s,
            block_events=self.plan.block_events, chance=random.Random(self.chance.random()),
        )  # fmt: skip
        self.tenants = TENANTS[: self.plan.tenants]
        self.processes = [self._process(f"gatekeeper {i}") for i in range(self.plan.gatekeepers)]
        self.keepers: list[asyncio.Task[None]] = []
        self.clients: list[Client] = []
        self.broker.fate, self.broker.seen = self._fate, self._seen

    def _process(self, name: str) -> Process:
        home = self.folder / name.replace(" ", "-")
        home.mkdir()
        for shared in ("trust", "creds"):
            (home / shared).symlink_to(self.cast.path / shared)
        limits = service.Limits(rates=False)
        process = Process(name, home, self.broker, "CORE", in_turn=self.plan.gatekeepers > 1, limits=limits)
        process.told = self.tell
        return process

    def _calm(self, calm: bool) -> None:
        """Whether nothing goes wrong."""
        self.calm = self.common.calm = calm

    def tell(self, what: str) -> None:
        self.history.tell(self.loop.time(), what)

    # --- life -------------------------------------------------------------------------------------
    async def judged(self) -> Verdict:
        for process in self.processes:
            self.keepers.append(asyncio.create_task(self._keep(process)))
        serving = await self._serving()
        cleaner = Cleaner(self.broker)
        await self._populate(serving)
        self._calm(False)
        lives = [asyncio.create_task(client.live()) for client in self.clients]
        lives += [asyncio.create_task(self._faults()), asyncio.create_task(self._rotations())]
        await asyncio.sleep(self.plan.lasts_s)
        for life in lives:
            life.cancel()
        for ended in await asyncio.gather(*lives, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        self._calm(True)
        self._room_again()
        CLOCK.right()
        self.tell("calm")
        if await self._answered():
            await self._compared()
        await cleaner.ended()
        for keeper in self.keepers:
            keeper.cancel()
        await asyncio.gather(*self.keepers, return_exceptions=True)
        for process in self.processes:
            await process.kill()
        streams = {name: {seq: m.data for seq, m in s.messages.items()} for name, s in self.broker.streams.items()}
        accounts = {a.key: name for name, a in self.cast.accounts.items()}
        seen = checker.Seen(self.history, streams, accounts, {m.key: m for m in self.members}, stripped=self._stripped())
        self.wrong += checker.check(seen)
        digest = hashlib.sha256(b"".join(data for blocks in streams.values() for data in blocks.values())).hexdigest()[:16]
        return Verdict(self.seed, self.plan, self.wrong, self.history, seen.counts(), digest)

    def _stripped(self) -> dict[int, bytes]:
        """By block of the ledger, its newest copy in ERASED."""
        copies = sorted(self.broker.streams["ERASED_0"].messages.items())
        return {int(m.subject.split(".")[2].removesuffix("-b")): m.data for _, m in copies}

    async def _keep(self, process: Process) -> None:
        """The supervisor: what ended is started again, unless it refused to serve."""
        known_s, passed_s = CLOCK.offset_s, 0.0
        while True:
            jump_s, known_s = CLOCK.offset_s - known_s, CLOCK.offset_s
            if 0 < jump_s < LEAP_MS / 1000:  # what was a jump is the time for who begins now, but for a leap (gate/clock.py)
                passed_s += jump_s
            if passed_s > IDLE_S:
                self.history.shed.append(Shed(None, CLOCK.now_s, CLOCK.now_s))
            process.start()
            assert process.task is not None
            await asyncio.wait([process.task])
            await process.ended(process.task)
            if process.failure is not None:
                cause = f"{process.name} stopped: {type(process.failure).__name__}: {process.failure}"
                self.tell(cause)
                self.wrong.append(cause)
                return
            await asyncio.sleep(self.chance.uniform(0.1, 2))
            self.tell(f"{process.name} starts again")

    async def _serving(self) -> Process:
        async with asyncio.timeout(CALM_S):
            while True:
                for process in self.processes:
                    if process.serving:
                        return process
                if self.wrong:
                    raise Stuck(self.wrong[0])
                await asyncio.sleep(0.05)

    async def _populate(self, process: Process) -> None:
        assert process.shard is not None
        admin = process.shard.admin
        for name in self.tenants:
            account = self.cast.accounts[name]
            frames: list[AdmTenant | AdmProject | AdmAgent] = [
                AdmTenant(action="add", account=account.key, name=name, user_key=account.user_key)
            ]
            shares = {"flow_from": ["p1"], "flow_to": ["p1"]} if self.chance.random() < 0.5 else {}
            for project in PROJECTS:
                settings: dict[str, Any] = {k: ["p2" if project == "p1" else "p1"] for k in shares}
                frames.append(AdmProject(action="add", account=account.key, name=project, settings=settings))
            members = self.cast.of(name)
            frames += [m.add for m in members]
            for frame in frames:
                await admin.answer(frame)
            agents = [m for m in members if m.role == "agent"][: self.plan.agents]
            self.clients += [Client(m, self.common) for m in (*agents, *(m for m in members if m.role != "agent"))]

    # --- what goes wrong ----------------------------------------------------------------------------
    def _fate(self, connection: Connection, stream: str) -> Fate:
        if self.calm or stream == "OWNER_0" or self.chance.random() >= self.plan.append_faults:
            return ""
        fate = self.chance.choice(FATES if self.plan.gatekeepers == 1 else CLUSTER_FATES)
        if fate.startswith("kill") and self.chance.random() < 0.6:
            return "lost"
        self.tell(f"an append to {stream} is {fate}")
        return fate

    async def _faults(self) -> None:
        while self.plan.faults:
            await asyncio.sleep(self.chance.expovariate(1 / self.plan.fault_every_s))
            fault = self.chance.choice(self.plan.faults)
            process = self.chance.choice(self.processes)
            seconds = self.chance.choice((0.05, 0.5, 3.0, 8.0, 20.0))
            self.tell(f"{fault} ({process.name}, {seconds:g} s)")
            match fault:
                case "kill":
                    process.kill_soon()
                case "cut" | "stall":
                    for connection in process.connections:
                        (connection.cut if fault == "cut" else connection.stall)(seconds)
                case "server":
                    for connection in list(self.broker.connections):
                        connection.cut(seconds)
                case "ledger full" | "reads full":
                    stream = self.broker.streams["LEDGER_0" if fault == "ledger full" else "READS_0"]
                    stream.max_bytes = max(stream.size, 1)
                    self.loop.call_later(seconds, self._room_again)
                case "clock":
                    step = self.chance.choice(CLOCK_STEPS_S)
                    CLOCK.step(step)
                case "deaf":  # frozen: nothing of it moves, and then all of it
                    for connection in process.connections:
                        connection.stall(seconds)

    async def _rotations(self) -> None:
        """Another key for an agent, as `cordon agent rotate` gives it: the old one is cut, or kept until the next."""
        while self.plan.rotate_every_s:
            await asyncio.sleep(self.keys.expovariate(1 / self.plan.rotate_every_s))
            client = self.keys.choice(self.clients)
            old, fresh = client.member, self.cast.rotated(client.member)
            self.tell(f"another key for {' '.join(reversed(old.who))}")
            self.members.append(fresh)
            await self._administered(fresh.add)
            client.rotated(fresh)
            if self.keys.random() < 0.7:
                await self._administered(AdmAgent(action="revoke", account=old.account, name=old.name, revoked=[old.key]))

    async def _administered(self, frame: AdmAgent) -> None:
        """Ask until it is done, as the control plane's caller does."""
        while True:
            with suppress(TimeoutError, Refused, CordonError):
                process = await self._serving()
                assert process.shard is not None
                await asyncio.wait_for(process.shard.admin.answer(frame), ANSWER_S)
                return
            await asyncio.sleep(0.5)

    def _room_again(self) -> None:
        for stream in self.broker.streams.values():
            stream.max_bytes = 0

    def _seen(self, subject: str, data: bytes, wire: int) -> None:
        self.wrong += checker.strays(subject, data, self.cast.accounts, self.members)

    # --- calm ---------------------------------------------------------------------------------------
    async def _answered(self) -> bool:
        """Whoever wasn't answered asks again; whether everybody is."""
        try:
            await self._serving()
        except (TimeoutError, Stuck) as e:
            self.wrong.append(f"no gatekeeper serves {CALM_S:g} s after the last fault ({e})")
            return False
        for client in self.clients:
            for wrote in client.open:
                await client.send(wrote, CALM_S)
        left = [w.draft.request_id for client in self.clients for w in client.open]
        if left:
            self.wrong.append(f"never answered, although nothing goes wrong any more: {left[:5]}")
        await asyncio.sleep(SETTLED_S)  # cases that the ledger had no room for
        return not left and await self._erased()

    async def _erased(self) -> bool:
        """Whether all that was to be erased is, everywhere."""
        try:
            async with asyncio.timeout(CALM_S):
                while (shard := (await self._serving()).shard) is None or shard.erasures.open():  # noqa: ASYNC110 - whose turn it is
                    await asyncio.sleep(0.5)
        except TimeoutError:
            self.wrong.append("erasures that never end, although nothing goes wrong any more")
            return False
        return True

    async def _probes(self) -> list[Any]:
        """What everybody can see of all that there is."""
        found: list[Any] = []
        for client in self.clients:
            if client.member.role != "agent":
                continue
            for project in client.member.projects:
                known = [id_ for id_, _ in self.common.known[client.member.tenant, project]]
                for at in range(0, len(known), 64):
                    recall = await client.recall(project, Get(ids=known[at : at + 64], request_id="probe"))
                    found.append(_answer(client, project, recall))
        return found

    async def _compared(self) -> None:
        """The living, and one that has only the ledger, know and answer the same."""
        living = await self._serving()
        answers = await self._probes()
        await asyncio.sleep(SETTLED_S)
        assert living.shard is not None
        unrecorded = living.shard.refused["reads_full"] > 0 or living.shard.refused["context_changed"] > 0
        before = facts(living.shard)
        self.wrong += checker.texts_left(self.history, {str(p): p.read_bytes() for p in _files(living.home)})
        for keeper in self.keepers:
            keeper.cancel()
        await asyncio.gather(*self.keepers, return_exceptions=True)
        for process in self.processes:
            await process.kill()
        fresh = self._process("newcomer")
        self.processes = [fresh]
        self.keepers = [asyncio.create_task(self._keep(fresh))]
        try:
            await self._serving()
        except (TimeoutError, Stuck) as e:
            self.wrong.append(f"no replay into empty stores: {e}")
            return
        assert fresh.shard is not None
        after = facts(fresh.shard)
        if unrecorded:
            for name in self.tenants:
                for heard in HEARD:
                    before[name]["state"].pop(heard)
                    after[name]["state"].pop(heard)
        self.wrong += checker.texts_left(self.history, {str(p): p.read_bytes() for p in _files(fresh.home)})
        self.wrong += [f"replayed into empty stores it differs: {x}" for x in differing(before, after)]
        if not unrecorded:
            self.wrong += [f"replayed it answers otherwise: {x}" for x in differing(answers, await self._probes())]


def _files(home: Path) -> list[Path]:
    """What a gatekeeper keeps: not the trust that all share."""
    return [p for p in home.rglob("*") if p.is_file() and not p.is_symlink()]


def _answer(client: Client, project: str, recall: Recall | None) -> Any:
    if recall is None:
        return (client.member.name, project, "no answer")
    items = {i.memory.id: (i.decision, i.reasons, i.memory.trust, i.memory.trust_floor, i.memory.state) for i in recall.admitted}
    return (client.member.name, project, items, recall.withheld)


def simulate(seed: int, cast: Cast) -> Verdict:
    """Run a seed to its verdict."""
    logging.disable(logging.CRITICAL)
    reseed(seed)
    with tempfile.TemporaryDirectory(prefix="cordon-sim-") as folder, asyncio.Runner(loop_factory=Loop) as runner:
        run: list[Run] = []

        async def whole() -> Verdict:
            run.append(Run(seed, cast, Path(folder)))
            try:
                return await run[0].judged()
            except Exception as e:
                where = traceback.extract_tb(e.__traceback__)[-1]
                wrong = [*run[0].wrong, f"the run ended: {e!r} at {Path(where.filename).name}:{where.lineno}"]
                return Verdict(seed, run[0].plan, wrong, run[0].history)

        return runner.run(whole())
