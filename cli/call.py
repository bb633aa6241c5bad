"""One invocation: its global options, and what they resolve to (home, credential, address, project).

Invariant, the order of precedence: credential = --as > CORDON_AS > CORDON_CREDS > `cordon use`; address = CORDON_URL > the
home's; project = --project > CORDON_PROJECT > `cordon use` > the credential's only one. An explicit choice is never
replaced: if it is wrong, the command ends.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from .exits import Failure, usage

if TYPE_CHECKING:
    from broker_config.control import Control
    from broker_config.home import Home
    from bus import Desk, MemoryBus
    from bus.identity import Credential

R = TypeVar("R")
NOT_UP: Final = "Run `cordon up --detach` first."


@dataclass(frozen=True)
class Call:
    """The global options of one invocation; empty = not given. `env` is the process's environment."""

    env: Mapping[str, str]
    principal: str = ""
    project: str = ""
    home_path: str = ""
    json: bool = False

    # --- home -------------------------------------------------------------------------------------
    @property
    def home(self) -> Home:
        """--home > CORDON_HOME > ./.cordon; it may not be there yet."""
        from broker_config.home import DEFAULT_HOME, Home

        return Home(self.home_path or self.env.get("CORDON_HOME") or DEFAULT_HOME)

    def existing_home(self) -> Home:
        """The home; exit 2 if it was never started."""
        home = self.home
        if not home.exists:
            raise usage(
                f"There is no Cordon home at {home.path}.",
                reason="home_missing",
                advice="Make one with `cordon quickstart` (or `cordon up`), or say where it is with --home.",
            )
        return home

    def chosen(self) -> str:
        """The options that were given, for a command line that goes on from here."""
        import shlex

        given = {"--as": self.principal, "--home": self.home_path}
        return "".join(f" {option} {shlex.quote(value)}" for option, value in given.items() if value)

    # --- who --------------------------------------------------------------------------------------
    def credentials(self) -> Path:
        """The .creds file to act with; exit 2 if none is chosen or it isn't there."""
        if self.principal:
            return self._agent_file(self.principal, "--as")
        if self.env.get("CORDON_AS"):
            return self._agent_file(self.env["CORDON_AS"], "CORDON_AS")
        if self.env.get("CORDON_CREDS"):
            return Path(self.env["CORDON_CREDS"]).expanduser()
        used = self.existing_home().read_current().principal
        if not used:
            raise usage(
                "Nobody to act as was named.",
                reason="principal_missing",
                advice="Give --as TENANT/AGENT, or choose one with `cordon use TENANT/AGENT`.",
            )
        return self._agent_file(used, "cordon use")

    def _agent_file(self, principal: str, said_by: str) -> Path:
        tenant, agent = parse_principal(principal, said_by)
        home = self.existing_home()
        tenants = sorted(p.name for p in home.creds.glob("[!_.]*") if p.is_dir())
        if tenant not in tenants:
            raise _unknown("tenant", tenant, tenants, f"cordon tenant add {tenant}")
        path = home.agent_creds(tenant, agent)
        if not path.exists():
            agents = sorted(p.stem for p in path.parent.glob("*.creds"))
            raise _unknown("agent", agent, agents, f"cordon agent add {tenant} {agent} --project P")
        return path

    def credential(self) -> Credential:
        """The chosen credential, read and checked."""
        from bus.identity import parse_creds

        path = self.credentials()
        try:
            return parse_creds(path.read_text())
        except (OSError, ValueError) as e:
            why = e.strerror if isinstance(e, OSError) and e.strerror else "not a text file"
            raise usage(
                f"The credentials {path} can't be read: {why}.", reason="creds_unreadable", advice="Check the path and its owner."
            ) from None

    # --- where ------------------------------------------------------------------------------------
    def url(self) -> str:
        """CORDON_URL, else the address of the running home; exit 6 if it isn't up."""
        if self.env.get("CORDON_URL"):
            return self.env["CORDON_URL"]
        from broker_config.supervisor import read_status

        home = self.existing_home()
        if home.settings().servers:
            return home.url
        status = read_status(home)
        if status is None:
            raise not_up(home)
        return status.url

    def ca_file(self) -> str | None:
        """PEM of the authority of the servers' certificates: CORDON_CA, else the home's, if its servers are elsewhere."""
        named = self.env.get("CORDON_CA") or None
        if self.env.get("CORDON_URL"):
            return named
        home = self.existing_home()
        return (named or home.ca_file) if home.settings().servers else None

    def project_for(self, credential: Credential) -> str:
        """The project of an agent's call. Exit 2 with the list if none is chosen; the client refuses a wrong explicit one."""
        explicit = self.project or self.env.get("CORDON_PROJECT", "")
        if explicit:
            return explicit
        used = self.home.read_current().project if self.home.exists else ""
        has = credential.projects
        if used in has:
            return used
        if len(has) == 1:
            return has[0]
        if not has:
            raise usage(
                f"{credential.name or 'This credential'} has no project.",
                reason="project_missing",
                advice="Add another agent that has one: `cordon agent add TENANT NAME --project P`.",
                field="project",
            )
        raise usage(
            f"{credential.name or 'This credential'} has {len(has)} projects: {', '.join(has)}.",
            reason="project_missing",
            advice="Choose one with --project, or with `cordon use`.",
            field="project",
        )

    # --- asking -----------------------------------------------------------------------------------
    def ask_bus(self, work: Callable[[MemoryBus], Awaitable[R]], *, any_project: bool = False) -> R:
        """Run `work` as the chosen agent. any_project: the call needs no project of its own."""

        import bus

        credential = self.credential()
        project = None if any_project else self.project_for(credential)
        url, ca = self.url(), self.ca_file()

        async def run() -> R:
            async with bus.connect(url, self.credentials(), project=project, name="cordon", ca_file=ca) as memory:
                return await work(memory)

        return self._asked(run, "an agent", "Give --as TENANT/AGENT; after `cordon quickstart` that is --as demo/writer.")

    def ask_desk(self, work: Callable[[Desk], Awaitable[R]]) -> R:
        """Run `work` as the chosen operator."""

        import bus

        credentials, url, ca = self.credentials(), self.url(), self.ca_file()

        async def run() -> R:
            async with bus.connect_operator(url, credentials, name="cordon", ca_file=ca) as desk:
                return await work(desk)

        return self._asked(run, "an operator", "Give --as TENANT/OPERATOR; after `cordon quickstart` that is --as demo/ops.")

    def _asked(self, run: Callable[[], Awaitable[R]], whose: str, advice: str) -> R:
        """Run it. What the broker says of a forbidden subject is told in words of this command line: the same no."""
        import anyio

        from bus import Denied

        from .exits import Exit, cause_of

        try:
            return anyio.run(run)
        except (Denied, BaseExceptionGroup) as e:
            denied = cause_of(e)
            if not isinstance(denied, Denied) or denied.reason != "permission_violation":
                raise
        who = self.credential()
        if verbs := who.verbs:
            raise Failure(
                Exit.NOT_PERMITTED,
                f"The credential of {who.tenant}/{who.name} is for {', '.join(verbs)} alone.",
                reason=denied.reason,
                advice="Act as another agent with --as, or delegate a helper that may: `cordon agent delegate … --verb VERB`.",
                error="denied",
            )
        raise Failure(
            Exit.NOT_PERMITTED,
            f"This is a command for {whose}; the role of {who.tenant}/{who.name} doesn't have it.",
            reason=denied.reason,
            advice=advice,
            error="denied",
        )

    def ask_control(self, work: Callable[[Control], Awaitable[R]]) -> R:
        """Run `work` on the control plane of the running home."""
        import anyio

        from broker_config.control import Control

        home = self.existing_home()
        self.url()

        async def run() -> R:
            async with Control(home) as control:
                return await work(control)

        return anyio.run(run)


def not_up(home: Home) -> Failure:
    """The home is there and isn't running."""
    from .exits import Exit

    return Failure(Exit.UNAVAILABLE, f"The home {home.path} is not up.", reason="not_up", advice=NOT_UP, retry_after_s=1.0)


def parse_principal(text: str, said_by: str) -> tuple[str, str]:
    """TENANT/AGENT; exit 2 if it is anything else. `said_by`: which option or variable it came from."""
    from bus.subjects import is_token

    tenant, slash, agent = text.partition("/")
    if not slash or not is_token(tenant) or not is_token(agent):
        raise usage(f"{said_by} {text!r} is not TENANT/AGENT.", reason="bad_name", advice="Write it as acme/writer.", field="as")
    return tenant, agent


def environment() -> Mapping[str, str]:
    return os.environ


def _unknown(noun: str, name: str, known: list[str], command: str) -> Failure:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Add it with `{command}`."
    return usage(f"There is no {noun} {name!r} in this home.", reason=f"{noun}_unknown", advice=hint, field="as")
