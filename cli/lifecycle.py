"""How long memories live: promote what a task learnt, report what was of use, end what nobody needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .call import Call
from .case_views import show_members
from .cases import required_message
from .command import DESK, MEMORY, Message, command
from .exits import cause_of, usage
from .memories import show_receipt
from .output import facts, print_json, progress, short, show, styled, table
from .render import render_untrusted

if TYPE_CHECKING:
    from bus import Pruned
    from bus.frames import Kind

STYLES: Final = {"plan": "dim", "ended": "yellow", "undone": "green"}
_AGE: Final = re.compile(r"(\d{1,6})([dhms])\Z")
_AGE_DEFAULT: Final = "90d"
_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def register(app: typer.Typer) -> None:
    command(app, "promote", example="cordon promote 7h2k9x1q --as acme/writer", panel=MEMORY)(promote)
    command(app, "report", example="cordon report 7h2k9x1q --as acme/writer", panel=MEMORY)(report)
    command(app, "prune", example="cordon prune --project p1 --older-than 90d --as acme/ops", panel=DESK)(prune)
    command(app, "compact", example="cordon compact repair-12 --project p1 --as acme/ops", panel=DESK)(compact)


def promote(
    call: Call, id: Annotated[str, typer.Argument(metavar="ID", help="A memory of a task: full id, or its last 8 characters.")]
) -> int | None:
    """Have what a task learnt be a memory of its whole project.

    A new memory with the text, evidence and kind of the old one, which it derives from: it is trusted no more, and may be held
    for a review like any write.
    """
    from bus import Conflict

    try:
        receipt = call.ask_bus(lambda memory: memory.promote(id))
    except (Conflict, BaseExceptionGroup) as e:
        became = getattr(cause_of(e), "detail", {}).get("promoted_as")
        if became and not call.json:
            show(f"it became {short(became)}")
        raise
    if call.json:
        print_json(receipt)
    else:
        show_receipt(receipt)
    return None


def report(
    call: Call, ids: Annotated[list[str], typer.Argument(metavar="ID", help="Full ids, or their last 8 characters.")]
) -> int | None:
    """Say which memories were of use: they expire later.

    Only what this agent was served, and never beyond what their kind may live. Reading alone moves nothing.
    """
    reported = call.ask_bus(lambda memory: memory.report(ids))
    if call.json:
        print_json(reported)
    elif reported.extended:
        show(table(("memory", "expires now"), [(short(id), end) for id, end in reported.extended.items()]))
    else:
        show("no end moved: each is late enough, fixed by its writer, or there is none")
    return None


def prune(
    call: Call,
    kind: Annotated[list[str], typer.Option(metavar="KIND", help="Only this kind (repeatable).")] = [],  # noqa: B006
    older_than: Annotated[str, typer.Option(metavar="AGE", help="As 90d, 12h, 30m or 10s.")] = _AGE_DEFAULT,
    plan: Annotated[str, typer.Option(metavar="ID", help="Apply a plan; needs -m.")] = "",
    undo: Annotated[str, typer.Option(metavar="END", help="Have what an end took live on; needs -m.")] = "",
    list_: Annotated[bool, typer.Option("--list", metavar="", help="What was ended before its time.")] = False,
    message: Message = "",
) -> int | None:
    """End what nobody needs: a plan first, then --plan ID.

    Chosen is what is old, names no source and was never served to anybody. What is held, under a legal hold, reviewed, stated by
    a person or has descendants stays, and so do rules, decisions and constraints unless --kind names them. Nothing is erased:
    it has expired, and --undo brings it back.
    """
    if bool(plan) + bool(undo) + list_ > 1:
        raise usage("That is more than one thing to do.", reason="prune_how", advice="Give --plan, --undo or --list alone.")
    if (plan or undo or list_) and (kind or older_than != _AGE_DEFAULT):
        raise usage(
            "--kind and --older-than choose what a new plan has.",
            reason="prune_how",
            advice="Leave them out with --plan, --undo and --list.",
        )
    if list_:
        _listed(call, call.ask_desk(lambda desk: desk.ends()))
        return None
    if plan or undo:
        reason = required_message(message)
        _told(call, call.ask_desk(lambda desk: desk.prune(plan, reason) if plan else desk.undo_end(undo, reason)))
        return None
    seconds, kinds, project = _seconds(older_than), _kinds(kind), call.project_for(call.credential())
    with progress("looking for what nobody needs"):
        found = call.ask_desk(lambda desk: desk.plan_pruning(project, kinds, seconds))
    _planned(call, found)
    return None


def compact(
    call: Call, task: Annotated[str, typer.Argument(metavar="TASK", help="The label of a task that is resolved or abandoned.")]
) -> int | None:
    """Show what a finished task leaves behind, as a plan for `cordon prune --plan`.

    Its task-scoped memories end. What was promoted lives on in the project; rules, decisions and what a person stated or an
    operator accepted stay until they are promoted.
    """
    if not task:  # on the wire no task means what `cordon prune` asks
        raise usage("The task's label is empty.", reason="task_empty", field="task", advice="Name the task that is over.")
    project = call.project_for(call.credential())
    _planned(call, call.ask_desk(lambda desk: desk.plan_compaction(project, task)))
    return None


# --- reading what was typed -----------------------------------------------------------------------------
def _seconds(age: str) -> int:
    found = _AGE.match(age)
    if found is None:
        raise usage(
            f"--older-than {age!r} is not an age.", reason="bad_age", field="older_than", advice="Write it as 90d or 12h."
        )
    return int(found[1]) * _SECONDS[found[2]]


def _kinds(typed: list[str]) -> list[Kind]:
    from bus.frames import KINDS

    known: dict[str, Kind] = {kind: kind for kind in KINDS}
    for kind in typed:
        if kind not in known:
            advice = f"Give one of {', '.join(KINDS)}."
            raise usage(f"--kind {kind!r} is no kind.", reason="bad_field", field="kind", advice=advice)
    return [known[kind] for kind in typed]


# --- showing --------------------------------------------------------------------------------------------
def _planned(call: Call, plan: Pruned) -> None:
    if call.json:
        print_json(plan)
        return
    counted = f"{plan.count:,}" + (f", and {plan.more:,} more in a later plan" if plan.more else "")
    pairs = {
        "project": render_untrusted(plan.project),
        "would end": counted + (f"; {plan.promoted:,} of them live on in the project" if plan.promoted else ""),
        "by kind": _counts(plan.by_kind),
        "by agent": _counts(plan.by_agent),
        "stays": _counts(plan.kept),
        "good until": plan.until or "there is nothing to apply",
    }
    show(facts(pairs))
    show_members(plan.members, with_hops=False)
    if plan.plan:
        show(f"apply it: cordon prune --plan {short(plan.plan)} -m REASON{call.chosen()}")


def _told(call: Call, end: Pruned) -> None:
    if call.json:
        print_json(end)
        return
    pairs = {
        "end": end.end,
        "state": styled(end.state, STYLES),
        "by": render_untrusted(end.by),
        "why": render_untrusted(end.message),
        "memories": f"{end.count:,}" + (f"; {end.left:,} of the plan stay: read, held or over meanwhile" if end.left else ""),
        "ended": end.ended_at,
    } | ({"undone": end.undone_at} if end.undone_at else {})
    show(facts(pairs))
    if end.state == "ended":
        show(f"undo it: cordon prune --undo {short(end.end)} -m REASON{call.chosen()}")


def _listed(call: Call, ends: list[Pruned]) -> None:
    if call.json:
        print_json({"ends": ends})
        return
    rows = [
        (
            short(e.end), styled(e.state, STYLES), render_untrusted(e.why), f"{e.count:,}", e.ended_at, render_untrusted(e.by),
            render_untrusted(e.message, 120),
        )
        for e in ends
    ]  # fmt: skip
    show(table(("end", "state", "what", "memories", "ended", "by", "why"), rows) if rows else "nothing was ended before its time")


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {render_untrusted(name)}" for name, n in found.items()) or "none"
