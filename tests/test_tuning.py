"""Fusion weights chosen on dev queries, and kept where the dev queries tell nothing."""

import dataclasses
import json

import pytest

import dsi
from dsi.config import read_config
from dsi.hybrid import supported_weights
from dsi.tuning import is_tuned, tune_index
from tests.test_pipeline import TIED, write_settings

UNTRAINED: dict[str, dict[str, object]] = {
    "contrastive": {"loss": "none"}, "training": {"epochs": 0.0}, "ranking": {"epochs": 0.0},
    "docids": {"method": "random"}, "search": {"alpha": 0.6, "lexical_weight": 0.25},
}  # fmt: skip


@pytest.fixture
def settings(tmp_path, sentence_t5_folder, t5_folder):
    path = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **TIED)
    return read_config(path).with_changes(UNTRAINED)


def test_judgements_without_a_relevant_document_change_nothing(settings, beir, tmp_path, caplog):
    collection, run = dsi.read_collection(beir()), tmp_path / "run"
    for judged in collection.qrels["dev"].values():
        judged.update(dict.fromkeys(judged, 0))
    assert dsi.train(collection, settings, run, device="cpu").search_config == settings.search
    assert "No dev query has a document that is judged relevant; the fusion weights stay as they are" in caplog.text
    assert json.loads((run / "tuning.json").read_text())["best"]["lexical_weight"] == 0.25
    assert is_tuned(run)
    assert not tune_index(run, collection, "cpu")


def test_documents_that_are_all_alike_change_nothing(settings, beir, tmp_path, caplog):
    corpus = "\n".join(json.dumps({"_id": f"d{row}", "title": "", "text": "one text"}) for row in range(12))
    queries = "\n".join(json.dumps({"_id": f"q{row}", "text": f"one query {row}"}) for row in range(6))
    judged = [f"q{row}\td{row}\t1" for row in range(6)]
    header = "query-id\tcorpus-id\tscore\n"
    data = beir(corpus, queries, train=header + "\n".join(judged[:3]), dev=header + "\n".join(judged[3:]))
    retriever = dsi.train(dsi.read_collection(data), settings, tmp_path / "run", device="cpu")
    assert retriever.search_config == settings.search
    assert "All fusion weights do equally well on the dev queries; they stay as they are" in caplog.text


def test_an_index_that_changed_is_not_tuned(settings, beir, tmp_path):
    assert not is_tuned(tmp_path / "none")
    retriever = dsi.train(dsi.read_collection(beir()), settings, tmp_path / "run", device="cpu")
    assert is_tuned(tmp_path / "run")
    retriever.remove(["neon"])
    retriever.save_update(tmp_path / "run")
    assert not is_tuned(tmp_path / "run")


def test_tuning_acts_on_the_weights_alone(settings, beir, tmp_path, monkeypatch):
    collection = dsi.read_collection(beir())
    retriever = dsi.train(collection, settings.with_changes({"tune": False}), tmp_path / "run", device="cpu")
    search, asked = retriever.run, []
    monkeypatch.setattr(retriever, "run", lambda *given, **options: asked.append(options) or search(*given, **options))
    tuning = dsi.tune(retriever, collection)
    assert retriever.search_config == dataclasses.replace(settings.search, **tuning.best) != settings.search
    assert asked == [options for options, _ in tuning.tried]  # nothing is searched besides


def test_a_weight_needs_a_gain():
    dense, words = {"q": {"a": 1.0, "b": 0.0}}, {"q": {"a": 0.0, "b": 1.0}}
    assert supported_weights(dense, [words], {"q": {"b": 1}})[0] > 1
    assert supported_weights(dense, [words], {"q": {"a": 1}}) == [0.0]
    assert supported_weights(dense, [words], {"q": {"b": 0}}) == [0.0]
    assert supported_weights(dense, [words, words], {"q": {"b": 0}}) == [0.0, 0.0]
