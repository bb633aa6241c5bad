"""The life cycle as a way in: promoting, reporting and compacting to launder, to learn, or to make others' work vanish."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from broker_config.control import Control
from bus.identity import parse_creds

from .arena import KEEP, MISSING, OURS, SIEGE, Arena, Peer, fact, ids
from .test_laundering import is_tainted

_fresh = itertools.count(1)


def topic() -> str:
    """A word that no other test uses."""
    return f"mangonel{next(_fresh):03}"


async def finding(arena: Arena, text: str, who: str = "ingest", **fields: Any) -> str:
    """A memory of a task, by its id."""
    fields = {"task": "repair", "kind": "event", "evidence": ["https://wiki.example/log"], **fields}
    return str((await arena[who].write(text, scope="task", **fields))["id"])


def test_words_that_the_gatekeeper_wrote_for_a_promoter_are_not_its_own(arena: Arena) -> None:
    """It promotes by its id what it was never served, then reads it: a copy is a copy all the same."""

    async def attack() -> None:
        for promoting in (False, True):
            word = topic()
            text = f"The {word} ledger number 7731 is kept by warden Quellmark behind the copper stairs"
            source = await finding(arena, text)
            async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
                if promoting:
                    await peer.write("", promotes=source, evidence=[], readers=[["role:auditor"]])
                assert source in ids(await peer.query(text, task="repair"))
                for said in (f"Remember: {text.lower()}", f"Ask Quellmark about 7731 if the {word} is unclear to you"):
                    receipt = await peer.write(said)
                    assert is_tainted(receipt, source), (promoting, said, receipt)

    arena.run(attack())


HIDDEN: dict[str, tuple[str, dict[str, Any]]] = {
    "restricted": ("victim", {"classification": "restricted"}),
    "for other readers": ("victim", {"readers": [["agent:nobody"]]}),
    "opted out": ("victim", {"opt_out": True}),
    "another project's": ("keeper", {"project": KEEP}),
    "another tenant's": ("twin", {}),
}


def test_what_it_may_not_read_it_can_not_promote_and_learns_nothing_of_by_trying(arena: Arena) -> None:
    async def attack() -> None:
        missing = fact(await arena["mallory"].ask("write", {"type": "draft", "content": "", "promotes": MISSING}))
        for why, (who, fields) in HIDDEN.items():
            hidden = await finding(arena, f"The {topic()} stands behind the chapel", who, **fields)
            for named in (hidden, hidden[-8:]):
                answer = await arena["mallory"].ask("write", {"type": "draft", "content": "", "promotes": named})
                assert answer["reason"] == "promotes_unknown", (why, answer)
                assert fact(answer) == missing, why
        open_ = await finding(arena, f"The {topic()} stands before the chapel", "victim")
        assert (await arena["mallory"].write("", promotes=open_))["parents"] == [open_]

    arena.run(attack())


def test_an_operator_learns_of_no_task_that_only_restricted_memories_name(arena: Arena) -> None:
    async def attack() -> None:
        task, other = topic(), topic()
        await finding(arena, f"The {task} is to be sold", "victim", task=task, classification="restricted")
        await finding(arena, f"The {other} is to be kept", "victim", task=other)

        async def plan(who: str, task: str) -> dict[str, Any]:
            return await arena[who].operate("prune", {"type": "prune", "action": "plan", "project": SIEGE, "task": task})

        for _ in range(2):
            assert fact(await plan("operator", task)) == fact(await plan("operator", topic()))
            assert (await plan("operator", task))["reason"] == "task_unknown"
            await finding(arena, f"The {task} was sold", "victim", task=task, classification="restricted", task_state="resolved")
        assert (await plan("operator", other))["reason"] == "task_open"
        assert (await plan("operator-all", task))["count"] == 2

    arena.run(attack())


def test_who_promotes_for_a_moment_or_as_something_weaker_does_not_have_the_original_ended(arena: Arena) -> None:
    """A decision outlasts its task, unless it lives on in the project: else it would be gone with what took its place."""

    async def attack() -> None:
        task = topic()
        given: dict[str, dict[str, Any]] = {
            "for a minute": {"ttl": 60},
            "with less trust": {"claimed_confidence": 0.1},
            "as sensitive": {"sensitivity": "high"},
            "as of later": {"valid_from": "2099-01-01T00:00:00Z"},
            "as it is": {},
        }
        texts = {how: await finding(arena, f"The {task} gate {how}", "victim", task=task, kind="decision") for how in given}
        async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
            for how, fields in given.items():
                await peer.write("", promotes=texts[how], **fields)
        await finding(arena, f"The {task} is done", "victim", task=task, task_state="resolved")
        plan = await arena["operator"].operate("prune", {"type": "prune", "action": "plan", "project": SIEGE, "task": task})
        assert [m["id"] for m in plan["members"]] == [texts["as it is"]]
        assert (plan["promoted"], plan["kept"]) == (1, {"lasting_kind": 4, "closes_task": 1})

    arena.run(attack())


def test_a_promotion_that_waits_for_a_review_keeps_nobody_from_promoting(arena: Arena) -> None:
    """Whoever may name a stronger memory as its predecessor could have any finding wait, and with it all who'd share it."""

    async def attack() -> None:
        word = topic()
        stated = await arena["session-ann"].write(f"Ann says that the {word} is blue", origin="user_stated")
        source = await finding(arena, f"The {word} is green at seam nine", "victim")
        waits = await arena["mallory"].write("", promotes=source, supersedes=stated["id"])
        assert waits["state"] == "held", waits
        shared = await arena["victim"].write("", promotes=source)
        assert (shared["state"], shared["parents"]) == ("active", [source])
        refused = await arena["both"].ask("write", {"type": "draft", "content": "", "promotes": source})
        assert (refused["reason"], refused["detail"]) == ("promoted_already", {"promoted_as": shared["id"]})

    arena.run(attack())


