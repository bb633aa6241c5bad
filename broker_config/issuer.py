"""Signs the credentials of delegated agents, and nothing else: it holds the delegation keys of each tenant and no other seed.

It trusts nobody for a child's width. The parent's JWT must be signed by a key of the registry, which the operator signed; the
wish by the parent's own key, a moment ago; and the child's grant follows from these two alone (bus.delegation). So a gatekeeper
in other hands gets no credential that its holder didn't ask for, and what the issuer signs admits nobody before it is in the
ledger. It keeps no state: a retry gets the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bus.delegation import JOINT, Grant, TooWide, child_role, grant_of, is_signed, narrowed, tags_of
from bus.errors import ConfigError, CordonError
from bus.frames import Sign, Signed
from bus.identity import Keypair, RegistryEntry, UserNats, Verified, is_kind, verify_jwt, verify_registry
from bus.subjects import is_token

from . import claims
from .home import Home

FRESH_S: Final = 300.0  # how far the clock of who asks may be from ours, its request's way here included
SKEW_S: Final = 60  # between the gatekeeper's clock and ours


class NoKeys(Exception):
    """What the issuer itself lacks: the path under the home of a file that is missing, or isn't what it should be."""


class Issuer:
    """`clock` gives unix seconds. `fresh_s`: how old, or how far in the future, a request may be."""

    def __init__(self, home: Home, clock: Callable[[], float], fresh_s: float = FRESH_S) -> None:
        self.home = home
        self._clock, self._fresh_s = clock, fresh_s
        self._registry: dict[str, RegistryEntry] = {}
        self._read_at = (0, 0, 0)  # inode, time of change and size of the registry that was read

    def answer(self, request: Sign) -> Signed:
        """The child's JWT, or why not."""
        now = self._clock()
        try:
            if abs(now - request.wish.at) > self._fresh_s:
                return Signed(request_id=request.request_id, reason="stale")
            parent, grant = self._parent(request, now)
            return Signed(request_id=request.request_id, jwt=self._sign(request, parent, grant, now))
        except TooWide as e:
            return Signed(request_id=request.request_id, reason="too_wide", field=e.dimension)
        except NoKeys as e:
            return Signed(request_id=request.request_id, reason="no_keys", field=str(e))
        except (CordonError, OSError, ValueError):
            return Signed(request_id=request.request_id, reason="unproven")

    # --- who asks ---------------------------------------------------------------------------------
    def _parent(self, request: Sign, now: float) -> tuple[Verified, Grant]:
        """The parent's claims and grant. ConfigError unless they count now and their holder signed the wish."""
        parent = verify_jwt(request.parent)
        nats = parent.body("user", UserNats)
        entry = self._entry(parent.issuer)
        if entry is None or entry.tenant != request.account or nats.issuer_account != request.account:
            raise ConfigError("The parent's credential is not of this tenant.", reason="issuer_unknown")
        if not is_kind(parent.subject, "user") or not is_signed(request.wish, parent.subject):
            raise ConfigError("The wish is not signed by its parent.", reason="proof_invalid")
        if parent.expires_at and parent.expires_at <= now:
            raise ConfigError("The parent's credential is over.", reason="credential_expired")
        return parent, grant_of(entry, nats.tags, parent.expires_at)

    def _entry(self, key: str) -> RegistryEntry | None:
        """What the registry says of a signing key: as it is now, for tenants come and go."""
        try:
            stat = self.home.registry.stat()
            version = stat.st_ino, stat.st_mtime_ns, stat.st_size  # times are coarse; a file that replaces it is another one
            if version != self._read_at:
                self._registry = verify_registry(self.home.registry.read_text(), self.home.operator_jwt.read_text())
                self._read_at = version
        except (ConfigError, OSError, ValueError):
            raise NoKeys(_under(self.home, self.home.registry)) from None
        return self._registry.get(key)

    def _key(self, tenant: str, role: str) -> Keypair:
        path = self.home.issuer_trust(tenant) / f"role-{role}.nk"
        try:
            return Keypair(path.read_text().strip())
        except (ConfigError, OSError, ValueError):
            raise NoKeys(_under(self.home, path)) from None

    # --- what it gets -----------------------------------------------------------------------------
    def _sign(self, request: Sign, parent: Verified, asking: Grant, now: float) -> str:
        wish, tenant = request.wish, _tenant_name(parent)
        role = child_role(asking.role, wish.role)
        key = self._key(tenant, role)
        most = self._entry(key.public)
        if most is None or most.tenant != request.account or not most.delegated:
            raise NoKeys(_under(self.home, self.home.issuer_trust(tenant)))  # others than the registry lists
        if request.name != f"{parent.name}{JOINT}{wish.name}" or not is_kind(wish.key, "user"):
            raise ConfigError("Another child than was wished for.", reason="proof_invalid")
        grant = narrowed(asking, most, wish, now)
        latest = min(grant.expires_at + SKEW_S, asking.expires_at or grant.expires_at + SKEW_S)
        if not now < request.expires_at <= latest:
            raise TooWide("ttl")
        return claims.user_jwt(
            wish.key, request.name, key, request.account, int(now),
            tags=tags_of(grant, tenant), expires_at=request.expires_at,
        )  # fmt: skip


def _under(home: Home, path: Path) -> str:
    return str(path.relative_to(home.path))


def _tenant_name(parent: Verified) -> str:
    """The tenant that the parent's JWT names: only where to look for keys, which must then be of the parent's account."""
    tags = [tag.removeprefix("tenant:") for tag in parent.body("user", UserNats).tags if tag.startswith("tenant:")]
    if len(tags) != 1 or not is_token(tags[0]):
        raise ConfigError("The parent's credential names no tenant.", reason="tenant_missing")
    return tags[0]


decode_request: Final = msgspec.json.Decoder(Sign).decode
