"""A tenant is exported and deleted: its agents are cut, its files and keys are gone, others don't notice, and it stays so."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client, RawCredentials
from nats.errors import Error as NatsError

from broker_config import doctor, supervisor
from broker_config.control import Control
from broker_config.home import Home
from broker_config.restore import Restore, Wish
from broker_config.snapshots import Snapshots
from bus.errors import Conflict, CordonError, Rejected
from bus.identity import Credential, Keypair, creds_text, parse_creds
from gate.erasure.stores import STORES, WITHOUT_TEXT
from gate.paths import Paths

from .kill_points import AROUND, STEPS_PER_START, order
from .test_erasure import found
from .world import UP_S, World, running, until, verified

NAMES = ("gone", "left")
MARKS = ("4471-9983", "quince@gone.example", "the auditor of quince")  # in texts, evidence, reasons
DONE_S = 60.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as made:
        yield made


def lines(folder: Path, what: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{what}.jsonl").read_text().splitlines()]


async def populate(world: World, tenant: str) -> Credential:
    """A tenant with a project, a writer, a reader and an operator; the writer's credential."""
    async with Control(world.home) as control:
        await control.tenant_add(tenant)
        await control.project_add(tenant, "p1", display="Ärger & Söhne")
    for name, role in (("writer", "agent"), ("reader", "agent")):
        await world.add(name, "p1", tenant=tenant, role=role)
    await world.add("ops", "p1", tenant=tenant, role="operator", person="kim")
    return parse_creds(Path(world.creds("writer", tenant)).read_text())


