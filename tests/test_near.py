"""Searches that look at a part of the documents: bounds from the nearest, and cells."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from docids import vectors
from docids.clustering import build_tree
from docids.lexical import BM25
from docids.schemes import DocidsConfig
from docids.tree import DocidTree
from docids.updating import add_documents, remove_documents
from docids.vectors import VectorsConfig
from dsi.search import scorer
from dsi.search.added import AddedScores
from dsi.search.beam import TreeSearcher
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.trees.bounds import BestBelow, Nearest
from dsi.trees.cells import Cells, cell_nodes
from dsi.trees.dense import DenseScores
from dsi.trees.estimates import NodeEstimates
from tests.conftest import random_generator, random_queries, random_tied, random_tree, searcher_for
from tests.oracles import document_log_p

CPU = torch.device("cpu")
WORDS = ["ab", "cd", "ef", "gh", "ij", "kl"]
trees = st.builds(
    random_tree, st.integers(8, 90), branching=st.integers(2, 5), seed=st.integers(0, 20), leaf=st.integers(1, 6)
)


def texts(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(1, 5))) for _ in range(count)]


def query_batch(tree: DocidTree, count: int, seed: int, weight: float) -> QueryBatch:
    states, mask, embeddings = random_queries(count, seed=seed)
    asked, documents = texts(count, seed + 1), tree.num_documents - tree.num_removed
    bm25 = BM25([str(n) for n in range(documents)], texts(documents, seed))
    added = AddedScores(asked, tree, bm25, weight) if weight else None
    return QueryBatch(torch.arange(count), states, mask, embeddings, asked, added)


def all_scores(tree: DocidTree, batch: QueryBatch, config: SearchConfig) -> torch.Tensor:
    """[batch, documents] dense and lexical scores of every document, by their definition."""
    dense = batch.embeddings @ torch.from_numpy(tree.embeddings[:]).T
    if batch.added is not None:
        assert isinstance(batch.added.lexical, BM25)
        lexical = batch.added.lexical.scores(batch.texts)[:, np.maximum(tree.doc_rows, 0)]
        dense = dense + batch.added.weight * torch.from_numpy(lexical)
    return (dense / config.ann_temperature).masked_fill(torch.from_numpy(tree.doc_rows < 0), -torch.inf)


def best_below(tree: DocidTree, scores: torch.Tensor, node: int) -> torch.Tensor:
    if node >= tree.num_inner:
        return scores[:, node - tree.num_inner]
    return scores[:, tree.doc_start[node] : tree.doc_end[node]].amax(dim=1)


@settings(max_examples=40, deadline=None)
@given(tree=trees, count=st.integers(1, 40), seed=st.integers(0, 99))
def test_bounds_hold_and_are_tight_where_the_nearest_are(tree, count, seed):
    scores = torch.randn(3, tree.num_documents, generator=torch.Generator().manual_seed(seed))
    nearest = Nearest.of_all(scores, count)
    bounds = BestBelow.of_nearest(nearest, DenseScores(tree, CPU), scores)
    for level in range(tree.depth):
        for parent in range(tree.levels[level].start, tree.levels[level].stop):
            nodes = torch.arange(tree.first_child[parent], tree.first_child[parent] + tree.num_children[parent])
            found = bounds.of(nodes.expand(3, -1), level)
            for column, node in enumerate(nodes.tolist()):
                true = best_below(tree, scores, node)
                assert (found[:, column] >= true).all()
                known = (true >= nearest.rest) if node < tree.num_inner else torch.ones(3, dtype=torch.bool)
                assert torch.equal(found[known, column], true[known])
                assert torch.equal(found[~known, column], nearest.rest[~known])


@settings(max_examples=60, deadline=None)
@given(
    tree=trees, near=st.integers(1, 12), k=st.integers(1, 6), extra=st.integers(0, 5), filtered=st.booleans(),
    alpha=st.sampled_from([0.0, 0.3, 0.8]), kind=st.sampled_from(["digits", "tied"]), weight=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_a_certificate_from_few_documents_is_never_contradicted(
    tree, near, k, extra, alpha, kind, weight, filtered, seed
):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scorer, "_NEAREST", near)
        patched.setattr(scorer, "_PER_ANSWER", 1)
        generator = random_generator(tree, layers=1, seed=seed) if kind == "digits" else random_tied(tree, seed=seed)
        searcher, batch = searcher_for(tree, generator), query_batch(tree, 3, seed, weight)
        config = SearchConfig(alpha=alpha, beam_width=k + extra, ann_temperature=0.5)
        alive = searcher.dense.alive(torch.arange(tree.num_documents) % 3 > 0) if filtered else None
        request = SearchRequest(k, config, alive)
        found = searcher.search(searcher.score(batch, request), request)
        wide = SearchRequest(k, SearchConfig(alpha=alpha, beam_width=10_000, ann_temperature=0.5), alive, exact=True)
        true = searcher.search(searcher.score(batch, wide), wide)
    assert true.exact.all()
    torch.testing.assert_close(found.scores[found.exact], true.scores[found.exact], atol=1e-4, rtol=1e-4)
    if kind == "digits":
        log_p = (
            document_log_p(tree, generator, batch.states, batch.mask) if alpha else torch.zeros(3, tree.num_documents)
        )
        scores = alpha * log_p + (1 - alpha) * all_scores(tree, batch, config)
        if alive is not None:
            scores = scores.masked_fill(~alive[tree.num_inner :], -torch.inf)
        best = scores.topk(true.scores.shape[1], dim=1).values
        torch.testing.assert_close(true.scores, best, atol=1e-3, rtol=1e-3)
    if kind == "tied" or alpha == 0:  # nothing but documents' scores counts
        torch.testing.assert_close(found.scores, true.scores, atol=1e-4, rtol=1e-4)


def test_what_a_search_of_some_does_not_know_is_guessed_below_all_that_it_knows():
    nothing = -torch.inf
    scores = torch.tensor([[0.5, nothing, 0.2], [nothing, nothing, nothing]])
    nearest = Nearest.of_some(torch.tensor([[7, 90, 3], [90, 90, 90]]), scores)
    assert nearest.positions.tolist() == [[3, 7, 90], [90, 90, 90]]
    torch.testing.assert_close(nearest.rest, torch.tensor([0.2, 0.0]))
    assert not nearest.proven


def big_tree(config: VectorsConfig | None = None) -> DocidTree:
    tree = random_tree(2000, branching=6, leaf=10)
    return tree if config is None else tree.stored_as(config)


def searched(
    searcher: TreeSearcher, batch: QueryBatch, probed: float, alive: torch.Tensor | None = None, alpha: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    request = SearchRequest(10, SearchConfig(alpha=alpha, beam_width=20, probed=probed), alive)
    found = searcher.search(searcher.score(batch, request), request)
    return found.positions, found.scores, found.exact


@pytest.mark.parametrize("probed", [-1, 0.125, math.nan])
def test_a_number_of_documents_to_look_at_is_one_or_more(probed):
    with pytest.raises(
        ValueError, match=r"probed must be a number of documents from 1 on, inf for all, or 0 to choose"
    ):
        SearchConfig(probed=probed)


def test_many_equal_scores_at_the_last_rank_are_an_answer(monkeypatch):
    monkeypatch.setattr(scorer, "_NEAREST", 20)
    points = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points[50:250:2] = points[0]
    tree = build_tree(points, DocidsConfig(branching=4, max_leaf_size=8))
    states, mask, _ = random_queries(1)
    batch = QueryBatch(torch.arange(1), states, mask, torch.from_numpy(points[:1]), [""])
    for probed in (math.inf, 299):
        _, scores, exact = searched(searcher_for(tree, random_tied(tree)), batch, probed)
        torch.testing.assert_close(scores, torch.ones(1, 10))
        assert exact.tolist() == [probed == math.inf]


def test_a_query_that_is_near_nothing_gets_answers():
    tree = big_tree(VectorsConfig("int8", 8))
    searcher, batch = searcher_for(tree, random_tied(tree)), query_batch(tree, 2, 1, 0.0)
    batch.embeddings[0] = 0
    positions, scores, _ = searched(searcher, batch, 300)
    assert (positions >= 0).all()
    assert (scores[0] == 0).all()


def test_cells_partition_the_documents():
    for documents, leaf in ((2000, 10), (300, 300), (40, 2)):
        tree = random_tree(documents, leaf=leaf)
        nodes, cells = cell_nodes(tree), Cells.of(NodeEstimates(DenseScores(tree, CPU), 0))
        starts, ends = tree.doc_start[nodes], tree.doc_end[nodes]
        assert (starts[0], ends[-1]) == (0, documents)
        assert (starts[1:] == ends[:-1]).all()
        assert len(nodes) <= 16 * math.sqrt(documents)
        assert cells.edges.tolist() == [*starts.tolist(), documents]
        assert cells.rows is None


@pytest.mark.parametrize(
    "config", [None, VectorsConfig("float32", 8), VectorsConfig("int8", 8), VectorsConfig("pq", 16)]
)
@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_a_search_of_all_cells_is_a_search_of_all_documents_without_a_certificate(config, weight):
    tree = big_tree(config)
    searcher, batch = searcher_for(tree, random_tied(tree)), query_batch(tree, 5, 1, weight)
    every = searched(searcher, batch, math.inf)
    cells = searched(searcher, batch, 1999)
    torch.testing.assert_close(cells[1], every[1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        every[1], all_scores(tree, batch, SearchConfig()).topk(10, dim=1).values, atol=1e-4, rtol=1e-4
    )
    assert every[2].all()
    assert not cells[2].any()


@pytest.mark.parametrize("config", [None, VectorsConfig("int8", 8)])
def test_a_search_of_some_cells_finds_most_and_gives_true_scores(config):
    tree = big_tree(config)
    searcher, batch = searcher_for(tree, random_tied(tree)), query_batch(tree, 20, 2, 0.4)
    positions, scores, _ = searched(searcher, batch, 600)
    true = all_scores(tree, batch, SearchConfig())
    torch.testing.assert_close(scores, true.gather(1, positions), atol=1e-4, rtol=1e-4)
    best = true.topk(10, dim=1).indices
    assert (positions[:, :, None] == best[:, None]).any(dim=2).float().mean() > 0.7


def test_a_filter_is_applied_inside_the_cells():
    tree = big_tree(VectorsConfig("int8", 8))
    searcher, batch = searcher_for(tree, random_tied(tree)), query_batch(tree, 5, 3, 0.4)
    allowed = torch.from_numpy(np.random.default_rng(0).random(2000) < 0.03)
    positions, scores, _ = searched(searcher, batch, 500, searcher.dense.alive(allowed))
    assert allowed[positions].all()
    true = all_scores(tree, batch, SearchConfig()).masked_fill(~allowed, -torch.inf).topk(10, dim=1)
    torch.testing.assert_close(scores, true.values, atol=1e-4, rtol=1e-4)  # 500 of 60 allowed ones: all of them


def test_words_that_no_document_has_change_nothing():
    tree = big_tree()
    searcher, batch = searcher_for(tree, random_tied(tree)), query_batch(tree, 3, 6, 0.4)
    assert batch.added is not None
    unknown = batch._replace(added=replace(batch.added, texts=["zz"] * 3))
    torch.testing.assert_close(searched(searcher, unknown, 900), searched(searcher, batch._replace(added=None), 900))


def test_a_decoder_descends_with_bounds_from_cells():
    tree = big_tree(VectorsConfig("int8", 8))
    generator = random_generator(tree, layers=1)
    searcher, batch = searcher_for(tree, generator), query_batch(tree, 4, 4, 0.4)
    positions, scores, exact = searched(searcher, batch, 1000, alpha=0.5)
    log_p = document_log_p(tree, generator, batch.states, batch.mask)
    true = 0.5 * log_p + 0.5 * all_scores(tree, batch, SearchConfig())
    torch.testing.assert_close(scores, true.gather(1, positions), atol=1e-3, rtol=1e-3)
    assert not exact.any()


def test_cells_follow_an_update():
    tree = remove_documents(big_tree(VectorsConfig("int8", 8)), np.arange(0, 400))
    new = np.random.default_rng(5).normal(size=(30, tree.embeddings.shape[1])).astype(np.float32)
    tree = add_documents(tree, new)
    searcher, batch = searcher_for(tree, random_tied(tree)), query_batch(tree, 6, 5, 0.3)
    every, cells = searched(searcher, batch, math.inf), searched(searcher, batch, 1600)
    torch.testing.assert_close(cells[1], every[1], atol=1e-4, rtol=1e-4)
    own = torch.from_numpy(tree.positions[-30:]).long()
    direct = QueryBatch(torch.arange(30), *random_queries(30)[:2], torch.from_numpy(new), [""] * 30)
    assert torch.equal(searched(searcher, direct, 300)[0][:, 0], own)


@pytest.mark.parametrize("config", [None, VectorsConfig("int8", 8)])
def test_updates_keep_the_lists_of_codes(config):
    tree = big_tree(config)
    kept = searcher_for(tree, random_tied(tree)).near.cells
    rng = np.random.default_rng(7)
    for step in range(3):
        tree = remove_documents(tree, rng.choice(tree.num_documents - tree.num_removed, 150, replace=False))
        tree = add_documents(tree, rng.normal(size=(40, tree.embeddings.shape[1])).astype(np.float32))
        searcher, batch = searcher_for(tree, random_tied(tree)), query_batch(tree, 6, step, 0.3)
        assert searcher.near.cells is kept
        allowed = torch.from_numpy(rng.random(tree.num_documents) < 0.4)
        for alive in (None, searcher.dense.alive(allowed)):
            found = searched(searcher, batch, len(tree.doc_rows) - 1, alive)
            every = searched(searcher, batch, math.inf, alive)
            torch.testing.assert_close(found[1], every[1], atol=1e-4, rtol=1e-4)
            assert (tree.doc_rows[found[0]] >= 0).all()
    assert 0 < len(searcher.near.later) <= 120


def test_a_tree_from_before_an_update_finds_what_the_update_removed():
    before = big_tree(VectorsConfig("int8", 8))
    after, batch = remove_documents(before, np.arange(1500)), query_batch(before, 5, 1, 0.0)
    searched(searcher_for(after, random_tied(after)), batch, 100)  # makes the cells
    searcher = searcher_for(before, random_tied(before))
    found, every = searched(searcher, batch, 1999), searched(searcher, batch, math.inf)
    torch.testing.assert_close(found[1], every[1], atol=1e-4, rtol=1e-4)


MEASURED = """
import sys
from dataclasses import replace
from pathlib import Path
import faiss, torch
torch.set_num_threads(1); faiss.omp_set_num_threads(1)
from docids.tree import DocidTree
from dsi.search.request import SearchConfig, SearchRequest
from tests.conftest import random_queries, random_tied, random_tree, searcher_for
from tests.test_near import QueryBatch

