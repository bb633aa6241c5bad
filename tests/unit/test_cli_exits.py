"""Exit codes: each error has one, its name stands on stderr, its fields on stdout with --json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bus import errors
from cli.exits import Exit, Failure, failure_of
from cli.main import run

CORDON = str(Path(sys.executable).with_name("cordon"))
FIELDS = {"type", "error", "reason", "reasons", "field", "limit", "message", "advice", "retry_after_s", "detail"}


@pytest.mark.parametrize(
    ("error", "code", "name"),
    [
        (errors.Rejected("No.", reason="too_long", field="content", limit=65_536), Exit.REFUSED, "refused"),
        (errors.WriteRejected("No."), Exit.REFUSED, "refused"),
        (errors.Conflict("No.", reason="plan_stale"), Exit.CONFLICT, "conflict"),
        (errors.Denied("No."), Exit.NOT_PERMITTED, "not permitted"),
        (errors.FrameTooLarge("No.", size=9, limit=8), Exit.REFUSED, "refused"),
        (errors.MalformedFrame("No."), Exit.REFUSED, "refused"),
        (errors.ConfigError("No."), Exit.USAGE, "usage"),
        (errors.Unavailable("No."), Exit.UNAVAILABLE, "unavailable"),
        (errors.DeadlineExceeded("No."), Exit.UNAVAILABLE, "unavailable"),
        (errors.Closed("No."), Exit.UNAVAILABLE, "unavailable"),
        (errors.Unavailable("No.", reason="internal"), Exit.INTERNAL, "internal"),
        (errors.CordonError("No."), Exit.INTERNAL, "internal"),
        (TimeoutError(), Exit.UNAVAILABLE, "unavailable"),
        (PermissionError(13, "Permission denied", "/home/x"), Exit.USAGE, "usage"),
        (NotADirectoryError(20, "Not a directory", "/dev/null/x"), Exit.USAGE, "usage"),
        (OSError(28, "No space left on device"), Exit.UNAVAILABLE, "unavailable"),
        (KeyboardInterrupt(), Exit.INTERRUPTED, "interrupted"),
        (ExceptionGroup("tasks", [errors.Denied("No.")]), Exit.NOT_PERMITTED, "not permitted"),
        (ValueError("unforeseen"), Exit.INTERNAL, "internal"),
    ],
)
def test_each_error_has_one_code_and_says_its_name(error: BaseException, code: Exit, name: str, tmp_path: Path) -> None:
    failure = failure_of(error, tmp_path / "none")
    assert failure.code == code
    assert failure.line().startswith(f"cordon: {name}: ")
    assert failure.document().keys() == FIELDS


def test_every_error_of_the_bus_is_mapped(tmp_path: Path) -> None:
    def below(kind: type[errors.CordonError]) -> list[type[errors.CordonError]]:
        return [kind, *(k for child in kind.__subclasses__() for k in below(child))]

    for branch in (errors.Rejected, errors.Unavailable, errors.WireError, errors.ConfigError, errors.Closed):
        for kind in below(branch):
            error = kind.__new__(kind)
            errors.CordonError.__init__(error, "No.")
            assert failure_of(error, tmp_path).code != Exit.INTERNAL, kind


def test_a_refusal_keeps_reason_field_and_limit(tmp_path: Path) -> None:
    refused = errors.WriteRejected("Too long.", reason="too_long", reasons=("too_long", "x"), field="content", limit=65_536)
    document = failure_of(refused, tmp_path).document()
    assert (document["error"], document["reason"], document["reasons"]) == ("rejected", "too_long", ["too_long", "x"])
    assert (document["field"], document["limit"]) == ("content", 65_536)


def test_a_frame_that_is_too_large_names_its_limit(tmp_path: Path) -> None:
    document = failure_of(errors.FrameTooLarge("Large.", size=9, limit=8), tmp_path).document()
    assert (document["reason"], document["field"], document["limit"]) == ("frame_too_large", "frame", 8)


def test_an_unforeseen_error_is_one_line_and_its_traceback_is_in_the_log(tmp_path: Path) -> None:
    try:
        raise ValueError("line one\nline two \x1b[31m")
    except ValueError as e:
        line = failure_of(e, tmp_path).line()
    assert "\n" not in line
    assert "\x1b" not in line
    assert str(tmp_path / "cli.log") in line
    assert "Traceback" in (tmp_path / "cli.log").read_text()


def test_a_failure_passes_unchanged(tmp_path: Path) -> None:
    failure = Failure(Exit.CONFLICT, "No.", reason="x")
    assert failure_of(failure, tmp_path) is failure


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["query", "x", "--no-such-option"],
        ["write"],
        ["query", "x", "-k", "many"],
        ["hold", "x"],
        ["hold", "--dry-run"],
        ["hold", "x", "--now"],
        ["hold", "--plan", "plan_x", "-m", " "],
        ["hold", "x", "--plan", "plan_x", "-m", "why"],
        ["hold", "x", "--now", "--dry-run"],
        ["hold", "x", "--now", "-m", "x" * 1_001],
        ["release", "case_x"],
        ["review", "mem_x", "-m", "why"],
        ["review", "mem_x", "--accept", "--reject", "-m", "why"],
        ["context", "close", "writer"],
        ["trace", "down", "x", "--edge", "wrong"],
        ["write", "x", "--kind", "wrong"],
        ["query", "x", "--filter", "kind"],
        ["use", "acme.writer"],
        ["query", "x", "--as", "acme/"],
        ["query", "x"],
        ["status"],
        ["down"],
        ["rebuild"],
        ["verify"],
        ["tenant", "list"],
        ["compact", ""],
        ["case", "show", ""],
        ["prune", "--plan", "x", "--undo", "y", "-m", "why"],
        ["prune", "--plan", "x", "-m", "why", "--kind", "fact"],
        ["prune", "--list", "--older-than", "1d"],
        ["rollback"],
        ["restore"],
        ["drill", "--kind", "wrong"],
        ["broker", "room", "--ledger", "x"],
    ],
)
def test_a_wrong_command_line_is_exit_2_with_one_line_and_one_object(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORDON_HOME", str(tmp_path / "none"))
    assert run([*arguments, "--json"]) == Exit.USAGE
    seen = capsys.readouterr()
    assert json.loads(seen.out).keys() == FIELDS
    assert seen.err.startswith("cordon: usage: ")
    assert seen.err.count("\n") == 1
    assert run(arguments) == Exit.USAGE
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["restore", "--into", "x", "--user", ""], "user"),
        (["restore", "--into", "x", "--tenant="], "tenant"),
        (["prune", "--plan", "", "-m", "why"], "plan"),
        (["query", "x", "--as", ""], "as"),
        (["backup", "--to", ""], "to"),
        (["--home", "", "down"], "home"),
        (["hold", "x", "--now", "-m", ""], "message"),
    ],
)
def test_an_option_that_a_script_left_empty_is_refused_and_not_taken_for_none(
    arguments: list[str], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--json"]) == Exit.USAGE
    refused = json.loads(capsys.readouterr().out)
    assert (refused["reason"], refused["field"]) == ("option_empty", field)


def test_an_option_whose_empty_value_means_something_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORDON_HOME", str(tmp_path / "none"))
    assert run(["project", "set", "acme", "p1", "--display", "", "--flow-from", "", "--json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().out)["reason"] == "home_missing"


def test_an_option_after_two_dashes_is_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORDON_HOME", str(tmp_path / "none"))
    assert run(["write", "--", "--json"]) == Exit.USAGE
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "no Cordon home" in seen.err


# --- the global options before the command ------------------------------------------------------------
@pytest.mark.parametrize(
    "line",
    [
        "--json --home NONE tenant list",
        "--home=NONE tenant --json list",
        "--as a/b --json tenant --home NONE list",
        "tenant list --home NONE --json",
        "--home elsewhere --json tenant list --home NONE",  # the later one counts
    ],
)
def test_a_global_option_may_stand_anywhere(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([word.replace("NONE", str(tmp_path / "none")) for word in line.split()]) == Exit.USAGE
    refusal = json.loads(capsys.readouterr().out)
    assert (refusal["reason"], str(tmp_path / "none") in refusal["message"]) == ("home_missing", True)


@pytest.mark.parametrize("line", ["--home", "--json tenant --as", "--home x nope", "--nope status", "--home x tenant nope"])
def test_a_global_option_without_a_value_or_before_no_command_is_a_usage_error(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == Exit.USAGE
    assert "home_missing" not in capsys.readouterr().out


def test_a_global_option_before_no_command_or_a_group_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--home", "x"]) == run(["--json", "tenant"]) == Exit.OK
    assert "Usage: " in capsys.readouterr().out


# --- streams and folders that can't be used -----------------------------------------------------------
def shell(line: str) -> tuple[int, str]:
    """Exit code and stderr of a command line as a shell runs it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("CORDON_")}
    done = subprocess.run(["sh", "-c", line.replace("cordon", CORDON, 1)], env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("line", ["cordon --help >/dev/full", "cordon --version >/dev/full", "cordon up --help >/dev/full"])
def test_a_stdout_that_is_full_is_said_and_has_its_own_code(line: str) -> None:
    code, err = shell(line)
    assert code == Exit.OUTPUT
    assert err.startswith("cordon: output: stdout can't be written: No space left on device.")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("cordon --help >&-", 0),
        ("cordon --version <&- >&- 2>&-", 0),
        ("cordon status --home /none >&-", 2),
        ("cordon status --home /none --json >&-", 2),
        ("cordon status --home /none --json >/dev/full", 2),
        ("cordon status --home /none 2>&-", 2),
        ("cordon status --home /none 2>/dev/full", 2),
        ("cordon status --home /none --json <&- >&- 2>&-", 2),
    ],
)
def test_a_closed_stream_or_a_full_stderr_changes_no_exit_code(line: str, code: int) -> None:
    got, err = shell(line)
    assert got == code
    assert "Traceback" not in err
    assert err == "" or err.startswith("cordon: usage: ")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["up", "--help"]])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_help_whose_reader_left_is_141_and_silent(arguments: list[str], stream: str) -> None:
    read, write = os.pipe()
    os.close(read)
    streams: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}
    try:
        done = subprocess.run([CORDON, *arguments], timeout=60, check=False, **streams)  # type: ignore[call-overload]
    finally:
        os.close(write)
    assert (done.returncode, done.stderr or b"") == (141 if stream == "stdout" else 0, b"")


@pytest.mark.parametrize("command", [["up"], ["up", "--detach"], ["quickstart"]], ids=" ".join)
@pytest.mark.parametrize("place", ["/proc/x", "FILE", "FILE/x", "/dev/null"])
def test_a_place_where_no_home_can_be_is_a_usage_error(
    command: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("not a home")
    assert run([*command, "--json", "--home", place.replace("FILE", str(file))]) == Exit.USAGE
    seen = capsys.readouterr()
    refusal = json.loads(seen.out)
    assert (refusal["reason"], "--home" in refusal["advice"]) == ("folder_unusable", True)
    assert "foresaw" not in seen.err
    assert file.read_text() == "not a home"
