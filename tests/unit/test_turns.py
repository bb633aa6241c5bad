"""Who is next among tenants and contexts."""

from __future__ import annotations

from gate.turns import Turns


def filled(*items: tuple[str, str]) -> Turns[str]:
    turns = Turns[str]()
    for i, (tenant, context) in enumerate(items):
        turns.add(tenant, context.encode(), f"{tenant}/{context}/{i}")
    return turns


def test_one_that_floods_is_served_in_turn_with_the_others() -> None:
    turns = filled(*[("acme", "flood")] * 100, ("acme", "calm"), ("globex", "calm"))
    first = turns.some(4)
    assert [x.rsplit("/", 1)[0] for x in first] == ["acme/flood", "globex/calm", "acme/calm", "acme/flood"]
    assert len(turns.some(1_000)) == 98
    assert not turns


def test_many_contexts_of_a_tenant_have_one_turn_between_them() -> None:
    turns = filled(*[("acme", f"child{i}") for i in range(50)], *[("globex", "one")] * 5)
    assert [x.split("/")[0] for x in turns.some(10)] == ["acme", "globex"] * 5


def test_within_a_context_the_order_of_arrival_stays() -> None:
    turns = filled(("acme", "a"), ("acme", "b"), ("acme", "a"), ("acme", "b"), ("acme", "a"))
    assert [int(x.split("/")[2]) for x in turns.some(5) if "/a/" in x] == [0, 2, 4]
