"""Snapshots of a home that serves, homes made of them, and what such a home must not forget: erasures, holds, revocations."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bus
from broker_config import snapshots as copies
from broker_config import supervisor
from broker_config.control import Control
from broker_config.drills import Drill
from broker_config.home import Home, write_private
from broker_config.restore import Restore, Wish
from broker_config.snapshots import Copy, Snapshots, alone_in
from cli.main import run as cordon
from gate.ledger import erased as erased_copies
from gate.ledger.block import decode, strip
from gate.ledger.replay import read_blocks

from .scenes import EXTERNAL, document
from .stored import any_right, streams
from .test_erasure import done, found
from .world import UP_S, World, lock_left_behind, running, verified

QUICK = bus.Timing(request_s=0.5, deadline_s=1.5)
MARK = "zanzibar-ledger-marker"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with running() as world:

        async def populate() -> None:
            for name in ("w", "r", "leaver"):
                await world.add(name, "p1")
            await world.add("kim", "p1", "p2", role="operator", person="kim", see=("public", "internal", "restricted"))
            async with world.agent("w") as w, world.agent("r") as r:
                for i in range(5):
                    await w.write(f"Fact number {i} about invoices")
                assert (await r.query("invoices")).admitted

        asyncio.run(populate())
        yield world


@contextmanager
def restored(world: World, copy: Copy, **wish: object) -> Iterator[World]:
    """A home made of the copy, that serves; removed at the end."""
    into = world.home.path.parent / "restored"
    shutil.rmtree(into, ignore_errors=True)
    Restore(world.home, copy).run(Wish(into=into, by="kim", why="a look", **wish))  # type: ignore[arg-type]
    home = Home(into)
    try:
        assert supervisor.start(home, detach=True, ready_timeout_s=UP_S).state == "ready"
        yield World(home, dict(world.agents))
    finally:
        supervisor.stop(home)
        shutil.rmtree(into, ignore_errors=True)


def test_a_restored_home_answers_as_the_home_did_and_agents_cannot_write_in_it(world: World) -> None:
    async def texts(at: World) -> list[str]:
        async with at.agent("r") as r:
            return sorted(a.memory.content for a in (await r.query("invoices", k=20)).admitted)

    before = asyncio.run(texts(world))
    copy = Snapshots(world.home).create("whole")
    assert Snapshots(world.home).verify(copy)["ok"]

    async def later() -> None:
        async with world.agent("w") as w:
            await w.write("A later fact about invoices, that no snapshot has")

    asyncio.run(later())
    with restored(world, copy) as there:
        assert asyncio.run(texts(there)) == before

        async def refused() -> None:
            async with there.agent("w") as w:
                with pytest.raises(bus.Denied) as e:
                    await w.write("Nobody writes here")
            assert e.value.reason == "read_only"
            async with there.desk("kim") as desk:
                assert await desk.stats()

        asyncio.run(refused())
        assert asyncio.run(verified(there.home))["findings"] == []
        told = json.loads(there.home.restored.read_text())
        assert (told["by"], told["snapshot"], told["left_out"]["memories"], told["later"]) == ("kim", "whole", 1, True)


def test_what_was_erased_held_or_revoked_after_the_snapshot_stays_so_in_a_home_made_of_it(world: World) -> None:
    async def written() -> tuple[str, str]:
        async with world.agent("w") as w:
            secret = await w.write(f"The code word of the vault is {MARK}")
            wrong = await w.write("The invoices of Prague were paid twice")
        return secret.id, wrong.id

    secret, wrong = asyncio.run(written())
    copy = Snapshots(world.home).create("before-trouble")
    assert any(name.endswith(".seg") for name in found(copy.folder, MARK))

    async def trouble() -> str:
        async with world.desk("kim") as desk, world.agent("r") as r:
            assert wrong in (await r.query("invoices of Prague", k=20)).ids
            case = await desk.hold_now(wrong, "it is false")
            receipt = await done(desk, await desk.erase(secret, "its subject asked for it"))
            assert {s.name: s.count for s in receipt.stores}["snapshots"] >= 1
        async with Control(world.home) as control:
            await control.agent_revoke("acme", "leaver")
        return case.case

    case = asyncio.run(trouble())
    assert found(world.home.path, MARK) == set(), "the home's snapshots forget it, too"
    assert Snapshots(world.home).verify(copy)["findings"] == [], "and are as proven as before"

    with restored(world, copy) as there:
        assert found(there.home.path, MARK) == set()

        async def look() -> None:
            async with there.agent("r") as r, there.desk("kim") as desk:
                ids = (await r.query("invoices of Prague", k=20)).ids
                assert wrong not in ids
                assert ids, "the others are read"
                assert [c.case for c in await desk.cases() if c.state == "open"] == [case]
                assert any("was erased" in line for line in (await desk.why(secret)).sentences)
            with pytest.raises(bus.CordonError):
                async with there.agent("leaver") as leaver:
                    await leaver.query("invoices")

        asyncio.run(look())
        assert asyncio.run(verified(there.home))["findings"] == []


@pytest.mark.slow
def test_a_home_to_look_at_cuts_whom_the_live_one_revokes_later_and_takes_nothing_of_it_back(world: World) -> None:
    async def reads(at: World, name: str) -> bool:
        try:
            async with bus.connect(at.home.url, at.creds(name), project="p1", timing=QUICK) as memory:
                return bool((await memory.query("invoices")).admitted)
        except bus.Denied:
            return False

    async def revoked(name: str) -> None:
        async with Control(world.home) as control:
            await control.agent_revoke("acme", name)

    async def cut(at: World, name: str) -> None:
        async with at.agent("stays") as stays:
            await stays.query("invoices")
            await revoked(name)
            deadline = time.monotonic() + UP_S
            while await reads(at, name):
                assert time.monotonic() < deadline
            assert (await stays.query("invoices")).admitted, "nobody else is cut"

    for name in ("stays", "cut-later", "cut-while-down"):
        asyncio.run(world.add(name, "p1"))
    copy = Snapshots(world.home).create("before-cuts")
    with restored(world, copy) as there:
        assert asyncio.run(reads(there, "cut-later"))
        asyncio.run(cut(there, "cut-later"))
        assert asyncio.run(reads(there, "cut-while-down"))
        supervisor.stop(there.home)
        asyncio.run(revoked("cut-while-down"))
        assert supervisor.start(there.home, detach=True, ready_timeout_s=UP_S).state == "ready"
        assert not asyncio.run(reads(there, "cut-while-down")), "from its first moment on"
        assert not asyncio.run(reads(there, "cut-later"))
        assert asyncio.run(reads(there, "stays"))


@pytest.mark.slow
def test_a_snapshot_somewhere_else_does_not_bring_an_erased_text_back(world: World, tmp_path: Path) -> None:
    mark = "gherkin-trellis-5521"

    async def written() -> str:
        async with world.agent("w") as w:
            return (await w.write(f"It is {mark}")).id

    id_ = asyncio.run(written())
    elsewhere = Snapshots(world.home).create("away", tmp_path / "away")
    backup, new = Snapshots(world.home).backup(tmp_path / "backup")
    assert new == backup.manifest.block

    async def erased() -> None:
        async with world.desk("kim") as desk:
            await done(desk, await desk.erase(id_, "its subject asked for it"))

    asyncio.run(erased())
    assert found(elsewhere.folder, mark), "out of the home's reach"
    into = tmp_path / "home"
    made = Restore(world.home, elsewhere).run(Wish(into=into, by="kim"))
    assert made["carried"]["MemoryErased"] == 1
    assert found(into, mark) == set()

    assert found(backup.folder, mark)
    again, new = Snapshots(world.home).backup(tmp_path / "backup")
    assert 0 < new < again.manifest.block, "only what is new"
    assert found(backup.folder, mark) == set(), "brought up to date, it has forgotten it"
    assert Snapshots(world.home).verify(again)["findings"] == []


@pytest.mark.slow
def test_a_home_as_it_was_at_a_block_or_time_has_what_was_there_then(world: World, tmp_path: Path) -> None:
    early = Snapshots(world.home).create("early")

    async def written() -> None:
        async with world.agent("w") as w:
            for i in range(3):
                await w.write(f"Later fact {i}")

    time.sleep(0.002)  # so that a moment lies between the two blocks
    between = int(time.time() * 1000)
    asyncio.run(written())
    late = Snapshots(world.home).create("late")
    assert late.manifest.memories == early.manifest.memories + 3
    by_block = Restore(world.home, late).run(Wish(into=tmp_path / "a", by="kim", position=early.manifest.block))
    by_time = Restore(world.home, late).run(Wish(into=tmp_path / "b", by="kim", before_ms=between))
    for made in (by_block, by_time):
        assert (made["block"], made["memories"]) == (early.manifest.block, early.manifest.memories)
        assert made["left_out"]["memories"] == 3
    beyond = Restore(world.home, early).run(Wish(into=tmp_path / "c", by="kim", position=late.manifest.block))
    assert beyond["memories"] == late.manifest.memories, "the live home has what the copy has not"
    with pytest.raises(bus.Rejected) as unknown:
        Restore(world.home, late).run(Wish(into=tmp_path / "d", by="kim", position=10**6))
    assert unknown.value.reason == "position_unknown"
    assert not (tmp_path / "d").exists()


@pytest.mark.slow
def test_what_is_damaged_is_named_with_its_file_and_not_restored(world: World, tmp_path: Path) -> None:
    copy = Snapshots(world.home).create("sound", tmp_path / "one")
    assert Snapshots(world.home).verify(copy)["findings"] == []
    damages: dict[str, Callable[[bytes], bytes]] = {
        next(copy.folder.glob("ledger-*.seg")).name: lambda data: data[:600] + bytes([data[600] ^ 1]) + data[601:],
        next(copy.folder.glob("reads-*.seg")).name: lambda data: data[:-1],
        f"{copy.manifest.under}/trust/operator.jwt": lambda data: data + b" ",
        "streams.json": lambda data: data.replace(b'"last"', b'"lost"'),
    }
    for n, (name, damage) in enumerate(damages.items()):
        folder = tmp_path / f"damaged{n}"
        shutil.copytree(copy.folder, folder)
        (folder / name).write_bytes(damage((folder / name).read_bytes()))
        bad = Copy(folder, copy.manifest)
        assert any(str(folder / name) in finding for finding in Snapshots(world.home).verify(bad)["findings"]), name
        with pytest.raises(bus.Rejected) as refused:
            Restore(world.home, bad).run(Wish(into=tmp_path / "home", by="kim"))
        assert (refused.value.reason, str(folder / name) in refused.value.message) == ("snapshot_damaged", True), name
        assert not (tmp_path / "home").exists()
    strange = copy.files / "policy" / "acme" / "p9.toml"
    strange.parent.mkdir(parents=True, exist_ok=True)
    strange.write_text('mode = "shadow"')
    assert Snapshots(world.home).verify(copy)["findings"] == [f"{strange}: the copy didn't have it"]
    strange.unlink()
    (copy.folder / next(copy.folder.glob("ledger-*.seg")).name).unlink()
    with pytest.raises(bus.Rejected, match=r"ledger-.*\.seg"):
        Restore(world.home, copy).run(Wish(into=tmp_path / "home", by="kim"))


def test_a_snapshot_that_was_killed_while_it_was_made_is_none_and_the_next_is_whole(world: World) -> None:
    snapshots = Snapshots(world.home)
    before = [c.manifest.name for c in snapshots.all()]
    child = subprocess.Popen(_create(world.home, "killed"))
    part = world.home.snapshots / ".killed.part"
    deadline = time.monotonic() + UP_S
    while not part.exists():
        assert time.monotonic() < deadline
        assert child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert part.exists()
    assert [c.manifest.name for c in snapshots.all()] == before
    copy = snapshots.create("killed")
    assert not part.exists()
    assert snapshots.verify(copy)["findings"] == []


def test_two_backups_into_one_folder_do_not_run_at_once(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = Snapshots(world.home)
    snapshots.backup(tmp_path / "backup")
    monkeypatch.setattr(copies, "BUSY_WAIT_S", 0.1)
    with alone_in(tmp_path / "backup"), pytest.raises(bus.Conflict) as busy:
        snapshots.backup(tmp_path / "backup")
    assert busy.value.reason == "snapshot_busy"
    _, new = snapshots.backup(tmp_path / "backup")
    assert new == 0


def test_a_snapshot_waits_for_what_a_killed_one_had_started_and_no_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_left_behind(world.home.snapshots / ".lock") as end_soon:
        with monkeypatch.context() as patched:
            patched.setattr(copies, "BUSY_WAIT_S", 0.1)
            with pytest.raises(bus.Conflict) as busy:
                Snapshots(world.home).create("waits")
        assert busy.value.reason == "snapshot_busy"
        end_soon()
        assert Snapshots(world.home).create("waits").manifest.name == "waits"


def _create(home: Home, name: str) -> list[str]:
    code = "import sys; from broker_config.home import Home; from broker_config.snapshots import Snapshots; "
    return [sys.executable, "-c", code + "Snapshots(Home(sys.argv[1])).create(sys.argv[2])", str(home.path), name]


@pytest.mark.slow
def test_the_next_snapshot_shares_the_segments_of_the_last_and_outlives_its_removal(world: World) -> None:
    snapshots = Snapshots(world.home)
    first, second = snapshots.create("first"), snapshots.create("second")
    mine = next(second.folder.glob("ledger-1-*.seg"))
    assert mine.stat().st_ino == (first.folder / mine.name).stat().st_ino
    with pytest.raises(bus.Conflict) as taken:
        snapshots.create("second")
    assert taken.value.reason == "snapshot_exists"
    assert "first" in snapshots.prune(1)
    assert [c.manifest.name for c in snapshots.all()] == ["second"]
    assert snapshots.verify(second)["findings"] == []


@pytest.mark.slow
def test_a_copy_has_no_seed_unless_keys_are_asked_for_and_then_nobody_else_may_enter(world: World, tmp_path: Path) -> None:
    seeds = [p.read_text().strip() for p in world.home.secrets() if p.suffix == ".nk"]
    assert seeds
    tmp_path.chmod(0o755)
    with pytest.raises(bus.Rejected) as readable:
        Snapshots(world.home).create("keys", tmp_path / "open", keys=True)
    assert readable.value.reason == "target_readable"
    tmp_path.chmod(0o700)
    without = Snapshots(world.home).create("plain", tmp_path / "closed")
    keys = Snapshots(world.home).create("keys", tmp_path / "closed", keys=True)
    assert not any(found(without.folder, seed) for seed in seeds)
    assert all(found(keys.folder, seed) for seed in seeds)

    lost = Home(tmp_path / "lost")
    with pytest.raises(bus.Rejected) as no_keys:
        Restore(lost, without).run(Wish(into=tmp_path / "home", by="kim"))
    assert no_keys.value.reason == "keys_missing"
    made = Restore(lost, keys).run(Wish(into=tmp_path / "home", by="kim", live=True))
    assert (made["later"], made["read_only"]) == (False, False)
    assert str(lost.path) in made["later_why_not"]
    with pytest.raises(bus.Conflict) as up:
        Restore(world.home, keys).run(Wish(into=tmp_path / "second", by="kim", live=True))
    assert up.value.reason == "source_up"


@pytest.mark.slow
def test_without_its_home_a_snapshot_that_has_forgotten_a_text_still_becomes_a_home_that_serves(
    world: World, tmp_path: Path
) -> None:
    mark = "forgotten-colophon-88"

    async def written() -> str:
        async with world.agent("w") as w:
            return (await w.write(f"It is {mark}")).id

    id_ = asyncio.run(written())
    copy = Snapshots(world.home).create("with-keys", keys=True)

    async def erased() -> None:
        async with world.desk("kim") as desk:
            await done(desk, await desk.erase(id_, "its subject asked for it"))

    asyncio.run(erased())
    assert Snapshots(world.home).verify(copy)["findings"] == []
    note = copy.folder / "forgotten.json"
    true = note.read_text()
    for false in (true.replace("]", ",1]", 1), true.replace('"signature":"', '"signature":"A', 1), "{}"):
        note.write_text(false)
        assert any("forgotten.json" in finding for finding in Snapshots(world.home).verify(copy)["findings"]), false
        with pytest.raises(bus.Rejected) as silent:
            Restore(world.home, copy).run(Wish(into=tmp_path / "home", by="kim"))
        assert silent.value.reason == "snapshot_damaged"
    note.write_text(true)
    home = Home(tmp_path / "home")
    made = Restore(Home(tmp_path / "lost"), copy).run(Wish(into=home.path, by="kim", live=True))
    assert not made["later"]
    try:
        assert supervisor.start(home, detach=True, ready_timeout_s=UP_S).state == "ready"

        async def goes_on() -> None:
            async with World(home).agent("w") as w:
                assert (await w.write("It goes on")).state == "active"
                assert (await w.query("invoices")).admitted

        asyncio.run(goes_on())
        assert found(home.path, mark) == set()
        assert asyncio.run(verified(home))["findings"] == []

        # The same without that text, and without another that nobody had erased when it was made.
        account = asyncio.run(_taken_away(home, "Fact number 3 about invoices"))
        lost = asyncio.run(verified(home))["findings"]
        assert any(finding.startswith(f"tenant {account}: event") and "no erasure names it" in finding for finding in lost), lost
        supervisor.stop(home)
        refused = supervisor.start(home, detach=True, ready_timeout_s=UP_S)
        assert (refused.error.reason if refused.error else "") == "ledger_corrupt"

        # A person accepts that one too, and no other that goes after it.
        supervisor.stop(home)
        assert cordon(["rebuild", "--home", str(home.path), "--accept-ledger", "kim"]) == 0
        assert supervisor.start(home, detach=True, ready_timeout_s=UP_S).state == "ready"
        assert asyncio.run(verified(home))["findings"] == []
        asyncio.run(_taken_away(home, "Fact number 4 about invoices"))
        assert len(asyncio.run(verified(home))["findings"]) > 0
    finally:
        supervisor.stop(home)


async def _taken_away(home: Home, text: str) -> str:
    """A text gone from the ledger as only a thief of every key could take it; its account."""
    account, seq = next((account, seq) for account, seq, _, content in (await streams(home)).events if content == text)
    async with any_right(home) as nc:
        async for block, data in read_blocks(nc, "LEDGER_0", missing=erased_copies.instead(nc, 0)):
            if any(s.tenant == account and s.seq <= seq <= s.last for s in decode(data, block).sections):
                await nc.jetstream().publish(erased_copies.subjects(0, block)[0], strip(data, {(account, seq)}))
                await nc.jetstream().delete_msg("LEDGER_0", block)
                return account
    raise AssertionError(text)


@pytest.mark.slow
def test_a_restore_does_not_shed_what_an_agent_was_served_after_the_snapshot(world: World, tmp_path: Path) -> None:
    async def before() -> str:
        for name in ("told", "untold"):
            await world.add(name, "p1")
        return await document(world, "wiki", "The harbour of Lisbon opens at seven in winter")

    id_ = asyncio.run(before())
    copy = Snapshots(world.home).create("before-reading")

    async def read() -> None:
        async with world.agent("w") as w, world.agent("told") as told:
            await w.write("So that the read comes after a block that the copy has not")
            assert id_ in (await told.query("harbour of Lisbon", k=20)).ids

    asyncio.run(read())
    home = Home(tmp_path / "home")
    supervisor.stop(world.home)
    try:
        Restore(world.home, copy).run(Wish(into=home.path, by="kim", live=True))
        supervisor.start(home, detach=True, ready_timeout_s=UP_S)

        async def trust_of(name: str) -> float:
            async with World(home).agent(name) as memory:
                return (await memory.write("The harbour of Lisbon opens at seven in winter, they say")).trust

        assert asyncio.run(trust_of("told")) <= EXTERNAL
        assert asyncio.run(trust_of("untold")) > EXTERNAL
    finally:
        supervisor.stop(home)
        supervisor.start(world.home, detach=True, ready_timeout_s=UP_S)


@pytest.mark.slow
def test_a_drill_tells_time_and_loss_and_keeps_its_history(world: World) -> None:
    copy = Snapshots(world.home).create("drilled")

    async def written() -> None:
        async with world.agent("w") as w:
            for i in range(2):
                await w.write(f"After the snapshot {i}")

    asyncio.run(written())
    told = Drill(world.home, copy).run()
    assert (told["kind"], told["facts"], told["missed"]) == ("full", copy.manifest.events, [])
    assert (told["ok"], told["findings"], told["lost"]["memories"]) == (True, [], 2)
    assert told["memories"] == copy.manifest.memories
    assert told["seconds"] > 0
    assert [json.loads(line)["snapshot"] for line in world.home.drills.read_text().splitlines()] == ["drilled"]
    assert not list(world.home.run.glob("drill-*"))


def test_a_damaged_registry_is_said_when_it_is_copied_and_found_in_the_copy(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(name: str) -> tuple[int, dict[str, Any]]:
        code = cordon(["--home", str(world.home.path), "--json", "snapshot", "create", name])
        return code, json.loads(capsys.readouterr().out)

    whole = world.home.registry.read_text()
    assert made("before-damage")[0] == 0
    write_private(world.home.registry, whole[:-4] + "AAAA")
    try:
        code, told = made("with-damage")
    finally:
        write_private(world.home.registry, whole)
    assert (code, len(told["findings"])) == (5, 1)
    assert "registry.jwt: it doesn't verify" in told["findings"][0]
    found = Snapshots(world.home).verify(Snapshots(world.home).find("with-damage"))
    assert (found["ok"], found["findings"]) == (False, told["findings"])
    assert Snapshots(world.home).verify(Snapshots(world.home).find("before-damage"))["ok"]
    assert told["block"] > 0, "the ledger's copy is whole all the same"
    assert all(c.manifest.made.endswith("Z") for c in Snapshots(world.home).all())


@pytest.mark.slow
def test_a_snapshot_that_fills_its_disk_ends_with_6_and_leaves_nothing_there(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        for left in (8 << 10, 0):
            (tmp_path / "ballast").write_bytes(b"x" * ((56 << 10) - left))
            code = cordon(["--home", str(world.home.path), "--json", "snapshot", "create", "much", "--to", str(tmp_path)])
            assert (code, json.loads(capsys.readouterr().out)["reason"]) == (6, "disk_full")
            assert not list(tmp_path.glob("*much*"))
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
    assert cordon(["--home", str(world.home.path), "snapshot", "create", "much"]) == 0


@pytest.mark.slow
def test_stores_of_the_live_home_are_foreign_to_a_home_made_of_its_copy(world: World) -> None:
    copy = Snapshots(world.home).create("foreign")
    into = world.home.path.parent / "foreign"
    Restore(world.home, copy).run(Wish(into=into, by="kim"))
    home = Home(into)
    shutil.copytree(world.home.shard(0) / "tenants", home.shard(0) / "tenants")
    try:
        status = supervisor.start(home, detach=True, ready_timeout_s=UP_S)
        assert status.state == "degraded"
        assert status.error is not None
        assert "follows another ledger" in status.error.message
    finally:
        supervisor.stop(home)
        shutil.rmtree(into)
