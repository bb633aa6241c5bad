"""What happens to a micro-batch of drafts on the index thread: redact, screen, embed, look for lineage, make the body."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from gate.index_state import TenantIndex
from gate.ledger import events as E
from gate.ledger.block import body_hash
from gate.model.embedder import Embedder
from gate.projections.lexical import terms
from gate.state.tenant import noted_from_outside

from .decide import Write, origin_of
from .lineage import text_of
from .redact import redact
from .screen import screen

EVIDENCE_ROOT_CHARS: Final = 512


def prepare(
    batch: list[Write], indexes: Mapping[str, TenantIndex], embedder: Embedder, salt: Callable[[int], bytes] = os.urandom
) -> None:
    """Fill in what each write needs for its decision. Nothing leaves this function unredacted."""
    for w in batch:
        d = w.checked.draft
        w.redacted = redact(d.content)
        w.evidence = tuple(redact(e).text for e in d.evidence)
        labels = (d.run, d.task, d.session, d.trace_id, d.scope_id)
        w.labels = tuple(redact(v).text if v else v for v in labels)  # type: ignore[assignment]
    halves = embedder.encode([w.redacted.text for w in batch if w.redacted]).astype(np.float16)
    vectors = halves.astype(np.float32)  # what the ledger keeps, so that a replay searches and compares the very same
    for i, w in enumerate(batch):
        assert w.redacted is not None
        w.terms = frozenset(terms(w.redacted.text))
        beside = "\n".join((*w.evidence, w.labels[4]))  # what another will read beside the content
        w.said = f"{w.redacted.text}\n{beside}"
        w.text = text_of(w.redacted.text, vectors[i], beside)
    _lineage(batch, indexes, embedder)
    salts = salt(E.SALT_BYTES * len(batch))
    for i, w in enumerate(batch):
        assert w.redacted is not None
        p = w.principal
        w.screening = screen(w.said, origin=origin_of(p, w.checked), kind=w.checked.kind)
        root = w.evidence[0][:EVIDENCE_ROOT_CHARS] if w.evidence else ""
        w.evroot = p.tenant.label_hash(root)
        run, task, session, trace_id, scope_id = w.labels
        body = E.MemoryBody(
            content=w.redacted.text,
            vector=halves[i].tobytes(),
            evidence=list(w.evidence),
            run=run,
            task=task,
            session=session,
            trace_id=trace_id,
            scope_id=scope_id,
        )
        w.body = salts[i * E.SALT_BYTES : (i + 1) * E.SALT_BYTES] + E.encode(body)
        w.body_hash = body_hash(w.body)
        w.encoder = embedder.id


def _lineage(batch: list[Write], indexes: Mapping[str, TenantIndex], embedder: Embedder) -> None:
    """Evidence of what each text was made from; the writes of one context together, in order of arrival."""
    by_context: dict[tuple[str, bytes], list[Write]] = {}
    for w in batch:
        by_context.setdefault((w.principal.tenant.account, w.context.id), []).append(w)
    for (account, _), writes in by_context.items():
        ctx, t, index = writes[0].context, writes[0].principal.tenant, indexes[account]
        text = index.context(ctx, t, embedder)
        mine = [w.text for w in writes if w.text is not None]
        nearest = text.nearest(np.stack([m.vector for m in mine])) if ctx.served and text.texts else [{}] * len(mine)
        for w, m, cosines in zip(writes, mine, nearest, strict=True):
            if ctx.served:
                number = t.projects[w.principal.project].number
                df = index.df({number} | {int(t.columns.project[s]) for s in list(text.special)[:8]})
                size = index.project(number).n
                w.lineage = text.evidence(m, ctx.served, df, size, w.ms, w.run, w.task, cosines)
            if not noted_from_outside(w.principal.role, -1 if w.checked.origin is None else w.checked.origin):
                text.wrote(m)
