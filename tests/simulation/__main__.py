"""python -m tests.simulation --seeds 200 | --seed 123 [--mutate NAME]: exit 1 when a seed fails, with the line that repeats it."""

from __future__ import annotations

import argparse
import sys

from . import clock


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="one, told step by step")
    parser.add_argument("--mutate", default="", help="with a fault planted in the gatekeeper: until a seed finds it")
    args = parser.parse_args()
    clock.install()
    from .seeds import found, go, told  # the gate is imported now, with this time and this chance

    if args.seed is not None:
        return told(args.seed, args.mutate)
    numbers = range(args.first, args.first + args.seeds)
    return found(numbers, args.mutate) if args.mutate else go(numbers)


if __name__ == "__main__":
    sys.exit(main())
