"""The lease between gatekeepers, against a real server: who may serve a shard, for how long, and who takes over when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client

from broker_config.claims import operator_jwt
from bus.errors import ConfigError
from bus.identity import keypair, registry_jwt
from gate.lease import LEASE_S, Lease
from gate.ledger.errors import LedgerWentBack, SteppedDown
from gate.ledger.jetstream import API_TIMEOUT_S
from gate.paths import Paths
from gate.refusals import Refused
from gate.shared_registry import fetch_registry, publish_registry

from .ledger_server import LedgerServer, Relay, connected, until

SHORT_S, TAKE_OVER_S = 1.0, 1.5


class Clock:
    """Stands still until the test moves it: a loaded machine is no pause."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.ahead_s


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    with LedgerServer(tmp_path_factory.mktemp("lease")) as server:
        yield server


def lease(nc: Client, clock: Clock | None = None) -> Lease:
    return Lease(nc, 0, lease_s=SHORT_S, take_over_s=TAKE_OVER_S, clock=clock or Clock())


@asynccontextmanager
async def owner_stream(server: LedgerServer) -> AsyncIterator[tuple[Client, Client]]:
    """An empty OWNER_0, and two connections."""
    async with connected(server.url) as one, connected(server.url) as two:
        await one.jetstream().add_stream(name="OWNER_0", subjects=["owner.0.*"], max_msgs_per_subject=1)
        try:
            yield one, two
        finally:
            await one.jetstream().delete_stream("OWNER_0")


async def is_waiting(standby: Lease) -> asyncio.Task[None]:
    """A standby that has looked and not taken the lease."""
    waiting = asyncio.create_task(standby.acquire())
    await asyncio.sleep(0)
    return waiting


async def has_looked(clock: Clock) -> None:
    """Until the standby has asked at least once more, and has heard the answer. Each look begins with a look at the clock."""
    seen = clock.looks
    await until(lambda: _is(clock.looks >= seen + 3))  # what was under way, a whole one, the beginning of the next


def test_one_holds_the_lease_and_a_standby_takes_over_only_after_its_silence(server: LedgerServer) -> None:
    async def scenario() -> None:
        async with owner_stream(server) as (one, two):
            owner_s, standby_s = Clock(), Clock()
            first, second = lease(one, owner_s), lease(two, standby_s)
            assert not first.held
            await first.acquire()
            assert (first.held, first.epoch) == (True, 1)
            keeping = asyncio.create_task(first.keep())
            waiting = await is_waiting(second)
            for _ in range(3):
                await has_looked(standby_s)
                for clock in (owner_s, standby_s):
                    clock.ahead_s += TAKE_OVER_S - 0.1
                assert not first.held
                await until(lambda: _is(first.held))  # renewed
            await has_looked(standby_s)
            assert not waiting.done()
            keeping.cancel()
            await one.flush()
            await has_looked(standby_s)
            for silence_s, lapsed in ((TAKE_OVER_S - 0.1, False), (0.2, True)):
                for clock in (owner_s, standby_s):
                    clock.ahead_s += silence_s
                if not lapsed:
                    await has_looked(standby_s)
                    assert not waiting.done()
            await asyncio.wait_for(waiting, 20)
            assert (second.held, second.epoch) == (True, 2)
            assert (first.held, first.unclaimed) == (False, False)  # it ended before the other's began
            with pytest.raises(SteppedDown):
                await first.keep()

    asyncio.run(scenario())


def test_a_pause_ends_the_lease_at_once_and_a_renewal_that_is_confirmed_gives_it_back(server: LedgerServer) -> None:
    async def scenario() -> None:
        async with owner_stream(server) as (one, _):
            clock = Clock()
            paused = lease(one, clock)
            await paused.acquire()
            assert (paused.held, paused.unclaimed) == (True, True)
            clock.ahead_s = SHORT_S
            assert (paused.held, paused.unclaimed) == (False, True)
            clock.ahead_s = TAKE_OVER_S
            assert (paused.held, paused.unclaimed) == (False, False)
            keeping = asyncio.create_task(paused.keep())  # nobody else came: it is the owner still
            await until(lambda: _is(paused.held))
            keeping.cancel()

    asyncio.run(scenario())


async def _is(truth: bool) -> bool:
    return truth


def test_a_lease_that_is_released_is_taken_at_once(server: LedgerServer) -> None:
    async def scenario() -> None:
        async with owner_stream(server) as (one, two):
            first, second = lease(one), Lease(two, 0, take_over_s=3_600)
            await first.acquire()
            waiting = await is_waiting(second)
            await first.release()
            assert not first.held
            await asyncio.wait_for(waiting, 5)
            assert second.held
            await first.release()  # it is not its own any more: nothing happens
            assert second.held
            keeping = asyncio.create_task(second.keep())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(keeping), 1.5)
            keeping.cancel()

    asyncio.run(scenario())


