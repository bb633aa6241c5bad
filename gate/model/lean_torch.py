"""torch, imported without its kernels for tensors that have no data: making these is a third of its import (0.4 of 1.2 s of CPU),
and a gatekeeper that starts has callers waiting. Nothing here traces or compiles, which is what they are for.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

_SKIPPED: Final = "torch._meta_registrations"  # registers when it is imported; torch itself uses no name of it

if "torch" not in sys.modules:
    sys.modules[_SKIPPED] = ModuleType(_SKIPPED)
    try:
        import torch
    finally:
        del sys.modules[_SKIPPED]  # whoever wants them later gets the real ones
else:
    import torch

__all__ = ["torch"]
