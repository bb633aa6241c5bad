"""One table says who may do what on which verb: it has every verb of the grammar, and nothing else grants more."""

from __future__ import annotations

import ast
import dataclasses
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest

from broker_config.roles import ROLES, registry_entry
from broker_config.trust import CORE_USERS
from bus import frames
from bus.subjects import ADMIN_VERBS, MEMORY_VERBS, OPS_VERBS
from gate import rights
from gate.config import ProjectSettings
from gate.ledger import events as E
from gate.refusals import Refused
from gate.rights import TABLE, Tree, allow, decide, decide_all, enter, has_project, lent, lent_rows, served, visible_rows

from .story import Story

GATE = Path(rights.__file__).parent
VERBS: dict[Tree, tuple[str, ...]] = {"mem": MEMORY_VERBS, "ops": OPS_VERBS, "adm": ADMIN_VERBS}


def test_every_verb_of_the_grammar_has_a_row_and_every_row_a_verb() -> None:
    assert {tree: set(rows) for tree, rows in TABLE.items()} == {tree: set(verbs) for tree, verbs in VERBS.items()}


def test_every_verb_of_a_frame_has_a_row_and_what_is_served_has_a_frame() -> None:
    trees = {t: {v for f, v in frames.VERB_OF.items() if f.__name__.startswith("Adm") == (t == "adm")} for t in VERBS}
    assert trees["mem"] == served("mem") | served("ops")
    assert trees["adm"] >= served("adm")


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_s_key_is_granted_at_the_broker_is_what_the_table_says(role: str) -> None:
    granted = ROLES[role]
    grants: dict[Tree, tuple[str, ...] | None] = {"mem": granted.memory, "ops": granted.ops}
    for tree, verbs in grants.items():
        said = {verb for verb, row in TABLE[tree].items() if role in row.roles}
        assert said == set(VERBS[tree] if verbs is None else verbs), tree
    in_table = [verb for tree in grants for verb, row in TABLE[tree].items() if role in row.roles]
    assert sorted(registry_entry(granted, "A").verbs) == sorted(in_table)


def test_every_role_of_the_table_is_a_role() -> None:
    assert set(ROLES) == rights.ROLES


def test_the_control_plane_is_the_admin_s_and_the_janitor_s() -> None:
    for name, permissions in CORE_USERS.items():
        granted = {s.split(".")[2] for s in permissions("K", 0).pub.allow if s.startswith("adm.")}
        said = {verb for verb, row in TABLE["adm"].items() if name in row.roles}
        assert said == (set(ADMIN_VERBS) if "*" in granted else granted)


@pytest.mark.parametrize(("tree", "verb"), [(t, v) for t, verbs in VERBS.items() for v in verbs])
def test_a_verb_is_for_a_role_of_its_row_whose_credential_carries_it(tree: Tree, verb: str) -> None:
    row = TABLE[tree][verb]
    assert row.roles
    for role in {*rights.ROLES, "admin", "janitor", "", "root"}:
        for carried in (frozenset({verb}), frozenset[str]()):
            if role in row.roles and carried:
                assert allow(tree, verb, role, carried) is row
                continue
            with pytest.raises(Refused) as refused:
                allow(tree, verb, role, carried)
            assert refused.value.code == "verb_denied"


@pytest.mark.parametrize("verb", ["", "frobnicate", "WRITE", "write "])
def test_a_word_that_is_no_verb_is_unknown(verb: str) -> None:
    for tree in VERBS:
        with pytest.raises(Refused) as refused:
            allow(tree, verb, "operator", frozenset({verb}))
        assert refused.value.code == "verb_unknown"


def test_a_principal_without_a_verb_may_reach_nothing() -> None:
    story = Story()
    writer = story.agent("writer")
    seq = story.memory(writer)
    assert decide(writer, seq, story.ms)
    nobody = dataclasses.replace(writer, row=rights.NOTHING)
    assert not decide(nobody, seq, story.ms)
    assert not decide(nobody, writer.agent)


def test_many_rows_are_decided_as_one_by_one() -> None:
    story = Story()
    writer, operator = story.agent("writer"), story.agent("boss", role="operator")
    operator = dataclasses.replace(operator, row=TABLE["ops"]["why"])
    for class_, scope in product(range(3), range(2)):
        story.memory(writer, class_=class_, scope=scope)
    seqs = np.flatnonzero(story.t.columns.kind[: story.t.columns.n] >= 0).astype(np.int32)
    one_by_one = [s for s in seqs.tolist() if decide(operator, s, story.ms)]
    assert visible_rows(operator, seqs) == one_by_one
    assert 0 < len(one_by_one) < len(seqs)
    assert decide_all(operator, one_by_one)
    assert not decide_all(operator, seqs.tolist())


