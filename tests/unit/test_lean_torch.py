"""What serving leaves out of torch's import is there for whoever asks for it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from gate.model import embedder, network
assert "torch._meta_registrations" not in sys.modules, "the import of torch makes what a start has no time for"
import torch, torch._meta_registrations
assert (torch.empty(3, device="meta") + 1).shape == (3,)
assert torch._meta_registrations.register_meta
"""


def test_torch_is_imported_without_its_meta_kernels_and_can_have_them_later() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
