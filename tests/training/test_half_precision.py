"""Models stored in half precision: every training moves their weights by small steps, and they are saved as they came."""

import copy
import dataclasses
import re

import numpy as np
import pytest
import torch
from dsi_experiments.query_training import QueryTrainingConfig, train_query_generator
from safetensors.torch import load_file
from transformers import AutoTokenizer

import dsi
from dsi.config import Config
from dsi.contrastive.blocks import DocumentTexts
from dsi.contrastive.config import ContrastiveConfig, EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.training import contrastive_loss, contrastive_rows, train_encoder
from dsi.generator.config import GeneratorConfig, TrainingConfig
from dsi.generator.model import DocidGenerator
from dsi.training.examples import DocidExamples, Texts
from dsi.training.trainer import train_generator
from tests.support.half import HALVES, save_encoder_in, save_t5_in, stored_types
from tests.support.small import PROMPTS, WIDTH, random_tree, thin_out, write_collection

RATE = 1e-5
"""Of a training; a step of AdamW changes no weight by much more, and most weights by less than half precision can hold."""
TEXTS = ["Neon is a noble gas.", "The Danube flows through Vienna.", "Rubber is made of latex.", "Mars has two moons."]
QUERIES = ["noble gas", "river of Vienna", "latex product", "moons of Mars"]
DIGITS = {
    "generator": {"docid_tokens": "digits", "num_layers": 1}, "search": {"lexical_weight": 0.0, "token_weight": 0.0},
}  # fmt: skip


@pytest.fixture(params=["t5", "bert"])
def whole(request, sentence_t5_folder, sentence_bert_folder):
    return {"t5": sentence_t5_folder, "bert": sentence_bert_folder}[request.param]


@pytest.fixture(params=HALVES, ids=str)
def half(request, whole, tmp_path):
    """A folder with a sentence encoder in half precision, and that precision."""
    return save_encoder_in(request.param, whole, tmp_path / "half"), request.param


def weights_of(encoder):
    """Weights of layers that every text goes through."""
    elsewhere = {"embed", "embeddings", "shared", "pooler"}
    return {
        name: weights.detach().clone() for name, weights in encoder.model.named_parameters()
        if "relative" not in name and not elsewhere & set(re.split("[._]", name))
    }  # fmt: skip


def moved(before, encoder):
    """The largest change of a weight, and the share of the weights that changed."""
    after = weights_of(encoder)
    changes = torch.cat([(after[name] - weights).abs().flatten() for name, weights in before.items()])
    return float(changes.max()), float((changes > 0).float().mean())


def test_the_contrastive_stage_moves_half_weights_by_small_steps(half, tmp_path):
    folder, dtype = half
    encoder = Encoder.load(EncoderConfig(name=str(folder), **PROMPTS), device="cpu")
    assert stored_types(folder) == {dtype} == {encoder.dtype}
    rows = contrastive_rows(TEXTS, {row: [query] for row, query in enumerate(QUERIES)})
    config = ContrastiveConfig(
        loss="scl", batch_size=8, epochs=20.0, learning_rate=RATE, negatives=0, interpolation=1.0
    )

    def loss():
        kinds = {"document": TEXTS, "query": QUERIES}
        features = [
            encoder.model.preprocess(texts, prompt=encoder.model.prompts[kind]) for kind, texts in kinds.items()
        ]
        with torch.no_grad():
            return float(contrastive_loss(encoder, config)(features, torch.tensor([[row, row] for row in range(4)])))

    start, before = weights_of(encoder), loss()
    train_encoder(encoder, rows, config, tmp_path / "work")
    largest, share = moved(start, encoder)
    assert 0 < largest < 20 * RATE
    assert share > 0.9
    assert loss() < before

    encoder.save(tmp_path / "trained")
    assert stored_types(tmp_path / "trained") == {dtype}
    stored = Encoder.load(EncoderConfig(**PROMPTS), tmp_path / "trained", "cpu")
    assert stored.dtype == dtype
    stored.save(tmp_path / "again")
    again = Encoder.load(EncoderConfig(**PROMPTS), tmp_path / "again", "cpu")
    assert np.array_equal(stored.encode(TEXTS, "document"), again.encode(TEXTS, "document"))
    np.testing.assert_allclose(stored.encode(TEXTS, "document"), encoder.encode(TEXTS, "document"), atol=0.02)


