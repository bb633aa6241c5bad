"""Drills: whether a copy can be restored, how long it takes, and what would be lost."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from .call import Call
from .command import HOME, command
from .exits import usage
from .ledger import walked
from .output import facts, print_json, progress, show, table
from .render import render_untrusted
from .snapshots import findings_exit, named_or_newest


def register(app: typer.Typer) -> None:
    command(app, "drill", example="cordon drill", panel=HOME)(drill)


class DrillKind(StrEnum):
    """See broker_config/drills.py, which isn't loaded before it is needed."""

    FULL = "full"
    SINGLE_USER = "single-user"
    POINT_IN_TIME = "point-in-time"
    CONTAMINATION_ROLLBACK = "contamination-rollback"


def drill(
    call: Call,
    snapshot: Annotated[str, typer.Option("--snapshot", metavar="SNAPSHOT", help="Else the newest.")] = "",
    kind: Annotated[DrillKind | None, typer.Option("--kind", metavar="KIND", help=f"{', '.join(DrillKind)}; else full.")] = None,
    history: Annotated[
        bool, typer.Option("--history", metavar="", help="Show the drills that there were, or those of --kind; run none.")
    ] = False,
) -> int | None:
    """Restore the newest snapshot into a scratch folder and verify it: how long it takes, and what would be lost.

    full: all of it. single-user: the end user with the most memories alone. point-in-time: as of a moment in its middle.
    contamination-rollback: all of it, then a project back to before the newest case, and forth again.

    What was restored is compared with the snapshot event by event. Its history is kept in the home's drills.jsonl. Exit 1 with
    findings, or if it misses a target of cordon.toml (rto_s and rpo_s of its drill table).
    """
    from broker_config.drills import Drill
    from broker_config.drills import history as drilled
    from broker_config.snapshots import Snapshots

    home = call.existing_home()
    if history:
        if snapshot:
            raise usage(
                "--history runs no drill.", reason="history_alone", field="snapshot", advice="Leave --snapshot out, or --history."
            )
        return _show_history(call, [d for d in drilled(home) if kind is None or d.get("kind", DrillKind.FULL) == kind])
    copy = named_or_newest(Snapshots(home), snapshot)
    with progress("restoring") as words:
        done = Drill(home, copy, (kind or DrillKind.FULL).value, lambda told: words(walked(told))).run()
    if call.json:
        print_json(done)
    else:
        lost = done["lost"]
        shown = {"kind": done["kind"], "snapshot": done["snapshot"], "memories": f"{done['memories']:,}"}
        shown |= {"compared": f"{done['facts']:,} events, {done['texts']:,} of them with text"}
        if "rollback" in done:
            rolled = done["rollback"]
            counts = f"{rolled['held']:,} held, {rolled['again']:,} current again"
            shown["rolled back"] = f"{counts}, in {rolled['seconds']:g} s; undone"
        shown["ready after"] = f"{done['seconds']:g} s"
        shown["would be lost"] = f"{lost['seconds']:,} s: {lost['events']:,} events, {lost['memories']:,} of them memories"
        wrong = [*done["findings"], *done["missed"]]
        show(facts({k: render_untrusted(v) for k, v in shown.items()}), *map(render_untrusted, wrong))
        show("" if wrong else "no findings")
    return findings_exit(len(done["findings"]) + len(done["missed"]), "the drill")


def _show_history(call: Call, drills: list[dict[str, Any]]) -> int | None:
    if call.json:
        print_json({"drills": drills})
        return None
    rows = [
        (
            str(d.get("at", "")), str(d.get("kind", "full")), render_untrusted(str(d.get("snapshot", ""))),
            f"{d.get('seconds', 0):g} s", f"{d.get('lost', {}).get('seconds', 0):,} s", "ok" if d.get("ok") else "failed",
        )
        for d in drills
    ]  # fmt: skip
    names = ("at", "kind", "snapshot", "ready after", "would be lost", "verdict")
    show(table(names, rows) if rows else "no drills: run one with `cordon drill`")
    return None
