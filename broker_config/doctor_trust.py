"""Checks of a home's trust tree and credentials. Each yields what is wrong, by name; nothing = all is well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from bus.errors import Rejected
from bus.frames import CLASSIFICATIONS, ORIGINS
from bus.identity import OperatorNats, RegistryEntry, Verified, parse_tags, verify_jwt, verify_registry

from .examined import Account, Examined, credential, seed
from .roles import Role, registry_entry, scope
from .trust import CORE_EXPORTS, CORE_USERS, sys_permissions

OWN_RIGHTS: Final = ("pub", "sub", "resp", "bearer_token", "allowed_connection_types", "src", "times")  # of a scoped user: none


# --- the trust tree -------------------------------------------------------------------------------------
def operator(x: Examined) -> Iterator[str]:
    """An operator that is not self-signed, over, or lets identity keys sign."""
    claims, nats = x.operator, x.operator.body("operator", OperatorNats)
    if claims.issuer != claims.subject:
        yield "operator.jwt is not signed by the operator"
    if x.expired(claims):
        yield "operator.jwt has expired"
    if not nats.strict_signing_key_usage:
        yield "operator.jwt lets identity keys sign (strict_signing_key_usage is off)"
    if seed(x.home.trust, "operator-signing").public not in nats.signing_keys:
        yield "operator-signing.nk is no signing key of the operator"


def accounts(x: Examined) -> Iterator[str]:
    """Accounts that the operator has not signed, or that are over: their signing keys are over with them."""
    signers = x.operator.body("operator", OperatorNats).signing_keys
    for account in (x.core, x.system, *x.tenants):
        if account.claims.issuer not in signers:
            yield f"account {account.name} is not signed by a signing key of the operator"
        if account.claims.subject != account.key:
            yield f"account {account.name} is another one than its key says"
        if x.expired(account.claims):
            yield f"account {account.name} and its signing keys have expired"


def registry(x: Examined) -> Iterator[str]:
    """A registry that does not verify, or grants a key other rights than its role has."""
    listed = verify_registry(x.home.registry.read_text(), x.home.operator_jwt.read_text())
    if x.expired(verify_jwt(x.home.registry.read_text())):
        yield "registry.jwt has expired"
    expected: dict[str, RegistryEntry] = {}
    whose: dict[str, str] = {}
    for tenant in x.tenants:
        expected |= {key: registry_entry(role, tenant.key) for key, role in x.role_keys(tenant.name).items()}
        whose |= dict.fromkeys(x.role_keys(tenant.name), tenant.name)
    for key, entry in listed.items():
        if key not in expected:
            yield f"registry.jwt lists {key} ({entry.role}), which is no role's key of a tenant here"
        elif entry != expected[key]:
            yield f"registry.jwt grants {key} of tenant {whose[key]} other rights than its role {expected[key].role} has"
    for key in (k for k in expected if k not in listed):
        yield f"registry.jwt doesn't list the {expected[key].role} key {key} of tenant {whose[key]}"


def imports(x: Examined) -> Iterator[str]:
    """Imports beyond a tenant's own place or without sharing who asks, and exports without the account in the subject."""
    exported = {e["subject"]: e for e in x.core.nats.get("exports", [])}
    for export in CORE_EXPORTS:
        if msgspec.to_builtins(export) != _without_defaults(exported.pop(export.subject, {})):
            yield f"CORE's export {export.subject} is missing or another one"
    yield from (f"CORE exports {subject}" for subject in exported)
    for tenant in x.tenants:
        for one in tenant.nats.get("imports", []):
            yield from _import_faults(x, tenant, one)


def _import_faults(x: Examined, tenant: Account, one: Mapping[str, Any]) -> Iterator[str]:
    subject = str(one.get("subject", ""))
    own = {
        f"in.{x.shard}.{tenant.key}.>": f"mem.{tenant.name}.>", f"op.{x.shard}.{tenant.key}.>": f"ops.{tenant.name}.>",
        f"feed.{tenant.key}.>": f"feed.{tenant.name}.>", f"notice.{tenant.key}.>": f"notice.{tenant.name}.>",
    }  # fmt: skip
    if one.get("account") != x.core.key or one.get("local_subject") != own.get(subject):
        yield f"tenant {tenant.name} imports {subject}"
    elif one.get("type") == "service" and not one.get("share"):
        yield f"tenant {tenant.name} imports {one['local_subject']} without share: nobody would know who asks"


