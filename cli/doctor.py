"""Examine a home: what must hold for it to keep its promises, and what to do where something doesn't."""

from __future__ import annotations

import time

import typer

from .call import Call
from .command import HOME, command, group
from .exits import NAMES, Exit
from .output import note, print_json, progress, show, styled, table
from .render import render_untrusted

NEWEST_BLOCKS = 256  # of a busy home about the last minute; a second's work
VERDICT_STYLES = {"ok": "green", "fault": "red"}


def register(app: typer.Typer) -> None:
    doctor = group(app, "doctor", "Examine a home.", panel=HOME)
    command(doctor, "security", example="cordon doctor security --json")(security)
    command(doctor, "ledger", example="cordon doctor ledger")(ledger)


def security(call: Call) -> int | None:
    """Check keys, files, server and rights of a home. Exit 1 with what to do if something is wrong."""
    from broker_config.doctor import examine

    home = call.existing_home()
    with progress("examining the home"):
        findings = examine(home, time.time())
    faults = [f for f in findings if f.verdict == "fault"]
    if call.json:
        import msgspec

        print_json({"home": str(home.path), "ok": not faults, "checks": msgspec.to_builtins(findings)})
    else:
        show(
            table(
                ("check", "verdict", "what must hold"), [(f.check, styled(f.verdict, VERDICT_STYLES), f.holds) for f in findings]
            )
        )
        for fault in faults:
            show(*(render_untrusted(f"{fault.check}: {what}.") for what in fault.found), f"  → {fault.advice}")
    if not faults:
        return None
    names = ", ".join(f.check for f in faults)
    note(f"cordon: {NAMES[Exit.REFUSED]}: {len(faults)} of {len(findings)} checks found a fault: {names}. {faults[0].advice}")
    return Exit.REFUSED


def ledger(call: Call) -> int | None:
    """Check the newest blocks of the ledger and the state of every store. Exit 1 with findings.

    The cheap part of `cordon verify`, which reads everything.
    """
    from .ledger import verified

    return verified(call, call.existing_home(), -NEWEST_BLOCKS)
