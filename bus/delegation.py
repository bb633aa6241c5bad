"""What a delegated credential may carry: never more than its parent's, in any dimension. Pure; no I/O.

The gatekeeper and the issuer both ask `narrowed`, each from what it knows by itself: the gatekeeper from the broker's word, the
issuer from the parent's signed JWT. So one of them alone can't widen a child.

Invariants: what is left out is the parent's (never more), but a child delegates further only if that was asked for; an empty
list is never "all"; a child lives no longer than its parent; a chain has at most DEPTH_MAX links.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from .errors import Rejected
from .frames import CLASSIFICATIONS, ORIGINS, Delegate
from .identity import Keypair, RegistryEntry, parse_tags, raw_public
from .subjects import is_token

DEPTH_MAX: Final = 3
TTL_S_DEFAULT: Final = 3_600
TTL_S_MAX: Final[Mapping[str, int]] = {"agent": 30 * 86_400, "user_session": 86_400}  # by the child's role
# Which roles a role may hand out, its default first. A session's child works for the user, it doesn't speak as the user.
LENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("agent",), "user_session": ("agent",), "user_gateway": ("user_session",), "supervisor": ("agent",),
}  # fmt: skip
# Gateways and supervisors can't read or write themselves: their children's verbs and origin are those of the child's role.
STEWARDS: Final = frozenset({"user_gateway", "supervisor"})
JOINT: Final = "--"  # between a parent's name and its child's: agents can't take names in each other's place

Dimension = Literal["role", "projects", "clearance", "verbs", "tools", "ceiling", "user", "ttl", "depth"]
_STATEMENT: Final = b"cordon.delegate.1\n"


class TooWide(Exception):
    """A child would be wider than its parent in `dimension`. `limit`: the most, where that is a number."""

    def __init__(self, dimension: Dimension, limit: int | None = None) -> None:
        super().__init__(dimension)
        self.dimension: Dimension = dimension
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Grant:
    """What a credential carries. `ceiling`: index of the highest origin, -1 none. `user`, `person`: tokens, or empty.

    `depth`: links between it and the root of its chain. `expires_at`: unix seconds, 0 = no end.
    """

    role: str
    projects: frozenset[str]
    see: frozenset[str]
    verbs: frozenset[str]
    tools: frozenset[str]
    ceiling: int
    user: str = ""
    person: str = ""
    depth: int = 0
    expires_at: int = 0

    @property
    def clearance(self) -> int:
        """Index of the highest classification: public without any."""
        return max((CLASSIFICATIONS.index(c) for c in self.see if c in CLASSIFICATIONS), default=0)


def grant_of(entry: RegistryEntry, tags: Iterable[str], expires_at: int) -> Grant:
    """What a credential signed by the key of `entry` carries. `Rejected` (tag_invalid) for a tag that isn't well-formed."""
    t = parse_tags(tags)
    ceiling = ORIGINS.index(entry.origin) if entry.origin in ORIGINS else -1
    for said in t.get("ceiling", ()):
        if said not in ORIGINS:
            raise Rejected("The ceiling is no origin.", reason="tag_invalid", field="ceiling")
        ceiling = min(ceiling, ORIGINS.index(said))
    verbs = frozenset(entry.verbs)
    return Grant(
        role=entry.role,
        projects=frozenset(t.get("project", ())),
        see=frozenset(t.get("see", ())) & frozenset(CLASSIFICATIONS[: CLASSIFICATIONS.index(entry.classification) + 1]),
        verbs=verbs & frozenset(t["verb"]) if "verb" in t else verbs,
        tools=frozenset(t.get("tool", ())),
        ceiling=ceiling,
        user="".join(t.get("user", ())),
        person="".join(t.get("person", ())),
        depth=int("".join(t.get("depth", ())) or 0),
        expires_at=expires_at,
    )


def tags_of(grant: Grant, tenant: str) -> list[str]:
    """The tags of a delegated credential, sorted: all of what it may do is written out, so that the broker knows it too."""
    several = (("project", grant.projects), ("see", grant.see), ("tool", grant.tools), ("verb", grant.verbs))
    tags = [f"{name}:{value}" for name, values in several for value in sorted(values)]
    tags += [f"{name}:{value}" for name, value in (("user", grant.user), ("person", grant.person)) if value]
    return [f"tenant:{tenant}", *tags, f"ceiling:{ORIGINS[grant.ceiling]}", f"depth:{grant.depth}"]