def _without_defaults(export: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in export.items() if v or k == "account_token_position"}


def role_keys(x: Examined) -> Iterator[str]:
    """Signing keys of a tenant whose template is wider than their role."""
    for tenant in x.tenants:
        expected = {key: scope(role, key, tenant.name) for key, role in x.role_keys(tenant.name).items()}
        for signing in tenant.nats.get("signing_keys", []):
            key = signing.get("key", "") if isinstance(signing, dict) else signing
            if key not in expected:
                yield f"tenant {tenant.name} has a signing key {key} of no role"
            elif not isinstance(signing, dict):
                yield f"tenant {tenant.name}: the {expected[key].role} key has no template, so it may sign any right"
            else:
                wanted = msgspec.to_builtins(expected[key].template)
                for problem in _wider(signing.get("template", {}), wanted):
                    yield f"tenant {tenant.name}: the {expected[key].role} key {problem}"


def _wider(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """What a set of permissions has beyond what it should have, or lacks."""
    for side, verb in (("pub", "publish to"), ("sub", "subscribe to")):
        mine, right = given.get(side, {}), wanted.get(side, {})
        yield from (f"may {verb} {subject}" for subject in mine.get("allow", []) if subject not in right.get("allow", []))
        if not set(right.get("deny", [])) <= set(mine.get("deny", [])):
            yield f"may {verb} what it is denied"
        if right.get("allow") and not mine.get("allow"):
            yield f"may {verb} anything"
    replies = given.get("resp")
    if replies and replies != wanted.get("resp"):
        yield f"may reply {replies.get('max')} times"
    types = wanted.get("allowed_connection_types")
    if types and sorted(given.get("allowed_connection_types", [])) != sorted(types):
        yield "may connect in another way than an ordinary client"


# --- credentials ----------------------------------------------------------------------------------------
def core_users(x: Examined) -> Iterator[str]:
    """Credentials of the home's own processes that may do more than their process needs."""
    core, system = seed(x.home.core_trust, "signing").public, seed(x.home.sys_trust, "signing").public
    users = [(x.home.core_creds(name), core, permissions) for name, permissions in CORE_USERS.items()]
    users.append((x.home.sys_creds, system, lambda key, _: sys_permissions(key)))
    for path, signer, permissions in users:
        claims, nats = credential(path)
        who = f"{path.parent.name}/{path.stem}"
        if claims.issuer != signer:
            yield f"{who} is signed by {claims.issuer}"
        if x.expired(claims):
            yield f"{who} has expired"
        for problem in _wider(nats, msgspec.to_builtins(permissions(claims.subject, x.shard))):
            yield f"{who} {problem}"


def agent_credentials(x: Examined) -> Iterator[str]:
    """Credentials of agents that carry more than the key that signed them grants."""
    for tenant in x.tenants:
        roles = x.role_keys(tenant.name)
        for path in sorted((x.home.creds / tenant.name).glob("*.creds")):
            claims, nats = credential(path)
            for problem in _agent_faults(tenant, roles.get(claims.issuer), claims, nats):
                yield f"{tenant.name}/{path.stem} {problem}"


def _agent_faults(tenant: Account, role: Role | None, claims: Verified, nats: Mapping[str, Any]) -> Iterator[str]:
    if role is None:
        yield f"is signed by {claims.issuer}, which is no role's key of this tenant"
        return
    if nats.get("issuer_account") != tenant.key:
        yield "is of another account"
    yield from (f"carries {name} of its own beside the {role.name} template" for name in OWN_RIGHTS if nats.get(name))
    try:
        tags = parse_tags(nats.get("tags", []))
    except Rejected:
        yield "carries an unknown, doubled or unsafe tag"
        return
    if any(
        see not in CLASSIFICATIONS or CLASSIFICATIONS.index(see) > CLASSIFICATIONS.index(role.classification)
        for see in tags.get("see", ())
    ):
        yield f"sees more than its role {role.name} may"
    for ceiling in tags.get("ceiling", ()):
        if ceiling not in ORIGINS or not role.origin or ORIGINS.index(ceiling) > ORIGINS.index(role.origin):
            yield f"has a higher ceiling than its role {role.name}"
    if not set(tags.get("verb", ())) <= set(registry_entry(role, tenant.key).verbs):
        yield f"carries a verb that its role {role.name} hasn't"
