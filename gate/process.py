"""The gatekeeper as a process: its arguments, its exit code, and what it says where it will not serve.

Invariant: whatever stops it is in the home's `gatekeeper.error`, as a refusal, and never a traceback for people.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from bus.errors import ConfigError, CordonError
from bus.servers import servers
from gate.event_loop import loop_factory
from gate.ledger.errors import LedgerError
from gate.paths import Paths
from gate.projections import ProjectionUnusable, set_aside
from gate.quotas import quotas
from gate.recovery import stamp
from gate.service import Limits, Owned, rebuild, serve, serve_in_turn, write_atomically
from gate.state.tenant import UnknownEvent

log = logging.getLogger(__name__)
Mode = Literal["serve", "rebuild"]
EXIT_REFUSED: Final = 65  # the ledger or a projection forbids serving: a restart changes nothing
EXIT_INTERNAL: Final = 70  # a bug: its log has it
EXIT_AGAIN: Final = 75  # a store was found damaged while it served: started again, it is made anew


def refusal(e: BaseException) -> dict[str, str]:
    """What the supervisor and the operator see when the gatekeeper will not serve."""
    if isinstance(e, CordonError):
        return {"reason": e.reason, "message": e.message, "advice": e.advice}
    if isinstance(e, UnknownEvent):
        return {
            "reason": "unknown_event",
            "message": f"The ledger holds an event that this version doesn't know: {e}.",
            "advice": "Use the version that wrote it, or a newer one.",
        }
    return {"reason": "internal", "message": f"The gatekeeper failed: {type(e).__name__}.", "advice": "See its log."}


def run(
    home: Path,
    shard: int,
    mode: Mode,
    accept_by: str | None,
    *,
    rates: bool = True,
    kept: Sequence[str] = (),
    nats_url: str = "",
    creds: str = "",
    ca: str = "",
    read_only: bool = False,
    day: str = "",
) -> int:
    """The process: serve or rebuild. With `nats_url` an external server or cluster, in turn with other gatekeepers.

    `kept`: quotas as NAME=NUMBER. `day`: see SteadyClock.begin. Returns the exit code.
    """
    paths = Paths(home, shard, Path(creds) if creds else None)
    paths.error.unlink(missing_ok=True)
    try:
        url = nats_url or os.environ.get("CORDON_URL") or str(json.loads(paths.status.read_text())["url"])
    except (OSError, ValueError, KeyError):
        print("cordon gate: no broker: run/status.json names no url and CORDON_URL is not set", file=sys.stderr)
        return 2
    try:
        where, limits = servers(url, ca or None), Limits(rates, quotas(kept), read_only, day)
        runner = asyncio.Runner(loop_factory=loop_factory())
        with runner:
            if mode == "serve":
                runner.run((serve_in_turn if nats_url else serve)(paths, where, limits))
                return 0
            result = runner.run(rebuild(paths, where, accept_by, day))
        print(json.dumps(result))
        return 0
    except ProjectionUnusable as e:
        if e.reason == "stream":
            return _refused(paths, e, mode)
        log.error("%s: it is set aside, the next start makes it anew", e)
        set_aside(e.path, paths.aside(stamp()))
        return EXIT_AGAIN
    except (LedgerError, UnknownEvent, ConfigError, Owned) as e:
        return _refused(paths, e, mode)
    except Exception as e:
        log.exception("stopped")
        write_atomically(paths.error, json.dumps(refusal(e)))
        return EXIT_INTERNAL


def _refused(paths: Paths, e: Exception, mode: str) -> int:
    log.error("refusing to serve: %s", e)
    write_atomically(paths.error, json.dumps(refusal(e)))
    print(json.dumps(refusal(e)) if mode != "serve" else f"cordon gate: {e}", file=sys.stdout if mode != "serve" else sys.stderr)
    return EXIT_REFUSED
