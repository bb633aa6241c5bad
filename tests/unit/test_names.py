"""Two different names never meet, in no subject, file, table, index or tag, and every name that is let in comes out as it was."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from string import ascii_lowercase, digits

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker_config.home import Home
from bus import subjects
from bus.errors import Rejected
from bus.identity import parse_tags, user_token
from bus.subjects import Inbound, is_token, is_user_token, parse_inbound
from cli.render import render_untrusted
from gate.ledger import events as E
from gate.paths import Paths
from gate.projections.catalog import Catalog, MemoryRow
from gate.state.tenant import Tenant

KEY, OTHER_KEY = b"k" * 32, b"l" * 32
ACCOUNT, NKEY = "A" + "B" * 55, "U" + "C" * 55
TOKEN = st.text(ascii_lowercase + digits + "-_", min_size=1, max_size=64)
NEAR = st.sampled_from([
    "a.b", "a-b", "a_b", "A.B", "a", "ab", "a-", "-a", "a b", "a/b", "a\\b", "a*", "a>",
    "*", ">", "..", ".", "", "a\0", "a\n", "а-b", "ａ-ｂ",
    "a\u2010b", "a\u00adb", "a\u200bb", "K", "\u212a", "k", "ß", "ss", "ﬁ", "fi", "é", "e\u0301",
    "x" * 64, "x" * 63, "x" * 63 + "y", "x" * 65,
    "x" * 200, "_", "-", "--", "con", "nul", "%61", "a%2eb", "usr_" + "a" * 16, "$SYS", "_INBOX",
])  # fmt: skip
ANY = st.one_of(NEAR, TOKEN, st.text(max_size=200))
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def matches(pattern: str, subject: str) -> bool:
    """Whether a NATS subscription to `pattern` gets `subject`."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for i, want in enumerate(wanted):
        if want == ">":
            return len(tokens) > i
        if i >= len(tokens) or want not in ("*", tokens[i]):
            return False
    return len(wanted) == len(tokens)


@QUICK
@given(ANY)
@example("a\n")
def test_a_name_is_a_token_or_refused_and_nothing_in_between(name: str) -> None:
    if re.fullmatch(r"[a-z0-9_-]{1,64}", name, re.ASCII) and not name.endswith("\n"):
        assert subjects.token(name, "project") == name
        return
    assert not is_token(name)
    with pytest.raises(Rejected) as refused:
        subjects.token(name, "project")
    assert refused.value.reason == "bad_name"
    assert len(refused.value.message) < 500, "a name of any length is shown short"


@QUICK
@given(TOKEN, TOKEN)
@example("a-b", "a_b")
@example("x" * 63 + "y", "x" * 63)
def test_two_names_share_no_subject_and_one_comes_back_from_its_own(one: str, two: str) -> None:
    for name in (one, two):
        inside = f"in.0.{ACCOUNT}.{name}.write.{NKEY}"
        assert parse_inbound(inside) == Inbound("0", ACCOUNT, name, "write", NKEY)
        assert subjects.memory("t", name, "write", NKEY).split(".")[2] == name
    if one == two:
        return
    for made in (
        [subjects.memory("t", n, "write", NKEY) for n in (one, two)],
        [subjects.memory(n, "p", "write", NKEY) for n in (one, two)],
        [subjects.ops(n, "why", NKEY) for n in (one, two)],
    ):
        assert made[0] != made[1]
        assert len(made[0].split(".")) == len(made[1].split("."))
    said = (
        subjects.memory("T", two, "write", NKEY),
        subjects.feed("T", two, "internal", "memory"),
        subjects.memory(two, "T", "x", NKEY),
    )
    for granted in (f"mem.T.{one}.*.{NKEY}", subjects.feed("T", one), f"mem.{one}.*.*.{NKEY}", f"feed.{one}.>"):
        assert not any(matches(granted, subject) for subject in said)
    assert all(matches(f"mem.T.{n}.*.{NKEY}", subjects.memory("T", n, "write", NKEY)) for n in (one, two))


