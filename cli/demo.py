"""`cordon demo`: the same swarm over a plain shared store and over Cordon, and what the difference is."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .call import Call
from .command import command
from .output import note, print_json

if TYPE_CHECKING:
    from agents_demo.harness import Arena
    from broker_config.home import Home


def register(app: typer.Typer) -> None:
    command(app, "demo", example="cordon demo --seed 7")(demo)


def demo(
    call: Call,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same result.")] = 7,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's home folder, and say where it is.")] = False,
) -> int | None:
    """Run a small swarm with poisoned documents twice: without Cordon, and with it. Under two minutes."""
    from agents_demo.report import render_text

    folder = Path(tempfile.mkdtemp(prefix="cordon-demo-"))
    try:
        result = run(folder, seed)
    finally:
        if keep:
            note(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if call.json:
        print_json(result)
    else:
        print(render_text(result))
    good = result["cordon"]["risky_calls_on_poison"] == 0 and result["cordon"]["second_tenant_untouched"]
    return None if good else 1


def run(folder: Path, seed: int) -> dict[str, Any]:
    """Both runs in `folder`; the home is stopped at the end."""
    from agents_demo.harness import ROLES, Arena, run_demo
    from broker_config import supervisor
    from broker_config.home import Home

    home = Home(folder / "home")
    progress = note if sys.stderr.isatty() else _silent
    progress("starting a home")
    try:
        supervisor.start(home, detach=True)
        cordon, other = asyncio.run(_populate(home))
        ungated = Arena({name: {"DEMO_FILE": str(folder / "shared.jsonl")} for name in ROLES})
        result = run_demo(ungated, cordon, seed, progress)
        result["cordon"]["second_tenant_untouched"] = asyncio.run(_memories_of(home, other)) == 0
    finally:
        supervisor.stop(home)
    return result


async def _populate(home: Home) -> tuple[Arena, str]:
    """Two tenants with equal names; the swarm lives in the first. (arena, name of the second)"""
    from agents_demo.harness import OPERATOR, ROLES, Arena
    from agents_demo.scenario import OTHER_TENANT, PROJECTS, TENANT
    from broker_config.control import Control

    async with Control(home) as control:
        for tenant in (TENANT, OTHER_TENANT):
            await control.tenant_add(tenant)
            for project in PROJECTS:
                await control.project_add(tenant, project)
            for name in ROLES:
                role, tools = ("ingest", ("erp",)) if name == "erp" else ("agent", ())
                await control.agent_add(tenant, name, role=role, projects=PROJECTS, tools=tools)
            await control.agent_add(tenant, OPERATOR, role="operator", projects=PROJECTS)
    creds = {name: str(home.agent_creds(TENANT, name)) for name in (*ROLES, OPERATOR)}
    environment = {name: {"CORDON_URL": home.url, "CORDON_CREDS": creds[name]} for name in ROLES}
    return Arena(environment, home.url, creds[OPERATOR]), OTHER_TENANT


async def _memories_of(home: Home, tenant: str) -> int:
    from broker_config.control import Control

    async with Control(home) as control:
        return next(int(t["memories"]) for t in await control.tenant_list() if t["name"] == tenant)


def _silent(line: str) -> None:
    """Progress that nobody looks at."""
