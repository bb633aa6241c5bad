"""Frames: what is encoded is what is read, and what isn't a frame is refused by its own error."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import limits
from bus.errors import (
    Conflict,
    CordonError,
    Denied,
    FrameTooLarge,
    MalformedFrame,
    Rejected,
    Unavailable,
    WriteRejected,
)
from bus.frames import (
    ORIGINS,
    VERB_OF,
    Actor,
    AdminRequest,
    Case,
    Draft,
    Frame,
    Item,
    Memory,
    MemoryRequest,
    Notice,
    OpsRequest,
    Plan,
    Push,
    Query,
    Recall,
    Receipt,
    Redaction,
    Refusal,
    Reply,
    decode_push,
    decode_reply,
    encode,
    raise_refusal,
    words_of,
)

texts = st.text(max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
    Any: json_values,
}


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if kind in SCALARS:
        return SCALARS[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of([of(arg) for arg in args])
    if origin is list:
        return st.lists(of(args[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(of(args[0]), of(args[1]), max_size=3)
    hints = get_type_hints(kind)
    fields = {f.name: of(hints[f.name]) for f in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


@given(st.one_of([of(kind) for kind in get_args(Reply)]))
def test_an_answer_is_read_as_it_was_encoded(frame: Frame) -> None:
    assert decode_reply(encode(frame)) == frame


@given(st.one_of([of(kind) for kind in get_args(Push)]))
def test_a_pushed_frame_is_read_as_it_was_encoded(frame: Frame) -> None:
    assert decode_push(encode(frame)) == frame


@given(st.one_of([of(kind) for kind in VERB_OF]))
def test_a_request_is_read_as_it_was_encoded(frame: Frame) -> None:
    assert msgspec.json.decode(encode(frame), type=type(frame)) == frame


@given(st.binary() | json_values.map(msgspec.json.encode))
def test_what_is_no_frame_is_malformed_and_nothing_else(data: bytes) -> None:
    for decode in (decode_reply, decode_push):
        with pytest.raises(MalformedFrame):
            decode(data)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"type":"receipt"}', b'{"type":"draft","content":"a"}', b"\xff", b""])
def test_deep_incomplete_or_misplaced_frames_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_reply(data)


def test_a_receipt_is_no_pushed_frame_and_a_feed_frame_no_answer() -> None:
    feed = b'{"type":"feed","project":"p1","classification":"internal","kind":"memory","ids":[],"position":1}'
    assert decode_push(feed).position == 1
    with pytest.raises(MalformedFrame):
        decode_reply(feed)
    answer = encode(receipt())
    assert decode_reply(answer) == receipt()
    with pytest.raises(MalformedFrame):
        decode_push(answer)


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda text: Draft(content=text), limits.DRAFT_FRAME_BYTES_MAX),
        (lambda text: Query(text=text), limits.QUERY_FRAME_BYTES_MAX),
    ],
)
def test_a_request_is_encoded_up_to_its_limit_and_no_further(make: Any, limit: int) -> None:
    frame_bytes = len(encode(make("")))
    assert len(encode(make("x" * (limit - frame_bytes)))) == limit
    with pytest.raises(FrameTooLarge) as too_large:
        encode(make("x" * (limit - frame_bytes + 1)))
    assert (too_large.value.size, too_large.value.limit) == (limit + 1, limit)


def test_every_request_has_a_verb() -> None:
    assert set(VERB_OF) == {*get_args(MemoryRequest), *get_args(OpsRequest), *get_args(AdminRequest)}


def test_frames_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Draft(content="a").content = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("error", "request_type", "kind"),
    [
        ("rejected", Draft, WriteRejected),
        ("rejected", Query, Rejected),
        ("conflict", Draft, Conflict),
        ("denied", Query, Denied),
        ("unavailable", Query, Unavailable),
        ("internal", Draft, Unavailable),
        ("malformed", Draft, MalformedFrame),
    ],
)
def test_a_refusal_becomes_the_error_of_its_class(error: Any, request_type: type[Frame], kind: type[CordonError]) -> None:
    refusal = Refusal(error=error, reason="over_quota", message="Over a quota.", advice="Slow down.", retry_after_s=0.5)
    raised = raise_refusal(refusal, request_type)
    assert type(raised) is kind
    assert (raised.reason, str(raised)) == ("over_quota", "Over a quota. Slow down.")
    if isinstance(raised, Unavailable):
        assert raised.retry_after_s == 0.5


# --- what a person reads ----------------------------------------------------------------------------
def receipt(**fields: Any) -> Receipt:
    least: dict[str, Any] = {
        "id": "mem_00000001",
        "state": "active",
        "trust": 0.5,
        "trust_floor": 0.5,
        "origin": "agent_inferred",
    }
    return Receipt(**{**least, "actor": Actor(id="agt_1"), "position": 1, **fields})


def test_a_receipt_is_a_sentence() -> None:
    assert str(receipt()) == "00000001 stored as active, trust 0.5 (agent_inferred)."
    assert str(receipt(duplicate=True, parents=["mem_2"])) == (
        "00000001 already stored as active, trust 0.5 (agent_inferred), derived from 1 memory."
    )
    held = receipt(state="held", reasons=["instruction_shaped"], redactions=[Redaction(type="key", start=0, end=4)])
    assert str(held) == (
        "00000001 stored as held, trust 0.5 (agent_inferred), 1 secret cut out; held for instruction_shaped: an operator decides."
    )


def item(id: str) -> Item:
    memory = Memory(
        id=id, content="\x1b[31ma", kind="fact", project="p1", origin="external", trust=0.2, trust_floor=0.2,
        actor=Actor(id="agt_1"), written_at="2026-01-31T12:00:00Z",
    )  # fmt: skip
    return Item(memory=memory, decision="admit", reasons=["within_policy"])


def test_a_refusal_of_a_field_says_in_its_sentence_which_and_how_much_it_holds() -> None:
    refusal = Refusal(
        error="rejected", reason="too_long", message="A field is over its limit.", advice="Cut it.", field="content"
    )
    assert str(raise_refusal(refusal, Draft)) == "[content] A field is over its limit. Cut it."
    limited = msgspec.structs.replace(refusal, limit=65_536)
    assert str(raise_refusal(limited, Draft)) == "[content, limit 65,536] A field is over its limit. Cut it."
    quota = msgspec.structs.replace(limited, error="unavailable")
    assert str(raise_refusal(quota, Draft)) == "[content, limit 65,536] A field is over its limit. Cut it."
    assert raise_refusal(limited, Draft).message == "A field is over its limit."


@pytest.mark.parametrize(
    ("frame", "field", "words"),
    [
        (Query, "tool_risk", ["none", "read_only", "writes_local", "external_side_effect", "privileged"]),
        (Query, "required_origin[...]", list(ORIGINS)),
        (Draft, "origin", list(ORIGINS)),  # the empty one stands for none
        (Draft, "content", []),
        (Draft, "nonesuch", []),
    ],
)
def test_the_words_that_a_field_takes_are_known(frame: type[Frame], field: str, words: list[str]) -> None:
    assert words_of(frame, field) == words


def test_a_recall_is_as_long_as_what_was_admitted_and_its_sentence_holds_no_agent_s_text() -> None:
    two = Recall(recall_id="rec_1", admitted=[item("mem_00000002"), item("mem_00000001")], withheld={"held": 3})
    assert (len(two), [i.memory.id for i in two]) == (2, two.ids)
    assert str(two) == "2 admitted: 00000002 00000001; withheld: 3 held."
    none = Recall(recall_id="rec_1", why_empty="nothing in this project matches")
    assert (bool(none), list(none)) == (False, [])
    assert str(none) == "Nothing was admitted: nothing in this project matches."


def test_notices_plans_and_cases_are_sentences() -> None:
    told: dict[str, Any] = {"notice": "n", "agent": "", "case": "case_00000009", "position": 1}
    held = Notice(kind="recall", ids=["mem_00000001"], total=1, **told)
    assert str(held) == "case 00000009, you were served what is now held: 00000001"
    many = Notice(kind="released", ids=[f"mem_0000000{i}" for i in range(9)], total=12, **told)
    assert str(many).endswith("what was held is released: " + " ".join(f"0000000{i}" for i in range(8)) + " and 4 more")
    plan = Plan(plan="plan_1", roots=[], members=[], count=1, agents_to_tell_count=1, told_elsewhere=1)
    assert str(plan) == "plan_1 would hold 1 memory and tell 2 agents."
    case = Case(case="case_00000009", state="open", by="ops", count=1_200, told_count=2, acked_count=1)
    assert str(case) == "00000009 is open: 1,200 memories; 1 of 2 told have acknowledged."
    assert str(msgspec.structs.replace(case, told_count=0)).endswith("; nobody was told.")


def test_the_ids_of_a_recall_are_in_rank_order() -> None:
    assert Recall(recall_id="rec_1", admitted=[item("mem_2"), item("mem_1")]).ids == ["mem_2", "mem_1"]
    assert Recall(recall_id="rec_1").ids == []
