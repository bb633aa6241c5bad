"""Memories as an agent sees them: write, query, get."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from .call import Call
from .command import MEMORY, command
from .exits import NAMES, Exit, usage
from .output import DECISION_STYLES, STATE_STYLES, facts, note, print_json, short, show, styled, table
from .render import render_untrusted

if TYPE_CHECKING:
    import msgspec

    from bus import Item, Recall, Receipt

    S = TypeVar("S", bound=msgspec.Struct)

_STDIN: Final = "-"
_CELL_CHARS: Final = 300
_LABELS: Final = "Labels"
_KINDS: Final = (
    "fact, preference, event, rule, procedure, decision, source, tool_experience, relationship, task, emotional_state "
    "or constraint."
)
_ORIGINS: Final = "external, agent_inferred, tool_result, user_stated or human_reviewed. A claim: the credential caps it."
_READERS: Final = "Who may read it: agent:A,role:R,user:U. With several, a reader must match each."
_SCENE: Final = "What the conversation is like now. Checked, but without effect in this version."

Run = Annotated[str, typer.Option(metavar="LABEL", help="Label of the run.", rich_help_panel=_LABELS)]
Task = Annotated[str, typer.Option(metavar="LABEL", help="Label of the task.", rich_help_panel=_LABELS)]
User = Annotated[str, typer.Option(metavar="ID", help="The end user this is about.")]
Intent = Annotated[str, typer.Option(metavar="INTENT", help="What it is for: answer, plan, write, send, execute or configure.")]
Risk = Annotated[
    str,
    typer.Option(
        "--tool-risk",
        metavar="RISK",
        help="Of the tool it drives: none, read_only, writes_local, external_side_effect or privileged.",
    ),
]
AsOf = Annotated[str, typer.Option(metavar="TIME", help="What was known then, as 2026-01-31T12:00:00Z.")]


def register(app: typer.Typer) -> None:
    command(app, "write", example="cordon write 'The staging database uses rotating keys' --kind fact", panel=MEMORY)(write)
    command(app, "query", example="cordon query 'how do we log in to staging?' -k 5", panel=MEMORY)(query)
    command(app, "get", example="cordon get 7h2k9x1q", panel=MEMORY)(get)


def write(
    call: Call,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to remember; - reads it from stdin.")],
    kind: Annotated[str, typer.Option(metavar="KIND", help=_KINDS)] = "fact",
    derived_from: Annotated[
        list[str], typer.Option(metavar="ID", help="A memory it was made from (repeatable); lineage is found without it, too.")
    ] = [],  # noqa: B006 - typer copies it
    evidence: Annotated[list[str], typer.Option(metavar="URI", help="Where it comes from, as mail:8841 (repeatable).")] = [],  # noqa: B006
    supersedes: Annotated[str, typer.Option(metavar="ID", help="The memory that this one replaces.")] = "",
    idempotency_key: Annotated[str, typer.Option(metavar="KEY", help="A retry with it returns the first receipt.")] = "",
    scope: Annotated[str, typer.Option(metavar="SCOPE", help="project, user, task or operational.")] = "project",
    scope_id: Annotated[str, typer.Option(metavar="ID", help="Which user, for scope user.")] = "",
    origin: Annotated[str, typer.Option(metavar="ORIGIN", help=_ORIGINS)] = "",
    method: Annotated[str, typer.Option(metavar="METHOD", help="stated, extracted, summarised or imported.")] = "stated",
    classification: Annotated[str, typer.Option(metavar="CLASS", help="public, internal or restricted.")] = "internal",
    sensitivity: Annotated[str, typer.Option(metavar="LEVEL", help="low or high.")] = "low",
    reader: Annotated[list[str], typer.Option(metavar="CLAUSE", help=_READERS)] = [],  # noqa: B006
    confidence: Annotated[
        float | None, typer.Option(metavar="SHARE", help="How sure you are, 0 to 1; it can only lower trust.")
    ] = None,
    opt_out: Annotated[bool, typer.Option("--opt-out", metavar="", help="Keep it out of the recalls of others.")] = False,
    tool: Annotated[str, typer.Option(metavar="NAME", help="The registered tool it came from.")] = "",
    task_state: Annotated[str, typer.Option(metavar="STATE", help="active, resolved, abandoned or superseded.")] = "",
    valid_from: Annotated[str, typer.Option(metavar="TIME", help="As 2026-01-31T12:00:00Z.")] = "",
    valid_until: Annotated[str, typer.Option(metavar="TIME", help="As 2026-01-31T12:00:00Z.")] = "",
    expires_at: Annotated[str, typer.Option(metavar="TIME", help="As 2026-01-31T12:00:00Z.")] = "",
    ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="How long it lives.")] = None,
    run: Run = "",
    task: Task = "",
    session: Annotated[str, typer.Option(metavar="LABEL", help="Label of the session.", rich_help_panel=_LABELS)] = "",
    trace_id: Annotated[str, typer.Option(metavar="ID", help="Label for your own tracing.", rich_help_panel=_LABELS)] = "",
) -> int | None:
    """Store a memory. The receipt means: on disk, and searchable.

    Its trust follows from its origin, is 0.1 less without --evidence, and is never above that of what it was made from.
    Text that begins with a dash goes after `--`.
    """
    from bus import Draft

    fields: dict[str, Any] = {
        "content": _text(text), "kind": kind, "derived_from": derived_from, "evidence": evidence, "supersedes": supersedes,
        "idempotency_key": idempotency_key, "scope": scope, "scope_id": scope_id, "origin": origin, "method": method,
        "classification": classification, "sensitivity": sensitivity, "readers": [clause.split(",") for clause in reader] or None,
        "claimed_confidence": confidence, "opt_out": opt_out, "tool": tool, "task_state": task_state or None,
        "valid_from": valid_from or None, "valid_until": valid_until or None, "expires_at": expires_at or None, "ttl": ttl,
        "run": run, "task": task, "session": session, "trace_id": trace_id,
    }  # fmt: skip
    draft = _frame(Draft, fields)
    receipt = call.ask_bus(lambda memory: memory.write(draft))
    if call.json:
        print_json(receipt)
    else:
        show_receipt(receipt)
    return None


def query(
    call: Call,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The question; - reads it from stdin.")],
    k: Annotated[int, typer.Option("-k", metavar="N", help="At most so many, 1 to 64.")] = 8,
    intent: Intent = "answer",
    tool_risk: Risk = "none",
    filter: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE", help="kind, origin, agent, scope, classification or task_state, as kind=fact (repeatable)."
        ),
    ] = [],  # noqa: B006
    required_origin: Annotated[list[str], typer.Option(metavar="ORIGIN", help="Only memories of this origin (repeatable).")] = [],  # noqa: B006
    user: User = "",
    scene: Annotated[str, typer.Option(metavar="LABEL", help=_SCENE)] = "",
    history_off: Annotated[
        bool, typer.Option("--history-off", metavar="", help="As if nothing were remembered of the user.")
    ] = False,
    as_of: AsOf = "",
    run: Run = "",
    task: Task = "",
    prompt: Annotated[bool, typer.Option("--prompt", metavar="", help="Print it as labelled blocks for a model.")] = False,
) -> int | None:
    """Ask a question; what may be used for it comes back, best first.

    The stricter --intent and --tool-risk, the more trust a memory needs. What matched and may not be used is counted by
    reason.
    """
    from bus import Query

    fields: dict[str, Any] = {
        "text": _text(text), "k": k, "intent": intent, "tool_risk": tool_risk, "filters": _filters(filter),
        "required_origin": required_origin or None, "user": user, "scene": scene, "history_off": history_off,
        "as_of": as_of or None, "run": run, "task": task,
    }  # fmt: skip
    asked = _frame(Query, fields)
    recall = call.ask_bus(lambda memory: memory.query(asked))
    if call.json:
        print_json(recall)
    elif prompt:
        show(render_untrusted(recall.as_prompt(), limit=1 << 20, form="block"))
    else:
        _show_recall(recall)
    return None


def get(
    call: Call,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Full ids, or their last 8 characters.")],
    intent: Intent = "answer",
    tool_risk: Risk = "none",
    user: User = "",
    as_of: AsOf = "",
    run: Run = "",
    task: Task = "",
) -> int | None:
    """Read memories by id, decided and recorded like a query.

    Exit 5 if some are not here, or not for you: the two can't be told apart.
    """
    fields: dict[str, Any] = {"intent": intent, "tool_risk": tool_risk, "user": user, "run": run, "task": task}
    if as_of:
        fields["as_of"] = as_of
    recall = call.ask_bus(lambda memory: memory.get(ids, **fields))
    if call.json:
        print_json(recall)
    else:
        for item in recall.admitted:
            _show_memory(item)
        _show_rest(recall)
    absent = [id for id in ids if not any(found.endswith(id) for found in recall.ids)]
    if absent:
        shown = render_untrusted(", ".join(absent))
        note(f"cordon: {NAMES[Exit.INCOMPLETE]}: not here, or not for you: {shown}.")
        return Exit.INCOMPLETE
    return None


# --- reading what was typed -------------------------------------------------------------------------
def _text(typed: str) -> str:
    """The argument itself, or stdin for '-': at most what one frame holds and a byte more, so that it is refused and not cut."""
    if typed != _STDIN:
        return typed
    from bus.limits import DRAFT_FRAME_BYTES_MAX

    raw = sys.stdin.buffer.read(DRAFT_FRAME_BYTES_MAX + 1)
    try:
        return raw.decode().removesuffix("\n")
    except UnicodeDecodeError as e:
        raise usage(f"What stdin gave is not UTF-8, from byte {e.start} on.", reason="not_utf8", field="content") from None


def _filters(typed: list[str]) -> dict[str, list[str]]:
    filters: dict[str, list[str]] = {}
    for one in typed:
        key, equals, value = one.partition("=")
        if not equals or not value:
            raise usage(f"--filter {one!r} is not KEY=VALUE.", reason="filter_invalid", field="filters")
        filters.setdefault(key, []).append(value)
    return filters


def _frame(kind: type[S], fields: dict[str, Any]) -> S:
    """A frame of typed-in fields; exit 2 for a value that the field can't have."""
    import msgspec

    from bus.frames import words_of

    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as e:
        what, _, place = str(e).partition(" - at `$.")
        field = place.rstrip("`").partition("[")[0]
        words = ", ".join(words_of(kind, field))
        advice = f"Give one of {words}." if words else "See --help for what it takes."
        raise usage(f"{what}.", reason="bad_field", field=field, advice=advice) from None


