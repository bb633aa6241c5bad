"""Contexts: what one principal may still have in its head, kept per root of a delegation chain.

A context remembers what was served to it (a window of ids) and, beyond the window, the join of the labels. Recalls are numbered
densely within an epoch; a write that carries (context, epoch, n) was exposed to exactly recalls 1..n of it. Only idle time
or a close
starts a new epoch: a run, connection, key, child or restart keeps it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from gate.config import CONTEXT_WINDOW_IDS
from gate.ledger.events import Joined

from .compartments import bounded

if TYPE_CHECKING:
    from .columns import Columns
    from .interned import Interned

TRUST_MAX: Final = 1000
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


class Context:
    __slots__ = ("epoch", "exposed", "fresh", "id", "labels", "last_read_ms", "recalls", "root", "served")

    def __init__(self, id_: bytes, root: int) -> None:
        self.id = id_
        self.root = root  # agent number of the root of the chain
        self.epoch = 0
        self.recalls = 0
        self.labels = Labels()
        self.served = OrderedDict[int, Mark]()  # tenant_seq → mark, oldest first; the index thread looks into it
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
        self.exposed = set()
        self.last_read_ms = 0
        self.fresh = (epoch, deque())

    def idle(self, now_ms: int, idle_ms: int) -> bool:
        """Whether the time since the last read ends this epoch. idle_ms 0 = never."""
        return bool(idle_ms) and bool(self.last_read_ms) and now_ms - self.last_read_ms > idle_ms

    def register(self, c: Columns, comps: Interned[frozenset[str]], seqs: Iterable[int], ms: int, run: bytes, task: bytes) -> int:
        """Note that `seqs` are about to be served; the number of this recall. Before the answer leaves, never after."""
        self.recalls += 1
        self.last_read_ms = max(self.last_read_ms, ms)
        labels, at = self.labels, c.at
        mark = Mark(self.recalls, ms, run, task)
        for s in seqs:
            self._serve(s, mark)
            labels.floor = min(labels.floor, at.eff[s], at.floor[s])
            labels.origin = min(labels.origin, at.origin[s])
            labels.cls = max(labels.cls, at.cls[s])
            labels.sens = max(labels.sens, at.sens[s])
            labels.opt_out = labels.opt_out or bool(at.opt_out[s])
            comp = comps[at.comp[s]]
            if not comp <= labels.comp:
                labels.comp = set(bounded(labels.comp | comp))
        return self.recalls

    def restore(self, epoch: int, recall_no: int, seqs: Iterable[int], ms: int, run: bytes, task: bytes, joined: Joined) -> None:
        """Replay of a READS record: its joined labels are taken as they stand."""
        if epoch < self.epoch:
            return
        if epoch > self.epoch:
            self.begin_epoch(epoch)
        self.recalls = max(self.recalls, recall_no)
        self.last_read_ms = max(self.last_read_ms, ms)
        mark = Mark(recall_no, ms, run, task)
        for s in seqs:
            self._serve(s, mark)
        now = self.labels
        self.labels = Labels(
            min(now.floor, joined.floor),
            min(now.origin, joined.origin),
            max(now.cls, joined.class_),
            max(now.sens, joined.sens),
            now.opt_out or joined.opt_out,
            set(bounded(now.comp | set(joined.comp))),
        )

    def _serve(self, seq: int, mark: Mark) -> None:
        served = self.served
        served[seq] = mark
        served.move_to_end(seq)  # never away for a moment: the index thread would miss a copy of it
        self.fresh[1].append(seq)
        if len(served) > CONTEXT_WINDOW_IDS:
            del served[next(iter(served))]
        if len(self.fresh[1]) > FRESH_MAX:  # who asks for ever and never writes: each id once, and only what is in the window
            self.fresh = (self.fresh[0], deque(s for s in dict.fromkeys([*self.fresh[1]]) if s in served))
