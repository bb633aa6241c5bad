"""Learning that something is there without being allowed to: by words, codes, time, counts, scores, positions and keys."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any, Final

import pytest

from .arena import KEEP, MISSING, OURS, SIEGE, Arena, Peer, fact, ids

HIDDEN: Final = (
    "another tenant", "another project", "restricted", "for other readers", "for another role", "opted out", "another user's",
)  # fmt: skip
WAYS: Final = ("get", "get by the end of its id", "as a parent", "as a predecessor", "among others")


async def _asked(peer: Peer, way: str, wanted: str, known: str) -> str:
    """What is said about an id, without the id."""
    match way:
        case "get":
            said = await peer.get(wanted)
        case "get by the end of its id":
            said = await peer.get(wanted[-8:])
        case "as a parent":
            said = await peer.ask("write", {"type": "draft", "content": "child", "derived_from": [wanted]})
        case "as a predecessor":
            said = await peer.ask("write", {"type": "draft", "content": "newer", "supersedes": wanted})
        case _:
            said = await peer.get(known, wanted)
            assert ids(said) == [known]
            said = {k: v for k, v in said.items() if k != "admitted"}
    return fact(said).replace(wanted, "")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_what_is_hidden_is_spoken_of_as_what_is_not_there(arena: Arena, hidden: str, way: str) -> None:
    async def attack() -> None:
        mallory, wanted = arena["mallory"], arena.hidden[hidden]
        assert await _asked(mallory, way, wanted, arena.note) == await _asked(mallory, way, MISSING, arena.note)
        assert ids(await mallory.get(arena.note)) == [arena.note]

    arena.run(attack())


# --- operators ------------------------------------------------------------------------------------------
OPS_WAYS: Final[dict[str, dict[str, Any]]] = {
    "why": {"type": "why", "id": "ID"},
    "why, revealed": {"type": "why", "id": "ID", "reveal": True},
    "trace": {"type": "trace", "id": "ID"},
    "trace up": {"type": "trace", "id": "ID", "direction": "up"},
    "hold": {"type": "hold", "selector": ["ID"], "dry_run": True},
    "hold now": {"type": "hold", "selector": ["ID"], "now": True, "message": "mine"},
    "review": {"type": "review", "id": "ID", "verdict": "accepted", "message": "fine"},
}
OPS_HIDDEN: Final = ("another tenant", "another project", "restricted")


@pytest.mark.parametrize("way", OPS_WAYS)
@pytest.mark.parametrize("hidden", OPS_HIDDEN)
def test_an_operator_learns_nothing_of_what_is_not_in_its_projects_and_clearance(arena: Arena, hidden: str, way: str) -> None:
    async def attack() -> None:
        operator = arena["operator"]

        async def said(wanted: str) -> str:
            frame = json.loads(json.dumps(OPS_WAYS[way]).replace("ID", wanted))
            return fact(await operator.operate(frame["type"], frame))

        for cut in (slice(None), slice(-8, None)):
            assert await said(arena.hidden[hidden][cut]) == await said(MISSING[cut])
        assert (await operator.operate("why", {"type": "why", "id": arena.note}))["type"] == "why_answer"

    arena.run(attack())


CLOSE: Final = {"action": "close", "message": "x"}
NOW: Final = {"now": True, "message": "x"}


@pytest.mark.parametrize(
    ("verb", "known", "unknown"),
    [
        ("context", {"agent": "keeper"}, {"agent": "nobody"}),
        ("context", {"agent": "keeper", **CLOSE}, {"agent": "nobody", **CLOSE}),
        ("hold", {"selector": ["agent:keeper"], "dry_run": True}, {"selector": ["agent:nobody"], "dry_run": True}),
        ("hold", {"selector": ["agent:keeper"], **NOW}, {"selector": ["agent:nobody"], **NOW}),
        ("hold", {"selector": ["source:https://keep.example"], **NOW}, {"selector": ["source:https://no.example"], **NOW}),
        ("hold", {"selector": ["run:keeps"], "dry_run": True}, {"selector": ["run:nobodys"], "dry_run": True}),
    ],
    ids=["context", "context close", "hold agent", "hold agent now", "hold source", "hold run"],
)  # fmt: skip
def test_an_operator_learns_no_agent_source_or_run_of_another_project(
    arena: Arena, verb: str, known: dict[str, Any], unknown: dict[str, Any]
) -> None:
    async def attack() -> None:
        await arena["keeper"].write("Keep's labelled note", KEEP, run="keeps", evidence=["https://keep.example"])
        operator, tag = arena["operator"], {"type": verb}
        assert fact(await operator.operate(verb, tag | known)) == fact(await operator.operate(verb, tag | unknown))
        own = await operator.operate("context", {"type": "context", "agent": "mallory"})
        assert own["type"] == "context_answer"

    arena.run(attack())


def test_an_operator_reads_nothing_of_a_case_of_another_project_but_counts(arena: Arena) -> None:
    async def attack() -> None:
        keep, siege = arena["operator-keep"], arena["operator"]
        note = await arena["keeper"].write("Keep's note for a case", KEEP)
        await arena["keeper"].query("keep's note for a case", KEEP)
        case = await keep.operate(
            "hold", {"type": "hold", "selector": [note["id"]], "now": True, "message": "keep's secret reason"}
        )
        assert (case["type"], case["why"]) == ("case", "keep's secret reason")
        seen = [
            next(c for c in (await siege.operate("case", {"type": "case_query"}))["cases"] if c["case"] == case["case"]),
            await siege.operate("case", {"type": "case_query", "case": case["case"]}),
        ]
        for shown in seen:
            assert (shown["count"], shown["elsewhere"], shown["members"], shown["roots"]) == (1, 1, [], [])
            assert "secret" not in json.dumps(shown)
            assert (shown["told"], shown["acked"]) == ([], [])

    arena.run(attack())


def test_an_operator_can_not_lift_a_hold_of_another_project(arena: Arena) -> None:
    async def attack() -> None:
        keep, siege = arena["operator-keep"], arena["operator"]
        note = await arena["keeper"].write("Keep's held note", KEEP)
        case = await keep.operate("hold", {"type": "hold", "selector": [note["id"]], "now": True, "message": "forged"})
        answer = await siege.operate("release", {"type": "release", "case": case["case"], "message": "I want it back"})
        assert (answer["type"], answer.get("reason"), answer.get("error")) == ("refusal", "case_elsewhere", "denied"), answer
        assert ids(await arena["keeper"].get(note["id"], project=KEEP)) == []
        done = await keep.operate("release", {"type": "release", "case": case["case"], "message": "checked"})
        assert (done["type"], done["state"]) == ("case", "released")

    arena.run(attack())


def test_an_operator_can_not_use_a_plan_over_what_it_may_not_see(arena: Arena) -> None:
    async def attack() -> None:
        keep, siege = arena["operator-keep"], arena["operator"]
        note = await arena["keeper"].write("Keep's planned note", KEEP)
        plan = await keep.operate("hold", {"type": "hold", "selector": [note["id"]], "dry_run": True})
        for more in ({"dry_run": True}, {"message": "mine now"}):
            answer = await siege.operate("hold", {"type": "hold", "plan": plan["plan"], **more})
            unknown = await siege.operate("hold", {"type": "hold", "plan": "plan_" + "0" * 26, **more})
            assert fact(answer) == fact(unknown)
        assert ids(await arena["keeper"].get(note["id"], project=KEEP)) == [note["id"]]
        case = await keep.operate("hold", {"type": "hold", "plan": plan["plan"], "message": "as planned"})
        assert (case["type"], case["count"]) == ("case", 1)
        await keep.operate("release", {"type": "release", "case": case["case"], "message": "done"})

    arena.run(attack())


def test_an_operator_is_not_told_the_id_of_a_restricted_successor(arena: Arena) -> None:
    async def attack() -> None:
        victim = arena["victim"]
        old = await victim.write("The postern is on the left")
        new = await victim.write("The postern is on the right", supersedes=old["id"], classification="restricted")
        clerk, chief = [await arena[o].operate("why", {"type": "why", "id": old["id"]}) for o in ("operator", "operator-all")]
        assert chief["facts"]["superseded_by"] == new["id"]
        assert new["id"] not in json.dumps(clerk)

    arena.run(attack())


def test_a_hold_names_no_new_child_in_another_project(arena: Arena) -> None:
    """A plan's new descendants are named when it is applied: those that the operator may see."""

    async def attack() -> None:
        victim, siege, everywhere = arena["victim"], arena["operator"], arena["operator-all"]
        root = await victim.write("The well is in the second court")
        plan = await siege.operate("hold", {"type": "hold", "selector": [root["id"]], "dry_run": True})
        hidden = await victim.write("A restricted child", derived_from=[root["id"]], classification="restricted")
        open_ = await victim.write("An open child", derived_from=[root["id"]])
        case = await siege.operate("hold", {"type": "hold", "plan": plan["plan"], "message": "check"})
        assert (case["type"], case["count"], case["added"]) == ("case", 2, [open_["id"]])
        assert hidden["id"] not in json.dumps(case)
        await everywhere.operate("release", {"type": "release", "case": case["case"], "message": "done"})

    arena.run(attack())