def test_encoder_and_decoder_train_together_from_half_weights(half, tmp_path):
    folder, _ = half
    encoder, tree = Encoder.load(EncoderConfig(name=str(folder), **PROMPTS), device="cpu"), random_tree(20)
    examples = DocidExamples(
        Texts(encoder.model.preprocess, encoder.model.prompts, [("document", TEXTS)]), np.array([0, 5, 11, 19]), tree
    )
    generator = DocidGenerator.create(GeneratorConfig(docid_tokens="digits", num_layers=1), tree, WIDTH, "ce")
    start = weights_of(encoder)
    training = TrainingConfig(batch_size=4, learning_rate=10 * RATE, train_encoder=True)
    records = [
        train_generator(
            copy.deepcopy(generator), examples,
            dataclasses.replace(training, epochs=epochs), tmp_path / str(epochs), encoder,
        )
        for epochs in (1.0, 60.0)
    ]  # fmt: skip
    largest, share = moved(start, encoder)
    assert 0 < largest < 61 * 10 * RATE
    assert share > 0.9
    assert records[1]["loss"] < records[0]["loss"]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_decoder_from_half_weights_is_trained_in_float32(dtype, t5_folder, tmp_path):
    name = save_t5_in(dtype, t5_folder, tmp_path / "half")
    generator = DocidGenerator.create(
        GeneratorConfig(docid_tokens="digits", decoder=str(name)), random_tree(20), WIDTH, "ce"
    )
    assert {weights.dtype for weights in generator.parameters()} == {torch.float32}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_query_generator_moves_half_weights_by_small_steps(dtype, t5_folder, tmp_path):
    name = save_t5_in(dtype, t5_folder, tmp_path / "half")
    pairs = [("", text, query) for text, query in zip(TEXTS, QUERIES, strict=True)]
    config = QueryTrainingConfig(model=str(name), batch_size=4, epochs=40, learning_rate=1e-4)
    before, after = train_query_generator(pairs, pairs, config, tmp_path / "model", device="cpu")
    assert after < before - 0.01
    assert stored_types(tmp_path / "model") == {dtype}
    start, end = (load_file(folder / "model.safetensors") for folder in (name, tmp_path / "model"))
    assert 0 < max(float((end[key] - start[key]).abs().max()) for key in start if "relative" not in key) < 41 * 1e-4
    assert AutoTokenizer.from_pretrained(tmp_path / "model").tokenize("latex")


@pytest.mark.programs
def test_a_reloaded_index_embeds_its_documents_as_they_were_indexed(half, request, tmp_path):
    """Of each type with either encoder, one by vectors and one by digits with the encoder trained."""
    folder, dtype = half
    digits = (dtype == torch.float16) == (request.node.callspec.params["whole"] == "t5")
    collection = dsi.read_collection(thin_out(write_collection(tmp_path / "collection"), test=4, dev=4))
    config = Config().with_changes(
        {
            "encoder": {"name": str(folder), **PROMPTS},
            "contrastive": {"loss": "scl", "epochs": 1.0, "batch_size": 24, "learning_rate": RATE},
            "training": {"epochs": float(digits), "train_encoder": digits},
            "tokens": {"epochs": 2.0},
            "docids": {"pieces": 1},
            **(DIGITS if digits else {}),
        }
    )
    retriever = dsi.train(collection, tmp_path / "run", config=config, device="cpu")
    loaded = dsi.load(tmp_path / "run", device="cpu")
    loaded.save(tmp_path / "copy")
    copied = dsi.load(tmp_path / "copy", device="cpu")
    for name in ("run", "copy"):
        assert stored_types(tmp_path / name / "encoder") == {dtype}
    # With digits the encoder that documents were embedded by is the one before the decoder was trained with it.
    encoder = Encoder.load(EncoderConfig(**PROMPTS), tmp_path / "run" / "encoder", "cpu")
    vectors = encoder.for_search().encode(DocumentTexts(encoder, collection.documents)[:], "document")
    indexed = retriever.snapshot.tree.embeddings[:][retriever.snapshot.tree.positions]
    np.testing.assert_allclose(vectors, indexed, atol=1e-6)
    query = next(iter(collection.query_texts("test").values()))
    np.testing.assert_allclose(loaded.search(query).scores, copied.search(query).scores, atol=1e-5)
    if digits:
        assert stored_types(tmp_path / "run" / "generator" / "encoder") == {dtype}
    else:
        head, trained = loaded.snapshot.tree.tokens.head, loaded.snapshot.tree.tokens.query_head
        assert trained is None or 0 < np.abs(trained - head).max() < 0.1
