"""A known-item test: its queries, the index that answers them, and the note on its numbers."""

import json

import pytest

import dsi
from dsi.commands.main import main
from dsi.measuring.known_items import MEANING, with_queries
from tests.support.small import MINIPEDIA

DOCUMENTS = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:60]]


@pytest.fixture(scope="module")
def index():
    return dsi.index(DOCUMENTS)


def test_sentences_are_gone_from_the_index_that_is_searched_and_stay_in_the_one_given(index):
    before = index.documents.dataset["text"][:]
    searched, collection = with_queries(index, None)
    texts = dict(zip(searched.documents.rows, searched.documents.dataset["text"][:], strict=True))
    assert len(collection.qrels["test"]) > 20
    for query_id, judged in collection.qrels["test"].items():
        (doc_id,) = judged
        sentence = collection.queries[query_id]
        assert sentence in index.get(doc_id).text
        assert sentence not in texts[doc_id]
        assert texts[doc_id]  # something of the document is left
        assert searched.get(doc_id).metadata == index.get(doc_id).metadata
    assert searched.documents.rows.keys() == index.documents.rows.keys()
    assert index.documents.dataset["text"][:] == before


def test_it_is_measured_without_a_collection_and_says_what_it_means(index):
    evaluation, again = dsi.evaluate(index), dsi.evaluate(index)
    assert evaluation.note == MEANING
    assert str(evaluation).endswith(MEANING)
    assert evaluation.row("generate").values == again.row("generate").values
    assert evaluation.row("dense").means(evaluation.splits)["Total"]["Hit@10"] > 20
    unjudged = dsi.Collection.from_records(DOCUMENTS, queries={"q": "neon"})
    assert dsi.evaluate(index, unjudged).note == MEANING


def test_judged_queries_are_taken_where_there_are_some(index):
    collection = dsi.Collection.from_records(DOCUMENTS, queries={"q": "a gas"}, qrels={"test": {"q": {"neon": 1}}})
    assert with_queries(index, collection) == (index, collection)
    assert dsi.evaluate(index, collection).note == ""
    with pytest.raises(ValueError, match="has no dev judgements"):
        dsi.evaluate(index, collection, "dev")


def test_an_index_without_texts_takes_those_of_its_collection():
    collection = dsi.Collection.from_records(DOCUMENTS)
    index = dsi.index(collection, config=dsi.Config().with_changes({"text_megabytes": 0}))
    with pytest.raises(ValueError, match=r"keeps no texts; give its collection \(in the shell --data DIR\)"):
        dsi.evaluate(index)
    assert dsi.evaluate(index, collection).note == MEANING
    assert not index.documents.has_texts


def test_too_few_documents_of_two_sentences_are_refused():
    index = dsi.index([{"id": str(number), "text": f"number {number}"} for number in range(30)])
    with pytest.raises(ValueError, match="needs 20 documents of two sentences or more, got 0; give a collection"):
        dsi.evaluate(index)


def test_the_command_prints_the_failures(index, tmp_path, capsys):
    index.save_pretrained(tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--show", "2", "--diagnose", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert MEANING in printed
    table = printed[printed.index("queries whose first answer is not relevant; the worst first") :].splitlines()
    assert [cell.strip() for cell in table[2].strip("|").split("|")] == [
        "query",
        "its document",
        "rank",
        "first answer",
    ]
    assert len([line for line in table[4:] if line.startswith("|")][:2]) == 2
    assert "queries without their document among 10" in printed


def test_an_index_that_writes_what_it_adds_is_refused(index):
    class OnCluster(dsi.GenerativeRetriever):
        """Adds documents to shards on disk."""

    other = object.__new__(OnCluster)
    other.__dict__.update(index.__dict__)
    with pytest.raises(ValueError, match="one on a cluster has no copy; load the index with GenerativeRetriever"):
        dsi.evaluate(other)
