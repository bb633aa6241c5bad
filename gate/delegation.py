"""Delegation: an agent asks for a child, the issuer signs it, the ledger has it before the credential leaves.

Invariants: the gatekeeper signs nothing, and what the issuer signed counts only when the ledger says so and is exactly what was
granted here; a child is never wider than the credential that asks (bus.delegation); a retry is the same child with the same end.
Signing comes before the append: when the issuer is away, no name is used up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from nats.errors import Error as NatsError

from bus import delegation
from bus.delegation import DEPTH_MAX, JOINT, Grant, TooWide
from bus.errors import ConfigError
from bus.frames import CLASSIFICATIONS, ORIGINS, Delegate, Delegated, Sign, Signed, encode
from bus.identity import RegistryEntry, UserNats, Verified, is_kind, verify_jwt
from bus.limits import NAME_CHARS_MAX
from bus.subjects import is_token, sign
from gate import ids
from gate.config import CHILDREN_MAX, DESCENDANTS_MAX, SESSIONS_MAX, SIGN_TIMEOUT_S
from gate.identify import Principal
from gate.ledger import events as E
from gate.reading.surface import rfc3339
from gate.refusals import Refused
from gate.state.principals import OWN_CONTEXT_FOR, Agent, Bounds
from gate.writing.sequencer import Stored

if TYPE_CHECKING:
    from gate.shard import Shard

LACKING_CHARS: Final = 128  # of the name of a file that the issuer says it lacks
_decode_signed: Final = msgspec.json.Decoder(Signed).decode


class Delegations:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.silent = False  # the issuer was there and gave no answer when it was asked last
        self.without_keys = ""  # the file that it lacked then

    async def answer(self, p: Principal, wish: Delegate, jwt: str) -> Delegated:
        """The child of `p` with its credential. `jwt`: what `p` connected with, by the broker's word. Raises Refused."""
        _check_names(p, wish)
        now_ms = self.shard.now_ms()
        try:
            parent = verify_jwt(jwt)
        except ConfigError:
            raise Refused("identity_missing") from None
        name = f"{p.agent.name}{JOINT}{wish.name}"
        grant, signer = self._granted(p, wish, parent, now_ms)
        known = self._known(p, wish.key, name, grant, now_ms)
        if known is None:
            self._check_room(p, now_ms)
            for link in p.agent.links() if self.shard.rates else ():
                if not link.delegations.take():
                    raise Refused("over_quota", field="delegations_per_second", limit=int(link.delegations.limit.per_s))
        else:
            grant = dataclasses.replace(grant, expires_at=known.expires_ms // 1000)
        signed = await self._signed(p, wish, jwt, name, grant, signer)
        child = known or await self._recorded(p, wish, name, grant)
        return self._delegated(p, wish, grant, child, signed, duplicate=known is not None)

    # --- what it may be ---------------------------------------------------------------------------
    def _granted(self, p: Principal, wish: Delegate, parent: Verified, now_ms: int) -> tuple[Grant, str]:
        """The child's grant, and the delegation key that is to sign it."""
        r, tags = p.rights, parent.body("user", UserNats).tags
        asking = Grant(
            role=r.role,
            projects=r.projects,
            see=frozenset(t.removeprefix("see:") for t in tags if t.startswith("see:")),
            verbs=r.verbs,
            tools=r.tools,
            ceiling=r.ceiling,
            user=r.user,
            person=r.person,
            depth=r.depth,
            expires_at=parent.expires_at,
        )
        try:
            role = delegation.child_role(r.role, wish.role)
            signer, most = self._delegation_key(p.tenant.account, role)
            return delegation.narrowed(asking, most, wish, now_ms / 1000), signer
        except TooWide as e:
            raise _too_wide(e.dimension, e.limit) from None

    def _delegation_key(self, account: str, role: str) -> tuple[str, RegistryEntry]:
        for key, entry in self.shard.identifier.registry.items():
            if entry.delegated and entry.tenant == account and entry.role == role:
                return key, entry
        raise Refused("issuer_unknown")

    @staticmethod
    def _known(p: Principal, key: str, name: str, grant: Grant, now_ms: int) -> Agent | None:
        """The child that an earlier try of this very request made."""
        t = p.tenant
        agent = t.agents.by_key.get(key)
        if agent is None:
            if name in t.agents.by_name:
                raise Refused("name_taken", field="name")
            return None
        same = agent.parent is p.agent and agent.via == p.key and agent.name == name and agent.bounds == _bounds(p, grant)
        if not same or not agent.stands(key, now_ms):
            raise Refused("key_taken", field="key")
        return agent

    @staticmethod
    def _check_room(p: Principal, now_ms: int) -> None:
        """Every collection is bounded: the children that stand, and all that stand below each link of the chain."""
        if p.role != OWN_CONTEXT_FOR and _standing(p.agent.children, now_ms) >= CHILDREN_MAX:
            raise Refused("too_many_children", field="children", limit=CHILDREN_MAX)
        for link in p.agent.links():
            most = SESSIONS_MAX if link.role == OWN_CONTEXT_FOR else DESCENDANTS_MAX
            if _standing(link.below(now_ms), now_ms) >= most:
                raise Refused("too_many_children", field="descendants", limit=most)

    # --- the issuer -------------------------------------------------------------------------------
    async def _signed(self, p: Principal, wish: Delegate, jwt: str, name: str, grant: Grant, signer: str) -> str:
        """The credential, checked: the issuer is asked for exactly one, and only that is passed on."""
        request = Sign(account=p.tenant.account, parent=jwt, wish=wish, name=name, expires_at=grant.expires_at)
        try:
            nc = self.shard.outbox.nc
            answer = _decode_signed((await nc.request(sign(self.shard.number), encode(request), timeout=SIGN_TIMEOUT_S)).data)
        except TimeoutError:
            self.silent = True
            raise Refused("issuer_silent") from None
        except (NatsError, msgspec.MsgspecError):
            raise Refused("issuer_unreachable") from None
        self.silent = False
        self.without_keys = answer.field[:LACKING_CHARS] if answer.reason == "no_keys" else ""
        if not answer.jwt:
            raise _refused_by_issuer(answer)
        try:
            claims = verify_jwt(answer.jwt)
            nats = claims.body("user", UserNats)
        except ConfigError:
            raise Refused("issuer_unreachable") from None
        said = (claims.issuer, claims.subject, claims.expires_at, nats.issuer_account, sorted(nats.tags))
        tags = sorted(delegation.tags_of(grant, p.tenant.name))
        if said != (signer, wish.key, grant.expires_at, p.tenant.account, tags):
            raise Refused("delegation_exceeded", field="jwt")
        return answer.jwt

    # --- the ledger -------------------------------------------------------------------------------
    async def _recorded(self, p: Principal, wish: Delegate, name: str, grant: Grant) -> Agent:
        """The child in the ledger. What may have changed while the issuer signed is looked at again."""
        t = p.tenant

        async def run() -> None:
            now_ms = self.shard.now_ms()
            if self._known(p, wish.key, name, grant, now_ms) is not None:
                return
            self._check_room(p, now_ms)
            b = _bounds(p, grant)
            event = E.AgentDelegated(
                ms=now_ms,
                agent=ids.new_raw(now_ms),
                name=name,
                key=wish.key,
                role=b.role,
                parent=p.agent.id,
                via=p.key,
                projects=sorted(b.projects),
                verbs=sorted(b.verbs),
                tools=sorted(b.tools),
                clearance=b.clearance,
                ceiling=b.ceiling,
                user=b.user,
                person=grant.person,
                expires=grant.expires_at * 1000,
            )
            await self.shard.sequencer.commit(t, [Stored(event)])

        await self.shard.operators.acting(p, run)
        return t.agents.by_key[wish.key]

    def _delegated(self, p: Principal, wish: Delegate, grant: Grant, child: Agent, jwt: str, *, duplicate: bool) -> Delegated:
        return Delegated(
            request_id=wish.request_id,
            agent=p.key,
            project=p.project,
            id=child.text,
            name=child.name,
            key=wish.key,
            role=child.role,
            chain=[ids.text("agt_", x) for x in child.chain],
            projects=sorted(grant.projects),
            clearance=CLASSIFICATIONS[grant.clearance],
            verbs=sorted(grant.verbs),
            tools=sorted(grant.tools),
            ceiling=ORIGINS[grant.ceiling],
            user=grant.user,
            expires_at=rfc3339(grant.expires_at * 1000),
            jwt=jwt,
            duplicate=duplicate,
            position=p.tenant.position,
        )


def _standing(agents: Iterable[Agent], now_ms: int) -> int:
    return sum(agent.stands(agent.keys[-1], now_ms) for agent in agents)


def _bounds(p: Principal, grant: Grant) -> Bounds:
    user = p.tenant.user_of(grant.user)
    return Bounds(grant.role, grant.projects, grant.verbs, grant.tools, grant.clearance, grant.ceiling, user)


def _check_names(p: Principal, wish: Delegate) -> None:
    """Before anything is looked up or signed: no value can be anything but what it is called."""
    if not is_token(wish.name) or JOINT in wish.name:
        raise Refused("bad_name", field="name")
    if len(p.agent.name) + len(JOINT) + len(wish.name) > NAME_CHARS_MAX:
        raise Refused("too_long", field="name", limit=NAME_CHARS_MAX - len(p.agent.name) - len(JOINT))
    if not is_kind(wish.key, "user"):
        raise Refused("bad_field", field="key")
    for field, values in (("projects", wish.projects), ("verbs", wish.verbs), ("tools", wish.tools)):
        if values is not None and len(set(values)) != len(values):
            raise Refused("bad_field", field=field)
    for field, values in (("projects", wish.projects), ("verbs", wish.verbs)):
        if values == []:  # nothing is never everything
            raise Refused("too_short", field=field)


def _too_wide(dimension: str, limit: int | None = None) -> Refused:
    if dimension == "depth":
        return Refused("delegation_too_deep", field="depth", limit=DEPTH_MAX)
    return Refused("delegation_too_wide", field=dimension, limit=limit)


def _refused_by_issuer(answer: Signed) -> Refused:
    match answer.reason:
        case "too_wide":
            return _too_wide(answer.field)
        case "stale":
            return Refused("delegation_stale", field="at")
        case "no_keys":
            return Refused("issuer_without_keys")
        case _:
            return Refused("delegation_unproven", field="proof")
