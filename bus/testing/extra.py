"""What a twin and a home need beside the client: the `gate` extra."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from ..errors import ConfigError

MODULES: Final = ("numpy", "torch", "tokenizers", "safetensors", "Stemmer", "hnswlib", "duckdb")


def require_gate() -> None:
    """ConfigError (`gate_missing`) that names what isn't installed. Imports nothing."""
    missing = [name for name in MODULES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The gatekeeper isn't installed whole: {', '.join(missing)} missing.",
            reason="gate_missing",
            advice="Install it where the tests run: `pip install 'cordon-bus[gate]'`.",
        )