# --- time -----------------------------------------------------------------------------------------------
ROUNDS: Final = 40
ATTEMPTS: Final = 5  # a busy machine spoils one, a real difference (a fetch, a hash) would be in every one
TIME_RATIO_MAX: Final = 1.6


@pytest.mark.parametrize("hidden", ["another tenant", "another project", "restricted", "for other readers"])
def test_not_found_and_not_allowed_take_the_same_time(arena: Arena, hidden: str) -> None:
    async def ratio() -> float:
        mallory = arena["mallory"]
        took: dict[str, list[float]] = {arena.hidden[hidden]: [], MISSING: []}
        for _ in range(ROUNDS):
            for wanted, times in took.items():
                began = time.perf_counter()
                await mallory.get(wanted)
                times.append(time.perf_counter() - began)
        there, missing = (statistics.quantiles(times, n=10)[0] for times in took.values())  # the tenth that was disturbed least
        return max(there / missing, missing / there)

    async def attack() -> None:
        seen: list[float] = []
        while len(seen) < ATTEMPTS and (not seen or seen[-1] >= TIME_RATIO_MAX):
            seen.append(await ratio())
        assert seen[-1] < TIME_RATIO_MAX, seen

    arena.run(attack())


# --- counts, scores, positions ----------------------------------------------------------------------
QUESTION: Final = "who carries the brass halberd of the barbican?"
FILLERS: Final[dict[str, dict[str, Any]]] = {
    "restricted": {"classification": "restricted"},
    "for other readers": {"readers": [["agent:nobody"]]},
    "opted out": {"opt_out": True},
    "of a user": {"scope": "user", "scope_id": "ann"},
}


