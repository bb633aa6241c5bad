"""Where the gatekeeper finds and keeps its files under the home folder (docs/wire.md, 'Home folder'). It reads no seed but
the users' hash keys.
"""

from __future__ import annotations

import json
from pathlib import Path

from bus.identity import USER_KEY_BYTES, derived_user_key


def _key(path: Path) -> bytes:
    """ValueError for one that was cut short: ids would be hashed without a secret."""
    key = bytes.fromhex(path.read_text().strip())
    if len(key) != USER_KEY_BYTES:
        raise ValueError(f"{path} has {len(key)} bytes, not {USER_KEY_BYTES}")
    return key


class Paths:
    def __init__(self, home: Path, shard: int = 0, creds: Path | None = None) -> None:
        self.home = home
        self.shard = shard
        self.folder = home / "shards" / str(shard)
        self.owner_lock = self.folder / "owner.lock"
        self.lineage = self.folder / "lineage.duckdb"
        self.lineage_doubted = self.folder / "lineage.doubted"  # made where the store is found damaged while it is in use
        self.registry = home / "trust" / "registry.jwt"
        self.operator_jwt = home / "trust" / "operator.jwt"
        self.user_ids_key = home / "trust" / "user-ids.key"  # master key, where tenants' folders don't reach every gatekeeper
        self.creds = creds or home / "creds" / "_core" / "gatekeeper.creds"
        self.admin_creds = home / "creds" / "_core" / "admin.creds"
        self.run = home / "run"
        self.snapshots = home / "snapshots"
        self.status = self.run / "status.json"
        self.broker_stuck = self.run / "broker.stuck"  # made where the broker stores nothing: the supervisor starts it again
        self.ledger_at_end = self.run / "ledger.at-end"  # made where it is full to the last hundredth: the supervisor lends some
        self.ready = self.run / "gatekeeper.ready"
        self.error = self.run / "gatekeeper.error"

    def catalog(self, account: str) -> Path:
        return self.folder / "tenants" / account / "catalog.sqlite"

    def user_key(self, tenant: str, account: str) -> bytes:
        """The key that hashes the ids of a tenant's end users. OSError or ValueError where there is none, or no whole one."""
        own = self.home / "trust" / "tenants" / tenant / "user-ids.key"
        if own.exists() or not self.user_ids_key.exists():
            return _key(own)
        return derived_user_key(_key(self.user_ids_key), account)

    def can_give(self, tenant: str, account: str, key: bytes) -> bool:
        """Whether `user_key` will give `key` after a restart, and to each gatekeeper that has the same master key."""
        try:
            return self.user_key(tenant, account) == key
        except (OSError, ValueError):
            return False

    def deleted(self, tenant: str) -> Path:
        """Whether a tenant was deleted, so that a replay passes it by. The home writes it after the ledger says so."""
        return self.home / "trust" / "tenants" / tenant / "deleted.json"

    def deleted_accounts(self) -> set[str]:
        """Accounts of all tenants of which the home says that they were deleted."""
        return {str(json.loads(note.read_bytes())["account"]) for note in self.deleted("*").parent.parent.glob("*/deleted.json")}

    def aside(self, stamp: str) -> Path:
        return self.run / f"aside-{stamp}"
