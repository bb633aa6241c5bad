"""The home's side of projects: shown, set, shared, archived, deleted; members added and removed.

Invariant: a membership that ends ends at the gatekeeper first (nothing is read or written any more) and then at the broker (the
credential that could follow the project's feed is void). Every call can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from bus.errors import ConfigError, Conflict, Denied, Rejected
from bus.frames import AdmProject
from bus.identity import parse_creds
from bus.limits import NAME_CHARS_MAX

from .trust import nearest

if TYPE_CHECKING:
    from .control import Control

Move = Literal["share", "unshare", "archive", "restore", "delete"]


class Projects:
    """`control.projects`. `by`: who does it, an identity token; `message`: why. Both stay in the record."""

    def __init__(self, control: Control) -> None:
        self.control = control

    async def show(self, tenant: str, name: str) -> dict[str, Any]:
        """Its members, state and settings, and who changed it and why. `Rejected` with the nearest name."""
        owner = self.control.trust.tenant(tenant)
        try:
            return await self.control._ask(AdmProject(action="show", account=owner.account, name=name))
        except Denied:  # a deleted one is shown, an unknown one has its nearest named
            await self.control._check_projects(owner, [name])
            raise

    async def set(
        self, tenant: str, name: str, settings: Mapping[str, Any], *, display: str | None = None, message: str = "", by: str = ""
    ) -> dict[str, Any]:
        """Change what is given of its settings; the rest stays. Live, as all below."""
        owner = self.control.trust.tenant(tenant)
        flows = [other for line in ("flow_from", "flow_to") for other in settings.get(line) or ()]
        await self.control._check_projects(owner, [name, *flows])
        frame = AdmProject(action="set", account=owner.account, name=name, settings=dict(settings), display=display)
        return await self.control._ask(msgspec.structs.replace(frame, message=message, by=by))

    async def move(
        self, tenant: str, name: str, action: Move, *, others: Sequence[str] = (), message: str, by: str = ""
    ) -> dict[str, Any]:
        """Share with `others`, or not any more; archive, restore, delete. Repeating it changes nothing."""
        owner = self.control.trust.tenant(tenant)
        await self.control._check_projects(owner, [name, *others])
        frame = AdmProject(action=action, account=owner.account, name=name, others=list(others), message=message, by=by)
        return await self.control._ask(frame)

    async def member_add(self, tenant: str, name: str, agent: str, *, message: str, by: str = "") -> dict[str, Any]:
        """Let an agent be a member. `carried`: whether its credential has the project; else the next `agent_rotate` gives it."""
        owner = self.control.trust.tenant(tenant)
        await self.control._check_projects(owner, [name])
        await self.control.agent_show(tenant, agent)
        frame = AdmProject(action="join", account=owner.account, name=name, agent=agent, message=message, by=by)
        done = await self.control._ask(frame)
        return {**done, "agent": agent, "carried": name in carried(self.control.home.agent_creds(tenant, agent))}

    async def member_remove(self, tenant: str, name: str, agent: str, *, message: str, by: str = "") -> dict[str, Any]:
        """End a membership: the gatekeeper refuses the agent there at once, and its credential is replaced by one without the
        project, so that it follows no feed of it. `creds`: the new file; empty if its own wasn't there to be replaced, or is one
        that it was delegated: then its keys are cut. `Rejected` (not_a_member) for one that never was: a slip must not cut an
        agent that has no part in this.
        """
        owner = self.control.trust.tenant(tenant)
        await self.control._check_projects(owner, [name])
        if name not in (await self.control.agent_show(tenant, agent))["projects"]:
            _check_left(agent, await self.show(tenant, name))
        frame = AdmProject(action="leave", account=owner.account, name=name, agent=agent, message=message, by=by)
        done = await self.control._ask(frame)
        shown = await self.control.agent_show(tenant, agent)
        creds = ""
        try:
            creds = str((await self.control.agent_rotate(tenant, agent))["creds"])
        except Rejected as e:
            if e.reason not in ("creds_missing", "creds_foreign", "delegated_not_rotated"):
                raise
            await self.control._cut_keys(owner, shown)
        return {**done, "agent": agent, "creds": creds}


def _check_left(agent: str, shown: Mapping[str, Any]) -> None:
    """Passes for who left this project: its credential is replaced once more, in case the first call was interrupted."""
    if not any(f"member {agent} removed" in change["what"] for change in shown["changes"]):
        tenant, name = shown["tenant"], shown["name"]
        raise Rejected(
            f"Agent {agent} is no member of {name}: nothing was changed.",
            reason="not_a_member",
            field="agent",
            advice=f"See `cordon project show {tenant} {name}`; `cordon agent rotate {tenant} {agent}` replaces a credential.",
        )


def deleted(tenant: str, name: str) -> Conflict:
    return Conflict(
        f"Project {name} of {tenant} was deleted. Its name is not used again.",
        reason="project_deleted",
        field="projects",
        advice=f"See when and why: `cordon project show {tenant} {name}`.",
    )


def no_project(tenant: str, name: str, known: list[str]) -> Rejected:
    shown = name if len(name) <= NAME_CHARS_MAX else name[:NAME_CHARS_MAX] + "…"
    return Rejected(
        f"Tenant {tenant} has no project {shown!r}.",
        reason="project_unknown",
        field="projects",
        advice=nearest(shown, known, "project"),
    )


def carried(creds: Path) -> tuple[str, ...]:
    """The projects of a credential file; none if it is not there."""
    try:
        return parse_creds(creds.read_text()).projects
    except (OSError, ConfigError):
        return ()