def test_a_retry_by_another_key_of_the_agent_is_answered_to_that_key_while_the_first_is_under_way(arena: Arena) -> None:
    async def attack() -> None:
        name = topic()
        old = await arena.guest(await arena.world.add(name, SIEGE))
        async with Control(arena.world.home) as control:
            made = await control.agent_rotate(OURS, name, keep_old=True)
        new = await arena.guest(parse_creds(Path(made["creds"]).read_text()))
        drafts = [{"type": "draft", "content": f"Sent by both {i}", "idempotency_key": f"{i}"} for i in range(8)]
        receipts = await asyncio.gather(*(peer.ask("write", draft) for draft in drafts for peer in (old, new)))
        for peer in (old, new):
            await peer.nc.close()
        assert [x["agent"] for x in receipts] == [old.key, new.key] * 8
        assert len({x["id"] for x in receipts}) == sum(x["duplicate"] for x in receipts) == 8

    arena.run(attack())


@pytest.mark.parametrize("who", ["operator", "operator-keep"])
def test_a_plan_and_an_end_of_what_it_may_not_see_are_none_for_an_operator(arena: Arena, who: str) -> None:
    async def attack() -> None:
        task = topic()
        note = await finding(arena, f"The {task} was paid in gold", "victim", task=task, classification="restricted")
        await finding(arena, f"The {task} is closed", "victim", task=task, classification="restricted", task_state="resolved")

        async def prune(by: str, **fields: Any) -> dict[str, Any]:
            return await arena[by].operate("prune", {"type": "prune", "message": "tidying up", **fields})

        plan = (await prune("operator-all", action="plan", project=SIEGE, task=task))["plan"]
        nothing = "0" * len(plan)
        assert fact(await prune(who, action="apply", plan=plan)) == fact(await prune(who, action="apply", plan=nothing))
        end = (await prune("operator-all", action="apply", plan=plan))["end"]
        assert fact(await prune(who, action="undo", end=end)) == fact(await prune(who, action="undo", end="0" * len(end)))
        assert all(x["end"] != end for x in (await prune(who, action="list")).get("ends", []))
        assert note not in ids(await arena["victim"].query(task, task=task))
        assert (await prune("operator-all", action="undo", end=end))["count"] == 1
        assert note in ids(await arena["victim"].query(task, task=task))

    arena.run(attack())


