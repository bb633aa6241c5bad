"""Closure = reachability with least depths: against a ten-line oracle, and against DuckDB's recursion."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate.containment.closure import NARROW, Adjacency, EdgeTo
from gate.projections.lineage import LineageStore
from gate.projections.lineage_rows import EdgeLine, Rows

Edges = list[tuple[int, int, int]]  # parent, child, kind


def breadth_first(edges: Edges, roots: Collection[int], kinds: Collection[int], hops: int | None) -> dict[int, int]:
    """The oracle: node → depth."""
    depth = dict.fromkeys(roots, 0)
    level = set(roots)
    while level and (hops is None or depth[next(iter(level))] < hops):
        reached = {dst for src, dst, kind in edges if src in level and kind in kinds} - depth.keys()
        depth |= dict.fromkeys(reached, depth[next(iter(level))] + 1)
        level = reached
    return depth


def both_ways(edges: Edges) -> tuple[Adjacency, Adjacency]:
    down, up = Adjacency("down"), Adjacency("up")
    for src, dst, kind in edges:
        down.add(src, dst, kind, 255)
        up.add(src, dst, kind, 255)
    return down, up


def as_dict(graph: Adjacency, roots: Collection[int], kinds: Collection[int] | None, hops: int | None) -> dict[int, int]:
    nodes, depth = graph.closure(roots, kinds, hops)
    assert nodes.dtype == depth.dtype == np.int32
    assert (np.diff(nodes) > 0).all(), "each node once, ascending"
    return dict(zip(nodes.tolist(), depth.tolist(), strict=True))


@st.composite
def graphs(draw: st.DrawFn, nodes_max: int) -> tuple[Edges, list[int], list[int], int | None]:
    nodes = draw(st.integers(2, nodes_max))
    ends = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda pair: pair[0] != pair[1])
    pairs = draw(st.lists(ends, max_size=3 * nodes))
    edges = [(min(pair), max(pair), draw(st.integers(0, 3))) for pair in pairs]
    roots = draw(st.lists(st.integers(0, nodes + 3), min_size=1, max_size=4))
    kinds = draw(st.lists(st.integers(0, 3), unique=True))
    return edges, roots, kinds, draw(st.none() | st.integers(0, 5))


@given(graphs(40))
def test_a_closure_is_reachability_with_least_hops_both_ways(case: tuple[Edges, list[int], list[int], int | None]) -> None:
    edges, roots, kinds, hops = case
    down, up = both_ways(edges)
    assert as_dict(down, roots, kinds, hops) == breadth_first(edges, roots, kinds, hops)
    reverse = [(dst, src, kind) for src, dst, kind in edges]
    assert as_dict(up, roots, kinds, hops) == breadth_first(reverse, roots, kinds, hops)


@pytest.mark.parametrize("seed", range(6))
def test_a_wide_closure_is_reachability_too(seed: int) -> None:
    """Wide enough for the numpy path, with lists long enough to leave it."""
    random = np.random.default_rng(seed)
    n = 3_000
    parents = random.integers(0, np.maximum(1, np.arange(1, n) // random.integers(1, 4, n - 1)), n - 1)
    edges = [(int(parent), child, int(random.integers(0, 3))) for child, parent in enumerate(parents, 1)]
    edges += [(int(a), int(b), 1) for a, b in np.sort(random.integers(0, n, (2_000, 2)), axis=1) if a < b]
    edges += [(7, child, 0) for child in range(1_000, 1_500)]
    down, up = both_ways(edges)
    roots = list(range(2 * NARROW))
    for kinds, hops in (([0, 1, 2], None), ([0, 2], None), ([0, 1], 1), ([0, 1, 2], 3)):
        assert as_dict(down, roots, kinds, hops) == breadth_first(edges, roots, kinds, hops)
    reverse = [(dst, src, kind) for src, dst, kind in edges]
    assert as_dict(up, range(n - 300, n), [0, 1], None) == breadth_first(reverse, range(n - 300, n), [0, 1], None)


@settings(max_examples=15, deadline=None)
@given(graphs(30))
def test_closures_agree_with_duckdb(case: tuple[Edges, list[int], list[int], int | None]) -> None:
    edges, roots, kinds, hops = case
    down, up = both_ways(edges)
    params = {"tenant": 1, "roots": roots, "kinds": kinds, "hops": 1 << 20 if hops is None else hops}

    async def oracle(store: LineageStore, name: str) -> dict[int, int]:
        return dict(await store.query(name, params))

    async def scenario(folder: Path) -> None:
        store = LineageStore(folder / "lineage.duckdb", {"LEDGER": "one"})
        try:
            foreign = [EdgeLine(2, node, node + 1, 0, 255) for node in range(30)]
            store.put("LEDGER", 1, Rows(edge=[*(EdgeLine(1, src, dst, kind, 255) for src, dst, kind in edges), *foreign]))
            await store.wait("LEDGER", 1, 10)
            assert await oracle(store, "closure_down") == as_dict(down, roots, kinds, hops)
            assert await oracle(store, "closure_up") == as_dict(up, roots, kinds, hops)
        finally:
            store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


def test_a_hop_limit_counts_hops_exactly() -> None:
    down, _ = both_ways([(n, n + 1, 0) for n in range(10)])
    for hops in range(11):
        assert as_dict(down, [0], None, hops) == {n: n for n in range(hops + 1)}


def test_an_edge_that_does_not_go_forward_is_refused_and_one_that_does_is_taken() -> None:
    graph = Adjacency("down")
    for src, dst in ((5, 5), (6, 5), (-1, 5)):
        with pytest.raises(ValueError, match="older"):
            graph.add(src, dst, 0, 255)
    assert graph.edges == 0
    graph.add(4, 5, 0, 255)
    assert graph.edges == 1


def test_edges_keep_kind_and_confidence_in_the_order_they_came() -> None:
    down, up = Adjacency("down"), Adjacency("up")
    for graph in (down, up):
        graph.add(1, 5, 0, 255)
        graph.add(1, 7, 2, 140)
        graph.add(3, 7, 1, 0)
    assert down.edges_of(1) == [EdgeTo(5, 0, 255), EdgeTo(7, 2, 140)]
    assert up.edges_of(7) == [EdgeTo(1, 2, 140), EdgeTo(3, 1, 0)]
    assert down.edges_of(7) == down.edges_of(10**6) == up.edges_of(1) == []


def test_a_root_without_edges_is_its_own_closure() -> None:
    down, _ = both_ways([(1, 2, 0)])
    assert as_dict(down, [10**6, 2], None, None) == {2: 0, 10**6: 0}
    assert as_dict(down, [], None, None) == {}
    with pytest.raises(ValueError, match="from 0"):
        down.closure([-1])


def test_a_graph_grows_while_another_thread_takes_closures() -> None:
    """What was there when a closure began is in it; what comes meanwhile never breaks it."""
    graph = Adjacency("down")
    for n in range(2_000):
        graph.add(0, n + 1, 0, 255)
    stop, sizes, errors = threading.Event(), list[int](), list[BaseException]()

    def trace() -> None:
        try:
            while not stop.is_set():
                sizes.append(len(graph.closure([0]).nodes))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=trace)
    thread.start()
    for n in range(2_000, 60_000):
        graph.add(n % 1_000, n + 1, 0, 255)
    while not sizes and not errors:
        pass
    stop.set()
    thread.join()
    assert not errors
    assert all(2_001 <= size <= 60_001 for size in sizes)
    assert sizes == sorted(sizes)
    assert len(graph.closure([0]).nodes) == 60_001
