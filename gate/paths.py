"""Where the gatekeeper finds and keeps its files under the home folder (docs/wire.md, 'Home folder'). It reads no seed but
the users' hash keys.
"""

from __future__ import annotations

import json
from pathlib import Path


class Paths:
    def __init__(self, home: Path, shard: int = 0) -> None:
        self.home = home
        self.shard = shard
        self.folder = home / "shards" / str(shard)
        self.owner_lock = self.folder / "owner.lock"
        self.lineage = self.folder / "lineage.duckdb"
        self.lineage_doubted = self.folder / "lineage.doubted"  # made where the store is found damaged while it is in use
        self.registry = home / "trust" / "registry.jwt"
        self.operator_jwt = home / "trust" / "operator.jwt"
        self.creds = home / "creds" / "_core" / "gatekeeper.creds"
        self.admin_creds = home / "creds" / "_core" / "admin.creds"
        self.run = home / "run"
        self.status = self.run / "status.json"
        self.ready = self.run / "gatekeeper.ready"
        self.error = self.run / "gatekeeper.error"

    def catalog(self, account: str) -> Path:
        return self.folder / "tenants" / account / "catalog.sqlite"

    def vector_files(self, account: str) -> Path:
        return self.folder / "tenants" / account / "vectors"

    def user_key(self, tenant: str) -> Path:
        return self.home / "trust" / "tenants" / tenant / "user-ids.key"

    def deleted(self, tenant: str) -> Path:
        """Whether a tenant was deleted, so that a replay passes it by. The home writes it after the ledger says so."""
        return self.home / "trust" / "tenants" / tenant / "deleted.json"

    def deleted_accounts(self) -> set[str]:
        """Accounts of all tenants of which the home says that they were deleted."""
        return {str(json.loads(note.read_bytes())["account"]) for note in self.deleted("*").parent.parent.glob("*/deleted.json")}

    def aside(self, stamp: str) -> Path:
        return self.run / f"aside-{stamp}"
