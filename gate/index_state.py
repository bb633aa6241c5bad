"""What the index thread owns of one tenant: catalog and project indexes, and where the texts of its contexts are. Never touched
by the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from gate.ledger.events import decode_memory, is_plain
from gate.model.embedder import Embedder
from gate.projections.catalog import Catalog, MemoryRow
from gate.projections.lexical import terms
from gate.reading.retrieve import ProjectIndex
from gate.state.contexts import Context
from gate.state.tenant import Tenant
from gate.steps import Steps
from gate.writing.context_texts import ContextTexts
from gate.writing.lineage import RARE_DF_MIN, ContextText, read

PROSE_WORDS: Final = 3
FETCHED: Final = 32  # texts of a context read at once: 2 MiB at most
LOOKED_AT: Final = 1 << 15  # mentions of words before others are served: a millisecond or so
LOOK_UP: Final = 512  # mentions that take as long as to begin with a word


class NewMemory(msgspec.Struct, frozen=True):
    """A memory to index: its row, its project's number, its terms and unit vector [d], float16 or float32. `aside`: not for
    every member.
    """

    row: MemoryRow
    project: int
    terms: Collection[str]
    vector: npt.NDArray[Any]
    aside: bool


class TenantIndex:
    """Rows of a project must come in ledger order: row numbers are given by position."""

    def __init__(self, account: str, catalog: Catalog, texts: ContextTexts) -> None:
        self.account, self.catalog, self.texts = account, catalog, texts
        self.projects: dict[int, ProjectIndex] = {}
        self.applied = 0  # tenant_seq up to which memories are indexed

    def apply(self, memories: Sequence[NewMemory], ledger_seq: int, tenant_seq: int, chain: bytes) -> int:
        """Index the memories of one block and move the catalog's position; how many rows the catalog didn't have."""
        self.index(memories)
        self.applied = max(self.applied, tenant_seq)
        new = self.catalog.apply([m.row for m in memories], ledger_seq, tenant_seq, chain)
        self.catalog.maybe_commit(time.monotonic())
        return new

    def index(self, memories: Sequence[NewMemory]) -> None:
        """Make memories findable; the catalog is left alone."""
        by_project: dict[int, list[NewMemory]] = {}
        for m in memories:
            by_project.setdefault(m.project, []).append(m)
        for number, new in by_project.items():
            aside = [i for i, m in enumerate(new) if m.aside]
            vectors = np.concatenate([m.vector for m in new]).reshape(len(new), -1).astype(np.float32, copy=False)
            self.project(number).add([m.row.seq for m in new], [m.terms for m in new], vectors, aside)

    def erase(self, seqs: Sequence[int], tenant: Tenant) -> int:
        """Forget the text of these memories in postings, vectors and the catalog; how many of them still had one there.

        The catalog last: what it has no text of is in none of the others, since a term can be told from the text alone, and after
        a restart nothing without text is indexed.
        """
        c = tenant.columns
        self.catalog.commit()  # before the postings: where it can't be written nothing is half erased
        rows = [row for row in self.catalog.fetch(seqs).values() if row.content]
        for row in rows:
            project, aside = self.project(int(c.project[row.seq])), not is_plain(decode_memory(row.meta))
            project.remove(int(c.row[row.seq]), frozenset(terms(row.content)), aside=aside)
        if rows:
            self.catalog.erase(rows)
        return len(rows)

    def forget(self, context: bytes, seqs: frozenset[int], tenant: Tenant) -> bool:
        """The same for what a context's window keeps of them; whether it could hold anything."""
        writers = {int(tenant.columns.actor[s]) for s in seqs}
        own = any(tenant.agents.all[n].root == tenant.contexts[context].root for n in writers)
        return self.texts.forget((self.account, context), seqs, own=own)

    def idle(self) -> None:
        """What waits for a quiet moment: the catalog's commit."""
        self.catalog.maybe_commit(time.monotonic())

    def catch_up(self) -> bool:
        """A step of what may take many: some vectors of one project that its approximate index doesn't have yet; whether there
        were any.
        """
        behind = next((index.vectors for index in self.projects.values() if index.vectors.backlog), None)
        if behind is not None:
            behind.catch_up()
        return behind is not None

    def project(self, number: int) -> ProjectIndex:
        index = self.projects.get(number)
        if index is None:
            index = self.projects[number] = ProjectIndex()
        return index

    def df(self, numbers: Iterable[int]) -> Callable[[str], int]:
        """In how many memories a term is, over a few projects: the most frequent counts."""
        counts = [self.projects[n].lexical.df for n in numbers if n in self.projects]
        return counts[0] if len(counts) == 1 else lambda term: max((df(term) for df in counts), default=0)

    def context(self, ctx: Context, tenant: Tenant, embedder: Embedder) -> Steps[ContextText]:
        """The context's texts, brought up to what it was served. Not while it is under way for the same context."""
        key = (self.account, ctx.id)
        text = self.texts.of(key)
        if text.under_way:
            raise RuntimeError("two batches look into one context")
        text.under_way = True
        try:
            yield from self._brought_up(key, text, ctx, tenant, embedder)
        except BaseException:  # what it was on the way to hear is in the window, and heard when it is made again
            self.texts.let_go(key)
            raise
        text.under_way = False
        return text

    def _brought_up(
        self, key: tuple[str, bytes], text: ContextText, ctx: Context, tenant: Tenant, embedder: Embedder
    ) -> Steps[None]:
        epoch, fresh = ctx.fresh  # the loop goes on adding
        again = False
        heard: Iterable[int] = [fresh.popleft() for _ in range(len(fresh))]
        if text.begin(epoch):
            self.texts.resume(key, text)
            heard, again = (*ctx.served, *heard), True  # it may have been let go in the middle of the epoch
        new = [s for s in dict.fromkeys(heard) if s not in text.texts]
        for start in range(0, len(new), FETCHED):
            some = new[start : start + FETCHED]
            rows = self.catalog.fetch(some)
            yield
            for s in some:
                row = rows.get(s)
                if row is not None and row.content:
                    yield from self._hear(tenant, text, row, embedder)
                elif s > self.applied:  # the loop was faster than the index: it comes again; else it is erased
                    fresh.append(s)
        if again:
            yield from self._recall_echoes(ctx, tenant, text)
        if new:
            text.compact(ctx.served)
            self.texts.weigh(key, text)

    def _hear(self, tenant: Tenant, text: ContextText, row: MemoryRow, embedder: Embedder) -> Steps[None]:
        c, s = tenant.columns, row.seq
        vector = self._vector(int(c.project[s]), int(c.row[s]))
        special = int(c.cls[s]) == 2 or int(c.user[s]) != 0
        if vector is None:
            vector = embedder.encode([row.content])[0]
        said = yield from read(row.content, vector, _prose((*row.evidence, row.scope_id)))
        yield from text.hear(s, said, special)
        if c.erased[s]:  # while it was under way: who erases has looked here already
            text.forget({s}, own=False)

    def _recall_echoes(self, ctx: Context, tenant: Tenant, text: ContextText) -> Steps[None]:
        """After a start, or when it was let go: what a family wrote itself must not make the words common that it was served.

        By the postings, so that no number of later notes hides earlier ones. A word that it brought in itself stays as it is.
        """
        c = tenant.columns
        root = tenant.agents.all[ctx.root]
        family = list(root.family)
        of_family = np.zeros(len(tenant.agents.all) + 1, np.bool_)  # by agent number; the last stands for all who came since
        of_family[family] = True
        numbers = {tenant.projects[name].number for name in root.projects} | {int(c.project[s]) for s in [*ctx.served]}
        rows = c.n  # the loop goes on adding
        written = np.unique(c.project[:rows][of_family.take(c.actor[:rows], mode="clip")])  # elsewhere there is nothing to count
        indexes = [self.projects[n] for n in sorted(numbers.intersection(written.tolist())) if n in self.projects]
        looked_at = 0
        for term in text.heard():
            for index in indexes:
                looked_at += 1
                if index.lexical.df(term) <= RARE_DF_MIN:
                    continue
                seqs = index.seqs[index.lexical.rows(term)]
                looked_at += LOOK_UP + len(seqs)
                by_family = of_family.take(c.actor[seqs], mode="clip")
                first = int(seqs[0])
                own = by_family[0] and first <= text.oldest_with(term) and not tenant.up.edges_of(first)
                if not own:
                    text.echoed(term, int(np.count_nonzero(by_family)))
            if looked_at > LOOKED_AT:
                looked_at = 0
                yield

    def _vector(self, project: int, row: int) -> npt.NDArray[np.float32] | None:
        index = self.projects.get(project)
        if index is None or row >= index.n:
            return None
        vector: npt.NDArray[np.float32] = index.vectors.gather(np.array([row], np.int32))[0]
        return vector

    def close(self) -> None:
        self.catalog.close()


def _prose(beside: Iterable[str]) -> str:
    """Of what stands beside a content that which is text: to name the same source is no copy."""
    return "\n".join(x for x in beside if len(x.split()) >= PROSE_WORDS)
