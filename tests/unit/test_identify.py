"""Who asks is the broker's word alone, and what it may do follows from the key that signed it: every lie is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.frames import CLASSIFICATIONS, ORIGINS
from bus.identity import RegistryEntry
from bus.subjects import MEMORY_VERBS, OPS_VERBS, Inbound
from gate.config import ProjectSettings, encode_settings
from gate.identify import HEADER, Identifier, rights_of
from gate.ledger import events as E
from gate.refusals import Refused
from gate.state.tenant import Tenant

ACME, GLOBEX, CORE = "A" * 56, "B" * 56, "C" * 56
ANN, BOB, STRANGER = "U" + "A" * 55, "U" + "B" * 55, "U" + "C" * 55
NOW_MS = 1_000
AGENT_KEY, OPS_KEY, FOREIGN_KEY, CHILD_KEY = "AAGENT", "AOPS", "AFOREIGN", "ACHILD"


def entry(role: str = "agent", **changes: Any) -> RegistryEntry:
    given: dict[str, Any] = {"tenant": ACME, "role": role, "origin": "agent_inferred", "classification": "restricted"}
    return RegistryEntry(**(given | {"verbs": [*MEMORY_VERBS]} | changes))


def tenant(account: str) -> Tenant:
    t = Tenant(account, "acme", b"k" * 32)
    events: list[E.AnyEvent] = [
        E.TenantAdded(ms=1, name="acme", by="admin"),
        *(E.ProjectChanged(ms=1, name=p, settings=encode_settings(ProjectSettings()), by="admin") for p in ("p1", "p2")),
        E.AgentIssued(ms=1, agent=b"a" * 16, name="ann", key=ANN, role="agent", projects=["p1"], by="admin"),
        E.AgentIssued(ms=1, agent=b"b" * 16, name="bob", key=BOB, role="operator", projects=["p1"], by="admin"),
    ]
    for seq, event in enumerate(events, 1):
        t.apply(seq, event)
    return t


@pytest.fixture
def identifier() -> Identifier:
    registry = {
        AGENT_KEY: entry(),
        OPS_KEY: entry("operator", origin="human_reviewed", verbs=["get", *OPS_VERBS]),
        FOREIGN_KEY: entry(tenant=GLOBEX),
        CHILD_KEY: entry(delegated=True),
    }
    return Identifier("0", CORE, {ACME: tenant(ACME)}, registry, lambda: NOW_MS)


def info(**changes: Any) -> dict[str, str]:
    said = {"acc": ACME, "user": ANN, "kind": "Client", "issuer_key": AGENT_KEY, "tags": ["tenant:acme", "project:p1"]}
    return {HEADER: json.dumps(said | changes)}


def at(**changes: str) -> Inbound:
    return Inbound("0", ACME, "p1", "write", ANN)._replace(**changes)


def refusal(identifier: Identifier, subject: Inbound, headers: dict[str, str] | None) -> str:
    with pytest.raises(Refused) as e:
        identifier.identify(subject, headers)
    return e.value.code


def test_a_registered_agent_is_who_the_broker_says(identifier: Identifier) -> None:
    p = identifier.identify(at(), info(name_tag="root"))
    assert (p.agent.name, p.key, p.role, p.project) == ("ann", ANN, "agent", "p1")


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (None, "credential_expired"),
        (E.AgentRevoked(ms=2, agent=b"c" * 16, keys=[STRANGER]), "credential_revoked"),
        (E.AgentRevoked(ms=2, agent=b"a" * 16, keys=[ANN]), "parent_revoked"),
    ],
)
def test_a_child_is_told_why_it_is_no_more(identifier: Identifier, event: E.AgentRevoked | None, code: str) -> None:
    t = identifier.tenants[ACME]
    child = E.AgentDelegated(
        ms=1, agent=b"c" * 16, name="ann--kid", key=STRANGER, role="agent", parent=b"a" * 16, via=ANN, projects=["p1"],
        verbs=["write"], ceiling=1, expires=NOW_MS + 1,
    )  # fmt: skip
    t.apply(t.position + 1, child)
    said = info(user=STRANGER, issuer_key=CHILD_KEY, tags=["project:p1", "verb:write", "depth:1"])
    assert identifier.identify(at(key=STRANGER), said).agent.name == "ann--kid"
    if event is None:
        identifier.now_ms = lambda: NOW_MS + 1
    else:
        t.apply(t.position + 1, event)
    assert refusal(identifier, at(key=STRANGER), said) == code


def test_what_was_revoked_or_suspended_is_refused_also_where_the_broker_has_not_heard_of_it(identifier: Identifier) -> None:
    t = identifier.tenants[ACME]
    second = "U" + "C" * 55
    t.apply(t.position + 1, E.AgentIssued(ms=2, agent=b"a" * 16, name="ann", key=second, role="agent", projects=["p1"]))
    t.apply(t.position + 1, E.AgentRevoked(ms=2, agent=b"a" * 16, keys=[ANN]))
    assert refusal(identifier, at(), info()) == "credential_revoked"
    assert identifier.identify(at(key=second), info(user=second)).agent.name == "ann"
    t.apply(t.position + 1, E.TenantChanged(ms=3, state="suspended"))
    assert refusal(identifier, at(key=second), info(user=second)) == "tenant_suspended"
    t.apply(t.position + 1, E.TenantChanged(ms=4, state="active"))
    assert identifier.identify(at(key=second), info(user=second)).agent.name == "ann"
    t.apply(t.position + 1, E.AgentRevoked(ms=5, agent=b"a" * 16, keys=[second], whole=True))
    assert refusal(identifier, at(key=second), info(user=second)) == "credential_revoked"


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        {HEADER: ""},
        {HEADER: "not json"},
        {HEADER: "[]"},
        {HEADER: '{"user": 5}'},
        {HEADER.lower(): info()[HEADER]},
        {HEADER.upper(): info()[HEADER]},
        {HEADER + " ": info()[HEADER]},
        {" " + HEADER: info()[HEADER]},
    ],
)
def test_without_the_brokers_exact_header_there_is_no_identity(identifier: Identifier, headers: dict[str, str] | None) -> None:
    assert refusal(identifier, at(), headers) == "identity_missing"


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (at(key=BOB), info()),  # the subject of another agent
        (at(), info(user=BOB)),
        (at(account=GLOBEX), info()),  # another tenant's subject
        (at(), info(acc=GLOBEX)),
        (at(account=CORE), info(acc=CORE)),  # inside CORE nobody is an agent
        (at(shard="1"), info()),
        (at(), info(kind="Leafnode")),  # the leaf's user, not the agent's
        (at(), info(kind="")),
        (at(key=BOB), info(user=BOB)),  # registered as operator, signed as agent
    ],
)
def test_a_subject_that_the_brokers_word_does_not_cover_is_refused(
    identifier: Identifier, subject: Inbound, said: dict[str, str]
) -> None:
    assert refusal(identifier, subject, said) == "identity_mismatch"


def test_unknown_tenants_keys_and_signers_are_told_apart(identifier: Identifier) -> None:
    assert refusal(identifier, at(account=GLOBEX), info(acc=GLOBEX)) == "tenant_unknown"
    assert refusal(identifier, at(), info(issuer_key="AUNKNOWN")) == "issuer_unknown"
    assert refusal(identifier, at(), info(issuer_key="")) == "issuer_unknown"
    assert refusal(identifier, at(), info(issuer_key=FOREIGN_KEY)) == "issuer_unknown"  # of another tenant
    assert refusal(identifier, at(key=STRANGER), info(user=STRANGER)) == "agent_unregistered"


def test_a_new_registry_counts_at_once(identifier: Identifier) -> None:
    identifier.identify(at(), info())
    identifier.use_registry({})
    assert refusal(identifier, at(), info()) == "issuer_unknown"


def test_verbs_are_unknown_or_denied(identifier: Identifier) -> None:
    assert refusal(identifier, at(verb="frobnicate"), info()) == "verb_unknown"
    assert refusal(identifier, at(verb="hold"), info()) == "verb_unknown"  # an operator's verb on an agent's subject
    assert refusal(identifier, at(verb="query"), info(tags=["project:p1", "verb:write"])) == "verb_denied"
    operator = info(user=BOB, issuer_key=OPS_KEY, tags=["project:p1"])
    assert refusal(identifier, at(key=BOB), operator) == "verb_denied"
    assert identifier.identify(at(key=BOB, project="", verb="hold"), operator).role == "operator"
    assert refusal(identifier, at(project="", verb="hold"), info()) == "verb_denied"


def test_a_project_needs_its_tag_and_must_be_there_and_the_nearest_is_named(identifier: Identifier) -> None:
    for name, tags in (
        ("p2", ["project:p1"]),
        ("p11", ["project:p1"]),
        ("p", ["project:p1"]),
        ("p3", ["project:p1", "project:p3"]),
    ):
        with pytest.raises(Refused) as e:
            identifier.identify(at(project=name), info(tags=tags))
        assert (e.value.code, e.value.detail) == ("project_unknown", {"nearest": "p1"})
    with pytest.raises(Refused) as e:  # what the credential has no tag for is not named either
        identifier.identify(at(project="p2"), info(tags=["project:p9"]))
    assert e.value.detail == {}
    assert identifier.identify(at(project="p2"), info(tags=["project:p2"])).project == "p2"


# --- tags -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "tags",
    [
        ["role:operator"],
        ["role:operator", "ceiling:system"],
        ["ceiling:system"],
        ["ceiling:user_stated"],
        ["ceiling:nonsense"],
        ["ceiling:external", "ceiling:external"],
        ["user:ann", "user:bob"],
        ["person:a", "person:b"],
        ["project:p1", "project:p1"],
        ["project:*"],
        ["project:>"],
        ["project:p1.p2"],
        ["project:P1"],
        ["project:"],
        ["project"],
        ["see:*"],
        ["see:secret"],
        ["verb:hold"],
        ["verb:*"],
        ["tool:a b"],
        ["tool:" + "x" * 65],
        ["person:Ann <b>"],
        ["tenant:acme", "tenant:globex"],
        ["PROJECT:p1"],
        ["admin:true"],
        [""],
    ],
)
def test_a_doubled_unknown_unsafe_or_widening_tag_is_refused(tags: list[str]) -> None:
    with pytest.raises(Refused) as e:
        rights_of(entry(), tags)
    assert e.value.code == "tag_invalid"


def test_tags_narrow_and_grant_only_inside_the_keys_maximum() -> None:
    plain = rights_of(entry(), [])
    assert (plain.clearance, plain.projects) == (CLASSIFICATIONS.index("public"), frozenset())
    assert plain.ceiling == ORIGINS.index("agent_inferred")
    narrow = rights_of(entry(), ["ceiling:external", "see:internal", "project:p1", "project:p2", "verb:query", "user:ann"])
    assert (narrow.ceiling, narrow.clearance) == (ORIGINS.index("external"), CLASSIFICATIONS.index("internal"))
    assert (narrow.projects, narrow.verbs, narrow.user) == (frozenset({"p1", "p2"}), frozenset({"query"}), "ann")
    with pytest.raises(Refused):
        rights_of(entry(classification="internal"), ["see:restricted"])
    assert rights_of(entry(), ["see:restricted"]).clearance == CLASSIFICATIONS.index("restricted")


def test_a_users_session_says_whose_it_is() -> None:
    session = entry("user_session", origin="user_stated")
    with pytest.raises(Refused) as e:
        rights_of(session, ["project:p1"])
    assert e.value.code == "tag_invalid"
    assert rights_of(session, ["project:p1", "user:ann"]).user == "ann"


def test_a_role_without_an_origin_has_no_ceiling() -> None:
    assert rights_of(entry("auditor", origin=""), []).ceiling == -1
    with pytest.raises(Refused):
        rights_of(entry("auditor", origin=""), ["ceiling:external"])


def test_only_a_registered_tool_lifts_an_ingest_key_and_a_ceiling_keeps_it_down() -> None:
    ingest = entry("ingest", origin="external")
    assert rights_of(ingest, []).tool_ceiling == ORIGINS.index("external")
    assert rights_of(ingest, ["tool:scanner"]).tool_ceiling == ORIGINS.index("tool_result")
    assert rights_of(ingest, ["tool:scanner", "ceiling:external"]).tool_ceiling == ORIGINS.index("external")
