"""How often a note that declares nothing is linked to what it was made from, and how often to what it wasn't.

LoCoMo's observations are notes that people's talk was boiled down to, each with the turn it rests on. A context is served 64
turns of one conversation, then writes the observation.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Final

from gate.model.datasets import DataMissing
from gate.model.embedder import StaticEmbedder
from gate.projections.lexical import LexicalIndex
from gate.state.contexts import Mark
from gate.writing.lineage import ContextText, Text, text_of

from .locomo import talks
from .rows import Row

SERVED: Final = 64
NEAR_TURNS: Final = 4  # turns beside the source speak of the same: neither right nor wrong
NOW: Final = 1_800_000_000_000


def _observed() -> Iterator[tuple[list[str], list[tuple[str, int]]]]:
    """Turns of each conversation, and its observations with the row of their one turn."""
    for one, turns, place in talks():
        notes = [
            (note, place[source])
            for session in one["observation"].values()
            for said in session.values()
            for note, source in said
            if isinstance(source, str) and source in place
        ]
        yield turns, notes


async def laundering(big: bool) -> AsyncIterator[Row]:
    """Share of notes linked to their source, and edges to turns that have nothing to do with them."""
    try:
        observed = list(_observed())
    except DataMissing as e:
        print(f"lineage skipped: {e}", file=sys.stderr)
        return
    embedder, random = StaticEmbedder(), Random(1)
    cases = (("fresh, same run", 0, b"r"), ("fresh, no run named", 0, b""), ("two hours later", 7_200_000, b""))
    for name, age, run in cases:
        copied: list[bool] = []
        linked: list[bool] = []
        wrong: list[int] = []
        wrong_copied: list[int] = []
        talk_wrong: list[int] = []
        for turns, notes in observed:
            texts = [text_of(t, v) for t, v in zip(turns, embedder.encode(turns), strict=True)]
            index = LexicalIndex()
            index.add([t.terms for t in texts])
            for note, source in random.sample(notes, min(60, len(notes))):
                others = [i for i in range(len(turns)) if abs(i - source) > NEAR_TURNS]
                mine = text_of(note, embedder.encode([note])[0])
                rows = [source, *random.sample(others, SERVED - 1)]
                found, also = _linked(texts, rows, mine, index, age, run)
                copied.append(source in found)
                linked.append(source in found or source in also)
                wrong_copied.append(len(found - {source}))
                wrong.append(len(also - {source}))
                other = random.choice(others)  # a turn of the same talk as if it were a new note: same speakers, same chat
                rows = random.sample([i for i in others if abs(i - other) > NEAR_TURNS], SERVED)
                talk_wrong.append(len(set().union(*_linked(texts, rows, texts[other], index, age, run))))
        n = f"{len(linked)} notes, {SERVED} turns served"
        yield Row(bench="lineage", name=f"notes linked to their source, {name}", value=statistics.fmean(linked), unit="", note=n)
        yield Row(bench="lineage", name=f"  of these as copies, {name}", value=statistics.fmean(copied), unit="")
        yield Row(bench="lineage", name=f"wrong copied edges a note, {name}", value=statistics.fmean(wrong_copied), unit="")
        yield Row(bench="lineage", name=f"wrong served edges a note, {name}", value=statistics.fmean(wrong), unit="")
        yield Row(bench="lineage", name=f"wrong edges a chat turn, {name}", value=statistics.fmean(talk_wrong), unit="")


def _linked(
    texts: list[Text], rows: list[int], mine: Text, index: LexicalIndex, age: int, run: bytes
) -> tuple[set[int], set[int]]:
    """(copied, served) parents."""
    ctx = ContextText(len(mine.vector))
    ctx.begin(0)
    for r in rows:
        ctx.serve(r, texts[r], False)
    marks = {r: Mark(1, NOW - age, run, b"") for r in rows}
    found = ctx.evidence(mine, marks, index.df, index.n, NOW, run, b"")
    return {p.parent for p in found.copied}, {p.parent for p in found.served}
