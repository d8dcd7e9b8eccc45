"""Large indexes: inverted lists of codes below the nodes of a walk."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from dsi.docids import vectors
from dsi.docids.clustering import build_tree
from dsi.docids.schemes import DocidsConfig
from dsi.docids.tree import DocidTree
from dsi.docids.updating import add_documents, remove_documents
from dsi.docids.vectors import LARGE, VectorKind, VectorsConfig
from dsi.docids.words.bm25 import BM25
from dsi.search import lists as module
from dsi.search.lists import InvertedLists, ListedDocuments, cell_nodes, oversampling
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import SearchResult
from dsi.search.vector_search import VectorEngine
from tests.support.small import as_batch, random_queries, random_tree, with_codes

KINDS: list[VectorKind] = ["float32", "int8"]
WORDS = ["ab", "cd", "ef", "gh", "ij", "kl"]


def big_tree(kind: VectorKind = "int8", documents: int = 2000) -> DocidTree:
    return with_codes(random_tree(documents, branching=8, leaf=8), kind)


def query_batch(count: int, seed: int = 0) -> QueryBatch:
    states, mask, embeddings = random_queries(count, seed=seed)
    rng = np.random.default_rng(seed)
    return as_batch(states, mask, embeddings, [" ".join(rng.choice(WORDS, 3)) for _ in range(count)])


def words_of(tree: DocidTree) -> BM25:
    rng = np.random.default_rng(1)
    return BM25([str(n) for n in range(tree.num_rows)], [" ".join(rng.choice(WORDS, 4)) for _ in range(tree.num_rows)])


def search(
    tree: DocidTree, batch: QueryBatch, method: str, beam_width: int = 8, weight: float = 0.0, **more
) -> SearchResult:
    index = VectorEngine(tree, words_of(tree) if weight else None)
    config = SearchConfig(alpha=0.0, beam_width=beam_width, lexical_weight=weight)
    return index.methods[method].retrieve(batch, SearchRequest(10, config, **more))


def test_cells_partition_the_documents():
    for documents, leaf in ((2000, 10), (300, 300), (40, 2)):
        tree = random_tree(documents, leaf=leaf)
        nodes, lists = cell_nodes(tree), InvertedLists.from_tree(tree)
        starts, ends = tree.doc_start[nodes], tree.doc_end[nodes]
        assert (starts[0], ends[-1]) == (0, documents)
        assert (starts[1:] == ends[:-1]).all()
        assert len(nodes) <= 16 * math.sqrt(documents)
        assert lists.edges.tolist() == [*starts.tolist(), documents]
        assert lists.rows is None
        assert lists.nodes_of(tree).tolist() == nodes.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_a_walk_that_prunes_nothing_finds_what_exact_finds(kind, weight, monkeypatch):
    monkeypatch.setattr("dsi.search.vector_search.LARGE", 100)
    tree, batch = big_tree(kind), query_batch(5, 1)
    every, found = (search(tree, batch, method, 10_000, weight) for method in ("exact", "generate"))
    np.testing.assert_allclose(found.scores, every.scores, rtol=1e-4, atol=1e-4)
    assert every.exact.all()
    assert not found.exact.any()  # others were scored by their codes only
    assert (found.read >= 2000).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_narrow_walk_finds_most_reads_little_and_gives_true_scores(kind):
    tree, batch = big_tree(kind), query_batch(20, 2)
    index = VectorEngine(tree)
    found = search(tree, batch, "generate", 40)
    true = batch.embeddings @ tree.embeddings[:].T
    np.testing.assert_allclose(found.scores, np.take_along_axis(true, found.positions, axis=1), rtol=1e-4, atol=1e-4)
    best = np.argsort(-true, axis=1)[:, :10]
    assert (
        np.mean([len(set(a) & set(b)) / 10 for a, b in zip(best.tolist(), found.positions.tolist(), strict=True)]) > 0.5
    )
    assert (found.read < 1000).all()
    assert index.listed is not None


def test_a_filter_is_applied_inside_the_lists():
    tree, batch = big_tree("int8", 3000), query_batch(5, 3)
    allowed = np.random.default_rng(0).random(3000) < 0.5  # too many to be scored outright
    found = search(tree, batch, "generate", 200, 0.4, allowed=allowed)
    assert allowed[found.positions].all()
    every = search(tree, batch, "exact", 200, 0.4, allowed=allowed)
    assert np.mean(np.isclose(found.scores[:, 0], every.scores[:, 0], rtol=1e-4)) >= 0.8
    few = np.random.default_rng(0).random(3000) < 0.03
    outright = search(tree, batch, "generate", 1, 0.4, allowed=few)
    assert outright.exact.all()
    np.testing.assert_allclose(outright.scores, search(tree, batch, "exact", allowed=few, weight=0.4).scores, rtol=1e-4)


def test_a_scan_returns_the_documents_that_a_filter_lets_through_and_no_others():
    tree, queries = big_tree(), query_batch(5).embeddings
    lists = InvertedLists.from_tree(tree)
    chosen = np.tile(np.arange(len(lists.digits)), (len(queries), 1))
    allowed = np.random.default_rng(0).random(tree.num_places) < 0.3
    found = lists.scan(queries, chosen, tree.num_places, allowed)
    assert [set(own[own >= 0].tolist()) for own in found] == [set(np.flatnonzero(allowed).tolist())] * len(queries)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_keep_the_lists_of_codes(kind):
    tree = big_tree(kind)
    kept = InvertedLists.from_tree(tree)
    rng = np.random.default_rng(7)
    for step in range(3):
        tree = remove_documents(tree, rng.choice(tree.num_rows, 150, replace=False))
        new = rng.normal(size=(40, tree.embeddings.shape[1])).astype(np.float32)
        tree = add_documents(tree, new)
        assert InvertedLists.from_tree(tree) is kept
        batch = query_batch(6, step)
        every, found = (search(tree, batch, method, 10_000, 0.3) for method in ("exact", "generate"))
        np.testing.assert_allclose(found.scores, every.scores, rtol=1e-4, atol=1e-4)
        assert (tree.doc_rows[found.positions] >= 0).all()
        direct = query_batch(40)._replace(embeddings=torch.from_numpy(2 * new))  # a new document answers its own vector
        own = search(tree, direct, "generate", 40)
        assert np.mean(own.positions[:, 0] == tree.positions[-40:]) > 0.9


def test_a_tree_from_before_an_update_finds_what_the_update_removed():
    before = big_tree("int8")
    after, batch = remove_documents(before, np.arange(1500)), query_batch(5, 1)
    search(after, batch, "generate")  # makes the lists
    every, found = (search(before, batch, method, 10_000) for method in ("exact", "generate"))
    np.testing.assert_allclose(found.scores, every.scores, rtol=1e-4, atol=1e-4)


def test_a_query_that_is_near_nothing_and_words_that_no_document_has_get_answers():
    tree, batch = big_tree("int8"), query_batch(2, 1)
    batch.embeddings[0] = 0
    found = search(tree, batch, "generate")
    assert (found.positions >= 0).all()
    assert (found.scores[0] == 0).all()
    unknown = search(tree, batch._replace(texts=["zz", "zz"]), "generate", weight=0.4)
    np.testing.assert_allclose(unknown.scores, found.scores, rtol=1e-6)


MEASURED = """
import sys
from dataclasses import replace
from pathlib import Path
import faiss, torch
torch.set_num_threads(1); faiss.omp_set_num_threads(1)
from dsi.docids.tree import DocidTree
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.vector_search import VectorEngine
from tests.support.small import as_batch, random_queries, random_tree

