"""`cordon demo`: the same swarm over a plain shared store and over Cordon, and what the difference is.

Starts a home of its own in a temporary folder and ends it; nothing of the caller's home is touched.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .call import Call
from .command import command
from .demo_view import view
from .exits import Exit, usage
from .output import note, print_json
from .render import render_untrusted

if TYPE_CHECKING:
    from agents_demo.harness import Watch
    from agents_demo.scenario import Scenario
    from agents_demo.swarm import Stage
    from broker_config.home import Home

TENANT: Final = "acme"
NEIGHBOUR: Final = "northwind"  # equal names; must stay untouched
PAGE_CHARS: Final = 2_000  # of one text
BENIGN: Final = "calm"  # the same swarm on a normal day


def register(app: typer.Typer) -> None:
    command(app, "demo", example="cordon demo --seed 7")(demo)


def demo(
    call: Call,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same result.")] = 7,
    scenario: Annotated[str, typer.Option(metavar="NAME|FILE", help="What is played: a name, or a TOML file of yours.")] = "",
    html: Annotated[str, typer.Option(metavar="FILE", help="Write the result as a page with a graph of the spread.")] = "",
    model: Annotated[str, typer.Option(metavar="URL", help="Let a model word and decide: a chat completions endpoint.")] = "",
    model_name: Annotated[
        str, typer.Option(metavar="NAME", help="Which model; its key is read from CORDON_DEMO_MODEL_KEY.")
    ] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's home folder, and say where it is.")] = False,
) -> int | None:
    """Run a swarm with poisoned documents twice: without Cordon, and with it. Under half a minute."""
    from agents_demo.page import render_page
    from agents_demo.report import render_text
    from agents_demo.scenario import DEFAULT, load

    played = load(scenario or DEFAULT)
    worded = _model(model, model_name)
    page = _writable(html) if html else None
    with _folder(keep) as folder, view() as watch:
        result = run(folder, played, seed, worded, watch)
    if page:
        page.write_text(render_page(result, lambda text: render_untrusted(text, PAGE_CHARS, "html")), encoding="utf-8")
        note(f"written: {render_untrusted(str(page))}")
    if call.json:
        print_json(result)
    else:
        print(render_text(result, render_untrusted))
    return None if all(e["met"] for e in result["expectations"]) else Exit.REFUSED


def run(folder: Path, scenario: Scenario, seed: int, model: Mapping[str, str], watch: Watch) -> dict[str, Any]:
    """All runs in `folder`; the home is stopped at the end. model: the environment that names one."""
    import anyio

    from agents_demo.harness import run_demo
    from broker_config import supervisor
    from broker_config.home import Home

    home = Home(folder / "home")
    watch("Starting a home: broker and gatekeeper.")
    try:
        supervisor.start(home, detach=True)
        anyio.run(_populate, home, scenario)
        return run_demo(_stage(folder, home, scenario, model), scenario, seed, watch)
    finally:
        supervisor.stop(home)


async def _populate(home: Home, scenario: Scenario) -> None:
    """Three tenants with equal names; an operator for the first."""
    from agents_demo.scenario import OPERATOR
    from broker_config.control import Control

    projects = tuple(scenario.projects)
    async with Control(home) as control:
        for tenant in (TENANT, NEIGHBOUR, BENIGN):
            await control.tenant_add(tenant)
            for project in projects:
                await control.project_add(tenant, project)
            for agent in scenario.agents:
                await control.agent_add(tenant, agent.name, role=agent.role, projects=projects, tools=agent.tools)
        await control.agent_add(TENANT, OPERATOR, role="operator", projects=projects)


def _stage(folder: Path, home: Home, scenario: Scenario, model: Mapping[str, str]) -> Stage:
    from agents_demo.model import NAME_VARIABLE
    from agents_demo.scenario import OPERATOR
    from agents_demo.stores import FILE_VARIABLE
    from agents_demo.swarm import Arena, Stage

    names = [a.name for a in scenario.agents]

    def file(name: str) -> Arena:
        return Arena({agent: {FILE_VARIABLE: str(folder / name), **model} for agent in names})

    def creds(tenant: str, agent: str) -> str:
        return str(home.agent_creds(tenant, agent))

    def environment(tenant: str) -> dict[str, dict[str, str]]:
        return {agent: {"CORDON_URL": home.url, "CORDON_CREDS": creds(tenant, agent), **model} for agent in names}

    neighbour = {agent: creds(NEIGHBOUR, agent) for agent in names}
    return Stage(
        benign_file=file("benign.jsonl"),
        benign_cordon=Arena(environment(BENIGN)),
        file=file("shared.jsonl"),
        cordon=Arena(environment(TENANT), home.url, creds(TENANT, OPERATOR), neighbour),
        model=model.get(NAME_VARIABLE, ""),
    )


def _model(url: str, name: str) -> dict[str, str]:
    """The environment that tells an agent's process of a model; a URL that is none is refused before the swarm runs."""
    from agents_demo.model import DEFAULT_NAME, NAME_VARIABLE, URL_VARIABLE, endpoint

    given = {URL_VARIABLE: url, NAME_VARIABLE: name or DEFAULT_NAME} if url else {}
    endpoint(given)
    return given


def _writable(name: str) -> Path:
    """Where the page goes; what is wrong with it is said before the swarm runs."""
    page = Path(name)
    if page.is_dir() or not page.absolute().parent.is_dir():
        raise usage(f"The page can't be written to {name}.", field="html", advice="Give a file in a folder that is there.")
    return page


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
