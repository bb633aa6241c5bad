"""Trains the gate and writes its weights and listing: `python -m gate.model.train`. Seeded: the same data give the same weights.

Invariant: what is reported and the threshold come from domains that the scoring network had not seen (each GateMem domain is
scored by a network trained on the other two); the shipped network is then trained on all three in the same way.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import torch._meta_registrations  # what gate.model.lean_torch leaves out, and optimisers come to need
from safetensors.torch import save

from gate.model.embedder import StaticEmbedder
from gate.model.examples import GATEMEM_DOMAINS, Batch, batch, gatemem
from gate.model.features import FEATURES
from gate.model.network import DEFAULT, Gate, GateNetwork, Listing

SEED: Final = 20_261_130
EPOCHS: Final = 6  # 5 to 10 are alike on an unseen domain, 20 is worse
BATCH: Final = 512
LEARNING_RATE: Final = 1e-3
WEIGHT_DECAY: Final = 1e-3
LOWERED_USEFUL: Final = 0.01  # share of useful candidates that the threshold may lower, on unseen domains

Floats = npt.NDArray[np.float32]


def fit(batches: Sequence[Batch], seed: int = SEED) -> GateNetwork:
    """A network trained with binary cross-entropy; each question weighs the same, however many candidates it has."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = GateNetwork()
    queries = torch.from_numpy(np.concatenate([b.queries[b.owner] for b in batches]))
    memories = torch.from_numpy(np.concatenate([b.memories for b in batches]))
    features = torch.from_numpy(np.concatenate([b.features for b in batches]))
    useful = torch.from_numpy(np.concatenate([b.useful for b in batches]).astype(np.float32))
    weights = torch.from_numpy(np.concatenate([1 / np.bincount(b.owner)[b.owner] for b in batches]).astype(np.float32))
    network.mean.copy_(features.mean(0))
    network.scale.copy_(1 / (features.std(0) + 1e-6))
    optimiser = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for i in torch.split(torch.randperm(len(useful), generator=order), BATCH):
            logits = network(queries[i], torch.arange(len(i)), memories[i], features[i])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, useful[i], weights[i] / weights.mean())
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
            optimiser.step()
    return network


def scores(network: GateNetwork, b: Batch) -> Floats:
    """Scores of a batch by a network that is not yet on disk."""
    return Gate(network, "in training", 0.0).score(b.queries, b.owner, b.memories, b.features)


def held_out_scores(batches: Mapping[str, Batch]) -> dict[str, Floats]:
    """Each domain's scores, by a network trained on the other domains."""
    return {name: scores(fit([b for other, b in batches.items() if other != name]), held) for name, held in batches.items()}


def calibrate(batches: Mapping[str, Batch], held_out: Mapping[str, Floats]) -> float:
    """The threshold below which `LOWERED_USEFUL` of the useful candidates lie, the strictest of all domains."""
    return min(float(np.quantile(held_out[name][b.useful], LOWERED_USEFUL)) for name, b in batches.items())


def write(network: GateNetwork, path: Path, embedder_id: str, threshold: float) -> None:
    weights = save({k: v.contiguous() for k, v in network.state_dict().items()})
    listing = Listing(
        sha256=hashlib.sha256(weights).hexdigest(),
        embedder=embedder_id,
        features=list(FEATURES),
        threshold=round(threshold, 4),
        trained_on=[f"gatemem/{d}" for d in GATEMEM_DOMAINS],
    )
    path.write_bytes(weights)
    path.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(listing), indent=2) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the gate from GateMem (CORDON_DATA).")
    parser.add_argument("--target", type=Path, default=DEFAULT)
    target: Path = parser.parse_args().target
    embedder = StaticEmbedder()
    batches = {d: batch(gatemem(d, embedder)) for d in GATEMEM_DOMAINS}
    threshold = calibrate(batches, held_out_scores(batches))
    write(fit(list(batches.values())), target, embedder.id, threshold)
    sys.stdout.write(f"{target.name}: threshold {threshold:.4f}, sha256 {hashlib.sha256(target.read_bytes()).hexdigest()}\n")


if __name__ == "__main__":
    main()
