"""Features against brute force, and stages inside a search."""

import json

import numpy as np
import pytest
import torch

from docids.clustering import DocidsConfig, build_tree
from docids.collection import read_collection
from docids.lexical import BM25
from dsi import GenerativeRetriever, SearchConfig
from dsi.rerank.candidates import Stage
from dsi.rerank.features import words
from dsi.rerank.learned import LinearStage
from dsi.rerank.lookahead import look_ahead
from dsi.rerank.puct import PuctConfig
from dsi.reranking import binding, load_stages, stage_folder
from tests.conftest import level_log_p, random_generator

QUERIES = ["which capitals are on the danube", "a city", "the river in the north of the country"]


@pytest.fixture
def retriever(beir, encoder):
    collection = read_collection(beir())
    documents = collection.documents
    texts = encoder.document_texts(list(documents["title"]), list(documents["text"]))
    tree = build_tree(encoder.encode(texts, "document"), DocidsConfig(branching=3, max_leaf_size=3))
    lexical = BM25(documents["doc_id"], collection.full_texts())
    settings = SearchConfig(alpha=0.4, beam_width=20, ann_temperature=0.1, lexical_weight=0.1)
    return GenerativeRetriever(encoder, tree, random_generator(tree), documents, settings, lexical)


def test_features_are_what_their_names_say(retriever):
    tree = retriever.tree
    candidates = retriever.candidates(QUERIES, k=12)
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
            position = int(tree.positions[retriever.table.rows[hit.doc_id]])
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
                "BM25": bm25[q, retriever.table.rows[hit.doc_id]],
                "title words": len(words(query) & words(hit.title)) / len(words(query)),
            }
            parent = tree.parents[tree.num_inner + position]
            if len(hit.digits) == 1:
                siblings = np.arange(tree.num_children[0]) + tree.first_child[0]
            else:
                siblings = np.arange(tree.num_children[parent]) + tree.first_child[parent]
            last = len(hit.digits)
            among = [log_p[q, s - tree.num_inner, last - 1] for s in siblings if s >= tree.num_inner]
            if len(among) == len(siblings):
                p = np.array(among)
                expected[f"entropy, digit {last}"] = -(np.exp(p) * p).sum()
                others = np.delete(p, hit.digits[-1])
                expected[f"margin, digit {last}"] = p[hit.digits[-1]] - others.max() if len(others) else 0.0
            if last < tree.depth:
                expected[f"entropy, digit {tree.depth}"] = expected[f"margin, digit {tree.depth}"] = 0.0
            for name, value in expected.items():
                assert feature[name][q, c] == pytest.approx(value, abs=2e-4), name
        centroids = np.array([_log_ann(retriever, encoded.embeddings[q].numpy(), hit) for hit in found[query]])
        np.testing.assert_allclose(feature["log P_ANN"][q], centroids, atol=2e-4)


def _log_ann(retriever, embedding, hit):
    """DR-SCL eq. 9 along the path of a document, by definition."""
    tree, node, total = retriever.tree, 0, 0.0
    for digit in hit.digits:
        children = tree.first_child[node] + np.arange(tree.num_children[node])
        vectors = [tree.centroids[c] if c < tree.num_inner else tree.embeddings[c - tree.num_inner] for c in children]
        scores = np.array(vectors) @ embedding / retriever.settings.ann_temperature
        total += scores[digit] - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
        node = children[digit]
    return total


class Backwards(Stage):
    kind = "backwards"

    def rerank(self, candidates):
        assert not candidates.names  # nothing asked for features, so none were computed
        return -candidates.scores

    def write(self, folder):
        return {}

    @classmethod
    def read(cls, folder, settings):
        return cls()


def test_stages_order_the_answers_of_a_search_one_after_another(retriever):
    plain = retriever.search(QUERIES, k=8)
    by_bm25 = LinearStage({"BM25": 1.0})
    for found, before in zip(retriever.search(QUERIES, k=8, rerank=[by_bm25]), plain, strict=True):
        scores = retriever.lexical.scores(QUERIES)[plain.index(before)]
        best = sorted(before, key=lambda hit: -scores[retriever.table.rows[hit.doc_id]])
        assert [hit.doc_id for hit in found] == [hit.doc_id for hit in best]
        assert [hit.rank for hit in found] == list(range(1, 9))
        assert found[0].score == pytest.approx(scores[retriever.table.rows[found[0].doc_id]])
        assert {hit.doc_id: hit.digits for hit in found} == {hit.doc_id: hit.digits for hit in before}
        assert found.exact == before.exact
    backwards = retriever.search(QUERIES[0], k=8, rerank=[Backwards()])
    assert [hit.doc_id for hit in backwards] == [hit.doc_id for hit in plain[0]][::-1]
    twice = retriever.search(QUERIES[0], k=8, rerank=[Backwards(), Backwards()])
    assert [hit.doc_id for hit in twice] == [hit.doc_id for hit in plain[0]]
    assert [hit.score for hit in twice] == pytest.approx([hit.score for hit in plain[0]], rel=1e-5)


