"""When earlier queries pay: documents keep as many as they may, and the whole curve runs small."""

import json
from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pytest
from dsi_experiments.query_curve import BANDS, answer_counts, beyond, by_band, reproduce

import dsi
from dsi.store.learning import LearnedPair


def pairs_of(counts):
    return [
        LearnedPair(f"#{doc_id}{number}", "", doc_id, 1, datetime.now(UTC))
        for doc_id, count in counts.items()
        for number in range(count)
    ]


def test_every_document_keeps_as_many_as_it_may():
    counts = {"a": 5, "b": 2, "c": 1}
    pairs = pairs_of(counts)
    gone = {kept: {pair.hash for pair in beyond(pairs, kept, seed=0)} for kept in (0, 2, 4, 9)}
    assert gone[0] == {pair.hash for pair in pairs}
    assert gone[9] == set() < gone[4] < gone[2] < gone[0]
    left = Counter(pair.doc_id for pair in pairs if pair.hash not in gone[2])
    assert left == {"a": 2, "b": 2, "c": 1}
    assert gone[2] != {pair.hash for pair in beyond(pairs, 2, seed=1)}


def test_a_query_counts_by_the_answer_that_most_was_asked_for():
    pairs = pairs_of({"a": 5, "b": 2, "c": 1})
    assert answer_counts(pairs, {"q": {"b": 1, "c": 2}, "r": {"a": 0, "c": 1}, "s": {"d": 1}}) == [2, 1, 0]
    gains = np.array([1.0, 3.0, 10.0, 20.0])
    found = by_band(gains, np.array([0, 0, 4, 30]))
    assert found == {"all": [8.5, 8.41, 4], "0": [2.0, 1.96, 2]}
    assert all(low <= high for low, high in BANDS.values())


@pytest.mark.programs
def test_the_curve_ends_at_the_index_as_it_was_trained(sentence_bert_folder, beir, tmp_path):
    config = dsi.Config().with_changes({"encoder": {"name": str(sentence_bert_folder)}})
    table = reproduce(beir(), tmp_path / "out", [0], config)
    record = json.loads((tmp_path / "out" / "curve.json").read_text())
    assert table in (tmp_path / "out" / "curve.md").read_text()
    assert (tmp_path / "out" / "curve.svg").exists()
    retriever, collection = dsi.load(tmp_path / "out" / "index"), dsi.read_collection(beir())
    assert record["pairs"] == len(retriever.learned())
    evaluation = dsi.evaluate(retriever, collection, measures=["nDCG@10"])
    whole, without = (
        evaluation.row(name).values["nDCG@10"].values() for name in ("generate", "without earlier queries")
    )
    assert record["without"] == round(100 * np.mean([*without]), 2)
    most = record["gains"][max(record["gains"], key=int)]
    assert most["all"][0] == round(100 * (np.mean([*whole]) - np.mean([*without])), 2)