def search(tree, rows):
    points = torch.from_numpy(tree.embeddings[rows])
    states, mask, _ = random_queries(len(rows))
    searcher = searcher_for(tree, random_tied(tree))
    request = SearchRequest(1, SearchConfig(alpha=0.0, beam_width=5, probed=len(tree.doc_rows) // 40))
    batch = QueryBatch(torch.arange(len(rows)), states, mask, points, [""] * len(rows))
    return searcher.search(searcher.score(batch, request), request).positions.flatten().tolist()

def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

search(random_tree(3000), [1, 2])  # what libraries take once
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
before = kib("VmRSS")
tree = DocidTree.load(Path(sys.argv[1]))
print(search(tree, [7, 70_000]), kib("VmHWM") - before)
tree.embeddings[:]
print(kib("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of the process from /proc")
def test_a_search_needs_less_memory_than_the_vectors_as_floats(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "_TRAIN_VECTORS", 2560)
    points = np.random.default_rng(0).normal(size=(80_000, 256)).astype(np.float32)  # 80,000 KiB
    tree = build_tree(points, DocidsConfig(method="random", branching=64, max_leaf_size=64))
    tree.stored_as(VectorsConfig("int8", 4)).save(tmp_path / "docids.safetensors")  # 20,000 KiB
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "docids.safetensors")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, peak = done.stdout.splitlines()[0].rsplit(" ", 1)
    assert found == "[7, 70000]"
    assert int(peak) < 60_000
    assert int(done.stdout.splitlines()[1]) > 80_000
