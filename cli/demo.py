"""`cordon demo`: the same swarm over a plain shared store and over Cordon, and what the difference is.

Starts a home of its own in a temporary folder and ends it; nothing of the caller's home is touched.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .call import Call
from .command import command
from .exits import Exit
from .output import note, print_json
from .render import render_untrusted

if TYPE_CHECKING:
    from agents_demo.harness import Watch
    from agents_demo.scenario import Scenario
    from agents_demo.swarm import Arena
    from agents_demo.truth import Event
    from broker_config.home import Home

TENANT: Final = "acme"
NEIGHBOUR: Final = "northwind"  # equal names; must stay untouched
OPERATOR: Final = "operator"


def register(app: typer.Typer) -> None:
    command(app, "demo", example="cordon demo --seed 7")(demo)


def demo(
    call: Call,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same result.")] = 7,
    scenario: Annotated[str, typer.Option(metavar="NAME|FILE", help="What is played: a name, or a TOML file of yours.")] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's home folder, and say where it is.")] = False,
) -> int | None:
    """Run a swarm with poisoned documents twice: without Cordon, and with it. Under two minutes."""
    from agents_demo.report import render_text
    from agents_demo.scenario import DEFAULT, load

    played = load(scenario or DEFAULT)
    with _folder(keep) as folder:
        result = run(folder, played, seed, _silent)
    if call.json:
        print_json(result)
    else:
        print(render_text(result, render_untrusted))
    return None if all(e["met"] for e in result["expectations"]) else Exit.REFUSED


def run(folder: Path, scenario: Scenario, seed: int, watch: Watch) -> dict[str, Any]:
    """Both runs in `folder`; the home is stopped at the end."""
    import anyio

    from agents_demo.harness import run_demo
    from agents_demo.stores import FILE_VARIABLE
    from agents_demo.swarm import Arena
    from broker_config import supervisor
    from broker_config.home import Home

    home = Home(folder / "home")
    ungated = Arena({a.name: {FILE_VARIABLE: str(folder / "shared.jsonl")} for a in scenario.agents})
    watch("Starting a home: broker and gatekeeper.")
    try:
        supervisor.start(home, detach=True)
        cordon = anyio.run(_populate, home, scenario)
        return run_demo(ungated, cordon, scenario, seed, watch)
    finally:
        supervisor.stop(home)


async def _populate(home: Home, scenario: Scenario) -> Arena:
    """Two tenants with equal names; the swarm lives in the first."""
    from agents_demo.swarm import Arena
    from broker_config.control import Control

    projects = tuple(scenario.projects)
    async with Control(home) as control:
        for tenant in (TENANT, NEIGHBOUR):
            await control.tenant_add(tenant)
            for project in projects:
                await control.project_add(tenant, project)
            for agent in scenario.agents:
                await control.agent_add(tenant, agent.name, role=agent.role, projects=projects, tools=agent.tools)
        await control.agent_add(TENANT, OPERATOR, role="operator", projects=projects)

    def creds(tenant: str) -> dict[str, str]:
        return {a.name: str(home.agent_creds(tenant, a.name)) for a in scenario.agents}

    environment = {name: {"CORDON_URL": home.url, "CORDON_CREDS": path} for name, path in creds(TENANT).items()}
    return Arena(environment, home.url, str(home.agent_creds(TENANT, OPERATOR)), creds(NEIGHBOUR))


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cordon-demo-"))
    try:
        yield folder
    finally:
        if keep:
            note(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _silent(moment: str | Event) -> None:
    """Nobody looks."""
