"""The ledger against what was made of it: rebuild and verify."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .call import Call
from .command import command
from .exits import NAMES, Exit, Failure, usage
from .homes import ask_gatekeeper
from .output import facts, note, print_json, progress, show
from .render import render_untrusted

if TYPE_CHECKING:
    from broker_config.gate_runs import Ended
    from broker_config.home import Home

_GATE_REFUSED: Final = 65  # the gatekeeper's own code for "the ledger or a store is not as it should be"
_GATE_UNAVAILABLE: Final = 69  # "ask again later"


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
    from broker_config import gate_runs

    mode = ["--rebuild", *(["--accept-ledger", accept_ledger] if accept_ledger else [])]
    with progress("replaying the ledger") as words, gate_runs.broker_for(home):
        result = _result(gate_runs.run_gate(home, *mode, say=lambda at: words(walked(at))), home)
    if call.json:
        print_json(result)
    else:
        show(f"{result['replayed']:,} events replayed to position {result['position']:,} in {result['seconds']:g} s")
    return None


def verify(
    call: Call,
    begin: Annotated[int, typer.Option("--from", metavar="BLOCK", min=1, help="From this block of the ledger on.")] = 1,
    end: Annotated[int, typer.Option("--to", metavar="BLOCK", min=0, help="Up to this block; 0 = the last.")] = 0,
    tenant: Annotated[str, typer.Option("--tenant", metavar="TENANT", help="One tenant's chain and stores alone.")] = "",
) -> int | None:
    """Read the whole ledger again and compare everything that was made of it. Exit 1 with findings.

    It runs beside a home that serves, or while it is down; nothing is changed. With --from or --to only chain, bodies and
    catalogs of those blocks are compared: the rest needs all of them.
    """
    from broker_config.trust import Trust

    if end and begin > end:
        raise usage(f"There is no block from {begin} to {end}.", reason="range_empty", advice="Give --from the smaller number.")
    home = call.existing_home()
    account = Trust(home, time.time).tenant(tenant).account if tenant else ""
    return verified(call, home, begin, end, account)


def verified(call: Call, home: Home, begin: int, end: int = 0, account: str = "") -> int | None:
    """Verify these blocks (see gate_runs.verify) and print what was found."""
    from broker_config import gate_runs
    from broker_config.supervisor import read_status

    now = read_status(home)
    if now is not None and now.state == "ready":
        ask_gatekeeper(call, now)  # a hung one is named at once
    with progress("reading the ledger") as words:
        ended = gate_runs.verify(home, begin=begin, end=end, account=account, say=lambda at: words(walked(at)))
    return _tell(call, _result(ended, home))


def _tell(call: Call, result: dict[str, Any]) -> int | None:
    """Print what a verification found."""
    findings = [str(f) for f in result.get("findings", [])]
    if call.json:
        print_json(result)
    else:
        counts = {name: f"{value:,}" for name, value in result.items() if isinstance(value, (int, float)) and name != "ok"}
        show(facts(counts), *(render_untrusted(f) for f in findings), "no findings" if not findings else "")
    if findings or not result.get("ok"):
        count = result.get("findings_count", len(findings))
        note(f"cordon: {NAMES[Exit.REFUSED]}: verify has {count} finding{'' if count == 1 else 's'}.")
        return Exit.REFUSED
    return None


def walked(at: dict[str, Any]) -> str:
    """The words of a progress."""
    of = at.get("of", 0)
    return f"{at.get('stage', '')}: block {at.get('done', 0):,} of {of:,}" if of > 1 else f"comparing {at.get('stage', '')}"


def _is_up(home: Home) -> bool:
    from broker_config.supervisor import read_status

    return read_status(home) is not None


def _result(ended: Ended, home: Home) -> dict[str, Any]:
    """What a run of the gatekeeper gave; its refusal is raised."""
    if ended.code in (_GATE_REFUSED, _GATE_UNAVAILABLE) and ended.last:
        kind, error = (Exit.REFUSED, "rejected") if ended.code == _GATE_REFUSED else (Exit.UNAVAILABLE, "unavailable")
        raise Failure(
            kind,
            str(ended.last.get("message", "The gatekeeper refuses.")),
            reason=str(ended.last.get("reason", "refused")),
            advice=str(ended.last.get("advice", "")),
            error=error,
        )
    if ended.code not in (0, 1) or not ended.last:
        raise Failure(
            Exit.INTERNAL,
            f"The gatekeeper ended with {ended.code}.",
            reason="internal",
            advice=f"See {home.log('gatekeeper')}.",
        )
    return ended.last
