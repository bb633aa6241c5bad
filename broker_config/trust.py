"""The trust tree of a home: operator, system and core accounts, tenants with one scoped signing key per role, and their users.

Invariants: the tree is made once and is whole when operator.jwt is there (written last), so a first up that was killed starts
over; making a tenant is repeatable (keys that exist are used again); the registry is derived from the tenants' folders.
Who may do what: docs/wire.md, 'Keys and permissions'. A wildcard stands for a whole token, so JetStream is granted by name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import msgspec

from bus.errors import ConfigError, Conflict, Rejected
from bus.frames import CLASSIFICATIONS
from bus.identity import USER_KEY_BYTES, Keypair, RegistryEntry, creds_text, derived_user_key, keypair, registry_jwt, user_token
from bus.subjects import is_user_token, token

from . import claims
from .claims import Export, Import, Permissions, Responses, Subjects
from .home import Home, private_folder, write_private
from .roles import DELEGATED, ROLES, Role, registry_entry, scope

STREAM_KINDS: Final = ("LEDGER", "READS", "ERASED")
REPLY_TTL_NS: Final = 60_000_000_000  # a hold over a large tenant answers late; longer than any request deadline
SEE_DEFAULT: Final = ("public", "internal")  # restricted only when asked
EVERYBODY: Final = "*"  # in revocations

CORE_EXPORTS: Final = (
    Export(name="mem", subject="in.*.*.>", type="service", response_type="Singleton", account_token_position=3),
    Export(name="ops", subject="op.*.*.>", type="service", response_type="Singleton", account_token_position=3),
    Export(name="feed", subject="feed.*.>", type="stream", account_token_position=2),
    Export(name="notice", subject="notice.*.>", type="stream", account_token_position=2),
)


@dataclass(frozen=True)
class Tenant:
    """A tenant's public side and the hex secret that keys its end users' ids."""

    name: str
    account: str
    user_key: str


@dataclass(frozen=True)
class AgentRequest:
    """Who is to get a credential. `see` empty = public and internal; `user`: an end user's id in any form, or `user_token`: the
    token that stands for it already; `ttl_s` None = the role's default.
    """

    tenant: str
    name: str
    role: str = "agent"
    projects: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    person: str = ""
    user: str = ""
    ttl_s: int | None = None
    user_token: str = ""


NEAR = 0.5  # of difflib's ratio: a typing error or two, or a part of the name


def nearest(name: str, known: list[str], noun: str) -> str:
    """Advice that names the closest of `known`."""
    close = get_close_matches(name, known, n=1, cutoff=NEAR)
    return f"Did you mean {close[0]!r}?" if close else f"Add it with `cordon {noun} add`."


# --- core permissions -------------------------------------------------------------------------------
def _inbox(key: str) -> str:
    return f"_INBOX.{key}.>"


def gatekeeper_permissions(key: str, shard: int) -> Permissions:
    publish = [f"ledger.{shard}.block", f"reads.{shard}.block", "feed.>", "notice.>", f"iss.{shard}.sign"]
    publish += [f"owner.{shard}.lease", f"owner.{shard}.registry", f"$JS.API.STREAM.MSG.GET.OWNER_{shard}"]
    for stream in (f"{kind}_{shard}" for kind in STREAM_KINDS):
        publish += [
            f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.STREAM.MSG.GET.{stream}", f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.>", f"$JS.API.CONSUMER.CREATE.{stream}.>", f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
            f"$JS.API.CONSUMER.DELETE.{stream}.*",
        ]  # fmt: skip
    subscribe = [f"in.{shard}.>", f"op.{shard}.>", f"adm.{shard}.>", _inbox(key)]
    return Permissions(pub=Subjects(publish), sub=Subjects(subscribe), resp=Responses(max=1, ttl=REPLY_TTL_NS))


def admin_permissions(key: str, shard: int) -> Permissions:
    publish = [f"adm.{shard}.*.{key}"]
    for stream in (f"{kind}_{shard}" for kind in (*STREAM_KINDS, "OWNER")):
        publish += [f"$JS.API.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE", "INFO")]
    return Permissions(pub=Subjects(publish), sub=Subjects([_inbox(key)]))


def issuer_permissions(key: str, shard: int) -> Permissions:
    """Signs delegated credentials on request; publishes nothing but replies."""
    replies = Responses(max=1, ttl=REPLY_TTL_NS)
    return Permissions(pub=Subjects(deny=[">"]), sub=Subjects([f"iss.{shard}.sign", _inbox(key)]), resp=replies)


def leaf_permissions(account: str, shard: int) -> Permissions:
    """A leaf node's, inside CORE: requests of one tenant's agents up, its feed, notices and answers down.

    Answers come under `_R_`, in which the server mixes all tenants' (docs/threat-model.md).
    """
    publish = [f"in.{shard}.{account}.>", f"op.{shard}.{account}.>"]
    return Permissions(pub=Subjects(publish), sub=Subjects([f"feed.{account}.>", f"notice.{account}.>", "_R_.>"]))


def janitor_permissions(key: str, shard: int) -> Permissions:
    publish = [f"erased.{shard}.*", f"adm.{shard}.erased.{key}"]
    for stream in (f"LEDGER_{shard}", f"ERASED_{shard}"):
        publish += [f"$JS.API.STREAM.MSG.DELETE.{stream}", f"$JS.API.STREAM.MSG.GET.{stream}"]
    return Permissions(pub=Subjects(publish), sub=Subjects([_inbox(key)]))


def sys_permissions(key: str) -> Permissions:
    publish = [f"$SYS.REQ.CLAIMS.{verb}" for verb in ("UPDATE", "DELETE", "LIST")]
    return Permissions(pub=Subjects(publish), sub=Subjects([_inbox(key)]))


CORE_USERS: Final[dict[str, Callable[[str, int], Permissions]]] = {
    "gatekeeper": gatekeeper_permissions,
    "admin": admin_permissions,
    "issuer": issuer_permissions,
    "janitor": janitor_permissions,
}


# --- the tree ---------------------------------------------------------------------------------------
class Trust:
    """Reads and extends the tree of `home`. `clock` gives unix seconds."""

    def __init__(self, home: Home, clock: Callable[[], float], shard: int = 0) -> None:
        self.home, self.shard = home, shard
        self._clock = clock

    def create(self) -> None:
        """Make the whole tree unless it is there. `ConfigError` (trust_lost) where it was there: another one in its place would
        take every credential its worth, and overwrite the seeds that are left.
        """
        home = self.home
        if home.operator_jwt.exists():
            return
        if home.was_used:
            raise ConfigError(
                f"{home.operator_jwt} is missing, and this home has been used.",
                reason="trust_lost",
                advice=f"Put it back from a copy: each snapshot has it, and one that was made --with-keys all of {home.trust}.",
            )
        operator, signing, system, core = keypair("operator"), keypair("operator"), keypair("account"), keypair("account")
        write_private(home.operator_seed, operator.seed)
        write_private(home.operator_signing_seed, signing.seed)
        self._create_system(system, signing)
        self._create_core(core, signing)
        write_private(home.registry, registry_jwt({}, signing, self._now()))
        write_private(home.operator_jwt, claims.operator_jwt(operator, "cordon", system.public, [signing.public], self._now()))

    def _create_system(self, system: Keypair, operator: Keypair) -> None:
        signing, user, folder = keypair("account"), keypair("user"), self.home.sys_trust
        write_private(folder / "account.nk", system.seed)
        write_private(folder / "signing.nk", signing.seed)
        jwt = claims.account_jwt(system.public, "SYS", operator, self._now(), signing_keys=[signing.public])
        write_private(folder / "account.jwt", jwt)
        jwt = claims.user_jwt(
            user.public, "admin", signing, system.public, self._now(), permissions=sys_permissions(user.public)
        )  # fmt: skip
        write_private(self.home.sys_creds, creds_text(jwt, user))

    def _create_core(self, core: Keypair, operator: Keypair) -> None:
        signing, folder = keypair("account"), self.home.core_trust
        write_private(folder / "account.nk", core.seed)
        write_private(folder / "signing.nk", signing.seed)
        jwt = claims.account_jwt(
            core.public, "CORE", operator, self._now(),
            limits=claims.JETSTREAM_LIMITS, exports=CORE_EXPORTS, signing_keys=[signing.public],
        )  # fmt: skip
        write_private(folder / "account.jwt", jwt)
        for name, permissions in CORE_USERS.items():
            user = keypair("user")
            jwt = claims.user_jwt(
                user.public, name, signing, core.public, self._now(), permissions=permissions(user.public, self.shard)
            )  # fmt: skip
            write_private(self.home.core_creds(name), creds_text(jwt, user))

    # --- tenants
    def tenant_names(self) -> list[str]:
        found = (seed.parent.name for seed in self.home.tenants.glob("*/account.nk"))
        return sorted(name for name in found if not self.home.deleted(name).exists())

    def tenant(self, name: str) -> Tenant:
        """`Rejected` (tenant_unknown) with the nearest name if this home has no such tenant."""
        if token(name, "tenant") not in self.tenant_names():
            self._check_not_deleted(name)
            advice = nearest(name, self.tenant_names(), "tenant")
            raise Rejected(f"There is no tenant {name!r} in this home.", reason="tenant_unknown", field="tenant", advice=advice)
        folder = self.home.tenant_trust(name)
        return Tenant(name, self._seed(name, "account").public, (folder / "user-ids.key").read_text())

    def make_tenant(self, name: str) -> Tenant:
        """The tenant's keys, made where they are missing. `Rejected` for a bad name; the account is not pushed yet."""
        if token(name, "tenant").startswith("_"):
            raise Rejected(
                f"Tenant name {name!r} is reserved.",
                reason="bad_name",
                field="tenant",
                advice="Begin it with a letter or a digit.",
            )
        self._check_not_deleted(name)
        folder = self.home.tenant_trust(name)
        private_folder(folder)
        for role in ROLES:
            _write_once(folder / f"role-{role}.nk", keypair("account").seed)
        if not (folder / "account.nk").exists():
            account = keypair("account")
            write_private(folder / "user-ids.key", self._new_user_key(account.public).hex())
            write_private(folder / "account.nk", account.seed)  # last: it says that the folder is whole
        return self.tenant(name)

    def _check_not_deleted(self, name: str) -> None:
        if self.home.deleted(name).exists():
            raise Conflict(
                f"Tenant {name} was deleted.",
                reason="tenant_deleted",
                advice="Its name is not used again: choose another.",
            )

    def end_tenant(self, name: str, account: str) -> None:
        """Leave of a tenant only the note that it was deleted: no key of it is left, so nobody signs for it again."""
        folder = self.home.tenant_trust(name)
        note = {"account": account, "at": self._now()}
        write_private(self.home.deleted(name), msgspec.json.encode(note).decode())
        for path in (*sorted(folder.glob("*.nk")), folder / "user-ids.key", self.home.revocations(name)):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.home.issuer_trust(name), ignore_errors=True)

    def deleted_account(self, name: str) -> str:
        """The account of a tenant that was deleted; empty for any other."""
        note = self.home.deleted(token(name, "tenant"))
        return str(msgspec.json.decode(note.read_bytes(), type=dict[str, str | int])["account"]) if note.exists() else ""

    def ended_jwt(self, account: str, name: str) -> str:
        """The account without imports and signing keys: it can do nothing, and nobody can connect to it."""
        return claims.account_jwt(account, name, self._operator_signing(), self._now(), revocations={EVERYBODY: self._now()})

    def share_user_keys(self) -> None:
        """New tenants' keys for end users' ids come of one master key from now on: gatekeepers elsewhere need no other."""
        _write_once(self.home.user_ids_key, os.urandom(USER_KEY_BYTES).hex())

    def _new_user_key(self, account: str) -> bytes:
        if not self.home.user_ids_key.exists():
            return os.urandom(USER_KEY_BYTES)
        return derived_user_key(bytes.fromhex(self.home.user_ids_key.read_text()), account)

    def tenant_jwt(self, tenant: Tenant) -> str:
        """The account with its imports. The shard is a literal that the operator signs, so the tenant can't choose it."""
        core, account, name, k = self._core_account(), tenant.account, tenant.name, self.shard
        imports = (
            Import(
                name="mem", subject=f"in.{k}.{account}.>", local_subject=f"mem.{name}.>", account=core, type="service", share=True
            ),
            Import(
                name="ops", subject=f"op.{k}.{account}.>", local_subject=f"ops.{name}.>", account=core, type="service", share=True
            ),
            Import(name="feed", subject=f"feed.{account}.>", local_subject=f"feed.{name}.>", account=core, type="stream"),
            Import(name="notice", subject=f"notice.{account}.>", local_subject=f"notice.{name}.>", account=core, type="stream"),
        )
        scopes = [scope(role, key, name) for key, role in self.role_keys(name).items()]
        return claims.account_jwt(
            account, name, self._operator_signing(), self._now(),
            imports=imports, signing_keys=scopes, revocations=self.revocations(name),
        )  # fmt: skip

    def leaf_creds(self, tenant: Tenant) -> str:
        """The text of a new credential for a leaf node of that tenant."""
        user, signing = keypair("user"), Keypair((self.home.core_trust / "signing.nk").read_text().strip())
        permissions = leaf_permissions(tenant.account, self.shard)
        jwt = claims.user_jwt(
            user.public, f"leaf-{tenant.name}"[:64], signing, self._core_account(), self._now(), permissions=permissions
        )
        return creds_text(jwt, user)

    def revocations(self, tenant: str) -> dict[str, int]:
        """What the account's JWT revokes: user key (or `*`) → unix seconds."""
        path = self.home.revocations(tenant)
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}

    def revoke(self, tenant: Tenant, keys: Iterable[str], ends: Mapping[str, int] | None = None, *, at: int = 0) -> None:
        """Void what was issued to these keys so far (`*`: to every key). Takes effect when the account is pushed.

        `at`: a unix second after now up to which it counts, if another clock was ahead.
        `ends`: keys whose credentials are over at that unix second; from then on they are left out again, for the account has
        room for some 10,000.
        """
        path, now = self.home.revocations_until(tenant.name), self._now()
        until = msgspec.json.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}
        until |= ends or {}
        if until:
            write_private(path, msgspec.json.encode({k: end for k, end in until.items() if end > now}, order="sorted").decode())
        revoked = {k: at for k, at in self.revocations(tenant.name).items() if until.get(k, now + 1) > now}
        self._write_revocations(tenant, revoked | dict.fromkeys(keys, max(now, at)))

    def restore(self, tenant: Tenant) -> None:
        """Lift the revocation of everybody; single keys stay revoked."""
        self._write_revocations(tenant, {k: at for k, at in self.revocations(tenant.name).items() if k != EVERYBODY})

    def _write_revocations(self, tenant: Tenant, revoked: dict[str, int]) -> None:
        write_private(self.home.revocations(tenant.name), msgspec.json.encode(revoked, order="sorted").decode())

    def write_registry(self) -> str:
        """Sign and store the registry of all tenants; returns the JWT."""
        entries: dict[str, RegistryEntry] = {}
        for name in self.tenant_names():
            account = self.tenant(name).account
            entries |= {key: registry_entry(role, account) for key, role in self.role_keys(name).items()}
        jwt = registry_jwt(entries, self._operator_signing(), self._now())
        write_private(self.home.registry, jwt)
        return jwt

    # --- agents
    def user_token(self, tenant: str, user: str) -> str:
        """What stands for the end user with this id, whatever it looks like, in credentials. `Rejected` if it is no text."""
        return user_token(bytes.fromhex(self.tenant(tenant).user_key), user)

    def user_of(self, request: AgentRequest) -> str:
        """The token of the end user that a credential is asked for; empty if it is for none."""
        return request.user_token or (self.user_token(request.tenant, request.user) if request.user else "")

    def agent_jwt(self, request: AgentRequest, key: str) -> str:
        """A credential for the public user key `key`, signed by its role's key. `Rejected` if the request is wrong."""
        tenant, role = self.tenant(request.tenant), _role(request.role)
        user = self.user_of(request)
        _check_user(user, role)
        tags = [f"tenant:{tenant.name}"]
        tags += [f"project:{token(p, 'project')}" for p in request.projects]
        tags += [f"see:{c}" for c in _classifications(request, role)]
        tags += [f"tool:{token(t, 'tool')}" for t in request.tools]
        tags += [f"person:{token(request.person, 'person')}"] if request.person else []
        tags += [f"user:{user}"] if user else []
        ttl = _ttl_s(request, role)
        return claims.user_jwt(
            key, token(request.name, "agent"), self._role_key(tenant.name, role), tenant.account, self._now(),
            tags=tags, expires_at=None if ttl is None else self._now() + ttl,
        )  # fmt: skip

    # --- keys on disk
    def _now(self) -> int:
        return int(self._clock())

    def _operator_signing(self) -> Keypair:
        return Keypair(self.home.operator_signing_seed.read_text().strip())

    def _core_account(self) -> str:
        return Keypair((self.home.core_trust / "account.nk").read_text().strip()).public

    def _seed(self, tenant: str, name: str) -> Keypair:
        return Keypair((self.home.tenant_trust(tenant) / f"{name}.nk").read_text().strip())

    def _role_key(self, tenant: str, role: Role) -> Keypair:
        return self._seed(tenant, f"role-{role.name}")

    def role_keys(self, tenant: str) -> dict[str, Role]:
        """Public signing key → role, the issuer's keys among them. Those of a tenant that is older than the issuer are made."""
        folder = self.home.issuer_trust(tenant)
        for name in DELEGATED:
            _write_once(folder / f"role-{name}.nk", keypair("account").seed)
        delegated = {Keypair((folder / f"role-{r.name}.nk").read_text().strip()).public: r for r in DELEGATED.values()}
        return {self._role_key(tenant, role).public: role for role in ROLES.values()} | delegated


