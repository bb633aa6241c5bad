"""`cordon doctor security`: a new home is all green, and each planted fault is found by its check, named, and told what to do."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker_config import server_file
from broker_config.control import Control
from broker_config.doctor import CHECKS
from broker_config.home import Home, write_private
from broker_config.roles import ROLES
from broker_config.server import start_server, stop_server
from broker_config.snapshots import Snapshots
from broker_config.trust import AgentRequest, Trust
from bus.identity import Keypair, RegistryNats, creds_text, encode_jwt, keypair, parse_creds, verify_jwt, verify_registry
from cli.main import run

NAMES = [check.name for check in CHECKS]


KEPT = ("snapshots", "kept")
FILES = (*KEPT, "files-1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with two tenants and an agent of every role, as its broker left it; tests take copies."""
    home = Home(tmp_path_factory.mktemp("doctor") / "home")
    home.create()
    trust = Trust(home, time.time)
    trust.create()
    server = start_server(home)
    try:
        asyncio.run(_push(home, []))
        tenants = [trust.make_tenant(name) for name in ("acme", "globex")]
        trust.write_registry()
        asyncio.run(_push(home, [trust.tenant_jwt(t) for t in tenants]))
    finally:
        stop_server(server, home)
    Snapshots(home).create(KEPT[-1])
    for role in ROLES.values():
        user = keypair("user")
        request = AgentRequest("acme", role.name, role.name, ("p1",), user="ann" if role.needs_user else "")
        write_private(home.agent_creds("acme", role.name), creds_text(trust.agent_jwt(request, user.public), user))
    return home


async def _push(home: Home, accounts: list[str]) -> None:
    async with Control(home) as control:
        await control.ensure_streams()
        for jwt in accounts:
            await control.push_account(jwt)


@pytest.fixture
def home(made: Home, tmp_path: Path) -> Home:
    copy = Home(tmp_path / "home")
    shutil.copytree(made.path, copy.path, ignore=shutil.ignore_patterns("*.blk"))
    return copy


def doctor(home: Home, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]], str]:
    """(exit code, findings by check, stderr) of `cordon doctor security --json`."""
    code = run(["doctor", "security", "--home", str(home.path), "--json"])
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert said["ok"] == (code == 0)
    assert [f["check"] for f in said["checks"]] == NAMES
    return code, {f["check"]: f for f in said["checks"]}, captured.err


