"""The home folder: every path of a Cordon home, its settings, and the file modes that keep seeds private.

Invariant: folders are 0700 and files with secrets 0600 from the moment they exist; a home whose seeds others may read is refused.
"""

from __future__ import annotations

import json
import os
import random
import socket
import stat
import tomllib
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import msgspec

from bus.errors import ConfigError

DEFAULT_HOME = "./.cordon"
# Below Linux' ephemeral range (32768 up), so that no outgoing connection ever sits on a home's port.
PORTS = range(20_000, 32_000)
PORT_TRIES = 64
SECONDS = {"m": 60, "h": 3_600, "d": 86_400}
EVERY_LEAST_S = 600  # between two scheduled snapshots: each reads the ledger's end, and costs a folder


class Drills(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Targets of `cordon drill`, in seconds; 0 = none. `rto_s`: until a restored home could serve; `rpo_s`: what is lost."""

    rto_s: int = 0
    rpo_s: int = 0

    def __post_init__(self) -> None:
        if min(self.rto_s, self.rpo_s) < 0:
            raise ValueError("rto_s and rpo_s are seconds, 0 = no target")


class SnapshotSchedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When snapshots are made by themselves: `every` is a number with m, h or d, empty = never. The newest `keep` stay."""

    every: str = ""
    keep: int = 30

    def __post_init__(self) -> None:
        if self.every and self.every_s < EVERY_LEAST_S:
            raise ValueError('every is a time like "24h", "30m" or "7d", and at least "10m"')
        if self.keep < 1:
            raise ValueError("keep is at least 1")

    @property
    def every_s(self) -> int:
        """In seconds; 0 = never, or it can't be read."""
        number, unit = self.every[:-1], self.every[-1:]
        return int(number) * SECONDS[unit] if number.isascii() and number.isdigit() and unit in SECONDS else 0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """cordon.toml. `port` is chosen at the first up and stays. `rates` = false lifts the limits of requests a second.
    `quotas`: what agents and tenants may have in flight and keep (the gatekeeper knows the names).

    `clock`: what day it is (2026-11-30), said by a person where the machine's clock and the ledger differ too much.

    `read_only`: agents may read, not write: a copy that was restored to look at.

    `snapshots`: when they are made by themselves; `drill`: what a drill is to reach.

    `servers`: the home's broker is elsewhere, at these URLs; `ca`: PEM file of the CA that signed their certificates.
    """

    port: int
    rates: bool = True
    quotas: dict[str, int] = {}
    clock: str = ""
    read_only: bool = False
    snapshots: SnapshotSchedule = SnapshotSchedule()
    drill: Drills = Drills()
    servers: list[str] = []
    ca: str = ""

    def __post_init__(self) -> None:
        if self.clock and not _is_day(self.clock):
            raise ValueError('clock is a day like "2026-11-30"')


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


class Current(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `cordon use` chose. `principal` is TENANT/AGENT; empty = not chosen."""

    principal: str = ""
    project: str = ""


class Home:
    """All paths of one home. Constructing it touches nothing; `create` makes the folders."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()

    # --- settings
    @property
    def config(self) -> Path:
        return self.path / "cordon.toml"

    @property
    def current(self) -> Path:
        return self.path / "current"

    def policy(self, tenant: str, project: str) -> Path:
        return self.path / "policy" / tenant / f"{project}.toml"

    # --- processes
    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    @property
    def run(self) -> Path:
        return self.path / "run"

    def pid_file(self, process: str) -> Path:
        return self.run / f"{process}.pid"

    @property
    def status(self) -> Path:
        return self.run / "status.json"

    @property
    def up_lock(self) -> Path:
        return self.run / "up.lock"

    @property
    def gatekeeper_ready(self) -> Path:
        """Holds the gatekeeper's pid while it serves."""
        return self.run / "gatekeeper.ready"

    @property
    def broker_stuck(self) -> Path:
        """Made by the gatekeeper where the broker answers and stores nothing."""
        return self.run / "broker.stuck"

    @property
    def ledger_at_end(self) -> Path:
        """Made by the gatekeeper where its ledger is full to the last hundredth."""
        return self.run / "ledger.at-end"

    @property
    def gatekeeper_error(self) -> Path:
        """Why the gatekeeper refused to serve: JSON {reason, message, advice}."""
        return self.run / "gatekeeper.error"

    # --- trust
    @property
    def trust(self) -> Path:
        return self.path / "trust"

    @property
    def operator_seed(self) -> Path:
        return self.trust / "operator.nk"

    @property
    def operator_signing_seed(self) -> Path:
        return self.trust / "operator-signing.nk"

    @property
    def operator_jwt(self) -> Path:
        """Public: what the registry is verified against. Written last, so it also says that the tree is whole."""
        return self.trust / "operator.jwt"

    @property
    def registry(self) -> Path:
        return self.trust / "registry.jwt"

    @property
    def sys_trust(self) -> Path:
        return self.trust / "sys"

    @property
    def core_trust(self) -> Path:
        return self.trust / "core"

    @property
    def tenants(self) -> Path:
        return self.trust / "tenants"

    def tenant_trust(self, tenant: str) -> Path:
        return self.tenants / tenant

    def issuer_trust(self, tenant: str) -> Path:
        """The issuer's keys of one tenant: all that its process needs of trust/ beside operator.jwt and registry.jwt."""
        return self.trust / "issuer" / tenant

    def revocations(self, tenant: str) -> Path:
        """JSON {user key: unix seconds}: what was issued to that key until then is void; `*` = to any key."""
        return self.tenant_trust(tenant) / "revoked.json"

    def revocations_until(self, tenant: str) -> Path:
        """JSON {user key: unix seconds}: from then on that key's revocation says nothing any more."""
        return self.tenant_trust(tenant) / "revoked-until.json"

    def deleted(self, tenant: str) -> Path:
        """JSON about a tenant that was deleted: there instead of its keys, so that its name is not used again."""
        return self.tenant_trust(tenant) / "deleted.json"

    @property
    def user_ids_key(self) -> Path:
        """Hex: the master of the keys for end users' ids, in homes whose gatekeepers run elsewhere."""
        return self.trust / "user-ids.key"

    @property
    def trust_lock(self) -> Path:
        """Held by whoever changes the trust tree, from the first file to the last push."""
        return self.trust / ".lock"

    # --- credentials
    @property
    def creds(self) -> Path:
        return self.path / "creds"

    def agent_creds(self, tenant: str, agent: str) -> Path:
        return self.creds / tenant / f"{agent}.creds"

    def core_creds(self, user: str) -> Path:
        """`user`: gatekeeper, admin, issuer or janitor. No tenant's name begins with '_' (see trust)."""
        return self.creds / "_core" / f"{user}.creds"

    @property
    def sys_creds(self) -> Path:
        return self.creds / "_sys" / "admin.creds"

    # --- exports
    @property
    def exports(self) -> Path:
        return self.path / "exports"

    def latest_export(self, tenant: str) -> Path:
        """Holds the path of the tenant's latest whole export."""
        return self.exports / f"{tenant}.latest"

    # --- copies
    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def drills(self) -> Path:
        """One line of JSON for each drill."""
        return self.path / "drills.jsonl"

    @property
    def restored(self) -> Path:
        """JSON: of what this home was made, if it was restored. Its ledger says the same."""
        return self.path / "restored.json"

    # --- broker
    @property
    def broker(self) -> Path:
        return self.path / "broker"

    @property
    def server_conf(self) -> Path:
        return self.broker / "server.conf"

    @property
    def broker_jwt(self) -> Path:
        return self.broker / "jwt"

    @property
    def broker_js(self) -> Path:
        return self.broker / "js"

    # --- shards
    def shard(self, k: int) -> Path:
        return self.path / "shards" / str(k)

    def owner_lock(self, k: int) -> Path:
        return self.shard(k) / "owner.lock"

    def lineage(self, k: int) -> Path:
        return self.shard(k) / "lineage.duckdb"

    def streams(self, k: int) -> Path:
        """Ids of the streams that the first up made. With it, a missing stream is a loss, not a first start."""
        return self.shard(k) / "streams.json"

    # --- what it does
    @property
    def was_used(self) -> bool:
        """Whether it has had tenants or a ledger: what is missing then was lost, not never made."""
        return self.streams(0).exists() or self.had_tenants or any(self.broker_js.glob("*"))

    @property
    def had_tenants(self) -> bool:
        return any(self.tenants.glob("*/*"))

    @property
    def exists(self) -> bool:
        return self.config.exists() and self.operator_jwt.exists()

    @property
    def url(self) -> str:
        """Where the broker is: on this machine, or the servers of cordon.toml with commas between."""
        settings = self.settings()
        return ",".join(settings.servers) or f"nats://127.0.0.1:{settings.port}"

    @property
    def ca_file(self) -> str | None:
        """PEM of the CA of a broker that is elsewhere; relative to the home. None: no TLS, or one that the system believes."""
        ca = self.settings().ca
        return str(self.path / ca) if ca else None

    def create(self, port: int | None = None) -> None:
        """Make the folders and cordon.toml; harmless on a home that exists. `port` None = a free one, chosen once."""
        for folder in (
            self.path, self.path / "policy", self.logs, self.run, self.trust, self.tenants, self.creds, self.broker,
            self.broker_jwt, self.broker_js, self.shard(0),
        ):  # fmt: skip
            private_folder(folder)
        if not self.config.exists():
            chosen = free_port() if port is None else port
            write_private(
                self.config, f"# Chosen at the first `cordon up`. Change it only while the home is down.\nport = {chosen}\n"
            )

    def point_to(self, urls: Sequence[str], ca: str) -> None:
        """From now on the home's broker is elsewhere. `ca`: a PEM file, relative to the home; empty = none."""
        settings = msgspec.structs.replace(self.settings(), servers=list(urls), ca=ca)
        write_private(self.config, rendered(settings, "The home's servers are elsewhere: rendered by `cordon broker render`."))

    def settings(self) -> Settings:
        """cordon.toml, validated. `ConfigError` if there is no home or a line in it is wrong."""
        try:
            return msgspec.convert(tomllib.loads(self.config.read_text()), Settings)
        except FileNotFoundError:
            raise ConfigError(
                f"There is no Cordon home at {self.path}.",
                reason="home_missing",
                advice="Start one with `cordon up`, or point CORDON_HOME to it.",
            ) from None
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as e:
            raise ConfigError(
                f"{self.config} can't be read: {e}.", reason="config_invalid", advice="Correct that line."
            ) from None

    def read_current(self) -> Current:
        try:
            return msgspec.json.decode(self.current.read_bytes(), type=Current)
        except FileNotFoundError:
            return Current()
        except msgspec.MsgspecError:
            raise ConfigError(f"{self.current} is damaged.", reason="config_invalid", advice="Run `cordon use` again.") from None

    def write_current(self, current: Current) -> None:
        write_private(self.current, msgspec.json.encode(current).decode())

    def check_private(self) -> None:
        """`ConfigError` if anyone but the owner may read or change a seed or credential."""
        for path in self.secrets():
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(
                    f"{path} can be read by others than its owner.",
                    reason="seeds_exposed",
                    advice=f"Its keys may be known: make a new home, or if you are sure, `chmod -R go= {self.path}`.",
                )

    def secrets(self) -> Iterator[Path]:
        """Every file that holds a seed or credential."""
        for folder in (self.trust, self.creds):
            for pattern in ("*.nk", "*.key", "*.creds", "*.pending"):
                yield from folder.rglob(pattern)


def rendered(settings: Settings, comment: str) -> str:
    """cordon.toml with these settings: the port, and what isn't as it is by itself."""
    default = Settings(port=settings.port)
    lines, tables = [f"# {comment}", f"port = {settings.port}"], []
    for name, value in msgspec.to_builtins(settings).items():
        if name == "port" or value == msgspec.to_builtins(getattr(default, name)):
            continue
        if isinstance(value, dict):
            tables += [f"[{name}]", *(f"{key} = {json.dumps(one)}" for key, one in value.items())]
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join([*lines, *tables, ""])


def private_folder(path: Path) -> None:
    """Make a folder, and those above it, that only its owner may enter. `ConfigError` if that can't be."""
    try:
        if not path.is_dir():
            if not path.parent.is_dir():
                private_folder(path.parent)
            path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        raise _unusable(path, "There is something else than a folder") from None
    except OSError as e:
        raise _unusable(path, e.strerror or type(e).__name__) from None


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"The folder {path} can't be made: {why}.",
        reason="folder_unusable",
        advice="Give the home another place with --home or CORDON_HOME, or run this as the owner of that one.",
    )


def write_private(path: Path, text: str) -> None:
    """Replace a file at once and durably, readable by its owner only."""
    private_folder(path.parent)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    new.replace(path)


def free_port() -> int:
    """A port of PORTS on which nothing listens now. `ConfigError` if none was found."""
    for port in random.SystemRandom().sample(PORTS, PORT_TRIES):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ConfigError("No free port was found.", reason="port_taken", advice="Set `port` in cordon.toml.")
