"""A former owner of a shard: what it has on its way is kept out, and it answers nobody."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from broker_config import layouts
from broker_config.home import Home
from broker_config.processes import spawn, stop_child
from broker_config.server import find_server
from broker_config.trust import Trust
from bus.servers import servers
from gate.clock import running_clock
from gate.lease import LEASE_S, TAKE_OVER_S, Lease
from gate.ledger.errors import SteppedDown
from gate.paths import Paths
from gate.refusals import Refused
from gate.service import connection, opened
from gate.shard import Shard

from .cluster import until_streams


def test_a_former_owner_neither_writes_nor_answers(tmp_path: Path) -> None:
    async def scenario(home: Home, folders: list[Path]) -> None:
        await until_streams(home, 1)
        where, [one, two] = servers(home.url), [Paths(folder) for folder in folders]
        ahead_s = 0.0
        async with connection(one, where) as nc, connection(two, where) as nc2, opened(one, where) as (old, _):
            old.lease = Lease(nc, 0, clock=lambda: running_clock() + ahead_s)
            await old.lease.acquire()
            await old.fence()
            sent: list[bytes] = []
            old.outbox.send = lambda subject, data: sent.append(data)  # type: ignore[method-assign]
            assert said(old, sent) == [b"answer", "over_quota"]
            ahead_s = LEASE_S
            assert not old.healthy()
            assert said(old, sent) == ["ledger_unreachable"]  # nobody else can have it yet: a no is true
            ahead_s = TAKE_OVER_S
            assert said(old, sent) == []  # somebody may be doing what was asked

            async with opened(two, where) as (new, _):
                new.lease = Lease(nc2, 0, take_over_s=0)
                await new.lease.acquire()
                await new.fence()
                assert (old.owner_epoch, new.owner_epoch) == (1, 2)
                with pytest.raises(SteppedDown):
                    await old.sequencer.fence()  # an append as any other
                with pytest.raises(SteppedDown):
                    await old.recalls.fence()
                with pytest.raises(SteppedDown):
                    await old.lease.keep()
                await new.fence()  # the new one goes on

    home = Home(tmp_path / "home")
    home.create()
    Trust(home, time.time).create()
    done = layouts.render(home, "single", layouts.trial_nodes("single"), tmp_path / "rendered")
    folders = [shutil.copytree(done.gate, tmp_path / name) for name in ("one", "two")]
    server = spawn([str(find_server()), "-c", str(done.nodes[0] / "server.conf")], tmp_path / "server.log")
    try:
        asyncio.run(scenario(home, folders))
    finally:
        stop_child(server, 10)


def said(shard: Shard, sent: list[bytes]) -> list[Any]:
    """What leaves the shard of an answer and of a refusal."""
    import json

    sent.clear()
    shard.send("_INBOX.x", b"answer")
    shard.refuse("_INBOX.x", Refused("over_quota"), "r1", "", "")
    return [data if data == b"answer" else json.loads(data)["reason"] for data in sent]
