"""Servers that run elsewhere: what is rendered, what `cordon broker check` says of it, and a gatekeeper and its standby on it."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import bus
from broker_config import layouts, server_file
from broker_config.authority import Authority
from broker_config.control import Control
from broker_config.home import Home, write_private
from broker_config.processes import spawn, stop_child
from broker_config.server import find_server
from broker_config.trust import Trust
from bus.errors import Denied
from bus.identity import Keypair, keypair
from cli.main import run

from .cluster import Cluster, Gatekeeper, until_streams
from .world import World, until, verified


def new_home(folder: Path) -> Home:
    home = Home(folder / "home")
    home.create()
    Trust(home, time.time).create()
    return home


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three servers, beyond loopback."""
    folder = tmp_path_factory.mktemp("rendered")
    nodes = ["--node", "a.example", "--node", "b.example:4333:6333", "--node", "[2001:db8::3]:4222:6222"]
    into = folder / "cluster"
    assert (
        run(["broker", "render", "--layout", "three", "--into", str(into), "--home", str(folder / "home"), *nodes, "--leaves"])
        == 0
    )
    return folder


def checked(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    capsys.readouterr()
    code = run(["broker", "check", str(path), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] == (code == 0)
    return code, said["files"]


# --- what is rendered -----------------------------------------------------------------------------------
def test_three_servers_are_rendered_with_tls_and_routes_that_prove_themselves(rendered: Path) -> None:
    for i in (1, 2, 3):
        conf = server_file.read(rendered / "cluster" / f"node-{i}" / "server.conf")
        cluster, tls, leaves = conf["cluster"], conf["tls"], conf["leafnodes"]
        assert isinstance(cluster, dict)
        assert isinstance(tls, dict)
        assert isinstance(leaves, dict)
        assert tls["min_version"] == "1.3"
        assert cluster["tls"]["verify"] == "true"  # type: ignore[call-overload,index]
        assert cluster["tls"]["min_version"] == "1.3"  # type: ignore[call-overload,index]
        assert len(cluster["routes"]) == 2
        assert "tls" in leaves
        assert conf["jetstream"]["sync_interval"] == "always"  # type: ignore[call-overload,index]
    assert Home(rendered / "home").settings().servers == [
        "tls://a.example:4222",
        "tls://b.example:4333",
        "tls://[2001:db8::3]:4222",
    ]


def test_no_key_that_signs_leaves_the_home(rendered: Path) -> None:
    home = Home(rendered / "home")
    seeds = {path.read_text().strip() for path in home.trust.rglob("*.nk")}
    assert len(seeds) >= 6
    for path in (p for p in (rendered / "cluster").rglob("*") if p.is_file()):
        assert not any(seed in path.read_text() for seed in seeds), path
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_rendered_folder_is_all_green(rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, files = checked(rendered / "cluster", capsys)
    assert (code, len(files)) == (0, 3)
    assert all(c["verdict"] == "ok" for f in files for c in f["checks"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--layout", "two", "--into", "x"], "layout_unknown"),
        (["--layout", "three", "--into", "x", "--node", "a.example"], "nodes_invalid"),
        (["--layout", "single", "--into", "x", "--node", "a.example:1"], "node_invalid"),
        (["--layout", "single", "--into", "x", "--node", "a b"], "node_invalid"),
        (["--layout", "single", "--into", "x", "--node", "a:99999:1"], "node_invalid"),
        (["--layout", "three", "--into", "x", *["--node", "a.example"] * 3], "nodes_invalid"),
        (["--layout", "single", "--into", "full"], "into_used"),
        (["--layout", "single", "--into", "x", "--node", "a.example", "--ca", "full/note"], "ca_invalid"),
        (["--layout", "leaf", "--into", "x"], "leaf_incomplete"),
        (["--layout", "leaf", "--into", "x", "--tenant", "nobody", "--hub", "a"], "tenant_unknown"),
    ],
)
def test_a_layout_that_can_not_be_is_refused_by_name(
    arguments: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    new_home(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("here")
    assert run(["broker", "render", *arguments, "--home", "home", "--json"]) in (1, 2)
    assert json.loads(capsys.readouterr().out)["reason"] == reason
    assert not (tmp_path / "x").exists()


def test_a_home_with_a_ledger_is_not_pointed_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = new_home(tmp_path)
    write_private(home.streams(0), "{}")
    assert run(["broker", "render", "--layout", "single", "--into", str(tmp_path / "x"), "--home", str(home.path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["reason"] == "home_has_data"
    assert home.settings().servers == []


def test_one_s_own_authority_signs_and_is_told_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = new_home(tmp_path)
    ca = tmp_path / "ca.pem"
    ca.write_text(Authority("mine").certificate.cert)
    into = tmp_path / "x"
    line = ["broker", "render", "--layout", "single", "--node", "a.example", "--ca", str(ca), "--into", str(into)]
    assert run([*line, "--home", str(home.path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["to_add"] == [str(into / "node-1" / name) for name in ("server.crt", "server.key")]
    assert home.ca_file is not None
    assert Path(home.ca_file).read_text() == ca.read_text()


# --- faults ---------------------------------------------------------------------------------------------
def edited(old: str, new: str) -> Any:
    def plant(folder: Path) -> None:
        conf = folder / "server.conf"
        assert old in conf.read_text()
        write_private(conf, conf.read_text().replace(old, new, 1))

    return plant


def wide_account(folder: Path) -> None:
    """An account in the preload that lets any user do anything, signed by the operator itself."""
    home = Home(folder.parents[1] / "home")
    from bus.identity import encode_jwt

    account = keypair("account")
    body = {"type": "account", "version": 2, "default_permissions": {"pub": {"allow": [">"]}, "sub": {"allow": ["_INBOX.>"]}}}
    signer = Keypair(home.operator_signing_seed.read_text().strip())
    jwt = encode_jwt({"sub": account.public, "name": "WIDE", "nats": body}, signer, 1)
    edited("resolver_preload: {", f'resolver_preload: {{\n  {account.public}: "{jwt}"')(folder)


FAULTS: dict[str, tuple[Any, str, str]] = {
    "plain clients": (edited("tls: { cert_file", "x_tls: { cert_file"), "server_listen", "without TLS"),
    "old TLS": (edited('min_version: "1.3"', 'min_version: "1.2"'), "server_listen", "takes TLS older than 1.3"),
    "routes that prove nothing": (edited("verify: true", "verify: false"), "server_routes", "doesn't verify who joins"),
    "somebody without a credential": (
        edited("max_payload", 'no_auth_user: "x"\nmax_payload'), "server_anonymous", "no_auth_user is set",
    ),
    "a leaf without a credential": (
        edited("leafnodes: {", 'leafnodes: {\n  authorization: { user: "x", password: "y" }'), "server_anonymous",
        "leafnodes has authorization",
    ),
    "an account open to all": (wide_account, "server_permissions", "account WIDE lets any user publish to >"),
    "an inbox open to all": (wide_account, "server_permissions", "account WIDE lets any user subscribe to _INBOX.>"),
    "an ack before the disk": (edited("sync_interval: always", 'sync_interval: "2m"'), "server_sync", "sync_interval is 2m"),
    "a key for all to read": (lambda f: (f / "route.key").chmod(0o644), "secret_files", "route.key has mode 0644"),
    "a word it doesn't know": (edited("write_deadline", "write_dedline"), "server_accepts", "write_dedline"),
    "no operator": (edited("operator:", "#"), "server_anonymous", "no operator is set"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check(rendered: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant, check, what = FAULTS[name]
    shutil.copytree(rendered / "home", tmp_path / "home")
    folder = shutil.copytree(rendered / "cluster" / "node-1", tmp_path / "cluster" / "node-1")
    plant(folder)
    code, [file] = checked(folder, capsys)
    finding = next(c for c in file["checks"] if c["check"] == check)
    assert code == 1
    assert any(what in found for found in finding["found"]), file["checks"]
    assert finding["advice"]


def test_an_old_server_is_a_fault(
    rendered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho 'nats-server: v2.12.6'\n")
    old.chmod(0o755)
    monkeypatch.setenv("NATS_SERVER_BIN", str(old))
    code, files = checked(rendered / "cluster" / "node-1", capsys)
    finding = next(c for c in files[0]["checks"] if c["check"] == "server_version")
    assert (code, finding["verdict"]) == (1, "fault")
    assert "2.12.6" in finding["found"][0]


def test_a_gatekeeper_is_not_started_with_what_others_may_read(
    tmp_path: Path, rendered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shutil.copytree(rendered / "cluster" / "gate", tmp_path / "gate")
    line = ["gate", "--nats", "tls://a.example:4222", "--data", str(data), "--json"]
    for path, mode, reason in (
        (Home(data).core_creds("gatekeeper"), 0o640, "seeds_exposed"),
        (Home(data).registry, None, "gate_incomplete"),
    ):
        was = path.stat().st_mode
        path.chmod(mode) if mode else path.rename(tmp_path / "away")
        assert run(line) == 2
        assert json.loads(capsys.readouterr().out)["reason"] == reason
        if mode:
            path.chmod(was)


# --- a gatekeeper and its standby ---------------------------------------------------------------------------
@asynccontextmanager
async def one_server(folder: Path) -> AsyncIterator[Cluster]:
    """One server on loopback that takes leaf nodes, and two gatekeepers' folders; nothing serves yet."""
    home = new_home(folder)
    done = layouts.render(home, "single", layouts.trial_nodes("single", leaves=True), folder / "rendered")
    gates = []
    for name in ("one", "two"):
        data = shutil.copytree(done.gate, folder / name)
        command = [str(Path(sys.executable).parent / "cordon"), "gate", "--nats", home.url, "--data", str(data)]
        gates.append(Gatekeeper(data, command))
    made = Cluster(World(home), {"cordon-1": done.nodes[0]}, gates)
    try:
        made.start_server("cordon-1")
        await until_streams(home, 1)
        yield made
    finally:
        made.stop()


async def serving(made: Cluster, *tenants: str) -> Home:
    """Its home, with one gatekeeper serving these tenants, a project p1 in each and a writer in acme."""
    made.gates[0].start()
    await made.serving()
    async with Control(made.world.home) as control:
        for tenant in tenants:
            await control.tenant_add(tenant)
            await control.project_add(tenant, "p1")
    await made.world.add("writer")
    return made.world.home


@pytest.mark.slow
def test_a_standby_goes_on_where_the_first_stopped_and_knows_all_that_it_was_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with one_server(tmp_path) as made:
            first, second = made.gates
            first.start()
            await made.serving()
            second.start()
            await made.stands_by(second, 0)
            async with Control(made.world.home) as control:  # after both were started: no file of theirs has it
                await control.tenant_add("acme")
                await control.project_add("acme", "p1")
                assert (await control.status())["owner_epoch"] == 1
            await made.world.add("writer")
            await made.world.add("session", role="user_session", user="ann")
            async with made.world.agent("writer") as memory, made.world.agent("session") as ann:
                kept = await memory.write("The mill wheel turns at noon", idempotency_key="k1")
                hers = await ann.write("I take my tea with milk", scope="user", scope_id="ann")
                first.signal(signal.SIGTERM)
                at = time.monotonic()
                assert await made.serving(but=first) is second
                assert time.monotonic() - at < 9  # sooner than a lease runs out
                assert first.child is not None
                assert first.child.wait(20) == 0
                again = await memory.write("The mill wheel turns at noon", idempotency_key="k1")
                assert (again.id, again.duplicate) == (kept.id, True)
                assert kept.id in (await memory.query("when does the mill wheel turn?")).ids
                assert hers.id in (await ann.query("how do I take my tea?", user="ann")).ids  # the same key for her id
                async with Control(made.world.home) as control:
                    assert (await control.status())["owner_epoch"] == 2
                assert (await verified(made.world.home))["ok"]
                where = ["--home", str(made.world.home.path)]
                for line, code in (
                    (["status"], 0),
                    (["verify"], 0),
                    (["get", kept.id, "--as", "acme/writer"], 0),
                    (["up", "--detach"], 2),
                    (["rebuild"], 2),
                    (["broker", "init"], 0),  # again, and nothing is made
                ):
                    assert await asyncio.to_thread(run, [*line, *where]) == code, line

    asyncio.run(scenario())


@pytest.mark.slow
def test_issuer_and_janitor_work_for_servers_that_are_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with one_server(tmp_path) as made:
            home = await serving(made, "acme")
            await made.world.add("ops", role="operator", person="kim")
            beside = [
                spawn([str(Path(sys.executable).parent / "cordon"), name, "--home", str(home.path)], tmp_path / f"{name}.log")
                for name in ("issuer", "janitor")
            ]
            try:
                async with made.world.agent("writer") as memory, made.world.desk() as desk:
                    child = await memory.delegate("helper")
                    async with bus.connect(url=home.url, creds=child.creds, ca_file=home.ca_file) as helper:
                        receipt = await helper.write("The toll of the bridge is nine pence")
                    assert receipt.actor.chain
                    receipt_of = await desk.erase(receipt.id, "asked for")
                    async with asyncio.timeout(30):
                        while receipt_of.state != "done":
                            await asyncio.sleep(0.2)
                            receipt_of = await desk.erasure(receipt_of.erasure)
            finally:
                for child_process in beside:
                    stop_child(child_process, 5)
            assert (await verified(home))["ok"]

    asyncio.run(scenario())


@pytest.mark.slow
def test_an_agent_at_a_leaf_is_served_as_itself_and_only_in_the_leaf_s_tenant(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with one_server(tmp_path) as made:
            home = await serving(made, "acme", "zeta")
            await made.world.add("reader")
            await made.world.add("other", tenant="zeta")
            place = layouts.trial_nodes("single")[0]
            hub = server_file.read(made.nodes["cordon-1"] / "server.conf")["leafnodes"]
            assert isinstance(hub, dict)
            folder = layouts.render_leaf(home, "acme", place, [str(hub["listen"])], tmp_path / "leaf")
            assert run(["broker", "check", str(folder)]) == 0
            leaf = spawn([str(find_server()), "-c", str(folder / "server.conf")], folder / "server.log")
            try:
                await until(lambda: "Leafnode connection created" in (folder / "server.log").read_text(), "the leaf joins")
                url = f"nats://127.0.0.1:{place.client_port}"
                async with (
                    bus.connect(url, made.world.creds("writer"), project="p1") as far,
                    made.world.agent("reader") as near,
                    bus.connect(url, made.world.creds("reader"), project="p1") as fed,
                ):
                    feed = aiter(fed.feed())
                    heard = asyncio.ensure_future(anext(feed))
                    receipt = await far.write("The lighthouse lamp is lit at six")
                    assert receipt.actor.name == "writer"
                    assert receipt.id in (await near.query("when is the lighthouse lamp lit?")).ids
                    again = await near.write("The lighthouse lamp is out at nine")
                    async with asyncio.timeout(20):  # it listens at some moment
                        while not heard.done():
                            await near.write("The lighthouse lamp is trimmed")
                            await asyncio.wait([heard], timeout=0.1)
                    assert heard.result() is not None
                    assert again.id in (await far.query("when is the lighthouse lamp out?")).ids
                with pytest.raises(Denied):  # the leaf doesn't know that tenant's account
                    async with bus.connect(url, made.world.creds("other", "zeta"), project="p1"):
                        pass
            finally:
                stop_child(leaf, 5)

    asyncio.run(scenario())
