"""Contexts: what one principal may still have in its head, kept per root of a delegation chain.

A context remembers what was served to it (a window of ids) and, beyond the window, the join of the labels. Recalls are numbered
densely within an epoch; a write that carries (context, epoch, n) was exposed to exactly recalls 1..n of it. Only idle time
or a close
starts a new epoch: a run, connection, key, child or restart keeps it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from bus.frames import CLASSIFICATIONS
from gate.config import CONTEXT_WINDOW_IDS
from gate.ledger.events import Joined

from .compartments import bounded

if TYPE_CHECKING:
    from .columns import Columns
    from .interned import Interned

TRUST_MAX: Final = 1000
RESTRICTED: Final = CLASSIFICATIONS.index("restricted")
FRESH_MAX: Final = 4 * CONTEXT_WINDOW_IDS
ORIGIN_MAX: Final = 5  # system


class Mark(NamedTuple):
    """When and under which labels an id was last served."""

    recall_no: int
    ms: int
    run: bytes
    task: bytes


@dataclass(slots=True)
class Labels:
    """The join of everything served in the epoch: trust and origin the least, the rest the strictest; of too many compartments
    `many`.
    """

    floor: int = TRUST_MAX
    origin: int = ORIGIN_MAX
    cls: int = 0
    sens: int = 0
    opt_out: bool = False
    comp: set[str] = field(default_factory=set)

    def joined(self) -> Joined:
        return Joined(self.floor, self.origin, self.cls, self.sens, self.opt_out, sorted(self.comp))


# Own: its own inference; what it stored from outside is like anybody else's.
OWN, PLAIN, SPECIAL = range(3)  # in this order they fall out of the window: an agent's own texts push out nobody else's


class Context:
    __slots__ = (
        "_lanes", "closing", "epoch", "exposed", "fallen_cls", "fallen_comp", "family", "fresh", "id", "labels", "last_read_ms",
        "recalls", "root", "served", "user",
    )  # fmt: skip

    def __init__(self, id_: bytes, root: int, family: AbstractSet[int] = frozenset()) -> None:
        self.id = id_
        self.root = root  # agent number of the root of the chain
        self.family = family or {root}  # numbers of all whose context it is
        self.user = ""  # keyed hash of the one user for whom anything was ever asked in it
        self.epoch = 0
        self.closing = 0  # closes of it that are under way: nothing is served into it until they are over
        self.recalls = 0
        self.labels = Labels()
        self.served = OrderedDict[int, Mark]()  # tenant_seq → mark, oldest first; the index thread looks into it
        self._lanes = _lanes()
        # Of restricted and user-scope items that fell out of the window: from then on every write joins these.
        self.fallen_cls = 0
        self.fallen_comp: set[str] = set()
        self.exposed: set[bytes] = set()  # open cases with a member among the served
        self.last_read_ms = 0
        # (epoch, what was served in it since the index thread last looked): one object, so that they can't be mixed up
        self.fresh: tuple[int, deque[int]] = (0, deque())

    def begin_epoch(self, epoch: int) -> None:
        """Everything it had in its head is gone."""
        self.epoch = epoch
        self.recalls = 0
        self.labels = Labels()
        self.served = OrderedDict()
        self._lanes = _lanes()
        self.fallen_cls, self.fallen_comp = 0, set()
        self.exposed = set()
        self.last_read_ms = 0
        self.fresh = (epoch, deque())

    def idle(self, now_ms: int, idle_ms: int, unseen_ms: Callable[[int], int] = lambda _: 0) -> bool:
        """Whether the time since the last read ends this epoch. idle_ms 0 = never. `unseen_ms`: see gate.clock."""
        last = self.last_read_ms
        return bool(idle_ms) and bool(last) and now_ms - last > idle_ms and now_ms - last - unseen_ms(last) > idle_ms

    def register(self, c: Columns, comps: Interned[frozenset[str]], seqs: Iterable[int], ms: int, run: bytes, task: bytes) -> int:
        """Note that `seqs` are about to be served; the number of this recall. Before the answer leaves, never after."""
        self.recalls += 1
        self._hear(c, comps, seqs, Mark(self.recalls, ms, run, task))
        return self.recalls

    def noted(self, c: Columns, comps: Interned[frozenset[str]], seq: int, ms: int, run: bytes, task: bytes) -> None:
        """The agent stored what it read elsewhere: that is in its head as if it had been served to it."""
        self._hear(c, comps, [seq], Mark(self.recalls, ms, run, task))

    def _hear(self, c: Columns, comps: Interned[frozenset[str]], seqs: Iterable[int], mark: Mark) -> None:
        self.last_read_ms = max(self.last_read_ms, mark.ms)
        seqs, labels, at = list(seqs), self.labels, c.at
        if not seqs:
            return
        for s in seqs:
            self._serve(c, comps, s, mark)
        labels.floor = min(labels.floor, *[at.eff[s] for s in seqs], *[at.floor[s] for s in seqs])
        labels.origin = min(labels.origin, *[at.origin[s] for s in seqs])
        labels.cls = max(labels.cls, *[at.cls[s] for s in seqs])
        labels.sens = max(labels.sens, *[at.sens[s] for s in seqs])
        labels.opt_out = labels.opt_out or any(at.opt_out[s] for s in seqs)
        for comp in {at.comp[s] for s in seqs}:
            if not comps[comp] <= labels.comp:
                labels.comp = set(bounded(labels.comp | comps[comp]))

    def restore(
        self,
        c: Columns,
        comps: Interned[frozenset[str]],
        epoch: int,
        recall_no: int,
        seqs: Iterable[int],
        ms: int,
        run: bytes,
        task: bytes,
        joined: Joined,
    ) -> None:
        """Replay of a READS record: its joined labels are taken as they stand."""
        if epoch < self.epoch:
            return
        if epoch > self.epoch:
            self.begin_epoch(epoch)
        self.recalls = max(self.recalls, recall_no)
        self.last_read_ms = max(self.last_read_ms, ms)
        mark = Mark(recall_no, ms, run, task)
        for s in seqs:
            self._serve(c, comps, s, mark)
        now = self.labels
        self.labels = Labels(
            min(now.floor, joined.floor),
            min(now.origin, joined.origin),
            max(now.cls, joined.class_),
            max(now.sens, joined.sens),
            now.opt_out or joined.opt_out,
            set(bounded(now.comp | set(joined.comp))),
        )

    def _serve(self, c: Columns, comps: Interned[frozenset[str]], seq: int, mark: Mark) -> None:
        served, at = self.served, c.at
        again = seq in served
        served[seq] = mark
        if again:
            served.move_to_end(seq)  # never away for a moment: the index thread would miss a copy of it
        special = at.cls[seq] == RESTRICTED or at.user[seq] != 0
        lane = self._lanes[SPECIAL if special else OWN if at.actor[seq] in self.family and at.origin[seq] else PLAIN]
        lane[seq] = None
        if again:
            lane.move_to_end(seq)
        self.fresh[1].append(seq)
        if len(served) > CONTEXT_WINDOW_IDS:
            oldest = next(lane for lane in self._lanes if lane)
            gone, _ = oldest.popitem(last=False)
            del served[gone]
            if oldest is self._lanes[SPECIAL]:
                self.fallen_cls = max(self.fallen_cls, at.cls[gone])
                self.fallen_comp = set(bounded(self.fallen_comp | comps[at.comp[gone]]))
        if len(self.fresh[1]) > FRESH_MAX:  # who asks for ever and never writes: each id once, and only what is in the window
            self.fresh = (self.fresh[0], deque(s for s in dict.fromkeys([*self.fresh[1]]) if s in served))


def _lanes() -> tuple[OrderedDict[int, None], OrderedDict[int, None], OrderedDict[int, None]]:
    return OrderedDict(), OrderedDict(), OrderedDict()
