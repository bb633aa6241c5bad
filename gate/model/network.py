"""The learned gate: a small network that scores how likely a candidate helps its question. Loading and scoring; no training.

Invariants: weights are used only if their sha256 is the one listed beside them, and their features and encoder are those in use;
a score is a finite number 0..1, or the gate says `GateUnavailable` and policy decides alone. A score can only lower a decision,
and only the caller lowers it. One torch thread; not for concurrent use.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.torch import load

from gate.model.features import FEATURES

from .lean_torch import torch

Floats = npt.NDArray[np.float32]

DEFAULT: Final = Path(__file__).parent / "weights" / "gate-1.safetensors"
DIM: Final = 256
PROJECTION: Final = 16  # 64 is no better on an unseen domain, and four times the work
HIDDEN: Final = 32


class GateUnavailable(Exception):
    """The gate cannot score: policy decides alone. The message says what is wrong and what to do."""


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The .json beside the weights. Candidates that score below `threshold` are lowered."""

    sha256: str
    embedder: str
    features: list[str]
    threshold: float
    trained_on: list[str]


class GateNetwork(torch.nn.Module):
    """Structured features through one hidden layer, plus a bilinear match of question and memory in a small space."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.nn.Buffer(torch.zeros(len(FEATURES)))
        self.scale = torch.nn.Buffer(torch.ones(len(FEATURES)))
        self.question = torch.nn.Linear(DIM, PROJECTION, bias=False)
        self.memory = torch.nn.Linear(DIM, PROJECTION, bias=False)
        self.hidden = torch.nn.Linear(len(FEATURES), HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, 1)

    def forward(
        self, questions: torch.Tensor, owner: torch.Tensor, memories: torch.Tensor, features: torch.Tensor
    ) -> torch.Tensor:
        """Logits[n]."""
        hidden = torch.relu(self.hidden((features - self.mean) * self.scale))
        match = (self.question(questions)[owner] * self.memory(memories)).sum(1)
        logits: torch.Tensor = self.out(hidden).squeeze(1) + match
        return logits


class Gate:
    """Verified weights, ready to score. Make it with `Gate.load`."""

    def __init__(self, network: GateNetwork, id: str, threshold: float) -> None:
        self.id = id  # name and hash of the weights
        self.threshold = threshold
        weights = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
        self._question, self._memory = weights["question.weight"].T.copy(), weights["memory.weight"].T.copy()
        # Numpy for so small a network: half of torch's time for one question, the same for sixteen.
        self._mean, self._scale = weights["mean"], weights["scale"]
        self._hidden, self._hidden_bias = weights["hidden.weight"].T.copy(), weights["hidden.bias"]
        self._out, self._out_bias = weights["out.weight"][0], weights["out.bias"][0]

    @classmethod
    def load(cls, path: Path = DEFAULT, embedder_id: str | None = None) -> Gate:
        """Raises `GateUnavailable` for files that are missing, damaged, or made for other features or another embedder."""
        try:
            listing = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=Listing)
            weights = path.read_bytes()
        except (OSError, msgspec.DecodeError) as e:
            raise GateUnavailable(f"the gate {path} cannot be read ({e}): reinstall the package, or run gate.model.train") from e
        digest = hashlib.sha256(weights).hexdigest()
        if digest != listing.sha256:
            raise GateUnavailable(f"the gate {path} has sha256 {digest}, not the listed {listing.sha256}: reinstall the package")
        if listing.features != list(FEATURES):
            raise GateUnavailable(f"the gate {path} was trained on other features: run gate.model.train")
        if embedder_id not in (None, listing.embedder):
            raise GateUnavailable(f"the gate {path} was trained on vectors of {listing.embedder}, not {embedder_id}")
        network = GateNetwork()
        network.load_state_dict(load(weights))
        return cls(network, f"{path.stem}:{digest[:8]}", listing.threshold)

    def score(self, queries: Floats, owner: npt.NDArray[np.int32], memories: Floats, features: Floats) -> Floats:
        """float32[n] in 0..1 for float32[q, 256], int32[n] (which query), float32[n, 256], float32[n, len(FEATURES)].

        Raises `GateUnavailable` for other shapes or values that are not finite.
        """
        n = len(owner)
        if memories.shape != (n, DIM) or features.shape != (n, len(FEATURES)) or queries.shape[1:] != (DIM,):
            shapes = f"{queries.shape}, {memories.shape}, {features.shape} for {n} candidates"
            raise GateUnavailable(f"the gate got arrays of shapes {shapes}: vectors of another encoder?")
        hidden = np.maximum(((features - self._mean) * self._scale) @ self._hidden + self._hidden_bias, 0)
        match = np.einsum("ij,ij->i", (queries @ self._question)[owner], memories @ self._memory)
        logits = hidden @ self._out + self._out_bias + match
        scores: Floats = 0.5 + 0.5 * np.tanh(0.5 * logits)  # the logistic function, without overflow
        if not np.isfinite(scores).all():
            raise GateUnavailable("the gate gave a score that is no number: a feature or a vector is not finite")
        return scores
