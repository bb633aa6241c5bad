"""Projects in the control plane: added, set, shared, archived, deleted, joined, left; each an event with who did it and why.

Invariants: a name that was used is never given again; what a change is made of is read when its turn has come, so two at once
don't undo each other; a change that changes nothing is no event.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bus.frames import AdmProject, Done
from bus.limits import DISPLAY_CHARS_MAX, MESSAGE_CHARS_MAX, NAME_CHARS_MAX, PAGE_ITEMS_MAX
from bus.subjects import is_token
from gate.config import PROJECTS_MAX, SHARES_MAX, ProjectSettings, encode_settings
from gate.ledger import events as E
from gate.pages import filled, following
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.state.principals import Agent
from gate.state.projects import Project
from gate.state.tenant import Tenant
from gate.writing.redact import redact
from gate.writing.sequencer import Stored, noted
from gate.writing.validate import text_ok

if TYPE_CHECKING:
    from gate.admin import Admin

ADMIN: Final = "admin"
_BY: Final = re.compile(r"[a-z0-9_-]{0,64}\Z")
_WITH_REASON: Final = frozenset({"share", "unshare", "archive", "restore", "delete", "join", "leave"})
_NEXT: Final = {"archive": "archived", "restore": "active", "delete": "deleted"}


class Projects:
    def __init__(self, admin: Admin) -> None:
        self.admin = admin

    async def answer(self, t: Tenant, req: AdmProject) -> Done:
        """The answer to one request. Raises Refused."""
        if req.action == "list":
            start = max(0, req.cursor)
            rows = filled(listed(p) for _, p in sorted(t.projects.items())[start:])
            more = following(start, len(rows), len(t.projects))
            return Done(request_id=req.request_id, result={"tenant": t.name, "projects": rows, "next": more})
        if req.action == "show":
            if req.name not in t.projects:
                raise Refused("project_unknown", field="name", detail=nearest(t, req.name))
            return Done(request_id=req.request_id, result={"tenant": t.name, **shown(t, t.projects[req.name])})
        req = _checked(req)
        if req.action == "add":
            return await self._add(t, req)
        change = {"set": self._set, "join": self._join, "leave": self._leave}.get(req.action, self._move)
        await self._commit(t, req, lambda: change(t, self._open(t, req.name), req))
        return Done(request_id=req.request_id, result={"tenant": t.name, **shown(t, t.projects[req.name])}, position=t.position)

    def _open(self, t: Tenant, name: str) -> Project:
        project = t.projects.get(name)
        if project is None:
            raise Refused("project_unknown", field="name", detail=nearest(t, name))
        if project.state == "deleted":
            raise Refused("project_deleted", field="name")
        return project

    async def _commit(self, t: Tenant, req: AdmProject, make: Callable[[], E.ProjectChanged | None]) -> None:
        """The event that `make` gives when its turn has come, and of a change of an existing project the next policy number."""
        shard = self.admin.shard

        def stored() -> list[Stored]:
            known, event = req.name in t.projects, make()
            if event is None:
                return []
            change = noted(lambda body: msgspec.structs.replace(event, body=body), req.message, os.urandom(E.SALT_BYTES))
            policy = Stored(E.PolicyChanged(ms=event.ms, number=t.policy + 1, by=event.by))
            return [change, *([policy] if known and not event.joined and not event.left else [])]

        async def run() -> None:
            await shard.sequencer.commit(t, stored())

        await shard.operators.barrier(t, run)

    def _event(self, req: AdmProject, old: Project | None, **now: Any) -> E.ProjectChanged:
        """The project as it was, but for `now`."""
        was: dict[str, Any] = {}
        if old is not None:
            was = {"state": old.state, "settings": encode_settings(old.settings), "display": old.display}
            was["shared_with"] = list(old.shared_with)
        return E.ProjectChanged(ms=self.admin.shard.now_ms(), name=req.name, by=req.by or ADMIN, **{**was, **now})

    # --- what is changed --------------------------------------------------------------------------
    async def _add(self, t: Tenant, req: AdmProject) -> Done:
        if not is_token(req.name):
            raise Refused("bad_name", field="name")
        existed = False

        def make() -> E.ProjectChanged | None:
            nonlocal existed
            old = t.projects.get(req.name)
            if old is not None and old.state == "deleted":
                raise Refused("name_taken", field="name")
            if old is None and len(t.projects) >= PROJECTS_MAX:
                raise Refused("over_quota", field="projects", limit=PROJECTS_MAX)
            existed = old is not None and not req.settings and req.display is None
            return None if existed else self._event(req, old, **_settled(old, req))

        await self._commit(t, req, make)
        result = {"tenant": t.name, **shown(t, t.projects[req.name]), "existed": existed}
        return Done(request_id=req.request_id, result=result, position=t.position)

    def _set(self, t: Tenant, project: Project, req: AdmProject) -> E.ProjectChanged:
        return self._event(req, project, **_settled(project, req))

    def _move(self, t: Tenant, project: Project, req: AdmProject) -> E.ProjectChanged | None:
        """share, unshare, archive, restore, delete."""
        if req.action in _NEXT:
            gone: dict[str, Any] = {"shared_with": []} if req.action == "delete" else {}
            return self._event(req, project, state=_NEXT[req.action], **gone) if project.state != _NEXT[req.action] else None
        if not req.others or req.name in req.others:
            raise Refused("bad_field", field="others")
        known_projects(t, req.others, "others")
        kept = [x for x in project.shared_with if x not in req.others]
        now = [*kept, *dict.fromkeys(req.others)] if req.action == "share" else kept
        for other in req.others:
            lenders = sum(other in p.shared_with for p in t.projects.values() if p is not project)
            if req.action == "share" and max(len(now), lenders + 1) > SHARES_MAX:
                raise Refused("project_shared", field="others", limit=SHARES_MAX)
        return self._event(req, project, shared_with=now) if set(now) != set(project.shared_with) else None

    def _join(self, t: Tenant, project: Project, req: AdmProject) -> E.ProjectChanged | None:
        agent = _agent(t, req.agent)
        if agent.whole:
            raise Refused("agent_revoked", field="agent")
        return None if project.name in agent.projects else self._event(req, project, joined=[agent.id])

    def _leave(self, t: Tenant, project: Project, req: AdmProject) -> E.ProjectChanged | None:
        agent = _agent(t, req.agent)
        return self._event(req, project, left=[agent.id]) if project.name in agent.projects else None


def known_projects(t: Tenant, names: Iterable[str], field: str = "projects") -> None:
    """Refuses names of projects that are not there, or not any more."""
    for name in names:
        if name not in t.projects or t.projects[name].state == "deleted":
            raise Refused("project_unknown", field=field, detail=nearest(t, name))


def nearest(t: Tenant, name: str) -> dict[str, str]:
    known = sorted(n for n, p in t.projects.items() if p.state != "deleted")
    found = get_close_matches(name[:NAME_CHARS_MAX], known, n=1, cutoff=0.0)
    return {"nearest": found[0]} if found else {}


def listed(p: Project) -> dict[str, Any]:
    """A project as plain values, short."""
    return {
        "name": p.name,
        "display": p.display,
        "state": p.shown_state,
        "memories": p.rows,
        "settings": msgspec.to_builtins(p.settings),
        "shared_with": list(p.shared_with),
    }


def shown(t: Tenant, p: Project) -> dict[str, Any]:
    """The same with its members, and its latest changes: when, what, by whom, why."""
    members = sorted(a.name for a in t.agents.all if p.name in a.projects and not a.whole)
    return {
        **listed(p),
        "borrows": sorted(x.name for x in t.projects.values() if p.name in x.shared_with and x.state != "deleted"),
        "members": members[:PAGE_ITEMS_MAX],
        "members_total": len(members),
        "changes": [{"at": rfc3339(c.ms), "what": c.what, "by": c.by, "why": c.why} for c in p.changes],
    }


def _agent(t: Tenant, name: str) -> Agent:
    agent = t.agents.by_name.get(name)
    if agent is None:
        raise Refused("agent_unknown", field="agent")
    return agent


def _settled(old: Project | None, req: AdmProject) -> dict[str, Any]:
    """Settings and display name with what the request changes of them."""
    merged = {**(msgspec.to_builtins(old.settings) if old else {}), **req.settings}
    try:
        settings = msgspec.convert(merged, ProjectSettings)
    except (msgspec.ValidationError, ValueError):
        raise Refused("bad_field", field="settings") from None
    display = {} if req.display is None else {"display": req.display}
    return {"settings": encode_settings(settings), **display}


def _checked(req: AdmProject) -> AdmProject:
    """Its free text checked, and without secrets; a reason where one is needed."""
    if not _BY.match(req.by):
        raise Refused("bad_field", field="by")
    message = checked_message(req.message)
    if req.action in _WITH_REASON and not req.message.strip():
        raise Refused("message_missing", field="message")
    display = req.display or ""
    if len(display) > DISPLAY_CHARS_MAX:
        raise Refused("too_long", field="display", limit=DISPLAY_CHARS_MAX)
    text_ok(display, "display", 4 * DISPLAY_CHARS_MAX)
    return msgspec.structs.replace(req, message=message)


def checked_message(message: str) -> str:
    """A reason, checked, and without secrets."""
    if len(message) > MESSAGE_CHARS_MAX:
        raise Refused("too_long", field="message", limit=MESSAGE_CHARS_MAX)
    text_ok(message, "message", 4 * MESSAGE_CHARS_MAX)
    return redact(message).text
