"""A small result of the demo, made by hand: what its pages are rendered from."""

from __future__ import annotations

from typing import Any

import msgspec

from agents_demo.orders import Call, Report, Seen, Wrote
from agents_demo.truth import Account


def side(text: str, value: str | None) -> dict[str, Any]:
    """A poisoned record with `text`, a summary of it and a call with `value` that rests on the summary."""
    a = Account()
    a.note("reader", "read", "p", "mail:1", Report(wrote=[Wrote(id="f", content=text, state="held", trust=0.25)]), poison=True)
    a.note("writer", "summarise", "p", text, Report(wrote=[Wrote(id="s", content=text, used=["f"])], withheld={"held": 2}))
    call = Call(tool="wire", risk="privileged", value=value, used=["s"] if value else [])
    a.note("writer", "act", "p", text, Report(call=call, served=[Seen(id="s", content=text)]))
    a.mark("hold")
    a.note("writer", "echo", "p", text, Report(wrote=[Wrote(id="e", content=text, used=["s"], state="held")]))
    a.mark("release")
    return {
        "contaminated_records": len(a.poisoned), "records": 3, "agents_reached": 2, "reached": sorted(a.reached),
        "risky_calls_on_poison": a.risky_calls_on_poison, "calls_changed": 1, "held_at_write": 1, "calls": a.calls,
        "benign_answers_kept": {"kept": 1, "asked": 1}, "marks": msgspec.to_builtins(a.marks),
        "log": msgspec.to_builtins(a.events),
        "held_ids": ["f", "s"], "held_ms": 1.0, "served_while_held": 0, "late_children": {"written": 1, "held": 1},
        "notices": {"told": [text], "acked": []}, "second_tenant_untouched": True,
    }  # fmt: skip


def result(text: str) -> dict[str, Any]:
    """`text` stands wherever an agent, a file or a document may put one."""
    edge = {"kind": "served", "confidence": 0.5, "poisoned": True, "from": text}
    fault = {"id": "x", "fault": "missed", "text": text, "made_from": [text], "edges": [edge]}
    return {
        "seed": 7, "model": text, "title": text, "documents": 1, "projects": ["p"], "agents": ["reader", "writer"],
        "poisoned": [{"uri": "mail:1", "poison": "fact"}],
        "benign": {"ungated": side("t", None), "cordon": side("t", None)},
        "ungated": side(text, text), "cordon": side(text, None),
        "closure": {"precision": 1.0, "recall": 0.5, "ms": 0.2, "members": 2, "by_depth": {"0": 1},
            "suspects": {"listed": 3, "poisoned": 1}, "faults": [fault]},
        "released": {"ok": True, "members": 3, "served_again": 1, "readable": 2, "still_for_review": 1},
        "expectations": [{"name": "n", "expected": 1, "seen": 1, "met": True}],
    }  # fmt: skip
