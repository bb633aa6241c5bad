"""Who is asking: the broker's word alone. Rights come from the key that signed the credential; tags only narrow.

Invariant: nothing in a payload takes part here, and only the exact header `Nats-Request-Info` is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from bus.delegation import DEPTH_MAX
from bus.frames import CLASSIFICATIONS, ORIGINS
from bus.identity import RegistryEntry
from bus.subjects import Inbound, is_token

from .refusals import Refused
from .rights import NOTHING, Row, allow, check_standing, enter
from .state.principals import Agent
from .state.tenant import Tenant

HEADER: Final = "Nats-Request-Info"
SINGLE_TAGS: Final = frozenset({"tenant", "ceiling", "user", "person", "depth"})
MANY_TAGS: Final = frozenset({"project", "see", "tool", "verb"})
TOOL_RESULT: Final = ORIGINS.index("tool_result")
DEPTHS: Final = tuple(str(n) for n in range(1, DEPTH_MAX + 1))
RIGHTS_KEPT: Final = 10_000  # of credentials that asked lately: some 4 KB each
DEFAULT_CLEARANCE: Final = 0  # no `see:` tag: public only


class Presented(msgspec.Struct, frozen=True):
    """The credential that the requester connected with, as the server passes it on."""

    jwt: str = ""


class RequestInfo(msgspec.Struct, frozen=True):
    """What the server says about the requester (share: true)."""

    acc: str = ""
    user: str = ""
    name_tag: str = ""
    kind: str = ""
    tags: list[str] = []
    issuer_key: str = ""
    host: str = ""  # where the connection comes from, and which it is
    server: str = ""
    id: int = 0


@dataclass(frozen=True, slots=True)
class Rights:
    """What a credential carries, worked out once per (issuer key, tags)."""

    role: str
    ceiling: int  # highest origin
    tool_ceiling: int  # the same for what a registered tool said
    clearance: int  # highest classification
    projects: frozenset[str]
    user: str  # as the tag has it: see Tenant.user_of
    tools: frozenset[str]
    verbs: frozenset[str]
    person: str
    depth: int = 0  # links of delegation above it, by the issuer's word; 0 = issued by the home


@dataclass(frozen=True, slots=True)
class Principal:
    """One requester: `key` is the broker's, `agent` the ledger's record of it, `row` what its verb may reach (gate.rights)."""

    tenant: Tenant
    agent: Agent
    key: str
    project: str
    rights: Rights
    user_hash: str = ""
    row: Row = NOTHING
    host: str = ""
    connection: tuple[str, int] = ("", 0)

    @property
    def role(self) -> str:
        return self.rights.role


_decode_info = msgspec.json.Decoder(RequestInfo).decode
_decode_presented = msgspec.json.Decoder(Presented).decode


def presented_jwt(headers: Mapping[str, str] | None) -> str:
    """The JWT of a request whose principal was identified."""
    return _decode_presented(headers[HEADER]).jwt if headers else ""


class Identifier:
    """Turns a request's subject and headers into a Principal, or refuses. The registry is replaced whole."""

    def __init__(
        self,
        shard: str,
        core_account: str,
        tenants: Mapping[str, Tenant],
        registry: Mapping[str, RegistryEntry],
        now_ms: Callable[[], int],
    ) -> None:
        self.shard = shard
        self.core_account = core_account
        self.tenants = tenants
        self.registry = dict(registry)
        self.now_ms = now_ms
        self._rights: dict[tuple[str, tuple[str, ...]], Rights] = {}

    def use_registry(self, registry: Mapping[str, RegistryEntry]) -> None:
        self.registry = dict(registry)
        self._rights.clear()

    def identify(self, at: Inbound, headers: Mapping[str, str] | None) -> Principal:
        raw = headers.get(HEADER) if headers else None
        if not raw:
            raise Refused("identity_missing")
        try:
            info = _decode_info(raw)
        except msgspec.MsgspecError:
            raise Refused("identity_missing") from None
        if info.kind != "Client" or info.acc != at.account or info.acc == self.core_account or at.shard != self.shard:
            raise Refused("identity_mismatch")
        if info.user != at.key:
            raise Refused("identity_mismatch")
        tenant = self.tenants.get(info.acc)
        if tenant is None:
            raise Refused("tenant_unknown")
        if tenant.deleted:
            raise Refused("tenant_deleted")
        rights = self._rights_of(info)
        agent = tenant.agents.by_key.get(info.user)
        if agent is None:
            raise Refused("agent_unregistered")
        if agent.role != rights.role:
            raise Refused("identity_mismatch")
        check_standing(tenant, agent, info.user, self.now_ms())
        user_hash = tenant.user_of(rights.user)
        _check_delegated(agent, rights, user_hash)
        if user_hash:
            ctx = tenant.context_of(agent)
            if ctx.user and ctx.user != user_hash:
                raise Refused("second_user")
            ctx.user = user_hash
        row = allow("mem" if at.project else "ops", at.verb, rights.role, rights.verbs)
        p = Principal(tenant, agent, info.user, at.project, rights, user_hash, row, info.host, (info.server, info.id))
        if at.project:
            enter(p)
        return p

    def _rights_of(self, info: RequestInfo) -> Rights:
        key = (info.issuer_key, tuple(info.tags))
        rights = self._rights.get(key)
        if rights is None:
            entry = self.registry.get(info.issuer_key)
            if entry is None or entry.tenant != info.acc:
                raise Refused("issuer_unknown")
            if len(self._rights) >= RIGHTS_KEPT:
                self._rights.clear()
            rights = self._rights[key] = rights_of(entry, info.tags)
        return rights


