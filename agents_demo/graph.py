"""The spread of a run as SVG: a lane for each agent, time from left to right, a record as a dot, what it was made of as a line.

Pure. Every text that isn't ours goes through `safe`, which must make it fit for HTML text and quoted attributes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from .report import Safe

LEFT, RIGHT, TOP, BOTTOM = 104, 48, 34, 30  # px around the lanes
LANE_H: Final = 62
COLUMN_W: Final = 19
DOT_R: Final = 5.2
STACK_H: Final = 15  # between records of one step
TITLE_CHARS: Final = 600
SHOWN: Final = frozenset({"record", "read", "summarise", "rewrite", "repeat", "plan", "code", "review", "act", "echo"})
_VERBS: Final = {
    "record": "recorded", "read": "read", "summarise": "summarised", "rewrite": "rewrote its own summary", "repeat": "repeated",
    "plan": "planned", "code": "coded", "review": "reviewed", "act": "acted", "echo": "said again from its head",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    x: float
    y: float
    poisoned: bool


@dataclass(slots=True)
class Drawing:
    """What has been drawn: edges lie under the dots."""

    places: dict[str, Place] = field(default_factory=dict)
    edges: list[str] = field(default_factory=list)
    dots: list[str] = field(default_factory=list)


def graph(side: dict[str, Any], agents: list[str], tags: dict[str, str], name: str, safe: Safe) -> tuple[str, int]:
    """(SVG, number of steps). tags: short names of the poisoned documents by URI. name: tells two graphs of a page apart."""
    events = [e for e in side["log"] if e["do"] in SHOWN and (e["wrote"] or e["call"])]
    marks = {m["what"]: sum(e["n"] < m["n"] for e in events) for m in side["marks"]}
    gaps = sorted(marks.values())
    held = set(side.get("held_ids", ()))
    width = LEFT + RIGHT + COLUMN_W * (len(events) + 2 * len(gaps))
    height = TOP + LANE_H * len(agents) + BOTTOM
    drawing = Drawing()
    calls = 0
    for column, event in enumerate(events):
        x = LEFT + COLUMN_W * (column + 0.5 + 2 * sum(g <= column for g in gaps))
        y = TOP + LANE_H * (agents.index(event["agent"]) + 0.5)
        if event["call"]:
            calls += 1
            _call(drawing, event, column, x, y, calls, safe)
        made_from = [_call_id(calls)] if event["call"] else None
        _records(drawing, event, column, x, y, made_from, held, tags, safe)
    lanes = [_lane(i, agent, width, safe) for i, agent in enumerate(agents)]
    lines = [_mark(what, at, LEFT + COLUMN_W * (at + 2 * i + 1), height) for i, (what, at) in enumerate(marks.items())]
    axis = f'<text class="small" x="{LEFT}" y="{height - 10}">time: one step after the other →</text>'
    parts = "".join([*lanes, axis, *lines, *drawing.edges, *drawing.dots])
    label = f"Spread of the poison {safe(name)}"
    return f'<svg viewBox="0 0 {width} {height}" role="group" aria-label="{label}">{parts}</svg>', len(events)


def _records(
    drawing: Drawing,
    event: dict[str, Any],
    n: int,
    x: float,
    y: float,
    made_from: list[str] | None,
    held: set[str],
    tags: dict[str, str],
    safe: Safe,
) -> None:
    """The dots of one step, one below the other, and the lines from what they were made of (None: what they used)."""
    count = len(event["wrote"])
    for i, wrote in enumerate(event["wrote"]):
        at = Place(x, y + STACK_H * (i - (count - 1) / 2) - (8 if event["call"] else 0), wrote["id"] in event["poisoned"])
        drawing.places[wrote["id"]] = at
        _edges(drawing, made_from or wrote["used"], wrote["id"], at, n, safe)
        ring = wrote["id"] in held or wrote["state"] == "held"
        drawing.dots.append(
            f'<g class="node{" poison" if at.poisoned else ""}" tabindex="0" data-n="{n}" data-id="{safe(wrote["id"])}">'
            f"<title>{_title(event, wrote, held, safe)}</title>"
            f'<circle class="dot" cx="{at.x:.1f}" cy="{at.y:.1f}" r="{DOT_R}"/>'
            + (f'<circle class="ring" cx="{at.x:.1f}" cy="{at.y:.1f}" r="{DOT_R + 3.4}"/>' if ring else "")
            + "</g>"
        )
    if event["do"] == "read" and event["about"] in tags:
        top = y - STACK_H * (count - 1) / 2 - DOT_R - 7
        drawing.dots.append(
            f'<text class="tag" data-n="{n}" text-anchor="middle" x="{x:.1f}" y="{top:.1f}">{tags[event["about"]]}</text>'
        )


def _call(drawing: Drawing, event: dict[str, Any], n: int, x: float, y: float, number: int, safe: Safe) -> None:
    """The square of a tool call, under what it wrote."""
    call, place = event["call"], Place(x, y + 10, event["on_poison"])
    id_ = _call_id(number)
    drawing.places[id_] = place
    _edges(drawing, call["used"], id_, place, n, safe)
    kind = "none" if call["value"] is None else "poison" if place.poisoned else ""
    said = "asked a person instead" if call["value"] is None else f"called with {safe(call['value'])}"
    drawing.dots.append(
        f'<g class="node {kind}" tabindex="0" data-n="{n}" data-id="{id_}">'
        f"<title>Tool call {number}: {safe(call['tool'])} ({safe(call['risk'])}), {said}{_withheld(event, safe)}</title>"
        f'<rect class="dot" x="{x - 5.5:.1f}" y="{place.y - 5.5:.1f}" width="11" height="11"/>'
        f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{place.y + 17:.1f}">T{number}</text></g>'
    )


def _call_id(number: int) -> str:
    return f"call {number}"


def _edges(drawing: Drawing, used: list[str], id_: str, to: Place, n: int, safe: Safe) -> None:
    for source in used:
        start = drawing.places.get(source)
        if start is None:
            continue
        bend = min(140.0, (to.x - start.x) * 0.45)
        path = (
            f"M{start.x:.1f},{start.y:.1f} C{start.x + bend:.1f},{start.y:.1f} {to.x - bend:.1f},{to.y:.1f} {to.x:.1f},{to.y:.1f}"
        )
        poison = " poison" if start.poisoned else ""
        drawing.edges.append(
            f'<path class="edge{poison}" data-n="{n}" data-from="{safe(source)}" data-to="{safe(id_)}" d="{path}"/>'
        )


def _title(event: dict[str, Any], wrote: dict[str, Any], held: set[str], safe: Safe) -> str:
    """What a pointer or a click tells."""
    facts = ["carries the poison" if wrote["id"] in event["poisoned"] else "true"]
    if wrote["trust"] is not None:
        facts.append(f"trust {wrote['trust']:g}, {safe(wrote['origin'])}, {len(wrote['parents'])} parents found")
    if wrote["state"] == "held":
        facts.append("held when written: " + safe(", ".join(wrote["reasons"])))
    elif wrote["id"] in held:
        facts.append("held by the case")
    head = f"{safe(event['agent'])} {_VERBS[event['do']]} · {' · '.join(facts)}{_withheld(event, safe)}"
    return f"{head}\n{safe(wrote['content'][:TITLE_CHARS])}"


def _withheld(event: dict[str, Any], safe: Safe) -> str:
    counts = ", ".join(f"{n} {safe(reason).replace('_', ' ')}" for reason, n in event["withheld"].items())
    return f" · withheld from it: {counts}" if counts else ""


def _lane(i: int, agent: str, width: float, safe: Safe) -> str:
    y = TOP + LANE_H * i
    band = f'<rect class="lane" x="0" y="{y}" width="{width}" height="{LANE_H}"/>' if i % 2 == 0 else ""
    return f'{band}<text x="12" y="{y + LANE_H / 2 + 4}">{safe(agent)}</text>'


def _mark(what: str, n: int, x: float, height: int) -> str:
    side = f'text-anchor="{"end" if what == "hold" else "start"}" x="{x - 5 if what == "hold" else x + 5:.1f}"'
    return (
        f'<line class="mark" data-n="{n}" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{height - BOTTOM + 4}"/>'
        f'<text class="marked" data-n="{n}" {side} y="18">{what}</text>'
    )