def test_a_tag_grants_inside_membership_alone_and_so_do_those_above_in_the_chain() -> None:
    story = Story("p1", "p2")
    boss, child = story.agent("boss"), story.agent("child")
    assert has_project(boss, "p2")
    assert not has_project(story.agent("other", projects=["p1"]), "p2")
    child.agent.chain = (boss.agent.id,)
    assert has_project(child, "p2")
    story.apply(E.ProjectChanged(ms=story.ms, name="p2", left=[boss.agent.id]))
    assert not has_project(boss, "p2")
    assert not has_project(child, "p2"), "whoever it acts for has left"
    assert has_project(child, "p1")
    story.apply(E.ProjectChanged(ms=story.ms, name="p2", joined=[boss.agent.id]))
    assert has_project(child, "p2")


@pytest.mark.parametrize(
    ("state", "closed"), [("active", set()), ("archived", {"write"}), ("deleted", {"write", "query", "get", "sync"})]
)
def test_a_project_s_state_closes_it_for_some_verbs(state: str, closed: set[str]) -> None:
    story = Story()
    writer = story.agent("writer")
    story.apply(E.ProjectChanged(ms=story.ms, name="p1", state=state))
    for verb in ("write", "query", "get", "sync"):
        p = dataclasses.replace(writer, row=TABLE["mem"][verb])
        if verb in closed:
            with pytest.raises(Refused) as refused:
                enter(p)
            assert refused.value.code == f"project_{state}"
        else:
            assert enter(p).name == "p1"


def test_the_roles_of_an_audience_are_those_that_read() -> None:
    reading = {role for row in TABLE["mem"].values() if row.recalls for role in row.roles}
    for role in rights.ROLES:
        if role in reading:
            assert msgspec.convert({"audience": [role]}, ProjectSettings).audience == [role]
        else:
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert({"audience": [role]}, ProjectSettings)


def test_one_memory_is_lent_as_many_are() -> None:
    story = Story("p1", "p2")
    writer, reader = story.agent("writer"), story.agent("reader", project="p2")
    for class_, scope, comp in product(range(3), range(4), (["project:p1"], ["project:p1", "project:p2"])):
        story.memory(writer, class_=class_, scope=scope, comp=comp)
    plain = story.memory(writer)
    story.apply(E.ProjectChanged(ms=story.ms, name="p1", shared_with=["p2"]))
    seqs = np.flatnonzero(story.t.columns.kind[: story.t.columns.n] >= 0).astype(np.int32)
    assert [s for s in seqs.tolist() if lent(reader, s)] == seqs[lent_rows(reader, seqs)].tolist()
    assert lent(reader, plain)
    classes = set(story.t.columns.cls[seqs[lent_rows(reader, seqs)]].tolist())
    assert classes == {0, 1}, "a public and an internal one of project scope"
    assert not lent_rows(writer, seqs).any(), "it is asked in the lender"


def test_nothing_else_in_the_gate_asks_for_a_role_or_compares_a_clearance() -> None:
    """Where rights are looked at outside of the table, and why."""
    allowed = {
        "identify.py": "makes the rights",
        "rights.py": "the table",
        "retrieve.py": "the same over columns, for recalls",
        "policy.py": "the same over columns, and who may set rules",
        "admit.py": "hands the clearance to the policy's columns",
        "last_look.py": "the alarm: an independent check of what is about to leave",
        "decide.py": "an operator may supersede what is not its own",
        "tenant.py": "an ingest key's note counts as read by its writer",
        "prepare.py": "the same, when it is written",
        "principals.py": "the ledger's record of an agent",
        "admin.py": "which roles there are",
        "admin_tenants.py": "exports a writer's role",
        "why.py": "shows a writer's role",
        "operators.py": "who may close a context: its supervisor, or who may see all that it was served",
        "delegation.py": "what a child may be: no wider than the credential that asks",
        "answers.py": "tells a verification what live state holds of an agent",
        "supersede.py": "whose memory may be replaced at once: an operator's word, and who may set rules",
    }
    found = set()
    for path in GATE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("role", "clearance"):
                found.add(path.name)
    assert found <= allowed.keys(), f"decide in gate/rights.py, or say why here: {sorted(found - allowed.keys())}"
