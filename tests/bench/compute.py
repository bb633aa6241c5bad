"""What is computed for a question, a draft and a hold, in this process: policy and gate, redaction and screening, closures."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from gate.containment.closure import Adjacency
from gate.model.embedder import StaticEmbedder
from gate.model.network import Gate
from gate.reading.admit import Admission
from gate.reading.ask import Ask
from gate.reading.retrieve import Candidates, Shelves, candidates
from gate.writing.redact import redact
from gate.writing.screen import screen

from .memory_state import InMemory
from .rows import Budget, Row
from .texts import Texts

MEMORIES: Final = 10_000
DRAFT_CHARS: Final = 500
BATCH: Final = 16
EDGES_A_NODE: Final = 3.2  # what agents' writes had in the spike
CLOSURES: Final = {10_000: (500, 5_000), 100_000: (5_000,), 1_000_000: (50, 5_000, 118_000)}
CLOSURE_BUDGET_MS: Final = {(1_000_000, 5_000): 5.0, (1_000_000, 118_000): 120.0}


def timed(fn: Callable[[], object], n: int) -> tuple[float, float]:
    """(p50, p99) in milliseconds after a tenth of `n` calls to warm up."""
    times = []
    for i in range(n + n // 10):
        start = time.perf_counter()
        fn()
        if i >= n // 10:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times), sorted(times)[int(len(times) * 0.99)]


async def decide(big: bool) -> AsyncIterator[Row]:
    """Policy, gate and the choice of the page for 64 candidates of one question, and of sixteen questions at once."""
    embedder = StaticEmbedder()
    state, texts = InMemory(embedder), Texts(1)
    project, index = state.add("p1", [texts.memory() for _ in range(MEMORIES)])
    admission = Admission(embedder, Gate.load(embedder_id=embedder.id))
    shelves = Shelves(project, (), {project.number: index})
    for batch in (1, BATCH):
        asks = [state.ask("p1", texts.question()) for _ in range(batch)]
        vectors = embedder.encode([a.text for a in asks])
        found, _ = candidates(state.tenant, project, shelves, asks, vectors, state.now_ms)

        def once(asks: list[Ask] = asks, vectors: npt.NDArray[np.float32] = vectors, found: Candidates = found) -> None:
            fresh = [state.ask("p1", a.text) for a in asks]
            admission.decide(state.tenant, project, shelves, fresh, vectors, found, state.now_ms)

        p50, p99 = timed(once, 300)
        each = len(found.seqs) / batch
        yield Row(
            bench="decide",
            name=f"policy + gate, {each:.0f} candidates, {batch} question{'s' * (batch > 1)} at once",
            value=p50 / batch,
            unit="ms",
            budget=Budget("<=", 0.5),
            note=f"a question, hot; p99 {p99 / batch:.2f} ms",
        )


async def screening(big: bool) -> AsyncIterator[Row]:
    """Redaction and screening of a draft of 500 characters, in batches of sixteen different ones."""
    texts = Texts(2)
    drafts = [texts.memory(DRAFT_CHARS) for _ in range(BATCH)]
    p50, p99 = timed(lambda: [screen(redact(d).text, origin=1) for d in drafts], 200)
    only, _ = timed(lambda: [redact(d) for d in drafts], 200)
    yield Row(
        bench="screen",
        name=f"redaction + screening, {DRAFT_CHARS} characters",
        value=p50 / BATCH,
        unit="ms",
        budget=Budget("<=", 0.5),
        note=f"redaction alone {only / BATCH:.3f}; p99 of a batch {p99 / BATCH:.3f}",
    )


async def closure(big: bool) -> AsyncIterator[Row]:
    """Closures in graphs of 10,000 to a million nodes, 3.2 edges a node, most parents near and some far."""
    for nodes, sizes in CLOSURES.items():
        graph = _graph(nodes)
        for size in sizes:
            root, reached = _root_of(graph, nodes, size)
            p50, p99 = timed(lambda root=root, graph=graph: graph.closure([root]), 30)  # type: ignore[misc]
            limit = CLOSURE_BUDGET_MS.get((nodes, size))
            yield Row(
                bench="closure",
                name=f"closure of {reached:,} of {nodes:,} nodes",
                value=p50,
                unit="ms",
                budget=Budget("<=", limit) if limit else None,
                note=f"{graph.edges:,} edges; p99 {p99:.2f} ms",
            )


def _graph(nodes: int) -> Adjacency:
    rng, edges = np.random.default_rng(1), int(nodes * EDGES_A_NODE)
    children = np.arange(1, edges + 1) * nodes // (edges + 1)
    parents = np.maximum(0, children - rng.zipf(1.3, edges).clip(1, 40_000))
    graph = Adjacency("down")
    for parent, child in zip(parents.tolist(), children.tolist(), strict=True):
        if parent < child:
            graph.add(parent, child, 1, 255)
    return graph


def _root_of(graph: Adjacency, nodes: int, size: int) -> tuple[int, int]:
    """A node whose closure is about `size`."""
    roots = {int(nodes - x) for x in np.geomspace(size, min(nodes - 1, size * 60), 40)}
    reached = {root: len(graph.closure([root]).nodes) for root in roots}
    best = min(reached, key=lambda root: abs(reached[root] - size))
    return best, reached[best]
