"""Where a memory came from and where it went: why, trace up, trace down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from .call import Call
from .case_views import show_members
from .command import DESK, command, group
from .exits import usage
from .output import first_of, print_json, progress, short, show
from .render import render_untrusted

if TYPE_CHECKING:
    from bus import Edge, TraceAnswer, WhyAnswer

MemoryId = Annotated[str, typer.Argument(metavar="ID", help="A memory: full id, or its last 8 characters.")]
Hops = Annotated[int | None, typer.Option(metavar="N", min=1, help="No further than N edges.")]
Edges = Annotated[
    list[str], typer.Option("--edge", metavar="KIND", help="Only edges of this kind: declared, copied, served (repeatable).")
]
Dot = Annotated[bool, typer.Option("--dot", metavar="", help="A graph for Graphviz.")]
EDGE_KINDS = ("declared", "copied", "served")


def register(app: typer.Typer) -> None:
    command(app, "why", example="cordon why 7h2k9x1q --as acme/ops", panel=DESK)(why)
    trace = group(app, "trace", "Follow lineage up to the roots or down to the descendants.", panel=DESK)
    command(trace, "up", example="cordon trace up 7h2k9x1q --as acme/ops")(trace_up)
    command(trace, "down", example="cordon trace down 7h2k9x1q --as acme/ops")(trace_down)


def why(
    call: Call,
    id: Annotated[str, typer.Argument(metavar="ID", help="A memory or a recall: full id, or its last 8 characters.")],
    reveal: Annotated[bool, typer.Option("--reveal", metavar="", help="With its text; that is logged.")] = False,
) -> int | None:
    """Explain a memory or a recall: who, when, from what, decided how."""
    answer = call.ask_desk(lambda desk: desk.why(id, reveal=reveal))
    if call.json:
        print_json(answer)
    else:
        _show_why(answer)
    return None


def trace_up(call: Call, id: MemoryId, hops: Hops = None, edge: Edges = [], dot: Dot = False) -> int | None:  # noqa: B006
    """Show what a memory came from.

    Declared: its writer said so. Copied: its words show it. Served: its writer had been served it, and likely used it.
    """
    return _trace(call, id, "up", hops, edge, dot)


def trace_down(call: Call, id: MemoryId, hops: Hops = None, edge: Edges = [], dot: Dot = False) -> int | None:  # noqa: B006
    """Show what came from a memory.

    A hold takes what is reached over declared and copied edges; see `cordon trace up --help` for the kinds.
    """
    return _trace(call, id, "down", hops, edge, dot)


def _trace(call: Call, id: str, direction: Literal["up", "down"], hops: int | None, edges: list[str], dot: bool) -> int | None:
    if not set(edges) <= set(EDGE_KINDS):
        raise usage(f"--edge knows {', '.join(EDGE_KINDS)}.", reason="bad_field", field="edges")
    kinds = cast("list[Literal['declared', 'copied', 'served']]", edges) or None
    with progress("following edges"):
        answer = call.ask_desk(lambda desk: desk.trace(id, direction, hops, kinds))
    if call.json:
        print_json(answer)
    elif dot:
        print(_dot(answer))
    else:
        noun = "ancestor" if direction == "up" else "descendant"
        elsewhere = f", {answer.elsewhere:,} of them in projects you may not see" if answer.elsewhere else ""
        show(f"itself and {answer.count - 1:,} {noun}{'' if answer.count == 2 else 's'}{elsewhere}")
        show_members(answer.nodes)
        _show_edges(answer.edges)
    return None


def _show_edges(edges: list[Edge]) -> None:
    for e in edges:
        sure = "" if e.confidence is None else f" {e.confidence:.2f}"
        show(f"{short(e.from_)} → {short(e.to)} {e.kind}{sure}")


def _dot(answer: TraceAnswer) -> str:
    def quoted(text: str) -> str:
        return render_untrusted(text, form="dot")

    nodes = [f"  {quoted(n.id)} [label={quoted(f'{short(n.id)} {n.agent}')}];" for n in answer.nodes]
    edges = [f"  {quoted(e.from_)} -> {quoted(e.to)} [label={quoted(e.kind)}];" for e in answer.edges]
    return "\n".join(["digraph lineage {", *nodes, *edges, "}"])


def _show_why(answer: WhyAnswer) -> None:
    show(answer.id)
    for sentence in answer.sentences:
        show(f"  {render_untrusted(sentence)}")
    _show_edges(answer.parents)
    if answer.cases:
        show(f"cases: {first_of([short(c) for c in answer.cases], answer.cases_count)}")
    if answer.content is not None:
        show(render_untrusted(answer.content, 1 << 17, form="block"))
