"""Seeds of the simulation: exit code 1 when one fails, with the line that repeats it."""

from __future__ import annotations

import argparse
import os
import sys

from . import clock


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="one, told step by step")
    parser.add_argument(
        "--plant", action="append", default=[], help="a fault that a seed must find (tests/simulation/mutations.py)"
    )
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets have an order of their own in each process
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    clock.install()
    from .seeds import go, search, told  # the gate is imported now, with this time and this chance

    if args.seed is not None:
        return told(args.seed, *args.plant)
    return search(args.plant) if args.plant else go(range(args.first, args.first + args.seeds))


if __name__ == "__main__":
    sys.exit(main())