@pytest.mark.parametrize("kind", FILLERS)
def test_hidden_memories_change_no_count_no_rank_and_no_reason(arena: Arena, kind: str) -> None:
    async def attack() -> None:
        mallory, writer = arena["mallory"], arena["session-ann"] if kind == "of a user" else arena["victim"]
        for i in range(3):
            await writer.write(f"Guard {i} carries the halberd of the barbican on {kind} days")

        async def said() -> tuple[Any, ...]:
            r = await mallory.query(QUESTION)
            return (
                [(x["memory"]["id"], x["rank"], x["decision"], x["reasons"]) for x in r["admitted"]],
                r["withheld"],
                r["why_empty"],
                r["notes"],
            )

        before = await said()
        for i in range(12):
            await writer.write(f"Hidden {i}: who carries the brass halberd of the barbican", **FILLERS[kind])
        assert await said() == before
        assert len(ids(await writer.query(QUESTION, **({"user": "ann"} if kind == "of a user" else {})))) >= len(before[0])

    arena.run(attack())


@pytest.mark.parametrize("kind", FILLERS)
def test_hidden_memories_change_no_score(arena: Arena, kind: str) -> None:
    async def attack() -> None:
        mallory, writer = arena["mallory"], arena["session-ann"] if kind == "of a user" else arena["victim"]
        word = f"quillon{'abcd'[list(FILLERS).index(kind)]}"
        for metal in ("bronze", "iron", "tin"):
            await writer.write(f"The {word} of the sword is made of {metal}")

        async def scores() -> list[tuple[str, float]]:
            found = await mallory.query(f"what is the {word} made of, {word} of iron?")
            assert found["admitted"]
            return [(x["memory"]["id"], x["score"]) for x in found["admitted"]]

        before = await scores()
        for i in range(60):
            await writer.write(f"Hidden {i}: a {word} like any {word}", **FILLERS[kind])
        assert await scores() == before

    arena.run(attack())


def test_a_held_memory_that_it_could_see_is_counted_and_one_that_it_never_may_see_is_not(arena: Arena) -> None:
    async def attack() -> None:
        mallory, victim, chief = arena["mallory"], arena["victim"], arena["operator-all"]
        seen = await victim.write("The oubliette has a lid of oak")
        never = await victim.write("The oubliette has a lid of lead", classification="restricted")
        cases = [
            await chief.operate("hold", {"type": "hold", "selector": [x["id"]], "now": True, "message": "check"})
            for x in (seen, never)
        ]
        answer = await mallory.query("what lid has the oubliette?", filters={"kind": ["fact"]})
        assert answer["withheld"] == {"held": 1}
        assert (await mallory.get(seen["id"], never["id"]))["withheld"] == {"held": 1}
        for case in cases:
            await chief.operate("release", {"type": "release", "case": case["case"], "message": "done"})

    arena.run(attack())