def test_of_two_that_claim_a_free_lease_one_gets_it(server: LedgerServer) -> None:
    async def scenario() -> None:
        async with owner_stream(server) as (one, two):
            both = [Lease(nc, 0, take_over_s=3_600, clock=Clock()) for nc in (one, two)]
            done, waiting = await asyncio.wait(
                [asyncio.create_task(x.acquire()) for x in both], return_when=asyncio.FIRST_COMPLETED
            )
            assert (len(done), len(waiting)) == (1, 1)
            assert sorted(x.held for x in both) == [False, True]
            for task in waiting:
                task.cancel()

    asyncio.run(scenario())


def test_a_renewal_whose_confirmation_was_lost_is_known_for_one_s_own(server: LedgerServer) -> None:
    async def scenario() -> None:
        async with owner_stream(server) as (_, two), Relay(server.port) as relay, connected(relay.url) as line:
            clock = Clock()
            first = lease(line, clock)
            await first.acquire()
            clock.ahead_s = SHORT_S
            assert not first.held
            info = (await two.jetstream().stream_info("OWNER_0")).state.last_seq
            relay.swallow = True
            keeping = asyncio.create_task(first.keep())

            async def renewed() -> bool:
                return (await two.jetstream().stream_info("OWNER_0")).state.last_seq > info

            await until(renewed)  # stored, and the owner doesn't know it
            assert not keeping.done()
            relay.swallow = False
            await until(lambda: _is(first.held))
            assert not keeping.done()
            keeping.cancel()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_server_that_is_silent_says_nothing_about_the_owner(server: LedgerServer) -> None:
    """While the standby can't look, its patience doesn't run out: the owner couldn't renew either."""

    async def scenario() -> None:
        async with owner_stream(server) as (one, _), Relay(server.port) as relay, connected(relay.url) as line:
            clock = Clock()
            first, second = Lease(one, 0), Lease(line, 0, take_over_s=60, clock=clock)
            await first.acquire()
            waiting = await is_waiting(second)
            relay.swallow = True
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), API_TIMEOUT_S + 1)  # one question ended without an answer
            clock.ahead_s = 61
            relay.swallow = False
            with pytest.raises(TimeoutError):  # it sees the same record as before, and begins to wait anew
                await asyncio.wait_for(asyncio.shield(waiting), API_TIMEOUT_S + 1)
            clock.ahead_s = 122
            await asyncio.wait_for(waiting, 10)

    asyncio.run(scenario())


def test_the_next_owner_finds_the_newest_registry_and_only_the_operator_s(server: LedgerServer, tmp_path: Path) -> None:
    operator, signing, stranger = keypair("operator"), keypair("operator"), keypair("operator")
    paths = Paths(tmp_path)
    paths.operator_jwt.parent.mkdir()
    paths.operator_jwt.write_text(operator_jwt(operator, "cordon", keypair("account").public, [signing.public], 1))
    old, new, newest = (registry_jwt({}, signing, issued_at) for issued_at in (10, 20, 30))

    async def scenario() -> None:
        async with owner_stream(server) as (one, two):
            await fetch_registry(two, paths)
            assert not paths.registry.exists()
            for jwt in (new, old):  # a former owner's, late: it doesn't take the newer one's place
                await publish_registry(one, 0, jwt)
                await fetch_registry(two, paths)
                assert paths.registry.read_text() == new
            paths.registry.write_text(newest)
            await fetch_registry(two, paths)
            assert paths.registry.read_text() == newest
            await publish_registry(one, 0, registry_jwt({}, stranger, 40))
            with pytest.raises(ConfigError) as e:
                await fetch_registry(two, paths)
            assert e.value.reason == "registry_untrusted"
            assert paths.registry.read_text() == newest
        async with connected(server.url) as nc:  # without its stream nothing is confirmed
            with pytest.raises((Refused, LedgerWentBack)):
                await publish_registry(nc, 0, newest)

    asyncio.run(scenario())


def test_without_its_stream_nobody_serves(server: LedgerServer) -> None:
    async def scenario() -> None:
        async with connected(server.url) as nc:
            with pytest.raises(ConfigError, match="OWNER_0") as e:
                await Lease(nc, 0).acquire()
            assert e.value.reason == "owner_stream_missing"
            assert "cordon broker init" in e.value.advice

    asyncio.run(scenario())


def test_an_owner_s_time_is_shorter_than_anybody_waits_to_take_over() -> None:
    from bus.limits import REQUEST_TIMEOUT_S
    from gate.lease import TAKE_OVER_S as WAIT_S

    assert WAIT_S >= LEASE_S + REQUEST_TIMEOUT_S