@QUICK
@given(TOKEN, TOKEN)
def test_two_names_share_no_file_on_any_file_system_and_none_lies_in_the_other_s(one: str, two: str) -> None:
    home, paths = Home("/h"), Paths(Path("/h"))
    for kind in (
        home.tenant_trust, home.deleted, home.latest_export, paths.deleted,
        lambda n: home.agent_creds(n, "a"), lambda n: home.agent_creds("t", n), lambda n: home.policy("t", n),
    ):  # fmt: skip
        made = kind(one)
        assert one in made.parts or made.name.rpartition(".")[0] == one
        assert made.is_relative_to("/h"), "no name leads out"
        if one != two:
            folded = [str(kind(n)).casefold() for n in (one, two)]
            assert folded[0] != folded[1]
            assert not kind(one).is_relative_to(kind(two))


@QUICK
@given(TOKEN, TOKEN)
def test_a_credential_s_tags_say_exactly_the_names_that_it_was_given(one: str, two: str) -> None:
    tags = parse_tags([f"project:{n}" for n in dict.fromkeys((one, two))])
    assert tags["project"] == tuple(dict.fromkeys((one, two)))


@QUICK
@given(ANY, ANY)
@example("é", "e\u0301")
@example("K", "\u212a")
@example("user", "user ")
@example("usr_" + "a" * 16, "a")
def test_two_end_users_are_two_tokens_and_one_user_always_the_same(one: str, two: str) -> None:
    tokens = {user: _token_of(user) for user in (one, two)}
    if one != two and all(tokens.values()):
        assert tokens[one] != tokens[two]


def _token_of(user: str) -> str:
    """Its token; empty if it is refused, as it must be then."""
    raw = user.encode("utf-8", "surrogatepass")
    if not raw or len(raw) > 256 or "\0" in user or any("\ud800" <= c <= "\udfff" for c in user):
        with pytest.raises(Rejected) as refused:
            user_token(KEY, user)
        assert refused.value.reason == "user_invalid"
        return ""
    token = user_token(KEY, user)
    assert is_user_token(token)
    assert is_token(token), "so it may stand in a tag"
    assert token == user_token(KEY, user) != user_token(OTHER_KEY, user)
    assert token != user, "a token of a token is another"
    return token


@settings(max_examples=20, deadline=None)
@given(st.lists(TOKEN, min_size=2, max_size=8, unique=True), st.lists(NEAR.filter(bool), min_size=2, max_size=8, unique=True))
def test_two_names_share_no_number_and_two_sources_no_row(names: list[str], sources: list[str]) -> None:
    """Projects of a tenant are numbers inside; evidence is looked up in SQL by a hash, and compared in full."""
    t = Tenant(ACCOUNT, "t", KEY)
    for seq, name in enumerate(names, 1):
        t.apply(seq, E.ProjectChanged(ms=1, name=name))
    assert [t.project_names[t.projects[name].number] for name in names] == names
    assert len({p.number for p in t.projects.values()}) == len(names)
    sources = [s.replace("#", "") for s in sources]
    with tempfile.TemporaryDirectory() as folder, Catalog(Path(folder) / "c.sqlite", "stream") as catalog:
        rows = [MemoryRow(i, b"", source, (source,), "", "", "", "", source) for i, source in enumerate(sources, 1)]
        catalog.apply(rows, 1, len(rows), b"h")
        for i, source in enumerate(sources, 1):
            assert catalog.find_source(source) == [i]
            assert catalog.fetch([i])[i].scope_id == source
        assert [row.content for row in catalog.after(0, 99)] == sources
        assert [row.seq for row in catalog.after(1, 1)] == [2]


@QUICK
@given(st.text(max_size=128))
@example("\x1b[31mred\u202ekcab")
def test_a_display_name_of_any_characters_is_shown_on_one_line_and_drives_no_terminal(display: str) -> None:
    shown = render_untrusted(display)
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
