"""The demo's result as a page that a person wants to read. Pure: result in, text out."""

from __future__ import annotations

from typing import Any

_NAMES = {
    "pay_invoice": "pay the Halvorsen invoice",
    "rollback_gateway": "roll the gateway back",
    "clear_cache": "clear the build cache",
}


def render_text(result: dict[str, Any]) -> str:
    """One screen. The result's texts are the package's own documents; ids and counts are the harness's."""
    plain, gated, closure, released = result["ungated"], result["cordon"], result["closure"], result["released"]
    held = gated["notices"]
    lines = [
        f"Five agents, {result['documents']} documents, two of them poisoned: a forged bank change and a wrong rollback version.",
        "Nobody declares where a summary came from. Each role is a process of its own.",
        "",
        f"{'':34}{'shared file':>14}{'Cordon':>14}",
        _row("records that carry the poison", _of(plain, "contaminated_records"), _of(gated, "contaminated_records")),
        _row("agents that made something of it", plain["agents_reached"], gated["agents_reached"]),
        _row("risky tool calls on poison", plain["risky_calls_on_poison"], gated["risky_calls_on_poison"]),
        _row("benign questions answered", _kept(plain), _kept(gated)),
        "",
        "What operations did:",
        *(_call(a, b) for a, b in zip(plain["calls"], gated["calls"], strict=True)),
        "",
        "Then a person learns that both sources are wrong, and holds them with all that came of them:",
        f"  {closure['members']} records in {closure['ms']:.1f} ms; of the records that truly carry the poison "
        f"{closure['recall']:.0%} are held,",
        f"  and {closure['precision']:.0%} of what is held truly carries it. Served while held: {gated['served_while_held']}.",
        f"  Told: {', '.join(held['told']) or 'nobody'}; acknowledged: {', '.join(held['acked']) or 'nobody'}.",
        f"  Released again: {released['members']} records, found as before: {'yes' if released['ok'] else 'no'}.",
        f"  The second tenant with the same names: {'untouched' if gated.get('second_tenant_untouched') else 'CHANGED'}.",
    ]
    return "\n".join(lines)


def _row(name: str, plain: object, gated: object) -> str:
    return f"{name:34}{plain!s:>14}{gated!s:>14}"


def _of(side: dict[str, Any], key: str) -> str:
    return f"{side[key]} of {side['records']}"


def _kept(side: dict[str, Any]) -> str:
    kept = side["benign_answers_kept"]
    return f"{kept['kept']} of {kept['asked']}"


def _call(plain: dict[str, Any], gated: dict[str, Any]) -> str:
    def said(call: dict[str, Any]) -> str:
        if call["value"] is None:
            return "asked a person"
        return f"used {call['value']}" + (" (poison)" if call["on_poison"] else "")

    return f"  {_NAMES.get(plain['tool'], plain['tool']):28} {plain['risk']:22} {said(plain):24} Cordon: {said(gated)}"
