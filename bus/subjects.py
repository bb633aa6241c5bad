"""The subject grammar: the only place with dots in strings. Names are matched by whole tokens.

mem.<tenant>.<project>.<verb>.<agent key>          agent → gatekeeper
ops.<tenant>.<verb>.<operator key>                 operator → gatekeeper
feed.<tenant>.<project>.<classification>.<kind>    gatekeeper → agents
notice.<tenant>.<agent key>                        gatekeeper → one agent
adm.<shard>.<verb>.<admin key>                     the home's control plane, inside CORE
iss.<shard>.sign                                   gatekeeper → issuer, inside CORE
in.<shard>.<account>.<project>.<verb>.<key>        what mem… becomes inside CORE
op.<shard>.<account>.<verb>.<key>                  what ops… becomes inside CORE
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import Rejected
from .limits import NAME_CHARS_MAX

_TOKEN = re.compile(r"[a-z0-9_-]{1,64}\Z")
_KEY = re.compile(r"[A-Z2-7]{56}\Z")
_USER = re.compile(r"usr_[a-z2-7]{16}\Z")

MEMORY_VERBS = ("write", "query", "get", "bind", "report", "feedback", "correct", "forget", "delegate", "ack", "sync")
OPS_VERBS = (
    "why", "root", "trace", "exposure", "hold", "release", "review", "freeze", "thaw", "case", "context",
    "audit", "verify", "scan", "erase", "stats", "prune",
)  # fmt: skip
ADMIN_VERBS = ("tenant", "project", "agent", "registry", "policy", "verify", "status", "quiesce", "erased")
FEED_KINDS = ("memory", "held", "released", "superseded", "erased")


def is_token(name: str) -> bool:
    """Whether `name` is an identity token: 1-64 characters of `[a-z0-9_-]`."""
    return _TOKEN.match(name) is not None


def is_key(key: str) -> bool:
    """Whether `key` looks like a public nkey: 56 characters of base32."""
    return _KEY.match(key) is not None


def is_user_token(name: str) -> bool:
    """Whether `name` is what `bus.identity.user_token` makes of an end user's id."""
    return _USER.match(name) is not None


def token(name: str, what: str) -> str:
    """`name` itself, or `Rejected` with what is wrong. `what` names it in the message: 'tenant', 'project'…"""
    if not is_token(name):
        shown = name if len(name) <= NAME_CHARS_MAX else name[:NAME_CHARS_MAX] + "…"
        raise Rejected(
            f"{what} name {shown!r} is not allowed.",
            reason="bad_name",
            field=what,
            limit=NAME_CHARS_MAX,
            advice=f"Use 1-{NAME_CHARS_MAX} characters of a-z, 0-9, '-' and '_'.",
        )
    return name


def memory(tenant: str, project: str, verb: str, key: str) -> str:
    return f"mem.{tenant}.{project}.{verb}.{key}"


def ops(tenant: str, verb: str, key: str) -> str:
    return f"ops.{tenant}.{verb}.{key}"


def admin(shard: int, verb: str, key: str) -> str:
    return f"adm.{shard}.{verb}.{key}"


def feed(tenant: str, project: str, classification: str = "*", kind: str = "*") -> str:
    """Subject or pattern of a project's feed. Inside CORE `tenant` is the account key."""
    return f"feed.{tenant}.{project}.{classification}.{kind}"


def notice(tenant: str, key: str) -> str:
    """Subject of one agent's notices. Inside CORE `tenant` is the account key."""
    return f"notice.{tenant}.{key}"


def sign(shard: int) -> str:
    """Inside CORE, from the gatekeeper to the issuer."""
    return f"iss.{shard}.sign"


def inbox(key: str) -> str:
    return f"_INBOX.{key}"


class Inbound(NamedTuple):
    """A request as the gatekeeper sees it. `project` is empty for operator verbs."""

    shard: str
    account: str
    project: str
    verb: str
    key: str


def parse_inbound(subject: str) -> Inbound | None:
    """Parse `in.…` or `op.…`; None if the shape is another one."""
    parts = subject.split(".")
    if len(parts) == 6 and parts[0] == "in":
        return Inbound(parts[1], parts[2], parts[3], parts[4], parts[5])
    if len(parts) == 5 and parts[0] == "op":
        return Inbound(parts[1], parts[2], "", parts[3], parts[4])
    return None
