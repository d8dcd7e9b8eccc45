"""Queries that are documents of the collection leave themselves out wherever answers are judged; ids that look alike do not."""

import json

import numpy as np
import pytest

import dsi
from dsi.commands.main import main
from dsi.contrastive.query_tokens import JudgedQueries, query_examples
from dsi.contrastive.training import hard_negatives
from dsi.docids.data.collection import Collection
from dsi.docids.data.identical import without_identical
from dsi.docids.words.bm25 import BM25
from dsi.eval.trec import write_run
from dsi.measuring.tuning import choose
from tests.support.small import MINIPEDIA

LINES = [json.loads(line) for line in (MINIPEDIA / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:30]]
DOC_IDS = [line["_id"] for line in LINES]
SAID = "documents themselves (the same id, and within the text); each leaves its own document out"


def arguments(count=30):
    """A collection like ArguAna: each query is a document, with other space and case, and asks for the next one."""
    queries = {line["_id"]: "  " + line["text"].upper().replace(" ", "\n ") for line in LINES[:count]}
    following = dict(zip(DOC_IDS, [*DOC_IDS[1:], DOC_IDS[0]], strict=True))
    qrels = {query_id: {following[query_id]: 1} for query_id in queries}
    return Collection.from_records(LINES, queries=queries, qrels={"dev": qrels, "test": qrels})


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentence_t5_folder):
    folder = tmp_path_factory.mktemp("identical") / "index"
    dsi.index(arguments(), folder, encoder=str(sentence_t5_folder), device="cpu")
    return folder


@pytest.fixture
def retriever(folder):
    return dsi.load(folder, device="cpu")


def test_the_same_id_counts_where_the_document_holds_the_query_and_is_not_what_it_asks_for(caplog):
    documents = [{"_id": n, "text": f"The text of document {n} is this."} for n in ("1", "2", "3", "4")]
    queries = {"1": "document 1 IS  this", "2": "document 3", "3": "", "4": "of document 4", "5": "document 2"}
    collection = Collection.from_records(documents, queries=queries, qrels={"test": {"1": {"2": 1}, "4": {"4": 1}}})
    assert collection.identical == {"1": {"1"}}  # not 4, which is judged relevant to itself
    assert f"1 of 4 queries are {SAID}" in caplog.text
    collection.identical  # noqa: B018 (said once)
    assert caplog.text.count("themselves") == 1
    run = {"1": {"1": 3.0, "2": 2.0, "3": 1.0}, "2": {"2": 1.0, "1": 0.5, "4": 0.1}}
    assert without_identical(run, {"1": frozenset("1")}, 2) == {"1": {"2": 2.0, "3": 1.0}, "2": {"2": 1.0, "1": 0.5}}
    assert without_identical(run, {}) is run


@pytest.mark.parametrize(
    "query",
    [
        "Neon. A noble gas, used in signs.", "Neon A noble gas used in signs", "neon: a noble gas ,used in SIGNS",
        "  A noble gas, used in signs. ", "Neon\nA noble  gas, used in si gns", "NEON A NOBLE GAS, USED IN SIGNS!",
    ],
)  # fmt: skip
def test_a_query_that_is_a_document_but_for_a_comma_case_or_space_leaves_it_out(query):
    query_id = "neon"
    documents = [
        {"_id": "neon", "title": "Neon", "text": "A noble gas, used in signs."},
        {"_id": "copy", "title": "", "text": "Neon: a noble gas, used in signs."},
        {"_id": "more", "title": "Neon", "text": "A noble gas, used in signs. It glows."},
        {"_id": "empty", "title": "", "text": "..."},
    ]
    asked = {query_id: query, "other": "used in signs", "dots": "…!"}
    judged = {name: {"more": 1} for name in asked}
    collection = Collection.from_records(documents, queries=asked, qrels={"test": judged})
    assert collection.identical == {query_id: {"neon"}}
    run = {query_id: {"neon": 3.0, "copy": 2.0, "more": 1.0}}
    assert without_identical(run, collection.identical, 1) == {query_id: {"copy": 2.0}}
    relevant = Collection.from_records(documents, queries=asked, qrels={"test": judged, "dev": {query_id: {"neon": 1}}})
    assert relevant.identical == {}


@pytest.mark.programs
def test_every_row_of_an_evaluation_leaves_the_query_itself_out_and_has_as_many_answers(retriever, caplog):
    collection = arguments()
    evaluation = dsi.evaluate(retriever, collection)
    assert evaluation.about["identical"] == 30
    assert f"30 of 30 queries are {SAID}" in caplog.text
    for name, run in evaluation.runs.items():
        assert all(query_id not in own for query_id, own in run.items()), name
        assert name == "BM25" or all(len(own) >= 10 for own in run.values()), name
    found = retriever.run(collection.query_texts("test"), 11)
    assert sum(query_id in own for query_id, own in found.items()) > 20  # a search finds it
    generate = evaluation.runs["generate"]
    assert all(list(generate[q]) == [d for d in own if d != q][:10] for q, own in found.items())