def test_a_tenant_is_exported_and_deleted_and_the_others_stay(world: World) -> None:
    async def scenario() -> None:
        old, _ = [await populate(world, tenant) for tenant in NAMES]
        async with world.agent("writer", tenant="gone") as writer, world.agent("reader", tenant="gone") as reader:
            root = await writer.write("The vault of Gone has the number 4471-9983", evidence=["https://gone.example/vault"])
            many = []  # more than one page
            for i in range(0, 250, 25):
                many += await asyncio.gather(*(writer.write(f"Gone's note {i + j}: {'x' * 3_000}") for j in range(25)))
            assert root.id in (await reader.query("which number has the vault of Gone?")).ids
            async with world.agent("writer", tenant="left") as neighbour, asyncio.TaskGroup() as together:  # one block, perhaps
                together.create_task(neighbour.write("Left's own note"))
                together.create_task(writer.write(f"Beside a neighbour's, {MARKS[0]}", evidence=[f"mail:{MARKS[1]}"]))
            copy = await reader.write("The vault of Gone has the number 4471-9983")
            assert copy.parents == [root.id]
            async with world.desk(tenant="gone") as desk:
                case = await desk.hold_now(root.id, f"the page was forged, says {MARKS[2]}")
                kept = await desk.place_legal_hold(root.id, "case 13/26")
                async with Control(world.home) as control:
                    with pytest.raises(Conflict) as held:
                        await control.tenants.delete("gone", message="over", without_export=True)
                    assert held.value.reason == "tenant_legally_held"
                    assert (await reader.get(copy.id)).withheld == {"held": 1}, "nothing was cut"
                await desk.lift_legal_hold(kept.hold, "case 13/26 is over")
            async with Control(world.home) as control:
                account = control.trust.tenant("gone").account
                catalog = Paths(world.home.path).catalog(account)
                assert catalog.exists()
                for refused in (False, True):  # no export; then one of another position
                    with pytest.raises(Conflict) as missing:
                        await control.tenants.delete("gone", message="over")
                    assert missing.value.reason == ("export_stale" if refused else "export_missing")
                    if not refused:
                        await control.tenants.export("gone", world.home.path.parent / "stale")
                        assert (await writer.write("One more")).state == "active"
                with pytest.raises(Rejected) as unsaid:
                    await control.tenants.delete("gone", message=" ")
                assert unsaid.value.reason == "message_missing"
                await control.tenant_suspend("gone")
                done = await control.tenants.export("gone", world.home.path.parent / "kept")
                with pytest.raises(Conflict) as there:
                    await control.tenants.export("gone", world.home.path.parent / "kept")
                assert there.value.reason == "export_exists"

        folder = Path(done["folder"])
        manifest = json.loads((folder / "manifest.json").read_text())
        assert {n: f["sha256"] for n, f in manifest["files"].items()} == {
            n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in manifest["files"]
        }
        memories = {m["id"]: m for m in lines(folder, "memories")}
        assert memories.keys() >= {root.id, copy.id, *(m.id for m in many)}
        assert len(memories) == len(lines(folder, "memories")) == 254
        assert memories[root.id]["content"] == "The vault of Gone has the number 4471-9983"
        assert (memories[root.id]["state"], memories[copy.id]["state"]) == ("held", "held")
        edge = next(e for e in lines(folder, "lineage") if e["to"] == copy.id and e["from"] == root.id)
        assert edge["kind"] == "copied"
        [exported] = lines(folder, "cases")
        assert (exported["case"], exported["why"], exported["members"]) == (case.case, f"the page was forged, says {MARKS[2]}", 2)
        assert {(m["memory"], m["root"]) for m in lines(folder, "members")} == {(root.id, True), (copy.id, False)}
        assert [p["display"] for p in lines(folder, "projects")] == ["Ärger & Söhne"]
        assert {a["name"] for a in lines(folder, "agents")} == {"writer", "reader", "ops"}

        async with Control(world.home) as control:
            damaged = folder / "lineage.jsonl"
            text = damaged.read_text()
            damaged.write_text(text + "{}\n")
            with pytest.raises(Conflict) as refused_:
                await control.tenants.delete("gone", message="over")
            assert refused_.value.reason == "export_damaged"
            damaged.write_text(text)
            for _ in range(2):  # an open case has memories of it: she can't agree with herself
                with pytest.raises(Conflict) as contested:
                    await control.tenants.delete("gone", message="the contract ended", by="ann")
                assert contested.value.reason == "tenant_contested"
                assert contested.value.detail["cases"] == [case.case]
            ended = await control.tenants.delete("gone", message="the contract ended", by="lee")
            receipt = await erased(control, ended)
            assert (ended["state"], receipt["count"], receipt["pending"]) == ("deleted", 254, [])
            assert (receipt["by"], receipt["second"], receipt["why"]) == ("ann", "lee", "the contract ended")
            assert {s["name"]: s["state"] for s in receipt["stores"]} == {
                **dict.fromkeys(STORES, "done"),
                **dict.fromkeys(WITHOUT_TEXT, "no_text"),
            }
            counts = {s["name"]: s["count"] for s in receipt["stores"]}
            assert counts["catalog"] == 254
            assert counts["ledger"] > 1
            assert (await control.tenants.delete("gone", message="again"))["erasure"] == receipt
        for mark in MARKS:
            assert found(world.home.path, mark) == set(), mark
        assert found(world.home.path, "Left's own note"), "and the others' are there"
        await stays_deleted(world, old, catalog)
        await world.restart_gatekeeper()
        await stays_deleted(world, old, catalog)
        async with Control(world.home) as control:
            assert (await control.tenants.ended(ended["account"]))["erasure"] == receipt
        assert (await verified(world.home))["findings"] == []
        assert [c for c in doctor.examine(world.home, time.time()) if c.found] == []

    asyncio.run(scenario())


async def erased(control: Control, ended: dict[str, Any]) -> dict[str, Any]:
    """The receipt when every store is done."""
    async with asyncio.timeout(DONE_S):
        while ended["erasure"]["state"] != "done":
            ended = await control.tenants.ended(ended["account"])  # waits itself
    receipt: dict[str, Any] = ended["erasure"]
    return receipt


