"""A home's life: up, down, status, and who the next commands act as (use)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .call import Call, parse_principal
from .command import command
from .exits import NAMES, Exit, Failure, usage
from .output import facts, note, print_json, progress, show
from .render import render_untrusted

if TYPE_CHECKING:
    from broker_config.home import Home
    from broker_config.status import Status

# A process that ended stays visible until its parent has reaped it; an orphan's parent is init, which may take its time.
_REAPED_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.02
# Which process a question to the control plane failed on, by the failure's reason.
_SILENT: Final = {"no_answer": "gatekeeper", "broker_unreachable": "broker"}


def register(app: typer.Typer) -> None:
    command(app, "up", example="cordon up --detach")(up)
    command(app, "down", example="cordon down")(down)
    command(app, "status", example="cordon status --json")(status)
    command(app, "janitor", example="cordon janitor")(janitor)
    command(app, "use", example="cordon use acme/writer --project p1")(use)


def up(
    call: Call,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", metavar="", help="Go on in the background; else Ctrl-C stops it.")
    ] = False,
) -> int | None:
    """Start broker and gatekeeper; the first time it makes the home.

    An empty home has nobody in it: go on with `cordon tenant add`, or take `cordon quickstart` instead.
    """
    if detach:
        return _told(call, ensure_up(call.home, None if call.json else note))
    from broker_config.supervisor import start

    return _told(call, start(call.home, detach=False, on_line=None if call.json else note))


def ensure_up(home: Home, on_line: Callable[[str], None] | None = None) -> Status:
    """The running home: started in the background, unless it is up already. `on_line` hears of troubles on the way."""
    from broker_config.supervisor import read_status, start

    running = read_status(home)
    if running is not None and running.state == "ready":
        return running
    with progress("starting broker and gatekeeper"):
        return start(home, detach=True, on_line=on_line, troubles_alone=True)


def down(call: Call) -> int | None:
    """Stop every process of the home; harmless if none runs. Nothing is lost."""
    from broker_config.supervisor import read_status, stop

    home = call.existing_home()
    running = read_status(home)
    with progress("stopping"):
        stopped = stop(home)
        _wait_reaped(running.pids.values() if running else ())
    if call.json:
        print_json({"home": str(home.path), "stopped": stopped})
    else:
        show(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
    return None


def _wait_reaped(pids: Collection[int]) -> None:
    """Until none of the stopped processes can be seen any more, so that whoever looks for their pids finds none."""
    deadline = time.monotonic() + _REAPED_TIMEOUT_S
    while any(map(_is_visible, pids)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _is_visible(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # gone, or somebody else's by now
        return False
    return True


def janitor(call: Call) -> int | None:
    """Run the process that strips erased text from the ledger, in the foreground.

    `cordon up` starts one beside the others. Two at once do no harm. It waits for a broker that is away, and ends with Ctrl-C.
    """
    from broker_config.supervision import janitor_command

    home = call.existing_home()
    env = {**os.environ, "CORDON_URL": call.url(), "CORDON_CA": call.ca_file() or ""}
    command = janitor_command(home)
    os.execve(command[0], command, env)  # it takes this process's place, so that whoever stops one stops the other


def status(call: Call) -> int | None:
    """Show what runs, where, and how far it is. Exit 6 if the home is not ready."""
    import msgspec

    from broker_config.status import Problem, Status
    from broker_config.supervisor import last_status, read_status
    from bus import Unavailable

    home = call.existing_home()
    if home.settings().servers:  # its processes are others' to start and stop: what answers is ready
        answer = call.ask_control(lambda control: control.status())
        return _told(call, Status(url=home.url, pids={}, state="ready", since=""), answer)
    now = read_status(home)
    if now is None:
        last = last_status(home)
        since, error = (last.since, last.error) if last else ("", None)
        now = Status(url=home.url, pids={}, state="stopped", since=since, error=error)
    gatekeeper: dict[str, Any] = {}
    if now.state == "ready" or (now.state == "starting" and "gatekeeper" in now.pids):
        try:
            gatekeeper = ask_gatekeeper(call, now)
        except Unavailable as e:
            if now.state == "ready":
                now = msgspec.structs.replace(now, error=Problem.of(e))
    return _told(call, now, gatekeeper)


def ask_gatekeeper(call: Call, now: Status) -> dict[str, Any]:
    """What the gatekeeper of a home that is up says of itself. Unavailable names the process that doesn't answer."""
    from bus import Unavailable

    try:
        return call.ask_control(lambda control: control.status())
    except Unavailable as e:
        silent = _SILENT.get(e.reason, "")
        if silent not in now.pids:
            raise
        pid, log = now.pids[silent], call.home.log(silent)
        raise Unavailable(
            f"The {silent} (pid {pid}) does not answer; it may be hung: kill -9 {pid} restarts it.",
            reason=f"{silent}_silent",
            advice=f"Its log is {log}.",
        ) from None


