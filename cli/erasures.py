"""Erasing text for ever: plan, ask, agree, receipts, legal holds."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .call import Call
from .case_views import show_members
from .cases import required_message
from .command import DESK, Message, command, group
from .exits import NAMES, Exit, cause_of, usage
from .output import facts, first_of, note, print_json, progress, short, show, styled, table
from .render import render_untrusted

if TYPE_CHECKING:
    from bus import Conflict, Desk, Erasure, LegalHold

WAIT_S: Final = 20.0  # for the stores to be done; most take a second
POLL_S: Final = 0.2
STYLES: Final = {"done": "green", "erasing": "yellow", "pending": "yellow", "no_text": "dim", "plan": "dim"}

ErasureId = Annotated[str, typer.Argument(metavar="ERASURE", help="An erasure: full id, or its last 8 characters.")]
Selectors = Annotated[list[str], typer.Argument(metavar="SELECTOR", help="Ids, agent:NAME, user:ID, run:LABEL or source:URI.")]


def register(app: typer.Typer) -> None:
    command(app, "erase", example="cordon erase 7h2k9x1q -m 'asked for by its subject' --as acme/ops", panel=DESK)(erase)
    receipts = group(app, "erasure", "Receipts of erasures: which store is without the text.", panel=DESK)
    command(receipts, "list", example="cordon erasure list --as acme/ops")(erasure_list)
    command(receipts, "show", example="cordon erasure show 3m5n8p2r --as acme/ops")(erasure_show)
    holds = group(app, "legal-hold", "Keep memories from being erased by one person alone.", panel=DESK)
    command(holds, "place", example="cordon legal-hold place agent:writer -m 'case 12/26' --as acme/ops")(place)
    command(holds, "lift", example="cordon legal-hold lift 3m5n8p2r -m 'case closed' --as acme/ops")(lift)
    command(holds, "list", example="cordon legal-hold list --as acme/ops")(legal_hold_list)


def erase(
    call: Call,
    selector: Selectors = [],  # noqa: B006
    user: Annotated[str, typer.Option(metavar="ID", help="All user-scope memories of an end user.")] = "",
    agent: Annotated[str, typer.Option(metavar="NAME", help="All memories of an agent.")] = "",
    derived: Annotated[bool, typer.Option("--derived", metavar="", help="Also all that came from them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Show what it would erase; change nothing.")] = False,
    agree: Annotated[str, typer.Option(metavar="ID", help="Agree to the request of another person.")] = "",
    message: Message = "",
) -> int | None:
    """Erase the text of memories, for ever.

    Text, evidence and labels are gone from every store; who wrote it, its classification and what came of it stay. Where an open
    case or a legal hold has one of them, a second person must agree. Try --dry-run first: it can't be undone.
    """
    named = [*selector, *([f"user:{user}"] if user else []), *([f"agent:{agent}"] if agent else [])]
    if agree and (named or derived or dry_run or message):
        raise usage("A request already says what to erase, and why.", reason="erase_how", advice="Give --agree ID alone.")
    if not agree and not named:
        raise usage(
            "Nothing was named to erase.",
            reason="selector_empty",
            field="selector",
            advice="Give ids, --user ID or --agent NAME.",
        )
    if dry_run:
        _planned(call, call.ask_desk(lambda desk: desk.plan_erasure(named, derived)), named, derived)
        return None
    if agree:
        receipt = call.ask_desk(lambda desk: desk.agree_to_erase(agree))
    else:
        reason = required_message(message)
        receipt = _asked(call, named, reason, derived)
    return _told(call, _waited(call, receipt))


def _asked(call: Call, named: list[str], reason: str, derived: bool) -> Erasure:
    from bus import Conflict

    try:
        with progress("erasing"):
            return call.ask_desk(lambda desk: desk.erase(named, reason, derived))
    except (Conflict, BaseExceptionGroup) as e:
        cause = cause_of(e)
        if isinstance(cause, Conflict) and cause.reason == "erasure_contested" and not call.json:
            _contested(cause)
        raise


def _contested(e: Conflict) -> None:
    detail = e.detail
    for name, what in (("cases", "open cases"), ("legal_holds", "legal holds")):
        if detail.get(name):
            found = [render_untrusted(str(x)) for x in detail[name]]
            show(f"{what}: {first_of(found, int(detail[f'{name}_count']))}")
    if detail.get("request"):
        show(f"another person agrees with: cordon erase --agree {render_untrusted(str(detail['request']))} --as TENANT/OPERATOR")


def _waited(call: Call, receipt: Erasure) -> Erasure:
    """The receipt when all is done, or after a while."""
    if receipt.state == "done":
        return receipt

    async def until_done(desk: Desk) -> Erasure:
        import anyio

        ends, found = anyio.current_time() + WAIT_S, receipt
        while found.state != "done" and anyio.current_time() < ends:
            await anyio.sleep(POLL_S)
            found = await desk.erasure(receipt.erasure)
        return found

    with progress("waiting for the stores"):
        return call.ask_desk(until_done)


def _told(call: Call, receipt: Erasure) -> int | None:
    if call.json:
        print_json(receipt)
    else:
        show_receipt(receipt)
    if receipt.state != "done":
        note(
            f"cordon: {NAMES[Exit.INCOMPLETE]}: nobody is served the text any more; it goes on by itself: "
            f"see `cordon erasure show {short(receipt.erasure)}`."
        )
        return Exit.INCOMPLETE
    return None


def _planned(call: Call, plan: Erasure, named: list[str], derived: bool) -> None:
    if call.json:
        print_json(plan)
        return
    pairs = {
        "would erase": f"{plan.count:,}" + (f", {plan.derived:,} of them derived" if plan.derived else ""),
        "derived, not erased": f"{plan.left_count:,}"
        + (f", and {plan.elsewhere:,} that you may not see" if plan.elsewhere else ""),
        "open cases": first_of([short(c) for c in plan.cases], plan.cases_count) or "none",
        "legal holds": first_of([short(h) for h in plan.legal_holds], plan.legal_holds_count) or "none",
    }
    show(facts(pairs))
    show_members(plan.members, with_hops=False)
    if plan.left:
        show("came from it, and stays unless you give --derived:")
        show_members(plan.left, with_hops=False)
    again = " ".join([*map(shlex.quote, named), *(["--derived"] if derived else [])])
    second = "; a second person must agree" if plan.cases or plan.legal_holds else ""
    show(f"erase it for ever: cordon erase {again} -m REASON{call.chosen()}{second}")


def show_receipt(receipt: Erasure) -> None:
    people = ((" for ", render_untrusted(receipt.person)), (", with ", render_untrusted(receipt.second)))
    by = render_untrusted(receipt.by) + "".join(word + name for word, name in people if name)
    counted = f"{receipt.count:,}" + (f", {receipt.derived:,} of them derived" if receipt.derived else "")
    pairs = {
        "erasure": receipt.erasure,
        "state": styled(receipt.state, STYLES),
        "by": by,
        "why": render_untrusted(receipt.why),
        "memories": counted + (f", {receipt.elsewhere:,} of them elsewhere" if receipt.elsewhere else ""),
        "erased": receipt.erased_at,
        "done": receipt.done_at or "not yet",
    }
    show(facts(pairs))
    rows = [(s.name, styled(s.state, STYLES), "" if s.state == "no_text" else f"{s.count:,}", s.note) for s in receipt.stores]
    if rows:
        show(table(("store", "state", "count", "what"), rows))
    for line in receipt.pending:
        show(f"pending: {render_untrusted(line)}")
    for line in receipt.out_of_reach:
        show(f"out of reach: {render_untrusted(line)}")


def erasure_list(call: Call) -> int | None:
    """List the tenant's erasures, newest first."""
    found = call.ask_desk(lambda desk: desk.erasures())
    if call.json:
        print_json({"erasures": found})
        return None
    rows = [
        (
            short(e.erasure),
            styled(e.state, STYLES),
            f"{e.count:,}",
            e.erased_at,
            render_untrusted(e.by),
            render_untrusted(e.why, 120),
        )
        for e in found
    ]
    show(table(("erasure", "state", "memories", "erased", "by", "why"), rows) if rows else "no erasures")
    return None


