"""Who there is in every simulation: a home with its trust tree, tenants, projects, and credentials. Made once for a process."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from broker_config.home import Home
from broker_config.trust import AgentRequest, Trust
from bus.frames import CLASSIFICATIONS, AdmAgent
from bus.identity import UserNats, keypair, verify_jwt

from .clock import CLOCK

TENANTS: Final = ("acme", "bolt", "cove")
PROJECTS: Final = ("p1", "p2")
ROLES: Final = {
    "ann": ("agent", ("p1",)), "bob": ("agent", ("p1", "p2")), "cid": ("agent", ("p2",)), "dee": ("agent", ("p1", "p2")),
    "feeder": ("ingest", ("p1", "p2")), "ops": ("operator", PROJECTS),
}  # fmt: skip


@dataclass(frozen=True)
class Member:
    """One credential, and what the broker says of whoever presents it (`info`)."""

    tenant: str
    account: str
    name: str
    role: str
    projects: tuple[str, ...]
    key: str
    info: str
    add: AdmAgent

    @property
    def who(self) -> tuple[str, str]:
        """(tenant, name): a rotated one is the same agent."""
        return self.tenant, self.name


@dataclass(frozen=True)
class Account:
    """A tenant as the control plane adds it."""

    name: str
    key: str
    user_key: str


class Cast:
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="cordon-sim-cast-")
        home = Home(Path(self.folder.name))
        home.create(1)
        trust = Trust(home, lambda: CLOCK.wall_s)
        trust.create()
        made = {name: trust.make_tenant(name) for name in TENANTS}
        trust.write_registry()
        self._trust = trust
        self.path = home.path
        self.accounts = {name: Account(name, t.account, t.user_key) for name, t in made.items()}
        self.members = [_member(trust, tenant, name) for tenant in TENANTS for name in ROLES]

    def of(self, tenant: str) -> list[Member]:
        return [m for m in self.members if m.tenant == tenant]

    def rotated(self, m: Member) -> Member:
        """The same agent with another key; `add` makes it known."""
        fresh = _member(self._trust, m.tenant, m.name)
        return replace(fresh, add=AdmAgent(action="rotate", account=m.account, name=m.name, key=fresh.key))


def _member(trust: Trust, tenant: str, name: str) -> Member:
    role, projects = ROLES[name]
    person = "judge" if role == "operator" else ""
    see = CLASSIFICATIONS[:2] if role == "ingest" else CLASSIFICATIONS
    request = AgentRequest(tenant=tenant, name=name, role=role, projects=projects, see=see, tools=(), person=person, user="")
    key = keypair("user")
    jwt = trust.agent_jwt(request, key.public)
    claims = verify_jwt(jwt)
    user = claims.body("user", UserNats)
    said = {
        "acc": user.issuer_account, "user": key.public, "kind": "Client", "tags": list(user.tags), "issuer_key": claims.issuer,
        "jwt": jwt,
    }  # fmt: skip
    account = user.issuer_account
    add = AdmAgent(action="add", account=account, name=name, key=key.public, role=role, projects=list(projects), person=person)
    return Member(tenant, account, name, role, projects, key.public, json.dumps(said), add)
