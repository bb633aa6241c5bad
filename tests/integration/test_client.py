"""An agent's client against a real broker: what it sends, which answers it takes, and what it does when none comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

import bus
from bus import limits, subjects
from bus.frames import Draft, Feed, Query, Recall, Refusal, Synced, encode
from bus.identity import keypair

from .rim import Broker, Respond, Rim, broker, creds, gatekeeper, receipt, settle, until

CREDS = creds("project:p1", "project:p2", "see:internal")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CORDON_URL", "CORDON_CREDS", "CORDON_PROJECT"):
        monkeypatch.delenv(name, raising=False)


class Chance(Random):
    """Counts what is drawn: one number before every pause."""

    draws = 0

    def uniform(self, a: float, b: float) -> float:
        self.draws += 1
        return super().uniform(a, b)


Scenario = Callable[[bus.MemoryBus, Rim], Coroutine[Any, Any, None]]


def play(server: Broker, scenario: Scenario, credentials: str = CREDS, timing: bus.Timing | None = None) -> None:
    async def scene() -> None:
        async with gatekeeper(server.url) as rim, bus.connect(server.url, credentials, project="p1", timing=timing) as memory:
            await scenario(memory, rim)

    asyncio.run(scene())


# --- what is sent -----------------------------------------------------------------------------------
def test_ten_lines_with_nothing_but_the_environment(server: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "writer.creds"
    path.write_text(creds("project:only"))
    monkeypatch.setenv("CORDON_URL", server.url)
    monkeypatch.setenv("CORDON_CREDS", str(path))

    async def scenario() -> None:
        async with gatekeeper(server.url) as rim, bus.connect() as memory:
            written = await memory.write("The invoice job runs at five")
            recall = await memory.query("when does the invoice job run?")
        assert (written.state, written.project) == ("active", "only")
        assert recall.as_prompt() == "No memory was recalled: nothing matched."
        assert [verb for verb, _ in rim.seen] == ["write", "query"]

    asyncio.run(scenario())


def test_a_draft_goes_out_as_it_is_and_keywords_override_it(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        await memory.write(Draft(content="a", kind="rule", task="t"), derived_from=["mem_0"], idempotency_key="k-1")
        await memory.write("b", kind="event", classification="public")
        first, second = rim.requests("write")
        assert (first.content, first.kind, first.task, first.derived_from, first.idempotency_key) == (
            "a",
            "rule",
            "t",
            ["mem_0"],
            "k-1",
        )
        assert (second.content, second.kind, second.classification) == ("b", "event", "public")

    play(server, scenario)


def test_every_write_has_an_idempotency_key_of_its_own(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        await memory.write("a")
        await memory.write("a")
        keys = {draft.idempotency_key for draft in rim.requests("write")}
        assert len(keys) == 2
        assert "" not in keys

    play(server, scenario)


def test_a_query_asks_for_the_position_of_the_last_receipt_of_its_project(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        await memory.query("before")
        await memory.write("a")
        await memory.write("b")
        await memory.query("after")
        await memory.query("elsewhere", project="p2")
        await memory.get("mem_0")
        await memory.query(Query(text="later", min_position=9))
        assert [q.min_position for q in rim.requests("query")] == [0, 2, 0, 9]
        assert [g.min_position for g in rim.requests("get")] == [2]

    play(server, scenario)


def test_get_takes_one_id_or_several(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        await memory.get("mem_1")
        await memory.get(("mem_1", "mem_2"), intent="execute")
        assert [(g.ids, g.intent) for g in rim.requests("get")] == [(["mem_1"], "answer"), (["mem_1", "mem_2"], "execute")]

    play(server, scenario)


def test_run_labels_the_calls_inside_and_those_of_tasks_started_there(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        async with memory.run("nightly", task="t1"):
            async with memory.run(session="s1"), anyio.create_task_group() as tasks:
                tasks.start_soon(memory.write, "inner")
            await memory.query("outer")
            await memory.query("own", run="mine")
        await memory.query("outside")
        (draft,) = rim.requests("write")
        assert (draft.run, draft.task, draft.session) == ("nightly", "t1", "s1")
        assert [(q.run, q.task) for q in rim.requests("query")] == [("nightly", "t1"), ("mine", "t1"), ("", "")]

    play(server, scenario)


def test_run_does_not_label_another_agents_calls(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        async with bus.connect(server.url, CREDS, project="p1") as other, memory.run("nightly"):
            await other.query("q")
        assert rim.requests("query")[0].run == ""

    play(server, scenario)


# --- refused before anything is sent ----------------------------------------------------------------
def test_a_project_outside_the_credential_is_denied_before_sending_and_the_nearest_is_named(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        with pytest.raises(bus.Denied, match=r"'p3'.*Did you mean 'p[12]'.*It has: p1, p2") as denied:
            await memory.query("q", project="p3")
        assert denied.value.reason == "project_unknown"
        assert not rim.seen
        await memory.query("q", project="p2")
        assert len(rim.seen) == 1

    play(server, scenario)


def test_the_project_is_the_calls_then_the_connections_then_the_environments(
    server: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = creds("project:p1", "project:p2", "project:p3")

    async def scenario() -> None:
        async with gatekeeper(server.url):
            async with bus.connect(server.url, three) as memory:
                with pytest.raises(bus.ConfigError, match="p1, p2, p3") as missing:
                    await memory.query("q")
                assert missing.value.reason == "project_missing"
            monkeypatch.setenv("CORDON_PROJECT", "p3")
            async with bus.connect(server.url, three) as memory:
                assert (await memory.query("q")).project == "p3"
            async with bus.connect(server.url, three, project="p2") as memory:
                assert (await memory.query("q")).project == "p2"
                assert (await memory.query("q", project="p1")).project == "p1"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "field"), [({"kind": "fatc"}, "kind"), ({"ttl": "soon"}, "ttl"), ({"evidence": [1]}, "evidence[0]")]
)  # fmt: skip
def test_a_value_outside_its_type_is_rejected_by_name_before_sending(server: Broker, fields: dict[str, Any], field: str) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        with pytest.raises(bus.Rejected) as rejected:
            await memory.write("a", **fields)
        assert (rejected.value.reason, rejected.value.field) == ("bad_field", field)
        assert str(rejected.value).startswith(f"[{field}] ")
        assert ("fact, preference, " in str(rejected.value)) == (field == "kind"), "the words that it takes"
        assert not rim.seen

    play(server, scenario)


def test_one_source_or_parent_needs_no_list(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        await memory.write("a", evidence="mail:1", derived_from=("mem_1", "mem_2"))
        [draft] = rim.requests("write")
        assert (draft.evidence, draft.derived_from) == (["mail:1"], ["mem_1", "mem_2"])

    play(server, scenario)


def test_a_credential_without_a_project_is_told_to_get_one(server: Broker) -> None:
    async def scenario() -> None:
        async with bus.connect(server.url, creds("see:internal")) as memory:
            with pytest.raises(bus.ConfigError, match="Ask the operator for one with a project"):
                await memory.query("q")

    asyncio.run(scenario())


def test_a_lone_surrogate_is_rejected_before_sending(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        with pytest.raises(bus.Rejected):
            await memory.write("a\ud800")
        assert not rim.seen
        await memory.write("a🙂")

    play(server, scenario)


def test_a_frame_over_its_limit_is_too_large_before_sending(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        with pytest.raises(bus.FrameTooLarge) as too_large:
            await memory.write("x" * 600_000)
        assert too_large.value.size > too_large.value.limit == 512 << 10
        assert not rim.seen
        await memory.write("x" * 500_000)

    play(server, scenario)


def test_a_frame_over_the_brokers_own_limit_is_too_large_before_sending(tmp_path: Path) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        with pytest.raises(bus.FrameTooLarge, match="broker"):
            await memory.write("x" * 4_096)
        assert not rim.seen
        await memory.write("x" * 1_024)

    with broker(tmp_path, "max_payload: 4096") as small:
        play(small, scenario)


# --- which answers count ----------------------------------------------------------------------------
def test_only_the_answer_that_names_request_agent_and_project_counts(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        async def crowd(draft: Draft, respond: Respond) -> None:
            await respond(receipt(draft, id="mem_a", request_id="another"))
            await respond(receipt(draft, id="mem_b", agent=keypair("user").public))
            await respond(receipt(draft, id="mem_c", project="p2"))
            await respond(encode(Feed(project="p1", classification="internal", kind="memory", ids=["mem_d"], position=1)))
            await respond(b"\xff{not a frame")
            await respond(b"")
            await respond(receipt(draft, id="mem_right"))
            await respond(receipt(draft, id="mem_late"))

        rim.answers["write"] = crowd
        assert (await memory.write("a")).id == "mem_right"
        assert len(rim.seen) == 1

    play(server, scenario)


def test_a_strangers_refusal_does_not_end_a_request(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        async def two(query: Query, respond: Respond) -> None:
            await respond(Refusal(request_id="another", error="denied", reason="verb_denied"))
            await respond(Recall(recall_id="rec_1"))

        rim.answers["query"] = two
        assert (await memory.query("q")).recall_id == "rec_1"

    play(server, scenario)


def test_an_answer_of_another_kind_is_a_wire_error(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        async def wrong(draft: Draft, respond: Respond) -> None:
            await respond(Synced())

        rim.answers["write"] = wrong
        with pytest.raises(bus.MalformedFrame, match="synced"):
            await memory.write("a")

    play(server, scenario)


@pytest.mark.parametrize(
    ("error", "kind"),
    [("rejected", bus.WriteRejected), ("conflict", bus.Conflict), ("denied", bus.Denied), ("malformed", bus.MalformedFrame)],
)
def test_a_refusal_becomes_its_error_and_is_not_tried_again(server: Broker, error: Any, kind: type[bus.CordonError]) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        async def refuse(draft: Draft, respond: Respond) -> None:
            await respond(
                Refusal(
                    error=error,
                    reason="too_long",
                    message="A field is over its limit.",
                    advice="Cut it.",
                    field="task",
                    limit=128,
                )
            )

        rim.answers["write"] = refuse
        with pytest.raises(kind, match=r"A field is over its limit\. Cut it\.") as refused:
            await memory.write("a")
        assert refused.value.reason == "too_long"
        if isinstance(refused.value, bus.Rejected):
            assert (refused.value.field, refused.value.limit) == ("task", 128)
        assert len(rim.seen) == 1

    play(server, scenario)


# --- trying again -----------------------------------------------------------------------------------
def test_a_lost_receipt_is_asked_for_again_under_the_same_key_and_nothing_is_stored_twice(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        usual = rim.answers["write"]

        async def lose_the_first(draft: Draft, respond: Respond) -> None:
            if len(rim.seen) == 1:
                rim.stored[draft.idempotency_key] = receipt(draft, request_id="", project="", id="mem_first")
            else:
                await usual(draft, respond)

        rim.answers["write"] = lose_the_first
        written = await memory.write("a")
        assert (written.id, written.duplicate) == ("mem_first", True)
        assert len({d.idempotency_key for d in rim.requests("write")}) == 1
        assert (len(rim.seen), len(rim.stored)) == (2, 1)

    play(server, scenario, timing=bus.Timing(request_s=1.0))


def test_an_unavailable_gatekeeper_is_asked_again(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        async def busy_twice(query: Query, respond: Respond) -> None:
            if len(rim.seen) < 3:
                await respond(Refusal(error="unavailable", reason="starting", retry_after_s=0.01))
            else:
                await respond(Recall(recall_id="rec_1"))

        rim.answers["query"] = busy_twice
        assert (await memory.query("q")).recall_id == "rec_1"
        assert len(rim.seen) == 3

    play(server, scenario)


def test_a_refusal_that_asks_to_wait_beyond_the_deadline_is_raised_at_once(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        async def full(draft: Draft, respond: Respond) -> None:
            await respond(Refusal(error="unavailable", reason="ledger_full", message="Full.", retry_after_s=30.0))

        rim.answers["write"] = full
        with pytest.raises(bus.Unavailable) as refused:
            await memory.write("a")
        assert (refused.value.reason, refused.value.retry_after_s, len(rim.seen)) == ("ledger_full", 30.0, 1)
        assert not isinstance(refused.value, bus.DeadlineExceeded)

    play(server, scenario)


def test_a_gatekeeper_that_comes_late_is_waited_for(server: Broker) -> None:
    async def scenario() -> None:
        chance = Chance()
        timing = bus.Timing(random=chance)
        async with bus.connect(server.url, CREDS, project="p1", timing=timing) as memory, anyio.create_task_group() as tasks:
            done = anyio.Event()

            async def write() -> None:
                assert (await memory.write("a")).id == "mem_0"
                done.set()

            tasks.start_soon(write)
            await until(lambda: chance.draws > 1)  # a pause before another attempt: nobody was there
            async with gatekeeper(server.url):
                await done.wait()

    asyncio.run(scenario())


def test_without_a_gatekeeper_the_deadline_says_that_nothing_was_done(server: Broker) -> None:
    async def scenario() -> None:
        timing = bus.Timing(request_s=0.2, deadline_s=0.5)
        async with bus.connect(server.url, CREDS, project="p1", timing=timing) as memory:
            with pytest.raises(bus.DeadlineExceeded, match="Nothing was done") as late:
                await memory.write("a")
        assert late.value.reason == "not_delivered"

    asyncio.run(scenario())


def test_a_silent_gatekeeper_leaves_the_outcome_unknown_and_the_key_brings_the_one_receipt(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        usual = rim.answers["write"]

        async def store_in_silence(draft: Draft, respond: Respond) -> None:
            rim.stored.setdefault(draft.idempotency_key, receipt(draft, request_id="", project="", id="mem_first"))

        rim.answers["write"] = store_in_silence
        began = anyio.current_time()
        with pytest.raises(bus.DeadlineExceeded, match="idempotency_key") as late:
            await memory.write("a")
        assert anyio.current_time() - began < limits.CLIENT_DEADLINE_S
        assert late.value.reason == "outcome_unknown"
        assert len(rim.seen) > 1
        rim.answers["write"] = usual
        async with bus.connect(server.url, CREDS, project="p1") as patient:
            again = await patient.write("a", idempotency_key=late.value.idempotency_key)
        assert (again.id, len(rim.stored)) == ("mem_first", 1)

    play(server, scenario, timing=bus.Timing(request_s=0.2, deadline_s=2.0))


def test_a_write_survives_kill_9_of_the_broker(tmp_path: Path) -> None:
    with broker(tmp_path) as mortal:

        async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
            usual = rim.answers["write"]

            async def die_before_the_answer(draft: Draft, respond: Respond) -> None:
                rim.answers["write"] = usual
                rim.stored[draft.idempotency_key] = receipt(draft, request_id="", project="", id="mem_first")
                mortal.kill()

            rim.answers["write"] = die_before_the_answer
            async with anyio.create_task_group() as tasks:

                async def write() -> None:
                    written = await memory.write("a")
                    assert (written.id, written.duplicate) == ("mem_first", True)

                tasks.start_soon(write)
                await until(lambda: bool(rim.stored))
                await anyio.to_thread.run_sync(mortal.start)
            assert len(rim.stored) == 1
            assert (await memory.write("b")).position == 2

        play(mortal, scenario, timing=bus.Timing(request_s=2.0, deadline_s=15.0))


class Line:
    """Stands between client and broker. While it is `bad`, a connection ends before the broker's greeting."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self.bad, self.cut = False, 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._writers.append(to_client)
        if self.bad:
            to_client.write_eof()  # and it stays open: a reset would close the client's side for it
            self.cut += 1
            return
        broker, to_broker = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(to_broker)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._carry, client, to_broker)
            tasks.start_soon(self._carry, broker, to_client)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    def fall(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()


def test_a_try_to_come_back_that_fails_leaves_no_socket_open(server: Broker) -> None:
    async def scenario() -> None:
        line = Line(server.url)
        listening = await asyncio.start_server(line, "127.0.0.1", 0)
        url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        timing = bus.Timing(request_s=2.0, deadline_s=15.0)
        async with gatekeeper(server.url), bus.connect(url, CREDS, project="p1", timing=timing) as memory:
            await memory.write("a")
            line.bad = True
            line.fall()
            await until(lambda: line.cut >= 2, timeout_s=10)
            line.bad = False
            assert (await memory.write("b")).state == "active"
        listening.close()
        line.fall()

    asyncio.run(scenario())  # a socket that is dropped instead of closed is a ResourceWarning: it fails the test


# --- closing ----------------------------------------------------------------------------------------
def test_after_its_end_the_client_says_closed(server: Broker) -> None:
    async def scenario() -> None:
        async with gatekeeper(server.url):
            async with bus.connect(server.url, CREDS, project="p1") as memory:
                await memory.write("a")
            with pytest.raises(bus.Closed):
                await memory.write("b")
            with pytest.raises(bus.Closed):
                async with memory.feed():
                    pass

    asyncio.run(scenario())


def test_closing_ends_what_waits(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        async def silent(query: Query, respond: Respond) -> None: ...

        rim.answers["query"] = silent
        ended: list[type[Exception]] = []

        async def wait(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
            try:
                await call()
            except bus.Closed as e:
                ended.append(type(e))

        async def listen() -> None:
            async for _ in memory.feed():
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, lambda: memory.query("q"))
            tasks.start_soon(wait, listen)
            await until(lambda: bool(rim.seen))
            await memory.aclose()
        assert ended == [bus.Closed, bus.Closed]

    play(server, scenario)


def test_a_cancelled_client_leaves_no_connection_open(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        events: list[dict[str, Any]] = []

        async with anyio.create_task_group() as tasks:
            connected = anyio.Event()

            async def agent() -> None:
                async with bus.connect(url, CREDS, name="cancelled"):
                    connected.set()
                    await anyio.sleep_forever()

            async with gatekeeper(url, user="sys", password="sys") as watch:

                async def gone(msg: Any) -> None:
                    events.append(msgspec.json.decode(msg.data))

                await watch.client.subscribe("$SYS.ACCOUNT.*.DISCONNECT", cb=gone)
                await settle(watch.client)
                tasks.start_soon(agent)
                await connected.wait()
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await until(lambda: any(e["client"].get("name") == "cancelled" for e in events))

    accounts = "accounts { A: { users: [{user: a, password: a}] }, S: { users: [{user: sys, password: sys}] } }"
    with broker(tmp_path, f"{accounts}\nsystem_account: S\nno_auth_user: a") as watched:
        asyncio.run(scenario(watched.url))


def test_a_body_that_raises_gets_its_own_exception_back(server: Broker) -> None:
    async def scenario(memory: bus.MemoryBus, rim: Rim) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        play(server, scenario)


# --- connecting -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "credentials", "reason"),
    [
        (None, CREDS, "url_missing"),
        ("http://127.0.0.1", CREDS, "url_invalid"),
        ("nats://127.0.0.1:99999", CREDS, "url_invalid"),
        ("nats://127.0.0.1:1", None, "creds_missing"),
        ("nats://127.0.0.1:1", "/nowhere/at/all.creds", "creds_unreadable"),
        ("nats://127.0.0.1:1", CREDS.replace("SEED-----\nS", "SEED-----\nX"), "seed_invalid"),
    ],
)
def test_what_is_missing_to_connect_is_named(url: str | None, credentials: str | None, reason: str) -> None:
    async def scenario() -> None:
        async with bus.connect(url, credentials):
            pass

    with pytest.raises(bus.ConfigError) as missing:
        asyncio.run(scenario())
    assert missing.value.reason == reason


def test_an_expired_credential_is_denied_before_connecting() -> None:
    async def scenario() -> None:
        async with bus.connect("nats://127.0.0.1:1", creds("project:p1", expires_at=1_700_000_001)):
            pass

    with pytest.raises(bus.Denied, match="expired"):
        asyncio.run(scenario())


def test_nobody_at_the_address_is_unavailable_within_the_connect_time_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        with anyio.fail_after(20):
            async with bus.connect(Broker(tmp_path).url, CREDS, timing=bus.Timing(connect_s=0.3)):
                pass

    with pytest.raises(bus.Unavailable, match=r"No connection to nats://127\.0\.0\.1.*failed"):
        asyncio.run(scenario())


def test_the_subject_names_tenant_project_verb_and_own_key(server: Broker) -> None:
    user = keypair("user")

    async def scenario() -> None:
        async with gatekeeper(server.url) as rim, bus.connect(server.url, creds("project:p1", user=user)) as memory:
            heard: list[str] = []

            async def hear(msg: Any) -> None:
                heard.append(f"{msg.subject} {msg.reply}")

            await rim.client.subscribe("mem.>", cb=hear)
            await settle(rim.client)
            await memory.query("q")
            await until(lambda: bool(heard))
            subject, reply = heard[0].split()
            assert subject == subjects.memory("acme", "p1", "query", user.public)
            assert reply.startswith(f"_INBOX.{user.public}.")

    asyncio.run(scenario())