def erasure_show(call: Call, erasure: ErasureId) -> int | None:
    """Show a receipt: what was done in every store, what is pending, what is out of reach."""
    found = call.ask_desk(lambda desk: desk.erasure(erasure))
    if call.json:
        print_json(found)
    else:
        show_receipt(found)
        show_members(found.members, with_hops=False)
    return None


# --- legal holds --------------------------------------------------------------------------------------
def place(call: Call, selector: Selectors, message: Message = "") -> int | None:
    """Keep memories, as far as they exist now, from being erased by one person alone.

    They are read as before: `cordon hold` is what keeps them from being read.
    """
    reason = required_message(message)
    _hold_told(call, call.ask_desk(lambda desk: desk.place_legal_hold(selector, reason)))
    return None


def lift(
    call: Call,
    hold: Annotated[str, typer.Argument(metavar="HOLD", help="A legal hold: full id, or its last 8 characters.")],
    message: Message = "",
) -> int | None:
    """End a legal hold. Only the person who placed it can."""
    reason = required_message(message)
    _hold_told(call, call.ask_desk(lambda desk: desk.lift_legal_hold(hold, reason)))
    return None


def _hold_told(call: Call, hold: LegalHold) -> None:
    if call.json:
        print_json(hold)
        return
    pairs = {
        "legal hold": hold.hold,
        "by": render_untrusted(f"{hold.by} for {hold.person}"),
        "why": render_untrusted(hold.why),
        "memories": f"{hold.count:,}",
        "placed": hold.placed_at,
        "lifted": hold.lifted_at or "no",
    }
    show(facts(pairs))


def legal_hold_list(call: Call) -> int | None:
    """List the tenant's legal holds, the lifted ones too."""
    holds = call.ask_desk(lambda desk: desk.legal_holds())
    if call.json:
        print_json({"holds": holds})
        return None
    rows = [
        (
            short(h.hold), "lifted" if h.lifted_at else "in force", f"{h.count:,}", h.placed_at,
            render_untrusted(h.person), render_untrusted(h.why, 120),
        )
        for h in holds
    ]  # fmt: skip
    show(table(("legal hold", "state", "memories", "placed", "person", "why"), rows) if rows else "no legal holds")
    return None