def test_ids_that_look_alike_change_nothing(retriever):
    collection = arguments()
    other = Collection.from_records(
        LINES, queries=dict.fromkeys(DOC_IDS, "noble gases"), qrels={"test": collection.qrels["test"]}
    )
    assert other.identical == {}
    run = dsi.evaluate(retriever, other).runs["generate"]
    assert any(query_id in own for query_id, own in run.items())


def test_weights_are_chosen_without_the_query_itself(retriever):
    collection = arguments()
    assert dsi.tune(retriever, collection).best
    qrels, encoded = collection.qrels["dev"], retriever.encode_queries(collection.query_texts("dev"))
    config = retriever.snapshot.configured
    with_itself = choose(retriever, encoded, qrels, config)
    without = choose(retriever, encoded, qrels, config, identical=collection.identical)
    assert with_itself.best["lexical_weight"] != without.best["lexical_weight"]


def test_the_query_itself_is_no_negative(encoder):
    texts = ["neon gas", "neon sign", "argon gas", "neon lamp gas"]
    words, queries = BM25(list("abcd"), texts), {1: ["neon gas"]}
    assert 0 in hard_negatives(words, queries, 3)["neon gas"]
    assert sorted(hard_negatives(words, queries, 3, identical={"neon gas": {0}})["neon gas"]) == [2, 3]
    embeddings = encoder.encode(texts, "document")
    judged = JudgedQueries.from_pairs([("q", 1)], {"q": "neon gas"}, encoder, {"neon gas": {0}})
    rng, rows = np.random.default_rng(0), np.arange(4)
    (example,) = query_examples(encoder, judged, embeddings, rows, lambda _, vectors: vectors @ embeddings.T, rng)
    assert (example.relevant.tolist(), sorted(example.negatives.tolist())) == ([1], [2, 3])


def test_judged_negatives_come_before_those_of_bm25():
    texts = ["neon gas", "neon sign", "argon gas", "neon lamp gas", "rivers"]
    words, queries = BM25(list("abcde"), texts), {0: ["neon gas"]}
    assert hard_negatives(words, queries, 1, given={"neon gas": [4]})["neon gas"] == [4]
    first, *others = hard_negatives(words, queries, 3, given={"neon gas": [4, 0]})["neon gas"]
    assert first == 4  # and not 0, which is relevant
    assert len(set(others) - {0, 4}) == 2
    judged = {"train": {"q": {"a": 1, "b": 0, "zzz": 0}, "r": {"b": 1}}}
    documents = [{"_id": doc_id, "text": text} for doc_id, text in zip("abcde", texts, strict=True)]
    collection = Collection.from_records(documents, queries={"q": "neon gas", "r": "sign"}, qrels=judged, dev_queries=0)
    assert collection.judged_negatives() == {"neon gas": [1]}


def test_runs_that_are_compared_leave_the_query_itself_out(tmp_path, capsys):
    collection = arguments(5)
    collection.save(tmp_path / "data")
    judged = collection.qrels["test"]
    first = {query_id: {query_id: 2.0, **dict.fromkeys(own, 1.0)} for query_id, own in judged.items()}
    write_run(first, tmp_path / "a.run", "a")
    write_run({query_id: dict.fromkeys(own, 1.0) for query_id, own in judged.items()}, tmp_path / "b.run", "b")
    runs = [str(tmp_path / "a.run"), str(tmp_path / "b.run")]
    assert main(["compare", *runs, str(tmp_path / "data"), "--measures", "map", "P_1"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("100.00") == 4


def test_the_evaluators_of_others_are_given_answers_without_the_query_itself(retriever):
    collection = arguments()
    beir = pytest.importorskip("dsi.integrations.beir")
    corpus = {line["_id"]: {"title": line["title"], "text": line["text"]} for line in LINES}
    run = beir.DocidSearch(retriever).search(corpus, collection.query_texts("test"), 4)
    assert all(len(own) == 4 and query_id not in own for query_id, own in run.items())
    queries = dict.fromkeys(DOC_IDS, "noble gases")
    assert sum(q in own for q, own in beir.DocidSearch(retriever).search(corpus, queries, 4).items()) == 4


def test_a_task_of_mteb_ignores_ids_if_all_that_are_alike_are_identical():
    mteb = pytest.importorskip("dsi.integrations.mteb")
    assert mteb.retrieval_task(arguments()).ignore_identical_ids
    some = arguments()
    some.queries[DOC_IDS[0]] = "noble gases"
    assert not mteb.retrieval_task(some).ignore_identical_ids


def test_pyterrier_finds_others_than_the_query_itself(retriever):
    pyterrier = pytest.importorskip("dsi.integrations.pyterrier")
    import pandas

    texts = arguments().query_texts("test")
    frame = pandas.DataFrame({"qid": list(texts), "query": list(texts.values())})
    for search in (pyterrier.DocidRetriever(retriever, 4), pyterrier.LexicalRetriever(retriever, 4)):
        found = search.transform(frame)
        assert (found["qid"] != found["docno"]).all()
        assert (found.groupby("qid").size() == 4).all()
    frame["query"] = "noble gases"
    found = pyterrier.DocidRetriever(retriever, 4).transform(frame)
    assert (found["qid"] == found["docno"]).sum() == 4
