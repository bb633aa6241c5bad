"""A home that is up for one bench: supervisor, broker and gatekeeper as users run them, many tenants and agents made in bulk, an
echo responder, a load generator, and meters of the gatekeeper's process.

Beside what the product makes, tenants import one subject more (the echo) and CORE has one user more (echo and raw JetStream).
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import nats
from nats.aio.client import Client

from broker_config import claims, supervisor
from broker_config.claims import Permissions, Subjects
from broker_config.connection import connected
from broker_config.control import Control
from broker_config.home import Home, write_private
from broker_config.trust import AgentRequest, Tenant, Trust
from bus import frames
from bus.frames import AdmAgent, AdmProject, AdmRegistry, AdmTenant, Frame
from bus.identity import Keypair, creds_text, encode_jwt, keypair, parse_creds
from gate.ledger.jetstream import request

from .load import Agent, Figures, Open, Run

UP_S: Final = 60.0
IDLE_S, IDLE_MOST_S = 0.25, 20.0
ECHO_SHARD: Final = "9"  # CORE exports in.*.*.> already; no gatekeeper listens there
PROJECTS: Final = ("p1", "p2")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Meter:
    """CPU and memory of a process from /proc."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss_mb(self) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024


class Stand:
    """`agents` by `tenant/name`. One at a time a machine: two would measure each other."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.agents: dict[str, Agent] = {}
        self.control: Control
        self._load: asyncio.subprocess.Process
        self._desks: dict[str, tuple[Client, str]] = {}

    # --- processes
    @property
    def gatekeeper(self) -> Meter:
        status = supervisor.read_status(self.home)
        assert status is not None
        return Meter(status.pids["gatekeeper"])

    async def status(self) -> dict[str, Any]:
        return await self.control.status()

    def creds(self, name: str) -> str:
        return self.agents[name].creds

    # --- load
    async def open(self, names: Sequence[str]) -> None:
        """Connect the load generator as these agents (or as `bench`, the user of CORE)."""
        await self._tell(Open([self.agents[n] for n in names]))

    async def run(self, kind: str, agents: Sequence[str], in_flight: int, total: int, **more: Any) -> Figures:
        answer = await self._tell(Run(kind=kind, agents=list(agents), in_flight=in_flight, total=total, **more))
        return msgspec.json.decode(answer, type=Figures)

    async def metered(self, kind: str, agents: Sequence[str], in_flight: int, total: int, **more: Any) -> tuple[Figures, float]:
        """The same, and the gatekeeper's CPU milliseconds an operation."""
        meter = self.gatekeeper
        before = meter.cpu_s()
        figures = await self.run(kind, agents, in_flight, total, **more)
        return figures, (meter.cpu_s() - before) / total * 1e3

    async def idle(self, most_s: float = IDLE_MOST_S) -> float:
        """Until the gatekeeper has worked off what it was given, and its quiet moments too; the seconds that took."""
        start = time.monotonic()
        while (spent := time.monotonic() - start) < most_s:
            before = self.gatekeeper.cpu_s()
            await asyncio.sleep(IDLE_S)
            if self.gatekeeper.cpu_s() - before < IDLE_S / 5:
                break
        return spent

    async def _tell(self, command: Open | Run) -> bytes:
        stdin, stdout = self._load.stdin, self._load.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(msgspec.json.encode(command) + b"\n")
        await stdin.drain()
        answer = await stdout.readline()
        if not answer:
            raise RuntimeError("the load generator stopped: see its message above")
        return answer

    # --- operators
    async def ops(self, tenant: str, frame: Frame) -> Any:
        """One operator request of the tenant's agent `ops`: the decoded answer."""
        nc, key = self._desks[tenant]
        data = frames.encode(msgspec.structs.replace(frame, request_id=secrets.token_hex(8)))
        answer = await nc.request(f"ops.{tenant}.{frames.VERB_OF[type(frame)]}.{key}", data, timeout=60)
        return frames.decode_reply(answer.data)

    async def open_desk(self, stack: AsyncExitStack, tenant: str) -> None:
        creds = self.creds(f"{tenant}/ops")
        key = parse_creds(Path(creds).read_text()).key
        nc = await nats.connect(self.home.url, user_credentials=creds, inbox_prefix=f"_INBOX.{key}".encode())
        stack.push_async_callback(nc.close)
        self._desks[tenant] = (nc, key)


