"""Reachability over the lineage of one tenant: in-memory adjacency, and closures with true depths.

Owned by the event loop, which alone adds. Invariants: an edge goes from an older event to a newer one (`src < dst`), so there is
no cycle; what an edge says never changes; a closure in another thread sees one consistent state while the loop goes on adding.

Layout: a linked list per node, newest edge first, in numpy arrays that are replaced (never resized) when they are full. Links are
edge numbers + 1, so that 0 means none and fresh pages cost nothing: 4 B a node, 10 B an edge and direction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Nodes = npt.NDArray[np.int32]

NARROW: Final = 128  # below this many nodes a Python loop beats numpy's cost per call
_FIRST_CAPACITY: Final = 1_024
_GROWTH: Final = 1.5


class EdgeTo(NamedTuple):
    """An edge seen from one end. `confidence` 0..255 for 0..1."""

    node: int
    kind: int
    confidence: int


class Closure(NamedTuple):
    """Each reachable node once, roots included: `nodes` ascending, `depth` aligned with it (the least number of hops)."""

    nodes: Nodes
    depth: Nodes


class _Links:
    """One generation of arrays with memoryviews for scalar access (three times as fast as numpy's)."""

    __slots__ = ("confidence", "confidence_at", "head", "head_at", "kind", "kind_at", "next", "next_at", "to", "to_at")

    def __init__(
        self, head: Nodes, next_: Nodes, to: Nodes, kind: npt.NDArray[np.uint8], confidence: npt.NDArray[np.uint8]
    ) -> None:
        self.head, self.next, self.to, self.kind, self.confidence = head, next_, to, kind, confidence
        self.head_at, self.next_at, self.to_at = head.data, next_.data, to.data
        self.kind_at, self.confidence_at = kind.data, confidence.data


def _larger(old: npt.NDArray[np.int32], capacity: int) -> npt.NDArray[np.int32]:
    new = np.zeros(capacity, old.dtype)
    new[: len(old)] = old
    return new


class Adjacency:
    """Edges of one tenant in one direction: `down` finds what was derived from a node, `up` what a node derives from."""

    def __init__(self, direction: Literal["down", "up"]) -> None:
        self._down = direction == "down"
        self._edges = 0
        bytes_ = np.zeros(_FIRST_CAPACITY, np.uint8)
        ints = np.zeros(_FIRST_CAPACITY, np.int32)
        self._links = _Links(ints, ints.copy(), ints.copy(), bytes_, bytes_.copy())

    @property
    def edges(self) -> int:
        return self._edges

    def add(self, src: int, dst: int, kind: int, confidence: int) -> None:
        """Add the edge parent `src` → child `dst`. ValueError unless 0 <= src < dst: such an edge is a bug or a forged event."""
        if not 0 <= src < dst:
            raise ValueError(f"edge {src} -> {dst}: a parent must be older than its child")
        node, other = (src, dst) if self._down else (dst, src)
        edge = self._edges
        links = self._links
        if dst >= len(links.head) or edge >= len(links.to):
            links = self._links = self._grown(dst)
        # The head comes last: a closure in another thread must never follow a link that isn't there yet.
        links.to_at[edge] = other
        links.kind_at[edge] = kind
        links.confidence_at[edge] = confidence
        links.next_at[edge] = links.head_at[node]
        links.head_at[node] = edge + 1
        self._edges = edge + 1

    def _grown(self, node: int) -> _Links:
        """New arrays with room for `node` and one more edge. The head is copied: an old generation never learns of them."""
        old = self._links
        nodes = len(old.head) if node < len(old.head) else max(node + 1, int(len(old.head) * _GROWTH))
        head = _larger(old.head, nodes)
        if self._edges < len(old.to):
            return _Links(head, old.next, old.to, old.kind, old.confidence)
        edges = int(len(old.to) * _GROWTH)
        kind, confidence = np.zeros(edges, np.uint8), np.zeros(edges, np.uint8)
        kind[: self._edges], confidence[: self._edges] = old.kind, old.confidence
        return _Links(head, _larger(old.next, edges), _larger(old.to, edges), kind, confidence)

    def edges_of(self, node: int) -> list[EdgeTo]:
        """The edges of one node in this direction, oldest first; none for an unknown node."""
        return [*self.each(node)][::-1]

    def each(self, node: int) -> Iterator[EdgeTo]:
        """The same one by one, newest first: downwards one node may have ten thousands."""
        links = self._links
        link = links.head_at[node] if 0 <= node < len(links.head) else 0
        while link:
            at = link - 1
            yield EdgeTo(links.to_at[at], links.kind_at[at], links.confidence_at[at])
            link = links.next_at[at]

    def count(self, nodes: npt.NDArray[np.int32]) -> int:
        """How many edges these nodes (each once) have in this direction, without making them."""
        links, total = self._links, 0
        at = links.head[nodes[nodes < len(links.head)]]
        while len(at := at[at != 0]):
            total += len(at)
            at = links.next[at - 1]
        return total

    def closure(self, roots: Iterable[int], kinds: Collection[int] | None = None, max_hops: int | None = None) -> Closure:
        """Everything reachable from `roots` over edges of `kinds` (None = all), at most `max_hops` away (None = however far).

        A root that has no edge here is in its own closure. Safe in another thread than the one that adds.
        """
        links = self._links
        start = np.unique(np.fromiter(roots, np.int32))
        if len(start) and start[0] < 0:
            raise ValueError(f"root {start[0]}: nodes are numbers from 0")
        known = start[start < len(links.head)]
        alone = start[len(known) :]  # newer than every edge, and larger than all other nodes
        nodes, depth = _Traversal(links, kinds).run(known, max_hops)
        order = np.argsort(nodes)
        zeros = np.zeros(len(alone), np.int32)
        return Closure(np.concatenate((nodes[order], alone)), np.concatenate((depth[order], zeros)))


class _Traversal:
    """One breadth-first search, level by level."""

    def __init__(self, links: _Links, kinds: Collection[int] | None) -> None:
        self._links = links
        self._seen = bytearray(len(links.head))  # zero pages from the system: untouched ones cost nothing
        self._seen_np = np.frombuffer(self._seen, np.uint8)
        wanted = range(256) if kinds is None else kinds
        self._wanted = bytes(kind in wanted for kind in range(256))
        self._wanted_np = np.frombuffer(self._wanted, np.bool_)
        self._all = kinds is None

    def run(self, start: Nodes, max_hops: int | None) -> tuple[Nodes, Nodes]:
        """Nodes in the order they were reached, and their depths."""
        self._seen_np[start] = 1
        parts, narrow, sizes = [start], list[int](), [len(start)]
        frontier: Nodes | list[int] = start
        while len(frontier) and (max_hops is None or len(sizes) <= max_hops):
            if len(frontier) < NARROW:
                frontier = self._next_narrow(frontier if isinstance(frontier, list) else frontier.tolist())
                narrow += frontier
            else:
                parts.append(np.array(narrow, np.int32))
                narrow = []
                frontier = self._next_wide(np.asarray(frontier, np.int32))
                parts.append(frontier)
            sizes.append(len(frontier))
        nodes = np.concatenate([*parts, np.array(narrow, np.int32)])
        return nodes, np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    def _next_narrow(self, frontier: list[int]) -> list[int]:
        head = self._links.head_at
        return self._walk([head[node] for node in frontier])

    def _walk(self, heads: list[int]) -> list[int]:
        """Unseen nodes along the lists that begin at `heads` (links), marked as seen."""
        links, seen, wanted = self._links, self._seen, self._wanted
        to, next_, kind = links.to_at, links.next_at, links.kind_at
        found: list[int] = []
        for link in heads:
            while link:
                at = link - 1
                node = to[at]
                if not seen[node] and wanted[kind[at]]:
                    seen[node] = 1
                    found.append(node)
                link = next_[at]
        return found

    def _next_wide(self, frontier: Nodes) -> Nodes:
        """All lists one step at a time; the few that are longer than the rest are walked to their end in Python."""
        links = self._links
        parts: list[Nodes] = []
        link = links.head[frontier]
        link = link[link > 0]
        while len(link) >= NARROW:
            at = link - 1
            parts.append(self._unseen(at))
            link = links.next[at]
            link = link[link > 0]
        if len(link):
            parts.append(np.array(self._walk(link.tolist()), np.int32))
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _unseen(self, at: Nodes) -> Nodes:
        """The children of edges `at` that are wanted and not seen, each once, now marked as seen."""
        if not self._all:
            at = at[self._wanted_np[self._links.kind[at]]]
        to = self._links.to[at]
        new = np.unique(to[self._seen_np[to] == 0])
        self._seen_np[new] = 1
        return new
