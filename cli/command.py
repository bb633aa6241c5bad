"""How a function becomes a command: the global options, an example in its help, and a `Call` as its first argument.

Invariant: every command is registered here, so none lacks an example or an option that all have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import typer

from .call import Call, environment
from .exits import cause_of
from .output import reader_left

F = TypeVar("F", bound=Callable[..., int | None])
_PANEL: Final = "Options of every command"

As = Annotated[str, typer.Option("--as", metavar="TENANT/AGENT", help="Who to act as.", rich_help_panel=_PANEL)]
Project = Annotated[str, typer.Option("--project", metavar="NAME", help="The project of this call.", rich_help_panel=_PANEL)]
HomeFolder = Annotated[str, typer.Option("--home", metavar="FOLDER", help="The home folder.", rich_help_panel=_PANEL)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.", rich_help_panel=_PANEL)]
Message = Annotated[str, typer.Option("-m", "--message", metavar="TEXT", help="Why; at most 1,000 characters.")]

_GLOBAL: Final[dict[str, Any]] = {"as_": As, "project": Project, "home": HomeFolder, "json": Json}


def group(app: typer.Typer, name: str, summary: str) -> typer.Typer:
    """A command with sub-commands; alone it prints its help."""
    made = typer.Typer(help=summary)

    @made.callback(invoke_without_command=True)
    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print_help(context)

    app.add_typer(made, name=name, help=summary)
    return made


def print_help(context: typer.Context) -> None:
    """With rich the help is printed as it is made, and the returned text is empty."""
    print(context.get_help(), end="")


def command(app: typer.Typer, name: str, *, example: str) -> Callable[[F], F]:
    """Register `f(call, …)` as `name`. It returns its exit code, None = 0. `example` is a command line that works.

    A function with a `project` parameter of its own keeps it; it then gets no global one.
    """

    def register(f: F) -> F:
        own = list(inspect.signature(f, eval_str=True).parameters.values())[1:]
        taken = {p.name for p in own}
        added = [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=False if n == "json" else "", annotation=kind)
            for n, kind in _GLOBAL.items()
            if n not in taken
        ]

        def run(**values: Any) -> int | None:
            given = {p.name: values.pop(p.name) for p in added}
            call = Call(
                env=environment(),
                principal=given["as_"],
                project=given.get("project", ""),
                home_path=given["home"],
                json=given["json"],
            )
            try:
                return f(call, **values)
            except (BrokenPipeError, BaseExceptionGroup) as e:
                if isinstance(cause_of(e), BrokenPipeError):  # typer would end the process with 1
                    return reader_left()
                raise

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}  # typer looks names up here too; they are in the signature, resolved
        run.__doc__, run.__name__, run.__module__ = f.__doc__, f.__name__, f.__module__
        app.command(name, epilog=f"Example: {example}")(run)
        return f

    return register
