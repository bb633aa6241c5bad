"""A bus for tests: the real client, and the real gatekeeper in this process, over a broker and a ledger in memory.

    import bus.testing

    async with bus.testing.bus() as world:
        alice, bob, desk = world.agent("alice"), world.agent("bob"), world.operator()
        receipt = await alice.write("The staging database uses rotating keys")
        await desk.hold_now(receipt.id, "the source was forged")
        assert not (await bob.query("staging database")).admitted

`world.clock` stands still until a test moves it; `world.faults` makes requests fail as they do between machines. `pytest -p
bus.testing` gives the fixtures `cordon_bus` (such a world) and `cordon_home` (a real home). All of it: docs/testing.md.

Why the gatekeeper itself and not a small one written for tests: its rules (labels, floors, lineage, closures, refusals) are the
product, and a second implementation would be a second answer. So a twin needs the `gate` extra where tests run, though not where
agents do. Its decisions are the gatekeeper's by construction; what is new here, the broker in memory, is held to nats-server by
one contract suite that runs on both (tests/contract/bus).

A twin has no processes, no disk that counts and one tenant: nothing survives it, nothing in it restarts, its credentials don't
expire (but those that its agents delegate do, by its clock), it gives no bench figures, and a frame never waits for a network.
For those there is `home`.
"""

from .clock import ManualClock
from .faults import FaultPlan
from .home import EmbeddedHome, home
from .world import World, bus

__all__ = ["EmbeddedHome", "FaultPlan", "ManualClock", "World", "bus", "home"]

pytest_plugins = ("bus.testing.fixtures",)  # looked at by pytest alone, when this module is its plugin
