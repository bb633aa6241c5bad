"""Text to unit vectors: the `Embedder` protocol and the committed static model behind it.

Owns the one way a text becomes a vector. Invariant: every row is finite and has length 1, or is all zero for a text without known
tokens, so an inner product is a cosine. Nothing here opens a connection: the model is a table and a tokenizer on disk.

The static model is `model2vec`'s layout (gate/model/distil.py makes it). It is read with `tokenizers` and numpy rather than
with `model2vec.StaticModel`: the same vectors to 1e-7, in a sixth of the time for short ASCII texts.
Its vocabulary is English with a few CJK characters: most Chinese text has a zero vector, and is found by the lexical index only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from .lean_torch import torch

Vectors = npt.NDArray[np.float32]

STATIC_MINILM: Final = Path(__file__).parent / "weights" / "static-minilm-256"
TOKENS_MAX: Final = 512
CHARS_MAX: Final = 4_096  # about twice what 512 tokens of prose take: bounds tokenising of 64 KiB texts
_TABLE: Final = "model.safetensors"
_TOKENIZER: Final = "tokenizer.json"
_WORD: Final = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")  # of BERT's own splitting, on lower-case ASCII
# What BERT drops, or takes for a token of its own.
_NOT_PLAIN: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\[(?:PAD|UNK)\]")
_WORD_CACHE: Final = 1 << 16
_WORD_CHARS: Final = 64  # longer ones are rare, and would make the cache's size unbounded


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
            table = load_file(path / _TABLE)["embeddings"]  # int8[tokens, dim]; its scale goes with the normalisation
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
            table[unknown] = 0  # a character outside the vocabulary says nothing
        self.dim: int = table.shape[1]
        self._table = torch.from_numpy(table.astype(np.float32))  # sums of small whole numbers: exact in any order
        self._word_ids: Callable[[str], tuple[int, ...]] = lru_cache(_WORD_CACHE)(self._tokenized)
        self.id = f"{path.name}:{digest[:8]}"

    def encode(self, texts: list[str]) -> Vectors:
        """float32[len(texts), dim]."""
        ids: list[int] = []
        starts: list[int] = []
        for text in texts:
            starts.append(len(ids))
            ids += self._ids(text[:CHARS_MAX])
        sums = torch.nn.functional.embedding_bag(
            torch.from_numpy(np.array(ids, np.int64)), self._table, torch.from_numpy(np.array(starts, np.int64)), mode="sum"
        )
        out: Vectors = sums.numpy()
        norms = np.sqrt(np.einsum("ij,ij->i", out, out))
        norms[norms == 0.0] = 1.0
        return np.asarray(out / norms[:, None], np.float32)

    def _ids(self, text: str) -> Sequence[int]:
        """The tokens of a text. Plain ASCII is split here as the tokenizer does, its words looked up: a quarter of the time."""
        if not text.isascii() or _NOT_PLAIN.search(text):
            return self._tokenized(text)
        found: list[int] = []
        for word in _WORD.findall(text.lower()):
            found += self._word_ids(word) if len(word) <= _WORD_CHARS else self._tokenized(word)
        return found[:TOKENS_MAX]

    def _tokenized(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
