"""The subject grammar: two different names never meet in one subject."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import subjects
from bus.errors import Rejected
from bus.frames import VERB_OF
from bus.identity import keypair

tokens = st.text(string.ascii_lowercase + string.digits + "_-", min_size=1, max_size=64)
keys = st.binary(min_size=32, max_size=32).map(lambda entropy: keypair("user", entropy).public)
names = st.tuples(tokens, tokens, st.sampled_from(subjects.MEMORY_VERBS), keys)


@given(names, names)
def test_memory_subjects_are_injective(a: tuple[str, str, str, str], b: tuple[str, str, str, str]) -> None:
    assert (subjects.memory(*a) == subjects.memory(*b)) == (a == b)


@given(names, st.integers(0, 99))
def test_what_the_gatekeeper_parses_is_what_the_client_built(parts: tuple[str, str, str, str], shard: int) -> None:
    account, project, verb, key = parts
    tail = subjects.memory(account, project, verb, key).removeprefix("mem.")
    assert subjects.parse_inbound(f"in.{shard}.{tail}") == (str(shard), account, project, verb, key)
    tail = subjects.ops(account, verb, key).removeprefix("ops.")
    assert subjects.parse_inbound(f"op.{shard}.{tail}") == (str(shard), account, "", verb, key)


@given(st.text())
def test_a_subject_of_another_shape_is_not_parsed(subject: str) -> None:
    parts = subject.split(".")
    fits = (parts[0], len(parts)) in (("in", 6), ("op", 5))
    assert (subjects.parse_inbound(subject) is not None) == fits


@given(tokens)
def test_an_identity_token_is_taken_as_it_is(name: str) -> None:
    assert subjects.token(name, "tenant") == name


@pytest.mark.parametrize("name", ["", "*", ">", "a.b", "a b", "A", "ä", "a\n", "a\x00", "p" * 65, "project:*"])
def test_what_could_widen_or_break_a_subject_is_no_token(name: str) -> None:
    with pytest.raises(Rejected) as rejected:
        subjects.token(name, "project")
    assert (rejected.value.reason, rejected.value.field, rejected.value.limit) == ("bad_name", "project", 64)


@given(st.text(max_size=80))
def test_a_token_never_holds_a_separator_or_wildcard(name: str) -> None:
    if subjects.is_token(name):
        assert not set(name) & set(".*> \t\r\n")
        assert len(name.encode()) <= 64


@given(keys)
def test_public_keys_are_keys_and_their_lower_case_is_not(key: str) -> None:
    assert subjects.is_key(key)
    assert not subjects.is_key(key.lower())
    assert not subjects.is_key(key[:-1])


def test_every_request_has_a_verb_of_the_grammar() -> None:
    known = {*subjects.MEMORY_VERBS, *subjects.OPS_VERBS, *subjects.ADMIN_VERBS}
    assert set(VERB_OF.values()) <= known


def test_a_feed_pattern_takes_whole_tokens() -> None:
    assert subjects.feed("acme", "p1") == "feed.acme.p1.*.*"
    assert subjects.feed("acme", "p1", "internal", "held") == "feed.acme.p1.internal.held"
