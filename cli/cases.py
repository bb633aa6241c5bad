"""Containment: plan and apply a hold, release it, review what was held at write, look at cases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .call import Call
from .case_views import show_case, show_cases, show_members, show_plan
from .command import DESK, Message, command, group
from .exits import NAMES, Exit, usage
from .output import note, print_json, progress, show

if TYPE_CHECKING:
    from bus import Case, Desk

CaseId = Annotated[str, typer.Argument(metavar="CASE", help="A case: full id, or its last 8 characters.")]


def register(app: typer.Typer) -> None:
    command(app, "hold", example="cordon hold 7h2k9x1q --dry-run --as acme/ops", panel=DESK)(hold)
    command(app, "rollback", example="cordon rollback 3m5n8p2r --as acme/ops", panel=DESK)(rollback)
    command(app, "release", example="cordon release 3m5n8p2r -m 'false alarm' --as acme/ops", panel=DESK)(release)
    command(app, "review", example="cordon review 7h2k9x1q --accept -m 'checked' --as acme/ops", panel=DESK)(review)
    cases = group(app, "case", "List and show cases: holds with their reason.", panel=DESK)
    command(cases, "list", example="cordon case list --as acme/ops")(case_list)
    command(cases, "show", example="cordon case show 3m5n8p2r --as acme/ops")(case_show)


def hold(
    call: Call,
    selector: Annotated[list[str], typer.Argument(metavar="SELECTOR", help="Ids, agent:NAME, run:LABEL or source:URI.")] = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Show what it would hold; change nothing.")] = False,
    plan: Annotated[str, typer.Option(metavar="ID", help="Apply a plan that a dry run showed; needs -m.")] = "",
    now: Annotated[bool, typer.Option("--now", metavar="", help="Plan and apply at once; needs -m.")] = False,
    suspects: Annotated[bool, typer.Option("--suspects", metavar="", help="Hold probable descendants too, for a day.")] = False,
    message: Message = "",
) -> int | None:
    """Hold memories and all that came from them.

    Say how: --dry-run shows a plan, --plan ID applies it, --now does both at once. From then on no recall contains what is
    held, until `cordon release`. Exit 3 if the plan is stale: too much has changed since, make a new one.
    """
    _check_one_way(selector, dry_run, plan, now, suspects)
    if dry_run:
        with progress("computing what came from it"):
            planned = call.ask_desk(lambda desk: desk.plan(selector, suspects))
        if call.json:
            print_json(planned)
        else:
            show_plan(planned, with_suspects=suspects, chosen=call.chosen())
        return None
    reason = required_message(message)
    return _held(call, lambda desk: desk.apply(plan, reason) if plan else desk.hold_now(selector, reason, suspects))


def _held(call: Call, apply: Callable[[Desk], Awaitable[Case]]) -> int | None:
    with progress("holding"):
        case = call.ask_desk(apply)
    if call.json:
        print_json(case)
    else:
        show_case(case)
    if case.state == "pending":
        note(f"cordon: {NAMES[Exit.INCOMPLETE]}: all is held, the ledger has not confirmed it yet: see `cordon case show`.")
        return Exit.INCOMPLETE
    return None


def rollback(
    call: Call,
    case: Annotated[str, typer.Argument(metavar="[CASE]", help="A case: full id, or its last 8 characters.")] = "",
    plan: Annotated[str, typer.Option(metavar="ID", help="Apply a plan that was shown; needs -m.")] = "",
    message: Message = "",
) -> int | None:
    """Take a project back to before a case's first root.

    Shows a plan: all that was written into the projects of the case's roots since then would be held, with what came of it,
    and what it superseded is current again. --plan ID applies it, as a case of its own: `cordon release` undoes it. Exit 3 if
    the plan is stale.
    """
    if bool(case) == bool(plan):
        raise usage("Name a case, or a plan with --plan.", reason="hold_how", advice="`cordon rollback CASE` shows a plan first.")
    if plan:
        reason = required_message(message)
        return _held(call, lambda desk: desk.apply_rollback(plan, reason))
    with progress("looking at what was written since"):
        planned = call.ask_desk(lambda desk: desk.plan_rollback(case))
    if call.json:
        print_json(planned)
    else:
        show_plan(planned, with_suspects=False, chosen=call.chosen())
    return None


def release(call: Call, case: CaseId, message: Message = "") -> int | None:
    """Remove exactly this case's holds.

    What another case holds stays held. `cordon case list` has the cases.
    """
    reason = required_message(message)
    released = call.ask_desk(lambda desk: desk.release(case, reason))
    if call.json:
        print_json(released)
    else:
        show_case(released)
    return None


def review(
    call: Call,
    id: Annotated[str, typer.Argument(metavar="ID", help="A memory that was held when it was written; none: list them.")] = "",
    accept: Annotated[bool, typer.Option("--accept", metavar="", help="It may be read from now on.")] = False,
    reject: Annotated[bool, typer.Option("--reject", metavar="", help="It will never be read.")] = False,
    message: Message = "",
) -> int | None:
    """Decide on a memory that was held when it was written, or list those that wait.

    Such a memory looked like an instruction in disguise, or flowed into another project. Give --accept or --reject.
    """
    if not (id or accept or reject or message):
        return _waiting(call)
    if not id:
        raise usage("Name the memory.", reason="id_missing", advice="`cordon review` lists those that wait.")
    if accept == reject:
        raise usage("Decide: --accept or --reject.", reason="verdict_missing")
    verdict: Literal["accept", "reject"] = "accept" if accept else "reject"
    reason = required_message(message)
    done = call.ask_desk(lambda desk: desk.review(id, verdict, reason))
    if call.json:
        print_json(done)
    else:
        show(f"{verdict}ed")
    return None


def _waiting(call: Call) -> int | None:
    found = call.ask_desk(lambda desk: desk.reviews())
    if call.json:
        print_json(found)
        return None
    show_members(found.members, with_hops=False)
    elsewhere = f", {found.elsewhere:,} of them in projects elsewhere" if found.elsewhere else ""
    show(f"{found.count:,} wait for a review{elsewhere}")
    return None


def case_list(call: Call) -> int | None:
    """List the tenant's cases."""
    cases = call.ask_desk(lambda desk: desk.cases())
    if call.json:
        print_json({"cases": cases})
    else:
        show_cases(cases)
    return None


