"""Renders a home's trust into the folders of servers and gatekeepers that run elsewhere, and points the home at them.

Invariants: a server gets the accounts' public side and its own keys, a gatekeeper its own credential, and neither a seed that
signs; a listener beyond loopback has TLS, and routes prove themselves to each other with an authority that nobody else believes;
a folder that holds anything is never written into.
"""

from __future__ import annotations

import ipaddress
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final, Literal
from urllib.parse import urlsplit

from bus.errors import ConfigError
from bus.identity import verify_jwt
from bus.servers import servers

from .authority import Authority, Certificate
from .home import Home, free_port, private_folder, write_private
from .server import MAX_FILE_BYTES
from .server_rules import is_loopback
from .trust import Trust

LayoutName = Literal["single", "three"]
NODES: Final[dict[LayoutName, int]] = {"single": 1, "three": 3}
CLIENT_PORT: Final = 4222
ROUTE_PORT: Final = 6222
LEAF_PORT: Final = 7422
CLUSTER: Final = "cordon"
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Node:
    """One server: the name or address that clients and other servers reach it by, and its ports."""

    host: str
    client_port: int = CLIENT_PORT
    route_port: int = ROUTE_PORT
    leaf_port: int = 0  # 0 = it takes no leaf nodes

    @property
    def address(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def listen(self, port: int) -> str:
        """Every address of the machine, except where the node is on loopback."""
        return f"{self.address if is_loopback(self.host) else '0.0.0.0'}:{port}"


@dataclass(frozen=True)
class Rendered:
    """Where it all lies. `nodes`: a folder for each server; `gate`: the data folder to copy to each gatekeeper's machine."""

    urls: tuple[str, ...]
    nodes: tuple[Path, ...]
    gate: Path
    ca: Path | None
    to_add: tuple[Path, ...]  # certificates and keys that the operator's own authority has to sign


def node(text: str, *, leaves: bool = False) -> Node:
    """HOST or HOST:CLIENT_PORT:ROUTE_PORT; an IPv6 address in brackets. `ConfigError` otherwise."""
    host, _, rest = text[1:].partition("]") if text.startswith("[") else text.partition(":")
    ports = rest.removeprefix(":").split(":") if rest else []
    try:
        if len(ports) not in (0, 2) or not (ipaddress.ip_address(host) if ":" in host else _HOST.fullmatch(host)):
            raise ValueError(text)
        numbers = [int(p) for p in ports] or [CLIENT_PORT, ROUTE_PORT]
        if not all(0 < n < 65_536 for n in numbers):
            raise ValueError(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a server's place.", reason="node_invalid", advice="Write it as HOST or HOST:CLIENT_PORT:ROUTE_PORT."
        ) from None
    return Node(host, numbers[0], numbers[1], LEAF_PORT if leaves else 0)


def trial_nodes(layout: LayoutName, *, leaves: bool = False) -> list[Node]:
    """Servers on this machine's loopback, on ports that are free now."""
    ports: list[int] = []
    while len(ports) < 3 * NODES[layout]:
        port = free_port()
        ports += [] if port in ports else [port]
    places = zip(ports[::3], ports[1::3], ports[2::3], strict=True)
    return [Node("127.0.0.1", client, route, leaf if leaves else 0) for client, route, leaf in places]


def render(
    home: Home, layout: LayoutName, nodes: Sequence[Node], into: Path, *, ca: Path | None = None, at: Path | None = None
) -> Rendered:
    """Write a folder for each server and one for gatekeepers into `into`, and point the home at these servers.

    ca: the PEM of the operator's own authority, which signs server.crt for each node; else one for trials is made. at: where a
    node's folder will lie on its machine, if not where it is rendered. Raises ConfigError (nodes_invalid, into_used,
    home_has_data, ca_invalid).
    """
    _check(home, layout, nodes, into)
    tls = layout != "single" or not is_loopback(nodes[0].host)
    trial = Authority("cordon trial CA") if tls and ca is None else None
    routes = Authority("cordon routes") if layout == "three" else None
    urls = tuple(f"{'tls' if tls else 'nats'}://{n.address}:{n.client_port}" for n in nodes)
    ca_text = trial.certificate.cert if trial else _read_ca(ca) if ca else ""
    to_add: list[Path] = []
    folders = []
    for i, one in enumerate(nodes, 1):
        folder = into / f"node-{i}"
        placed = at or folder
        _write_node(home, folder, placed, f"{CLUSTER}-{i}", one, nodes, tls=tls, routes=routes is not None)
        if trial:
            _write_certificate(folder, "server", trial.sign(f"{CLUSTER}-{i}", [one.host]))
        elif tls:
            to_add += [folder / "server.crt", folder / "server.key"]
        if routes:
            _write_certificate(folder, "route", routes.sign(f"{CLUSTER}-{i}", [one.host], client=True))
            write_private(folder / "route-ca.crt", routes.certificate.cert)
        folders.append(folder)
    for name, authority in (("ca", trial), ("route-ca", routes)):
        if authority:
            _write_certificate(into / "authority", name, authority.certificate)
    _write_gate(home, into / "gate", ca_text)
    if ca_text:
        write_private(home.path / "ca.crt", ca_text)
    home.point_to(urls, "ca.crt" if ca_text else "")
    return Rendered(urls, tuple(folders), into / "gate", into / "gate" / "ca.crt" if ca_text else None, tuple(to_add))


def render_leaf(home: Home, tenant: str, one: Node, hub: Sequence[str], into: Path, *, at: Path | None = None) -> Path:
    """Write the folder of a leaf node for one tenant's agents; returns it. `hub`: the leaf listeners, HOST:PORT.

    Beyond loopback it needs a server.crt and server.key of the operator's own authority. Raises Rejected (tenant_unknown) or
    ConfigError (into_used, node_invalid).
    """
    if into.exists() and any(into.iterdir()):
        raise ConfigError(f"{into} is not empty.", reason="into_used", advice="Render into a new folder.")
    trust, placed = Trust(home, time.time), at or into
    owner = trust.tenant(tenant)
    tls, ca = not is_loopback(one.host), home.ca_file
    urls = [f"{'tls' if ca else 'nats-leaf'}://{_hub(place)}" for place in hub]
    private_folder(into)
    write_private(into / "leaf.creds", trust.leaf_creds(owner))
    if ca:
        write_private(into / "ca.crt", Path(ca).read_text())
    keys = {"cert_file": str(placed / "server.crt"), "key_file": str(placed / "server.key")}
    values: dict[str, str | list[str]] = {
        **_accounts(home),
        "server_name": f"{CLUSTER}-leaf-{tenant}",
        "listen": one.listen(one.client_port),
        "tenant_account": owner.account,
        "tenant_jwt": trust.tenant_jwt(owner),
        "hub": urls,
        "credentials": str(placed / "leaf.creds"),
    }
    remote_tls = f", tls: {{ ca_file: {json.dumps(str(placed / 'ca.crt'))} }}" if ca else ""
    own_tls = _filled("tls.conf", keys) if tls else "# on loopback, hence no TLS"
    write_private(into / "server.conf", _filled("leaf.conf", values, tls=own_tls, remote_tls=remote_tls))
    return into


def _hub(text: str) -> str:
    """HOST:PORT of HOST or HOST:PORT."""
    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.netloc == text and parts.port != 0:
            return text if parts.port else f"{text}:{LEAF_PORT}"
    except ValueError:
        pass
    raise ConfigError(f"{text!r} is not a server's place.", reason="node_invalid", advice="Write it as HOST or HOST:PORT.")


def _check(home: Home, layout: LayoutName, nodes: Sequence[Node], into: Path) -> None:
    if len(nodes) != NODES[layout] or len({(n.host, p) for n in nodes for p in (n.client_port, n.route_port)}) != 2 * len(nodes):
        raise ConfigError(
            f"Layout {layout} has {NODES[layout]} server{'s' if NODES[layout] > 1 else ''}, each in a place of its own.",
            reason="nodes_invalid",
            advice="Give --node once for each.",
        )
    if into.exists() and any(into.iterdir()):
        raise ConfigError(f"{into} is not empty.", reason="into_used", advice="Render into a new folder.")
    if home.streams(0).exists():
        raise ConfigError(
            f"The home {home.path} has a ledger already, on {home.url}.",
            reason="home_has_data",
            advice="Nothing moves it to other servers: render a new home with --home.",
        )


def _read_ca(path: Path) -> str:
    servers("tls://localhost", str(path))  # ConfigError if it is no CA file
    return path.read_text()


def _write_node(
    home: Home, folder: Path, placed: Path, name: str, one: Node, nodes: Sequence[Node], *, tls: bool, routes: bool
) -> None:
    for made in (folder, folder / "jwt", folder / "js"):
        private_folder(made)
    others = [f"nats-route://{n.address}:{n.route_port}" for n in nodes if n != one]
    keys = {f"{kind}_file": str(placed / f"server.{end}") for kind, end in (("cert", "crt"), ("key", "key"))}
    route_keys = {f"{kind}_file": str(placed / f"route.{end}") for kind, end in (("cert", "crt"), ("key", "key"))}
    values: dict[str, str | list[str]] = {
        "server_name": name,
        "listen": one.listen(one.client_port),
        **_accounts(home),
        "jwt_dir": str(placed / "jwt"),
        "js_dir": str(placed / "js"),
    }
    cluster: dict[str, str | list[str]] = {
        "cluster_name": CLUSTER,
        "listen": one.listen(one.route_port),
        "routes": others,
        "ca_file": str(placed / "route-ca.crt"),
        **route_keys,
    }
    own_tls = _filled("tls.conf", keys) if tls else "# on loopback, hence no TLS"
    leaves = {"listen": one.listen(one.leaf_port)}
    text = _filled(
        "node.conf",
        values,
        tls=own_tls,
        cluster=_filled("cluster.conf", cluster) if routes else "",
        leafnodes=_filled("leafnodes.conf", leaves, tls=own_tls) if one.leaf_port else "",
        max_file_bytes=str(MAX_FILE_BYTES),
    )
    write_private(folder / "server.conf", text)


def _accounts(home: Home) -> dict[str, str]:
    """The public side of the home's trust, as every server has it."""
    operator, system, core = (
        p.read_text() for p in (home.operator_jwt, home.sys_trust / "account.jwt", home.core_trust / "account.jwt")
    )
    return {
        "operator_jwt": operator,
        "system_account": verify_jwt(system).subject,
        "system_jwt": system,
        "core_account": verify_jwt(core).subject,
        "core_jwt": core,
    }


def _filled(template: str, values: Mapping[str, str | list[str]], **verbatim: str) -> str:
    """A template with its values quoted, so that a path may hold any character; `verbatim` ones are settings themselves."""
    quoted = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    return Template(resources.files("broker_config").joinpath(template).read_text()).substitute(quoted, **verbatim)


def _write_certificate(folder: Path, name: str, made: Certificate) -> None:
    write_private(folder / f"{name}.crt", made.cert)
    write_private(folder / f"{name}.key", made.key)


def _write_gate(home: Home, folder: Path, ca: str) -> None:
    """What a gatekeeper reads (gate/paths.py): its own credential, the operator's public side, the keys of end users' ids."""
    Trust(home, time.time).share_user_keys()
    there = Home(folder)
    copies = [(home.core_creds("gatekeeper"), there.core_creds("gatekeeper")), (home.user_ids_key, there.user_ids_key)]
    copies += [(home.operator_jwt, there.operator_jwt), (home.registry, there.registry)]
    for key in sorted(home.tenants.glob("*/user-ids.key")):
        copies.append((key, there.tenant_trust(key.parent.name) / key.name))
    for source, copy in copies:
        write_private(copy, source.read_text())
    if ca:
        write_private(folder / "ca.crt", ca)
