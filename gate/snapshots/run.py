"""The processes of a copy: `python -m gate --capture FOLDER`, `--check FOLDER`, `--compare FOLDER`, `--pour FOLDER`. Lines of
JSON on stdout; the last one is the result or a refusal.
"""

from __future__ import annotations

import asyncio
import errno
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bus.errors import CordonError, Unavailable
from bus.servers import Servers, servers
from gate.event_loop import loop_factory
from gate.paths import Paths
from gate.snapshots.capture import Capture
from gate.snapshots.check import Check
from gate.snapshots.compare import Comparison
from gate.snapshots.notary import Notary
from gate.snapshots.pour import Pour, Wanted
from gate.verifying.run import EXIT_FOUND, EXIT_REFUSED, EXIT_UNAVAILABLE, Lines


class Job(NamedTuple):
    """`what`: capture, check, compare or pour. `position`, `before_ms`: the cut; `with_`: what to compare with."""

    what: str
    folder: Path
    position: int = 0
    before_ms: int = 0
    wanted: str = ""  # JSON of Wanted
    with_: Path = Path()


def run(home: Path, shard: int, url: str, job: Job, ca: str = "") -> int:
    """The exit code; a check that finds something ends with 1."""
    started = time.perf_counter()
    try:
        if job.what == "check":
            result = Check(job.folder, Notary(Paths(home, shard).creds), job.position, job.before_ms).run()
        elif job.what == "compare":
            result = Comparison(job.with_, job.folder, job.position).run()
        else:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                result = runner.run(_connected(Paths(home, shard), servers(url, ca or None), job))
    except CordonError as e:
        print(json.dumps({"reason": e.reason, "message": e.message, "advice": e.advice}))
        return EXIT_UNAVAILABLE if isinstance(e, Unavailable) else EXIT_REFUSED
    except OSError as e:
        message = f"{job.folder} can't be used: {e.strerror or type(e).__name__}."
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            print(json.dumps({"reason": "disk_full", "message": message, "advice": "Make room, then try again."}))
            return EXIT_UNAVAILABLE
        print(json.dumps({"reason": "folder_unusable", "message": message, "advice": "Check the disk and who owns that folder."}))
        return EXIT_REFUSED
    print(json.dumps({**result, "seconds": round(time.perf_counter() - started, 3)}), flush=True)
    return 0 if result.get("ok", True) else EXIT_FOUND


async def _connected(paths: Paths, where: Servers, job: Job) -> dict[str, Any]:
    nc = await where.kept(paths.creds, "cordon-snapshot")
    try:
        if job.what == "capture":
            kept = await Capture(nc, paths.shard, job.folder, Lines(), Notary(paths.creds)).run()
            found: dict[str, Any] = msgspec.to_builtins(kept)
            return found
        wanted = msgspec.json.decode(job.wanted, type=Wanted)
        now_ms = int(time.time() * 1000)
        return await Pour(nc, paths.shard, job.folder, wanted, now_ms, Lines(), paths.user_key, Notary(paths.creds)).run()
    finally:
        with suppress(Exception):
            await asyncio.wait_for(nc.close(), 2)
