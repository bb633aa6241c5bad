"""The README and the docs tell the truth: every snippet and command in them runs here, in a home of its own.

What stands below a command is its output. Ids, times and ports are others each time: what is seen in an id's place stands for it
wherever the doc names it again, so `cordon release ajv5nk29` releases what the doc calls ajv5nk29 (a doc's short ids have a
digit, which tells them from words). A line `…` leaves lines out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import typer

from cli.main import app

ROOT: Final = Path(__file__).parents[2]
RUN: Final = (
    "README.md",
    "docs/quickstart.md",
    "docs/agents.md",
    "docs/operators.md",
    "docs/testing.md",
    "docs/demo.md",
    "docs/deployment.md",
)
DOCS: Final = sorted(str(p.relative_to(ROOT)) for p in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
PLACEHOLDERS: Final = ("COMMAND", "…")
CLIENT_LINES_MAX: Final = 10  # of the README's first look at the client
JS_PACKAGE: Final = "@nats-io/transport-node@3"

_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\(([^)#]+)[^)]*\)")
_ID: Final = r"[0-9a-hjkmnp-tv-z]"
_VARYING: Final = re.compile(
    r"(?P<time>(?:\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d(?:\.\d+Z)?)|(?P<port>(?<=127\.0\.0\.1:)\d+)"
    rf"|(?P<id>(?<=_){_ID}{{26}}\b|\b(?=[a-z]*\d[a-z0-9]*\b){_ID}{{8}}\b)"
)


class Block(NamedTuple):
    language: str
    text: str


class Command(NamedTuple):
    line: str
    output: list[str]


def blocks(name: str) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall((ROOT / name).read_text())]


def commands(text: str) -> list[Command]:
    """A console block: commands after `$ `, and what each prints."""
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        else:
            found[-1].output.append(line)
    return found


class Reader:
    """Somebody who follows a doc in a folder of their own, and compares."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: dict[str, str] = {}  # what the doc calls it → what it is here

    def run(self, script: str) -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith("CORDON_")}
        env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout

    def follow(self, command: Command) -> None:
        line = _VARYING.sub(lambda m: self.ids.get(m[0], m[0]), command.line)
        self.compare(command.output, self.run(line), command.line)

    def compare(self, expected: list[str], shown: str, of: str) -> None:
        """Line by line; blank lines and the width of gaps don't count, and nothing expected means that nothing is said of it."""
        left = [line for line in shown.splitlines() if line.strip()]
        skips = not any(expected)
        for line in (line for line in expected if line.strip()):
            if line == "…":
                skips = True
                continue
            while left and not self._same(line, left[0]) and skips:
                left.pop(0)
            assert left, f"{of}\nmissing: {line}\nin:\n{shown}"
            assert self._same(line, left[0]), f"{of}\nexpected: {line}\nshown:    {left[0]}"
            left.pop(0)
            skips = False
        assert skips or not left, f"{of}\nthe doc leaves out: {left}"

    def _same(self, expected: str, shown: str) -> bool:
        """Whether they say the same; notes which id stands for which."""
        names: list[str] = []
        pattern, end = "", 0
        expected, shown = " ".join(expected.split()), " ".join(shown.split())
        for found in _VARYING.finditer(expected):
            pattern += re.escape(expected[end : found.start()])
            end = found.end()
            if found["id"] and found[0] in self.ids:
                pattern += re.escape(self.ids[found[0]])
            elif found["id"]:
                names.append(found[0])
                pattern += f"({_ID}{{{len(found[0])}}})"
            else:
                pattern += r"[\d:.TZ-]+"
        same = re.fullmatch(pattern + re.escape(expected[end:]), shown)
        if same:
            for name, value in zip(names, same.groups(), strict=True):
                self.ids |= {name: value, name[-8:]: value[-8:]}
        return same is not None


@pytest.fixture
def reader() -> Iterator[Reader]:
    """In an empty folder; the home that is made in it is stopped at the end."""
    path = Path(tempfile.mkdtemp(prefix="cordon-docs-"))
    someone = Reader(path)
    try:
        yield someone
    finally:
        if (path / ".cordon").exists():
            someone.run("cordon down")
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("name", RUN)
def test_every_command_and_snippet_runs_and_prints_what_the_doc_says(name: str, reader: Reader) -> None:
    found = blocks(name)
    if not any("$ cordon quickstart\n" in block.text for block in found):
        reader.run("cordon quickstart")
    for block, after in zip(found, [*found[1:], Block("", "")], strict=True):
        if block.language == "python":
            shown = reader.run(f"python3 - <<'SNIPPET'\n{block.text}SNIPPET")
            if after.language == "text":
                reader.compare(after.text.splitlines(), shown, f"{name}: the snippet before this text")
        elif block.language == "toml":  # a file, which its first line names: `# mine.toml`
            (reader.folder / block.text.splitlines()[0].removeprefix("# ")).write_text(block.text)
        elif block.language == "console":
            for command in commands(block.text):
                reader.follow(command)


def test_the_readme_shows_a_client_of_ten_lines() -> None:
    snippet = next(block.text for block in blocks("README.md") if block.language == "python")
    assert len(snippet.splitlines()) <= CLIENT_LINES_MAX


def test_the_commands_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks("README.md"):
        if block.language == "sh":
            for target in re.findall(r"^make (\S+)", block.text, re.MULTILINE):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("name", DOCS)
def test_links_lead_somewhere(name: str) -> None:
    for target in _LINK.findall((ROOT / name).read_text()):
        if "://" not in target:
            assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"


@pytest.mark.parametrize("name", DOCS)
def test_a_command_that_is_named_is_there_with_its_options(name: str) -> None:
    text = (ROOT / name).read_text()
    for line in [*re.findall(r"`(cordon [^`]+)`", text), *re.findall(r"^\$ (cordon .+)$", text, re.MULTILINE)]:
        words = re.split(r"\s+", line)[1:]
        command: Any = typer.main.get_command(app)
        while words and (subcommands := getattr(command, "commands", None)) and not words[0].startswith("-"):
            if words[0] in PLACEHOLDERS:
                break
            assert words[0] in subcommands, f"{name}: {line}"
            command = subcommands[words.pop(0)]
        known = {option for p in command.params for option in p.opts} | {"--help"}
        assert set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", line)) <= known, f"{name}: {line}"


# --- another language -------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_javascript_of_the_wire_contract_runs(reader: Reader) -> None:
    """Needs node and the npm registry. In CI a machine with node must be able to run it."""
    found = blocks("docs/wire.md")
    if shutil.which("node") is None:
        pytest.skip("no node here")
    (reader.folder / "package.json").write_text("{}")
    install = f"npm install --no-audit --no-fund --ignore-scripts {JS_PACKAGE}"
    installed = subprocess.run(["bash", "-c", install], cwd=reader.folder, capture_output=True, text=True, timeout=300)
    if installed.returncode != 0:
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse(f"npm can't install {JS_PACKAGE}: {installed.stderr[-500:]}")
    reader.run("cordon quickstart")
    at = next(i for i, block in enumerate(found) if block.language == "js")
    assert f"npm install {JS_PACKAGE}" in (ROOT / "docs/wire.md").read_text()
    (reader.folder / "agent.mjs").write_text(found[at].text)
    assert found[at + 1].language == "text"
    reader.compare(found[at + 1].text.splitlines(), reader.run("node agent.mjs"), "docs/wire.md: the JavaScript")
