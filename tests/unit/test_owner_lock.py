"""The store lock of a shard: one gatekeeper at a time, and the next waits for the end of one that was killed."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path

import pytest

from gate import service


def test_a_second_gatekeeper_of_a_shard_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "OWNED_WAIT_S", 0.1)

    async def scenario() -> None:
        path = tmp_path / "shard" / "owner.lock"
        async with service.owned(path):
            with pytest.raises(service.Owned) as refused:
                async with service.owned(path):
                    pass
        assert refused.value.reason == "shard_owned"
        async with service.owned(path):
            pass

    asyncio.run(scenario())


def test_the_next_gatekeeper_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "owner.lock"
        with path.open("a") as ending:
            fcntl.flock(ending, fcntl.LOCK_EX)
            asyncio.get_running_loop().call_later(2 * service.OWNED_POLL_S, ending.close)
            async with service.owned(path):
                assert ending.closed

    asyncio.run(scenario())