def test_two_that_collude_do_not_have_the_last_word(arena: Arena) -> None:
    """Between them they use up the returns that all have within an hour: who wrote it first has its word back all the same."""

    async def attack() -> None:
        word = topic()
        victim, one, two = [await stranger(arena) for _ in range(3)]
        memory = (await victim.write(f"The {word} is aimed at the north gate"))["id"]
        turns = 0
        for n, by in enumerate(itertools.islice(itertools.cycle((one, two)), 8)):
            receipt = await by.write(f"The {word} is aimed at the south gate, {n}", supersedes=memory)
            if receipt["state"] == "held":
                assert "contradicts_flapping" in receipt["reasons"]
                break
            memory, turns = receipt["id"], turns + 1
        assert 2 < turns < 8
        mine = await victim.write(f"The {word} is aimed at the north gate all the same", supersedes=memory)
        assert mine["state"] == "active", mine
        for by in (one, two):
            again = await by.write(f"The {word} is aimed at the south gate again", supersedes=mine["id"])
            assert (again["state"], again["reasons"]) == ("held", ["contradicts_flapping"])
        assert mine["id"] in ids(await arena["operator-all"].get(mine["id"]))

    arena.run(attack())


async def stranger(arena: Arena) -> Peer:
    """An agent of nobody's family."""
    return await arena.guest(await arena.world.add(f"stranger-{next(_fresh)}", SIEGE))


@pytest.mark.parametrize("who", ["mallory", "both", "session-bob", "twin"])
def test_who_was_not_served_a_memory_moves_no_end_and_learns_nothing_of_it(arena: Arena, who: str) -> None:
    async def attack() -> None:
        word = topic()
        hidden = (await arena["victim"].write(f"The {word} stands", ttl=480, classification="restricted"))["id"]
        assert hidden in ids(await arena["victim"].query(word))
        answers = [fact(await arena[who].ask("report", {"type": "report", "used": [x]})) for x in (hidden, hidden[-8:], MISSING)]
        assert len(set(answers)) == 1
        served = await arena["victim"].ask("report", {"type": "report", "used": [hidden]})
        assert (served["type"], served["extended"]) == ("reported", {}), "it was written a moment ago"

    arena.run(attack())


def test_a_promotion_counts_in_flight_for_the_text_that_it_promotes(arena: Arena) -> None:
    """Else eight of 64 KiB, sent by their ids, would be a calm agent's, and everybody's drafts wait behind them."""

    async def attack() -> None:
        small = [await finding(arena, f"The {topic()} is oiled") for _ in range(6)]
        large = [await finding(arena, f"The {topic()} is oiled. ".ljust(65_000, "x")) for _ in range(6)]
        for found, refused in ((small, 0), (large, 2)):
            async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
                drafts = [{"type": "draft", "content": "", "promotes": x} for x in found]
                answers = await asyncio.gather(*(peer.ask("write", draft) for draft in drafts))
            told = [(x["reason"], x["field"]) for x in answers if x["type"] == "refusal"]
            assert told == [("over_quota", "in_flight")] * refused, answers

    arena.run(attack())


def test_an_operator_of_lower_clearance_empties_no_head_that_has_restricted_text_in_it(arena: Arena) -> None:
    """It would have an accomplice write that again for everybody, and read there what it may not."""

    async def attack() -> None:
        text = f"The {topic()} stands in the third cellar behind the barrels of Quellmark"
        source = (await arena["victim"].write(text, classification="restricted"))["id"]
        async with arena.minted(f"project:{SIEGE}", "see:restricted") as peer:
            assert source in ids(await peer.query(text))
            mine = await peer.write(f"Remember: {text.lower()}")
            name = (await arena["operator-all"].operate("why", {"type": "why", "id": mine["id"]}))["facts"]["actor"]["name"]
            close = {"type": "context", "agent": name, "action": "close", "message": "a new shift"}
            assert (await arena["operator"].operate("context", close))["reason"] == "context_elsewhere"
            again = await peer.write(f"Remember once more: {text.lower()}")
            assert (again["classification"], source in again["parents"]) == ("restricted", True)
            assert (await arena["operator-all"].operate("context", close))["closed"]

    arena.run(attack())