async def _ignore(_: Exception) -> None:
    pass


async def stays_deleted(world: World, old: Credential, catalog: Path) -> None:
    """Nothing of `gone` is there or comes again; `left` reads and writes."""
    assert not catalog.parent.exists()
    assert not list(world.home.tenant_trust("gone").glob("*.nk"))
    assert not (world.home.tenant_trust("gone") / "user-ids.key").exists()
    assert not (world.home.creds / "gone").exists()
    async with Control(world.home) as control:
        rows = {row["name"]: row for row in await control.tenant_list()}
        assert (rows["gone"]["state"], rows["gone"]["memories"], rows["left"]["state"]) == ("deleted", 0, "active")
        for again in (control.tenant_add("gone"), control.project_add("gone", "p2"), control.tenant_resume("gone")):
            with pytest.raises(Conflict) as taken:
                await again
            assert taken.value.reason == "tenant_deleted"
    nc, creds = Client(), RawCredentials(creds_text(old.jwt, Keypair(old.seed)))
    with pytest.raises(NatsError):
        await nc.connect(world.home.url, user_credentials=creds, allow_reconnect=False, error_cb=_ignore)
    await nc.close()  # a refused connect leaves a socket open
    async with world.agent("writer", tenant="left") as memory:
        receipt = await memory.write("Left goes on")
        assert receipt.id in (await memory.query("who goes on?")).ids


@pytest.mark.slow
def test_a_deletion_that_was_cut_short_is_finished_by_calling_it_again(world: World) -> None:
    """The ledger has it, the home doesn't: killed in between. A replay without the home's note ends the same."""

    async def scenario() -> None:
        await populate(world, "torn")
        async with world.agent("writer", tenant="torn") as memory:
            receipt = await memory.write("Torn's note")
        async with Control(world.home) as control:
            tenant = control.trust.tenant("torn")
            position = (await control.tenants._head(tenant)).position
            with pytest.raises(Conflict) as moved:
                await control.tenants._end(tenant, position - 1, False, "over", "")
            assert moved.value.reason == "tenant_moved"
            async with world.agent("writer", tenant="torn") as memory:  # its agents came back
                assert (await memory.get(receipt.id)).ids == [receipt.id]
            await control.tenants._end(tenant, position, False, "over", "")
            catalog = Paths(world.home.path).catalog(tenant.account)
            assert not catalog.parent.exists()
        await world.restart_gatekeeper()
        assert not catalog.parent.exists()
        async with Control(world.home) as control:
            assert {row["name"]: row["state"] for row in await control.tenant_list()}["torn"] == "deleted"
            with pytest.raises(CordonError) as refused:
                await control.project_add("torn", "p2")
            assert refused.value.reason == "tenant_deleted"
            assert (await control.tenants.delete("torn", without_export=True, message="over"))["state"] == "deleted"
            assert control.trust.deleted_account("torn") == tenant.account

    asyncio.run(scenario())


_GATEKEEPER = (
    AROUND
    + """
import gate.erasure.stores as stores
from gate.ledger.committer import Committer
from gate.process import run
from gate.shard import Shard
around(Committer, "append", after="event appended, not applied", when=lambda _, data: b"tenant_changed" in data)
around(Shard, "drop_tenant", after="dropped")
around(stores, "forget_in_all", after="out of the snapshots")
around(stores.Erasures, "_look_at", before="the janitor tells", when=lambda _, done: bool(done))
around(stores.Erasures, "_finish", after="done appended")
sys.exit(run(home, 0, "serve", None))
"""
)
STEPS = ("event appended, not applied", "dropped", "out of the snapshots", "the janitor tells", "done appended")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_deletion_that_is_killed_at_any_step_goes_on_by_itself_and_no_byte_is_left() -> None:
    """Of the home's snapshots neither; and a restore of one doesn't bring it back."""
    with running() as world:
        gatekeeper = [sys.executable, "-c", _GATEKEEPER, "--home", str(world.home.path)]
        for i, step in enumerate(STEPS):
            if i % STEPS_PER_START == 0:
                supervisor.stop(world.home)
                assert supervisor.start(world.home, detach=True, ready_timeout_s=UP_S, gatekeeper=gatekeeper).state == "ready"
            asyncio.run(_killed(world, f"gone-{i}", step))
        with suppress(FileNotFoundError):
            (world.home.run / "kill-at").unlink()
        snapshots = Snapshots(world.home)
        for i in range(len(STEPS)):
            assert snapshots.verify(snapshots.find(f"before-{i}"))["findings"] == []
        assert asyncio.run(verified(world.home))["findings"] == []
        _restored(world)


