"""Features against brute force; rerankers over candidates, on disk, in training and as models for `rerank`."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from dsi_experiments.rerankers.candidates import Candidates, Reranker, save_reranker
from dsi_experiments.rerankers.candidates import load_reranker as load_own
from dsi_experiments.rerankers.features import compute_features, words
from dsi_experiments.rerankers.learned import LinearReranker
from dsi_experiments.rerankers.training import cross_validate, judge_candidates, train_reranker
from dsi_experiments.rerankers.untrained import Pyversity

from dsi import SearchConfig
from dsi.commands.main import main
from dsi.config import Config, write_config
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.data.collection import read_collection
from dsi.docids.files.storage import writing_to
from dsi.docids.words.bm25 import BM25
from dsi.eval.measures import evaluate, mean
from dsi.rerankers import load_reranker
from dsi.rerankers import rerank as rerank_hits
from dsi.store.retriever import load
from tests.support.kills import fork, status_of
from tests.support.oracles import children_of, level_log_p
from tests.support.parts import from_parts
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
    return from_parts(encoder, tree, random_generator(tree), documents, settings, lexical)


def test_features_are_what_their_names_say(retriever):
    tree = retriever.snapshot.tree
    candidates = Candidates.from_search(retriever, QUERIES, 12, compute_features)
    feature = {name: candidates.features[:, :, n] for n, name in enumerate(candidates.names)}
    encoded = retriever.encode_queries(QUERIES)
    states, mask = torch.zeros(3, 99, 32), torch.zeros(3, 99, dtype=torch.bool)
    for batch in encoded.batches:
        length = batch.states.shape[1]
        states[batch.numbers, :length], mask[batch.numbers, :length] = map(torch.from_numpy, (batch.states, batch.mask))
    log_p = level_log_p(tree, retriever.snapshot.generator, states, mask).numpy()
    bm25 = retriever.snapshot.lexical.scores(QUERIES)
    found = {query: retriever.search(query, k=12) for query in QUERIES}
    for q, query in enumerate(QUERIES):
        assert candidates.queries[q] == query
        assert candidates.doc_ids[q] == [hit.doc_id for hit in found[query]]
        prefixes = [hit.digits[:2] for hit in found[query]]
        for c, hit in enumerate(found[query]):
            position = int(tree.positions[retriever.snapshot.documents.rows[hit.doc_id]])
            own = log_p[q, position]
            expected = {
                "score": hit.score,
                "gap to the first": hit.score - found[query][0].score,
                "1 / rank": 1 / (c + 1),
                "similarity": float(encoded.embeddings[q] @ tree.embeddings[position]),
                "digits": len(hit.digits),
                "siblings": tree.num_children[tree.parents[tree.num_inner + position]],
                "share of the list with the same first 2 digits": prefixes.count(hit.digits[:2]) / 12,
                "log P_T5": own.sum(),
                **{f"log P_T5, digit {level + 1}": own[level] for level in range(tree.depth)},
                "BM25": bm25[q, retriever.snapshot.documents.rows[hit.doc_id]],
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
        centroids = np.array([_log_ann(retriever, encoded.embeddings[q], hit) for hit in found[query]])
        np.testing.assert_allclose(feature["log P_ANN"][q], centroids, atol=2e-4)


def first_document(tree, node):
    """The first docid position below a node."""
    while node < tree.num_inner:
        node = children_of(tree, node)[0]
    return node - tree.num_inner


def _log_ann(retriever, embedding, hit):
    """log P_ANN along the path of a document, by definition (DR-SCL eq. 10)."""
    tree, node, total = retriever.snapshot.tree, 0, 0.0
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


def test_rerankers_order_candidates_by_their_scores(retriever):
    plain = retriever.search(QUERIES, k=8)
    candidates = Candidates.from_search(retriever, QUERIES, 8, compute_features)
    assert candidates.doc_ids == [[hit.doc_id for hit in hits] for hits in plain]
    bm25 = retriever.snapshot.lexical.scores(QUERIES)
    by_bm25 = LinearReranker({"BM25": 1.0}).rerank(candidates)
    for row, found in enumerate(by_bm25.doc_ids):
        values = {hit.doc_id: bm25[row, retriever.snapshot.documents.rows[hit.doc_id]] for hit in plain[row]}
        assert found == sorted(values, key=lambda doc_id: -values[doc_id])
        assert by_bm25.scores[row].tolist() == pytest.approx([values[doc_id] for doc_id in found])
    backwards = Backwards().rerank(candidates)
    assert backwards.doc_ids == [own[::-1] for own in candidates.doc_ids]
    with pytest.raises(ValueError, match=r"These candidates have no feature 'BM25'"):
        LinearReranker({"BM25": 1.0}).rerank(Candidates.from_search(retriever, QUERIES, 8))


def test_candidates_of_hits_are_those_of_the_search(retriever):
    hits = retriever.search(QUERIES, k=8)
    found = Candidates.from_hits(retriever, hits, compute_features)
    expected = Candidates.from_search(retriever, QUERIES, 8, compute_features)
    assert (found.queries, found.doc_ids, found.titles, found.names) == (
        expected.queries, expected.doc_ids, expected.titles, expected.names
    )  # fmt: skip
    for name in ("scores", "embeddings", "query_embeddings", "features"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-5, err_msg=name)
    few = Candidates.from_hits(retriever, [hits[0][:2], hits[1], hits[2][:0]], compute_features)
    assert few.valid.sum(axis=1).tolist() == [2, 8, 0]


def test_filters_short_lists_and_query_ids_pass_through(retriever):
    allowed = retriever.snapshot.documents.column("doc_id")[:3]
    queries = {"a": QUERIES[0], "b": QUERIES[1]}
    candidates = Candidates.from_search(retriever, queries, 10, compute_features, allow=allowed)
    found = LinearReranker({"similarity": 1.0}).rerank(candidates)
    assert {query_id: sorted(own) for query_id, own in found.as_run().items()} == dict.fromkeys("ab", sorted(allowed))
    few = Candidates.from_search(retriever, QUERIES[:1], 5, compute_features)
    last_first = LinearReranker({"1 / rank": -1.0}).rerank(few)
    assert [*last_first.as_run()["0"].values()] == pytest.approx([-1 / 5, -1 / 4, -1 / 3, -1 / 2, -1])
    assert few.select(np.array([0])).query_ids == ["0"]


def test_updates_keep_features_in_place(retriever):
    retriever.add([{"doc_id": "new", "title": "Danube capitals", "text": "which capitals are on the danube"}])
    retriever.remove([retriever.snapshot.documents.column("doc_id")[0]])
    candidates = Candidates.from_search(retriever, QUERIES[:1], 40, compute_features)
    assert np.isfinite(candidates.features).all()
    column = candidates.doc_ids[0].index("new")
    feature = dict(zip(candidates.names, candidates.features[0, column], strict=True))
    assert feature["title words"] == pytest.approx(2 / 6)
    assert feature["BM25, share of the best"] == pytest.approx(1)


def test_a_reranker_beside_an_index_is_bound_to_it(retriever, tmp_path):
    index, other = tmp_path / "index", tmp_path / "other"
    retriever.save(index)
    assert save_reranker(LinearReranker({"BM25": 1.0}), index, "words") == index / "rerank" / "words"
    save_reranker(LinearReranker({"similarity": 1.0}), index, "dense")
    loaded = load(index, device="cpu")
    plain = loaded.search(QUERIES)
    found = rerank_hits(
        rerank_hits(plain, load_reranker(loaded, index, "words")), load_reranker(loaded, index, "dense")
    )
    literal = LinearReranker({"similarity": 1.0}).rerank(Candidates.from_search(loaded, QUERIES, 10, compute_features))
    assert [[hit.doc_id for hit in hits] for hits in found] == literal.doc_ids
    assert rerank_hits(loaded.search("river", allow=[]), load_reranker(loaded, index, "words")) == []
    loaded.remove([loaded.snapshot.documents.column("doc_id")[0]])
    loaded.save(index)
    assert load_reranker(loaded, index, "words")  # an update changes neither encoder nor generator
    tree, documents = retriever.snapshot.tree, retriever.snapshot.documents.table
    from_parts(retriever.snapshot.encoder, tree, random_generator(tree, seed=5), documents).save(other)
    (other / "rerank").mkdir()
    (index / "rerank" / "words").rename(other / "rerank" / "words")
    with pytest.raises(ValueError, match="trained for another index: its generator"):
        load_reranker(loaded, other, "words")
    with pytest.raises(FileNotFoundError, match="holds no reranker; there are dense"):
        load_reranker(loaded, index, "words")
    record = index / "rerank" / "dense" / "reranker.json"
    record.write_text(record.read_text().replace('"linear"', '"by magic"'))
    with pytest.raises(ValueError, match="no reranker is of the kind 'by magic'; install 'dr-scl-experiments"):
        load_reranker(loaded, index, "dense")


def test_a_reranker_is_trained_from_python(retriever, beir, tmp_path):
    collection = read_collection(beir(), dev_queries=20)
    judged = judge_candidates(retriever, collection, k=10)
    dev = collection.query_texts("dev")
    assert judged.candidates.as_run() == Candidates.from_search(retriever, dev, 10).as_run()
    trained = train_reranker(retriever, collection, "ranknet", k=10, folds=2)
    assert trained.queries == len(dev) == trained.quality.queries
    before = evaluate(judged.candidates.as_run(), collection.qrels["dev"], ["RR@10"])["RR@10"]
    assert trained.quality.before["RR@10"] == pytest.approx(mean(before))
    assert "after ranknet" in str(trained.quality)
    retriever.save(tmp_path / "index")
    assert trained.save(tmp_path / "index") == tmp_path / "index" / "rerank" / "ranknet"
    loaded = load_own(tmp_path / "index" / "rerank" / "ranknet")
    np.testing.assert_array_equal(loaded.score(judged.candidates), trained.reranker.score(judged.candidates))
    assert train_reranker(retriever, collection, "mmr", k=5, folds=0).quality is None
    with pytest.raises(ValueError, match=r"folds must be between 2 and \d+ \(the judged queries\), got 1000"):
        cross_validate(judged, "mmr", 1000)
    with pytest.raises(ValueError, match="No reranker 'ranknets' can be trained"):
        train_reranker(retriever, collection, "ranknets")
    (Path(collection.name) / "qrels" / "dev.tsv").unlink()
    with pytest.raises(ValueError, match="no judged queries of the split 'dev' to learn from"):
        train_reranker(retriever, read_collection(collection.name, dev_queries=0), "mmr")


def test_training_a_reranker_is_a_command(retriever, beir, tmp_path, capsys):
    index, folder = tmp_path / "index", beir()
    retriever.save(index)
    write_config(Config(), index / "config.toml")
    common = ["train-reranker", str(index), str(folder), "--device", "cpu", "--k", "10"]
    assert main([*common, "--kind", "mmr"]) == 0
    assert "queries, 5 folds" in capsys.readouterr().out
    figure = tmp_path / "importance"
    assert main([*common, "--kind", "mart", "--name", "m", "--figure", str(figure)]) == 0
    assert f"{index / 'rerank' / 'm'}: trained on" in capsys.readouterr().out
    assert figure.with_suffix(".svg").exists()
    plain = retriever.search("a river", k=10)
    once = rerank_hits(plain, load_reranker(retriever, index, "m"))
    candidates = Candidates.from_hits(retriever, [plain], compute_features)
    assert [hit.doc_id for hit in once] == load_own(index / "rerank" / "m").rerank(candidates).doc_ids[0]


def test_a_figure_that_a_kind_does_not_have_is_refused_before_training(retriever, tmp_path, capsys):
    retriever.save(tmp_path / "index")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("Neon glows.")
    data = [str(tmp_path / "texts")]
    arguments = ["train-reranker", str(tmp_path / "index"), *data, "--figure", str(tmp_path / "f")]
    assert main([*arguments, "--kind", "ranknet"]) == 2
    said = capsys.readouterr().err
    assert "--kind ranknet has no such figure, only mart, lambdamart, lambdasmart have" in said
    assert main([*arguments, "--kind", "mart"]) == 2
    assert "has no judged queries of the split 'dev'" in capsys.readouterr().err  # here the figure is not the trouble


def test_a_save_that_was_killed_between_its_renames_leaves_the_old_reranker(retriever, tmp_path):
    index = tmp_path / "index"
    retriever.save(index)
    folder = save_reranker(LinearReranker({"score": 1.0}), index, "mine")

    def save():
        Path.rename, rename = lambda path, to: (rename(path, to), os._exit(9)), Path.rename
        save_reranker(LinearReranker({"score": 2.0}), index, "mine")

    assert status_of(fork(save)) == 9
    assert not folder.exists()
    assert load_reranker(retriever, index, "mine")
    assert load_own(folder).weights == {"score": 1.0}


def test_a_reranker_is_saved_before_or_after_the_index_is_saved_over(retriever, tmp_path):
    run, done = tmp_path / "index", threading.Event()
    retriever.save(run)
    with writing_to(run):
        thread = threading.Thread(
            target=lambda: (save_reranker(LinearReranker({"score": 1.0}), run, "mine"), done.set())
        )
        thread.start()
        assert not done.wait(0.5)  # it waits for the writer
    thread.join(20)
    assert (run / "rerank" / "mine" / "reranker.json").exists()


@pytest.mark.parametrize("reranker", [LinearReranker({"score": 1.0}), Pyversity("mmr")])
def test_a_search_that_finds_nothing_is_reranked_to_nothing(retriever, reranker):
    candidates = Candidates.from_search(retriever, ["a river", "neon"], 5, compute_features, allow=[])
    assert reranker.rerank(candidates).doc_ids == [[], []]
