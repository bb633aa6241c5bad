"""A home's files as a check looks at them: read when asked for, each once, and believed only after their signature.

What the broker holds of an account (broker/jwt) counts before what the trust folder says.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bus.identity import Keypair, Verified, verify_jwt

from . import server_file
from .home import Home
from .roles import DELEGATED, ROLES, Role
from .server import render


class Account(NamedTuple):
    """An account as the broker knows it. `nats`: its claims."""

    name: str
    key: str
    claims: Verified
    nats: dict[str, Any]


class Examined:
    """A home's files, each read once when a check asks for it. `now`: unix seconds."""

    def __init__(self, home: Home, now: float, shard: int = 0) -> None:
        self.home, self.now, self.shard = home, now, shard

    @cached_property
    def server(self) -> server_file.Block:
        """What the broker was started with; before the first start what it would be."""
        path = self.home.server_conf
        return server_file.read(path) if path.exists() else server_file.parse(render(self.home))

    @cached_property
    def operator(self) -> Verified:
        return verify_jwt(self.home.operator_jwt.read_text())

    @cached_property
    def core(self) -> Account:
        return self._account("CORE", self.home.core_trust)

    @cached_property
    def system(self) -> Account:
        return self._account("SYS", self.home.sys_trust)

    @cached_property
    def tenants(self) -> list[Account]:
        """Those that the broker was given."""
        folders = sorted(path.parent for path in self.home.tenants.glob("*/account.nk"))
        return [self._account(f.name, f) for f in folders if self._held(seed(f, "account").public).exists()]

    def role_keys(self, tenant: str) -> dict[str, Role]:
        """Signing key → role, the issuer's keys among them."""
        folders = ((self.home.tenant_trust(tenant), ROLES), (self.home.issuer_trust(tenant), DELEGATED))
        return {seed(folder, f"role-{role.name}").public: role for folder, roles in folders for role in roles.values()}

    def _account(self, name: str, folder: Path) -> Account:
        key = seed(folder, "account").public
        held = self._held(key)
        claims = verify_jwt((held if held.exists() else folder / "account.jwt").read_text())
        return Account(name, key, claims, msgspec.json.decode(claims.nats))

    def _held(self, key: str) -> Path:
        return self.home.broker_jwt / f"{key}.jwt"

    def expired(self, claims: Verified) -> bool:
        return bool(claims.expires_at) and claims.expires_at <= self.now


def seed(folder: Path, name: str) -> Keypair:
    """The key pair NAME.nk in `folder`."""
    return Keypair((folder / f"{name}.nk").read_text().strip())


def credential(path: Path) -> tuple[Verified, dict[str, Any]]:
    """The claims of a .creds file and their typed part, whatever is wrong with its rights."""
    jwt = next((line for line in path.read_text().splitlines() if line.count(".") == 2 and not line.startswith("-")), "")
    claims = verify_jwt(jwt)
    return claims, msgspec.json.decode(claims.nats)
