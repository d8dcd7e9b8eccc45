"""Features against brute force; reranked searches, and rerankers on disk and in training."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dsi_experiments.rerankers.features import compute_features, words
from dsi_experiments.rerankers.learned import FeatureReranker, LinearReranker
from dsi_experiments.rerankers.training import cross_validate, judge_candidates, train_reranker

import dsi
from dsi import GenerativeRetriever, SearchConfig
from dsi.commands.main import main
from dsi.config import Config, write_config
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.data.collection import read_collection
from dsi.docids.words.bm25 import BM25
from dsi.eval.measures import evaluate, mean
from dsi.rerankers.diversity import Pyversity
from dsi.rerankers.reranking import load_rerankers, save_reranker
from dsi.search.candidates import Candidates, Reranker, load_reranker
from tests.support.kills import fork, status_of
from tests.support.oracles import children_of, level_log_p
from tests.support.small import random_generator

QUERIES = ["which capitals are on the danube", "a city", "the river in the north of the country"]


@pytest.fixture
def retriever(beir, encoder):
    collection = read_collection(beir())
    documents = collection.documents
    texts = encoder.document_texts(list(documents["title"]), list(documents["text"]))
    tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=3, max_leaf_size=3))
    lexical = BM25(documents["doc_id"], collection.full_texts())
    settings = SearchConfig(alpha=0.4, beam_width=20, ann_temperature=0.1)
    return GenerativeRetriever(encoder, tree, random_generator(tree), documents, settings, lexical)


def test_features_are_what_their_names_say(retriever):
    tree = retriever.tree
    candidates = retriever.candidates(QUERIES, k=12, features=compute_features)
    feature = {name: candidates.features[:, :, n] for n, name in enumerate(candidates.names)}
    encoded = retriever.encode_queries(QUERIES)
    states, mask = torch.zeros(3, 99, 32), torch.zeros(3, 99, dtype=torch.bool)
    for batch in encoded.batches:
        states[batch.rows, : batch.states.shape[1]], mask[batch.rows, : batch.states.shape[1]] = (
            batch.states,
            batch.mask,
        )
    log_p = level_log_p(tree, retriever.generator, states, mask).numpy()
    bm25 = retriever.lexical.scores(QUERIES)
    found = {query: retriever.search(query, k=12) for query in QUERIES}
    for q, query in enumerate(QUERIES):
        assert candidates.queries[q] == query
        assert candidates.doc_ids[q] == [hit.doc_id for hit in found[query]]
        prefixes = [hit.digits[:2] for hit in found[query]]
        for c, hit in enumerate(found[query]):
            position = int(tree.positions[retriever.documents.rows[hit.doc_id]])
            own = log_p[q, position]
            expected = {
                "score": hit.score,
                "gap to the first": hit.score - found[query][0].score,
                "1 / rank": 1 / (c + 1),
                "similarity": float(encoded.embeddings[q] @ torch.from_numpy(tree.embeddings[position])),
                "digits": len(hit.digits),
                "siblings": tree.num_children[tree.parents[tree.num_inner + position]],
                "share of the list with the same first 2 digits": prefixes.count(hit.digits[:2]) / 12,
                "log P_T5": own.sum(),
                **{f"log P_T5, digit {level + 1}": own[level] for level in range(tree.depth)},
                "BM25": bm25[q, retriever.documents.rows[hit.doc_id]],
                "title words": len(words(query) & words(hit.title)) / len(words(query)),
            }
            node = 0
            for level in range(tree.depth):
                entropy = margin = 0.0  # past the end of a docid
                if level < len(hit.digits):
                    children = children_of(tree, node)
                    p = np.array([log_p[q, first_document(tree, child), level] for child in children])
                    assert np.exp(p).sum() == pytest.approx(1, abs=1e-4)
                    others = np.delete(p, hit.digits[level])
                    entropy = -(np.exp(p) * p).sum()
                    margin = p[hit.digits[level]] - others.max() if len(others) else 0.0
                    node = children[hit.digits[level]]
                expected[f"entropy, digit {level + 1}"] = entropy
                expected[f"margin, digit {level + 1}"] = margin
            for name, value in expected.items():
                assert feature[name][q, c] == pytest.approx(value, abs=2e-4), name
        centroids = np.array([_log_ann(retriever, encoded.embeddings[q].numpy(), hit) for hit in found[query]])
        np.testing.assert_allclose(feature["log P_ANN"][q], centroids, atol=2e-4)


def first_document(tree, node):
    """The first docid position below a node."""
    while node < tree.num_inner:
        node = children_of(tree, node)[0]
    return node - tree.num_inner


def _log_ann(retriever, embedding, hit):
    """log P_ANN along the path of a document, by definition (DR-SCL eq. 10)."""
    tree, node, total = retriever.tree, 0, 0.0
    for digit in hit.digits:
        children = children_of(tree, node)
        vectors = [tree.centroids[c] if c < tree.num_inner else tree.embeddings[c - tree.num_inner] for c in children]
        scores = np.array(vectors) @ embedding / 0.05  # of features, whatever the search divides by
        total += scores[digit] - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
        node = children[digit]
    return total


class Backwards(Reranker):
    kind = "backwards"

    def score(self, candidates):
        return -candidates.scores


class ByFeature(FeatureReranker):
    """A reranker as a user would write one: only what it must have."""

    kind = "by feature"

    def __init__(self, name):
        self.names = (name,)

    def predict(self, features):
        return features[:, 0]

    def write(self, folder):
        return {"name": self.names[0]}


class Giving(Reranker):
    """Gives what it is made with."""

    kind = "giving"

    def __init__(self, scores=None):
        self.scores = scores

    def score(self, candidates):
        return self.scores


@pytest.mark.parametrize(
    ("scores", "got"),
    [
        ([[1.0]], r"an array of scores of shape \(1, 3\), got list"),
        (None, r"an array of scores of shape \(1, 3\), got NoneType"),
        (np.ones((1, 2)), r"an array of scores of shape \(1, 3\), got shape \(1, 2\)"),
        (np.array([[0.0, np.nan, 1.0]]), "scores that are numbers, got NaN"),
    ],
)
def test_scores_that_are_none_are_refused(retriever, scores, got):
    with pytest.raises(ValueError, match=f"^A reranker must give {got}.$"):
        dsi.rerank(retriever.candidates(QUERIES[:1], k=3), Giving(scores))


def test_a_reranker_that_would_lose_its_state_is_not_saved(tmp_path):
    with pytest.raises(
        TypeError, match="Giving has the attributes scores and would be loaded without them; define `write`"
    ):
        Giving().save(tmp_path / "giving")

    class Nameless(Reranker):
        def score(self, candidates):
            return candidates.scores

    with pytest.raises(TypeError, match="Nameless needs a kind, the name by which it is loaded"):
        Nameless().save(tmp_path / "nameless")
    assert not list(tmp_path.iterdir())


def test_rerankers_are_applied_one_after_another(retriever):
    plain = retriever.search(QUERIES, k=8)
    candidates = retriever.candidates(QUERIES, k=8, features=compute_features)
    assert candidates.hits() == plain
    assert [hits.exact for hits in candidates.hits()] == [hits.exact for hits in plain]
    bm25 = retriever.lexical.scores(QUERIES)
    by_bm25 = dsi.rerank(candidates, [LinearReranker({"BM25": 1.0})])
    for row, (found, before) in enumerate(zip(by_bm25.hits(), plain, strict=True)):
        best = sorted(before, key=lambda hit: -bm25[row, retriever.documents.rows[hit.doc_id]])
        assert [hit.doc_id for hit in found] == [hit.doc_id for hit in best]
        assert [hit.rank for hit in found] == list(range(1, 9))
        assert found[0].score == pytest.approx(bm25[row, retriever.documents.rows[found[0].doc_id]])
        assert {hit.doc_id: replace(hit, rank=0, score=0.0) for hit in found} == {
            hit.doc_id: replace(hit, rank=0, score=0.0) for hit in before
        }
        assert found.exact == before.exact
    plainer = retriever.candidates(QUERIES, k=8)
    assert plainer.names == ()
    backwards = dsi.rerank(plainer, Backwards())
    assert [hit.doc_id for hit in backwards.hits()[0]] == [hit.doc_id for hit in plain[0]][::-1]
    assert dsi.rerank(plainer, [Backwards(), Backwards()]).hits() == plain
    assert dsi.rerank(plainer, []).hits() == plain


def test_filters_short_lists_and_query_ids_pass_through(retriever):
    allowed = retriever.documents.dataset["doc_id"][:3]
    candidates = retriever.candidates(
        {"a": QUERIES[0], "b": QUERIES[1]}, k=10, allow=allowed, features=compute_features
    )
    found = dsi.rerank(candidates, LinearReranker({"similarity": 1.0}))
    assert all(sorted(hit.doc_id for hit in hits) == sorted(allowed) for hits in found.hits())
    assert {query_id: sorted(own) for query_id, own in found.as_run().items()} == dict.fromkeys("ab", sorted(allowed))
    few = retriever.candidates(QUERIES[:1], k=5, features=compute_features)
    last_first = dsi.rerank(few, LinearReranker({"1 / rank": -1.0}))
    assert [*last_first.as_run()["0"].values()] == pytest.approx([-1 / 5, -1 / 4, -1 / 3, -1 / 2, -1])


def test_exact_says_what_the_search_said(retriever):
    narrow = {"alpha": 0.1, "beam_width": 1}
    searched = [hits.exact for hits in retriever.search(QUERIES, k=3, **narrow)]
    candidates = retriever.candidates(QUERIES, k=3, **narrow)
    assert [hits.exact for hits in dsi.rerank(candidates, Backwards()).hits()] == searched
    sure = retriever.candidates(QUERIES, k=3, method="exact", alpha=0.3)
    assert [hits.exact for hits in dsi.rerank(sure, Backwards()).hits()] == [True] * 3
    assert sorted(set(searched)) == [False, True]
    assert sure.select(np.array([2, 0])).query_ids == ["2", "0"]


def test_what_cannot_be_reranked_is_named(retriever):
    candidates = retriever.candidates(QUERIES, k=4)
    with pytest.raises(
        ValueError, match=r"feature 'BM25', but these candidates were made without features; .* features=reranker"
    ):
        dsi.rerank(candidates, LinearReranker({"BM25": 1.0}))
    with pytest.raises(TypeError, match=r"must be a Reranker.*got 'mmr' of type str; dsi.load_rerankers\(RUN"):
        dsi.rerank(candidates, "mmr")
    with pytest.raises(TypeError, match="got 'mmr' of type str"):
        dsi.rerank(candidates, [Backwards(), "mmr"])
    with pytest.raises(TypeError, match="got None of type NoneType"):
        dsi.rerank(candidates, None)
    with pytest.raises(TypeError, match=r"takes the Candidates that retriever.candidates\(…\) returns, got list"):
        dsi.rerank(candidates.hits(), Backwards())
    with pytest.raises(ValueError, match="Candidates of 3 queries need 3 query_ids"):
        Candidates(**{**vars(candidates), "query_ids": ["a"]})
    with pytest.raises(ValueError, match=r"exact of shape \[3\], got 3 and \[1\]"):
        Candidates(**{**vars(candidates), "exact": np.ones(1, dtype=bool)})


def test_updates_keep_features_in_place(retriever):
    retriever.add([{"doc_id": "new", "title": "Danube capitals", "text": "which capitals are on the danube"}])
    retriever.remove([retriever.documents.dataset["doc_id"][0]])
    candidates = retriever.candidates(QUERIES[:1], k=40, features=compute_features)
    assert np.isfinite(candidates.features).all()
    column = candidates.doc_ids[0].index("new")
    feature = dict(zip(candidates.names, candidates.features[0, column], strict=True))
    assert feature["title words"] == pytest.approx(2 / 6)
    assert feature["BM25, share of the best"] == pytest.approx(1)


def test_a_reranker_beside_an_index_is_bound_to_it(retriever, tmp_path):
    index, other = tmp_path / "index", tmp_path / "other"
    retriever.save_pretrained(index)
    assert save_reranker(LinearReranker({"BM25": 1.0}), index, "words") == index / "rerank" / "words"
    save_reranker(ByFeature("similarity"), index, "dense")
    assert (index / "rerank" / "words" / "reranker.json").exists()
    loaded = GenerativeRetriever.from_pretrained(index, device="cpu")
    rerankers = dsi.load_rerankers(index, ["words", "dense"])
    assert rerankers[0].weights == {"BM25": 1.0}
    again = dsi.rerank(loaded.candidates(QUERIES, features=rerankers[0].features), rerankers).hits()
    assert again == dsi.rerank(retriever.candidates(QUERIES, features=compute_features), ByFeature("similarity")).hits()
    assert dsi.load_rerankers(str(index), "dense")[0].names == ("similarity",)
    loaded.remove([loaded.documents.dataset["doc_id"][0]])
    loaded.save_update(index)
    assert dsi.load_rerankers(index, ["words"])  # an update changes neither encoder nor generator
    tree, documents = retriever.tree, retriever.documents.dataset
    GenerativeRetriever(retriever.encoder, tree, random_generator(tree, seed=5), documents).save_pretrained(other)
    (other / "rerank").mkdir()
    (index / "rerank" / "words").rename(other / "rerank" / "words")
    with pytest.raises(ValueError, match="trained for another index: its generator"):
        dsi.load_rerankers(other, ["words"])
    with pytest.raises(ValueError, match=r"plain folder name, got '\.\./words'"):
        dsi.load_rerankers(index, ["../words"])
    with pytest.raises(FileNotFoundError, match="holds no reranker; there are dense"):
        dsi.load_rerankers(index, ["words"])
    record = index / "rerank" / "dense" / "reranker.json"
    record.write_text(record.read_text().replace("by feature", "by magic"))
    with pytest.raises(
        ValueError,
        match=r"No reranker is of the kind 'by magic'; import the module that defines it; there are .*backwards, by feature",
    ):
        load_reranker(record.parent)


def test_a_reranker_is_trained_from_python(retriever, beir, tmp_path):
    collection = read_collection(beir(), dev_queries=20)
    judged = judge_candidates(retriever, collection, k=10)
    dev = collection.query_texts("dev")
    assert judged.candidates.as_run() == retriever.candidates(dev, k=10).as_run()
    trained = train_reranker(retriever, collection, "ranknet", k=10, after=[Backwards()], folds=2)
    assert trained.queries == len(dev) == trained.quality.queries
    before = evaluate(dsi.rerank(judged.candidates, Backwards()).as_run(), collection.qrels["dev"], ["RR@10"])["RR@10"]
    assert trained.quality.before["RR@10"] == pytest.approx(mean(before))
    assert trained.quality.after["RR@10"] > trained.quality.before["RR@10"]  # of backwards lists
    assert "after ranknet" in str(trained.quality)
    retriever.save_pretrained(tmp_path / "index")
    assert trained.save(tmp_path / "index") == tmp_path / "index" / "rerank" / "ranknet"
    (loaded,) = dsi.load_rerankers(tmp_path / "index", ["ranknet"])
    np.testing.assert_array_equal(loaded.score(judged.candidates), trained.reranker.score(judged.candidates))
    assert train_reranker(retriever, collection, "mmr", k=5, folds=0).quality is None
    with pytest.raises(ValueError, match="kind 'ranknet' has no importance of features; mart, lambdamart, lambdasmart"):
        _ = trained.importance
    with pytest.raises(ValueError, match=r"folds must be between 2 and \d+ \(the judged queries\), got 1000"):
        cross_validate(judged, "mmr", 1000)
    with pytest.raises(ValueError, match="No reranker 'ranknets' can be trained"):
        train_reranker(retriever, collection, "ranknets")
    (Path(collection.name) / "qrels" / "dev.tsv").unlink()
    with pytest.raises(ValueError, match="no judged queries of the split 'dev' to learn from"):
        train_reranker(retriever, read_collection(collection.name, dev_queries=0), "mmr")


def test_training_a_reranker_is_a_command(retriever, beir, tmp_path, capsys):
    index, folder = tmp_path / "index", beir()
    retriever.save_pretrained(index)
    write_config(Config(), index / "config.toml")
    common = ["train-reranker", str(index), "--data", str(folder), "--device", "cpu", "--k", "10"]
    assert main([*common, "--kind", "mmr"]) == 0
    assert "queries, 5 folds" in capsys.readouterr().out
    figure = tmp_path / "importance"
    assert main([*common, "--kind", "mart", "--name", "m", "--after", "mmr", "--figure", str(figure)]) == 0
    assert f"{index / 'rerank' / 'm'}: trained on" in capsys.readouterr().out
    assert figure.with_suffix(".svg").exists()
    assert [reranker.kind for reranker in dsi.load_rerankers(index, ["mmr", "m"])] == ["pyversity", "trees"]


def test_a_figure_that_a_kind_does_not_have_is_refused_before_training(retriever, tmp_path, capsys):
    retriever.save_pretrained(tmp_path / "index")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("Neon glows.")
    data = ["--data", str(tmp_path / "texts")]
    arguments = ["train-reranker", str(tmp_path / "index"), *data, "--figure", str(tmp_path / "f")]
    assert main([*arguments, "--kind", "ranknet"]) == 2
    said = capsys.readouterr().err
    assert "--kind ranknet has no such figure, only mart, lambdamart, lambdasmart have" in said
    assert main([*arguments, "--kind", "mart"]) == 2
    assert "has no judged queries of the split 'dev'" in capsys.readouterr().err  # here the figure is not the trouble


def test_a_save_that_was_killed_between_its_renames_leaves_the_old_reranker(retriever, tmp_path):
    index = tmp_path / "index"
    retriever.save_pretrained(index)
    folder = save_reranker(LinearReranker({"score": 1.0}), index, "mine")

    def save():
        Path.rename, rename = lambda path, to: (rename(path, to), os._exit(9)), Path.rename
        save_reranker(LinearReranker({"score": 2.0}), index, "mine")

    assert status_of(fork(save)) == 9
    assert not folder.exists()
    (reranker,) = load_rerankers(index, "mine")
    assert reranker.weights == {"score": 1.0}


@pytest.mark.parametrize("reranker", [LinearReranker({"score": 1.0}), Pyversity("mmr")])
def test_a_search_that_finds_nothing_is_reranked_to_nothing(retriever, reranker):
    candidates = retriever.candidates(["a river", "neon"], allow=[], features=compute_features)
    assert [len(hits) for hits in dsi.rerank(candidates, reranker).hits()] == [0, 0]
