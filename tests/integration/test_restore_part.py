"""Parts of a home restored to look at: a tenant, and of it a project's, an end user's or an agent's memories; nothing else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bus
from broker_config import supervisor
from broker_config.control import Control
from broker_config.home import Home
from broker_config.restore import Restore, Wish
from broker_config.snapshots import Copy, Snapshots

from .scenes import set_project
from .test_erasure import done, found
from .world import UP_S, World, running, verified

MARKS = {"p1": "quillwort-p1", "p2": "quillwort-p2", "ann": "quillwort-user", "beta": "quillwort-beta", "gone": "quillwort-gone"}
USER = "ann@example.org"
pytestmark = pytest.mark.slow


class Scene:
    """A home with two tenants. `ids`: memories by mark; `child`: written in p2, of what p1 says."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ids: dict[str, str] = {}
        self.child = ""
        asyncio.run(self._populate())
        self.copy = Snapshots(world.home).create("all")
        asyncio.run(self._later())

    async def _populate(self) -> None:
        world = self.world
        async with Control(world.home) as control:
            await control.tenant_add("beta")
            await control.project_add("beta", "p1")
        await set_project(world, "p1", flow_to=["p2"])
        await set_project(world, "p2", flow_from=["p1"])
        for name in ("w", "r"):
            await world.add(name, "p1", "p2")
        await world.add("b", "p1", tenant="beta")
        await world.add("kim", "p1", "p2", role="operator", person="kim", see=("public", "internal", "restricted"))
        async with world.agent("w") as w, world.agent("b", tenant="beta") as b, world.agent("r", "p2") as r:
            self.ids["p1"] = (await w.write(f"The turbine hall is code-named {MARKS['p1']}")).id
            self.ids["gone"] = (await w.write(f"The old hall was code-named {MARKS['gone']}")).id
            self.ids["ann"] = (await w.write(f"She answers to {MARKS['ann']}", scope="user", scope_id=USER)).id
            self.ids["beta"] = (await b.write(f"Another tenant's {MARKS['beta']}")).id
            assert (await r.query("turbine hall", project="p1")).ids
            self.child = (await r.write(f"Noted here: {MARKS['p2']}", derived_from=[self.ids["p1"]])).id
            self.ids["p2"] = self.child

    async def _later(self) -> None:
        async with self.world.desk("kim") as desk:
            await done(desk, await desk.erase(self.ids["gone"], "its subject asked for it"))

    @contextmanager
    def restored(self, **only: str) -> Iterator[World]:
        """A part of it that serves; removed at the end."""
        home = Home(self.world.home.path.parent / "part")
        Restore(self.world.home, self.copy).run(Wish(into=home.path, by="kim", why="an inquiry", only=only))
        try:
            assert supervisor.start(home, detach=True, ready_timeout_s=UP_S).state == "ready"
            yield World(home, dict(self.world.agents))
        finally:
            supervisor.stop(home)
            shutil.rmtree(home.path)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with running() as world:
        yield Scene(world)


def marks(home: Home) -> set[str]:
    return {name for name, mark in MARKS.items() if found(home.path, mark)}


def test_a_tenant_comes_alone_without_the_others_texts_names_and_keys(scene: Scene) -> None:
    with scene.restored(tenant="acme") as there:
        assert marks(there.home) == {"p1", "p2", "ann"}
        beta = (scene.world.home.tenant_trust("beta") / "account.nk").read_text().strip()
        assert found(scene.world.home.path, beta)
        assert not found(there.home.path, beta)
        assert not found(there.home.path, scene.world.agents["b"].key), "who another tenant's agents are"
        assert not there.home.agent_creds("beta", "b").exists()
        assert asyncio.run(verified(there.home))["findings"] == []


def test_a_project_comes_with_its_memories_and_its_parents_elsewhere_as_ids(scene: Scene) -> None:
    with scene.restored(tenant="acme", project="p2") as there:
        assert marks(there.home) == {"p2"}

        async def looked_at() -> None:
            async with there.agent("r", "p2") as r, there.desk("kim") as desk:
                assert (await r.query(MARKS["p2"])).ids == [scene.child]
                assert (await r.query(MARKS["p1"], project="p1")).ids == []
                parents = await desk.trace(scene.child, "up")
                assert {n.id: n.state for n in parents.nodes} == {scene.child: "active", scene.ids["p1"]: "erased"}
                stub = await desk.why(scene.ids["p1"], reveal=True)
                assert stub.content is None
                assert any("left out" in sentence for sentence in stub.sentences)
                erased = await desk.why(scene.ids["gone"])
                assert any("was erased" in sentence for sentence in erased.sentences)
                with pytest.raises(bus.Denied) as refused:
                    await r.write("Nobody writes here")
            assert refused.value.reason == "read_only"

        asyncio.run(looked_at())
        assert asyncio.run(verified(there.home))["findings"] == []


def test_an_end_users_memories_come_alone_and_the_id_is_in_no_file(scene: Scene) -> None:
    with scene.restored(tenant="acme", user=USER) as there:
        assert marks(there.home) == {"ann"}
        assert {name for name in found(there.home.path, USER) if name == "restored.json"} == set()
        assert asyncio.run(verified(there.home))["findings"] == []


def test_a_part_stays_read_only_whatever_its_settings_say(scene: Scene) -> None:
    home = Home(scene.world.home.path.parent / "edited")
    Restore(scene.world.home, scene.copy).run(Wish(into=home.path, by="kim", only={"tenant": "acme", "agent": "r"}))
    assert marks(home) == {"p2"}
    home.config.write_text(home.config.read_text().replace("read_only = true", "read_only = false"))
    try:
        assert supervisor.start(home, detach=True, ready_timeout_s=UP_S).state == "ready"

        async def refused() -> str:
            async with World(home).agent("r", "p2") as r:
                with pytest.raises(bus.Denied) as e:
                    await r.write("It goes on")
            async with Control(home) as control:
                troubles = (await control.status())["troubles"]
            assert troubles == ["tenant acme was restored in part: nobody can ever write in it here"]
            return e.value.reason

        assert asyncio.run(refused()) == "read_only"
    finally:
        supervisor.stop(home)
        shutil.rmtree(home.path)


def test_what_matches_nothing_or_is_to_be_live_makes_no_home(scene: Scene, tmp_path: Path) -> None:
    into = tmp_path / "none"
    for wish, reason in (
        (Wish(into=into, by="kim", only={"tenant": "acme", "project": "p3"}), "part_empty"),
        (Wish(into=into, by="kim", only={"tenant": "acme", "user": "nobody"}), "part_empty"),
        (Wish(into=into, by="kim", only={"project": "p1"}), "part_tenant_missing"),
        (Wish(into=into, by="kim", only={"tenant": "acme"}, live=True), "part_not_live"),
    ):
        with pytest.raises(bus.Rejected) as refused:
            Restore(scene.world.home, Copy(scene.copy.folder, scene.copy.manifest)).run(wish)
        assert refused.value.reason == reason
        assert not list(tmp_path.iterdir()), "and leaves no keys behind"