def test_filters_and_short_lists_pass_through_the_stages(retriever):
    allowed = retriever.documents["doc_id"][:3]
    found = retriever.search(QUERIES, k=10, allow=allowed, rerank=[LinearStage({"similarity": 1.0})])
    assert all(sorted(hit.doc_id for hit in hits) == sorted(allowed) for hits in found)
    run = retriever.run({"a": QUERIES[0]}, k=5, rerank=[LinearStage({"1 / rank": -1.0})])
    assert [*sorted(run["a"].values())] == pytest.approx([-1, -1 / 2, -1 / 3, -1 / 4, -1 / 5])


def test_updates_keep_features_in_place(retriever):
    retriever.add([{"doc_id": "new", "title": "Danube capitals", "text": "which capitals are on the danube"}])
    retriever.remove([retriever.documents["doc_id"][0]])
    candidates = retriever.candidates(QUERIES[:1], k=20)
    assert np.isfinite(candidates.features).all()
    column = candidates.doc_ids[0].index("new")
    feature = dict(zip(candidates.names, candidates.features[0, column], strict=True))
    assert feature["title words"] == pytest.approx(2 / 6)
    assert feature["BM25, share of the best"] == pytest.approx(1)


def test_a_stage_beside_an_index_is_bound_to_it(retriever, tmp_path):
    index = tmp_path / "index"
    retriever.save_pretrained(index)
    manifest = json.loads((index / "manifest.json").read_text())
    LinearStage({"BM25": 1.0}).save(stage_folder(index, "words"), binding(manifest))
    loaded = GenerativeRetriever.from_pretrained(index, device="cpu")
    stages = load_stages(index, ["words"])
    assert loaded.search(QUERIES[0], rerank=stages) == retriever.search(QUERIES[0], rerank=[LinearStage({"BM25": 1.0})])
    loaded.remove([loaded.documents["doc_id"][0]])
    loaded.save_update(index)
    assert load_stages(index, ["words"])  # an update changes neither encoder nor generator
    other = GenerativeRetriever(
        retriever.encoder, retriever.tree, random_generator(retriever.tree, seed=5), retriever.documents
    )
    other.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "rerank").mkdir()
    (index / "rerank" / "words").rename(tmp_path / "other" / "rerank" / "words")
    with pytest.raises(ValueError, match="trained for another index: its generator"):
        load_stages(tmp_path / "other", ["words"])
    with pytest.raises(ValueError, match=r"plain folder name, got '\.\./words'"):
        load_stages(index, ["../words"])
    with pytest.raises(FileNotFoundError, match="train one: dsi train-reranker"):
        load_stages(index, ["words"])


def test_look_ahead_finds_what_the_reward_likes_best(retriever):
    """With enough simulations: the documents of highest dense and lexical score, as flat search has them."""
    flat = retriever.search(QUERIES, k=5, alpha=0.0)
    found = retriever.search(QUERIES, k=5, search="mcts", simulations=400)
    for own, best in zip(found, flat, strict=True):
        assert [hit.doc_id for hit in own] == [hit.doc_id for hit in best]
        assert not own.exact
    scale = retriever.settings.ann_temperature
    assert [hit.score for hit in found[0]] == pytest.approx([hit.score * scale for hit in flat[0]], rel=1e-4)


def test_look_ahead_goes_by_any_stage_and_keeps_to_filters(retriever):
    stage = LinearStage({"title words": 1.0, "digits": 1e-3})
    found = retriever.search(QUERIES, k=3, search="mcts", reward=stage, simulations=200)
    every = retriever.candidates(QUERIES, k=40, beam_width=40)
    scores = stage.rerank(every)
    for row, own in enumerate(found):
        assert [hit.score for hit in own] == pytest.approx(np.sort(scores[row])[::-1][:3].tolist(), abs=1e-6)
    allowed = list(retriever.documents["doc_id"][5:9])
    for own in retriever.search(QUERIES, k=4, search="mcts", simulations=50, allow=allowed):
        assert sorted(hit.doc_id for hit in own) == sorted(allowed)
    retriever.remove([hit.doc_id for hit in found[0]])
    again = retriever.search(QUERIES[0], k=3, search="mcts", reward=stage, simulations=200)
    assert not {hit.doc_id for hit in again} & {hit.doc_id for hit in found[0]}
    with pytest.raises(ValueError, match="search must be one of beam, mcts, got 'dfs'"):
        retriever.search(QUERIES[0], search="dfs")


def test_look_ahead_asks_the_decoder_once_a_node(retriever):
    (batch,) = retriever.encode_queries(QUERIES).batches
    asked = []

    def reward(queries, positions):
        asked.append(len(queries))
        return np.zeros(len(queries))

    first = look_ahead(retriever.searcher, batch, 1, reward, PuctConfig(1, backup="max", once=True))
    assert asked == [3, 3]  # the roots, and one simulation
    assert (first.expansions <= 2 * retriever.tree.depth).all()
    many = look_ahead(retriever.searcher, batch, 40, reward, PuctConfig(500, backup="max", once=True))
    assert (many.positions >= 0).all()
    assert (many.expansions == retriever.tree.num_inner).all()  # each inner node once, however often it is passed
