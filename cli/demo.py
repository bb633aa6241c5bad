"""`cordon demo`: the same swarm over a plain shared store and over Cordon, and what the difference is."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .call import Call
from .command import command
from .output import note, print_json


def register(app: typer.Typer) -> None:
    command(app, "demo", example="cordon demo --seed 7")(demo)


def demo(
    call: Call,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same result.")] = 7,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's home folder.")] = False,
) -> int | None:
    """Run four agents with a poisoned document twice: without Cordon, and with it. Under two minutes."""
    from agents_demo.harness import run_demo
    from agents_demo.report import render_text

    result = run_demo(seed=seed, keep=keep, progress=note if sys.stderr.isatty() else _silent)
    if call.json:
        print_json(result)
    else:
        print(render_text(result))
    return None


def _silent(line: str) -> None:
    """Progress that nobody looks at."""
