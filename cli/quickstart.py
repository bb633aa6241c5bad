"""From nothing to a bus one can try: `cordon quickstart`.

Invariant: it can be run again at any time; it adds only what is missing and takes nothing away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from .call import Call
from .command import command
from .homes import ensure_up
from .output import note, print_json, progress, show

if TYPE_CHECKING:
    from broker_config.control import Control
    from broker_config.home import Home

TENANT: Final = "demo"
PROJECT: Final = "main"
AGENTS: Final = {"writer": "agent", "reader": "agent", "ops": "operator"}
NEXT: Final = (
    f"cordon write 'The staging database uses rotating keys' --as {TENANT}/writer",
    f"cordon query 'how do we log in to staging?' --as {TENANT}/reader",
    f"cordon hold agent:writer --dry-run --as {TENANT}/ops",
)


def register(app: typer.Typer) -> None:
    command(app, "quickstart", example="cordon quickstart")(quickstart)


def quickstart(call: Call) -> int | None:
    """Start a home with a tenant, a project and three agents, and say what to try.

    Tenant `demo`, project `main`; `demo/writer` and `demo/reader` are agents, `demo/ops` is an operator.
    It can be run again: it adds what is missing and takes nothing away.
    """
    from broker_config.home import Current
    from broker_config.status import not_serving

    home = call.home
    running = ensure_up(home)
    if running.state != "ready":
        raise not_serving(home, running)
    with progress("adding tenant, project and agents"):
        added = call.ask_control(lambda control: _fill(control, home))
    home.write_current(Current(principal=f"{TENANT}/writer", project=PROJECT))
    if call.json:
        print_json({"home": str(home.path), "url": running.url, "tenant": TENANT, "project": PROJECT, "agents": list(AGENTS),
                    "added": added, "next": list(NEXT)})  # fmt: skip
        return None
    done = f"{', '.join(added)} added" if added else "everything was there already"
    note(f"The bus is up at {running.url}; {done}.")
    show("Try:", *(f"  {line}" for line in NEXT))
    return None


async def _fill(control: Control, home: Home) -> list[str]:
    """Adds what is missing; names it."""
    added = []
    if TENANT not in [t["name"] for t in await control.tenant_list()]:
        await control.tenant_add(TENANT)
        added.append(f"tenant {TENANT}")
    if PROJECT not in [p["name"] for p in await control.project_list(TENANT)]:
        await control.project_add(TENANT, PROJECT)
        added.append(f"project {PROJECT}")
    for name, role in AGENTS.items():
        if not home.agent_creds(TENANT, name).exists():
            await control.agent_add(TENANT, name, role=role, projects=[PROJECT])
            added.append(f"agent {name}")
    return added
