"""The demo's result as a page that a person wants to read. Pure: result in, text out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Safe = Callable[[str], str]  # makes an agent's or a file's text harmless for where it is printed


def render_text(result: dict[str, Any], safe: Safe) -> str:
    """One screen, with each text that isn't ours passed through `safe`."""
    plain, gated, calm = result["ungated"], result["cordon"], result["benign"]["cordon"]
    lines = [
        safe(result["title"]),
        f"{len(result['agents'])} agents, each a process of its own; {result['documents']} documents, "
        f"{len(result['poisoned'])} of them poisoned; {worded_by(result, safe)}. Nobody declares where a text came from.",
        "",
        f"{'':34}{'shared file':>14}{'Cordon':>14}",
        _row("records that carry the poison", _of(plain), _of(gated)),
        _row("agents that made something of it", plain["agents_reached"], gated["agents_reached"]),
        _row("tool calls that poison changed", _changed(plain), _changed(gated)),
        _row("risky tool calls on poison", plain["risky_calls_on_poison"], gated["risky_calls_on_poison"]),
        _row("held for review when written", plain["held_at_write"], gated["held_at_write"]),
        _row("benign questions answered", _kept(plain), _kept(gated)),
        "",
        f"On a normal day, without poison, Cordon changed {_changed(calm)} tool calls, answered {_kept(calm)} questions and held "
        f"{calm['held_at_write']} records.",
        "",
        "What was done with tools:",
        *(_call(a, b, safe) for a, b in zip(plain["calls"], gated["calls"], strict=True)),
        "",
        *_containment(result),
    ]
    missed = [e for e in result["expectations"] if not e["met"]]
    lines += [f"NOT MET: {e['name']}: {e['seen']}, expected {e['expected']}." for e in missed]
    return "\n".join(lines)


def worded_by(result: dict[str, Any], safe: Safe) -> str:
    """Who words and decides."""
    return f"worded by the model {safe(result['model'])}" if result["model"] else "worded by script"


def _containment(result: dict[str, Any]) -> list[str]:
    gated, closure, released, late = result["cordon"], result["closure"], result["released"], result["cordon"]["late_children"]
    told, acked = gated["notices"]["told"], gated["notices"]["acked"]
    return [
        "Then a person learns that these sources are wrong, and holds them with all that came of them:",
        f"  Held: {closure['members']} records, found in {closure['ms']:.1f} ms, held in {gated['held_ms']:.1f} ms.",
        f"  Of the records that truly carry the poison {closure['recall']:.0%} are held; of what is held "
        f"{closure['precision']:.0%} truly carries it.",
        *_suspects(closure),
        f"  Served while held: {gated['served_while_held']}. Restated from the head meanwhile: {late['written']}, held at once: "
        f"{late['held']}.",
        f"  Told: {', '.join(told) or 'nobody'}; acknowledged: {', '.join(acked) or 'nobody'}.",
        f"  Released again: {released['members']} records, all as before: {'yes' if released['ok'] else 'NO'}; "
        f"still waiting for their own review: {released['still_for_review']}.",
        f"  The second tenant with the same names and sources: {'untouched' if gated['second_tenant_untouched'] else 'CHANGED'}.",
    ]


def _suspects(closure: dict[str, Any]) -> list[str]:
    listed, poisoned = closure["suspects"]["listed"], closure["suspects"]["poisoned"]
    return [f"  Listed as suspects, and not held: {listed}, of which {poisoned} carry the poison."] if listed else []


def _row(name: str, plain: object, gated: object) -> str:
    return f"{name:34}{plain!s:>14}{gated!s:>14}"


def _of(side: dict[str, Any]) -> str:
    return f"{side['contaminated_records']} of {side['records']}"


def _changed(side: dict[str, Any]) -> str:
    return f"{side['calls_changed']} of {len(side['calls'])}"


def _kept(side: dict[str, Any]) -> str:
    kept = side["benign_answers_kept"]
    return f"{kept['kept']} of {kept['asked']}"


def _call(plain: dict[str, Any], gated: dict[str, Any], safe: Safe) -> str:
    def said(call: dict[str, Any]) -> str:
        if call["value"] is None:
            return "asked a person"
        return f"used {safe(call['value'])}" + (" (poison)" if call["on_poison"] else "")

    return f"  {plain['tool']:18}{plain['risk']:22} {said(plain):30} Cordon: {said(gated)}"
