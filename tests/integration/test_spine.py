"""The main path with the real client, broker and gatekeeper."""

from __future__ import annotations

import asyncio

from .world import World


def test_what_one_agent_writes_another_recalls_with_attribution(shared_world: World) -> None:
    async def scenario() -> None:
        w = shared_world
        alice = await w.add("alice", "p1")
        await w.add("bert", "p1")
        async with w.agent("alice") as memory, w.agent("bert") as reader:
            receipt = await memory.write("The staging database Obsidiana uses rotating keys", evidence=["https://wiki/staging"])
            assert receipt.actor.key == alice.key
            recall = await reader.query("how do we log in to the staging database Obsidiana?")
            item = next(i for i in recall.admitted if i.memory.id == receipt.id)
            assert item.memory.actor.name == "alice"
            assert item.decision == "admit"
            assert "rotating keys" in recall.as_prompt()

    asyncio.run(scenario())