def child_role(parent_role: str, wished: str) -> str:
    """The role of a child: the wished one, or the first that the parent may hand out. Raises TooWide."""
    lends = LENDS.get(parent_role, ())
    role = wished or (lends[0] if lends else "")
    if role not in lends:
        raise TooWide("role")
    return role


def narrowed(parent: Grant, most: RegistryEntry, wish: Delegate, now: float) -> Grant:
    """The child's grant. `most`: of the delegation key of its role; `now`: unix seconds. Raises TooWide with the dimension."""
    role = child_role(parent.role, wish.role)
    if role != most.role:
        raise TooWide("role")
    if parent.depth >= DEPTH_MAX:
        raise TooWide("depth", DEPTH_MAX)
    steward = parent.role in STEWARDS
    verbs = frozenset(most.verbs) if steward else parent.verbs & frozenset(most.verbs)
    top = ORIGINS.index(most.origin)
    return Grant(
        role=role,
        projects=_within("projects", wish.projects, parent.projects),
        see=_seen(parent, wish.clearance),
        verbs=_within("verbs", wish.verbs, verbs) if wish.verbs is not None else verbs - {"delegate"},
        tools=_within("tools", wish.tools, parent.tools),
        ceiling=_ceiling(top if steward else min(top, parent.ceiling), wish.ceiling),
        user=_user(parent, role, wish.user),
        person=parent.person,
        depth=parent.depth + 1,
        expires_at=_expiry(parent, role, wish.ttl, now),
    )


def _within(dimension: Dimension, wished: list[str] | None, most: frozenset[str]) -> frozenset[str]:
    if wished is None:
        return most
    if not most.issuperset(wished):
        raise TooWide(dimension)
    return frozenset(wished)


def _seen(parent: Grant, wished: str) -> frozenset[str]:
    if not wished:
        return parent.see
    highest = CLASSIFICATIONS.index(wished) if wished in CLASSIFICATIONS else len(CLASSIFICATIONS)
    if highest > parent.clearance:
        raise TooWide("clearance")
    return frozenset(c for c in parent.see if CLASSIFICATIONS.index(c) <= highest)


def _ceiling(most: int, wished: str) -> int:
    if not wished:
        return most
    if wished not in ORIGINS or ORIGINS.index(wished) > most:
        raise TooWide("ceiling")
    return ORIGINS.index(wished)


def _user(parent: Grant, role: str, wished: str) -> str:
    """A child works for its parent's user or for none as the parent does; a gateway's session has exactly one."""
    new = role == "user_session" and not parent.user
    if (new and not is_token(wished)) or (not new and wished not in ("", parent.user)):
        raise TooWide("user")
    return wished if new else parent.user


def _expiry(parent: Grant, role: str, ttl: int | None, now: float) -> int:
    left = int(parent.expires_at - now) if parent.expires_at else TTL_S_MAX[role]
    most = min(left, TTL_S_MAX[role])
    if most < 1 or (ttl is not None and not 1 <= ttl <= most):
        raise TooWide("ttl", max(most, 0))
    return int(now) + (min(TTL_S_DEFAULT, most) if ttl is None else ttl)


# --- proof of possession ------------------------------------------------------------------------------
def statement(wish: Delegate) -> bytes:
    """What the parent signs: its request as JSON with sorted keys, without defaults, `request_id` and `proof`."""
    return _STATEMENT + msgspec.json.encode(msgspec.structs.replace(wish, request_id="", proof=""), order="sorted")


def signed(wish: Delegate, parent: Keypair) -> Delegate:
    """The request with the parent's signature over it (base64url)."""
    proof = base64.urlsafe_b64encode(parent.sign(statement(wish))).decode()
    return msgspec.structs.replace(wish, proof=proof)


def is_signed(wish: Delegate, parent: str) -> bool:
    """Whether the holder of the public key `parent` signed exactly this request."""
    try:
        VerifyKey(raw_public(parent)).verify(statement(wish), base64.urlsafe_b64decode(wish.proof))
    except (ValueError, TypeError, BadSignatureError):
        return False
    return True
