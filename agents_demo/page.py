"""The demo's result as one HTML file: works offline, loads nothing, runs only the script whose hash its policy names. Pure.

Invariant: every text that isn't ours goes through `safe` (fit for HTML text and quoted attributes), and the policy forbids
whatever might slip through: no other script, no style attribute, no request.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any, Final

from .graph import graph
from .report import Safe, worded_by

LOG_ROWS_MAX: Final = 400  # of a side's log; the JSON has them all
_ATTACKS: Final = {"instruction": "a false instruction", "fact": "a plain false fact", "trigger": "a delayed trigger"}
_ICON: Final = '<svg viewBox="0 0 14 14" aria-hidden="true"><g class="{kind}">{shape}</g></svg>'
_DOT: Final = '<circle class="dot" cx="7" cy="7" r="5"/>'
_SQUARE: Final = '<rect class="dot" x="2" y="2" width="10" height="10"/>'
_RINGED: Final = '<circle class="dot" cx="7" cy="7" r="3"/><circle class="ring" cx="7" cy="7" r="6"/>'


def render_page(result: dict[str, Any], safe: Safe) -> str:
    """The whole file, UTF-8 text."""
    style, script = _asset("page.css"), _asset("page.js")
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    tags = _tags(result)
    body = "\n".join(
        [
            f"<h1>{safe(result['title'])}</h1>",
            f'<p class="soft">{len(result["agents"])} agents, each a process of its own, {result["documents"]} documents, '
            f"{len(tags)} of them poisoned, {worded_by(result, safe)}, seed {result['seed']}. "
            "Nobody declares where a text came from.</p>",
            _tiles(result),
            _figure("Without Cordon: a shared file", "without Cordon", result["ungated"], result["agents"], tags, safe),
            _figure("With Cordon", "with Cordon", result["cordon"], result["agents"], tags, safe),
            _legend(),
            _sources(result, tags, safe),
            _calls(result, safe),
            _hold(result, safe),
            _cost(result),
            _log("Everything that happened without Cordon", result["ungated"], safe),
            _log("Everything that happened with Cordon", result["cordon"], safe),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>cordon demo: {safe(result['title'])}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _tags(result: dict[str, Any]) -> dict[str, str]:
    """Short names of the poisoned documents by URI, in the order in which they were read."""
    poisoned = {p["uri"] for p in result["poisoned"]}
    read = dict.fromkeys(e["about"] for e in result["ungated"]["log"] if e["do"] == "read" and e["about"] in poisoned)
    return {uri: f"P{i}" for i, uri in enumerate(read, 1)}


def _asset(name: str) -> str:
    return resources.files("agents_demo").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _tiles(result: dict[str, Any]) -> str:
    plain, gated, closure = result["ungated"], result["cordon"], result["closure"]
    kept = gated["benign_answers_kept"]
    return (
        '<div class="tiles">'
        + _tile(
            plain["risky_calls_on_poison"],
            gated["risky_calls_on_poison"],
            "risky tool calls on poison, without Cordon and with it",
        )
        + _tile(plain["calls_changed"], gated["calls_changed"], f"of {len(gated['calls'])} tool calls changed by the poison")
        + f'<div class="tile"><b class="{_grade(closure["recall"] == 1)}">{closure["recall"]:.0%}</b> of what carries the poison '
        f"was held, {closure['precision']:.0%} of what was held carries it; found in {closure['ms']:.1f} ms</div>"
        + f'<div class="tile"><b class="{_grade(kept["kept"] == plain["benign_answers_kept"]["kept"])}">{kept["kept"]} of '
        f"{kept['asked']}</b> benign questions answered while all of it was held</div></div>"
    )


def _tile(plain: int, gated: int, what: str) -> str:
    return (
        f'<div class="tile"><b><span class="{_grade(plain == 0)}">{plain}</span><span class="arrow">→</span>'
        f'<span class="{_grade(gated == 0)}">{gated}</span></b> {what}</div>'
    )


def _grade(good: bool) -> str:
    return "good" if good else "bad"


def _figure(title: str, name: str, side: dict[str, Any], agents: list[str], tags: dict[str, str], safe: Safe) -> str:
    svg, steps = graph(side, agents, tags, name, safe)
    reached = ", ".join(safe(a) for a in side["reached"]) or "nobody"
    return (
        f'<h2>{title}</h2><p class="soft">{side["contaminated_records"]} of {side["records"]} records carry the poison; it '
        f'reached {reached}.</p><figure data-graph>{svg}<label class="time script" hidden><span>up to step</span>'
        f'<input type="range" min="0" max="{steps}" value="{steps}"></label>'
        '<div class="detail soft script" hidden>Choose a dot to see its text, what it was made of and what came of it.</div>'
        "</figure>"
    )


def _legend() -> str:
    entries = (
        ("", _DOT, "a record"),
        ("poison", _DOT, "a record that carries the poison"),
        ("poison", _RINGED, "held, when written or by the case"),
        ("", _SQUARE, "a tool call"),
        ("poison", _SQUARE, "a tool call on poison"),
        ("none", _SQUARE, "a person was asked instead"),
    )
    items = "".join(f"<li>{_ICON.format(kind=kind, shape=shape)}{text}</li>" for kind, shape, text in entries)
    return f'<ul class="legend">{items}</ul>'


def _sources(result: dict[str, Any], tags: dict[str, str], safe: Safe) -> str:
    texts: dict[str, list[str]] = {}
    for event in result["cordon"]["log"]:
        if event["do"] == "read":
            texts.setdefault(event["about"], []).extend(w["content"] for w in event["wrote"])
    kinds = {p["uri"]: p["poison"] for p in result["poisoned"]}
    rows = [
        [tag, _ATTACKS[kinds[uri]], f"<code>{safe(uri)}</code>", "<br>".join(map(safe, texts.get(uri, ())))]
        for uri, tag in tags.items()
    ]
    return "<h2>What was poisoned</h2>" + _table(["", "attack", "source", "text"], rows)


def _calls(result: dict[str, Any], safe: Safe) -> str:
    rows = []
    for i, (plain, gated) in enumerate(zip(result["ungated"]["calls"], result["cordon"]["calls"], strict=True), 1):
        rows.append([f"T{i}", f"<code>{safe(plain['tool'])}</code>", safe(plain["risk"]), _said(plain, safe), _said(gated, safe)])
    return "<h2>What was done with tools</h2>" + _table(["", "tool", "risk", "without Cordon", "with Cordon"], rows)


def _said(call: dict[str, Any], safe: Safe) -> str:
    if call["value"] is None:
        return "asked a person"
    return f"used <code>{safe(call['value'])}</code>" + (" <strong>(poison)</strong>" if call["on_poison"] else "")


def _hold(result: dict[str, Any], safe: Safe) -> str:
    gated, closure, released = result["cordon"], result["closure"], result["released"]
    names = {k: ", ".join(safe(n) for n in v) or "nobody" for k, v in gated["notices"].items()}
    late = gated["late_children"]
    rows = [
        ["held", f"{closure['members']} records, found in {closure['ms']:.1f} ms and held in {gated['held_ms']:.1f} ms"],
        ["listed as suspects, not held", "{listed}, of which {poisoned} carry the poison".format(**closure["suspects"])],
        ["served while held", f"{gated['served_while_held']} poisoned records"],
        ["restated from the head meanwhile", f"{late['written']}, of which {late['held']} held at once"],
        ["told", names["told"]],
        ["acknowledged", names["acked"]],
        ["released", f"{released['members']} records; all as before: {'yes' if released['ok'] else 'no'}"],
        ["still waiting for a review of its own", f"{released['still_for_review']} held when written"],
        ["second tenant, same names and sources", "untouched" if gated["second_tenant_untouched"] else "changed"],
    ]
    faults = [
        [f["fault"], safe(f["text"]), "<br>".join(map(safe, f["made_from"])), "<br>".join(_edge(e, safe) for e in f["edges"])]
        for f in closure["faults"]
    ]
    return (
        "<h2>The hold, and its end</h2>"
        + _table(["", ""], rows)
        + ("<h2>Where the closure was wrong</h2>" + _table(["", "record", "made from", "edges found"], faults) if faults else "")
    )


def _edge(edge: dict[str, Any], safe: Safe) -> str:
    return f"{safe(edge['kind'])} {edge['confidence'] or 1:.2f} to {'poison' if edge['poisoned'] else 'a true record'}"


def _cost(result: dict[str, Any]) -> str:
    calm = result["benign"]["cordon"]
    kept, calls = calm["benign_answers_kept"], len(calm["calls"])
    return (
        f"<h2>What it cost</h2><p>On a normal day, without poison, Cordon changed {calm['calls_changed']} of {calls} tool calls, "
        f"answered {kept['kept']} of {kept['asked']} questions and held {calm['held_at_write']} records.</p>"
    )


def _log(title: str, side: dict[str, Any], safe: Safe) -> str:
    rows = [
        [
            str(e["n"]), safe(e["agent"]), safe(e["do"]), safe(e["about"]), "<br>".join(safe(w["content"]) for w in e["wrote"]),
            str(len(e["served"])), ", ".join(f"{n} {safe(r).replace('_', ' ')}" for r, n in e["withheld"].items()),
        ]
        for e in side["log"][:LOG_ROWS_MAX]
    ]  # fmt: skip
    table = _table(["step", "agent", "did", "about", "wrote", "was served", "withheld"], rows)
    return f'<details class="log"><summary>{title}</summary>{table}</details>'


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Cells are HTML already."""
    top = "<tr>" + "".join(f"<th>{h}</th>" for h in head) + "</tr>" if any(head) else ""
    return (
        f'<div class="table"><table>{top}'
        + "".join("<tr>" + "".join(f"<td>{c}</td>" for c in r) + "</tr>" for r in rows)
        + "</table></div>"
    )
