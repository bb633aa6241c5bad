"""The README and the docs tell the truth: every snippet and command in them runs here, in a home of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
RUN = ("README.md", "docs/quickstart.md", "docs/agents.md", "docs/operators.md", "docs/testing.md", "docs/demo.md")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


class Block(NamedTuple):
    language: str
    text: str


def blocks(name: str) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall((ROOT / name).read_text())]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a home that `cordon quickstart` made; stopped at the end."""
    path = Path(tempfile.mkdtemp(prefix="cordon-docs-"))
    try:
        run(path, "cordon quickstart")
        yield path
    finally:
        run(path, "cordon down")
        shutil.rmtree(path, ignore_errors=True)


def run(folder: Path, script: str) -> str:
    bin_ = str(Path(sys.executable).parent)
    env = {k: v for k, v in os.environ.items() if not k.startswith("CORDON_")}
    env |= {"PATH": f"{bin_}:{os.environ['PATH']}", "NO_COLOR": "1"}
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def console(text: str) -> str:
    """The commands of a console block as one script."""
    return "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))


@pytest.mark.parametrize("name", RUN)
def test_every_command_and_snippet_runs(name: str, folder: Path) -> None:
    found = blocks(name)
    script: list[str] = []
    for i, block in enumerate(found):
        if block.language == "python":
            if script:
                run(folder, "\n".join(script))
                script = []
            out = run(folder, f"python3 - <<'SNIPPET'\n{block.text}SNIPPET")
            if i + 1 < len(found) and found[i + 1].language == "text":
                assert out == found[i + 1].text
        elif block.language == "toml":  # a file, which its first line names: `# mine.toml`
            (folder / block.text.splitlines()[0].removeprefix("# ")).write_text(block.text)
        elif block.language == "console":
            assert console(block.text), f"{name}: a console block without a command"
            script.append(console(block.text).replace("cordon down", "true"))  # the folder's owner stops it
    if script:
        run(folder, "\n".join(script))


def test_the_commands_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks("README.md"):
        if block.language == "sh":
            for target in re.findall(r"^make (\S+)", block.text, re.MULTILINE):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("name", sorted(str(p.relative_to(ROOT)) for p in [ROOT / "README.md", *ROOT.glob("docs/*.md")]))
def test_links_lead_somewhere(name: str) -> None:
    for target in _LINK.findall((ROOT / name).read_text()):
        if "://" not in target:
            assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"