def search(tree, rows):
    points = torch.from_numpy(tree.embeddings[rows])
    states, mask, _ = random_queries(len(rows))
    batch = as_batch(states, mask, points, [""] * len(rows))
    generate = VectorEngine(tree).methods["generate"]
    return generate.retrieve(batch, SearchRequest(1, SearchConfig(alpha=0.0, beam_width=64))).positions.flatten().tolist()

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of the process from /proc")
def test_a_search_needs_less_memory_than_the_vectors_as_floats(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "_TRAIN_VECTORS", 2560)
    points = np.random.default_rng(0).normal(size=(80_000, 256)).astype(np.float32)  # 80,000 KiB
    tree = build_tree(points, DocidsConfig(method="random", branching=64, max_leaf_size=64))
    tree.stored_as(VectorsConfig("int8")).save(tmp_path / "docids.safetensors")  # 20,000 KiB
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "docids.safetensors")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, peak = done.stdout.splitlines()[0].rsplit(" ", 1)
    assert found == "[7, 70000]"
    assert int(peak) < 60_000
    assert int(done.stdout.splitlines()[1]) > 80_000


def test_more_documents_get_more_candidates_and_a_share_as_many_as_its_whole(monkeypatch):
    assert [oversampling(documents) for documents in (10, LARGE, 4 * LARGE, 100_000_000)] == [4, 4, 8, 156]
    monkeypatch.setattr(module, "LARGE", 20)
    whole = big_tree("float32")
    shards = pytest.importorskip("dsi.cluster.shards")
    share = shards.ShardDocuments.from_tree(whole, 0, int(whole.doc_end[1])).cut(whole)
    assert share.num_places < whole.num_places
    assert ListedDocuments(share, whole).oversampling == ListedDocuments(whole).oversampling == 40


@pytest.mark.parametrize("few", [False, True])
def test_a_search_scores_that_many_candidates(monkeypatch, few):
    monkeypatch.setattr(module, "LARGE", 2000 if few else 20)
    scanned, scan = [], InvertedLists.scan
    monkeypatch.setattr(InvertedLists, "scan", lambda *given: scanned.append(given[3]) or scan(*given))
    tree = big_tree("float32")
    batch, config = query_batch(3), SearchConfig(alpha=0.0, beam_width=10_000, candidates=20)
    found = VectorEngine(tree).methods["generate"].retrieve(batch, SearchRequest(10, config))
    assert scanned == [4 * 20 if few else 40 * 20]
    exact = search(tree, batch, "exact")
    if not few:  # most of the documents are rescored
        np.testing.assert_allclose(found.scores, exact.scores, rtol=1e-4, atol=1e-4)


def test_squared_lengths_of_very_many_vectors_are_not_kept(monkeypatch):
    tree = big_tree("int8")
    kept, expected = tree.embeddings.squares(), (tree.embeddings[:] ** 2).sum(axis=1)
    assert tree.embeddings.squares() is kept
    monkeypatch.setattr(vectors, "_KEPT", 100)
    again = big_tree("int8")
    np.testing.assert_allclose(again.embeddings.squares(), expected, rtol=1e-5)
    assert "squares" not in again.embeddings.cache
