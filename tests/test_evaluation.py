"""An index whose documents are in another order than the collection's, or are others."""

import logging

import pytest

import dsi
from docids.clustering import DocidsConfig, build_tree
from docids.words.bm25 import BM25
from dsi.measuring.runs import IndexRuns
from tests.conftest import random_tied

LEFT = "documents are in the collection only"


@pytest.fixture
def collection(beir):
    return dsi.read_collection(beir())


@pytest.fixture
def retriever(collection, encoder):
    documents = collection.documents
    texts = encoder.document_texts(documents["title"][:], documents["text"][:])
    tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=3, max_leaf_size=3))
    words = BM25(documents["doc_id"], collection.full_texts())
    config = dsi.SearchConfig(alpha=0.5, lexical_weight=0.1, beam_width=3)
    without_texts = documents.remove_columns(["text"])
    return dsi.GenerativeRetriever(encoder, tree, random_tied(tree), without_texts, config, lexical=words)


def replace_first(retriever, collection):
    """Remove the first document and add it again: it is the last one then."""
    first = collection.documents[0]
    retriever.remove([first["doc_id"]])
    retriever.add([{name: first[name] for name in ("doc_id", "title", "text")}])
    assert list(retriever.documents.rows) == [*collection.documents["doc_id"][1:], first["doc_id"]]


def test_the_order_of_an_updated_index_changes_no_result(retriever, collection, caplog):
    dense = IndexRuns(collection, retriever).run_dense("test")
    before, tuned = dsi.evaluate(retriever, collection), dsi.tune(retriever, collection).best
    replace_first(retriever, collection)
    again = IndexRuns(collection, retriever).run_dense("test")
    assert {query_id: pytest.approx(found, abs=1e-4) for query_id, found in dense.items()} == again
    assert dsi.tune(retriever, collection).best["lexical_weight"] == pytest.approx(tuned["lexical_weight"], rel=1e-2)
    after = dsi.evaluate(retriever, collection)
    for row in before.rows:
        if row.name.startswith(("BM25", "dense", "RRF")):
            assert after.row(row.name).values == row.values
    assert LEFT not in caplog.text


def test_documents_that_differ_are_counted_and_missing_ones_are_not_found(retriever, collection, caplog):
    gone = collection.documents[collection.pairs("test")[0][1]]["doc_id"]
    retriever.remove([gone])
    retriever.add([{"doc_id": "new1", "text": "rivers"}, {"doc_id": "new2", "text": "gases"}])
    with caplog.at_level(logging.WARNING):
        evaluation = dsi.evaluate(retriever, collection)
    assert f"differ: 1 {LEFT} (no search finds them), 2 in the index only" in caplog.text
    of_gone = [query_id for query_id, judged in collection.qrels["test"].items() if judged == {gone: 1}]
    assert of_gone
    for name in ("dense", evaluation.index):
        values = evaluation.row(name).values["Hit@10"]
        assert values.keys() == collection.qrels["test"].keys()
        assert not any(values[query_id] for query_id in of_gone)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        dsi.tune(retriever, collection)
    assert LEFT in caplog.text


def test_another_collection_is_refused(retriever, beir):
    document, query = '{"_id": "x", "text": "t"}', '{"_id": "q", "text": "t"}'
    rows = "q\tx\t1"
    other = dsi.read_collection(beir(document, query, train=rows, dev=rows, test=rows))
    for call in (dsi.evaluate, dsi.tune):
        with pytest.raises(
            ValueError, match="the index share no document; give the collection that the index was made of"
        ):
            call(retriever, other)
