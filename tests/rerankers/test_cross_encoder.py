"""Hits in the order of a cross-encoder or of a function: its scores against one pair at a time, its names and its errors."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

import dsi
from dsi import Hits, SearchConfig
from dsi.commands.main import main
from dsi.config import Config, write_config
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.data.collection import read_collection
from dsi.docids.words.bm25 import BM25
from dsi.rerankers import load_reranker, rerank
from dsi.store.retriever import load
from tests.support.parts import from_parts
from tests.support.small import random_generator, save_cross_encoder

QUERIES = ["which capitals are on the danube", "a city", "the river in the north of the country"]
NEW = {"doc_id": "new", "title": "Neretva", "text": "A river in Bosnia and Croatia."}


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer_folder):
    return save_cross_encoder(tmp_path_factory.mktemp("cross-encoder"), tokenizer_folder)


@pytest.fixture
def collection(beir):
    return read_collection(beir())


@pytest.fixture
def index(collection, encoder, tmp_path):
    """An index on disk that keeps no texts, as a training leaves it."""
    documents = collection.documents
    texts = encoder.document_texts(list(documents["title"]), list(documents["text"]))
    tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=3, max_leaf_size=3))
    lexical = BM25(documents["doc_id"], collection.full_texts())
    settings = SearchConfig(alpha=0.4, beam_width=20, ann_temperature=0.1, lexical_weight=0.1)
    without = documents.remove_columns(["text"])
    from_parts(encoder, tree, random_generator(tree), without, settings, lexical).save(tmp_path / "index")
    write_config(Config(), tmp_path / "index" / "config.toml")
    return tmp_path / "index"


@pytest.fixture
def retriever(index):
    return load(index, device="cpu")


def full_text(collection, doc_id):
    row = collection.documents[collection.rows[doc_id]]
    return f"{row['title']} {row['text']}"


def backwards(hits):
    return [-hit.score for hit in hits]


def test_hits_are_ordered_by_the_model_one_pair_at_a_time(retriever, collection, model):
    retriever.update(texts=collection.documents)
    before = retriever.search(QUERIES, k=8)
    literal = CrossEncoder(str(model), device="cpu")
    for query, plain, hits in zip(QUERIES, before, rerank(before, literal), strict=True):
        scores = {
            hit.doc_id: float(
                literal.predict((query, full_text(collection, hit.doc_id)), activation_fn=torch.nn.Identity())
            )
            for hit in plain
        }
        assert [hit.doc_id for hit in hits] == sorted(scores, key=lambda doc_id: -scores[doc_id])
        assert [hit.score for hit in hits] == pytest.approx([scores[hit.doc_id] for hit in hits], abs=1e-4)
        assert max(scores.values()) - min(scores.values()) > 0.1


def test_hits_keep_all_but_rank_and_score(retriever):
    plain = retriever.search(QUERIES, k=8)
    found = rerank(plain, backwards)
    for hits, before in zip(found, plain, strict=True):
        assert [hit.doc_id for hit in hits] == [hit.doc_id for hit in before][::-1]
        assert [hit.rank for hit in hits] == list(range(1, 9))
        assert [hit.score for hit in hits] == [-hit.score for hit in before][::-1]
        assert {replace(hit, rank=0, score=0.0) for hit in hits} == {replace(hit, rank=0, score=0.0) for hit in before}
        assert (hits.query, hits.exact) == (before.query, before.exact)
        with pytest.raises(ValueError, match="because they were reranked"):
            hits.explain(hits[0].doc_id)
    assert rerank(rerank(plain[0], backwards), backwards) == plain[0]
    assert rerank(plain[0], lambda hits: np.zeros(len(hits), dtype=np.float32))[0].doc_id == plain[0][0].doc_id  # ties
    partly = Hits(plain[0], exact=False, query="x", coverage=0.5, missing=[1])
    assert (rerank(partly, backwards).coverage, rerank(partly, backwards).missing) == (0.5, [1])


def test_a_search_that_finds_nothing_is_reranked_to_nothing(retriever, collection, model):
    retriever.update(texts=collection.documents)
    assert [len(hits) for hits in rerank(retriever.search(["", "noble gas", " "], 3), backwards)] == [0, 3, 0]
    nothing = retriever.search(["neon", ""], allow=[])
    for own in (CrossEncoder(str(model), device="cpu"), backwards):
        assert [len(hits) for hits in rerank(nothing, own)] == [0, 0]
    assert rerank([], backwards) == []


@pytest.mark.parametrize(
    ("scores", "got"),
    [
        ([1.0], r"a score for each of 3 hits, got \[1.0\]"),
        ([[1.0], [2.0], [3.0]], "a score for each of 3 hits"),
        ([0.0, float("nan"), 1.0], "scores that are numbers, got NaN for query .* and document '.*'; mend the model"),
    ],
)
def test_scores_that_are_none_are_refused(retriever, scores, got):
    with pytest.raises(ValueError, match=f"^A model must give {got}"):
        rerank(retriever.search(QUERIES[0], k=3), lambda hits: scores)


def test_what_cannot_be_reranked_is_named(retriever):
    hits = retriever.search(QUERIES[0], k=3)
    for wrong in (list(hits), QUERIES, None, retriever, {"q": hits}):
        with pytest.raises(TypeError, match=r"rerank\(\) takes the hits that retriever.search\(\) returns, got"):
            rerank(wrong, backwards)


def test_texts_stay_with_the_index_through_updates(retriever, collection, index, model):
    cross_encoder = CrossEncoder(str(model), device="cpu")
    with pytest.raises(ValueError, match=r"this index keeps titles only; .*`dsi update INDEX --texts COLLECTION`"):
        rerank(retriever.search(QUERIES), cross_encoder)
    retriever.update(texts=collection.documents)
    retriever.add([NEW])
    retriever.remove([collection.documents["doc_id"][0]])
    retriever.save(index)
    loaded = load(index, device="cpu")
    hits = loaded.search("rivers of bosnia", k=40)
    texts = {hit.doc_id: f"{hit.title} {hit.text}" for hit in hits}
    assert texts.pop("new") == "Neretva A river in Bosnia and Croatia."
    assert texts == {doc_id: full_text(collection, doc_id) for doc_id in collection.documents["doc_id"][1:]}
    assert [hit.doc_id for hit in rerank(hits, cross_encoder)] != [hit.doc_id for hit in hits]
    with pytest.raises(ValueError, match="metadata must not have the key 'text'"):
        loaded.add([{"doc_id": "x", "title": "x", "text": "x", "metadata": {"text": "y"}}])
    with pytest.raises(ValueError, match=r"where .* does not work"):
        loaded.search("river", where="text = 'y'")  # no filter reads whole texts


def test_texts_that_do_not_fit_are_refused(retriever, collection):
    with pytest.raises(ValueError, match=r"no text of document '.*'; give the texts of all documents"):
        retriever.update(texts=collection.documents.select(range(10)))
    with pytest.raises(ValueError, match="has no column text"):
        retriever.update(texts=collection.documents.remove_columns(["text"]))
    assert not retriever.snapshot.documents.has_texts


def test_models_that_cannot_score_pairs_are_refused(retriever, index, tmp_path, tokenizer_folder, sentence_bert_folder):
    def load(name, **options):
        return load_reranker(retriever, index, name, **options)

    with pytest.raises(FileNotFoundError, match=r"cross-encoder 'no/such' cannot be loaded \(.*\); give the Hub name"):
        load("cross-encoder:no/such")
    three = save_cross_encoder(tmp_path / "three", tokenizer_folder, labels=3)
    with pytest.raises(ValueError, match=r"must have one label, its score; .* has 3"):
        load(f"cross-encoder:{three}")
    with pytest.raises(
        ValueError, match=r"lack weights that its answers depend on \(classifier.bias, classifier.weight\)"
    ):
        load(f"cross-encoder:{sentence_bert_folder}")
    with pytest.raises(FileNotFoundError, match="holds no reranker; give cross-encoder:MODEL"):
        load("mine")
    for name in ("../x", "", "/etc", ".x"):
        with pytest.raises(ValueError, match="plain folder name, got"):
            load(name)


def test_evaluate_reads_the_texts_of_the_collection(index, collection, model, capsys, retriever):
    name, results = f"cross-encoder:{model}", index / "results.json"
    common = [str(index), str(collection.name), "--device", "cpu", "--rerank", name, "--rerank-depth", "6"]
    assert main(["evaluate", *common, "--results", str(results)]) == 0
    assert f"| + {name} " in capsys.readouterr().out
    found = json.loads(results.read_text())["systems"][f"+ {name}"]
    assert found["settings"]["rerank depth"] == 6
    retriever.update(texts=collection.documents)
    evaluation = dsi.evaluate(retriever, collection, rerankers={"x": [CrossEncoder(str(model))]}, rerank_depth=6)
    assert np.mean([*evaluation.row("+ x").values["Hit@1"].values()]) == pytest.approx(
        found["Total"]["Hit@1"] / 100, abs=1e-3
    )


def test_search_reranks(index, collection, model, capsys, retriever, tmp_path):
    common = [str(index), "--device", "cpu", "-k", "3"]
    one = [*common, QUERIES[0], "--json"]
    name = f"cross-encoder:{model}"
    assert main(["search", *one, "--rerank", name]) == 2
    assert "this index keeps titles only" in capsys.readouterr().err
    assert main(["update", str(index), "--texts", str(collection.name), "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(["search", *one, "--rerank", f"{name}+{name}", "--rerank-depth", "7"]) == 0
    printed = json.loads(capsys.readouterr().out)
    retriever.update(texts=collection.documents)
    best = rerank(retriever.search(QUERIES[0], k=7), CrossEncoder(str(model)))
    assert [hit["doc_id"] for hit in printed["hits"]] == [hit.doc_id for hit in best[:3]]
    (tmp_path / "q.tsv").write_text(f"q1\t{QUERIES[0]}\nq2\t{QUERIES[1]}\n")
    files = ["--queries", str(tmp_path / "q.tsv"), "--run", str(tmp_path / "a.run")]
    assert main(["search", *common, *files, "--rerank", name, "--rerank-depth", "7"]) == 0
    lines = [line.split() for line in (tmp_path / "a.run").read_text().splitlines()]
    assert [line[2] for line in lines if line[0] == "q1"] == [hit.doc_id for hit in best[:3]]
    assert len(lines) == 6
