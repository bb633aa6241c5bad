"""The join of labels: never better than the parents, whatever the order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gate.state.columns import Columns
from gate.state.interned import Interned
from gate.state.tenant import Clauses
from gate.writing.trust import BASE_TRUST, EXPOSED_FLOOR, Own, Stamp, capped_origin, join

PARENTS = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.integers(0, 1000),
        st.integers(0, 5),
        st.integers(0, 2),
        st.integers(0, 1),
        st.booleans(),
        st.lists(st.sampled_from(["agent:a", "agent:b", "role:operator"]), max_size=2),
        st.lists(st.sampled_from(["project:p1", "project:p2", "user:u"]), max_size=2),
    ),
    max_size=5,
)


def world(
    parents: list[tuple[int, int, int, int, int, bool, list[str], list[str]]],
) -> tuple[Columns, Interned[Clauses], Interned[frozenset[str]], list[int]]:
    c, readers, comps = Columns(), Interned[Clauses](()), Interned[frozenset[str]](frozenset())
    for i, (trust, floor, origin, cls, sens, opt_out, who, comp) in enumerate(parents, 1):
        c.eff[i], c.floor[i], c.origin[i], c.cls[i], c.sens[i], c.opt_out[i] = trust, floor, origin, cls, sens, opt_out
        c.readers[i] = readers.number((frozenset(who),) if who else ())
        c.comp[i] = comps.number(frozenset(comp))
        c.oldest[i] = 1_000 + i
    return c, readers, comps, list(range(1, len(parents) + 1))


def own(**changes: object) -> Own:
    values: dict[str, object] = {
        "origin": 3,
        "sourceless": False,
        "confidence": None,
        "cls": 1,
        "sens": 0,
        "opt_out": False,
        "readers": (),
        "comp": frozenset({"project:p1"}),
        "written_ms": 5_000,
        "context_floor": 1000,
        "exposed": False,
    }
    return Own(**(values | changes))  # type: ignore[arg-type]


@given(PARENTS)
def test_a_child_is_never_better_than_any_parent(
    parents: list[tuple[int, int, int, int, int, bool, list[str], list[str]]],
) -> None:
    c, readers, comps, seqs = world(parents)
    s = join(own(), seqs, c, readers, comps)
    for p in seqs:
        assert s.trust <= c.eff[p]
        assert s.floor <= c.floor[p]
        assert s.origin <= c.origin[p]
        assert s.cls >= c.cls[p]
        assert s.sens >= c.sens[p]
        assert s.opt_out >= bool(c.opt_out[p])
        assert set(readers[int(c.readers[p])]) <= set(s.readers)
        assert comps[int(c.comp[p])] <= s.comp
        assert s.oldest_ms <= c.oldest[p]
    assert s.floor <= s.trust


@given(PARENTS)
def test_the_join_does_not_depend_on_the_order_of_parents(
    parents: list[tuple[int, int, int, int, int, bool, list[str], list[str]]],
) -> None:
    c, readers, comps, seqs = world(parents)

    def labels(s: Stamp) -> tuple[object, ...]:
        return s.trust, s.floor, s.origin, s.cls, s.sens, s.opt_out, set(s.readers), s.comp, s.oldest_ms

    assert labels(join(own(), seqs, c, readers, comps)) == labels(join(own(), seqs[::-1], c, readers, comps))


def test_a_claimed_confidence_only_caps() -> None:
    c, readers, comps, _ = world([])
    assert join(own(confidence=100), [], c, readers, comps).trust == 100
    assert join(own(confidence=1000), [], c, readers, comps).trust == BASE_TRUST[3]


def test_a_sourceless_memory_is_worth_less_than_a_sourced_one() -> None:
    c, readers, comps, _ = world([])
    assert join(own(origin=1, sourceless=True), [], c, readers, comps).trust == BASE_TRUST[1] - 100
    assert join(own(origin=1), [], c, readers, comps).trust == BASE_TRUST[1]
    assert join(own(origin=3, sourceless=True), [], c, readers, comps).trust == BASE_TRUST[3]


def test_a_context_floor_goes_to_the_floor_and_not_to_the_trust() -> None:
    c, readers, comps, _ = world([])
    s = join(own(context_floor=200), [], c, readers, comps)
    assert (s.trust, s.floor) == (BASE_TRUST[3], 200)


def test_an_exposed_context_writes_with_a_low_floor() -> None:
    c, readers, comps, _ = world([])
    assert join(own(exposed=True), [], c, readers, comps).floor == EXPOSED_FLOOR
    assert join(own(), [], c, readers, comps).floor > EXPOSED_FLOOR


def test_origin_is_capped_by_the_credential_and_never_claimed_beyond_the_user() -> None:
    assert capped_origin(None, 1, False) == 1
    assert capped_origin(3, 1, False) == 1
    assert capped_origin(0, 1, False) == 0
    assert capped_origin(5, 5, True) == 3, "system and human_reviewed are never given by claim"
    assert capped_origin(2, 2, False) == 1, "tool_result needs a registered tool"
    assert capped_origin(2, 2, True) == 2
