"""Weights, alpha and beam chosen on dev queries, and weights kept where the dev queries tell nothing."""

import dataclasses
import json

import pytest

import dsi
from dsi.config import read_config
from dsi.measuring.tuning import BEAMS, choose_weights, is_tuned, tune_index
from dsi.search.request import SearchConfig
from dsi.store.folder.writing import search_entries, write_entries
from dsi.training.pipeline import TrainingRun
from tests.support.small_index import small_index
from tests.support.tiny_settings import VECTORS, write_settings

UNTRAINED: dict[str, dict[str, object]] = {
    "contrastive": {"loss": "none"}, "training": {"epochs": 0.0},
    "search": {"alpha": 0.6, "lexical_weight": 0.25},
}  # fmt: skip


@pytest.fixture
def settings(tmp_path, sentence_t5_folder, t5_folder):
    path = write_settings(tmp_path / "config.toml", sentence_t5_folder, t5_folder, **VECTORS)
    return read_config(path).with_changes(UNTRAINED)


def test_judgements_without_a_relevant_document_change_nothing(settings, beir, tmp_path, caplog):
    collection, run = dsi.read_collection(beir()), tmp_path / "run"
    for judged in collection.qrels["dev"].values():
        judged.update(dict.fromkeys(judged, 0))
    config = dsi.train(collection, run, config=settings, device="cpu").search_config
    assert "0 dev queries have a relevant document, too few" in caplog.text
    assert config.lexical_weight == 0.25
    best = json.loads((run / "tuning.json").read_text())["best"]
    assert best == {"beam_width": config.beam_width}
    assert is_tuned(run)


def test_a_training_remembers_train_queries_and_what_was_learned_of_dev_queries_is_out_while_they_choose(
    settings, beir, tmp_path
):
    collection = dsi.read_collection(beir())
    retriever = dsi.train(collection, tmp_path / "run", config=settings, device="cpu")
    assert len(retriever.snapshot.memory) == len(
        {(collection.queries[name], row) for name, row in collection.pairs("train")}
    )
    first = dsi.tune(retriever, collection).best
    dev = [(collection.queries[name], doc_id) for name, own in collection.qrels["dev"].items() for doc_id in own]
    before = len(retriever.snapshot.memory)
    retriever.learn(dev)
    assert len(retriever.snapshot.memory) > before
    assert dsi.tune(retriever, collection).best == first
    assert len(retriever.snapshot.memory) > before
    forgetful = settings.with_changes({"memory": {"train_queries": False}})
    assert not len(dsi.train(collection, tmp_path / "run", config=forgetful, device="cpu").snapshot.memory)


def test_an_index_keeps_no_train_queries_that_do_not_help_dev_queries(settings, beir, tmp_path, monkeypatch, capsys):
    collection, run = dsi.read_collection(beir()), tmp_path / "run"

    def without(folder, read, device):
        """Tune; train queries have no weight as long as there are some."""
        assert tune_index(folder, read, device)
        retriever = dsi.load(folder, device=device)
        if len(retriever.snapshot.memory):
            write_entries(folder, search_entries(dataclasses.replace(retriever.search_config, memory_weight=0.0)))
        return True

    monkeypatch.setattr("dsi.training.pipeline.tune_index", without)
    retriever = dsi.train(collection, run, config=settings, device="cpu")
    said = "Train queries do not help dev queries, so the index keeps none: memory.train_queries = false."
    assert capsys.readouterr().err.splitlines().count(said) == 1
    assert not len(retriever.snapshot.memory)
    assert retriever.search_config.memory_weight == settings.search.memory_weight  # of what users will teach
    assert not read_config(run / "config.toml").memory.train_queries
    assert is_tuned(run)
    again = TrainingRun(run, collection, read_config(run / "config.toml"), "cpu")
    again.train()
    assert not again.seconds


def test_few_dev_queries_choose_nothing(settings, beir, tmp_path, caplog, monkeypatch):
    collection = dsi.read_collection(beir())
    count = len(collection.qrels["dev"])
    monkeypatch.setattr("dsi.measuring.tuning.FEWEST_QUERIES", count + 1)
    before = settings.search
    assert dsi.train(collection, tmp_path / "run", config=settings, device="cpu").search_config == before
    assert f"{count} dev queries are too few" in caplog.text
    assert not is_tuned(tmp_path / "run")
    monkeypatch.undo()
    assert tune_index(tmp_path / "run", collection, "cpu")  # there are enough now
    assert is_tuned(tmp_path / "run")


def test_few_or_unanswered_queries_choose_nothing_for_digits_either(encoder, caplog):
    retriever = small_index(encoder)
    before = retriever.search_config
    for count, relevant, said in (
        (1, 1, "1 dev queries are too few"),
        (25, 0, "0 dev queries have a relevant document"),
    ):
        doc_ids = list(retriever.snapshot.documents.rows)
        queries = {f"q{place}": f"rivers {place}" for place in range(count)}
        qrels = {"dev": {name: {doc_ids[0]: relevant} for name in queries}}
        records = [{"id": doc_id, "text": doc_id} for doc_id in doc_ids]
        collection = dsi.Collection.from_records(records, queries=queries, qrels=qrels)
        assert dsi.tune(retriever, collection).best == {}
        assert said in caplog.text
        assert retriever.search_config == before