async def _killed(world: World, tenant: str, step: str) -> None:
    mark, neighbour = f"halyard-of-{tenant}", f"neighbour-of-{tenant}"
    await populate(world, tenant)
    if "writer" not in [row["name"] for row in await _agents(world)]:
        await world.add("writer")
    async with world.agent("writer", tenant=tenant) as writer, world.agent("writer") as other:
        async with asyncio.TaskGroup() as together:
            for i in range(4):
                together.create_task(writer.write(f"{i} on the {mark}", evidence=[f"mail:{mark}"]))
                together.create_task(other.write(f"{i} on the {neighbour}"))
        kept = await other.write(f"the last on the {neighbour}")
    snapshots = Snapshots(world.home)
    await asyncio.to_thread(snapshots.create, f"before-{tenant[-1]}", keys=True)
    assert found(world.home.path, mark)
    ordered, was = order(world, step), world.pid("gatekeeper")
    async with Control(world.home) as control:
        with suppress(CordonError):
            await control.tenants.delete(tenant, without_export=True, message="over")
    await until(lambda: not ordered.exists(), f"killed {step}", UP_S)
    await world.ready_again(was)
    async with Control(world.home) as control:
        receipt = await erased(control, await control.tenants.delete(tenant, without_export=True, message="over"))
        assert receipt["count"] == 4
        rows = {row["name"]: row["state"] for row in await control.tenant_list()}
        assert (rows[tenant], (await control.status())["erasing"]) == ("deleted", 0)
    assert found(world.home.path, mark) == set(), step
    async with world.agent("writer") as other:
        assert kept.id in (await other.get(kept.id)).ids


async def _agents(world: World) -> list[dict[str, Any]]:
    async with Control(world.home) as control:
        return await control.agent_list("acme")


def _restored(world: World) -> None:
    """From before a deletion: its texts never reach the new home, with the live home beside it or without."""
    copy = Snapshots(world.home).find("before-0")
    for name, beside in (("beside", world.home), ("alone", Home(world.home.path.parent / "lost"))):
        made = Restore(beside, copy).run(Wish(world.home.path.parent / name, by="ann", why="who was it?"))
        there = Home(Path(made["home"]))
        supervisor.start(there, detach=True, ready_timeout_s=UP_S)
        try:
            assert asyncio.run(verified(there))["findings"] == [], name
            assert found(there.path, "halyard-of-gone-0") == set(), name
            assert found(there.path, "neighbour-of-gone-0"), name
        finally:
            supervisor.stop(there)


@pytest.mark.slow
def test_a_note_of_a_deletion_that_the_ledger_does_not_have_stops_the_shard() -> None:
    """Somebody who can write into the home, but not into the ledger, can't make a tenant disappear."""
    with running() as world:

        async def scenario() -> None:
            note = world.home.deleted("acme")
            note.write_text("{}")
            world.kill9("gatekeeper")
            await until(lambda: world.home.gatekeeper_error.exists(), "the gatekeeper refuses", 60)
            assert "ledger_went_back" in world.home.gatekeeper_error.read_text()
            note.unlink()

        asyncio.run(scenario())