def test_the_clock_of_a_tenant_does_not_tick_with_another(arena: Arena) -> None:
    async def attack() -> None:
        before = (await arena["mallory"].ask("sync", {}))["position"]
        for _ in range(3):
            await arena["twin"].write("Twin writes something")
        assert (await arena["mallory"].ask("sync", {}))["position"] == before
        await arena["mallory"].write("Mallory writes something")
        assert (await arena["mallory"].ask("sync", {}))["position"] == before + 1

    arena.run(attack())


# --- keys and notices of others -----------------------------------------------------------------------
def test_an_idempotency_key_of_another_says_nothing(arena: Arena) -> None:
    async def attack() -> None:
        key: dict[str, Any] = {"idempotency_key": "shared-secret-key"}
        first = await arena["victim"].write("The countersign is periwinkle", **key)
        for peer in (arena["mallory"], arena["both"], arena["twin"], arena["session-ann"]):
            other = await peer.write("Something else", **key)  # no idempotency_conflict
            assert (other["duplicate"], other["id"] != first["id"]) == (False, True)
        again = await arena["victim"].write("The countersign is periwinkle", **key)
        assert (again["id"], again["duplicate"]) == (first["id"], True)

    arena.run(attack())


def test_a_notice_of_another_can_not_be_acknowledged_and_is_not_confirmed(arena: Arena) -> None:
    async def attack() -> None:
        victim, mallory, chief = arena["victim"], arena["mallory"], arena["operator-all"]
        note = await victim.write("The granary has two keys", classification="restricted")
        await victim.query("how many keys has the granary?")
        case = await chief.operate("hold", {"type": "hold", "selector": [note["id"]], "now": True, "message": "check"})
        known, unknown = f"{case['case']}.recall", f"case_{'0' * 26}.recall"
        said = [fact(await mallory.ask("ack", {"type": "ack", "notices": [n]})) for n in (known, unknown)]
        assert said[0] == said[1]
        assert json.loads(said[0])["reason"] == "notice_unknown"
        assert known in [n["notice"] for n in (await victim.ask("sync", {}))["notices"]]
        done = await victim.ask("ack", {"type": "ack", "notices": [known]})
        assert known not in [n["notice"] for n in done["notices"]]
        await chief.operate("release", {"type": "release", "case": case["case"], "message": "done"})

    arena.run(attack())


MARK: Final = "zq9marker"
ECHOES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "kind": ("write", {"type": "draft", "content": "x", "kind": MARK}),
    "parent": ("write", {"type": "draft", "content": "x", "derived_from": [MARK]}),
    "evidence": ("write", {"type": "draft", "content": "", "evidence": [MARK]}),
    "filter": ("query", {"type": "query", "text": "x", "filters": {MARK: [MARK]}}),
    "time": ("query", {"type": "query", "text": "x", "as_of": MARK}),
    "id": ("get", {"type": "get", "ids": [MARK * 9]}),
    "notice": ("ack", {"type": "ack", "notices": [MARK]}),
    "request id": ("query", {"type": "query", "text": "", "request_id": f"{MARK} {MARK}"}),
}


@pytest.mark.parametrize("what", ECHOES)
def test_a_refusal_echoes_nothing_of_its_request(arena: Arena, what: str) -> None:
    async def attack() -> None:
        verb, frame = ECHOES[what]
        answer = await arena["mallory"].ask(verb, frame)
        assert answer["type"] == "refusal"
        assert MARK not in json.dumps(answer)
        assert (await arena["mallory"].ask("query", {"type": "query", "text": "x", "request_id": "mine"}))["request_id"] == "mine"

    arena.run(attack())


def test_the_nearest_name_is_one_of_its_own(arena: Arena) -> None:
    async def attack() -> None:
        async with arena.minted(f"tenant:{OURS}", f"project:{SIEGE}", "project:kee") as peer:
            answer = await peer.ask("write", {"type": "draft", "content": "x"}, project="kee")
            assert answer["detail"] == {"nearest": SIEGE}  # keep is nearer, and isn't its own
            await peer.write("In its own project")

    arena.run(attack())
