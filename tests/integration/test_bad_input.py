"""Bad input at the rim of the real gatekeeper, by a plain NATS client.

Each gets a typed refusal that says what to do and echoes nothing of the caller's; nothing is half-done, and the service goes on.
Beside each refusal stands what is accepted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import pytest
from nats.aio.client import Client

from broker_config.control import Control
from bus import limits
from bus.errors import CordonError
from bus.frames import AdmAgent, AdmProject, AdmTenant
from bus.identity import keypair
from bus.subjects import MEMORY_VERBS, OPS_VERBS
from gate.rights import served

from .stored import core_client
from .world import World, verified

MARK = "zq7marker"  # in every text of the caller's that is refused: it comes back in no answer
NOWHERE = "mem_00000000000000000000000000"
AGENT = "rim-agent"
OPERATOR = "rim-operator"


class Rim:
    """One agent of acme on a plain connection."""

    def __init__(self, world: World, nc: Client, name: str) -> None:
        self.world, self.nc, self.name = world, nc, name

    async def ask(self, verb: str, payload: bytes | dict[str, Any], subject: str = "") -> dict[str, Any]:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        to = subject or f"mem.acme.p1.{verb}.{self.world.agents[self.name].key}"
        answer: dict[str, Any] = json.loads((await self.nc.request(to, data, timeout=10)).data)
        return answer

    async def operate(self, verb: str, payload: bytes | dict[str, Any]) -> dict[str, Any]:
        return await self.ask(verb, payload, f"ops.acme.{verb}.{self.world.agents[self.name].key}")

    async def position(self) -> int:
        return int((await self.ask("sync", {"type": "sync"}))["position"])


@pytest.fixture(scope="module")
def world(shared_world: World) -> World:
    async def scenario() -> None:
        await shared_world.add(AGENT)
        await shared_world.add(OPERATOR, role="operator")

    asyncio.run(scenario())
    return shared_world


@asynccontextmanager
async def rim(world: World, name: str = AGENT) -> AsyncIterator[Rim]:
    async with world.raw(name) as nc:
        yield Rim(world, nc, name)


def assert_refused(answer: dict[str, Any], reason: str, field: str = "", limit: int | None = None) -> None:
    assert answer["type"] == "refusal", answer
    assert (answer["reason"], answer["field"]) == (reason, field)
    assert answer["reasons"] == [reason]
    if limit is not None:
        assert answer["limit"] == limit
    assert answer["message"].endswith(".")
    assert answer["advice"].endswith(".")
    assert MARK not in json.dumps(answer)


class Bad(NamedTuple):
    """`good` and `bad` are changes of a minimal request, or whole frames as bytes; `bad` is refused, `good` is not."""

    name: str
    bad: dict[str, Any] | bytes
    reason: str
    field: str = ""
    good: dict[str, Any] | bytes | None = None
    limit: int | None = None


def frame(minimal: dict[str, Any], changes: dict[str, Any] | bytes | None) -> bytes:
    return changes if isinstance(changes, bytes) else json.dumps(minimal | (changes or {})).encode()


def too_long(field: str, most: int) -> Bad:
    """A text field at its limit, and one byte beyond."""
    return Bad(field, {field: MARK + "x" * (most - len(MARK) + 1)}, "too_long", field, {field: "x" * most}, most)


def within(field: str, good: Any, bad: Any, reason: str, limit: int | None = None) -> Bad:
    return Bad(f"{field} {str(bad)[:24]}", {field: bad}, reason, field, {field: good}, limit)


DRAFT = {"type": "draft", "content": "What the rim lets in"}
MEGA = b'{"type":"draft","content":"x","' + MARK.encode() + b'":'
DRAFTS = [
    too_long("content", limits.CONTENT_BYTES_MAX),
    *(too_long(field, limits.LABEL_BYTES_MAX) for field in ("run", "task", "session", "trace_id")),
    Bad("idempotency_key", {"idempotency_key": "x" * 129}, "too_long", "idempotency_key", {"idempotency_key": MARK * 14}, 128),
    Bad("scope_id", {"scope": "user", "scope_id": "x" * 257}, "too_long", "scope_id", {"scope": "user", "scope_id": "x" * 256}),
    Bad("bytes count", {"content": "é" * 32_769}, "too_long", "content", {"content": "é" * 32_768}),
    within("content", "x", "", "too_short"),
    within("content", " x", " \n\t ", "too_short"),
    within("content", "a\x01\x1b[31mb", f"{MARK}\0", "nul_character"),
    within("content", "שלום ، مرحبا", f"{MARK}\u202e", "bidi_control"),
    within("content", "a\u200bb\ufeff", "a\u2066b", "bidi_control"),
    within("content", "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 e\u0301 \U0010ffff", 5, "bad_field"),
    within("evidence", ["u"] * 8, ["u"] * 9, "too_long", 8),
    within("evidence", ["x" * 2_048], [MARK * 300], "too_long", 2_048),
    within("evidence", ["a"], [""], "too_short"),
    within("evidence", ["a"], ["a\0"], "nul_character"),
    within("evidence", [], MARK, "bad_field"),
    within("derived_from", [], [NOWHERE], "parent_unknown"),
    within("derived_from", [], [MARK], "parent_unknown"),
    within("derived_from", [], [NOWHERE] * 65, "too_long", 64),
    within("derived_from", [], [MARK * 8], "too_long", 64),
    within("supersedes", "", NOWHERE, "supersede_unknown"),
    within("supersedes", "", MARK * 1_000, "supersede_unknown"),
    *(within("tool", "a_tool-2", bad, "bad_name", 64) for bad in (f"{MARK}.x", "a b", "*", ">", "Tool", "x" * 65, "тоол", "a\n")),
    *(within("kind", "rule", bad, "bad_field") for bad in (MARK, "", "FACT", None, 3)),
    within("scope", "operational", MARK, "bad_field"),
    within("origin", "external", MARK, "bad_field"),
    within("method", "imported", MARK, "bad_field"),
    within("sensitivity", "high", MARK, "bad_field"),
    within("classification", "public", "secret", "bad_field"),
    within("task_state", "active", MARK, "bad_field"),
    within("opt_out", True, "true", "bad_field"),
    within("claimed_confidence", 0, -0.001, "out_of_range", 1),
    within("claimed_confidence", 1, 1.001, "out_of_range", 1),
    within("claimed_confidence", 0.5, "0.5", "bad_field"),
    Bad("NaN", MEGA + b'1,"claimed_confidence":NaN}', "malformed_frame"),
    Bad("Infinity", MEGA + b'1,"claimed_confidence":-Infinity}', "malformed_frame"),
    Bad("1e999", MEGA + b'1,"claimed_confidence":1e999}', "bad_field", "claimed_confidence"),
    within("ttl", 1, 0, "out_of_range"),
    within("ttl", limits.TTL_SECONDS_MAX, limits.TTL_SECONDS_MAX + 1, "out_of_range", limits.TTL_SECONDS_MAX),
    within("ttl", None, 10**40, "out_of_range"),
    within("ttl", 2, 1.5, "bad_field"),
    within("ttl", 2, True, "bad_field"),
    *(
        within("valid_from", "2026-01-01T00:00:00Z", bad, "time_not_utc")
        for bad in (
            "2026-01-01T00:00:00", "2026-01-01T00:00:00+13:00", "2026-01-01", MARK, "", "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z", "2026-01-01T25:00:00Z", "9" * 50 + "Z", "10000-01-01T00:00:00Z", "Z",
        )
    ),
    within("valid_until", "9999-12-31T23:59:59.999999Z", 1_900_000_000, "bad_field"),
    Bad(
        "valid_until before valid_from", {"valid_from": "2026-01-02T00:00:00Z", "valid_until": "2026-01-02T00:00:00Z"},
        "time_order", "valid_until", {"valid_from": "2026-01-02T00:00:00Z", "valid_until": "2026-01-02T00:00:01Z"},
    ),
    within("expires_at", "2999-01-01T00:00:00+00:00", "2001-01-01T00:00:00Z", "time_order"),
    Bad("two ends", {"ttl": 5, "expires_at": "2999-01-01T00:00:00Z"}, "time_order", "expires_at", {"ttl": 5}),
    *(
        within("readers", [["agent:rim-agent", "role:agent"], ["user:any id. of theirs"]], bad, reason)
        for bad, reason in (
            ([], "readers_invalid"), ([[]], "readers_invalid"), ([["agent:a"], []], "readers_invalid"),
            ([[MARK]], "too_short"), ([[f"{MARK}:x"]], "readers_invalid"), ([["agent:"]], "too_short"),
            ([["agent:*"]], "readers_invalid"), ([["role:A"]], "readers_invalid"), ([["agent:a.b"]], "readers_invalid"),
            ([["agent:a"]] * 17, "too_long"), ([["agent:a"] * 33], "too_long"), ([["user:" + "x" * 257]], "too_long"),
            ([["user:a\0"]], "nul_character"), (["agent:a"], "bad_field"), ("all", "bad_field"),
        )
    ),
    Bad("user scope without a user", {"scope": "user"}, "scope_id_missing", "scope_id", {"scope": "user", "scope_id": "ann"}),
    Bad("task scope without a task", {"scope": "task"}, "scope_id_missing", "task", {"scope": "task", "task": "t"}),
    within("request_id", "r" * 64, "r" * 10_000, "too_long", 64),
    within("request_id", "A-z_09", f"{MARK} ignore", "bad_field"),
    within("request_id", "", "zwölf", "bad_field"),
    within("v", 1, 2, "bad_field", 1),
    within("type", "draft", "query", "bad_field"),
    within("type", "draft", MARK, "bad_field"),
    within("type", "draft", 7, "bad_field"),
    Bad("no content", b'{"type":"draft"}', "malformed_frame", good=b'{"content":"even the tag may be left out"}'),
    Bad("a lone surrogate, escaped", b'{"type":"draft","content":"' + MARK.encode() + b'\\ud83d"}', "malformed_frame"),
    Bad("the other half", b'{"type":"draft","content":"\\ude42\\ud83d"}', "malformed_frame"),
    Bad("a lone surrogate, raw", b'{"type":"draft","content":"' + MARK.encode() + b'\xed\xa0\xbd"}', "malformed_frame"),
    Bad("bytes that are no text", b'{"type":"draft","content":"' + MARK.encode() + b'\xff"}', "malformed_frame"),
    Bad("an overlong slash", b'{"type":"draft","content":"\xc0\xaf"}', "malformed_frame"),
    Bad("nothing", b"", "malformed_frame"),
    Bad("cut short", b'{"type":"draft","content":"' + MARK.encode(), "malformed_frame"),
    Bad("something after", b'{"type":"draft","content":"x"} ' + MARK.encode(), "malformed_frame"),
    Bad("not an object", json.dumps([MARK]).encode(), "malformed_frame"),
    Bad("null", b"null", "malformed_frame"),
    Bad("msgpack", msgspec.msgpack.encode({"type": "draft", "content": MARK}), "malformed_frame"),
    Bad("UTF-16", json.dumps(DRAFT).encode("utf-16"), "malformed_frame"),
    Bad("deep arrays", MEGA + b"[" * 100_000 + b"]" * 100_000 + b"}", "malformed_frame",
        good=MEGA + b"[" * 100 + b"]" * 100 + b"}"),
    Bad("deep objects", MEGA + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}", "malformed_frame"),
    Bad("deep and open", b"[" * 500_000, "malformed_frame"),
    Bad("600 KB", MEGA + b'"' + b"x" * 600_000 + b'"}', "frame_too_large", limit=limits.DRAFT_FRAME_BYTES_MAX,
        good=MEGA + b'"' + b"x" * (limits.DRAFT_FRAME_BYTES_MAX - len(MEGA) - 3) + b'"}'),
    Bad("one byte under the broker's limit", b"x" * ((1 << 20) - 1), "frame_too_large"),
]  # fmt: skip


@pytest.mark.parametrize("case", DRAFTS, ids=lambda c: c.name)
def test_a_bad_draft_is_refused_by_name_and_nothing_is_stored(world: World, case: Bad) -> None:
    async def scenario() -> None:
        async with rim(world) as r:
            before = await r.position()
            assert_refused(await r.ask("write", frame(DRAFT, case.bad)), case.reason, case.field, case.limit)
            assert await r.position() == before
            good = await r.ask("write", frame(DRAFT, case.good))
            assert (good["type"], good["position"]) == ("receipt", before + 1), good

    asyncio.run(scenario())


QUERY = {"type": "query", "text": "what does the rim let in?"}
QUERIES = [
    too_long("text", limits.QUERY_TEXT_BYTES_MAX),
    too_long("run", limits.LABEL_BYTES_MAX),
    too_long("task", limits.LABEL_BYTES_MAX),
    too_long("user", limits.SCOPE_ID_BYTES_MAX),
    too_long("scene", limits.SCENE_BYTES_MAX),
    within("text", "?!…", "", "too_short"),
    within("text", "a\x01", f"{MARK}\0", "nul_character"),
    within("text", "عربي", f"{MARK}\u202e", "bidi_control"),
    *(within("k", k, bad, "out_of_range", 64) for k, bad in ((1, 0), (64, 65), (8, -1), (8, 10**30))),
    within("k", 8, True, "bad_field"),
    within("k", 8, "8", "bad_field"),
    within("turn", 0, -1, "out_of_range", limits.TURN_MAX),
    within("turn", limits.TURN_MAX, limits.TURN_MAX + 1, "out_of_range"),
    within("filters", {"agent": ["nobody"], "kind": ["fact"]}, {MARK: ["x"]}, "filter_invalid"),
    within("filters", {}, {"kind": []}, "filter_invalid"),
    within("filters", {"scope": ["user", "task"]}, {"scope": [MARK]}, "filter_invalid"),
    within("filters", {"agent": ["x"] * 64}, {"agent": ["x"] * 65}, "too_long", 64),
    within("filters", {"agent": ["x" * 256]}, {"agent": [MARK + "x" * 256]}, "too_long", 256),
    within("filters", {}, {f"{MARK}{i}": ["x"] for i in range(17)}, "too_long", 16),
    within("filters", {}, {"kind": MARK}, "bad_field"),
    within("required_origin", ["system"], [], "filter_invalid"),
    within("required_origin", None, [MARK], "bad_field"),
    within("intent", "configure", MARK, "bad_field"),
    within("tool_risk", "privileged", MARK, "bad_field"),
    within("history_off", True, 1, "bad_field"),
    within("as_of", "1970-01-01T00:00:00Z", "2026-01-01T00:00:00", "time_not_utc"),
    within("as_of", "0001-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "time_order"),
    within("min_position", -1, 10**30, "behind"),
    within("request_id", "q", "q" * 10_000, "too_long", 64),
    within("type", "query", "draft", "bad_field"),
    Bad(
        "64 KiB", {"padding": MARK * 8_000}, "frame_too_large", limit=limits.QUERY_FRAME_BYTES_MAX, good={"padding": MARK * 7_000}
    ),
    Bad("a lone surrogate", b'{"type":"query","text":"\\ud83d"}', "malformed_frame"),
    Bad("deep", b'{"type":"query","filters":' + b'{"a":' * 8_000 + b"}" * 8_000 + b"}", "bad_field", "filters"),
]
GET = {"type": "get", "ids": [NOWHERE]}
GETS = [
    within("ids", [NOWHERE] * 64, [NOWHERE] * 65, "too_long", 64),
    within("ids", [NOWHERE, "", "🙂", "%", "*", "_", "a'b\"c"], [], "too_short", 64),
    within("ids", ["x" * 64], [MARK * 10], "too_long", 64),
    within("ids", [MARK], MARK, "bad_field"),
    within("as_of", None, "2026-01-01", "time_not_utc"),
    too_long("user", limits.SCOPE_ID_BYTES_MAX),
]


@pytest.mark.parametrize(
    ("verb", "minimal", "case"),
    [*(("query", QUERY, c) for c in QUERIES), *(("get", GET, c) for c in GETS)],
    ids=[*(f"query {c.name}" for c in QUERIES), *(f"get {c.name}" for c in GETS)],
)
def test_a_bad_question_is_refused_by_name(world: World, verb: str, minimal: dict[str, Any], case: Bad) -> None:
    async def scenario() -> None:
        async with rim(world) as r:
            assert_refused(await r.ask(verb, frame(minimal, case.bad)), case.reason, case.field, case.limit)
            good = await r.ask(verb, frame(minimal, case.good))
            assert good["type"] == "recall", good

    asyncio.run(scenario())


ACKS = [
    ({"type": "ack", "notices": []}, "too_short"),
    ({"type": "ack", "notices": ["x"] * 65}, "too_long"),
    ({"type": "ack", "notices": [MARK]}, "notice_unknown"),
    ({"type": "ack", "notices": ["case_00000000000000000000000000.recall"]}, "notice_unknown"),
    ({"type": "ack", "notices": [""]}, "notice_unknown"),
]


@pytest.mark.parametrize(("bad", "reason"), ACKS)
def test_a_bad_acknowledgement_is_refused(world: World, bad: dict[str, Any], reason: str) -> None:
    async def scenario() -> None:
        async with rim(world) as r:
            assert_refused(await r.ask("ack", bad), reason, "notices")
            assert (await r.ask("sync", b"{}"))["type"] == "synced"

    asyncio.run(scenario())


OPERATIONS: list[tuple[str, dict[str, Any] | bytes, str, str]] = [
    ("hold", {"type": "hold", "selector": []}, "selector_empty", "selector"),
    ("hold", {"type": "hold", "selector": [MARK]}, "memory_unknown", "id"),
    ("hold", {"type": "hold", "selector": [f"agent:{MARK}"]}, "agent_unknown", "agent"),
    ("hold", {"type": "hold", "selector": [f"run:{MARK}"]}, "selector_empty", "selector"),
    ("hold", {"type": "hold", "selector": ["source:%"]}, "selector_empty", "selector"),
    ("hold", {"type": "hold", "selector": ["x"] * 65}, "too_long", "selector"),
    ("hold", {"type": "hold", "selector": ["x" * 2_049]}, "too_long", "selector"),
    ("hold", {"type": "hold", "selector": ["a\0"]}, "nul_character", "selector"),
    ("hold", {"type": "hold", "selector": ["agent:rim-agent"], "now": True}, "message_missing", "message"),
    ("hold", {"type": "hold", "selector": ["agent:rim-agent"], "now": True, "message": "m" * 1_001}, "too_long", "message"),
    ("hold", {"type": "hold", "selector": ["agent:rim-agent"], "now": True, "message": "a\u202eb"}, "bidi_control", "message"),
    ("hold", {"type": "hold", "plan": MARK, "message": "m"}, "plan_unknown", "plan"),
    ("release", {"type": "release", "case": MARK, "message": "m"}, "case_unknown", "case"),
    ("case", {"type": "case_query", "case": MARK}, "case_unknown", "case"),
    ("review", {"type": "review", "id": MARK, "verdict": "accept", "message": "m"}, "memory_unknown", "id"),
    ("review", {"type": "review", "id": MARK, "verdict": MARK}, "bad_field", "verdict"),
    ("trace", {"type": "trace", "id": MARK}, "memory_unknown", "id"),
    ("trace", {"type": "trace", "id": ""}, "memory_unknown", "id"),
    ("why", {"type": "why", "id": "rec_00000000000000000000000000"}, "recall_unknown", "id"),
    ("why", {"type": "why", "id": f"rec_{MARK}"}, "recall_unknown", "id"),
    ("why", {"type": "why", "id": "x" * 60_000}, "memory_unknown", "id"),
    ("context", {"type": "context", "agent": MARK}, "agent_unknown", "agent"),
    ("context", {"type": "context", "agent": "rim-agent", "action": "close"}, "message_missing", "message"),
    ("stats", {"type": "why", "id": MARK}, "malformed_frame", ""),
    ("stats", b"[" * 300_000, "malformed_frame", ""),
    ("stats", b"{}", "malformed_frame", ""),
]


@pytest.mark.parametrize(
    ("verb", "bad", "reason", "field"), OPERATIONS, ids=[f"{o[0]} {o[2]} {i}" for i, o in enumerate(OPERATIONS)]
)
def test_a_bad_operation_is_refused_and_changes_nothing(
    world: World, verb: str, bad: dict[str, Any] | bytes, reason: str, field: str
) -> None:
    async def scenario() -> None:
        async with rim(world, OPERATOR) as r:
            before = (await r.operate("stats", {"type": "stats_query"}))["counts"] | {"p": await r.position()}
            assert_refused(await r.operate(verb, bad), reason, field)
            assert (await r.operate("stats", {"type": "stats_query"}))["counts"] | {"p": await r.position()} == before

    asyncio.run(scenario())


@pytest.mark.parametrize("cursor", [-5, 10**30])
def test_a_cursor_beyond_the_end_is_an_empty_page_and_one_before_it_the_first(world: World, cursor: int) -> None:
    async def scenario() -> None:
        async with rim(world, OPERATOR) as r:
            page = await r.operate("case", {"type": "case_query", "cursor": cursor})
            assert (page["type"], page["next"]) == ("cases", None)

    asyncio.run(scenario())


# --- verbs and projects -------------------------------------------------------------------------------
@pytest.mark.parametrize("verb", ["frobnicate", "Write", "WRITE", "hold", "writ", "write2", "x" * 200, "数"])
def test_an_unknown_verb_is_refused(world: World, verb: str) -> None:
    async def scenario() -> None:
        async with rim(world) as r:
            assert_refused(await r.ask(verb, DRAFT), "verb_unknown")
        async with rim(world, OPERATOR) as r:
            assert_refused(await r.operate("write" if verb == "hold" else verb, DRAFT), "verb_unknown")

    asyncio.run(scenario())


def test_later_verbs_say_that_they_are_not_available_yet(world: World) -> None:
    async def scenario() -> None:
        later = [v for v in MEMORY_VERBS if v not in served("mem")]
        assert later
        async with rim(world) as r:
            for verb in later:
                assert_refused(await r.ask(verb, b"{}"), "verb_not_available")
        async with rim(world, OPERATOR) as r:
            for verb in (v for v in OPS_VERBS if v not in served("ops")):
                assert_refused(await r.operate(verb, b"{}"), "verb_not_available")

    asyncio.run(scenario())


# --- names at the control plane: the command's checks first, and the gatekeeper's own behind them ------
NAMES = [
    "a.b",
    "a b",
    "a\tb",
    "a\n",
    "*",
    ">",
    "p.>",
    "P1",
    "Ü",
    "x" * 200,
    "x" * 65,
    "",
    ".",
    "a/b",
    "a:b",
    "a'b",
    "%",
    "数据",
    "a\0",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_token_is_refused_for_everything_that_has_a_name(world: World, name: str) -> None:
    async def scenario() -> None:
        async with Control(world.home) as control:
            for add in (
                control.tenant_add(name),
                control.project_add("acme", name),
                control.agent_add("acme", name, projects=["p1"]),
                control.agent_add("acme", "tooled", role="ingest", projects=["p1"], tools=[name]),
                control.agent_add("acme", "personal", projects=["p1"], person=name or "."),
            ):
                with pytest.raises(CordonError) as e:
                    await add
                assert e.value.reason == "bad_name", e.value
                assert e.value.advice

    asyncio.run(scenario())


@pytest.mark.parametrize("name", NAMES)
def test_the_gatekeeper_checks_names_itself(world: World, name: str) -> None:
    async def scenario() -> None:
        async with Control(world.home) as control, core_client(world.home, "admin") as nc:
            account, key = control.trust.tenant("acme").account, control._admin_key
            fresh = keypair("user").public
            for verb, request, reason in (
                ("tenant", AdmTenant(action="add", account=keypair("account").public, name=name, user_key="00" * 32), "bad_name"),
                ("project", AdmProject(action="add", account=account, name=name), "bad_name"),
                ("project", AdmProject(action="set", account=account, name="p1", settings={"flow_to": [name]}), "bad_field"),
                ("agent", AdmAgent(action="add", account=account, name=name, key=fresh), "bad_name"),
                ("agent", AdmAgent(action="add", account=account, name="fresh", key=fresh, projects=[name]), "project_unknown"),
            ):
                answer = json.loads((await nc.request(f"adm.0.{verb}.{key}", msgspec.json.encode(request), timeout=10)).data)
                assert (answer["type"], answer["reason"]) == ("refusal", reason), (verb, answer)
                assert name not in answer["message"] or len(name) < 3

    asyncio.run(scenario())


def test_names_up_to_the_limit_are_taken_and_kept_apart(world: World) -> None:
    async def scenario() -> None:
        names = ["a-b", "a_b", "a--b", "_a", "-", "0", "a" * 64, "a" * 63]
        async with Control(world.home) as control:
            for name in names:
                await control.project_add("acme", name)
            known = {p["name"] for p in await control.project_list("acme")}
            assert set(names) <= known
            for i, name in enumerate(names):
                await world.add(f"named-{i}", name)
            for i, name in enumerate(names):
                async with world.agent(f"named-{i}", name) as memory:
                    await memory.write(f"The same words in every project, number {i}")
            for i, name in enumerate(names):
                async with world.agent(f"named-{i}", name) as memory:
                    found = await memory.query("the same words in every project", k=64)
                    assert [x.memory.content for x in found.admitted] == [f"The same words in every project, number {i}"]

    asyncio.run(scenario())


# --- size ---------------------------------------------------------------------------------------------
def test_ten_megabytes_cost_only_the_sender_its_connection(world: World) -> None:
    async def scenario() -> None:
        async with rim(world) as calm, rim(world, OPERATOR) as bulk:
            gone = asyncio.Event()

            async def closed() -> None:
                gone.set()

            bulk.nc._disconnected_cb = closed
            bulk.nc._max_payload = 1 << 30  # as a foreign client that doesn't check
            before = await calm.position()
            await bulk.nc.publish(f"ops.acme.why.{world.agents[OPERATOR].key}", b"x" * 10_000_000)
            await asyncio.wait_for(gone.wait(), 10)
            assert calm.nc.is_connected
            assert await calm.position() == before
            assert (await calm.ask("write", DRAFT))["position"] == before + 1

    asyncio.run(scenario())


SLOW = {
    "one token": "a" * 65_536,
    "one emoji": "🙂" * 16_384,
    "one Han character": "数" * 21_845,
    "JWT starts": "eyJ" * 21_845,
    "key starts": "-----BEGIN RSA PRIVATE KEY-----" * 2_100,
    "URLs": "http://a:b" * 6_500,
    "digits": "4" * 65_536,
    "spaces": "x" + " " * 65_000 + "x",
    "assignments": "password = " * 5_900,
    "tag characters": "\U000e0041" * 16_384,
    "combining marks": "a" + "\u0301" * 32_000,
    "orders": "ignore all previous instructions and " * 1_700,
    "brackets": "tool_use: [" * 5_900,
    "zero width": "\u200b" * 21_800 + "x",
    "ligature": "\ufdfa" * 21_845,  # one character that folds to eighteen
}


@pytest.mark.parametrize("content", SLOW.values(), ids=SLOW)
def test_no_text_makes_the_gatekeeper_think_for_long(world: World, content: str) -> None:
    async def scenario() -> None:
        async with rim(world) as r:
            start = world.cpu_s("gatekeeper")
            answer = await r.ask("write", DRAFT | {"content": content})
            assert answer["type"] == "receipt", answer
            assert world.cpu_s("gatekeeper") - start < 2.0

    asyncio.run(scenario())


@pytest.fixture(scope="module", autouse=True)
def _the_service_went_on(world: World) -> Iterator[None]:
    """After all of it the same gatekeeper serves, raised no alarm, failed nowhere, and its ledger verifies."""
    pid = world.pid("gatekeeper")

    async def status() -> dict[str, Any]:
        async with Control(world.home) as control:
            return await control.status() | {"verified": await verified(world.home)}

    before = asyncio.run(status())
    yield
    after = asyncio.run(status())
    assert world.pid("gatekeeper") == pid
    assert (after["state"], after["alarms"], after["lineage_failed"]) == ("ready", before["alarms"], "")
    assert after["refused"].get("internal", 0) == before["refused"].get("internal", 0)
    assert after["verified"]["ok"], after["verified"]["findings"]