# --- showing ----------------------------------------------------------------------------------------
def show_receipt(receipt: Receipt) -> None:
    show(str(receipt))
    if receipt.reasons:
        show(f"reasons: {', '.join(receipt.reasons)}")
    for parent in receipt.parents:
        show(f"parent {short(parent)}")


def _show_recall(recall: Recall) -> None:
    if recall.admitted:
        rows = [
            (
                short(item.memory.id), f"{item.memory.trust:g}", item.memory.origin, render_untrusted(item.memory.actor.name),
                styled(item.decision, DECISION_STYLES), ", ".join(item.constraints),
                render_untrusted(item.memory.content, _CELL_CHARS),
            )
            for item in recall.admitted
        ]  # fmt: skip
        show(table(("id", "trust", "origin", "by", "decision", "constraints", "text"), rows))
    _show_rest(recall)


def _show_rest(recall: Recall) -> None:
    if not recall.admitted:  # why_empty counts what is withheld
        show(str(recall))
    elif recall.withheld:
        show("withheld: " + ", ".join(f"{count} {code}" for code, count in recall.withheld.items()))
    for line in recall.notes:
        show(f"note: {render_untrusted(line)}")


def _show_memory(item: Item) -> None:
    m = item.memory
    parents = ", ".join(f"{n} {kind}" for kind in ("declared", "copied", "served") if (n := getattr(m.lineage, kind)))
    evidence = ", ".join(render_untrusted(e) for e in m.evidence)
    shown = {
        "id": m.id,
        "state": styled(m.state, STATE_STYLES),
        "decision": styled(item.decision, DECISION_STYLES),
        "reasons": ", ".join(item.reasons),
        "constraints": ", ".join(item.constraints) or "none",
        "trust": f"{m.trust:g}, floor {m.trust_floor:g} ({m.origin}, {m.method})",
        "by": render_untrusted(m.actor.name or m.actor.id),
        "kind": f"{m.kind} of {m.project}, {m.classification}",
        "parents": parents or "none",
        "evidence": evidence or "none: sourceless",
        "written": m.written_at,
    }
    show(facts(shown), render_untrusted(m.content, limit=1 << 17, form="block"), "")