def use(
    call: Call,
    principal: Annotated[str, typer.Argument(metavar="TENANT/AGENT", help="Who the next commands act as.")],
) -> int | None:
    """Choose who, and in which project, the next commands act as.

    The choice is kept in the home until the next `use`; --as and --project still overrule it.
    """
    from dataclasses import replace

    from broker_config.home import Current

    tenant, agent = parse_principal(principal, "use")
    chosen = replace(call, principal=principal).credential()
    if call.project and call.project not in chosen.projects:
        raise usage(
            f"{principal} has no project {call.project!r}.",
            reason="project_unknown",
            field="project",
            advice=f"It has: {', '.join(chosen.projects) or 'none'}.",
        )
    call.home.write_current(Current(principal=f"{tenant}/{agent}", project=call.project))
    if call.json:
        print_json({"principal": principal, "project": call.project, "projects": list(chosen.projects)})
    else:
        where = f"in {call.project}" if call.project else f"(projects: {', '.join(chosen.projects) or 'none'})"
        show(f"using {principal} {where}")
    return None


def _missing(now: Status) -> list[str]:
    """What runs beside in a home that is ready, and doesn't run."""
    from broker_config.supervision import BESIDE

    gone = [name for name in BESIDE if name not in now.pids] if now.state == "ready" and now.pids else []
    return [f"the {name} doesn't run: see logs/{name}.log" for name in gone]


def _restored(call: Call) -> dict[str, Any]:
    """Whether agents can write in the home, and of what it was made if it was restored."""
    import json

    found: dict[str, Any] = {"read_only": call.home.settings().read_only}
    if call.home.restored.exists():
        made = json.loads(call.home.restored.read_bytes())
        found["restored"] = {name: made.get(name) for name in ("snapshot", "at", "by")} | {"only": made.get("only") or {}}
        found["read_only"] = found["read_only"] or bool(made.get("only"))
    return found


def _told(call: Call, now: Status, gatekeeper: dict[str, Any] | None = None) -> int | None:
    """Print a status. 6 unless the home is ready, or was stopped on request."""
    import msgspec

    from broker_config.status import not_serving

    document = {"home": str(call.home.path), **msgspec.to_builtins(now), **_restored(call)}
    if gatekeeper is not None:
        document["gatekeeper"] = gatekeeper
    if call.json:
        print_json(document)
    else:
        pids = ", ".join(f"{name} {pid}" for name, pid in now.pids.items()) or "none"
        counts = {
            name: str(value) for name, value in (gatekeeper or {}).items() if isinstance(value, (int, float, str)) and value != ""
        }
        if document.get("restored"):
            made = document["restored"]
            only = ", ".join(f"{k} {v}" for k, v in made["only"].items())
            counts["restored"] = f"from {made['snapshot']}, as of {made['at']}" + (f"; only {only}" if only else "")
        if document.get("read_only"):
            counts["read_only"] = "agents can't write in it"
        place = {"state": now.state, "url": now.url, "home": str(call.home.path), "processes": pids, "since": now.since}
        show(facts({**place, **counts}))
        for trouble in (*_missing(now), *(gatekeeper or {}).get("troubles", ())):
            note(f"cordon: attention: {render_untrusted(trouble)}")
    if (now.state == "ready" and now.error is None) or (now.state == "stopped" and gatekeeper is None):
        return None
    if now.state == "degraded":
        why = not_serving(call.home, now)
        note(Failure(Exit.UNAVAILABLE, why.message, reason=why.reason, advice=why.advice).line())
    elif now.error is not None:
        note(Failure(Exit.UNAVAILABLE, now.error.message, reason=now.error.reason, advice=now.error.advice).line())
    else:
        advice = " Start it with `cordon up --detach`." if now.state == "stopped" else ""
        note(f"cordon: {NAMES[Exit.UNAVAILABLE]}: the home {render_untrusted(str(call.home.path))} is {now.state}.{advice}")
    return Exit.UNAVAILABLE
