"""What the demo counts as true: who made what of the poison."""

from __future__ import annotations

from agents_demo.orders import Call, Report, Seen, Wrote
from agents_demo.truth import Account, overlap


def account() -> Account:
    """A false record f, a true one t, a summary s of f."""
    made = Account()
    made.note("reader", "read", "p", "mail:1", Report(wrote=[Wrote(id="f", content="false")]), poison=True)
    made.note("reader", "read", "p", "page", Report(wrote=[Wrote(id="t", content="true")]))
    made.note("summariser", "summarise", "p", "", Report(wrote=[Wrote(id="s", content="again", used=["f"])]))
    return made


def act(made: Account, used: list[str], risk: str, value: str | None = "4471-9983") -> None:
    made.note("operations", "act", "p", "", Report(call=Call(tool="wire_transfer", risk=risk, value=value, used=used)))


def test_what_is_made_of_poison_is_poisoned_and_what_only_saw_it_is_not() -> None:
    made = account()
    seen = [Seen(id="f", content="false"), Seen(id="t", content="true")]
    made.note("planner", "plan", "p", "", Report(wrote=[Wrote(id="p", content="plan", used=["t"])], served=seen))
    assert made.poisoned == {"f", "s"}
    assert made.reached == {"reader", "summariser"}


def test_poison_is_followed_over_several_records() -> None:
    made = account()
    made.note("planner", "plan", "p", "", Report(wrote=[Wrote(id="p", content="plan", used=["s", "t"])]))
    assert made.poisoned == {"f", "s", "p"}
    assert made.by_project(made.poisoned) == {"p": ["f", "p", "s"]}


def test_a_call_on_poison_is_risky_from_external_effects_on() -> None:
    made = account()
    act(made, ["s"], "external_side_effect")
    act(made, ["s"], "writes_local")
    act(made, ["t"], "external_side_effect")
    act(made, [], "privileged", value=None)
    assert made.risky_calls_on_poison == 1
    assert [c["on_poison"] for c in made.calls] == [True, True, False, False]
    assert made.reached == {"operations", "reader", "summariser"}


def test_precision_and_recall_are_told_apart() -> None:
    assert overlap({"a", "b"}, {"a"}) == (0.5, 1.0)
    assert overlap({"a"}, {"a", "b"}) == (1.0, 0.5)
    assert overlap(set(), set()) == (1.0, 1.0)
