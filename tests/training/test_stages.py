"""What a training computes again, and what it reports: embeddings are made once for an encoder and its texts."""

import os
from collections import Counter

import numpy as np
import pytest

from dsi.config import Config, read_config
from dsi.contrastive import blocks, query_tokens
from dsi.contrastive.blocks import giving_back
from dsi.contrastive.encoder import Encoder
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.collection import read_collection
from dsi.store.folder.loading import load_tree
from dsi.training import pipeline
from dsi.training.pipeline import TrainingRun
from tests.support.small import thin_out
from tests.support.tiny_settings import VECTORS, write_settings


@pytest.fixture
def collection(beir):
    return read_collection(thin_out(beir(), dev=4))


@pytest.fixture
def config(tmp_path, sentence_t5_folder, t5_folder):
    return read_config(write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **VECTORS))


@pytest.fixture
def read(monkeypatch):
    """How many texts of each kind encoders have read."""
    counts, forward = Counter(), Encoder.forward

    def counted(encoder, texts, kind):
        counts[kind] += len(texts)
        return forward(encoder, texts, kind)

    monkeypatch.setattr(TextEncoder, "forward", counted)
    return counts


TOKENS = {"tokens": {"bits": 8}, "search": {"token_weight": 0.5}}


@pytest.mark.parametrize("changes", [{}, TOKENS | {"docids": {"pieces": 2}}])
def test_other_docids_embed_nothing_again(changes, collection, config, read, tmp_path):
    config = config.with_changes(changes | {"contrastive": {"loss": "none"}})

    def build(folder, **docids):
        run = TrainingRun(tmp_path / folder, collection, config.with_changes({"docids": docids}), "cpu")
        read.clear()
        run.run_stages()
        return load_tree(run.folder / "docids")

    first = build("run", max_leaf_size=10)
    assert read["document"] >= len(collection.documents)
    assert read["query"] > 0
    second = build("run", max_leaf_size=3)
    assert not read, "the encoder has read texts again"
    assert second.num_inner > first.num_inner
    fresh = build("fresh", max_leaf_size=3)
    assert read["document"] >= len(collection.documents)
    assert second.fingerprint == fresh.fingerprint
    np.testing.assert_array_equal(second.embeddings[:], fresh.embeddings[:])
    if "tokens" in changes:
        np.testing.assert_array_equal(second.tokens.query_head, fresh.tokens.query_head)


def test_another_encoder_and_other_texts_are_embedded_and_the_old_vectors_go(collection, config, read, tmp_path, beir):
    config = config.with_changes({"contrastive": {"loss": "none"}})
    run = TrainingRun(tmp_path / "run", collection, config, "cpu")
    run.train()
    (before,) = (run.folder / "states").glob("documents-*")
    read.clear()
    prompted = config.with_changes({"encoder": {"document_prompt": "about: "}})
    TrainingRun(run.folder, collection, prompted, "cpu").train()
    assert read["document"] >= len(collection.documents)
    (after,) = (run.folder / "states").glob("documents-*")
    assert after != before


def test_by_default_only_the_token_vectors_of_queries_are_trained(
    collection, sentence_bert_folder, tmp_path, monkeypatch
):
    steps, train_matrix = list[int](), query_tokens.train_matrix

    def counted(tokens, train, count, **options):
        steps.append(count)
        return train_matrix(tokens, train, count, **options)

    monkeypatch.setattr(query_tokens, "train_matrix", counted)
    config = Config().with_changes({"encoder": {"name": str(sentence_bert_folder)}})
    run = TrainingRun(tmp_path / "run", collection, config, "cpu")
    run.train()
    assert [*run.seconds] == ["encoder", "docids", "lexical", "memory", "tuning"]
    assert run.encoder().fingerprint == Encoder.load(config.encoder, device="cpu").fingerprint
    assert not (run.folder / "generator").exists()
    assert steps == [4 * -(-len({*collection.query_texts("train").values()}) // 32)]


def test_an_encoder_gives_memory_back_with_every_batch(config, monkeypatch):
    freed = []
    monkeypatch.setattr(blocks, "give_back_memory", lambda: freed.append(1))
    encoder = giving_back(Encoder.load(config.encoder, device="cpu"))
    texts = [f"text {number}" for number in range(130)]
    for own in (encoder, encoder.for_search()):
        freed.clear()
        assert len(list(own.token_states(texts, "document"))) == 130
        assert len(freed) == -(-130 // own.batch_size)
        own.encode(texts, "document")
        assert len(freed) == 2 * -(-130 // own.batch_size)


@pytest.mark.parametrize("given", [None, "7"])
@pytest.mark.parametrize(("name", "few"), [("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128"), ("LRU_CACHE_CAPACITY", "8")])
def test_a_training_keeps_few_kernels_unless_told_otherwise(
    collection, config, tmp_path, monkeypatch, given, name, few
):
    seen = []
    monkeypatch.setenv(name, given or "")
    if given is None:
        monkeypatch.delenv(name)
    monkeypatch.setattr(TrainingRun, "_run_stages", lambda run: seen.append(os.environ[name]))
    monkeypatch.setattr(TrainingRun, "_tune", lambda run: None)
    monkeypatch.setattr(pipeline, "load", lambda *_, **__: None)
    pipeline.train(collection, tmp_path / "run", config=config)
    assert seen == [given or few]
