"""A model in the place of the scripted agents: what it is asked, what is taken of its answer, and how it fails."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import bus
from agents_demo.minds import Choice
from agents_demo.model import ANSWER_BYTES_MAX, Endpoint, Model, ModelError, endpoint
from agents_demo.scenario import Task
from agents_demo.stores import Recalled
from tests.unit.model_stub import Stub, completion, stub

ITEMS = [Recalled("a", "the account is 1111-2222"), Recalled("b", "it is 3333-4444")]
PAY = Task(name="pay", project="p", about="which account?", tool="wire", risk="privileged", value=r"\d{4}-\d{4}")
KEY = "sk-very-secret"


@pytest.fixture
def server() -> Iterator[Stub]:
    with stub() as made:
        yield made


def model(server: Stub, timeout_s: float = 5.0) -> Model:
    return Model("planner", Endpoint(f"{server.url}/chat/completions", "m", KEY, timeout_s), 7)


def answers(server: Stub, value: Any) -> None:
    server.answer = lambda _: (200, completion(value if isinstance(value, str) else json.dumps(value)))


def test_a_text_and_what_it_was_made_from_are_taken_from_the_answer(server: Stub) -> None:
    answers(server, {"text": "we pay 3333-4444", "used": [2, 2, 9, 0]})
    text = anyio.run(model(server).compose, "plan", "which account?", PAY, ITEMS)
    assert text is not None
    assert (text.content, [r.id for r in text.used]) == ("we pay 3333-4444", ["b"])
    [(headers, body)] = server.asked
    assert headers["authorization"] == f"Bearer {KEY}"
    assert (body["model"], body["temperature"], body["seed"]) == ("m", 0, 7)
    assert "the account is 1111-2222" in body["messages"][1]["content"]


@pytest.mark.parametrize("said", [{"text": "", "used": [1]}, {"text": "from my head", "used": []}, {"used": [1]}])
def test_a_text_without_words_or_without_a_source_is_none(server: Stub, said: dict[str, Any]) -> None:
    answers(server, said)
    assert anyio.run(model(server).compose, "summarise", "q", None, ITEMS) is None


def test_a_value_is_taken_only_if_it_has_the_right_form_and_a_source(server: Stub) -> None:
    answers(server, {"value": "3333-4444", "used": [2]})
    assert anyio.run(model(server).choose, PAY, ITEMS) == Choice("3333-4444", [ITEMS[1]])
    for said in ({"value": "all of it", "used": [2]}, {"value": "3333-4444", "used": []}, {"value": None, "used": [1]}):
        answers(server, said)
        assert anyio.run(model(server).choose, PAY, ITEMS).value is None


def test_without_a_memory_that_may_be_used_the_model_is_not_asked(server: Stub) -> None:
    assert anyio.run(model(server).choose, PAY, []).value is None
    assert server.asked == []


def test_an_answer_may_stand_in_prose_and_fences(server: Stub) -> None:
    answers(server, 'Sure!\n```json\n{"notes": ["one", " ", "two "]}\n```')
    assert anyio.run(model(server).notes, "text") == ["one", "two"]


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (401, b"{}", "model_refused"),
        (500, b"oops", "model_refused"),
        (302, b"", "model_refused"),
        (200, b"not json", "model_malformed"),
        (200, b'{"choices": []}', "model_malformed"),
        (200, completion("no object"), "model_malformed"),
        (200, completion('{"notes": "a"}'), "model_malformed"),
        (200, completion("{" * 50_000), "model_malformed"),
        (200, b"\xff", "model_malformed"),
        (200, b" " * (ANSWER_BYTES_MAX + 1), "model_malformed"),
    ],
    ids=["key", "error", "redirect", "text", "empty", "prose", "other", "deep", "bytes", "long"],
)  # fmt: skip
def test_what_can_t_be_used_is_told_without_the_key(server: Stub, status: int, body: bytes, reason: str) -> None:
    server.answer = lambda _: (status, body)
    with pytest.raises(ModelError) as caught:
        anyio.run(model(server).notes, "text")
    assert caught.value.reason == reason
    assert KEY not in str(caught.value)
    assert len(server.asked) == 1


def test_a_late_answer_and_a_server_that_is_not_there_are_told(server: Stub) -> None:
    server.late = True
    with pytest.raises(ModelError, match=r"no answer within 0\.2 s"):
        anyio.run(model(server, 0.2).notes, "text")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = Model("planner", Endpoint(f"http://127.0.0.1:{free.getsockname()[1]}/v1", "m", ""), 7)
        with pytest.raises(ModelError, match="can't be reached"):
            anyio.run(nobody.notes, "text")


def test_the_endpoint_comes_from_the_environment() -> None:
    assert endpoint({}) is None
    for url in ("http://h:1/v1", "http://h:1/v1/", "http://h:1/v1/chat/completions"):
        found = endpoint({"CORDON_DEMO_MODEL_URL": url, "CORDON_DEMO_MODEL_KEY": KEY})
        assert found == Endpoint("http://h:1/v1/chat/completions", "default", KEY)
    for url in ("h:1/v1", "ftp://h/v1", "http://", "http://user:pass@h/v1", "http://h:x/"):
        with pytest.raises(bus.ConfigError, match="not a URL"):
            endpoint({"CORDON_DEMO_MODEL_URL": url})
