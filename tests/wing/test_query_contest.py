"""What train queries teach: weights and measures are the library's, the tree learns, and all of the contest runs small."""

import json

import numpy as np
import pytest
from dsi_experiments.linear_tree import TreeSettings, floored, grow, train_tree
from dsi_experiments.query_contest import CUT, Problem, contest_collection, fit, measures, reproduce
from scipy import sparse

import dsi
from dsi.eval.fusion import fit_weights
from dsi.eval.measures import evaluate
from tests.support.small import MINIPEDIA


def random_queries(rng, queries=30, candidates=12, parts=3):
    scores = rng.normal(size=(queries, candidates, parts)).astype(np.float32)
    grades = np.zeros((queries, candidates))
    grades[np.arange(queries), rng.integers(0, candidates, queries)] = 1
    grades[:5, 0] = 2
    scores[grades > 0] += 0.5
    return scores, grades


def as_runs(values):
    return {
        f"q{query}": {f"d{row:02}": float(value) for row, value in enumerate(own)} for query, own in enumerate(values)
    }


def test_weights_are_those_that_the_library_fits():
    scores, grades = random_queries(np.random.default_rng(0))
    rows = np.tile(np.arange(grades.shape[1]), (len(grades), 1))
    rows[3, -1] = -1  # a query with one candidate less
    grades[3, -1] = 0
    weights = fit(Problem.of(scores, rows, grades), [1.0, 0.7, 1.0])
    runs = [as_runs(scores[:, :, part]) for part in range(3)]
    for run in runs:
        del run["q3"]["d11"]
    expected = fit_weights(runs[0], runs[1:], [0.7, 1.0], as_runs(grades))
    assert (weights / weights[0])[1:] == pytest.approx(expected, rel=0.01)


def test_measures_are_those_of_the_library():
    scores, grades = random_queries(np.random.default_rng(1))
    rows = np.tile(np.arange(grades.shape[1]), (len(grades), 1))
    ideal = np.array([np.sort(own)[::-1][:CUT] @ (1 / np.log2(np.arange(min(CUT, len(own))) + 2)) for own in grades])
    own = measures(rows, scores[:, :, 0], grades, ideal)
    expected = evaluate(as_runs(scores[:, :, 0]), as_runs(grades), ["nDCG@10", "Hit@1", "Hit@10"])
    assert own == pytest.approx(np.array([list(values.values()) for values in expected.values()]))


def test_a_tree_learns_which_document_a_word_means():
    documents, words = 40, 40
    points = np.random.default_rng(0).normal(size=(documents, 8)).astype(np.float32)
    examples = sparse.csr_array(np.tile(np.eye(words, dtype=np.float32), (2, 1)))  # train queries, then texts
    labels = sparse.csr_array(np.tile(np.eye(documents, dtype=np.float32), (2, 1)))
    for beam in (0, 3):
        settings = TreeSettings(branching=4, beam=beam, strength=1000.0)
        tree = train_tree(examples, labels, sparse.csr_array(np.eye(words, dtype=np.float32)), points, words, settings)
        assert (tree.log_probs <= 0).all()
        assert (tree.log_probs.argmax(axis=1) == np.arange(documents)).all()
        bonus = floored(tree.log_probs, 3.0)
        assert bonus.min() == 0
        assert 0 < bonus.max() <= 3
    levels = grow(points, settings)
    assert [sorted(len(members) for members, _ in level) for level in levels[:2]] == [[40], [10] * 4]
    assert all(len(members) in (2, 3) for members, _ in levels[2])


def test_half_of_the_dev_queries_ask_for_documents_without_a_train_query():
    whole = dsi.read_collection(MINIPEDIA)
    qrels = {"train": {**whole.qrels["train"], **whole.qrels["dev"]}, "test": whole.qrels["test"]}
    collection = dsi.Collection.from_records(whole.documents, queries=whole.queries, qrels=qrels)
    own = contest_collection(collection, 40, 0)
    taught = {doc_id for judged in own.qrels["train"].values() for doc_id in judged}
    untaught = [query_id for query_id, judged in own.qrels["dev"].items() if taught.isdisjoint(judged)]
    assert len(own.qrels["dev"]) == 40
    assert len(untaught) == pytest.approx(20, abs=1)
    assert own.qrels["dev"].keys().isdisjoint(own.qrels["train"])


@pytest.mark.programs
def test_every_form_is_measured_after_it_was_chosen(sentence_bert_folder, beir, tmp_path):
    config = dsi.Config().with_changes({"encoder": {"name": str(sentence_bert_folder)}})
    table = reproduce(beir(), tmp_path / "out", [0, 1], config)
    record, chosen = (json.loads((tmp_path / "out" / name).read_text()) for name in ("queries.json", "settings.json"))
    assert record["settings"] == chosen
    assert set(record["rows"]) == {"today", "linear tree alone", *chosen["by seed"]["0"]}
    for name, own in record["rows"].items():
        assert 0 <= own["all"]["nDCG@10"] <= 100
        assert sum(own[kind]["queries"] for kind in ("taught", "untaught") if kind in own) == own["all"]["queries"], (
            name
        )
        assert f"| {name} " in table
    assert record["rows"]["today"]["all"]["nDCG@10 over today"] == [0, 0]
