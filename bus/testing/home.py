"""A real home for tests: supervisor, nats-server and gatekeeper as processes, in a temporary folder that goes with them.

    with bus.testing.home() as home:
        async with home.agent("alice") as alice:
            print(await alice.write("The staging database uses rotating keys"))

Its agents are those of `World`, over nats-server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from ..client import MemoryBus, connect
from ..errors import Unavailable
from ..operator import Desk, connect_operator
from ..transport import Timing
from .extra import require_gate
from .rights import TENANT, Names, Projects, Rights, agent_rights, operator_rights, settings_of

if TYPE_CHECKING:
    from broker_config.home import Home

READY_S: Final = 30.0


class EmbeddedHome:
    """One tenant in a home that is up. `agent` and `operator` take what those of `World` take; their `async with` connects."""

    def __init__(self, home: Home, portal: BlockingPortal, projects: Mapping[str, Mapping[str, Any]]) -> None:
        self.url = home.url
        self.projects = projects
        self._home, self._portal = home, portal
        self._names = Names(self._issue)

    def agent(
        self, name: str, *, project: str = "", timing: Timing | None = None, **rights: Unpack[Rights]
    ) -> AbstractAsyncContextManager[MemoryBus]:
        default, whole = agent_rights(project, self.projects, rights)
        return connect(self.url, self._names.get(name, whole), project=default, timing=timing)

    def operator(
        self, name: str = "ops", *, timing: Timing | None = None, **rights: Unpack[Rights]
    ) -> AbstractAsyncContextManager[Desk]:
        return connect_operator(self.url, self._names.get(name, operator_rights(self.projects, rights)), timing=timing)

    def creds(self, name: str, *, project: str = "", **rights: Unpack[Rights]) -> str:
        """Path of an agent's `.creds` file: for the CORDON_CREDS of a process under test, beside `url` as its CORDON_URL."""
        return self._names.get(name, agent_rights(project, self.projects, rights)[1])

    def _issue(self, name: str, rights: Rights) -> str:
        return self._portal.call(partial(_issue, self._home, name, rights))


async def _issue(home: Home, name: str, rights: Rights) -> str:
    from broker_config.control import Control

    async with Control(home) as control:
        return str((await control.agent_add(TENANT, name, **rights))["creds"])


async def _populate(home: Home, projects: Mapping[str, Mapping[str, Any]]) -> None:
    from broker_config.control import Control

    async with Control(home) as control:
        await control.tenant_add(TENANT)
        for name, settings in projects.items():
            await control.project_add(TENANT, name, settings)


def require_home() -> None:
    """ConfigError (`gate_missing`, `server_missing`, `server_too_old`) if no home can be started here."""
    require_gate()
    from broker_config.server import find_server

    find_server()


@contextmanager
def home(projects: Projects = ("p1",)) -> Iterator[EmbeddedHome]:
    """A home that is up; stopped and removed at the end. It takes some seconds to start: one for a whole test session is enough.

    Raises what `require_home` raises, and Unavailable.
    """
    require_home()
    from broker_config import supervisor
    from broker_config.home import Home

    with tempfile.TemporaryDirectory(prefix="cordon-home-") as folder, start_blocking_portal() as portal:
        made = Home(Path(folder) / "home")
        try:
            status = supervisor.start(made, detach=True, ready_timeout_s=READY_S)
            if status.error is not None:
                raise Unavailable(status.error.message, reason=status.error.reason, advice=status.error.advice)
            settings = settings_of(projects)
            portal.call(_populate, made, settings)
            yield EmbeddedHome(made, portal, settings)
        finally:
            supervisor.stop(made)
