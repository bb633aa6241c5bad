"""Help: every command has a summary, an example and a line in the docs, and is there at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import cli
from cli.main import app, run

CLI = Path(cli.__path__[0])
DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
LINES_MAX = 300


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands(typer.main.get_command(app)))


def test_the_commands_are_these() -> None:
    assert {" ".join(path) for path in ALL} == {
        "up", "down", "status", "quickstart", "use", "tenant add", "tenant list", "project add", "project list", "agent add",
        "project show", "project set", "project share", "project unshare", "project archive", "project restore", "project delete",
        "project member add", "project member remove", "tenant export", "tenant delete", "tenant move",
        "agent list", "agent show", "agent delegate", "issuer",
        "agent rotate", "agent revoke", "tenant suspend", "tenant resume", "write", "query", "get", "watch",
        "why", "trace up", "trace down", "hold", "rollback", "release", "review", "case list", "erase", "erasure list",
        "erasure show", "legal-hold place", "legal-hold lift", "legal-hold list", "janitor",
        "promote", "report", "prune", "compact",
        "case show", "context show", "context close", "rebuild", "verify", "doctor security", "doctor ledger", "demo",
        "broker render", "broker init", "broker check", "broker room", "gate",
        "snapshot create", "snapshot list", "snapshot verify", "snapshot prune", "backup", "restore", "drill",
    }  # fmt: skip


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_command_has_a_summary_an_example_the_global_options_and_a_line_in_the_docs(path: tuple[str, ...]) -> None:
    command, name = ALL[path], " ".join(path)
    assert command.help
    assert "\n" not in command.help.strip().partition("\n\n")[0], "the first paragraph is the line in the list of commands"
    assert command.epilog.startswith(f"Example: cordon {name}")
    assert {"--as", "--project", "--home", "--json"} <= {option for p in command.params for option in p.opts}
    assert f"| `cordon {name}` |" in DOCS.read_text()


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_an_example_can_be_parsed(path: tuple[str, ...]) -> None:
    import shlex

    words = shlex.split(ALL[path].epilog.removeprefix("Example: cordon "))
    ALL[path].make_context("x", words[len(path) :])


@pytest.mark.parametrize("path", [*ALL, (), ("trace",), ("case",)], ids=" ".join)
def test_help_is_printed_whole_and_exit_0(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Usage: " in shown
    if path in ALL:  # square brackets would be taken for markup, and left out
        assert set(ALL[path].help.split()) <= set(shown.split())


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "quickstart" in capsys.readouterr().out
    assert run(["trace"]) == 0
    assert "down" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"cordon {version('cordon-bus')}\n"


def test_help_loads_nothing_heavy() -> None:
    """So it is there at once: what takes the time is what is imported."""
    heavy = {"bus", "nats", "msgspec", "anyio", "torch", "duckdb", "gate", "broker_config"}
    code = f"import sys; from cordon_cli.main import run; run(['--help']); print(*{heavy} & {{*sys.modules}}, file=sys.stderr)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stderr.strip() == ""


def test_files_are_short() -> None:
    assert {path.name: n for path in CLI.glob("*.py") if (n := len(path.read_text().splitlines())) > LINES_MAX} == {}
