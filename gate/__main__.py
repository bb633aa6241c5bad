"""The gatekeeper's process: `python -m gate --home H [--shard 0] [--rebuild [--accept-ledger BY] | --verify [--live] | …]`."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gate", description="Cordon's gatekeeper for one shard.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--shard", type=int, default=0)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--rebuild", action="store_true", help="move projections aside and replay the ledger (while nothing serves)"
    )
    mode.add_argument("--verify", action="store_true", help="verify ledger and projections, print lines of JSON")
    mode.add_argument("--capture", type=Path, metavar="FOLDER", help="copy the ledger's new blocks into a folder")
    mode.add_argument("--check", type=Path, metavar="FOLDER", help="read such a copy again, print what is wrong with it")
    mode.add_argument("--compare", type=Path, metavar="FOLDER", help="compare a restored ledger's copy with the one it is of")
    mode.add_argument("--pour", type=Path, metavar="FOLDER", help="make the ledger of a new home of such a copy")
    parser.add_argument("--position", type=int, default=0, metavar="BLOCK", help="with --check, --compare: where a restore stops")
    parser.add_argument("--with", dest="with_", type=Path, default=Path(), metavar="FOLDER", help="with --compare: the latter")
    parser.add_argument("--before", type=int, default=0, metavar="MS", help="with --check: … by the time of its last block")
    parser.add_argument("--wanted", default="", metavar="JSON", help="with --pour: see gate.snapshots.pour.Wanted")
    parser.add_argument("--read-only", action="store_true", help="agents may read, not write (`read_only` in cordon.toml)")
    parser.add_argument("--live", action="store_true", help="with --verify: a gatekeeper serves, ask it for its state")
    parser.add_argument("--elsewhere", action="store_true", help="with --live: that gatekeeper's catalogs aren't in this home")
    parser.add_argument("--from", dest="begin", type=int, default=1, metavar="BLOCK", help="with --verify: from this block")
    parser.add_argument("--to", type=int, default=0, metavar="BLOCK", help="with --verify: up to this block")
    parser.add_argument("--tenant", default="", metavar="ACCOUNT", help="with --verify: this tenant alone")
    parser.add_argument("--accept-ledger", metavar="BY", help="with --rebuild: who accepts a ledger that went back")
    parser.add_argument("--nats", metavar="URL[,URL]", default="", help="an external server or cluster, shared with a standby")
    parser.add_argument("--creds", metavar="FILE", default="", help="the gatekeeper's credential, if not the home's")
    parser.add_argument("--ca", metavar="FILE", default="", help="PEM of the CA that signed the servers' certificates")
    parser.add_argument("--no-rates", action="store_true", help="don't limit requests a second (`rates = false` in cordon.toml)")
    parser.add_argument("--quota", metavar="NAME=NUMBER", action="append", default=[], help="[quotas] of cordon.toml, one each")
    parser.add_argument("--clock", metavar="DATE", default="", help="what day it is (`clock` in cordon.toml)")
    args = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before numpy and torch: two threads collapse under contention
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault(
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128"
    )  # shapes of products: half a megabyte each (gate.model.matrix)
    logging.basicConfig(level=logging.INFO, format="%(asctime)sZ %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.Formatter.converter = time.gmtime
    sys.setswitchinterval(0.0005)  # the loop must not wait 5 ms for the index thread
    if args.verify:  # without torch and what else serving needs
        from .verifying.run import Asked
        from .verifying.run import run as verify

        asked = Asked(args.begin, args.to, args.tenant)
        ca = os.environ.get("CORDON_CA", "")
        url = os.environ["CORDON_URL"]
        return verify(args.home.resolve(), args.shard, url, asked, live=args.live, elsewhere=args.elsewhere, ca=ca)
    copies = (("capture", args.capture), ("check", args.check), ("compare", args.compare), ("pour", args.pour))
    for what, folder in copies:
        if folder is not None:
            from .snapshots.run import Job
            from .snapshots.run import run as copied

            job = Job(what, folder.resolve(), args.position, args.before, args.wanted, args.with_)
            return copied(args.home.resolve(), args.shard, os.environ.get("CORDON_URL", ""), job, os.environ.get("CORDON_CA", ""))
    gc.disable()  # what imports make stays: looking for garbage among it takes half a second
    from .process import run

    gc.freeze()
    gc.enable()
    return run(
        args.home.resolve(),
        args.shard,
        "rebuild" if args.rebuild else "serve",
        args.accept_ledger,
        rates=not args.no_rates,
        kept=args.quota,
        nats_url=args.nats,
        creds=args.creds,
        read_only=args.read_only,
        day=args.clock,
        ca=args.ca or (os.environ.get("CORDON_CA", "") if args.nats else ""),
    )


if __name__ == "__main__":
    sys.exit(main())
