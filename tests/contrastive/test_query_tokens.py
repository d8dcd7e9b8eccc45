"""The map of query tokens: the loss against its definition, what training gains, when it is kept, what is written of it."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from dsi.contrastive.config import PACKAGED, EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.query_tokens import (
    JudgedQueries,
    QueryExample,
    _loss,
    mean_loss,
    query_examples,
    train_matrix,
    train_query_head,
)
from dsi.docids.token_vectors import TokenVectors, decode, encode_states, project

WIDTH, DIM, TEXTS = 24, 16, 60


def world(queries: int, seed: int = 0, differ: bool = True) -> tuple[TokenVectors, list[QueryExample]]:
    """Documents of random tokens, and queries of tokens of theirs, which may differ in one way that a matrix can learn."""
    rng = np.random.default_rng(seed)
    states = [rng.normal(size=(int(rng.integers(1, 9)), WIDTH)).astype(np.float32) for _ in range(TEXTS)]
    states[7] = states[7][:0]  # a document without tokens
    head = np.linalg.qr(rng.normal(size=(WIDTH, DIM)))[0].T.astype(np.float32)
    turn = np.eye(WIDTH) + (0.25 * rng.normal(size=(WIDTH, WIDTH)) if differ else 0)
    tokens = TokenVectors(head, 8, (encode_states(head, 8, states),), np.arange(TEXTS, dtype=np.int32))
    examples = []
    for _ in range(queries):
        row = int(rng.choice([own for own in range(TEXTS) if own != 7]))
        own = states[row][rng.integers(0, len(states[row]), 3)] @ turn + 0.7 * rng.normal(size=(3, WIDTH))
        others = rng.permutation([other for other in range(TEXTS) if other != row])[:30]
        examples.append(QueryExample(own.astype(np.float16), np.array([row]), np.array([row]), others))
    return tokens, examples


def literal_loss(tokens: TokenVectors, matrix: np.ndarray, batch, positives, rows) -> float:
    """Cross-entropy of late interaction, one query, document and token at a time."""
    total = 0.0
    for example, positive in zip(batch, positives, strict=True):
        scores = {}
        for row in rows:
            if row in example.relevant and row != positive:
                continue
            codes = tokens.gather(np.array([row])).codes
            vectors, norms = decode(codes, tokens.dim, tokens.bits)
            best = [
                max((float(query @ vector) / norm for vector, norm in zip(vectors, norms, strict=True)), default=0.0)
                for query in project(matrix, example.states.astype(np.float32))
            ]
            scores[row] = float(np.mean(best)) / 0.02
        highest = max(scores.values())
        total += highest + np.log(sum(np.exp(score - highest) for score in scores.values())) - scores[positive]
    return total / len(batch)


def test_the_loss_is_as_defined_where_several_documents_are_relevant_or_one_has_no_token():
    tokens, examples = world(6)
    several = [own._replace(relevant=np.array([int(own.positives[0]), 3])) for own in examples]
    positives = [int(own.positives[0]) for own in several]
    rows = list(dict.fromkeys([*positives, 3, 7, 11, 20]))
    matrix = torch.tensor(tokens.head, requires_grad=True)
    loss = _loss(tokens, matrix, several, positives, rows)
    assert loss.item() == pytest.approx(literal_loss(tokens, tokens.head, several, positives, rows), rel=1e-4)
    loss.backward()
    step = 1e-3 * matrix.grad / matrix.grad.norm()
    behind, ahead = (
        literal_loss(tokens, (matrix + sign * step).detach().numpy(), several, positives, rows) for sign in (-1, 1)
    )
    assert ahead - behind == pytest.approx(2e-3 * float(matrix.grad.norm()), rel=0.05)


def test_training_learns_how_queries_differ_and_repeats_itself():
    tokens, examples = world(400)
    train, dev = examples[:350], examples[350:]
    better = train_query_head(tokens, train, dev, 30.0)
    assert mean_loss(better, dev) < 0.6 * mean_loss(tokens, dev)
    np.testing.assert_array_equal(better.head, tokens.head)
    first, again, other = (train_query_head(tokens, train, dev, 3.0, seed=seed).query_head for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(train_matrix(tokens, train, 0), tokens.head)


def test_what_dev_queries_lose_by_is_not_kept_and_few_are_not_asked(caplog):
    tokens, good = world(140, differ=False)
    shifted = [*good[41:], good[40]]
    others = [  # each asks for another document, and its own is a negative
        a._replace(
            positives=b.positives,
            relevant=b.relevant,
            negatives=np.append(a.positives, a.negatives[a.negatives != b.positives]),
        )
        for a, b in zip(good[40:], shifted, strict=True)
    ]
    others = [own for own in others if own.positives[0] not in own.negatives]
    with caplog.at_level(logging.INFO):
        assert train_query_head(tokens, others, good[:40], 20.0) is tokens
    assert "loss of 40 dev queries" in caplog.text
    assert "the matrix stays that of documents" in caplog.text
    assert train_query_head(tokens, others, good[:19], 1.0).query_head is not None
    assert train_query_head(tokens, [], good, 4.0) is tokens


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load(EncoderConfig(name=PACKAGED), device="cpu")


def test_examples_hold_the_nearest_piece_and_the_best_of_all_others(encoder):
    texts = ["red apples", "green apples", "old trains", "new trains", "a blue sea"]
    rows = np.array([0, 0, 1, 1, 2])  # pieces of three documents
    embeddings = encoder.encode(texts, "document")
    judged = JudgedQueries.from_pairs([("q", 0), ("p", 1), ("q", 2)], {"q": "green apples", "p": "trains"}, encoder)
    assert list(judged.texts) == ["green apples", "trains"]

    def score(queries, vectors):
        assert len(queries) == len(vectors)
        return np.array(vectors @ embeddings.T)

    found = query_examples(encoder, judged, embeddings, rows, score, np.random.default_rng(0))
    by_relevant = {tuple(own.relevant.tolist()): own for own in found}
    apples, trains = by_relevant[0, 1, 4], by_relevant[2, 3]
    assert sorted(apples.positives.tolist()) == [1, 4]
    assert sorted(apples.negatives.tolist()) == [2, 3]
    assert sorted(trains.negatives.tolist()) == [0, 1, 4]
    assert len(trains.positives) == 1
    assert all(own.negatives.base is None for own in found)  # keeps nothing larger
    assert apples.states.shape == (2, encoder.state_dim)  # neither [CLS] nor [SEP]
    everything = JudgedQueries(["all"], [np.array([0, 1, 2])])
    assert query_examples(encoder, everything, embeddings, rows, score, np.random.default_rng(0)) == []


def test_it_is_written_with_the_codes_and_used_for_queries_alone(tmp_path):
    tokens, examples = world(50)
    better = train_query_head(tokens, examples, [], 2.0)
    states = examples[0].states.astype(np.float32)
    np.testing.assert_allclose(better.project(states), project(better.query_head, states))
    moved = better.arranged(np.arange(TEXTS)[::-1].copy(), encode_states(better.head, 8, [])).without(np.array([2]))
    np.testing.assert_array_equal(moved.query_head, better.query_head)
    moved.save(tmp_path / "tokens.safetensors")
    again = TokenVectors.load(tmp_path / "tokens.safetensors", TEXTS)
    np.testing.assert_array_equal(again.query_head, better.query_head)
    tokens.save(tmp_path / "plain.safetensors")
    assert TokenVectors.load(tmp_path / "plain.safetensors", TEXTS).query_head is None


@pytest.mark.parametrize("wrong", [np.ones((DIM, WIDTH - 1)), np.full((DIM, WIDTH), np.inf)])
def test_a_file_with_another_map_of_queries_is_not_sound(tmp_path, wrong):
    tokens, _ = world(1)
    replace(tokens, query_head=wrong.astype(np.float32)).save(tmp_path / "tokens.safetensors")
    loaded = TokenVectors.load(tmp_path / "tokens.safetensors", TEXTS)
    assert not loaded.is_sound()
