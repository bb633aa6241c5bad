"""The ledger against what was made of it: rebuild and verify."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .call import Call
from .command import command
from .exits import NAMES, Exit, Failure, usage
from .homes import ask_gatekeeper
from .output import facts, note, print_json, progress, show
from .render import render_untrusted

if TYPE_CHECKING:
    from broker_config.home import Home

_GATE_REFUSED: Final = 65  # the gatekeeper's own code for "the ledger or a store is not as it should be"


def register(app: typer.Typer) -> None:
    command(app, "rebuild", example="cordon rebuild")(rebuild)
    command(app, "verify", example="cordon verify --json")(verify)


def rebuild(
    call: Call,
    accept_ledger: Annotated[
        str,
        typer.Option("--accept-ledger", metavar="NAME", help="Who accepts that records are missing; it is noted in the ledger."),
    ] = "",
) -> int | None:
    """Make all indexes anew from the ledger, while the home is down.

    The ledger is the only source of truth; catalog, vectors and lineage can be made from it at any time.
    """
    home = call.existing_home()
    if home.settings().servers:
        raise usage(
            "The indexes of this home are its gatekeepers', on their machines.",
            reason="servers_elsewhere",
            advice="Stop a gatekeeper, move `shards` out of its folder and start it: it makes them anew.",
        )
    if _is_up(home):
        raise usage("The home is up: a rebuild needs it to itself.", reason="already_up", advice="Run `cordon down` first.")
    with progress("replaying the ledger"):
        result = _gate(home, "--rebuild", *(["--accept-ledger", accept_ledger] if accept_ledger else []))
    if call.json:
        print_json(result)
    else:
        show(f"{result['replayed']:,} events replayed to position {result['position']:,} in {result['seconds']:g} s")
    return None


def verify(call: Call) -> int | None:
    """Check the chain, positions and counts against the ledger. Exit 1 with findings."""
    result = _verified(call, call.existing_home())
    findings = [str(f) for f in result.get("findings", [])]
    if call.json:
        print_json(result)
    else:
        counts = {name: f"{value:,}" for name, value in result.items() if isinstance(value, (int, float)) and name != "ok"}
        show(facts(counts), *(render_untrusted(f) for f in findings), "no findings" if not findings else "")
    if findings or not result.get("ok"):
        note(f"cordon: {NAMES[Exit.REFUSED]}: verify has {len(findings)} finding{'' if len(findings) == 1 else 's'}.")
        return Exit.REFUSED
    return None


def _verified(call: Call, home: Home) -> dict[str, Any]:
    """By the gatekeeper that serves, if it answers at all: it may take minutes, a hung one would take them for nothing."""
    from broker_config.status import not_serving
    from broker_config.supervisor import read_status

    now = read_status(home)
    if home.settings().servers:
        with progress("reading the whole ledger"):
            return call.ask_control(lambda control: control.verify())
    if now is None:
        with progress("reading the whole ledger"):
            return _gate(home, "--verify")
    if now.state != "ready":
        raise not_serving(home, now)
    records = int(ask_gatekeeper(call, now).get("ledger_seq", 0))
    with progress(f"reading the whole ledger, {records:,} records"):
        return call.ask_control(lambda control: control.verify())


def _is_up(home: Home) -> bool:
    from broker_config.supervisor import read_status

    return read_status(home) is not None


def _gate(home: Home, *mode: str) -> dict[str, Any]:
    """Run the gatekeeper once, in a mode that ends, beside a broker of our own. Its JSON."""
    from broker_config.server import start_server, stop_server
    from broker_config.supervisor import locked

    with locked(home):
        broker = start_server(home)
        try:
            home.logs.mkdir(exist_ok=True)
            with home.log("gatekeeper").open("ab") as log:
                ended = subprocess.run(
                    [sys.executable, "-m", "gate", "--home", str(home.path), "--shard", "0", *mode],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, "CORDON_URL": home.url},
                    check=False,
                )
        finally:
            stop_server(broker, home)
    return _result(ended, home)


def _result(ended: subprocess.CompletedProcess[bytes], home: Home) -> dict[str, Any]:
    lines = ended.stdout.decode(errors="replace").splitlines()
    try:
        result = json.loads(lines[-1]) if lines else {}
    except ValueError:
        result = {}
    if not result or ended.returncode not in (0, 1, _GATE_REFUSED):
        raise Failure(
            Exit.INTERNAL,
            f"The gatekeeper ended with {ended.returncode}.",
            reason="internal",
            advice=f"See {home.log('gatekeeper')}.",
        )
    if ended.returncode == _GATE_REFUSED:
        raise Failure(
            Exit.REFUSED,
            str(result.get("message", "The gatekeeper refuses.")),
            reason=str(result.get("reason", "refused")),
            advice=str(result.get("advice", "")),
            error="rejected",
        )
    return dict(result)
