"""A tenant's end, at home: exported into files, then deleted.

Invariants: an export counts when its manifest is there (written last) and every file is as the manifest says; a deletion is
refused unless an export of the tenant's very position exists, or somebody says that none is wanted; each step can be repeated:
what was cut short is done by calling it again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec

from bus.errors import Conflict, Rejected
from bus.frames import AdmRegistry, AdmTenant

from .home import private_folder, write_private
from .trust import EVERYBODY, Tenant

if TYPE_CHECKING:
    from .control import Control

What = Literal["memories", "lineage", "cases", "members", "projects", "agents"]
KINDS: Final[tuple[What, ...]] = get_args(What)
MANIFEST: Final = "manifest.json"
_READ_BYTES: Final = 1 << 20


class Head(NamedTuple):
    """Where a tenant's ledger stands. `chain`: hex of its last hash; how many `legal_holds` are in force, `open_cases` hold."""

    position: int
    chain: str
    legal_holds: int
    open_cases: int


class File(msgspec.Struct, frozen=True):
    lines: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What an export holds: the tenant at `position`, where its chain in the ledger has the hash `chain`."""

    tenant: str
    account: str
    position: int
    chain: str
    files: dict[str, File]


class Tenants:
    """`control.tenants`."""

    def __init__(self, control: Control) -> None:
        self.control = control

    async def export(self, name: str, folder: Path | None = None) -> dict[str, Any]:
        """Write the tenant's memories, lineage, cases with their members, projects and agents into a new folder, as JSON lines.

        Serves meanwhile. What is written meanwhile is not in it, and then it is no export to delete the tenant by. Returns
        {tenant, folder, position, files}. `Conflict` if the folder is there.
        """
        control, tenant = self.control, self.control.trust.tenant(name)
        position, chain, *_ = await self._head(tenant)
        target = (folder or control.home.exports / f"{name}-{position}").expanduser().absolute()
        if target.exists():
            raise Conflict(f"{target} is there already.", reason="export_exists", advice="Name another folder with --to.")
        part = target.with_name(target.name + ".part")
        if part.exists():  # of an export that was cut short
            shutil.rmtree(part)
        private_folder(part)
        files = {f"{what}.jsonl": await self._write(tenant, what, part / f"{what}.jsonl") for what in KINDS}
        manifest = Manifest(name, tenant.account, position, chain, files)
        write_private(part / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)).decode() + "\n")
        part.rename(target)
        write_private(control.home.latest_export(name), str(target))
        now = (await self._head(tenant)).position
        counts = {file: about.lines for file, about in files.items()}
        return {"tenant": name, "folder": str(target), "position": position, "moved": now != position, "files": counts}

    async def delete(self, name: str, *, without_export: bool = False, message: str, by: str = "") -> dict[str, Any]:
        """End a tenant: its agents are cut, its texts are erased everywhere, its files and keys are removed, its name stays used.

        The ledger keeps its chain. `Conflict` unless an export of its position exists or `without_export` is said; and where
        open cases have memories of it, until a second `by` has said the same. Returns {name, account, state, erasure}: the
        receipt, of which `state` is erasing until every store is without the texts. Calling it again tells how far it is.
        """
        control = self.control
        async with control._changing_trust():
            gone = control.trust.deleted_account(name)
            if gone:
                return await self._buried(name, gone)
            tenant = control.trust.tenant(name)
            rows = {str(row["account"]): row for row in await control.tenant_list()}
            ended = rows.get(tenant.account, {}).get("state") == "deleted"  # a call that was cut short
            if not ended:
                if not message.strip():
                    raise Rejected("A reason is required.", reason="message_missing", field="message", advice="Say why with -m.")
                head = await self._head(tenant)
                if head.legal_holds:
                    raise Conflict(
                        f"Tenant {name} is not deleted: a legal hold has memories of it.",
                        reason="tenant_legally_held",
                        advice="Who placed it lifts it first: `cordon legal-hold list` says who.",
                    )
                if not without_export:
                    self._check_export(tenant, head)
                if head.open_cases:
                    await control._ask(AdmTenant(action="consent", account=tenant.account, by=by))
                await self._end(tenant, head.position, not without_export, message, by)
            return await self._buried(name, tenant.account)

    async def _buried(self, name: str, account: str) -> dict[str, Any]:
        """What of a tenant's end is at home: no keys, no credentials, and an account that nobody can use."""
        control = self.control
        control.trust.end_tenant(name, account)
        await control.push_account(control.trust.ended_jwt(account, name))
        await control._ask(AdmRegistry(jwt=control.trust.write_registry()))
        shutil.rmtree(control.home.creds / name, ignore_errors=True)
        return await self.ended(account)

    async def ended(self, account: str) -> dict[str, Any]:
        """{name, account, state, erasure} of a tenant that was deleted. Waits some seconds for the erasure."""
        return {"account": account, **await self.control._ask(AdmTenant(action="delete", account=account))}

    def exports(self, name: str) -> list[Path]:
        """Those of a tenant that lie in this home: they hold its texts."""
        return sorted(p for p in self.control.home.exports.glob(f"{name}-*") if p.name.removeprefix(f"{name}-").isdigit())

    async def _end(self, tenant: Tenant, position: int, exported: bool, message: str, by: str) -> None:
        """Cut its agents, then forget it at exactly this position; if it has moved, its agents come back."""
        control = self.control
        was = EVERYBODY in control.trust.revocations(tenant.name)
        control.trust.revoke(tenant, [EVERYBODY])
        await control.push_account(control.trust.tenant_jwt(tenant))
        frame = AdmTenant(action="delete", account=tenant.account, position=position, exported=exported, message=message, by=by)
        try:
            await control._ask(frame)
        except (Conflict, Rejected):
            if not was:
                control.trust.restore(tenant)
                await control.push_account(control.trust.tenant_jwt(tenant))
            raise

    # --- export -----------------------------------------------------------------------------------
    async def _head(self, tenant: Tenant) -> Head:
        page = await self.control._ask(AdmTenant(action="export", account=tenant.account, what="projects"))
        return Head(int(page["position"]), str(page["chain"]), int(page["legal_holds"]), int(page["open_cases"]))

    async def _pages(self, tenant: Tenant, what: What) -> AsyncIterator[list[dict[str, Any]]]:
        cursor: int | None = 0
        while cursor is not None:
            page = await self.control._ask(AdmTenant(action="export", account=tenant.account, what=what, cursor=cursor))
            yield page["lines"]
            cursor = page["next"]

    async def _write(self, tenant: Tenant, what: What, path: Path) -> File:
        lines, digest, encode = 0, hashlib.sha256(), msgspec.json.encode
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            async for page in self._pages(tenant, what):
                data = b"".join(encode(line) + b"\n" for line in page)
                file.write(data)
                digest.update(data)
                lines += len(page)
            file.flush()
            os.fsync(file.fileno())
        return File(lines, digest.hexdigest())

    def _check_export(self, tenant: Tenant, head: Head) -> None:
        """`Conflict` unless the latest export is whole and of this very position."""
        try:
            folder = Path(self.control.home.latest_export(tenant.name).read_text())
            manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
            damaged = [name for name, about in manifest.files.items() if _digest(folder / name) != about.sha256]
        except (OSError, msgspec.MsgspecError):
            raise _no_export(tenant, "There is no export of it.", "export_missing") from None
        if damaged:
            raise _no_export(tenant, f"Its export in {folder} is damaged ({damaged[0]}).", "export_damaged")
        if (manifest.account, manifest.position, manifest.chain) != (tenant.account, head.position, head.chain):
            said = f"Its export is of position {manifest.position}, and it is at {head.position}."
            raise _no_export(tenant, said, "export_stale")


def _no_export(tenant: Tenant, said: str, reason: str) -> Conflict:
    return Conflict(
        f"Tenant {tenant.name} is not deleted. {said}",
        reason=reason,
        advice=f"Run `cordon tenant suspend {tenant.name}`, then `cordon tenant export {tenant.name}`; or give --without-export.",
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
