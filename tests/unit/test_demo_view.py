"""The demo's live view: counts of each run for itself, and no text that could drive the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from agents_demo.orders import Call, Seen, Wrote
from agents_demo.truth import Event
from cli.demo_view import View, view


def event(n: int, agent: str, text: str = "t", poison: bool = False) -> Event:
    wrote = [Wrote(id=f"w{n}", content=text)]
    poisoned = [f"w{n}"] if poison else []
    seen = [Seen(id="w0", content="t")] if n else []
    return Event(n=n, agent=agent, do="summarise", project="p", wrote=wrote, poisoned=poisoned, served=seen, withheld={"held": n})


def shown(told: View) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(told.render())
    return out.getvalue()


def test_it_counts_what_each_agent_wrote_was_served_and_was_not() -> None:
    told = View()
    for e in (event(0, "reader", poison=True), event(1, "planner"), event(2, "planner", poison=True)):
        told.tell(e)
    planner = told.agents["planner"]
    assert (planner.wrote, planner.poisoned, planner.served, planner.served_poison) == (2, 1, 2, 2)
    assert planner.withheld == {"held": 3}
    assert "2 (1)" in shown(told)
    assert "3 held" in shown(told)


def test_a_new_run_begins_at_nothing() -> None:
    told = View()
    told.tell(event(0, "reader", poison=True))
    told.tell(event(0, "writer"))
    assert list(told.agents) == ["writer"]
    assert told.agents["writer"].served_poison == 0


def test_a_call_is_told_and_hostile_text_stays_text() -> None:
    told = View()
    told.tell(event(0, "reader", text="\x1b[2J[red]x"))
    call = Call(tool="pay", risk="privileged", value=None)
    told.tell(Event(n=1, agent="ops", do="act", project="p", call=call))
    page = shown(told)
    assert "\x1b" not in page
    assert "[red]x" in page
    assert "pay: asks a person" in page


def test_nothing_is_drawn_where_no_terminal_is() -> None:
    with view() as watch:
        watch("begins")
        watch(event(0, "reader"))
