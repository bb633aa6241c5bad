"""The gate: what it is given, what it gives back, and when it refuses to score."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gate.model.datasets import DataMissing
from gate.model.embedder import StaticEmbedder
from gate.model.evaluate import auroc, average_precision, lowered, within_questions
from gate.model.examples import GATEMEM_DOMAINS, Batch, Corpus, batch, gatemem
from gate.model.features import FEATURES, Candidates, build_features, concatenate
from gate.model.network import DEFAULT, Gate, GateNetwork, GateUnavailable
from gate.model.train import fit, held_out_scores, scores, write

NOTES = [
    "The billing service is deployed on Friday at noon.",
    "The deploy of billing needs two approvals.",
    "My cat prefers tuna.",
    "Ana moved the billing deploy to Monday.",
    "Lunch is at twelve.",
]


@pytest.fixture(scope="module")
def embedder() -> StaticEmbedder:
    return StaticEmbedder()


@pytest.fixture(scope="module")
def gate(embedder: StaticEmbedder) -> Gate:
    return Gate.load(embedder_id=embedder.id)


@pytest.fixture(scope="module")
def asked(embedder: StaticEmbedder) -> Batch:
    corpus = Corpus(embedder, NOTES)
    questions = [
        corpus.question(text, len(NOTES), lambda rows: np.isin(rows, [0, 1, 3]))
        for text in ("When is billing deployed?", "Who changed the billing deploy?")
    ]
    return batch(questions)


def _score(gate: Gate, b: Batch) -> np.ndarray:
    return gate.score(b.queries, b.owner, b.memories, b.features)


# --- features ---------------------------------------------------------------------------------------
def _candidates(n: int, seed: int = 0) -> Candidates:
    chance = np.random.default_rng(seed)
    ranks = [(1 / (10 + chance.permutation(n))).astype(np.float32) for _ in range(2)]
    return Candidates(
        owner=np.zeros(n, np.int32),
        lexical=ranks[0] * (chance.random(n) < 0.7),
        vector=ranks[1],
        overlap=chance.random(n, np.float32) * 9,
        cosine=chance.random(n, np.float32) * 2 - 1,
    )


def test_features_have_one_finite_row_a_candidate_in_the_named_order() -> None:
    c = _candidates(20)
    features = build_features(c)
    assert features.shape == (20, len(FEATURES))
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    np.testing.assert_array_equal(features[:, FEATURES.index("cosine")], c.cosine)
    np.testing.assert_allclose(features[:, FEATURES.index("fused")], c.lexical + c.vector)
    assert features[:, FEATURES.index("fused_share")].max() == 1.0


def test_a_question_s_features_do_not_depend_on_the_rest_of_the_micro_batch() -> None:
    parts = [_candidates(n, seed=n) for n in (1, 5, 64)]
    together = build_features(concatenate(parts))
    np.testing.assert_array_equal(together, np.concatenate([build_features(p) for p in parts]))


def test_no_candidates_and_candidates_without_any_match_give_finite_features() -> None:
    assert build_features(_candidates(0)).shape == (0, len(FEATURES))
    zero = np.zeros(3, np.float32)
    nothing = Candidates(owner=np.zeros(3, np.int32), lexical=zero, vector=zero, overlap=zero, cosine=zero)
    assert not build_features(nothing).any()


# --- scores -----------------------------------------------------------------------------------------
def test_scores_are_numbers_from_0_to_1_one_a_candidate(gate: Gate, asked: Batch) -> None:
    score = _score(gate, asked)
    assert score.shape == (len(asked.owner),)
    assert score.dtype == np.float32
    assert ((score >= 0) & (score <= 1)).all()
    assert 0 < gate.threshold < 0.5


def test_a_candidate_that_answers_scores_above_one_that_does_not(gate: Gate, asked: Batch) -> None:
    assert within_questions(_score(gate, asked), asked) > 0.9


def test_a_score_does_not_depend_on_the_rest_of_the_micro_batch(gate: Gate, asked: Batch) -> None:
    first = asked.owner == 0
    alone = gate.score(asked.queries[:1], asked.owner[first], asked.memories[first], asked.features[first])
    np.testing.assert_allclose(_score(gate, asked)[first], alone, atol=1e-6)


def test_no_candidates_give_no_scores(gate: Gate) -> None:
    none = np.zeros((0, 256), np.float32)
    assert gate.score(none, np.zeros(0, np.int32), none, np.zeros((0, len(FEATURES)), np.float32)).shape == (0,)


def test_vectors_of_another_width_or_no_numbers_make_the_gate_unavailable(gate: Gate, asked: Batch) -> None:
    with pytest.raises(GateUnavailable, match="shapes"):
        gate.score(asked.queries[:, :128], asked.owner, asked.memories[:, :128], asked.features)
    broken = asked.features.copy()
    broken[0, 0] = np.nan
    with pytest.raises(GateUnavailable, match="finite"):
        gate.score(asked.queries, asked.owner, asked.memories, broken)


# --- weights on disk --------------------------------------------------------------------------------
def _copy(folder: Path) -> Path:
    for file in (DEFAULT, DEFAULT.with_suffix(".json")):
        shutil.copy(file, folder)
    return folder / DEFAULT.name


def test_listed_weights_load_and_are_named_by_their_hash(tmp_path: Path, gate: Gate, asked: Batch) -> None:
    copy = Gate.load(_copy(tmp_path))
    assert copy.id == gate.id
    assert copy.id.startswith("gate-1:")
    np.testing.assert_array_equal(_score(copy, asked), _score(gate, asked))


def test_weights_that_differ_by_one_bit_are_refused(tmp_path: Path) -> None:
    path = _copy(tmp_path)
    weights = bytearray(path.read_bytes())
    weights[-1] ^= 1
    path.write_bytes(bytes(weights))
    with pytest.raises(GateUnavailable, match="sha256"):
        Gate.load(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_missing_files_are_refused(tmp_path: Path, suffix: str) -> None:
    path = _copy(tmp_path)
    path.with_suffix(suffix).unlink()
    with pytest.raises(GateUnavailable, match="cannot be read"):
        Gate.load(path)


def test_weights_for_other_features_or_another_embedder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GateUnavailable, match="vectors of"):
        Gate.load(embedder_id="static-minilm-256:00000000")
    path = _copy(tmp_path)
    listing = json.loads(path.with_suffix(".json").read_text())
    listing["features"].reverse()
    path.with_suffix(".json").write_text(json.dumps(listing))
    with pytest.raises(GateUnavailable, match="other features"):
        Gate.load(path)


# --- training and measures ---------------------------------------------------------------------------
def test_training_is_seeded_and_what_is_written_scores_the_same(tmp_path: Path, asked: Batch, embedder: StaticEmbedder) -> None:
    first, second = fit([asked]), fit([asked])
    for name, weights in first.state_dict().items():
        assert torch.equal(weights, second.state_dict()[name])
    write(first, tmp_path / "gate-test.safetensors", embedder.id, 0.01)
    loaded = Gate.load(tmp_path / "gate-test.safetensors", embedder.id)
    assert loaded.threshold == 0.01
    np.testing.assert_allclose(_score(loaded, asked), scores(first, asked), atol=1e-6)
    assert not torch.equal(first.state_dict()["out.weight"], GateNetwork().state_dict()["out.weight"])


def test_auroc_and_average_precision_on_a_case_that_can_be_done_by_hand() -> None:
    score = np.array([0.9, 0.8, 0.8, 0.1], np.float32)
    useful = np.array([True, False, True, False])
    assert auroc(score, useful) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert average_precision(score, useful) == pytest.approx((1 + 2 / 3) / 2)
    assert lowered(score, 0.5, useful) == (0.0, 0.5)


def test_the_gate_beats_the_fused_rank_on_unseen_domains_and_spares_the_useful(embedder: StaticEmbedder, gate: Gate) -> None:
    try:
        batches = {d: batch(gatemem(d, embedder)) for d in GATEMEM_DOMAINS}
    except DataMissing as e:
        pytest.skip(str(e))
    held_out = held_out_scores(batches)
    for name, b in batches.items():
        fused = b.features[:, FEATURES.index("fused")]
        assert auroc(held_out[name], b.useful) > auroc(fused, b.useful) + 0.04
        assert lowered(held_out[name], gate.threshold, b.useful)[0] <= 0.02


def test_training_reproduces_the_committed_weights(tmp_path: Path, embedder: StaticEmbedder, gate: Gate) -> None:
    try:
        batches = [batch(gatemem(d, embedder)) for d in GATEMEM_DOMAINS]
    except DataMissing as e:
        pytest.skip(str(e))
    write(fit(batches), tmp_path / DEFAULT.name, embedder.id, gate.threshold)
    made = Gate.load(tmp_path / DEFAULT.name)
    for b in batches:
        np.testing.assert_allclose(_score(made, b), _score(gate, b), atol=1e-3)  # the same bytes on the same build of torch
