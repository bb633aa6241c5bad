"""What a question brings, against the real gatekeeper: by intent and risk, by time, by filter, within its frame; why it brings
nothing; and what an excerpt, a truncated item and a past answer say about themselves.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import bus
from bus import limits
from bus.errors import Rejected
from bus.frames import INTENTS, RISKS, Draft, Item, Recall

from .rooms import ALL, desk, room
from .scenes import document, set_project
from .world import World

PERSON: dict[str, Any] = {"role": "user_session", "user": "ann", "ttl": 3_600}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def after(moment: str) -> None:
    """Wait until the clock is past `moment`."""
    while now() <= moment:  # noqa: ASYNC110 - the condition is the clock
        await asyncio.sleep(0.002)


def by_id(recall: Recall) -> dict[str, Item]:
    return {item.memory.id: item for item in recall.admitted}


# --- trust against intent and risk ----------------------------------------------------------------------
# The project's defaults, per mille: none, read_only, writes_local, external_side_effect, privileged.
FLOORS = {
    "answer": (100, 100, 300, 600, 800),
    "plan": (150, 150, 400, 600, 800),
    "write": (150, 200, 400, 600, 800),
    "send": (300, 300, 500, 600, 800),
    "execute": (300, 300, 500, 700, 850),
    "configure": (500, 500, 600, 800, 950),
}
SEVERITY = ("admit", "rank_down", "admit_summary_only", "deny")  # ranked down, an excerpt stays an excerpt


def expected(trust: int, origin: str, sourceless: bool, intent: str, risk: str) -> str:
    floor, level = FLOORS[intent][RISKS.index(risk)], RISKS.index(risk)
    found = ["admit"]
    if trust < floor:
        found.append("admit_summary_only" if level >= 2 and trust >= floor - 200 else "deny")
    if trust < 300:
        found.append("rank_down")
    if (origin == "external" and level == 4) or (sourceless and origin in ("external", "agent_inferred") and level >= 3):
        found.append("deny")
    return max(found, key=SEVERITY.index)


def test_trust_decides_by_intent_and_risk(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "ann", "reader", ann=PERSON) as (name, m):
            long = "The first sentence says it. The second one adds what an excerpt leaves out."
            external = await document(shared_world, f"doc-{name}", long, name)
            sourced = await m["writer"].write(long + " Inferred.", evidence=["u"])
            plain = await m["writer"].write(long + " Without a source.")
            stated = await m["ann"].write(long + " A person said so.", evidence=["u"])
            facts = {
                external: (250, "external", False),
                sourced.id: (500, "agent_inferred", False),
                plain.id: (400, "agent_inferred", True),
                stated.id: (800, "user_stated", False),
            }
            seen = set()
            for intent in INTENTS:
                for risk in RISKS:
                    recall = await m["reader"].get(list(facts), intent=intent, tool_risk=risk)
                    items = by_id(recall)
                    for id_, (trust, origin, sourceless) in facts.items():
                        want = expected(trust, origin, sourceless, intent, risk)
                        assert (items[id_].decision if id_ in items else "deny") == want, (origin, intent, risk)
                        seen.add((origin, want))
                        if id_ in items:
                            check_constraints(items[id_], origin, RISKS.index(risk))
                    assert sum(recall.withheld.values()) == len(facts) - len(items)
            assert {("external", "rank_down"), ("agent_inferred", "deny"), ("user_stated", "admit_summary_only")} <= seen
            assert expected(500, "agent_inferred", False, "execute", "privileged") == "deny"

    asyncio.run(scenario())


def check_constraints(item: Item, origin: str, risk: int) -> None:
    excerpt = item.decision == "admit_summary_only"
    want = {
        "require_citation": origin == "external" or excerpt,
        "require_confirmation": origin in ("external", "agent_inferred") and risk >= 3,
        "forbid_tool_binding": (origin == "external" and risk >= 2) or excerpt,
        "ask_first": False,
    }
    assert {name: name in item.constraints for name in want} == want
    assert (item.memory.content == "The first sentence says it.") == excerpt
    assert item.reasons
    assert item.surface == ("background" if item.decision == "rank_down" else item.surface)


def test_what_its_writer_had_read_counts_where_effects_leave_the_house(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "ann", "reader", ann=PERSON) as (name, m):
            await document(shared_world, f"doc-{name}", "Tinsel is on sale at the old mill", name)
            assert (await m["ann"].query("where is tinsel on sale?")).admitted
            note = await m["ann"].write("Please book the ferry for nine", evidence=["u"])
            assert (note.trust, note.trust_floor) == (0.8, 0.25)
            assert (await m["reader"].get(note.id, intent="execute", tool_risk="writes_local")).ids == [note.id]
            denied = await m["reader"].get(note.id, intent="execute", tool_risk="external_side_effect")
            assert (denied.ids, denied.withheld) == ([], {"trust_below_floor": 1})

    asyncio.run(scenario())


def test_rules_need_authority_or_a_review(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "ann", "reader", ann=PERSON) as (_, m):
            weak = await m["writer"].write("Deploys need two signatures", kind="rule", evidence=["u"])
            strong = await m["ann"].write("Rollbacks need one signature", kind="rule", evidence=["u"])
            items = by_id(await m["reader"].get([weak.id, strong.id]))
            assert (items[weak.id].decision, items[weak.id].reasons) == ("rank_down", ["kind_unreviewed"])
            assert "ask_first" in items[weak.id].constraints
            assert items[strong.id].decision == "admit"
            acting = await m["reader"].get([weak.id, strong.id], intent="plan", tool_risk="writes_local")
            assert (acting.ids, acting.withheld) == ([strong.id], {"kind_unauthorised": 1})

    asyncio.run(scenario())


def test_a_low_trust_memory_comes_last_and_as_background(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (name, m):
            outside = await document(shared_world, f"doc-{name}", "The lighthouse keeper is called Orrin Vale of Skerry", name)
            inside = await m["writer"].write("The lighthouse has a keeper", evidence=["u"])
            recall = await m["reader"].query("what is the lighthouse keeper of Skerry called?")
            assert recall.ids == [inside.id, outside]
            last = recall.admitted[-1]
            assert (last.decision, last.surface, last.rank) == ("rank_down", "background", 1)
            assert "low_trust" in last.reasons

    asyncio.run(scenario())


def test_a_note_from_outside_is_found_however_many_records_there_are_on_the_topic(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (name, m):
            outside = await document(shared_world, f"doc-{name}", "The ferry to Skerry leaves from quay seventeen at dawn", name)
            for n in range(12):
                await m["writer"].write(f"Ferry ledger entry {n}: fares were counted and the deck was swept", evidence=["u"])
            recall = await m["reader"].query("from which quay does the ferry to Skerry leave?", k=4)
            assert outside in recall.ids

    asyncio.run(scenario())


def test_required_origins_and_history_are_the_questions_to_tighten(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (name, m):
            reader = m["reader"]
            outside = await document(shared_world, f"doc-{name}", "Kite festival on the north beach", name)
            inside = await m["writer"].write("Kite festival needs a permit", evidence=["u"])
            mood = await m["writer"].write("Kite festival made everybody glad", kind="emotional_state", evidence=["u"])
            question = "what of the kite festival?"
            assert set((await reader.query(question)).ids) == {outside, inside.id, mood.id}
            only = await reader.query(question, required_origin=["external", "system"])
            assert (only.ids, only.withheld) == ([outside], {"origin_not_required": 2})
            none = await reader.query(question, required_origin=["user_stated"])
            assert (none.ids, none.withheld) == ([], {"origin_not_required": 3})
            off = await reader.query(question, history_off=True)
            assert (set(off.ids), off.withheld) == ({outside, inside.id}, {"history_off": 1})
            empty = await reader.query(question, history_off=True, filters={"kind": ["emotional_state"]})
            assert empty.why_empty == "all that matched is withheld: 1 history off"

    asyncio.run(scenario())


def test_the_state_of_a_task_withholds_or_ranks(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (_, m):
            ids = {
                s: (await m["writer"].write(f"Barge repair, {s}", kind="task", task_state=s)).id
                for s in ("active", "resolved", "abandoned", "superseded")
            }
            recall = await m["reader"].get(list(ids.values()))
            assert recall.ids == [ids["active"], ids["resolved"]]
            assert by_id(recall)[ids["resolved"]].reasons == ["task_resolved"]
            assert recall.withheld == {"task_closed": 2}

    asyncio.run(scenario())


# --- time -------------------------------------------------------------------------------------------------
def test_what_is_not_valid_yet_or_no_more_is_withheld_and_counted(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (_, m):
            write, reader = m["writer"].write, m["reader"]
            current = await write("Tram 4 runs every ten minutes")
            future = await write("Tram 4 runs every five minutes", valid_from="2999-01-01T00:00:00Z")
            past = await write("Tram 4 runs every hour", valid_until="2001-01-01T00:00:00Z")
            epoch = await write("Tram 4 runs once a day", valid_until="1970-01-01T00:00:00Z")
            forever = await write("Tram 4 has a bell", valid_until="9999-12-31T23:59:59.999999Z")
            first = await write("Tram 4 had horses", valid_from="0001-01-01T00:00:00Z", expires_at="9999-12-31T23:59:59Z")
            recall = await reader.query("how often does tram 4 run?", k=64)
            assert set(recall.ids) == {current.id, forever.id, first.id}
            assert recall.withheld == {"expired": 2, "not_yet_valid": 1}
            got = await reader.get([future.id, past.id, epoch.id])
            assert (got.ids, got.withheld) == ([], {"expired": 2, "not_yet_valid": 1})

    asyncio.run(scenario())


def test_a_memory_ends_when_its_time_is_over(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (_, m):
            note = await m["writer"].write("The pop-up stall is open", ttl=1)
            assert (await m["reader"].query("is the pop-up stall open?")).ids == [note.id]
            ends = (await m["reader"].get(note.id)).admitted[0].memory.expires_at
            assert ends is not None
            await after(ends)
            for recall in (await m["reader"].query("is the pop-up stall open?"), await m["reader"].get(note.id)):
                assert (recall.ids, recall.withheld) == ([], {"expired": 1})
                assert recall.why_empty == "all that matched is withheld: 1 expired"

    asyncio.run(scenario())


def test_the_past_can_be_asked_for_and_says_that_it_is_the_past(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (name, m), desk(shared_world, name) as boss:
            reader, question = m["reader"], "who is the harbour master?"
            before = now()
            await after(before)
            old = await m["writer"].write("The harbour master is Imke", evidence=["u"])
            moment = now()
            await after(moment)
            new = await m["writer"].write("The harbour master is Tove", supersedes=old.id, evidence=["u"])
            assert (await reader.query(question)).ids == [new.id]
            then = await reader.query(question, as_of=moment)
            assert (then.ids, then.withheld) == ([old.id], {"not_yet_valid": 1})
            item = then.admitted[0]
            assert (item.historical, item.memory.superseded_by, item.memory.state) == (True, new.id, "superseded")
            assert "forbid_tool_binding" in item.constraints
            assert not (await reader.query(question)).admitted[0].historical
            assert (await reader.get([old.id, new.id], as_of=moment)).ids == [old.id]
            nothing = await reader.query(question, as_of=before)
            assert (nothing.ids, nothing.withheld) == ([], {"not_yet_valid": 2})
            case = await boss.hold_now(old.id, "it never was")
            held = await reader.query(question, as_of=moment)
            assert (held.ids, held.withheld["held"]) == ([], 1)
            await boss.release(case.case, "it was")
            assert (await reader.query(question, as_of=moment)).ids == [old.id]

    asyncio.run(scenario())


def test_the_past_opens_nothing_that_is_closed_to_the_asker(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "chief", "clerk", chief={"see": ALL}) as (_, m):
            closed: list[dict[str, Any]] = [{"classification": "restricted"}, {"readers": [["agent:nobody"]]}, {"opt_out": True}]
            for fields in closed:
                await m["chief"].write(Draft(**({"content": "The wreck lies at four fathoms"} | fields)))
            moment = now()
            await after(moment)
            recall = await m["clerk"].query("where does the wreck lie?", as_of=moment, k=64)
            assert (recall.ids, recall.withheld) == ([], {})
            with pytest.raises(Rejected) as e:  # nor the future, which would open what is not valid yet
                await m["clerk"].query("where does the wreck lie?", as_of="2999-01-01T00:00:00Z")
            assert (e.value.reason, e.value.field) == ("time_order", "as_of")

    asyncio.run(scenario())


# --- filters, pages, texts --------------------------------------------------------------------------------
def test_filters_narrow_exactly_and_never_open(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "ann", "ann_", "reader") as (name, m):
            fact = await m["ann"].write("Sluice gate opens inward", evidence=["u"])
            rule = await m["ann_"].write("Sluice gate stays shut at flood", kind="rule", classification="public")
            cases: list[tuple[dict[str, list[str]], set[str]]] = [
                ({}, {fact.id, rule.id}),
                ({"kind": ["fact"]}, {fact.id}),
                ({"kind": ["fact", "rule"]}, {fact.id, rule.id}),
                ({"classification": ["public"]}, {rule.id}),
                ({"origin": ["agent_inferred"]}, {fact.id, rule.id}),
                ({"origin": ["system"]}, set()),
                ({"agent": [f"ann-{name}"]}, {fact.id}),
                ({"agent": [f"ann_-{name}"]}, {rule.id}),
                *(({"agent": [x]}, set[str]()) for x in ("ann", "%", "_", "*", f"ann-{name[:-1]}", f"ANN-{name}", "")),
                ({"agent": [f"ann-{name}"], "kind": ["rule"]}, set()),
                ({"task_state": ["active"]}, set()),
                ({"scope": ["user"]}, set()),
            ]
            for filters, want in cases:
                recall = await m["reader"].query("what of the sluice gate?", filters=filters)
                assert (set(recall.ids), recall.withheld) == (want, {}), filters
                assert bool(recall.why_empty) == (not want)

    asyncio.run(scenario())


def test_one_writer_does_not_fill_the_page_while_others_have_something(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "loud", "quiet", "reader") as (name, m):
            for i in range(30):
                await m["loud"].write(f"Ballast pump report number {i} on the ballast pump", evidence=[f"log:{i}"])
            quiet = await m["quiet"].write("Somebody saw the ballast pump", evidence=["log:q"])
            for k in (2, 4, 8):
                recall = await m["reader"].query("ballast pump report on the ballast pump", k=k)
                assert len(recall.admitted) == k, "never fewer than policy admits"
                assert quiet.id in recall.ids
                assert [item.rank for item in recall.admitted] == list(range(k))
            alone = await m["reader"].query("ballast pump report", k=8, filters={"agent": [f"loud-{name}"]})
            assert len(alone.admitted) == 8, "the page is refilled when nobody else has anything"
            assert len((await m["reader"].query("ballast pump", k=64)).admitted) == 31
            assert len((await m["reader"].query("ballast pump", k=1)).admitted) == 1

    asyncio.run(scenario())


def test_one_source_does_not_fill_the_page_either(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "reader", *(f"w{i}" for i in range(6))) as (_, m):
            for i in range(6):
                await m[f"w{i}"].write(f"Anchor chain inspection {i}", evidence=["https://one.example/page"])
            other = await m["w0"].write("A chain was heard", evidence=["https://two.example/page"])
            recall = await m["reader"].query("anchor chain inspection", k=4)
            assert len(recall.admitted) == 4
            assert other.id in recall.ids

    asyncio.run(scenario())


TEXTS: list[tuple[str, list[str]]] = [
    ("数据库部署在东京机房并由夜班维护", ["东京", "机房", "夜班维护"]),
    ("데이터베이스는 서울에 있습니다", ["서울에"]),
    ("サーバーは大阪にあります", ["大阪"]),
    ("The 🦑 mascot lives in the pond", ["🦑 mascot", "pond"]),
    ("Connect to db_primary.internal:5432 with user svc-reader", ["db_primary.internal:5432", "svc-reader"]),
    ("Die Größe des Behälters ist 40 l", ["größe behälters", "GRÖSSE"]),
    ("café cre\u0301me", ["café", "cr\u00e9me"]),
]


@pytest.mark.parametrize(("text", "questions"), TEXTS, ids=[t[1][0] for t in TEXTS])
def test_a_text_is_found_by_a_word_inside_it(shared_world: World, text: str, questions: list[str]) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (_, m):
            note = await m["writer"].write(text)
            for i in range(5):
                await m["writer"].write(f"Unrelated note {i} about gardening and weather")
            for question in questions:
                assert (await m["reader"].query(question)).ids[0] == note.id, question

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["?!", "…", "。", "the of and", "\u200b", "🙂", "0", "a" * 8_192, "\x01", "-" * 100])
def test_a_question_without_words_has_a_finite_stable_answer(shared_world: World, text: str) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (_, m):
            for i in range(12):
                await m["writer"].write(f"Note {i} on rope work")
            answers = [await m["reader"].query(text, k=8) for _ in range(3)]
            assert answers[0].ids == answers[1].ids == answers[2].ids
            assert all(0 <= item.score <= 1 for item in answers[0].admitted)
            assert answers[0].admitted or answers[0].why_empty

    asyncio.run(scenario())


def test_nothing_is_said_in_an_empty_project(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "reader") as (_, m):
            recall = await m["reader"].query("anything?", k=64)
            assert (recall.ids, recall.withheld, recall.why_empty) == ([], {}, "nothing in this project matches")
            got = await m["reader"].get(["mem_00000000000000000000000000"])
            assert (got.ids, got.withheld, got.why_empty) == ([], {}, "no such memory is readable here")

    asyncio.run(scenario())


def test_get_brings_what_a_query_would_and_tells_nothing_more(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (name, m), desk(shared_world, name) as boss:
            open_ = await m["writer"].write("Open cabin list")
            held = await m["writer"].write("Held cabin list")
            hidden = await m["writer"].write("Hidden cabin list", readers=[["agent:nobody"]])
            await boss.hold_now(held.id, "check")
            ids = [open_.id, held.id, hidden.id, "mem_00000000000000000000000000", open_.id, open_.id[-8:]]
            got, asked = await m["reader"].get(ids), await m["reader"].query("cabin list")
            assert (got.ids, got.withheld) == (asked.ids, asked.withheld) == ([open_.id], {"held": 1})
            said = msgspec.json.encode(got).decode()
            assert not any(x.id in said for x in (held, hidden))

    asyncio.run(scenario())


def test_a_reader_waits_for_no_position_that_is_there_and_is_told_of_one_that_is_not(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (name, m), shared_world.raw(f"reader-{name}") as nc:
            for i in range(20):
                note = await m["writer"].write(f"Buoy {i} is lit")
                recall = await m["reader"].query(f"is buoy {i} lit?", min_position=note.position, k=64)
                assert note.id in recall.ids
                assert recall.position >= note.position
            ask = {"type": "query", "text": "is it lit?", "min_position": note.position + 10_000}
            answer = await shared_world.request(nc, f"reader-{name}", "query", ask, project=name)
            assert (answer["error"], answer["reason"], answer["field"]) == ("unavailable", "behind", "min_position")
            assert answer["retry_after_s"] > 0

    asyncio.run(scenario())


# --- the frame --------------------------------------------------------------------------------------------
HEAD = "tide table 00 "
BIG: dict[str, tuple[str, list[str], int]] = {
    "64 KiB of text each": ("x y " * 16_380, [], 20),
    "control characters, six bytes each in JSON": ("\x01" * (65_536 - len(HEAD)), [], 12),
    "little text and much evidence": ("", ["e" * 2_048] * 8, 64),
    "evidence of control characters": ("", ["\x02" * 2_048] * 8, 64),
    "four-byte characters": ("🙂" * 16_380, [], 12),
    "some large among small": ("", [], 64),
}


@pytest.mark.parametrize("name", BIG)
def test_an_answer_is_within_its_frame_and_what_is_cut_says_so(shared_world: World, name: str) -> None:
    async def scenario() -> None:
        content, evidence, n = BIG[name]
        async with room(shared_world, "writer", "reader") as (project, m), shared_world.raw(f"reader-{project}") as nc:
            for i in range(n):
                body = "y" * 60_000 if name.startswith("some") and i % 4 == 0 else content
                await m["writer"].write(f"tide table {i:02} {body}", evidence=evidence)
            subject = f"mem.acme.{project}.query.{shared_world.agents[f'reader-{project}'].key}"
            data = (
                await nc.request(subject, json.dumps({"type": "query", "text": "tide table", "k": 64}).encode(), timeout=10)
            ).data
            assert len(data) <= limits.RECALL_FRAME_BYTES_MAX
            recall = msgspec.json.decode(data, type=Recall)
            assert [item.rank for item in recall.admitted] == list(range(n))
            assert recall.withheld == {}
            whole = [item for item in recall.admitted if not item.truncated]
            cut = [item for item in recall.admitted if item.truncated]
            assert whole
            assert cut
            assert len(data) > limits.RECALL_FRAME_BYTES_MAX // 2, "there was room, and it was used"
            for item in cut:
                assert len(item.memory.content) <= limits.TRUNCATED_CHARS
                assert item.memory.content.startswith("tide table ")
                assert (item.memory.evidence, item.memory.sourceless) == ([], not evidence)
            for item in whole:
                assert len(item.memory.content) >= len(HEAD) + len(content)
                assert item.memory.evidence == evidence
            one = (await m["reader"].get(cut[0].memory.id)).admitted[0]
            assert (one.truncated, one.memory.evidence) == (False, evidence), "alone it is whole"
            assert len(one.memory.content) > limits.TRUNCATED_CHARS or evidence

    asyncio.run(scenario())


def test_an_answer_with_64_audiences_at_their_limit_still_leaves(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (project, m):
            for i in range(64):
                clauses = [[f"agent:reader-{project}", *(f"agent:{'x' * 50}-{i}-{c}-{e}" for e in range(31))] for c in range(16)]
                await m["writer"].write(f"Roster {i} of the regatta", readers=clauses)
            recall = await m["reader"].query("roster of the regatta", k=64)
            assert recall.admitted
            assert recall.withheld["over_frame"] > 0
            assert len(recall.admitted) + recall.withheld["over_frame"] == 64

    asyncio.run(scenario())


def test_a_full_question_with_a_full_page_is_answered_soon(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "writer", "reader") as (_, m):
            await asyncio.gather(*(m["writer"].write(f"Log line {i} of the watch") for i in range(60)))
            start = shared_world.cpu_s("gatekeeper")
            recall = await m["reader"].query("log line of the watch " * 370, k=64)
            assert len(recall.admitted) == 60
            assert shared_world.cpu_s("gatekeeper") - start < 2

    asyncio.run(scenario())


# --- shadow mode ------------------------------------------------------------------------------------------
def test_shadow_mode_changes_nothing_but_for_what_no_mode_lifts(shared_world: World) -> None:
    async def scenario() -> None:
        async with room(shared_world, "chief", "reader", chief={"see": ALL}) as (name, m), desk(shared_world, name) as boss:
            weak = await m["chief"].write("Gangway note without a source")
            held = await m["chief"].write("Gangway note that is held")
            hidden = await m["chief"].write("Gangway note for nobody", readers=[["agent:nobody"]])
            secret = await m["chief"].write("Gangway note, restricted", classification="restricted")
            gone = await m["chief"].write("Gangway note of the past", valid_until="2001-01-01T00:00:00Z")
            await boss.hold_now(held.id, "check")

            async def ask() -> bus.Recall:
                return await m["reader"].query("gangway note", intent="configure", tool_risk="privileged")

            enforced = await ask()
            assert (enforced.ids, enforced.withheld["held"]) == ([], 1)
            await set_project(shared_world, name, mode="shadow")
            shadow = await ask()
            assert shadow.ids == [weak.id]
            assert "policy_shadow" in shadow.notes
            got = await m["reader"].get([held.id, hidden.id, secret.id, gone.id], intent="configure", tool_risk="privileged")
            assert got.ids == []

    asyncio.run(scenario())
