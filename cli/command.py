"""How a function becomes a command: the global options, an example in its help, and a `Call` as its first argument.

Invariant: every command is registered here, so none lacks an example or an option that all have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import typer

from .call import Call, environment
from .exits import cause_of, usage
from .output import reader_left

F = TypeVar("F", bound=Callable[..., int | None])
_PANEL: Final = "Options of every command"

# Where `cordon --help` lists a command.
HOME: Final = "A home: broker, gatekeeper and data"
PEOPLE: Final = "Who is in it"
MEMORY: Final = "Memories, as an agent"
DESK: Final = "Looking and holding, as an operator"

As = Annotated[
    str, typer.Option("--as", metavar="TENANT/AGENT", help="Who to act as, for instance demo/writer.", rich_help_panel=_PANEL)
]
Project = Annotated[
    str,
    typer.Option("--project", metavar="NAME", help="In which project; needed if the agent has several.", rich_help_panel=_PANEL),
]
HomeFolder = Annotated[
    str,
    typer.Option("--home", metavar="FOLDER", help="The home's folder; else CORDON_HOME, else ./.cordon.", rich_help_panel=_PANEL),
]
Json = Annotated[
    bool, typer.Option("--json", metavar="", help="One JSON object on stdout, nothing else.", rich_help_panel=_PANEL)
]
Message = Annotated[
    str, typer.Option("-m", "--message", metavar="TEXT", help="Why: it stays in the record. At most 1,000 characters.")
]

_CONTEXT: Final = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

# What may stand before the command, too; whether a value follows.
GLOBAL_OPTIONS: Final = {"--as": True, "--project": True, "--home": True, "--json": False}
_GLOBAL: Final[dict[str, Any]] = {"as_": As, "project": Project, "home": HomeFolder, "json": Json}


def group(app: typer.Typer, name: str, summary: str, *, panel: str) -> typer.Typer:
    """A command with sub-commands; alone it prints its help."""
    made = typer.Typer(help=summary)

    @made.callback(invoke_without_command=True)
    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print_help(context)

    app.add_typer(made, name=name, help=summary, rich_help_panel=panel)
    return made


def print_help(context: typer.Context) -> None:
    """With rich the help is printed as it is made, and the returned text is empty."""
    print(context.get_help(), end="")


def command(app: typer.Typer, name: str, *, example: str, panel: str = HOME) -> Callable[[F], F]:
    """Register `f(call, …)` as `name`. It returns its exit code, None = 0. `example` is a command line that works.
    The first paragraph of its docstring is its line in the list of commands; the rest is for its own help page.

    A function with a `project` parameter of its own keeps it; it then gets no global one. An option that must be given, or
    whose default is "", is refused when it is given as "": a script's empty variable would otherwise say less than was meant
    (`restore --user ""`).
    """

    def register(f: F) -> F:
        own = list(inspect.signature(f, eval_str=True).parameters.values())[1:]
        taken = {p.name for p in own}
        added = [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=False if n == "json" else "", annotation=kind)
            for n, kind in _GLOBAL.items()
            if n not in taken
        ]

        def run(context: typer.Context, **values: Any) -> int | None:
            _refuse_empty(context, values)
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

        parameters = [_CONTEXT, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *added]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {}  # typer looks names up here too; they are in the signature, resolved
        run.__doc__, run.__name__, run.__module__ = _unwrapped(f.__doc__ or ""), f.__name__, f.__module__
        app.command(name, epilog=f"Example: {example}", rich_help_panel=panel)(run)
        return f

    return register


def _refuse_empty(context: typer.Context, values: dict[str, Any]) -> None:
    for p in context.command.params:
        source = context.get_parameter_source(p.name or "")
        may_be_empty = p.param_type_name != "option" or not (p.required or p.default == "")
        if values[p.name or ""] == "" and not may_be_empty and source and source.name == "COMMANDLINE":
            field = (p.name or "").rstrip("_")
            raise usage(f"{p.opts[-1]} is empty.", reason="option_empty", field=field, advice="Give it a value, or leave it out.")


def _unwrapped(doc: str) -> str:
    """One line a paragraph: the terminal's width breaks it, not the source's."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(doc).split("\n\n"))