@asynccontextmanager
async def standing(tenants: int = 1, agents: int = 8, *, load: bool = True, rates: bool = False) -> AsyncIterator[Stand]:
    """Tenants t0…, each with agents a0… and an operator `ops` in projects p1 and p2. Stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="cordon-bench-"))
    home = Home(folder / "home")
    home.create()
    if not rates:  # what is measured is what it can, not what it may
        write_private(home.config, home.config.read_text() + "rates = false\n")
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(supervisor.stop, home)
        await asyncio.to_thread(supervisor.start, home, detach=True, ready_timeout_s=UP_S)
        stand = Stand(home)
        stand.control = await stack.enter_async_context(Control(home))
        stand.agents["core/bench"] = _bench_user(home)
        await _populate(stand, tenants, agents)
        await _start_responder(stand, stack)
        await _raw_stream(stand)
        if load:
            stand._load = await child(stack, "tests.bench.load", home.url)
        yield stand


async def child(stack: AsyncExitStack, module: str, *args: str) -> asyncio.subprocess.Process:
    """A module of the benches as a process of its own, ended with `stack`."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, *args, stdin=pipe, stdout=pipe, limit=1 << 24)

    async def end() -> None:
        if process.returncode is None:
            process.terminate()
        await process.wait()

    stack.push_async_callback(end)
    return process


async def _start_responder(stand: Stand, stack: AsyncExitStack) -> None:
    creds = stand.creds("core/bench")
    responder = await child(stack, "tests.bench.responder", stand.home.url, creds, f"in.{ECHO_SHARD}.>")
    assert responder.stdout is not None
    assert await responder.stdout.readline() == b"ready\n"


async def _raw_stream(stand: Stand) -> None:
    """A plain stream on the same broker, every message synced: what one durable publish costs."""
    config = {"name": "BENCH", "subjects": ["bench.raw"], "storage": "file", "max_bytes": 1 << 30, "discard": "old"}
    creds = Path(stand.creds("core/bench"))
    async with connected(stand.home.url, creds) as nc:
        answer = await request(nc, "$JS.API.STREAM.CREATE.BENCH", msgspec.json.encode(config))
    assert b'"error"' not in answer, answer


# --- trust --------------------------------------------------------------------------------------------
def _bench_user(home: Home) -> Agent:
    core, signing = (Keypair((home.core_trust / f"{name}.nk").read_text().strip()) for name in ("account", "signing"))
    user, everything = keypair("user"), Permissions(pub=Subjects([">"]), sub=Subjects([">"]))
    jwt = claims.user_jwt(user.public, "bench", signing, core.public, int(time.time()), permissions=everything)
    path = home.core_creds("bench")
    write_private(path, creds_text(jwt, user))
    return Agent("core", "bench", str(path))


def _with_echo(jwt: str, tenant: Tenant, operator: Keypair, core: str) -> str:
    """The tenant's account with one import more, of the shape of `mem`, and the right of its agents to publish to it."""
    body = jwt.split(".")[1]
    account: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    account["nats"]["imports"].append(
        {
            "name": "echo",
            "subject": f"in.{ECHO_SHARD}.{tenant.account}.>",
            "local_subject": f"echo.{tenant.name}.>",
            "account": core,
            "type": "service",
            "share": True,
        }
    )
    for scope in account["nats"]["signing_keys"]:
        if scope["role"] == "agent":
            scope["template"]["pub"]["allow"].append(f"echo.{tenant.name}.*.*.{{{{subject()}}}}")
    return encode_jwt({k: account[k] for k in ("sub", "name", "nats")}, operator, int(time.time()))


async def _populate(stand: Stand, tenants: int, agents: int) -> None:
    """What `cordon tenant add`, `project add` and `agent add` do, with one signed registry for all."""
    home, trust = stand.home, Trust(stand.home, time.time)
    operator = Keypair(home.operator_signing_seed.read_text().strip())
    core = Keypair((home.core_trust / "account.nk").read_text().strip()).public
    made = [trust.make_tenant(f"t{i}") for i in range(tenants)]
    async with connected(home.url, home.sys_creds) as system:
        for tenant in made:
            jwt = _with_echo(trust.tenant_jwt(tenant), tenant, operator, core)
            answer = await system.request("$SYS.REQ.CLAIMS.UPDATE", jwt.encode(), timeout=10)
            assert b'"code":200' in answer.data, answer.data
    await stand.control._ask(AdmRegistry(jwt=trust.write_registry()))
    for tenant in made:
        account = tenant.account
        await stand.control._ask(AdmTenant(action="add", account=account, name=tenant.name, user_key=tenant.user_key))
        for project in PROJECTS:
            await stand.control._ask(AdmProject(action="add", account=account, name=project))
        names = [(f"a{i}", "agent", ()) for i in range(agents)]
        for name, role, see in (*names, ("ops", "operator", ("public", "internal", "restricted"))):
            await _add_agent(stand, trust, tenant, AgentRequest(tenant.name, name, role, PROJECTS, see))


async def _add_agent(stand: Stand, trust: Trust, tenant: Tenant, asked: AgentRequest) -> None:
    key, path = keypair("user"), stand.home.agent_creds(tenant.name, asked.name)
    write_private(path, creds_text(trust.agent_jwt(asked, key.public), key))
    await stand.control._ask(
        AdmAgent(action="add", account=tenant.account, name=asked.name, key=key.public, role=asked.role, projects=list(PROJECTS))
    )
    stand.agents[f"{tenant.name}/{asked.name}"] = Agent(tenant.name, asked.name, str(path))
