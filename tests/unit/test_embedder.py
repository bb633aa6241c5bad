"""The static embedder: unit vectors from the committed files alone."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from gate.model.embedder import CHARS_MAX, STATIC_MINILM, Embedder, EmbedderUnavailable, StaticEmbedder

TEXTS = [
    "The deploy of the billing service runs on Friday.",
    "Billing is deployed on Fridays.",
    "My cat prefers tuna.",
]


@pytest.fixture(scope="module")
def embedder() -> StaticEmbedder:
    return StaticEmbedder()


def test_rows_are_unit_vectors_of_the_stated_shape(embedder: StaticEmbedder) -> None:
    vectors = embedder.encode(TEXTS)
    assert vectors.shape == (3, 256)
    assert vectors.dtype == np.float32
    assert embedder.dim == 256
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_related_texts_are_nearer_than_unrelated_ones(embedder: StaticEmbedder) -> None:
    deploy, billing, cat = embedder.encode(TEXTS)
    assert deploy @ billing > 0.6
    assert deploy @ cat < 0.3


@pytest.mark.parametrize("text", ["", "   \n\t ", "\u200b", "\U0001f9ff" * 3, "支付宝账户", "a" * 65_536])
def test_a_text_without_known_tokens_is_a_zero_vector(embedder: StaticEmbedder, text: str) -> None:
    assert not embedder.encode([text]).any()


@pytest.mark.parametrize("text", ["中国大学", "naïve café", "word " * 13_107, "\x01\x02x", "[UNK] [SEP] hello"])
def test_any_other_text_is_finite_and_of_length_one(embedder: StaticEmbedder, text: str) -> None:
    vector = embedder.encode([text])[0]
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_a_vector_does_not_depend_on_the_rest_of_the_batch(embedder: StaticEmbedder) -> None:
    together = embedder.encode(TEXTS)
    alone = np.vstack([embedder.encode([t]) for t in TEXTS])
    np.testing.assert_array_equal(together, alone)


def test_an_empty_batch_gives_no_rows(embedder: StaticEmbedder) -> None:
    assert embedder.encode([]).shape == (0, 256)


def test_text_beyond_the_bound_does_not_count(embedder: StaticEmbedder) -> None:
    head = ("secret plan " * CHARS_MAX)[:CHARS_MAX]
    np.testing.assert_array_equal(embedder.encode([head]), embedder.encode([head + "giraffe " * 1_000]))


def test_it_is_the_embedder_that_others_stand_behind_and_names_its_weights(embedder: StaticEmbedder) -> None:
    behind: Embedder = embedder
    name, _, digest = behind.id.partition(":")
    assert name == "static-minilm-256"
    assert len(digest) == 8
    assert int(digest, 16) >= 0


def test_other_weights_have_another_id(tmp_path: Path, embedder: StaticEmbedder) -> None:
    copy = tmp_path / STATIC_MINILM.name
    shutil.copytree(STATIC_MINILM, copy)
    assert StaticEmbedder(copy).id == embedder.id
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(bytes(weights))
    assert StaticEmbedder(copy).id != embedder.id


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
def test_a_missing_or_damaged_file_is_a_typed_error_that_says_what_to_do(tmp_path: Path, missing: str) -> None:
    copy = tmp_path / "model"
    shutil.copytree(STATIC_MINILM, copy)
    (copy / missing).write_bytes(b"not a model")
    with pytest.raises(EmbedderUnavailable, match="reinstall"):
        StaticEmbedder(copy)
    (copy / missing).unlink()
    with pytest.raises(EmbedderUnavailable, match="reinstall"):
        StaticEmbedder(copy)


def test_every_committed_file_is_small() -> None:
    assert max(f.stat().st_size for f in STATIC_MINILM.iterdir()) < 9_000_000
