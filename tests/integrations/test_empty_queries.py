"""One empty query stops neither a batch nor an experiment: its answer is empty, here, behind HTTP and in other libraries."""

import pytest

import dsi
from dsi.docids.data.collection import Collection
from dsi.measuring.tuning import tune
from tests.support.evaluated import collection, retriever  # noqa: F401 (fixtures)

QUERIES = ["", "noble gas", " \t"]


def test_every_call_answers_an_empty_query_with_nothing(retriever):
    assert [len(hits) for hits in retriever.search(QUERIES, k=3)] == [0, 3, 0]
    assert [len(found) for found in retriever.run(QUERIES, 3).values()] == [0, 3, 0]
    assert [len(hits) for hits in retriever.search(["", ""], k=3)] == [0, 0]
    assert retriever.search("", method="exact") == []


def test_an_evaluation_a_tuning_and_their_tables_go_on(retriever, collection):
    records = [{**document} for document in collection.documents]
    queries = dict(collection.queries)
    for split in ("dev", "test"):
        queries[next(iter(collection.qrels[split]))] = " "
    odd = Collection.from_records(records, queries=queries, qrels=collection.qrels)
    evaluation = dsi.evaluate(retriever, odd)
    empty = next(iter(odd.qrels["test"]))
    for row in evaluation.rows:
        assert all(values[empty] == 0 for values in row.values.values()), row.name
        assert len(row.values["Hit@1"]) == len(odd.qrels["test"])
    assert tune(retriever, odd).best


def test_other_libraries_get_an_empty_answer(retriever):
    beir = pytest.importorskip("dsi.integrations.beir")
    corpus = {doc_id: {"text": ""} for doc_id in retriever.snapshot.documents.column("doc_id")}
    found = beir.DocidSearch(retriever).search(corpus, dict(zip("abc", QUERIES, strict=True)), 3)
    assert [len(own) for own in found.values()] == [0, 3, 0]
    langchain = pytest.importorskip("dsi.integrations.langchain").DocidRetriever(retriever, k=3)
    assert [len(found) for found in langchain.batch(QUERIES)] == [0, 3, 0]
    llama = pytest.importorskip("dsi.integrations.llama_index").DocidRetriever(retriever, 3)
    assert [len(llama.retrieve(query)) for query in QUERIES] == [0, 3, 0]


def test_pyterrier_goes_on(retriever):
    pyterrier, pandas = pytest.importorskip("dsi.integrations.pyterrier"), pytest.importorskip("pandas")
    frame = pandas.DataFrame({"qid": list("abc"), "query": QUERIES})
    for search in (pyterrier.DocidRetriever(retriever, 3), pyterrier.LexicalRetriever(retriever, 3)):
        assert search.transform(frame)["qid"].tolist() == ["b", "b", "b"]


def test_http_answers_the_other_queries(retriever, tmp_path):
    pytest.importorskip("fastapi")
    from tests.support.serving import live

    retriever.save(tmp_path / "index")
    with live(tmp_path / "index") as client:
        _, answer = client.ask("search", {"queries": QUERIES, "k": 3})
        assert [len(own["hits"]) for own in answer["answers"]] == [0, 3, 0]
        _, low = client.ask("search", {"query": "noble gas", "k": 3, "min_score": 1e6})
        assert low["answers"][0]["hits"] == []
