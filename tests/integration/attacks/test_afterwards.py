"""Going on after the end: what was asked before a revocation and would be done after it, and rights over what one has left."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any, Final

import pytest

from bus import subjects
from bus.frames import AdmAgent, encode

from ..scenes import add_project
from .arena import ANSWER_S, OURS, SIEGE, Arena, Peer
from .test_delegation import delegated, parent
from .test_projects import done

ROUNDS: Final = 4
AT_ONCE: Final = 24
ASKED: Final[dict[str, dict[str, Any]]] = {
    "write": {"type": "draft", "content": "A parting gift of the revoked, about who opens the postern"},
    "query": {"type": "query", "text": "when is the portcullis greased?", "k": 64},
}
_fresh = itertools.count()


async def revoked(arena: Arena, name: str) -> int:
    """Revoke an agent in the ledger alone, so that its children's connections stay: the position of that event."""
    frame = AdmAgent(action="revoke", account=arena.account[OURS], name=name)
    answer = await arena.admin.request(subjects.admin(0, "agent", arena.admin_key), encode(frame), timeout=ANSWER_S)
    position: int = json.loads(answer.data)["position"]
    return position


@pytest.mark.parametrize("verb", ASKED)
def test_what_was_asked_before_a_revocation_is_not_done_after_it(arena: Arena, verb: str) -> None:
    """Else what a revoked agent had on its way would be stored behind the hold of all that it wrote, and be in force."""

    async def attack() -> None:
        for _ in range(ROUNDS):
            chief = await parent(arena)
            child = await delegated(arena, chief, verbs=["write", "query"])
            assert (await child.ask(verb, ASKED[verb]))["type"] != "refusal"
            asked = [asyncio.ensure_future(child.ask(verb, ASKED[verb])) for _ in range(AT_ONCE)]
            await asyncio.sleep(0)  # they are written to the connection before the revocation is
            end = await revoked(arena, chief.credential.name)
            answers = await asyncio.gather(*asked)
            late = [x for x in answers if x["type"] != "refusal" and x["position"] >= end]
            assert not late, f"{len(late)} of {len(answers)} were done after the revocation at {end}"
            assert {x["reason"] for x in answers if x["type"] == "refusal"} <= {"parent_revoked"}
            assert (await child.ask(verb, ASKED[verb]))["reason"] == "parent_revoked"

    arena.run(attack())


# --- an operator that has left -----------------------------------------------------------------------------
async def operator_of(arena: Arena, project: str) -> Peer:
    credential = await arena.world.add(f"warden-{next(_fresh)}", *{SIEGE, project}, role="operator", person="wren")
    return await arena.guest(credential)


async def held(by: Peer, memory: str) -> str:
    """The case of a hold."""
    answer = await by.operate("hold", {"type": "hold", "selector": [memory], "now": True, "message": "looks wrong"})
    assert answer["type"] == "case", answer
    return str(answer["case"])


def test_an_operator_that_has_left_a_project_releases_nothing_there_that_it_held(arena: Arena) -> None:
    async def attack() -> None:
        project = f"tower{next(_fresh)}"
        await add_project(arena.world, project)
        warden = await operator_of(arena, project)
        writer = await arena.guest(await arena.world.add(f"scribe-{project}", project))
        memories = [(await writer.write(f"The tower has {n} floors", project))["id"] for n in (3, 4)]
        first, second = [await held(warden, memory) for memory in memories]
        release = {"type": "release", "message": "it was right after all"}
        assert (await warden.operate("release", {**release, "case": first}))["state"] == "released"
        await done(arena, project, "leave", agent=warden.credential.name)  # its credential still has it
        assert (await warden.operate("release", {**release, "case": second}))["reason"] == "case_elsewhere"
        assert (await writer.get(memories[1], project=project))["withheld"] == {"held": 1}

    arena.run(attack())


@pytest.mark.parametrize("how", ["after it has left", "with another credential"])
def test_a_legal_hold_is_lifted_with_no_credential_that_lacks_its_project(arena: Arena, how: str) -> None:
    """It keeps evidence from being erased: the person alone isn't enough."""

    async def attack() -> None:
        project = f"vault{next(_fresh)}"
        await add_project(arena.world, project)
        warden, other = await operator_of(arena, project), await operator_of(arena, SIEGE)
        writer = await arena.guest(await arena.world.add(f"scribe-{project}", project))
        memory = (await writer.write("The vault was opened on Tuesday", project))["id"]

        async def asked(by: Peer, **fields: Any) -> dict[str, Any]:
            return await by.operate("erase", {"type": "legal_hold", "message": "the auditors asked", **fields})

        holds = [(await asked(warden, selector=[memory]))["holds"][0]["hold"] for _ in range(2)]
        assert (await asked(warden, lift=holds[0]))["holds"][0]["lifted_at"]
        if how == "after it has left":
            await done(arena, project, "leave", agent=warden.credential.name)
        lifting = warden if how == "after it has left" else other
        assert (await asked(lifting, lift=holds[1]))["reason"] == "legal_hold_elsewhere"

    arena.run(attack())
