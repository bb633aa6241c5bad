"""Text to unit vectors: the `Embedder` protocol and the committed static model behind it.

Owns the one way a text becomes a vector. Invariant: every row is finite and has length 1, or is all zero for a text without known
tokens, so an inner product is a cosine. Nothing here opens a connection: the model is a table and a tokenizer on disk.

The static model is `model2vec`'s layout (gate/model/distil.py makes it). It is read with `tokenizers` and numpy rather than
with `model2vec.StaticModel`: the same vectors to 1e-7, in 52 µs instead of 100 for one short text (47 and 58 a text in sixteens).
Its vocabulary is English with a few CJK characters: most Chinese text has a zero vector, and is found by the lexical index only.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tokenizers import Tokenizer

Vectors = npt.NDArray[np.float32]

STATIC_MINILM: Final = Path(__file__).parent / "weights" / "static-minilm-256"
TOKENS_MAX: Final = 512
CHARS_MAX: Final = 4_096  # about twice what 512 tokens of prose take: bounds tokenising of 64 KiB texts
_TABLE: Final = "model.safetensors"
_TOKENIZER: Final = "tokenizer.json"


class EmbedderUnavailable(Exception):
    """The model's files are missing or damaged; the message names the folder and what to do."""


class Embedder(Protocol):
    """What the gatekeeper needs of an encoder. Vectors of two different `id`s are never compared."""

    @property
    def id(self) -> str:
        """Name and hash of everything that shapes a vector."""

    @property
    def dim(self) -> int: ...

    def encode(self, texts: list[str]) -> Vectors:
        """float32[len(texts), dim]; rows of length 1, or zero."""


class StaticEmbedder:
    """The mean of token vectors, scaled to length 1. Not for concurrent use: one per thread.

    Texts are Unicode without lone surrogates; beyond `CHARS_MAX` characters or `TOKENS_MAX` tokens the rest does not count.
    """

    def __init__(self, path: Path = STATIC_MINILM) -> None:
        """Raises `EmbedderUnavailable`."""
        try:
            self._table = load_file(path / _TABLE)["embeddings"]  # int8[tokens, dim]; its scale goes with the normalisation
            self._tokenizer = Tokenizer.from_file(str(path / _TOKENIZER))
            digest = hashlib.sha256((path / _TABLE).read_bytes() + (path / _TOKENIZER).read_bytes()).hexdigest()
        except Exception as e:  # tokenizers raises bare Exception, for a missing file as for a malformed one
            raise EmbedderUnavailable(
                f"the embedder in {path} cannot be read ({e}): reinstall the package, or make it with gate.model.distil"
            ) from e
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TOKENS_MAX)
        unknown = self._tokenizer.token_to_id("[UNK]")
        if unknown is not None:
            self._table[unknown] = 0  # a character outside the vocabulary says nothing
        self.dim: int = self._table.shape[1]
        self.id = f"{path.name}:{digest[:8]}"

    def encode(self, texts: list[str]) -> Vectors:
        """float32[len(texts), dim]."""
        out = np.zeros((len(texts), self.dim), np.float32)
        encoded = self._tokenizer.encode_batch_fast([t[:CHARS_MAX] for t in texts], add_special_tokens=False)
        for row, tokens in enumerate(encoded):
            if tokens.ids:
                out[row] = self._table[tokens.ids].sum(0, dtype=np.float32)
        norms = np.sqrt(np.einsum("ij,ij->i", out, out))
        norms[norms == 0.0] = 1.0
        return np.asarray(out / norms[:, None], np.float32)
