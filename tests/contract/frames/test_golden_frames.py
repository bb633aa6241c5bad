"""The bytes of every frame are committed: an accidental change of the wire fails here."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from bus.frames import VERB_OF, Answer, Frame, Push, Reply, Sign, Signed, decode_push, decode_reply, encode

from .samples import FOLDER, SAMPLES, golden


def decode(data: bytes, kind: type[Frame]) -> Any:
    if kind in get_args(Reply):
        return decode_reply(data)
    if kind in get_args(Push):
        return decode_push(data)
    return msgspec.json.decode(data, type=kind)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_frame_has_its_golden_bytes(name: str) -> None:
    assert encode(SAMPLES[name]) == golden(name).read_bytes()


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_bytes_are_read_as_the_same_frame(name: str) -> None:
    assert decode(golden(name).read_bytes(), type(SAMPLES[name])) == SAMPLES[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_reader_ignores_fields_of_a_later_version(name: str) -> None:
    later = golden(name).read_bytes()[:-1] + b',"field_of_2028":[1]}'
    assert decode(later, type(SAMPLES[name])) == SAMPLES[name]


def test_every_frame_has_a_golden_file_and_no_file_is_left_over() -> None:
    on_the_wire = {*VERB_OF, *get_args(Reply), *get_args(Push), Sign, Signed}
    assert {type(frame) for frame in SAMPLES.values()} == on_the_wire
    assert {path.stem for path in FOLDER.glob("*.json")} == set(SAMPLES)


def test_every_answer_names_its_request_agent_and_project_even_when_empty() -> None:
    for frame in SAMPLES.values():
        if isinstance(frame, Answer):
            assert {"type", "request_id", "agent", "project"} <= msgspec.json.decode(encode(frame), type=dict[str, Any]).keys()
