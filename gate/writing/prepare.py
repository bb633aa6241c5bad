"""A micro-batch of drafts on the index thread, in steps: redact, screen, embed, look for lineage, make the body."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from gate.index_state import TenantIndex
from gate.ledger import events as E
from gate.ledger.block import body_hash
from gate.model.embedder import Embedder
from gate.projections.lexical import INDEXED_TERMS_MAX, indexed
from gate.state.tenant import noted_from_outside
from gate.steps import Steps

from .decide import Write, origin_of
from .lineage import read
from .redact import cut, redact
from .screen import look

EVIDENCE_ROOT_CHARS: Final = 512


def prepare(
    batch: list[Write], indexes: Mapping[str, TenantIndex], embedder: Embedder, salt: Callable[[int], bytes] = os.urandom
) -> Iterator[Write | None]:
    """Fill in what each write needs for its decision, and yield it when that is done: of one context in order of arrival, first
    those whose context has least to catch up with. Nothing leaves this function unredacted.
    """
    for w in batch:
        yield from _redacted(w, indexes[w.principal.tenant.account])
    halves = embedder.encode([w.redacted.text for w in batch if w.redacted]).astype(np.float16)
    vectors = halves.astype(np.float32)  # what the ledger keeps, so that a replay searches and compares the very same
    yield None
    for w, half, vector in zip(batch, halves, vectors, strict=True):
        yield from _read(w, vector)
        yield from _screened(w, half, embedder.id, salt)
    by_context: dict[tuple[str, bytes], list[Write]] = {}
    for w in batch:
        by_context.setdefault((w.principal.tenant.account, w.context.id), []).append(w)

    def behind(key: tuple[str, bytes]) -> int:
        return indexes[key[0]].texts.behind(key, by_context[key][0].context)

    for key in sorted(by_context, key=behind):
        yield from _lineage(by_context[key], indexes[key[0]], embedder)


def _redacted(w: Write, index: TenantIndex) -> Steps[None]:
    d = w.checked.draft
    content, evidence = (d.content, tuple(d.evidence)) if not w.promotes else _of(w.promotes, index)
    w.redacted = yield from cut(content)
    w.evidence = tuple(redact(e).text for e in evidence)
    labels = (d.run, d.task, d.session, d.trace_id, d.scope_id)
    w.labels = tuple(redact(v).text if v else v for v in labels)  # type: ignore[assignment]


def _of(seq: int, index: TenantIndex) -> tuple[str, tuple[str, ...]]:
    """Text and evidence of a stored memory; nothing if it was erased meanwhile, which its decision refuses."""
    row = index.catalog.fetch([seq]).get(seq)
    return (row.content, row.evidence) if row else ("", ())


def _read(w: Write, vector: npt.NDArray[np.float32]) -> Steps[None]:
    assert w.redacted is not None
    content = w.redacted.text
    beside = "\n".join((*w.evidence, w.labels[4]))  # what another will read beside the content
    w.said = f"{content}\n{beside}"
    w.text = yield from read(content, vector, beside)
    seen = w.text.core if beside else w.text.terms
    # No disguise to undo in ASCII: the terms are the index's, unless they are too many for it.
    w.terms = seen if content.isascii() and len(seen) <= INDEXED_TERMS_MAX else (yield from indexed(content))


def _screened(w: Write, vector: npt.NDArray[np.float16], encoder: str, salt: Callable[[int], bytes]) -> Steps[None]:
    """Its screening, and the body as it will be stored."""
    assert w.redacted is not None
    p = w.principal
    w.screening = yield from look(w.said, origin=origin_of(p, w.checked))
    root = w.evidence[0][:EVIDENCE_ROOT_CHARS] if w.evidence else ""
    w.evroot = p.tenant.label_hash(root)
    run, task, session, trace_id, scope_id = w.labels
    body = E.MemoryBody(
        content=w.redacted.text,
        vector=vector.tobytes(),
        evidence=list(w.evidence),
        run=run,
        task=task,
        session=session,
        trace_id=trace_id,
        scope_id=scope_id,
    )
    w.body = salt(E.SALT_BYTES) + E.encode(body)
    w.body_hash = body_hash(w.body)
    w.encoder = encoder


def _lineage(writes: list[Write], index: TenantIndex, embedder: Embedder) -> Iterator[Write | None]:
    """Evidence of what each text was made from; the writes of one context together, in order of arrival."""
    ctx, t = writes[0].context, writes[0].principal.tenant
    text = yield from index.context(ctx, t, embedder)
    mine = [w.text for w in writes if w.text is not None]
    nearest = text.nearest(np.stack([m.vector for m in mine])) if ctx.served and text.texts else [{}] * len(mine)
    for w, m, cosines in zip(writes, mine, nearest, strict=True):
        if ctx.served:
            number = t.projects[w.principal.project].number
            df = index.df({number} | {int(t.columns.project[s]) for s in list(text.special)[:8]})
            size = index.project(number).n
            w.lineage = text.evidence(m, ctx.served, df, size, w.ms, w.run, w.task, cosines)
        if w.promotes:  # the gatekeeper wrote that for it, who perhaps never saw a word of it
            text.echoes(m.terms)
        elif not noted_from_outside(w.principal.role, -1 if w.checked.origin is None else w.checked.origin):
            text.wrote(m)
        index.texts.weigh((index.account, ctx.id), text)
        yield w
