"""No index is judged by what it was taught: learned test queries are left out, learned dev queries choose nothing."""

import dataclasses
import json
import shutil
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.docids.query_memory import QueryMemory
from dsi.eval.trec import read_run
from dsi.measuring import tuning
from dsi.measuring.learned import learned_queries
from dsi.store.retriever import Retriever
from tests.support.evaluated import collection, retriever  # noqa: F401 (fixtures)
from tests.support.small_index import DOCUMENTS, small_index


@pytest.fixture
def taught(retriever):
    retriever.search_config = dataclasses.replace(retriever.search_config, memory_weight=10.0)
    return retriever


def pairs_of(collection, split, change=str) -> list[tuple[str, str]]:
    """The judged pairs of a split, its queries changed."""
    judged = collection.qrels[split].items()
    return [(change(collection.queries[query_id]), doc_id) for query_id, own in judged for doc_id in own]


CHANGES = [
    str,
    str.upper,
    lambda text: f"  {text} ".replace(" ", "\t "),
    lambda text: unicodedata.normalize("NFD", text),
]


@pytest.mark.parametrize("change", CHANGES)
def test_learned_test_queries_are_counted_and_left_out(taught, collection, change, tmp_path):
    first, *others = list(collection.qrels["test"])
    learned = [pair for pair in pairs_of(collection, "test", change) if pair[0] != change(collection.queries[first])]
    before = dsi.evaluate(taught, collection)
    assert (before.about["learned"], before.about["judged"]) == (0, len(others) + 1)
    taught.learn(learned)
    evaluation = dsi.evaluate(taught, collection)
    assert (evaluation.about["learned"], evaluation.about["judged"]) == (len(others), len(others) + 1)
    assert evaluation.splits["Total"] == [first]
    assert all(set(run) == {first} for run in evaluation.runs.values())
    said = f"{len(others)} of {len(others) + 1} test queries were learned by the index, as they are or but for case and spaces"
    assert said in str(evaluation)
    evaluation.save(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["learned"] == len(others)


def test_where_all_were_learned_nothing_is_concluded(taught, collection):
    taught.learn(pairs_of(collection, "test"))
    evaluation = dsi.evaluate(taught, collection)
    count = len(collection.qrels["test"])
    assert evaluation.is_of_learned
    assert (evaluation.significance(), evaluation.summary()) == ("", "")
    assert f"All {count} test queries were learned by the index, so these numbers tell what it remembers" in str(
        evaluation
    )
    assert "ahead" not in str(evaluation)
    assert len(evaluation.splits["Total"]) == count
    taught.search_config = dataclasses.replace(taught.search_config, memory_weight=0.0)
    assert not dsi.evaluate(taught, collection).about["learned"]  # it has no effect


def test_of_an_index_from_the_hub_vectors_tell(taught, collection):
    query_id, *_ = collection.qrels["test"]
    taught.learn([(collection.queries[query_id], doc_id) for doc_id in collection.qrels["test"][query_id]])
    pushed = Retriever(taught.snapshot.with_memory(taught.snapshot.memory.published(words=False)))
    assert learned_queries(pushed, collection.query_texts("test")) == {query_id}
    pushed.learn(pairs_of(collection, "dev"))
    assert query_id in learned_queries(pushed, collection.query_texts("test"))


def test_compare_leaves_out_what_one_of_them_has_learned(taught, collection, beir, tmp_path, capsys):
    data = str(beir())
    taught.save(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first, *others = list(collection.qrels["test"])
    taught.learn([pair for pair in pairs_of(collection, "test") if pair[0] != collection.queries[first]])
    taught.save(tmp_path / "a")
    indexes = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["compare", *indexes, data, "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert f"{len(others)} of {len(others) + 1} test queries were learned by {tmp_path / 'a'}, as they are" in shown
    assert "\n1 query; second minus first" in shown
    taught.learn(pairs_of(collection, "test"))
    taught.save(tmp_path / "a")
    assert main(["compare", *indexes, data, "--device", "cpu"]) == 2
    assert "have learned all" in capsys.readouterr().err


def test_evaluate_in_the_shell_writes_runs_and_judgements_of_the_same_queries(
    taught, collection, beir, tmp_path, capsys
):
    first, *_ = list(collection.qrels["test"])
    taught.learn([pair for pair in pairs_of(collection, "test") if pair[0] != collection.queries[first]])
    taught.save(tmp_path / "run")
    folder = tmp_path / "trec"
    own = [str(beir()), "--device", "cpu", "--trec-runs", str(folder), "--show", "3"]
    assert main(["evaluate", str(tmp_path / "run"), *own]) == 0
    assert "were learned by the index" in capsys.readouterr().out
    judged = {line.split()[0] for line in (folder / "test.qrels").read_text().splitlines()}
    assert judged == {first} == set(read_run(folder / "generate.run"))


def test_dev_queries_that_were_learned_are_counted_and_choose_as_before(taught, collection, caplog, monkeypatch):
    monkeypatch.setattr(tuning, "FEWEST_QUERIES", 1)
    monkeypatch.setattr(tuning, "FEWEST_TESTED", 1)
    taught.learn(
        [(f"{document['title']} {document['text'][:20]}", document["doc_id"]) for document in collection.documents]
    )
    first = dsi.tune(taught, collection).best
    assert "were learned" not in caplog.text
    taught.learn(pairs_of(collection, "dev", str.upper))
    assert dsi.tune(taught, collection).best == first
    count = len(collection.qrels["dev"])
    assert f"{count} of {count} dev queries were learned; what was learned of them takes no part" in caplog.text


@pytest.mark.parametrize(("queries", "stays"), [(20, True), (99, True), (150, False)])
def test_few_dev_queries_do_not_switch_off_what_users_will_teach(encoder, caplog, queries, stays):
    """All of them say that what was learned misleads."""
    index = small_index(encoder, vectors=True)
    configured = dataclasses.replace(index.snapshot.configured, memory_weight=10.0)
    index = Retriever(dataclasses.replace(index.snapshot, configured=configured))
    asked = {f"q{n}": f"{DOCUMENTS[n % 40]['title']} {n}" for n in range(queries)}
    doc_ids = [document["doc_id"] for document in DOCUMENTS[:50]]
    vectors = index.encode_queries([f"{query}?" for query in asked.values()]).embeddings
    wrong = np.array([index.snapshot.documents.rows[doc_ids[45 + n % 5]] for n in range(queries)])
    index = Retriever(
        index.snapshot.with_memory(QueryMemory().learn([f"{query}?" for query in asked.values()], wrong, vectors))
    )
    qrels = {f"q{n}": {doc_ids[n % 40]: 1} for n in range(queries)}
    config = dataclasses.replace(index.snapshot.configured)
    weights = tuning.choose_weights(index.snapshot, index.encode_queries(asked), qrels, config)
    assert (weights["memory_weight"] == 10.0) == stays
    assert (
        "test what was learned of earlier queries, fewer than 100, so memory_weight stays 10." in caplog.text
    ) == stays


def test_a_tuning_that_gives_earlier_queries_no_weight_says_so(encoder, tmp_path, monkeypatch, caplog):
    index = small_index(encoder, vectors=True)
    index.learn([("a question", DOCUMENTS[0]["doc_id"])])
    index.save(tmp_path / "index")

    def tuned_without(retriever, collection):
        retriever.search_config = dataclasses.replace(retriever.search_config, memory_weight=0.0)
        return tuning.Tuning({"memory_weight": 0.0}, [])

    monkeypatch.setattr(tuning, "tune", tuned_without)
    assert tuning.tune_index(tmp_path / "index", SimpleNamespace(qrels={"dev": {}}), "cpu")
    assert "The index has learned 1 pair without effect: memory_weight is 0." in caplog.text
