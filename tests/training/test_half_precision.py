"""Models stored in half precision: every training moves their weights by small steps, and they are saved as they came."""

import numpy as np
import pytest
import torch

import dsi
from dsi.config import Config
from dsi.contrastive.blocks import DocumentTexts
from dsi.contrastive.config import ContrastiveConfig, EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.training import contrastive_loss, contrastive_rows, train_encoder
from tests.support.half import QUERIES, RATE, TEXTS, moved, stored_types, weights_of
from tests.support.small import PROMPTS, thin_out, write_collection

DIGITS = {
    "generator": {"docid_tokens": "digits", "num_layers": 1}, "search": {"lexical_weight": 0.0, "token_weight": 0.0},
}  # fmt: skip


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


@pytest.mark.programs
def test_a_reloaded_index_embeds_its_documents_as_they_were_indexed(half, tmp_path):
    """By digits with the encoder trained in float16, by vectors in bfloat16."""
    folder, dtype = half
    digits = dtype == torch.float16
    if digits:
        pytest.importorskip("dsi.generator.stage")
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
