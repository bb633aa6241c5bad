"""An erasure on three servers: gone from every stream and store at once, from the raft logs when the servers have compacted them.

The judge is the same search for a marker over all files, of the home, the three servers and both gatekeepers.
"""

from __future__ import annotations

import asyncio
import sys

import pytest

from broker_config.control import Control
from broker_config.processes import spawn, stop_child

from .cluster import Cluster, cluster
from .test_erasure import done, found
from .world import until

STREAMS_SETTLE_S = 30.0
COMPACTED_S = 300.0  # nats-server looks every two to three minutes, each server at its own time


@pytest.mark.slow
def test_an_erased_text_is_soon_in_no_byte_of_three_servers() -> None:
    mark, other = "zorblaxian-quince", "neighbour-of-quince"

    async def scenario() -> None:
        async with cluster() as made:
            folder, home = made.world.home.path.parent, made.world.home
            async with Control(home) as control:
                await control.tenant_add("acme")
                await control.project_add("acme", "p1")
            await made.world.add("writer", "p1")
            await made.world.add("kim", "p1", role="operator")
            ca = made.gates[0].folder / "ca.crt"
            command = ["env", f"CORDON_URL={home.url}", f"CORDON_CA={ca}", sys.executable, "-m", "gate.janitor"]
            janitor = spawn([*command, "--home", str(home.path)], folder / "janitor.log")
            try:
                async with made.world.agent("writer") as memory, made.world.desk("kim") as desk:
                    secret = await memory.write(f"The code of the vault is {mark}")
                    kept = [(await memory.write(f"note {i} on the {other}")).id for i in range(6)]
                    for name, node in made.nodes.items():
                        await until(lambda node=node: bool(found(node, mark)), f"the text reaches {name}")  # type: ignore[misc]
                    receipt = await done(desk, await desk.erase([secret.id], "its subject asked for it"))
                    assert receipt.pending == []
                    assert any("raft logs" in line for line in receipt.out_of_reach)
                    await until(lambda: not in_streams(made, mark), "no stream has it", STREAMS_SETTLE_S)
                    assert in_streams(made, other)
                    assert all(not found(gate.folder, mark) for gate in made.gates)
                    await until(lambda: not found(folder, mark), "no byte of it is left", COMPACTED_S)
                    assert set((await memory.get(kept)).ids) == set(kept)
                    assert (await memory.get(secret.id)).withheld == {"erased": 1}
            finally:
                stop_child(janitor, 10)

    asyncio.run(scenario())


def in_streams(made: Cluster, mark: str) -> set[str]:
    """Names of the files of the servers' streams that hold the marker; their raft logs lie elsewhere."""
    return {name for node in made.nodes.values() for streams in node.rglob("streams") for name in found(streams, mark)}
