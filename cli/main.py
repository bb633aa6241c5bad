"""The `cordon` command: puts the nouns together, runs one command, and turns whatever happens into an exit code.

Invariants: no heavy import before the command is known; with --json every outcome is one JSON object on stdout, refusals too;
every failure is one line on stderr and never a traceback (CORDON_DEBUG=1 shows it).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import typer

from . import (
    admin,
    agents,
    broker,
    cases,
    contexts,
    demo,
    doctor,
    drills,
    erasures,
    homes,
    ledger,
    lifecycle,
    lineage,
    memories,
    projects,
    quickstart,
    snapshots,
    watch,
)
from .command import GLOBAL_OPTIONS, print_help
from .exits import DEBUG_VARIABLE, Exit, Failure, failure_of, usage
from .output import note, output_error, prepare_streams, reader_left

# Typer carries its own click since 0.2x; the base of its usage errors is public only as the base of this one.
_ClickError: Final = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="cordon",
    help="Shared memory for agents: attributed writes, admitted reads, reversible containment.",
    epilog="Begin with: cordon quickstart. A command's own page: cordon COMMAND --help. The options of every command (--as, "
    "--project, --home, --json) may stand before it, too.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for noun in (
    homes,
    quickstart,
    admin,
    projects,
    agents,
    memories,
    watch,
    lifecycle,
    lineage,
    cases,
    erasures,
    contexts,
    ledger,
    snapshots,
    drills,
    doctor,
    broker,
    demo,
):
    noun.register(app)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"cordon {version('cordon-bus')}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print_help(context)


def main() -> None:
    """The console entry point."""
    prepare_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code. Prints whatever there is to say."""
    try:
        line = _globals_last(arguments)
        code = typer.main.get_command(app).main(args=line, prog_name="cordon", standalone_mode=False)
        sys.stdout.flush()
        if code == Exit.INTERRUPTED:
            note("cordon: interrupted")
        return code if isinstance(code, int) else Exit.OK
    except (BrokenPipeError, SystemExit):  # typer and rich end the process themselves when the reader of their help leaves
        return reader_left()
    except Exception as e:
        if os.environ.get(DEBUG_VARIABLE) == "1":
            raise
        return _report(_failure(e, arguments), arguments)


def _globals_last(arguments: Sequence[str]) -> list[str]:
    """The line with the global options that stand before the command, or between a group and it, moved behind it."""
    path: list[str] = []
    moved: list[str] = []
    commands, rest = _commands(typer.main.get_command(app)), list(arguments)
    while rest and commands:
        option, equals, _ = rest[0].partition("=")
        if option not in GLOBAL_OPTIONS:
            if rest[0] not in commands:
                break
            path.append(rest[0])
            commands = _commands(commands[rest.pop(0)])
            continue
        words = 2 if GLOBAL_OPTIONS[option] and not equals else 1
        if len(rest) < words:
            raise usage(f"Option '{option}' requires an argument.", advice="See `cordon --help`.")
        moved += rest[:words]
        rest = rest[words:]
    return [*path, *([] if commands else moved), *rest]


def _commands(group: object) -> dict[str, object]:
    """The sub-commands of a command; none of a command that does something itself."""
    return dict(getattr(group, "commands", {}))


def _failure(error: BaseException, arguments: Sequence[str]) -> Failure:
    if isinstance(error, _ClickError):
        context = getattr(error, "ctx", None)
        message = str(getattr(error, "format_message", error.__str__)()).removesuffix(".") + "."
        return usage(message, advice=f"See `{context.command_path if context else _named(arguments)} --help`.")
    unwritten = output_error()
    if unwritten is not None:
        return Failure(
            Exit.OUTPUT,
            f"stdout can't be written: {unwritten.strerror}.",
            reason="output_failed",
            advice="What the command did stands; only its output is lost.",
        )
    return failure_of(error, _logs(arguments))


def _named(arguments: Sequence[str]) -> str:
    """The command that this line begins with; the parser doesn't say it of every error."""
    words, commands = ["cordon"], _commands(typer.main.get_command(app))
    for word in _globals_last(arguments):
        if word not in commands:
            break
        words.append(word)
        commands = _commands(commands[word])
    return " ".join(words)


def _report(failure: Failure, arguments: Sequence[str]) -> int:
    try:
        if "--json" in _options(arguments) and failure.code != Exit.OUTPUT:
            from .output import print_json

            print_json(failure.document())
    except BrokenPipeError:
        return reader_left()
    except OSError:
        output_error()  # the failure's own code says more
    note(failure.line())
    return failure.code


def _options(arguments: Sequence[str]) -> list[str]:
    """What stands before `--`: after it everything is text."""
    given = list(arguments)
    return given[: given.index("--")] if "--" in given else given


def _logs(arguments: Sequence[str]) -> Path:
    """The log folder of the home that this command line means, as far as it can be told without parsing it."""
    given = _options(arguments)
    named = next((after for option, after in pairwise(given) if option == "--home"), "")
    named = next((a.removeprefix("--home=") for a in given if a.startswith("--home=")), named)
    return Path(named or os.environ.get("CORDON_HOME") or ".cordon").expanduser() / "logs"
