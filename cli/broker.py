"""Servers that run elsewhere, and a gatekeeper beside them: render their folders, make the streams, check, serve."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .call import Call
from .command import HOME, command, group
from .exits import NAMES, Exit, usage
from .output import facts, note, print_json, progress, show, styled, table
from .render import render_untrusted

if TYPE_CHECKING:
    from broker_config.layouts import LayoutName, Node, Rendered

VERDICT_STYLES = {"ok": "green", "fault": "red"}
REPLICAS = {1: 1, 3: 3}  # of the streams, by the number of servers


def register(app: typer.Typer) -> None:
    broker = group(app, "broker", "Servers that run elsewhere: render, init, check; and room for the ledger.", panel=HOME)
    command(broker, "render", example="cordon broker render --layout three --into ./cluster")(render)
    command(broker, "init", example="cordon broker init")(init)
    command(broker, "check", example="cordon broker check ./cluster")(check)
    command(broker, "room", example="cordon broker room --ledger 20")(room)
    command(app, "gate", example="cordon gate --nats tls://a:4222,tls://b:4222 --ca ./gate/ca.crt --data ./gate")(gate)


def render(
    call: Call,
    layout: Annotated[str, typer.Option("--layout", metavar="NAME", help="single, three or leaf.")],
    into: Annotated[Path, typer.Option("--into", metavar="FOLDER", help="A new folder: one part for each machine.")],
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="HOST[:CLIENT:ROUTE]",
            help="A server, once for each; without it, this machine's loopback, for trials.",
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", metavar="FILE", help="PEM of your own authority, which signs server.crt; else one for trials is made."
        ),
    ] = None,
    leaves: Annotated[
        bool, typer.Option("--leaves", metavar="", help="Single and three: take leaf nodes, on port 7422.")
    ] = False,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Leaf: whose agents it serves.")] = "",
    hub: Annotated[
        list[str] | None, typer.Option("--hub", metavar="HOST:PORT", help="Leaf: where the servers take leaf nodes (repeatable).")
    ] = None,
    at: Annotated[
        Path | None, typer.Option("--at", metavar="FOLDER", help="Where a server's part will lie on its machine, if not here.")
    ] = None,
) -> int | None:
    """Write the configurations of servers that run elsewhere, and point the home at them.

    The home keeps the keys that sign; a server's part has none of them. Then start the servers and run `cordon broker init`.
    """
    import time

    from broker_config import layouts
    from broker_config.trust import Trust

    if layout == "leaf":
        return _leaf(call, tenant, hub or [], layouts.node(node[0]) if node else layouts.trial_nodes("single")[0], into, at)
    if layout not in layouts.NODES:
        raise usage(
            f"There is no layout {layout!r}.", reason="layout_unknown", advice="Use single, three or leaf.", field="layout"
        )
    name: LayoutName = "three" if layout == "three" else "single"
    home = call.home
    home.create()
    Trust(home, time.time).create()
    places = [layouts.node(text, leaves=leaves) for text in node] if node else layouts.trial_nodes(name, leaves=leaves)
    done = layouts.render(home, name, places, into.absolute(), ca=ca, at=at)
    _told(call, done)
    return None


def _leaf(call: Call, tenant: str, hub: list[str], node: Node, into: Path, at: Path | None) -> int | None:
    from broker_config.layouts import render_leaf
    from broker_config.server_rules import is_loopback

    if not tenant or not hub:
        raise usage("A leaf node is for one tenant, at one hub.", reason="leaf_incomplete", advice="Give --tenant and --hub.")
    folder = render_leaf(call.existing_home(), tenant, node, hub, into.absolute(), at=at)
    url = f"{'nats' if is_loopback(node.host) else 'tls'}://{node.address}:{node.client_port}"
    if call.json:
        print_json({"home": str(call.home.path), "urls": [url], "nodes": [str(folder)]})
    else:
        show(facts({"server": f"nats-server -c {folder / 'server.conf'}", "agents connect to": url}))
    return None


def _told(call: Call, done: Rendered) -> None:
    if call.json:
        print_json(
            {
                "home": str(call.home.path),
                "urls": list(done.urls),
                "nodes": [str(path) for path in done.nodes],
                "gate": str(done.gate),
                "ca": str(done.ca) if done.ca else "",
                "to_add": [str(path) for path in done.to_add],
            }
        )
        return
    nodes = {f"server {i}": f"nats-server -c {path / 'server.conf'}" for i, path in enumerate(done.nodes, 1)}
    ca = f" --ca {done.ca}" if done.ca else ""
    show(facts({**nodes, "gatekeeper": f"cordon gate --nats {','.join(done.urls)}{ca} --data {done.gate}"}))
    if done.to_add:
        show("your authority signs, for each server by its own name:", *(f"  {path}" for path in done.to_add))
    show(f"start the servers, then: cordon broker init{call.chosen()}")


def init(call: Call) -> int | None:
    """Make the shard's streams on the home's servers, once. A stream that is missing later is never made again."""
    home = call.existing_home()
    urls = home.settings().servers
    if not urls:
        raise usage(
            "This home has a broker of its own, which `cordon up` starts.",
            reason="not_elsewhere",
            advice="`cordon broker render` makes configurations for servers elsewhere.",
        )
    with progress("making the streams"):
        made = call.ask_control(lambda control: control.make_shared_streams(REPLICAS.get(len(urls), 3)))
    if call.json:
        print_json({"home": str(home.path), "streams": sorted(made)})
    else:
        next_ = f"start the gatekeepers, then cordon tenant add NAME{call.chosen()}"
        show(f"streams {', '.join(sorted(made))} are there; next: {next_}")
    return None


def check(
    call: Call,
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="A rendered folder, or one server's configuration file.")],
) -> int | None:
    """Check servers' configurations, by the server itself and by Cordon's rules. Exit 1 with what to do if something is wrong."""
    import msgspec

    from broker_config.server_check import configurations, examine

    found = [(conf, examine(conf)) for conf in configurations(path)]
    faults = [(conf, f) for conf, findings in found for f in findings if f.verdict == "fault"]
    if call.json:
        files = [{"file": str(conf), "checks": msgspec.to_builtins(findings)} for conf, findings in found]
        print_json({"ok": not faults, "files": files})
    else:
        for conf, findings in found:
            rows = [(f.check, styled(f.verdict, VERDICT_STYLES), f.holds) for f in findings]
            show(render_untrusted(str(conf)), table(("check", "verdict", "what must hold"), rows))
        for conf, fault in faults:
            show(*(render_untrusted(f"{conf}: {what}.") for what in fault.found), f"  → {fault.advice}")
    if not faults:
        return None
    note(
        f"cordon: {NAMES[Exit.REFUSED]}: {len(faults)} faults in {len(found)} files: {faults[0][1].check}. {faults[0][1].advice}"
    )
    return Exit.REFUSED


def room(
    call: Call,
    ledger: Annotated[int | None, typer.Option("--ledger", metavar="GIB", help="Give the ledger so much.")] = None,
    reads: Annotated[int | None, typer.Option("--reads", metavar="GIB", help="Give the record of reads so much.")] = None,
    erased: Annotated[int | None, typer.Option("--erased", metavar="GIB", help="Give the stripped blocks so much.")] = None,
) -> int | None:
    """Show how full the ledger's streams are, and give them more room while everything runs."""
    import msgspec

    from broker_config.streams import GIB

    given = {"ledger": ledger, "reads": reads, "erased": erased}
    most = {kind: gib * GIB for kind, gib in given.items() if gib is not None}
    if any(size < GIB for size in most.values()):
        raise usage("A stream has at least 1 GiB.", reason="stream_room", advice="Name whole GiB, as --ledger 20.")
    found = call.ask_control(lambda control: control.streams_room(most))
    if call.json:
        print_json({"streams": [msgspec.structs.asdict(x) for x in found]})
        return None
    rows = [(x.stream, f"{x.bytes / GIB:.2f}", f"{x.max_bytes / GIB:g}", f"{x.bytes / max(1, x.max_bytes):.1%}") for x in found]
    show(table(("stream", "GiB", "of", "full"), rows))
    for x in found:
        if x.lent:
            show(f"{x.stream}: {x.lent / GIB:.2f} GiB of that are lent, for holds and erasures alone: set a larger size")
    return None


