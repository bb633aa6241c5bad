"""No wish gets more than its parent has: for any parent and any wish, each dimension of the child is within the parent's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config.roles import DELEGATED, ROLES, registry_entry
from bus.delegation import (
    DEPTH_MAX,
    LENDS,
    STEWARDS,
    TTL_S_MAX,
    Grant,
    TooWide,
    grant_of,
    is_signed,
    narrowed,
    signed,
    statement,
    tags_of,
)
from bus.frames import CLASSIFICATIONS, ORIGINS, Delegate
from bus.identity import keypair
from bus.subjects import MEMORY_VERBS
from gate.config import CHILDREN_MAX, DESCENDANTS_MAX
from gate.delegation import Delegations
from gate.identify import rights_of
from gate.ledger import events as E
from gate.refusals import Refused
from gate.state.principals import CHILDREN_KEPT

from .story import Story

NOW = 1_800_000_000
ACCOUNT = "A" * 56
KEY = keypair("user").public
MOST = {role: registry_entry(DELEGATED[role], ACCOUNT) for role in DELEGATED}

tokens = st.sampled_from(["p1", "p2", "p3"])
users = st.sampled_from(["", "ann", "bob"])


@st.composite
def parents(draw: Callable[..., object]) -> Grant:
    role = draw(st.sampled_from(sorted(LENDS)))
    assert isinstance(role, str)
    entry = registry_entry(ROLES[role], ACCOUNT)
    top = ORIGINS.index(entry.origin) if entry.origin else -1
    return Grant(
        role=role,
        projects=draw(st.frozensets(tokens)),  # type: ignore[arg-type]
        see=draw(st.frozensets(st.sampled_from(CLASSIFICATIONS))),  # type: ignore[arg-type]
        verbs=draw(st.frozensets(st.sampled_from(entry.verbs), min_size=1)),  # type: ignore[arg-type]
        tools=draw(st.frozensets(tokens)),  # type: ignore[arg-type]
        ceiling=draw(st.integers(min(0, top), top)),  # type: ignore[arg-type]
        user="ann" if role == "user_session" else draw(users),  # type: ignore[arg-type]
        depth=draw(st.integers(0, DEPTH_MAX)),  # type: ignore[arg-type]
        expires_at=draw(st.sampled_from([0, NOW - 5, NOW + 50, NOW + 10_000])),  # type: ignore[arg-type]
    )


wishes = st.builds(
    Delegate,
    key=st.just(KEY),
    name=st.just("kid"),
    role=st.sampled_from(["", *ROLES]),
    projects=st.none() | st.lists(tokens, unique=True),
    clearance=st.sampled_from(["", *CLASSIFICATIONS]),
    verbs=st.none() | st.lists(st.sampled_from([*MEMORY_VERBS, "hold"]), unique=True),
    tools=st.none() | st.lists(tokens, unique=True),
    ceiling=st.sampled_from(["", *ORIGINS]),
    user=users,
    ttl=st.none() | st.integers(-1, 40_000),
)


@given(parent=parents(), wish=wishes)
def test_no_child_is_wider_than_its_parent_in_any_dimension(parent: Grant, wish: Delegate) -> None:
    role = wish.role or LENDS[parent.role][0]
    try:
        child = narrowed(parent, MOST.get(role, MOST["agent"]), wish, NOW)
    except TooWide:
        return
    assert child.role in LENDS[parent.role]
    assert child.projects <= parent.projects
    assert child.see <= parent.see
    assert child.clearance <= parent.clearance
    assert child.tools <= parent.tools
    assert child.depth == parent.depth + 1 <= DEPTH_MAX
    assert NOW < child.expires_at <= NOW + TTL_S_MAX[child.role]
    assert not parent.expires_at or child.expires_at <= parent.expires_at
    assert child.user == (parent.user or (wish.user if child.role == "user_session" else ""))
    assert (child.role == "user_session") <= bool(child.user)
    assert child.verbs <= frozenset(MOST[child.role].verbs)
    assert child.ceiling <= ORIGINS.index(MOST[child.role].origin)
    if parent.role not in STEWARDS:
        assert child.verbs <= parent.verbs
        assert child.ceiling <= parent.ceiling
    if wish.verbs is None:
        assert "delegate" not in child.verbs


@given(parent=parents(), wish=wishes)
def test_what_a_child_s_tags_say_is_read_as_what_was_granted(parent: Grant, wish: Delegate) -> None:
    role = wish.role or LENDS[parent.role][0]
    try:
        child = narrowed(parent, MOST.get(role, MOST["agent"]), wish, NOW)
    except TooWide:
        return
    if not child.verbs:  # the gatekeeper refuses a wish for none
        return
    tags = tags_of(child, "acme")
    assert grant_of(MOST[child.role], tags, child.expires_at) == child
    rights = rights_of(MOST[child.role], tags)
    assert (rights.projects, rights.verbs, rights.tools) == (child.projects, child.verbs, child.tools)
    assert (rights.ceiling, rights.clearance, rights.user) == (child.ceiling, child.clearance, child.user)
    assert rights.depth == child.depth


def test_a_request_is_its_parents_word_for_word() -> None:
    parent, other = keypair("user"), keypair("user")
    wish = signed(Delegate(key=KEY, name="kid", projects=["p1"], at=NOW), parent)
    assert is_signed(wish, parent.public)
    assert not is_signed(wish, other.public)
    assert is_signed(msgspec.structs.replace(wish, request_id="another try"), parent.public)
    changes: list[dict[str, Any]] = [
        {"name": "kit"}, {"projects": None}, {"projects": []}, {"ttl": 1}, {"at": NOW + 1}, {"verbs": ["write"]},
    ]  # fmt: skip
    for change in changes:
        assert not is_signed(msgspec.structs.replace(wish, **change), parent.public)
    assert statement(wish).startswith(b'cordon.delegate.1\n{"at":1800000000,"key":"')


# --- what the ledger says of a family -----------------------------------------------------------------------
def _child(
    story: Story, name: str, parent: str, via: str = "", expires: int = 60_000, role: str = "agent", user: str = ""
) -> E.AgentDelegated:
    event = E.AgentDelegated(
        ms=story.ms, agent=name.encode().ljust(16), name=name, key=f"U{name}", role=role,
        parent=story.t.agents.by_name[parent].id, via=via or f"U{parent}", projects=["p1"], expires=story.ms + expires, user=user,
    )  # fmt: skip
    story.apply(event)
    return event


def test_a_link_that_was_cut_ends_all_below_it_and_nothing_beside_it() -> None:
    story = Story()
    root = story.agent("root").agent
    for name, parent in (("a", "root"), ("b", "root"), ("a1", "a"), ("a2", "a1")):
        _child(story, name, parent)
    agents = story.t.agents.by_name

    def standing() -> set[str]:
        return {n for n in ("a", "b", "a1", "a2") if agents[n].stands(f"U{n}", story.ms)}

    assert standing() == {"a", "b", "a1", "a2"}
    assert [x.name for x in root.below(story.ms)] == ["a", "a1", "a2", "b"]
    story.apply(E.AgentRevoked(ms=story.ms, agent=agents["a"].id, keys=["Ua"], whole=True))
    assert standing() == {"b"}
    assert [x.name for x in agents["a"].below(story.ms)] == ["a1", "a2"]


def test_a_rotated_key_ends_what_it_delegated_and_a_newer_key_s_children_stay() -> None:
    story = Story()
    root = story.agent("root").agent
    story.apply(E.AgentIssued(ms=story.ms, agent=root.id, name="root", key="Unew", role="agent", projects=["p1"]))
    _child(story, "old", "root")
    _child(story, "new", "root", via="Unew")
    story.apply(E.AgentRevoked(ms=story.ms, agent=root.id, keys=["Uroot"]))
    agents = story.t.agents.by_name
    assert [agents[n].stands(f"U{n}", story.ms) for n in ("old", "new")] == [False, True]


def test_a_child_is_over_at_its_time() -> None:
    story = Story()
    story.agent("root")
    _child(story, "kid", "root", expires=1_000)
    kid = story.t.agents.by_name["kid"]
    assert [kid.stands("Ukid", story.ms + ms) for ms in (0, 999, 1_000)] == [True, True, False]


def test_a_gateways_users_have_a_context_each_and_others_share_their_roots() -> None:
    story = Story()
    story.agent("gateway", role="user_gateway")
    story.agent("boss", role="supervisor")
    for name, user in (("s1", "ann"), ("s2", "bob"), ("again", "ann")):
        _child(story, name, "gateway", role="user_session", user=user)
    _child(story, "h", "s1", user="ann")
    _child(story, "w1", "boss")
    _child(story, "w2", "boss")
    t, agents = story.t, story.t.agents.by_name
    contexts = {n: t.context_of(agents[n]) for n in ("gateway", "s1", "s2", "again", "h", "boss", "w1", "w2")}
    assert contexts["s1"] is contexts["h"] is contexts["again"]
    assert len({id(contexts[n]) for n in ("gateway", "s1", "s2")}) == 3
    assert contexts["boss"] is contexts["w1"] is contexts["w2"]
    assert agents["h"].chain == (agents["gateway"].id, agents["s1"].id)


def test_the_family_forgets_no_sooner_than_its_root() -> None:
    story = Story()
    story.project("p1", context_idle_hours=0)
    story.project("p2", context_idle_hours=1)
    story.agent("root", projects=("p1", "p2"))
    story.apply(
        E.AgentDelegated(
            ms=story.ms, agent=b"kid".ljust(16), name="kid", key="Ukid", role="agent", parent=story.t.agents.by_name["root"].id,
            via="Uroot", projects=["p2"], expires=story.ms + 1_000,
        )
    )  # fmt: skip
    assert story.t.context_idle_ms(story.t.agents.by_name["kid"]) == 0


def test_a_gateways_sessions_that_are_over_are_let_go_and_those_that_stand_are_all_there() -> None:
    story = Story()
    gateway = story.agent("gateway", "user_gateway").agent
    for i in range(1_000):
        story.ms += 100
        _child(story, f"s{i}", "gateway", expires=10_000, role="user_session", user=f"user{i}")
        assert len(gateway.children) <= 2 * max(CHILDREN_KEPT, 100)
    assert [a.name for a in gateway.below(story.ms)] == [f"s{i}" for i in range(900, 1_000)]
    assert len(story.t.agents.all) == 1_001  # who they were stays


def test_a_depth_is_the_issuers_word_alone() -> None:
    with pytest.raises(Refused) as refused:
        rights_of(registry_entry(ROLES["agent"], ACCOUNT), ["project:p1", "depth:1"])
    assert refused.value.code == "tag_invalid"
    assert rights_of(MOST["agent"], ["project:p1", "depth:1"]).depth == 1


def test_those_that_fell_leave_room_for_others() -> None:
    story = Story()
    root = story.agent("root")
    story.apply(E.AgentIssued(ms=story.ms, agent=root.agent.id, name="root", key="Unew", role="agent", projects=["p1"]))
    for i in range(CHILDREN_MAX - 1):
        _child(story, f"kid{i}", "root")
    Delegations._check_room(root, story.ms)
    _child(story, "last", "root")
    with pytest.raises(Refused) as full:
        Delegations._check_room(root, story.ms)
    assert (full.value.code, full.value.limit) == ("too_many_children", CHILDREN_MAX)
    story.apply(E.AgentRevoked(ms=story.ms, agent=root.agent.id, keys=["Uroot"]))
    Delegations._check_room(root, story.ms)


def test_a_grandchild_counts_for_all_above_it() -> None:
    story = Story()
    story.agent("root")
    parents = [f"kid{i}" for i in range(4)]
    for name in parents:
        _child(story, name, "root")
    for i in range(DESCENDANTS_MAX - len(parents)):
        _child(story, f"g{i}", parents[i % len(parents)])
    agents = story.t.agents.by_name
    for name in ("root", "kid0", "g0"):
        with pytest.raises(Refused) as full:
            Delegations._check_room(dataclasses.replace(story.agent(f"as-{name}"), agent=agents[name]), story.ms)
        assert full.value.field == "descendants"
