"""Helpers: what a child may, what it shares with its parent and what ends it, the same on the twin and on a real home."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bus

from .arena import Arena

KEYS = "The staging database of Skerry uses rotating keys"
HOUR_S = 3_600


def test_a_child_may_what_it_was_given_and_its_writes_carry_the_chain(arena: Arena) -> None:
    async def scenario() -> None:
        async with arena.agent("writer") as parent:
            first = await parent.write(KEYS)
            child = await parent.delegate("helper", verbs=["query", "write"], ceiling="external", ttl=600)
            assert child.name == f"{arena.named('writer')}--helper"
            assert "SEED" in child.creds
            assert child.creds not in repr(child)
            async with arena.child(child.creds) as helper:
                assert (await helper.query(KEYS)).ids == [first.id]
                receipt = await helper.write("Skerry's keys rotate weekly")
                assert (receipt.origin, receipt.actor.name, receipt.actor.chain) == ("external", child.name, [first.actor.id])
                with pytest.raises(bus.Denied):
                    await helper.get(first.id)
            assert (await parent.get(receipt.id)).admitted[0].memory.actor.chain == [first.actor.id]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("dimension", "asked"),
    [
        ("role", {"role": "operator"}),
        ("projects", {"projects": ["elsewhere"]}),
        ("clearance", {"clearance": "restricted"}),
        ("verbs", {"verbs": ["hold"]}),
        ("tools", {"tools": ["shell"]}),
        ("ceiling", {"ceiling": "user_stated"}),
        ("user", {"user": "ann"}),
        ("ttl", {"ttl": 365 * 86_400}),
    ],
)
def test_a_child_is_no_wider_than_its_parent_and_is_told_where(arena: Arena, dimension: str, asked: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with arena.agent("writer") as parent:
            with pytest.raises(bus.Denied) as denied:
                await parent.delegate("helper", **asked)
            assert (denied.value.reason, denied.value.field) == ("delegation_too_wide", dimension)
            assert (await parent.delegate("helper")).said.clearance == "internal"

    asyncio.run(scenario())


def test_what_a_child_reads_marks_what_its_parent_writes(arena: Arena) -> None:
    async def scenario() -> None:
        async with arena.agent("page", role="ingest") as page, arena.agent("writer") as parent:
            source = await page.write(KEYS, evidence=["https://wiki.example"])
            child = await parent.delegate()
            assert child.name.startswith(f"{arena.named('writer')}--")
            async with arena.child(child.creds) as helper:
                assert (await helper.query(KEYS)).ids == [source.id]
            copy = await parent.write(KEYS)
            assert (copy.origin, copy.parents) == ("external", [source.id])

    asyncio.run(scenario())


def test_an_operator_holds_an_agent_with_all_that_it_delegated_and_sees_by_whom(arena: Arena) -> None:
    async def scenario() -> None:
        async with arena.agent("writer") as parent, arena.agent("other") as other, arena.operator() as desk:
            child = await parent.delegate("helper", verbs=["write"])
            mine, theirs = await parent.write(KEYS), await other.write("Lunch is at noon")
            async with arena.child(child.creds) as helper:
                note = await helper.write("Another note on the harbour")
            plan = await desk.plan(f"agent:{arena.named('writer')}")
            assert {m.id for m in plan.members} == {mine.id, note.id}
            assert {m.id for m in (await desk.plan(f"agent:{child.name}")).members} == {note.id}
            assert {m.id for m in (await desk.plan(f"agent:{arena.named('other')}")).members} == {theirs.id}
            why = await desk.why(note.id)
            assert why.facts["actor"]["chain"] == [mine.actor.id]
            assert f"{child.name}, delegated by {arena.named('writer')}, wrote it" in why.sentences[0]

    asyncio.run(scenario())


def test_users_of_a_gateway_have_a_context_each(arena: Arena) -> None:
    async def scenario() -> None:
        async with arena.agent("gateway", role="user_gateway") as gateway, arena.agent("page", role="ingest") as page:
            source = await page.write(KEYS, evidence=["https://wiki.example"])
            sessions = {user: await gateway.delegate(user=user) for user in ("ann", "bob")}
            assert {child.said.role for child in sessions.values()} == {"user_session"}
            async with arena.child(sessions["ann"].creds) as ann, arena.child(sessions["bob"].creds) as bob:
                assert (await ann.query(KEYS)).ids == [source.id]
                assert (await ann.write(KEYS)).origin == "external"
                assert (await bob.write(KEYS)).origin == "user_stated"
            with pytest.raises(bus.Denied) as denied:
                await gateway.delegate("nobody")
            assert denied.value.field == "user"

    asyncio.run(scenario())


def test_a_chain_of_three_is_the_longest(arena: Arena) -> None:
    async def scenario() -> None:
        async with arena.agent("writer") as parent:
            creds = (await parent.delegate(verbs=["write", "delegate"])).creds
            for _ in range(2):
                async with arena.child(creds) as child:
                    creds = (await child.delegate(verbs=["write", "delegate"])).creds
            async with arena.child(creds) as last:
                assert len((await last.write(KEYS)).actor.chain) == 3
                with pytest.raises(bus.Denied) as denied:
                    await last.delegate()
                assert (denied.value.reason, denied.value.limit) == ("delegation_too_deep", 3)

    asyncio.run(scenario())


def test_a_key_that_was_made_elsewhere_stays_there(arena: Arena) -> None:
    from bus.identity import creds_text, keypair

    async def scenario() -> None:
        key = keypair("user")
        async with arena.agent("writer") as parent:
            child = await parent.delegate("remote", key=key.public, verbs=["write"])
            assert (child.creds, child.said.key) == ("", key.public)
            async with arena.child(creds_text(child.said.jwt, key)) as remote:
                assert (await remote.write(KEYS)).actor.key == key.public
            with pytest.raises(bus.Conflict) as taken:
                await parent.delegate("again", key=key.public)
            assert taken.value.reason == "key_taken"

    asyncio.run(scenario())