def gate(
    call: Call,
    nats: Annotated[str, typer.Option("--nats", metavar="URL[,URL]", help="The servers: any of them will do.")],
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="The gatekeeper's folder, as it was rendered.")],
    creds: Annotated[
        Path | None, typer.Option("--creds", metavar="FILE", help="The gatekeeper's credential, if not the one in --data.")
    ] = None,
    ca: Annotated[
        str, typer.Option("--ca", metavar="FILE", help="PEM of the servers' authority; else CORDON_CA, else the system's.")
    ] = "",
) -> int | None:
    """Serve a shard on servers that run elsewhere. A second one stands by, and takes over when this one falls silent.

    It runs until it is stopped; its log goes to stderr. SIGTERM hands over at once.
    """
    from broker_config.home import Home
    from broker_config.server_rules import exposed
    from bus.servers import CA_VARIABLE, servers

    folder = Home(data)
    secret = creds or folder.core_creds("gatekeeper")
    for path in (secret, folder.operator_jwt, folder.registry):
        if not path.exists():
            raise usage(
                f"{path} is not there.",
                reason="gate_incomplete",
                advice="Give --data a folder that `cordon broker render` wrote.",
            )
    servers(nats, ca or call.env.get(CA_VARIABLE))
    if open_files := list(exposed([*folder.secrets(), secret])):
        raise usage(
            f"{open_files[0]}.", reason="seeds_exposed", advice="Its keys may be known: `chmod go= FILE`, or render anew."
        )
    line = [sys.executable, "-P", "-m", "gate", "--home", str(folder.path), "--nats", nats, "--creds", str(secret.absolute())]
    sys.stdout.flush()
    os.execv(sys.executable, [*line, *(["--ca", ca] if ca else [])])
    return None