def _write_once(path: Path, text: str) -> None:
    if not path.exists():
        write_private(path, text)


def _role(name: str) -> Role:
    if name not in ROLES:
        raise Rejected(
            f"There is no role {name!r}.", reason="role_unknown", field="role", advice=f"Use one of {', '.join(ROLES)}."
        )  # fmt: skip
    return ROLES[name]


def _check_user(user: str, role: Role) -> None:
    if is_user_token(user) if user else not role.needs_user:
        return
    raise Rejected(
        f"A credential of role {role.name} needs an end user.",
        reason="user_missing",
        field="user",
        advice="Say whose word it is with --user ID.",
    )


def _classifications(request: AgentRequest, role: Role) -> tuple[str, ...]:
    highest = CLASSIFICATIONS.index(role.classification)
    for c in request.see:
        if c not in CLASSIFICATIONS or CLASSIFICATIONS.index(c) > highest:
            raise Rejected(
                f"Role {role.name} can't be given see:{c}.",
                reason="see_not_allowed",
                field="see",
                advice=f"Use {', '.join(CLASSIFICATIONS[: highest + 1])}.",
            )
    return request.see or SEE_DEFAULT


def _ttl_s(request: AgentRequest, role: Role) -> int | None:
    ttl = role.ttl_s_default if request.ttl_s is None else request.ttl_s
    if ttl is not None and (ttl <= 0 or (role.ttl_s_max is not None and ttl > role.ttl_s_max)):
        raise Rejected(
            f"A credential of role {role.name} can't live for {ttl} s.",
            reason="ttl_not_allowed",
            field="ttl",
            limit=role.ttl_s_max,
            advice=f"Give 1 to {role.ttl_s_max} seconds." if role.ttl_s_max else "Give a positive number of seconds.",
        )
    return ttl
