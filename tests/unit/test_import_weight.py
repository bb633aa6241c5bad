"""What `import bus` costs and gives: nothing of the gate, and exactly the curated names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bus

HEAVY = ("torch", "duckdb", "hnswlib", "numpy", "model2vec", "safetensors", "typer", "rich", "uvloop", "sqlite3")
OURS = ("gate", "broker_config", "cli", "cordon_cli", "agents_demo")
NAMES = [
    "Actor", "Case", "Child", "Closed", "ConfigError", "Conflict", "ContextAnswer", "CordonError", "DeadlineExceeded", "Denied",
    "Desk", "Draft", "Edge", "Erasure", "Feed", "FrameTooLarge", "Item", "LegalHold", "MalformedFrame", "Member", "Memory",
    "MemoryBus", "Notice", "Plan", "Pruned", "Query", "Recall", "Receipt", "Rejected", "Reported", "Stats", "Store", "Synced",
    "Timing", "TraceAnswer", "Unavailable", "WhyAnswer", "WireError", "WriteRejected", "connect", "connect_operator",
]  # fmt: skip


def test_import_bus_loads_nothing_heavy_and_nothing_of_the_gate() -> None:
    code = "import bus, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert "bus" in shown
    assert not set(shown) & {*HEAVY, *OURS}


def test_the_exported_names_are_these() -> None:
    assert bus.__all__ == sorted(bus.__all__)
    assert bus.__all__ == NAMES
    assert all(hasattr(bus, name) for name in bus.__all__)


def test_every_export_says_what_it_is() -> None:
    assert [name for name in bus.__all__ if not (getattr(bus, name).__doc__ or "").strip()] == []


def test_only_the_transport_and_what_it_connects_with_touch_nats() -> None:
    folder = Path(bus.__file__).parent
    touching = {path.name for path in folder.glob("*.py") if "import nats" in path.read_text() or "from nats" in path.read_text()}
    assert touching == {"transport.py", "servers.py"}
