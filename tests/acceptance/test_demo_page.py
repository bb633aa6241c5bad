"""The demo's page in a real browser, where there is one: it draws, its script runs, its policy holds, and dark is dark."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents_demo.page import render_page
from cli.render import render_untrusted
from tests.unit.demo_result import result

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
# A browser is no service of ours: CI may lack it, so this skips there too.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium here")]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--window-size=1280,2000",
)  # fmt: skip
HOSTILE = '"><img src=x onerror="document.title=`owned`"><script>document.title="owned"</script>'


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="cordon-page-"))
    text = render_page(result(HOSTILE), lambda t: render_untrusted(t, 2_000, "html"))
    (path / "page.html").write_text(text, encoding="utf-8")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def browse(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    profile = tempfile.mkdtemp(dir=folder)
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, f"file://{folder}/page.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done


def test_the_page_draws_and_its_script_alone_runs(folder: Path) -> None:
    done = browse(folder, "--dump-dom")
    assert '<label class="time script">' in done.stdout  # its own script took `hidden` away
    assert "<img" not in done.stdout
    assert not re.search(r"<title>owned", done.stdout)
    assert "CONSOLE" not in done.stderr, done.stderr


def test_light_and_dark_are_two_pictures(folder: Path) -> None:
    for name, scheme in (("light", 1), ("dark", 0)):
        browse(folder, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={folder}/{name}.png")
    light, dark = ((folder / f"{name}.png").read_bytes() for name in ("light", "dark"))
    assert light.startswith(b"\x89PNG")
    assert min(len(light), len(dark)) > 20_000
    assert light != dark