def test_a_new_home_is_all_green(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    code, findings, err = doctor(home, capsys)
    assert (code, err) == (0, "")
    for finding in findings.values():
        assert (finding["verdict"], finding["found"], finding["advice"]) == ("ok", [], "")
        assert finding["holds"]
    assert run(["doctor", "security", "--home", str(home.path)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES)


def test_a_home_that_never_ran_is_all_green_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path / "home")
    home.create()
    Trust(home, time.time).create()
    assert doctor(home, capsys)[0] == 0


# --- planting -------------------------------------------------------------------------------------------
def chmod(mode: int, *parts: str) -> Callable[[Home], None]:
    def plant(home: Home) -> None:
        home.path.joinpath(*parts).chmod(mode)

    return plant


def conf(old: str, new: str) -> Callable[[Home], None]:
    """The server's file, edited under a broker that runs."""

    def plant(home: Home) -> None:
        text = home.server_conf.read_text()
        assert old in text
        write_private(home.server_conf, text.replace(old, new, 1))

    return plant


def listen(address: str, more: str = "") -> Callable[[Home], None]:
    def plant(home: Home) -> None:
        conf(f'"127.0.0.1:{home.settings().port}"', f'"{address}"')(home)
        write_private(home.server_conf, home.server_conf.read_text() + more)

    return plant


def appended(text: str) -> Callable[[Home], None]:
    def plant(home: Home) -> None:
        write_private(home.server_conf, f"{home.server_conf.read_text()}\n{text}\n")

    return plant


def old_server(home: Home) -> None:
    program = home.path / "nats-server"
    program.write_text("#!/bin/sh\necho nats-server: v2.12.6\n")
    program.chmod(0o755)


Change = Callable[[dict[str, Any]], None]


def signed_again(jwt: str, change: Change, signer: Keypair) -> str:
    """The same claims after `change` of {name, exp, nats}, signed anew."""
    claims = verify_jwt(jwt)
    body: dict[str, Any] = {"sub": claims.subject, "name": claims.name, "nats": msgspec.json.decode(claims.nats)}
    change(body)
    return encode_jwt(body, signer, claims.issued_at)


def account(tenant: str, change: Change, signer: Callable[[Home], Keypair] | None = None) -> Callable[[Home], None]:
    """A tenant's (or `core`'s) account as the broker holds it, changed."""

    def plant(home: Home) -> None:
        folder = home.core_trust if tenant == "core" else home.tenant_trust(tenant)
        held = home.broker_jwt / f"{Keypair((folder / 'account.nk').read_text().strip()).public}.jwt"
        write_private(held, signed_again(held.read_text(), change, (signer or operator_signing)(home)))

    return plant


def operator_signing(home: Home) -> Keypair:
    return Keypair(home.operator_signing_seed.read_text().strip())


def over(body: dict[str, Any]) -> None:
    body["exp"] = int(time.time()) - 60


def expired_operator(home: Home) -> None:
    operator = Keypair(home.operator_seed.read_text().strip())
    jwt = home.operator_jwt.read_text()
    new = signed_again(jwt, over, operator)
    write_private(home.operator_jwt, new)
    write_private(home.server_conf, home.server_conf.read_text().replace(jwt, new))


def other_key(body: dict[str, Any]) -> None:
    body["sub"] = keypair("account").public


def import_change(index: int, **changes: Any) -> Change:
    def change(body: dict[str, Any]) -> None:
        body["nats"]["imports"][index] |= changes

    return change


def open_inbox(body: dict[str, Any]) -> None:
    agent = next(k for k in body["nats"]["signing_keys"] if k["role"] == "agent")
    agent["template"]["sub"]["allow"].append("_INBOX.>")


def bare_key(body: dict[str, Any]) -> None:
    body["nats"]["signing_keys"].append(keypair("account").public)


def no_template(body: dict[str, Any]) -> None:
    body["nats"]["signing_keys"][0] = body["nats"]["signing_keys"][0]["key"]


def no_position(body: dict[str, Any]) -> None:
    del body["nats"]["exports"][0]["account_token_position"]


def core_user(name: str, change: Change) -> Callable[[Home], None]:
    def plant(home: Home) -> None:
        path = home.core_creds(name)
        old = parse_creds(path.read_text())
        signer = Keypair((home.core_trust / "signing.nk").read_text().strip())
        write_private(path, creds_text(signed_again(old.jwt, change, signer), Keypair(old.seed)))

    return plant


def allow(side: str, subject: str) -> Change:
    def change(body: dict[str, Any]) -> None:
        body["nats"].setdefault(side, {}).setdefault("allow", []).append(subject)

    return change


def agent(name: str, change: Change, signed_by: str = "") -> Callable[[Home], None]:
    def plant(home: Home) -> None:
        path = home.agent_creds("acme", name)
        old = parse_creds(path.read_text())
        signer = Keypair((home.path / (signed_by or f"trust/tenants/acme/role-{name}.nk")).read_text().strip())
        write_private(path, creds_text(signed_again(old.jwt, change, signer), Keypair(old.seed)))

    return plant


def tag(*tags: str) -> Change:
    def change(body: dict[str, Any]) -> None:
        body["nats"]["tags"] += tags

    return change


def registry(change: Callable[[dict[str, Any]], None], own: bool = True) -> Callable[[Home], None]:
    def plant(home: Home) -> None:
        entries = verify_registry(home.registry.read_text(), home.operator_jwt.read_text())
        keys: dict[str, Any] = {key: msgspec.to_builtins(entry) for key, entry in entries.items()}
        change(keys)
        signer = operator_signing(home) if own else keypair("operator")
        nats = RegistryNats(keys=msgspec.convert(keys, type=dict[str, Any]), type="cordon_registry", version=2)
        write_private(home.registry, encode_jwt({"sub": signer.public, "name": "registry", "nats": nats}, signer, 1_700_000_000))

    return plant


def nothing(_: dict[str, Any]) -> None:
    """Signed by somebody else is change enough."""


def more_verbs(keys: dict[str, Any]) -> None:
    next(entry for entry in keys.values() if entry["role"] == "agent")["verbs"].append("hold")


def strange_key(keys: dict[str, Any]) -> None:
    keys[keypair("account").public] = next(iter(keys.values()))


def missing_key(keys: dict[str, Any]) -> None:
    keys.pop(next(iter(keys)))


def cut(*parts: str) -> Callable[[Home], None]:
    def plant(home: Home) -> None:
        path = home.path.joinpath(*parts)
        path.write_text(path.read_text()[:-20])

    return plant


SEED = re.compile(r"\bS[AOU][A-Z2-7]{56}\b")
AGENTS = "agent_credentials"
# what is planted → (how, the check that finds it, what it names)
FAULTS: dict[str, tuple[Callable[[Home], None], str, str]] = {
    "a readable seed": (chmod(0o644, "trust", "operator-signing.nk"), "secret_files", "operator-signing.nk has mode 0644"),
    "a role's seed for the group": (chmod(0o640, "trust", "tenants", "acme", "role-operator.nk"), "secret_files", "mode 0640"),
    "a writable credential": (chmod(0o602, "creds", "acme", "agent.creds"), "secret_files", "agent.creds has mode 0602"),
    "a readable creds folder": (chmod(0o755, "creds"), "secret_folders", "creds has mode 0755"),
    "a readable tenant's folder": (chmod(0o750, "trust", "tenants", "acme"), "secret_folders", "acme has mode 0750"),
    "a world-readable store": (chmod(0o755, "broker", "js"), "store_folders", "js has mode 0755"),
    "a world-readable shard": (chmod(0o755, "shards", "0"), "store_folders", "mode 0755"),
    "a world-readable home": (chmod(0o755), "store_folders", "home has mode 0755"),
    "an old server": (old_server, "server_version", "version 2.12.6"),
    "every address without TLS": (listen("0.0.0.0:4222"), "server_listen", "0.0.0.0 without TLS"),
    "a port of every address": (listen(":4222"), "server_listen", "every address without TLS"),
    "an address of the network": (listen("192.0.2.1:4222"), "server_listen", "192.0.2.1 without TLS"),
    "leaves from everywhere": (appended('leafnodes { listen: "0.0.0.0:7422" }'), "server_listen", "leafnodes listens on 0.0.0.0"),
    "web sockets without TLS": (appended("websocket { port: 8080, no_tls: true }"), "server_listen", "websocket listens on"),
    "a monitor for everybody": (appended("http: 8222"), "server_listen", "http serves 8222"),
    "a server file that can't be read": (appended('include "more.conf"'), "server_listen", "can't be read"),
    "TLS of yesterday": (appended('tls { cert_file: "a.pem", key_file: "b.pem" }'), "server_listen", "takes TLS older than 1.3"),
    "a snapshot that others may read": (chmod(0o644, *FILES, "cordon.toml"), "snapshot_folders", "cordon.toml has mode 0644"),
    "a snapshot that was changed": (cut(*FILES, "cordon.toml"), "snapshot_files", "cordon.toml: it isn't what was written"),
    "routes without TLS": (appended('cluster { listen: "127.0.0.1:6222" }'), "server_routes", "cluster has no TLS"),
    "routes that prove nothing": (
        appended('cluster { listen: "127.0.0.1:6222", tls { cert_file: "a.pem", min_version: "1.3" } }'), "server_routes",
        "cluster doesn't verify who joins",
    ),
    "a user without authentication": (appended("no_auth_user: guest"), "server_anonymous", "no_auth_user is set"),
    "no operator": (conf("operator:", "server_tags:"), "server_anonymous", "no operator is set"),
    "a lazy disk": (conf("sync_interval: always", 'sync_interval: "2m"'), "server_sync", "sync_interval is 2m"),
    "a lazy disk by default": (conf("sync_interval: always", "max_bytes: 9M"), "server_sync", "sync_interval is 2m"),
    "an expired operator": (expired_operator, "operator", "operator.jwt has expired"),
    "an expired signing key": (account("acme", over), "accounts", "account acme and its signing keys have expired"),
    "an account that nobody signed": (account("acme", nothing, lambda _: keypair("operator")), "accounts", "acme is not signed"),
    "an account of another key": (account("globex", other_key), "accounts", "globex is another"),
    "a foreign registry": (registry(nothing, own=False), "registry", "not signed by a signing key of this operator"),
    "a damaged registry": (cut("trust", "registry.jwt"), "registry", "damaged or wrongly signed"),
    "a registry with more verbs": (registry(more_verbs), "registry", "other rights than its role agent"),
    "a registry with a strange key": (registry(strange_key), "registry", "no role's key"),
    "a registry without a key": (registry(missing_key), "registry", "of tenant acme"),
    "a missing share flag": (account("acme", import_change(0, share=False)), "imports", "mem.acme.> without share"),
    "no share for operators": (account("acme", import_change(1, share=False)), "imports", "ops.acme.> without share"),
    "another's position": (account("acme", import_change(0, subject="in.0.*.>")), "imports", "acme imports in.0.*.>"),
    "another's feed": (account("acme", import_change(2, subject="feed.>")), "imports", "acme imports feed.>"),
    "an export without position": (account("core", no_position), "imports", "CORE's export in.*.*.>"),
    "an open inbox": (account("acme", open_inbox), "role_keys", "the agent key may subscribe to _INBOX.>"),
    "a key of no role": (account("acme", bare_key), "role_keys", "of no role"),
    "a role's key without template": (account("acme", no_template), "role_keys", "has no template"),
    "a gatekeeper that hears inboxes": (core_user("gatekeeper", allow("sub", "_INBOX.>")), "core_users", "_INBOX.>"),
    "a gatekeeper that purges": (core_user("gatekeeper", allow("pub", "$JS.API.STREAM.PURGE.LEDGER_0")), "core_users", "PURGE"),
    "an issuer that writes": (core_user("issuer", lambda b: b["nats"].pop("pub")), "core_users", "_core/issuer may publish"),
    "an agent with its own rights": (agent("agent", allow("pub", "mem.acme.p2.write.*")), AGENTS, "carries pub of its own"),
    "a bearer token": (agent("agent", lambda b: b["nats"].update(bearer_token=True)), AGENTS, "carries bearer_token"),
    "an agent signed by the account": (agent("agent", nothing, "trust/tenants/acme/account.nk"), AGENTS, "no role's key"),
    "an agent of another tenant": (agent("agent", nothing, "trust/tenants/globex/role-agent.nk"), AGENTS, "no role's key"),
    "an agent that sees too much": (agent("ingest", tag("see:restricted")), AGENTS, "more than its role ingest"),
    "a ceiling too high": (agent("agent", tag("ceiling:system")), AGENTS, "higher ceiling than its role agent"),
    "a verb too many": (agent("agent", tag("verb:hold")), AGENTS, "a verb that its role agent hasn't"),
}  # fmt: skip
# A server file that can't be read fails every check that reads it.
ALSO = {"a server file that can't be read": {"server_anonymous", "server_routes", "server_sync"}}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_named_and_told_what_to_do(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    plant, check, named = FAULTS[fault]
    plant(home)
    if (home.path / "nats-server").exists():
        monkeypatch.setenv("NATS_SERVER_BIN", str(home.path / "nats-server"))
    code, findings, err = doctor(home, capsys)
    assert code == 1
    assert {name for name, f in findings.items() if f["verdict"] == "fault"} == {check} | ALSO.get(fault, set())
    assert named in " ".join(findings[check]["found"])
    assert findings[check]["advice"].endswith(".")
    assert err.startswith("cordon: refused: ")
    assert check in err
    assert findings[check]["advice"] in err
    assert not SEED.search(json.dumps(findings) + err)


def test_every_check_has_a_planted_fault() -> None:
    assert {check for _, check, _ in FAULTS.values()} == set(NAMES)


def test_with_tls_the_server_may_listen_anywhere(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    listen("0.0.0.0:4222", '\ntls { cert_file: "a.pem", key_file: "b.pem", min_version: "1.3" }\n')(home)
    assert doctor(home, capsys)[0] == 0


def test_an_expired_agent_is_no_fault_of_the_home(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    agent("user_session", over)(home)
    assert doctor(home, capsys)[0] == 0


def test_people_see_what_is_wrong_and_what_to_do(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    chmod(0o644, "creds", "acme", "agent.creds")(home)
    chmod(0o755, "broker", "js")(home)
    assert run(["doctor", "security", "--home", str(home.path)]) == 1
    shown = capsys.readouterr()
    assert "agent.creds has mode 0644" in shown.out
    assert "Run `chmod go= FOLDER`." in shown.out
    assert shown.err.startswith(f"cordon: refused: 2 of {len(NAMES)} checks found a fault: secret_files, store_folders. ")


def test_without_a_home_there_is_nothing_to_examine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "security", "--home", str(tmp_path / "none")]) == 2
    assert "There is no Cordon home" in capsys.readouterr().err


# --- the server's file --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("", {}),
        ("# only a remark\n// and another", {}),
        ('listen: "127.0.0.1:4222"  # loopback', {"listen": "127.0.0.1:4222"}),
        ("listen = 127.0.0.1:4222\nmax 5", {"listen": "127.0.0.1:4222", "max": "5"}),
        ("Listen: 4222; HTTP: 8222", {"listen": "4222", "http": "8222"}),
        ('jetstream { dir: "/a b{c}", sync: always }', {"jetstream": {"dir": "/a b{c}", "sync": "always"}}),
        ('a: { b: [1, "two", { c: d }] }', {"a": {"b": ["1", "two", {"c": "d"}]}}),
        ("a {}\nb: []", {"a": {}, "b": []}),
    ],
)  # fmt: skip
def test_a_server_file_is_read_as_the_server_reads_it(text: str, block: dict[str, Any]) -> None:
    assert server_file.parse(text) == block


@pytest.mark.parametrize("text", ["a {", "a }", "a: [1", "a:", 'include "x"', "$x: 1", "a: }", "{ a: 1 }", "]"])
def test_what_is_not_understood_is_no_setting(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        server_file.parse(text)
