"""What each role's scoped signing key grants: the one table of tenant-side rights. Data and pure functions.

T is the tenant's name, P `{{tag(project)}}`, C `{{tag(see)}}`, V `{{tag(verb)}}`, K `{{subject()}}` (the user's public key). The
broker fills in the last four from the signed credential; a missing tag grants nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from bus.identity import RegistryEntry
from bus.subjects import MEMORY_VERBS, OPS_VERBS

from .claims import Scope, Subjects, Template

P: Final = "{{tag(project)}}"
C: Final = "{{tag(see)}}"
V: Final = "{{tag(verb)}}"
K: Final = "{{subject()}}"
INBOX: Final = f"_INBOX.{K}.>"

DAY_S: Final = 86_400


@dataclass(frozen=True)
class Role:
    """`memory`, `ops`: verbs, or None for all. `origin` empty = none by claim. `ttl_s_*`: None = no end.

    `delegated`: of the issuer's key. Its credentials name each of their verbs, and so the broker holds them to those.
    """

    name: str
    origin: str
    classification: str
    memory: tuple[str, ...] | None = ()
    ops: tuple[str, ...] | None = ()
    feed: bool = False
    notice: bool = False
    ttl_s_default: int | None = None
    ttl_s_max: int | None = None
    needs_user: bool = False
    delegated: bool = False


ROLES: Final[dict[str, Role]] = {
    r.name: r
    for r in (
        Role("agent", "agent_inferred", "restricted", memory=None, feed=True, notice=True),
        Role("ingest", "external", "internal", memory=("write", "correct", "forget", "sync", "ack"), notice=True),
        Role("user_gateway", "", "restricted", memory=("delegate",)),
        Role(
            "user_session", "user_stated", "restricted", memory=None, feed=True, notice=True,
            ttl_s_default=3_600, ttl_s_max=DAY_S, needs_user=True,
        ),
        Role("supervisor", "", "restricted", memory=("delegate",), ops=("context",)),
        Role(
            "operator", "human_reviewed", "restricted", memory=("get", "correct", "forget", "sync", "ack"), ops=None,
            feed=True, notice=True,
        ),
        Role("auditor", "", "restricted", ops=("why", "root", "trace", "exposure", "audit", "verify", "stats")),
    )
}  # fmt: skip
DELEGATED: Final[dict[str, Role]] = {name: replace(ROLES[name], delegated=True) for name in ("agent", "user_session")}


def scope(role: Role, key: str, tenant: str) -> Scope:
    """The scoped signing key `key` of `role` in the tenant named `tenant`."""
    memory = (V,) if role.delegated else ("*",) if role.memory is None else role.memory
    ops = ("*",) if role.ops is None else role.ops
    publish = [f"mem.{tenant}.{P}.{verb}.{K}" for verb in memory] + [f"ops.{tenant}.{verb}.{K}" for verb in ops]
    subscribe = [INBOX]
    if role.feed:
        subscribe.append(f"feed.{tenant}.{P}.{C}.>")
    if role.notice:
        subscribe.append(f"notice.{tenant}.{K}")
    return Scope(key=key, role=role.name, template=Template(pub=Subjects(publish), sub=Subjects(subscribe)))


def registry_entry(role: Role, account: str) -> RegistryEntry:
    """What the gatekeeper is told about a signing key of `role` in the tenant `account`."""
    memory = MEMORY_VERBS if role.memory is None else role.memory
    ops = OPS_VERBS if role.ops is None else role.ops
    return RegistryEntry(
        tenant=account, role=role.name, origin=role.origin, classification=role.classification, verbs=[*memory, *ops],
        delegated=role.delegated,
    )  # fmt: skip
