"""Operator, account and user claims and the JWTs made of them. Pure.

Invariants: every limit is written out (a missing one means none allowed to the server); a user signed by a scoped key carries no
rights of its own (the server refuses the connection otherwise).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from bus.identity import JWT_VERSION, Keypair, encode_jwt, parse_tags
from bus.subjects import token

UNLIMITED: Final = -1


class Subjects(msgspec.Struct, frozen=True, omit_defaults=True):
    allow: list[str] = []
    deny: list[str] = []


class Responses(msgspec.Struct, frozen=True):
    """How many replies to a received request are allowed, and for how long: `ttl` in nanoseconds."""

    max: int
    ttl: int


class Permissions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pub: Subjects = Subjects()
    sub: Subjects = Subjects()
    resp: Responses | None = None


class AccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Every limit is written out: a missing one decodes to 0 in the server, which means none allowed."""

    subs: int = UNLIMITED
    data: int = UNLIMITED
    payload: int = UNLIMITED
    imports: int = UNLIMITED
    exports: int = UNLIMITED
    conn: int = UNLIMITED
    leaf: int = UNLIMITED
    wildcards: bool = True
    mem_storage: int = 0
    disk_storage: int = 0
    streams: int = 0
    consumer: int = 0


JETSTREAM_LIMITS: Final = AccountLimits(mem_storage=UNLIMITED, disk_storage=UNLIMITED, streams=UNLIMITED, consumer=UNLIMITED)


class Export(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    subject: str
    type: Literal["service", "stream"]
    account_token_position: int
    response_type: str = ""


class Import(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    subject: str
    local_subject: str
    account: str
    type: Literal["service", "stream"]
    share: bool = False


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """What a scoped key grants. Subjects may hold `{{tag(project)}}` (a grant per value, none without it) and `{{subject()}}`."""

    pub: Subjects
    sub: Subjects
    subs: int = 64
    data: int = UNLIMITED
    payload: int = 1 << 20
    allowed_connection_types: tuple[str, ...] = ("STANDARD",)


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """A scoped signing key: whoever it signs gets exactly the template."""

    key: str
    role: str
    template: Template
    kind: str = "user_scope"
    description: str = ""


def operator_jwt(operator: Keypair, name: str, system_account: str, signing_keys: Sequence[str], issued_at: int) -> str:
    """The self-signed root. Only its signing keys may sign accounts, and only signing keys of an account its users."""
    nats = {
        "type": "operator", "version": JWT_VERSION, "system_account": system_account,
        "signing_keys": list(signing_keys), "strict_signing_key_usage": True,
    }  # fmt: skip
    return encode_jwt({"sub": operator.public, "name": name, "nats": nats}, operator, issued_at)


def account_jwt(
    account: str,
    name: str,
    signer: Keypair,
    issued_at: int,
    *,
    limits: AccountLimits | None = None,
    imports: Sequence[Import] = (),
    exports: Sequence[Export] = (),
    signing_keys: Sequence[str | Scope] = (),
    revocations: Mapping[str, int] | None = None,
) -> str:
    """An account, signed by an operator signing key. `revocations`: user key → unix seconds; what was issued before is void."""
    nats: dict[str, Any] = {
        "type": "account", "version": JWT_VERSION, "limits": limits or AccountLimits(),
        "imports": list(imports), "exports": list(exports), "signing_keys": list(signing_keys),
    }  # fmt: skip
    if revocations:
        nats["revocations"] = dict(revocations)
    return encode_jwt({"sub": account, "name": name, "nats": nats}, signer, issued_at)


def user_jwt(
    user: str,
    name: str,
    signer: Keypair,
    issuer_account: str,
    issued_at: int,
    *,
    tags: Sequence[str] = (),
    permissions: Permissions | None = None,
    expires_at: int | None = None,
) -> str:
    """A user. Without `permissions` the signer must be a scoped key, whose template applies.

    Raises Rejected for an unsafe name or tag.
    """
    token(name, "user")
    parse_tags(tags)
    nats: dict[str, Any] = {"type": "user", "version": JWT_VERSION, "issuer_account": issuer_account}
    if tags:
        nats["tags"] = list(tags)
    if permissions is not None:
        nats |= {"subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED, **msgspec.to_builtins(permissions)}
    claims: dict[str, Any] = {"sub": user, "name": name, "nats": nats}
    if expires_at is not None:
        claims["exp"] = expires_at
    return encode_jwt(claims, signer, issued_at)