RIGHT, WRONG, FLAT = {"z": 1.0, "a": 0.9}, {"z": 0.0, "a": 1.0}, {"z": 1.0, "a": 1.0}


@pytest.mark.parametrize(
    ("queries", "words", "tokens", "weights"),
    [
        pytest.param(60, WRONG, RIGHT, (0.0, 1.0), id="a part that misleads gets 0, one that is right does not"),
        pytest.param(60, WRONG, WRONG, (0.0, 0.0), id="several parts that mislead get 0"),
        pytest.param(19, WRONG, WRONG, (0.25, 1.0), id="too few queries change nothing"),
    ],
)
def test_weights_change_where_dev_queries_support_it(queries, words, tokens, weights, monkeypatch):
    names = [f"q{number}" for number in range(queries)]
    parts = {"lexical_weight": "BM25", "token_weight": "tokens"}
    scores = [dict.fromkeys(names, each) for each in (RIGHT, words, tokens)]
    monkeypatch.setattr("dsi.measuring.tuning._weighted_parts", lambda *_, **__: parts)
    monkeypatch.setattr("dsi.measuring.tuning._score_parts", lambda *_: scores)
    config = SearchConfig(lexical_weight=0.25, token_weight=1.0)
    unanswered = {f"u{number}": {"z": 0} for number in range(10)}
    qrels = {name: {"z": 1} for name in names} | unanswered  # which do not count
    for run in scores:
        run.update(dict.fromkeys(unanswered, RIGHT))
    chosen = choose_weights(None, None, qrels, config)  # type: ignore[arg-type]
    found = chosen["lexical_weight"], chosen["token_weight"]
    assert found == weights if queries < 20 else [value > 0.05 for value in found] == [value > 0 for value in weights]


def test_an_index_that_changed_is_not_tuned(settings, beir, tmp_path):
    assert not is_tuned(tmp_path / "none")
    retriever = dsi.train(dsi.read_collection(beir()), tmp_path / "run", config=settings, device="cpu")
    assert is_tuned(tmp_path / "run")
    retriever.remove(["neon"])
    retriever.save(tmp_path / "run")
    assert not is_tuned(tmp_path / "run")


def test_tuning_begins_from_the_configured_settings_whatever_was_chosen_before(settings, beir, tmp_path):
    collection, run = dsi.read_collection(beir()), tmp_path / "run"
    retriever = dsi.train(collection, run, config=settings, device="cpu")
    first = retriever.search_config
    assert retriever.snapshot.configured == settings.search != first
    assert dsi.tune(retriever, collection).best == {
        name: getattr(first, name) for name in ("beam_width", "lexical_weight", "token_weight", "memory_weight")
    }
    assert retriever.search_config == first
    retriever.search_config = dataclasses.replace(first, beam_width=3, lexical_weight=5.0)
    dsi.tune(retriever, collection)
    assert retriever.search_config == first

    copy_of = tmp_path / "copy"  # an index that was saved elsewhere has no config.toml
    retriever.save(copy_of)
    again = dsi.load(copy_of, device="cpu")
    assert (again.search_config, again.snapshot.configured) == (first, settings.search)
    for judged in collection.qrels["dev"].values():
        judged.update(dict.fromkeys(judged, 0))  # too few to choose weights on
    dsi.tune(again, collection)
    assert again.search_config.lexical_weight == settings.search.lexical_weight != first.lexical_weight
    assert dsi.train(dsi.read_collection(beir()), run, config=settings, device="cpu").search_config == first


def test_the_beam_is_the_smallest_that_finds_what_exact_finds(settings, beir, tmp_path):
    collection = dsi.read_collection(beir())
    retriever = dsi.train(collection, tmp_path / "run", config=settings.with_changes({"dev_queries": 0}), device="cpu")
    assert retriever.search_config == settings.search
    tuning = dsi.tune(retriever, collection)
    assert retriever.search_config == dataclasses.replace(settings.search, **tuning.best) != settings.search
    assert sorted(tuning.best) == ["beam_width", "lexical_weight", "memory_weight", "token_weight"]
    queries = list(collection.query_texts("dev").values())
    best = [{hit.doc_id for hit in hits} for hits in retriever.search(queries, method="exact", token_weight=0.0)]
    shares = {}
    for beam_width in (*BEAMS[: BEAMS.index(tuning.best["beam_width"])], tuning.best["beam_width"]):
        found = [
            {hit.doc_id for hit in hits} for hits in retriever.search(queries, beam_width=beam_width, token_weight=0.0)
        ]
        shares[beam_width] = sum(len(own & ten) for own, ten in zip(found, best, strict=True)) / (10 * len(queries))
    tried = {setting["beam_width"]: share for setting, share in tuning.tried if "beam_width" in setting}
    assert {width: pytest.approx(share) for width, share in shares.items()} == {width: tried[width] for width in shares}
    *narrow, last = shares.values()
    assert last >= 0.98
    assert all(share < 0.99 for share in narrow)
