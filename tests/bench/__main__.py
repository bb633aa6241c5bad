"""`python -m tests.bench [--json] [--big] [--minutes N] [NAME…]`: measure, print the table. Exit code 1: a budget is missed."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before numpy and torch: two threads collapse under contention
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from . import compute, copies, flood, laundering, replay, retrieval, soak, traffic
from .rows import Row, as_json, as_table

BENCHES: Final[dict[str, Callable[[bool], AsyncIterator[Row]]]] = {
    "query": traffic.query,
    "write": traffic.write,
    "decide": compute.decide,
    "screen": compute.screening,
    "closure": compute.closure,
    "hold": traffic.hold,
    "rebuild": replay.rebuild,
    "verify": replay.verify,
    "start": replay.start,
    "snapshot": copies.snapshot,
    "memory": traffic.memory,
    "recall": retrieval.recall,
    "hnsw": retrieval.hnsw,
    "flood": flood.flood,
    "stall": flood.stall,
    "lineage": laundering.laundering,
}
CASES: Final = {f"flood.{case}": partial(flood.flood, names=(case,)) for case in flood.CASES}  # one at a time


SOAK: Final = "soak"  # only by name: it takes as long as it is told to


async def _run(names: list[str], big: bool, minutes: float) -> list[Row]:
    rows = []
    for name in names:
        start = time.monotonic()
        async for row in soak.soak(minutes) if name == SOAK else (BENCHES | CASES)[name](big):
            rows.append(row)
            met = {None: "", True: "  met", False: "  NOT MET"}[row.met]
            ratio = f"  ratio {row.ratio:.3f}" if row.ratio is not None else ""
            print(f"{row.bench}: {row.name}: {row.value:,.3f} {row.unit}{ratio}{met}  {row.note}", file=sys.stderr, flush=True)
        print(f"{name} took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES | CASES)}; none = all; or {SOAK}")
    parser.add_argument("--json", action="store_true", help="the rows as JSON instead of a table")
    parser.add_argument("--big", action="store_true", help="also at 100,000 memories (minutes more)")
    parser.add_argument("--minutes", type=float, default=soak.MINUTES, help=f"of {SOAK} (default %(default)g)")
    args = parser.parse_args()
    known = [*BENCHES, *CASES, SOAK]
    unknown = [n for n in args.names if n not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # who stops a bench has its home stopped too
    rows = asyncio.run(_run(args.names or list(BENCHES), args.big, args.minutes))
    print(as_json(rows).decode() if args.json else as_table(rows))
    return 0 if all(r.met is not False for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
