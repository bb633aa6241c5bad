"""What a memory looks like in an answer: excerpts, times, and items that are made to fit a frame."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.frames import Actor, Item, Memory
from bus.limits import RECALL_FRAME_BYTES_MAX, SUMMARY_CHARS, TRUNCATED_CHARS
from gate.reading import last_look
from gate.reading.last_look import REST_BYTES, _within_budget
from gate.reading.surface import rfc3339, shortened, summary


def item(content: str, evidence: list[str] | None = None, readers: list[list[str]] | None = None, rank: int = 0) -> Item:
    memory = Memory(
        id="mem_x", content=content, kind="fact", project="p1", origin="agent_inferred", trust=0.5, trust_floor=0.5,
        actor=Actor(id="agt_x"), written_at="2026-01-01T00:00:00.000Z", evidence=evidence or [], readers=readers,
    )  # fmt: skip
    return Item(memory=memory, rank=rank, decision="admit", reasons=["within_policy"])


def size(items: list[Item | None]) -> int:
    return len(msgspec.json.encode([x for x in items if x is not None]))


# --- excerpts -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        ("One! Two", "One!"),
        ("One? Two", "One?"),
        ("一。二。", "一。二。"),  # no space behind it: not the end of a sentence for sure
        ("一。 二。", "一。"),
        ("One\nTwo", "One"),
        ("  One. Two", "One."),
        ("v1.2 is out. Upgrade.", "v1.2 is out."),
        ("one", "one"),
    ],
)
def test_an_excerpt_is_the_first_sentence(text: str, first: str) -> None:
    assert summary(text) == first


@given(st.text(min_size=1, max_size=600))
def test_an_excerpt_is_short_and_the_beginning_of_the_text(text: str) -> None:
    got = summary(text)
    assert len(got) <= SUMMARY_CHARS
    assert text.strip().startswith(got.removesuffix("…"))


# --- times --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (1_798_761_600_000, "2027-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_times_are_utc_to_the_millisecond_up_to_the_last_that_can_be_said(ms: int, text: str) -> None:
    assert rfc3339(ms) == text


# --- fitting a frame ----------------------------------------------------------------------------------
def test_a_shortened_item_says_so_and_keeps_its_labels() -> None:
    short = shortened(item("x" * 5_000, ["https://e.example"], [["agent:a"]], rank=3))
    assert (short.truncated, short.memory.content, short.memory.evidence) == (True, "x" * TRUNCATED_CHARS, [])
    assert (short.memory.readers, short.rank, short.memory.trust) == ([["agent:a"]], 3, 0.5)


def test_while_there_is_room_items_stay_whole_in_order_of_rank() -> None:
    items = [item("x" * 65_536, rank=i) for i in range(20)]
    found = _within_budget(items)
    cut = [x.truncated for x in found if x is not None]
    assert len(cut) == 20
    assert cut == sorted(cut), "the best are whole"
    assert 5 <= cut.count(False) < 10
    assert RECALL_FRAME_BYTES_MAX - REST_BYTES - 66_000 < size(found) <= RECALL_FRAME_BYTES_MAX - REST_BYTES


def test_a_small_item_behind_large_ones_stays_whole() -> None:
    found = _within_budget([*(item("x" * 65_536) for _ in range(12)), item("small")])
    assert found[-1] is not None
    assert not found[-1].truncated


def test_one_item_may_fill_the_frame() -> None:
    content = "\x01" * 65_536
    [only] = _within_budget([item(content)])
    assert only is not None
    assert only.memory.content == content


def test_what_fits_in_no_way_is_left_out_and_the_rest_is_there() -> None:
    many = [[f"agent:{'x' * 56}-{i}" for i in range(32)] for _ in range(16)]
    found = _within_budget([item("x", readers=many) for _ in range(64)])
    assert found[0] is not None
    assert None in found
    assert size(found) <= RECALL_FRAME_BYTES_MAX - REST_BYTES


@pytest.mark.parametrize("char", ["x", "\x01", '"', "é"])
def test_what_is_left_out_of_a_frame_is_never_encoded(char: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the largest texts is 4 MB, 25 MB as JSON: its reader would stop everybody else for as long as that takes."""
    encoded = 0

    def counting(x: object) -> bytes:
        nonlocal encoded
        data = msgspec.json.encode(x)
        encoded += len(data)
        return data

    monkeypatch.setattr(last_look, "_encode", counting)
    found = _within_budget([item(char * (65_536 // len(char.encode()))) for _ in range(64)])
    assert None not in found
    assert encoded <= RECALL_FRAME_BYTES_MAX


BODIES = st.builds(
    lambda char, n, evidence, e: item(char * n, [char * e] * evidence),
    st.sampled_from(["x", "\x01", '"', "é", "🙂", "\\"]),
    st.integers(1, 16_000),
    st.integers(0, 8),
    st.integers(1, 512),
)


@given(st.lists(BODIES, max_size=64))
def test_whatever_the_items_they_fit_and_none_is_lost_without_need(items: list[Item]) -> None:
    found = _within_budget(items)
    assert len(found) == len(items)
    assert None not in found
    assert size(found) <= RECALL_FRAME_BYTES_MAX - REST_BYTES + 2
    for given_, got in zip(items, found, strict=True):
        assert got is not None
        assert got in (given_, shortened(given_))