def case_show(
    call: Call,
    case: CaseId,
    csv: Annotated[bool, typer.Option("--csv", metavar="", help="Its members as CSV.")] = False,
) -> int | None:
    """Show a case: who, why, roots, members, and who was told."""
    if not case:  # on the wire no case means all of them
        raise usage("The case is empty.", reason="case_empty", field="case", advice="List cases with `cordon case list`.")
    found = call.ask_desk(lambda desk: desk.case(case))
    if call.json:
        print_json(found)
    else:
        show_case(found, csv=csv)
    return None


def required_message(message: str) -> str:
    """-m, which the record needs; exit 2 without it."""
    from bus.limits import MESSAGE_CHARS_MAX

    if not message.strip():
        raise usage(
            "A reason is required: it stays in the record.", reason="message_missing", field="message", advice="Say why with -m."
        )
    if len(message) > MESSAGE_CHARS_MAX:
        raise usage(
            f"The reason has {len(message):,} characters; {MESSAGE_CHARS_MAX:,} is the most.",
            reason="too_long",
            field="message",
            advice="Shorten it.",
        )
    return message


def _check_one_way(selector: list[str], dry_run: bool, plan: str, now: bool, suspects: bool) -> None:
    if [dry_run, bool(plan), now].count(True) != 1:
        raise usage("Say how: --dry-run, --plan ID or --now.", reason="hold_how", advice="--dry-run changes nothing.")
    if plan and (selector or suspects):
        raise usage(
            "A plan already says what to hold.", reason="hold_how", advice="Give --plan ID without selectors or --suspects."
        )
    if not plan and not selector:
        raise usage(
            "Nothing was named to hold.",
            reason="selector_empty",
            field="selector",
            advice="Give ids, agent:NAME, run:LABEL or source:URI.",
        )
