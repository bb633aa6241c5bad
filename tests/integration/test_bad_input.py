"""Bad input at the rim of the real gatekeeper, by a plain NATS client.

A typed refusal each, nothing half-done, and the service goes on.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from broker_config.control import Control
from bus.errors import CordonError

from .world import World

MARK = "zzmarkerzz"


def draft(**fields: Any) -> bytes:
    return json.dumps({"type": "draft", "content": "x"} | fields).encode()


WRITES: list[tuple[str, bytes, str, str]] = [
    ("empty", draft(content=""), "too_short", "content"),
    ("64 KiB + 1", draft(content="x" * 65_537), "too_long", "content"),
    ("a long run", draft(run="x" * 129), "too_long", "run"),
    ("a long key", draft(idempotency_key="x" * 129), "too_long", "idempotency_key"),
    ("much evidence", draft(evidence=["u"] * 9), "too_long", "evidence"),
    ("a lone surrogate, escaped", b'{"type":"draft","content":"a\\ud83d b"}', "malformed_frame", ""),
    ("a lone surrogate, raw", b'{"type":"draft","content":"a\xed\xa0\xbd b"}', "malformed_frame", ""),
    ("NUL", draft(content="a\0b"), "nul_character", "content"),
    ("right-to-left override", draft(content="a\u202eb"), "bidi_control", "content"),
    ("an unknown parent", draft(derived_from=["mem_00000000000000000000000000"]), "parent_unknown", "derived_from"),
    ("a naive time", draft(valid_from="2026-01-01T00:00:00"), "time_not_utc", "valid_from"),
    ("NaN", b'{"type":"draft","content":"x","claimed_confidence":NaN}', "malformed_frame", ""),
    ("confidence 2", draft(claimed_confidence=2), "out_of_range", "claimed_confidence"),
    ("an unknown kind", draft(kind=MARK), "bad_field", "kind"),
    ("content of another type", draft(content=5), "bad_field", "content"),
    ("an empty allow-list", draft(readers=[]), "readers_invalid", "readers"),
    ("malformed JSON", b'{"type":"draft",', "malformed_frame", ""),
    ("deep nesting", b'{"type":"draft","content":"x","readers":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "", ""),
    ("another frame", json.dumps({"type": "query", "text": MARK}).encode(), "malformed_frame", ""),
    ("600 KB", draft(content="x" * 600_000), "frame_too_large", ""),
    ("a long request id", draft(request_id="r" * 10_000), "too_long", "request_id"),
    ("a tool with a dot", draft(tool="a.b"), "bad_name", "tool"),
]


@pytest.mark.parametrize(("name", "payload", "reason", "field"), WRITES, ids=[w[0] for w in WRITES])
def test_a_bad_draft_is_refused_by_name_and_nothing_is_stored(
    shared_world: World, name: str, payload: bytes, reason: str, field: str
) -> None:
    async def scenario() -> None:
        w = shared_world
        if "mallory" not in w.agents:
            await w.add("mallory", "p1")
        async with w.raw("mallory") as nc:
            before = (await w.request(nc, "mallory", "write", draft(content="before", idempotency_key="bad-input")))["position"]
            answer = await w.request(nc, "mallory", "write", payload)
            assert answer["type"] == "refusal", answer
            assert not reason or answer["reason"] == reason
            assert not field or answer["field"] == field
            assert answer["message"]
            assert answer["advice"]
            assert MARK not in json.dumps(answer)
            after = await w.request(nc, "mallory", "write", draft(content=f"after {name}"))
            assert after["type"] == "receipt"
            assert after["position"] > before

    asyncio.run(scenario())


def test_verbs_and_projects_that_are_not_there_are_refused(shared_world: World) -> None:
    async def scenario() -> None:
        w = shared_world
        await w.add("vera", "p1")
        async with w.raw("vera") as nc:
            assert (await w.request(nc, "vera", "nosuchverb", b"{}"))["reason"] == "verb_unknown"
            assert (await w.request(nc, "vera", "bind", b"{}"))["reason"] == "verb_not_available"
            assert (await w.request(nc, "vera", "query", {"type": "query", "text": "x", "k": 65}))["field"] == "k"
            assert (await w.request(nc, "vera", "query", {"type": "query", "text": "x", "filters": {"kind": []}}))[
                "reason"
            ] == "filter_invalid"
            assert (await w.request(nc, "vera", "query", {"type": "query", "text": "x"}))["type"] == "recall"

    asyncio.run(scenario())


def test_a_parent_of_another_tenant_is_as_unknown_as_none(shared_world: World) -> None:
    async def scenario() -> None:
        w = shared_world
        async with Control(w.home) as control:
            await control.tenant_add("acme-corp")
            await control.project_add("acme-corp", "p1")
        await w.add("otto", "p1", tenant="acme-corp")
        await w.add("nora", "p1")
        async with w.agent("otto", tenant="acme-corp") as other, w.agent("nora") as memory:
            foreign = await other.write("The vault of the other tenant opens at nine")
            codes = []
            for parent in (foreign.id, "mem_00000000000000000000000000"):
                with pytest.raises(CordonError) as e:
                    await memory.write("a child", derived_from=[parent])
                codes.append((e.value.reason, e.value.message))
            assert codes[0] == codes[1]
            assert codes[0][0] == "parent_unknown"
            assert not (await memory.query("when does the vault of the other tenant open?")).ids
            assert not (await memory.get(foreign.id)).ids
            assert (await other.query("when does the vault of the other tenant open?")).ids == [foreign.id]

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["a.b", "a b", "*", "p>", "P1", "x" * 200, ""])
def test_a_name_that_is_no_token_is_refused(shared_world: World, name: str) -> None:
    async def scenario() -> None:
        async with Control(shared_world.home) as control:
            with pytest.raises(CordonError) as e:
                await control.project_add("acme", name)
            assert e.value.reason == "bad_name"

    asyncio.run(scenario())


def test_ten_megabytes_cost_only_the_sender_its_connection(shared_world: World) -> None:
    async def scenario() -> None:
        w = shared_world
        await w.add("bulk", "p1")
        await w.add("calm", "p1")
        async with w.raw("calm") as calm:
            async with w.raw("bulk") as nc:
                nc._max_payload = 1 << 30  # what a foreign client without the check would do
                with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the client makes of a closed connection
                    await w.request(nc, "bulk", "write", draft(content="x" * 10_000_000), timeout=3)
            assert (await w.request(calm, "calm", "query", {"type": "query", "text": "still there?"}))["type"] == "recall"

    asyncio.run(scenario())


def test_a_secret_is_in_no_file_stream_or_answer(shared_world: World) -> None:
    secret = "AKIA" + "IOSFODNN7EXAMPLQ"

    async def scenario() -> None:
        w = shared_world
        await w.add("sam", "p1")
        async with w.raw("sam") as nc:
            answer = await w.request(
                nc,
                "sam",
                "write",
                draft(content=f"the deploy key is {secret}, keep it", evidence=[f"mail {secret}"], run=f"r {secret}"),
            )
            assert answer["type"] == "receipt"
            assert answer["redactions"]
            recall = await w.request(nc, "sam", "query", {"type": "query", "text": "what is the deploy key?"})
            assert secret not in json.dumps([answer, recall])
            assert recall["admitted"]
        await w.restart_gatekeeper()  # and with it every buffer

    asyncio.run(scenario())
    found = [str(p) for p in shared_world.home.path.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]
    assert found == []
