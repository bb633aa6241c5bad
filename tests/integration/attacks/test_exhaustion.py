"""Using up what others need as well, within every rate: what stays in memory, in files, and in the ledger."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from typing import Any, Final

from bus.limits import READER_CLAUSES_MAX, READER_ENTRIES_MAX
from gate.projections.catalog import PLANS_KEPT
from gate.quotas import DEFAULT

from .arena import OURS, SIEGE, Arena, ids

_fresh = itertools.count()
CLAUSE: Final = READER_ENTRIES_MAX - 1


def crowd() -> list[list[str]]:
    """As many readers as a draft may name, all new, and every agent among them."""
    return [["role:agent", *(f"user:{next(_fresh)}" for _ in range(CLAUSE))] for _ in range(READER_CLAUSES_MAX)]


def test_readers_that_nobody_is_fill_no_memory_and_make_no_question_slow(arena: Arena) -> None:
    """Each different list of readers is kept, and gone through for each agent that asks in the tenant."""

    async def attack() -> None:
        async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
            known, answer = crowd(), dict[str, Any]()
            note = await peer.write("The first of many crowds", readers=known)
            for n in range(2 * DEFAULT.agent_readers // (READER_CLAUSES_MAX * READER_ENTRIES_MAX)):
                answer = await peer.ask("write", {"type": "draft", "content": f"Crowd {n}", "readers": crowd()})
                if answer["type"] == "refusal":
                    break
            assert (answer["reason"], answer["field"]) == ("quota_full", "readers")
            assert answer["limit"] == DEFAULT.agent_readers
            assert (answer["detail"]["whose"], answer["detail"]["used"] <= answer["limit"]) == ("agent", True)
            assert (await peer.write("Again for those", readers=known))["state"] == "active", "what is known costs nothing"
            assert (await peer.write("For all"))["state"] == "active"
            assert (await arena["both"].write("Another's crowd", readers=crowd()))["state"] == "active"
            assert note["id"] in ids(await arena["victim"].query("the first of many crowds"))
            assert note["id"] not in ids(await arena["session-ann"].query("the first of many crowds"))

    arena.run(attack())


def test_plans_that_nobody_applies_fill_no_disk(arena: Arena) -> None:
    async def attack() -> None:
        operator = arena["operator"]
        plan = {"type": "hold", "selector": [arena.note], "dry_run": True}
        last = ""
        for _ in range(PLANS_KEPT + 20):
            answer = await operator.operate("hold", plan)
            assert answer["type"] == "plan", answer
            last = answer["plan"]
        file = arena.world.home.path / "shards/0/tenants" / arena.account[OURS] / "catalog.sqlite"
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
            [(kept,)] = db.execute("SELECT count(*) FROM plan").fetchall()
        assert kept <= PLANS_KEPT
        shown = await operator.operate("hold", {**plan, "plan": last})
        assert (shown["type"], shown["plan"]) == ("plan", last), "the newest are there"

    arena.run(attack())