def _check_delegated(agent: Agent, rights: Rights, user_hash: str) -> None:
    """A child's credential is the issuer's, and no wider than the ledger says: one signing key alone widens nobody."""
    if len(agent.chain) != rights.depth:
        raise Refused("delegation_exceeded", field="depth")
    b = agent.bounds
    if b is None:
        return
    for field, within in (
        ("projects", rights.projects <= b.projects),
        ("verbs", rights.verbs <= b.verbs),
        ("tools", rights.tools <= b.tools),
        ("clearance", rights.clearance <= b.clearance),
        ("ceiling", rights.ceiling <= b.ceiling),
        ("user", user_hash == b.user),
    ):
        if not within:
            raise Refused("delegation_exceeded", field=field)


def rights_of(entry: RegistryEntry, tags: list[str]) -> Rights:
    """The rights of a credential: the registry's maximum for its issuer key, narrowed by tags. Refuses doubled, unknown and
    widening tags.
    """
    many: dict[str, set[str]] = {name: set() for name in MANY_TAGS}
    single: dict[str, str] = {}
    for tag in tags:
        name, _, value = tag.partition(":")
        if not is_token(value):
            raise Refused("tag_invalid")
        if name in SINGLE_TAGS:
            if name in single:
                raise Refused("tag_invalid")
            single[name] = value
        elif name in MANY_TAGS and value not in many[name]:
            many[name].add(value)
        else:
            raise Refused("tag_invalid")
    user = single.get("user", "")
    if not user and entry.role == "user_session":  # its word is a user's: it must say whose
        raise Refused("tag_invalid")
    depth = single.get("depth", "0")
    if depth not in (DEPTHS if entry.delegated else ("0",)):
        raise Refused("tag_invalid")
    top_class = CLASSIFICATIONS.index(entry.classification)
    top_origin = ORIGINS.index(entry.origin) if entry.origin in ORIGINS else -1
    clearance = DEFAULT_CLEARANCE
    for value in many["see"]:
        if value not in CLASSIFICATIONS or CLASSIFICATIONS.index(value) > top_class:
            raise Refused("tag_invalid")
        clearance = max(clearance, CLASSIFICATIONS.index(value))
    ceiling = top_origin
    if "ceiling" in single:
        if single["ceiling"] not in ORIGINS or ORIGINS.index(single["ceiling"]) > top_origin:
            raise Refused("tag_invalid")
        ceiling = ORIGINS.index(single["ceiling"])
    verbs = frozenset(entry.verbs)
    if many["verb"]:
        if not many["verb"] <= verbs:
            raise Refused("tag_invalid")
        verbs = frozenset(many["verb"])
    # Only a registered tool lifts an ingest key above external (docs/wire.md, keys).
    tool_ceiling = max(ceiling, TOOL_RESULT) if entry.role == "ingest" and many["tool"] and "ceiling" not in single else ceiling
    return Rights(
        entry.role,
        ceiling,
        tool_ceiling,
        clearance,
        frozenset(many["project"]),
        user,
        frozenset(many["tool"]),
        verbs,
        single.get("person", ""),
        int(depth),
    )
