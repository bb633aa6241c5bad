"""The twin as a test sees it: a world with a clock, a fault plan, agents and an operator."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack, overload

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from .. import sync
from ..client import MemoryBus
from ..errors import Closed
from ..identity import Credential
from ..operator import Desk
from ..session import Session
from ..transport import Timing
from .clock import ManualClock
from .extra import require_gate
from .faults import FaultPlan
from .rights import Names, Projects, Rights, agent_rights, operator_rights, settings_of
from .transport import MemoryTransport, Permit

if TYPE_CHECKING:
    from .gatekeeper import Gatekeeper

STOP_TIMEOUT_S: Final = 10.0


class World:
    """One tenant with its agents. `bus.testing.bus` makes it; use it in a `with` or an `async with`."""

    def __init__(self, projects: Projects, clock: ManualClock, faults: FaultPlan) -> None:
        self.clock, self.faults = clock, faults
        self.projects = settings_of(projects)
        self._names = Names(self._issue)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._gatekeeper: Gatekeeper

    # --- clients ----------------------------------------------------------------------------------
    def agent(self, name: str, *, project: str = "", timing: Timing | None = None, **rights: Unpack[Rights]) -> MemoryBus:
        """A client of the agent `name`, issued at the first call; `project` is its default one, the world's first if not given.

        The same name with the same rights is the same agent on another connection; with others a Conflict. Raises Rejected for
        an unknown project or role.
        """
        default, whole = agent_rights(project, self.projects, rights)
        return MemoryBus(self._session(name, default, timing, whole))

    def connect(self, creds: str, *, project: str = "", timing: Timing | None = None) -> MemoryBus:
        """A client of a credential that an agent of this world delegated (`child.creds`). Raises ConfigError."""
        credential, permit = self._running().call(self._gatekeeper.admitted, creds)
        transport = MemoryTransport(self._gatekeeper.broker, credential, permit, self.faults)
        return MemoryBus(Session(transport, credential, project=project, timing=timing))

    def operator(self, name: str = "ops", *, timing: Timing | None = None, **rights: Unpack[Rights]) -> Desk:
        """The desk of an operator of all projects and classifications, or of those given."""
        return Desk(self._session(name, "", timing, operator_rights(self.projects, rights)))

    @overload
    def blocking(self, client: MemoryBus) -> sync.MemoryBus: ...
    @overload
    def blocking(self, client: Desk) -> sync.Desk: ...
    def blocking(self, client: MemoryBus | Desk) -> sync.MemoryBus | sync.Desk:
        """The same client without `await`, as bus.sync gives it."""
        if isinstance(client, MemoryBus):
            return sync.MemoryBus(self._running(), client)
        return sync.Desk(self._running(), client)

    def _session(self, name: str, project: str, timing: Timing | None, rights: Rights) -> Session:
        credential, permit = self._names.get(name, rights)
        transport = MemoryTransport(self._gatekeeper.broker, credential, permit, self.faults)
        return Session(transport, credential, project=project, timing=timing)

    def _issue(self, name: str, rights: Rights) -> tuple[Credential, Permit]:
        return self._running().call(self._gatekeeper.issue, name, rights)

    # --- life -------------------------------------------------------------------------------------
    def _running(self) -> BlockingPortal:
        if self._portal is None:
            raise Closed("The world is not running.", reason="closed", advice="Use it inside its `with`.")
        return self._portal

    def __enter__(self) -> Self:
        require_gate()
        from .gatekeeper import Gatekeeper

        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cordon-twin-"))
            portal = stack.enter_context(start_blocking_portal())
            gatekeeper = self._gatekeeper = portal.call(Gatekeeper, Path(folder), self.clock)
            ended, _ = portal.start_task(gatekeeper.run)
            stack.callback(ended.result, STOP_TIMEOUT_S)
            stack.callback(portal.call, gatekeeper.stop)
            for name, settings in self.projects.items():
                portal.call(gatekeeper.add_project, name, settings)
            self._portal, self._stack = portal, stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._portal = None
        self._stack.close()

    async def __aenter__(self) -> Self:
        return await anyio.to_thread.run_sync(self.__enter__)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.__exit__, kind, error, trace)


def bus(*, projects: Projects = ("p1",), clock: ManualClock | None = None, faults: FaultPlan | None = None) -> World:
    """A bus in memory. Its first start in a process takes about two seconds (torch), a later one a tenth of a second.

        async with bus.testing.bus(clock=ManualClock("2026-01-31T12:00:00Z")) as world:
            alice, desk = world.agent("alice"), world.operator()

    projects: names, or names with settings ({"p2": {"flow_from": ["p1"], "mode": "shadow"}}).
    Raises ConfigError (`gate_missing`).
    """
    return World(projects, clock or ManualClock(), faults or FaultPlan())
