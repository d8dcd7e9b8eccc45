"""The docid tree on hand-plotted points, duplicates, and small and random collections."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.files.processes import Processes
from dsi.docids.tree import DocidTree
from dsi.docids.vectors import Vectors
from tests.support.small import random_tree
from tests.support.trees import ROOT, shared, walk

CLUSTERING = ("kmeans", "balanced", "random")

# Three far groups of points on a plane, the first of them two near pairs.
GROUPS = np.array(
    [[0, 0], [0, 1], [5, 0], [5, 1], [100, 0], [101, 0], [102, 0], [0, 100], [0, 101], [0, 102]], dtype=np.float32
)


def groups_of(tree: DocidTree, level: int) -> set[frozenset[int]]:
    return {
        frozenset(tree.doc_rows[tree.doc_start[n] : tree.doc_end[n]].tolist())
        for n in range(tree.levels[level].start, tree.levels[level].stop)
    }


def test_hand_plotted_points_fall_into_their_groups():
    tree = build_tree(GROUPS, DocidsConfig(branching=3, max_leaf_size=4))
    assert groups_of(tree, 1) == {frozenset({0, 1, 2, 3}), frozenset({4, 5, 6}), frozenset({7, 8, 9})}
    deeper = build_tree(GROUPS, DocidsConfig(branching=3, max_leaf_size=3))
    assert frozenset({0, 1}) in groups_of(deeper, 2) or frozenset({2, 3}) in groups_of(deeper, 2)


def test_centroids_are_means_of_the_documents_below():
    tree = build_tree(GROUPS, DocidsConfig(branching=3, max_leaf_size=4))
    for node in range(tree.num_inner):
        below = tree.doc_rows[tree.doc_start[node] : tree.doc_end[node]]
        np.testing.assert_allclose(tree.centroids[node], GROUPS[below].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(tree.embeddings, GROUPS[tree.doc_rows])


@pytest.mark.parametrize(
    ("documents", "branching", "leaf"), [(4, 4, 4), (10, 10, 1), (57, 3, 2), (300, 10, 10), (40, 2, 30)]
)
def test_every_document_is_reached_by_its_digits_and_only_by_them(documents, branching, leaf):
    tree = random_tree(documents, branching=branching, leaf=leaf)
    assert sorted(tree.doc_rows.tolist()) == list(range(documents))
    all_digits = [tree.digits(position) for position in range(documents)]
    assert len(set(all_digits)) == documents
    for position, digits in enumerate(all_digits):
        assert tree.node(digits) == tree.num_inner + position
        assert all(0 <= digit < tree.fan_out[level] for level, digit in enumerate(digits))
    reached = {tree.node(digits) for digits in walk(tree, ())}
    assert reached == set(range(tree.num_inner, tree.num_inner + documents))


def test_a_cluster_holds_at_most_max_leaf_size_documents_and_is_split_only_above_it():
    tree = random_tree(500, branching=5, leaf=7)
    sizes = tree.doc_end - tree.doc_start
    above_documents = tree.first_child >= tree.num_inner
    np.testing.assert_array_equal(above_documents, sizes <= 7)
    assert (tree.num_children[~above_documents] == 5).all()


def test_duplicates_are_split_by_order():
    points = np.ones((100, 8), dtype=np.float32)
    tree = build_tree(points, DocidsConfig(branching=4, max_leaf_size=4))
    assert tree.depth >= 3
    assert len({tree.digits(position) for position in range(100)}) == 100
    assert (tree.num_children > 0).all()
    mixed = np.concatenate([points, np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)])
    mixed_tree = build_tree(mixed, DocidsConfig(branching=4, max_leaf_size=4))
    assert len({mixed_tree.digits(position) for position in range(150)}) == 150


def test_one_seed_gives_one_tree_and_float64_the_same():
    assert random_tree(400, seed=3).fingerprint == random_tree(400, seed=3).fingerprint
    points = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
    config = DocidsConfig(branching=4, max_leaf_size=4)
    assert build_tree(points, config).fingerprint == build_tree(points.astype(np.float64), config).fingerprint
    assert build_tree(points, config).fingerprint != build_tree(points, config, seed=1).fingerprint


def test_token_ids_are_per_level():
    tree = random_tree(100)
    assert tree.vocab_size == 1 + sum(tree.fan_out)
    assert tree.token_offsets.tolist() == [1 + sum(tree.fan_out[:level]) for level in range(tree.depth)]


def test_saved_and_loaded_is_the_same(tmp_path):
    tree = random_tree(77)
    tree.save(tmp_path / "docids.safetensors")
    loaded = DocidTree.load(tmp_path / "docids.safetensors")
    assert loaded.fingerprint == tree.fingerprint
    np.testing.assert_array_equal(loaded.centroids, tree.centroids)


def test_bad_files_are_refused(tmp_path):
    path = tmp_path / "docids.safetensors"
    with pytest.raises(FileNotFoundError, match=r"build the docids first \(dsi train\)"):
        DocidTree.load(path)
    tree = random_tree(77)
    tree.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"docids.safetensors ends within \w+; restore it or train again"):
        DocidTree.load(path)
    dataclasses.replace(tree, doc_rows=np.ones_like(tree.doc_rows)).save(path)
    assert not DocidTree.load(path).is_sound()


def changed(array, place, value):
    other = array.copy()
    other[place] = value
    return other


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("first_child", lambda own: own + 1),
        ("first_child", lambda own: np.maximum(own - 1, 1)),
        ("first_child", lambda own: changed(own, -1, -5)),
        ("first_child", lambda own: changed(own, -1, 10**9)),
        ("first_child", lambda own: changed(own, 0, 0)),  # its own child
        ("num_children", lambda own: changed(changed(own, 0, own[0] + 1), 1, own[1] - 1)),
        ("num_children", lambda own: changed(own, -1, -1)),
        ("num_children", lambda own: changed(own, -1, 2**31 - 1)),
        ("doc_start", lambda own: changed(own, 0, 1)),
        ("doc_start", lambda own: changed(own, -1, own[-2])),
        ("doc_start", lambda own: changed(own, 1, own[2])),
        ("doc_end", lambda own: changed(own, 1, own[1] + 1)),
        ("doc_end", lambda own: changed(own, -1, 2**31 - 1)),
        ("doc_rows", lambda own: np.where(own == own.max(), -2, own).astype(np.int32)),
        ("doc_rows", lambda own: changed(own, 0, len(own))),
        ("centroids", lambda own: own[:, 1:]),
        ("centroids", lambda own: own[1:]),
        ("centroids", lambda own: changed(own, 0, np.nan)),
        ("embeddings", lambda own: changed(own, 0, -np.inf)),
        ("trained", lambda own: np.append(own[2:], False)),
        ("origin", lambda own: np.zeros(5, dtype=np.uint8)),
    ],
)
def test_arrays_that_are_no_tree_are_not_sound(tmp_path, name, change):
    tree, path = random_tree(77), tmp_path / "docids.safetensors"
    own = change(np.array(getattr(tree, name)))
    dataclasses.replace(tree, **{name: Vectors((own,)) if name in ("centroids", "embeddings") else own}).save(path)
    assert not DocidTree.load(path).is_sound()
    assert tree.is_sound()


@pytest.mark.parametrize("span", [(-1, 5), (5, 3)])
def test_spans_that_are_of_no_text_are_not_sound(span):
    tree = random_tree(20)
    spans = np.tile(np.array([0, 9], dtype=np.int32), (20, 1))
    assert dataclasses.replace(tree, spans=spans).is_sound()
    spans[7] = span
    assert not dataclasses.replace(tree, spans=spans).is_sound()


@pytest.mark.parametrize(
    ("name", "change"), [("doc_rows", lambda own: own.astype(np.float32)), ("embeddings", lambda own: own[0])]
)
def test_arrays_of_another_form_are_refused(tmp_path, name, change):
    tree, path = random_tree(77), tmp_path / "docids.safetensors"
    own = change(np.array(getattr(tree, name)))
    dataclasses.replace(tree, **{name: Vectors((own,)) if name == "embeddings" else own}).save(path)
    with pytest.raises(ValueError, match=f"docids.safetensors: '{name}' is missing, unknown or of another type"):
        DocidTree.load(path)


def test_embeddings_that_are_not_finite_are_refused():
    points = GROUPS.copy()
    points[4, 1] = np.nan
    with pytest.raises(ValueError, match=r"embeddings must be finite; row 4 is not"):
        build_tree(points, DocidsConfig(branching=3))


def test_digits_that_leave_the_tree_are_named():
    tree = build_tree(GROUPS, DocidsConfig(branching=3, max_leaf_size=4))
    with pytest.raises(ValueError, match=r"level 0 has digits 0 to 2, got 7"):
        tree.node((7,))
    with pytest.raises(ValueError, match="go on below a document"):
        tree.node((*tree.digits(0), 0))


def test_shares_are_collected_in_order():
    for found in shared(3, lambda p: p.collect([10 * piece for piece in p.share(range(8))])):
        assert found == [10 * piece for piece in range(8)]
    assert Processes().collect([1, 2]) == [1, 2]


@pytest.mark.parametrize("method", CLUSTERING)
@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_processes_builds_the_same_tree(method, count, monkeypatch):
    monkeypatch.setattr("dsi.docids.schemes.splits.BLOCK", 70)  # the root and its children are split by all together
    points = np.random.default_rng(0).normal(size=(700, 5)).astype(np.float32)
    config = DocidsConfig(method=method, branching=4, max_leaf_size=5)
    alone = build_tree(points, config)
    for tree in shared(count, lambda processes: build_tree(points, config, processes=processes)):
        assert tree.fingerprint == alone.fingerprint
        np.testing.assert_array_equal(tree.centroids, alone.centroids)


_WITHIN = """
import resource, sys
from pathlib import Path
import numpy as np
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.updating import add_documents, remove_documents
folder, points = Path(sys.argv[1]), np.load(sys.argv[1] + "/points.npy", mmap_mode="r")
def data(): return int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) * 1024
warm = build_tree(points[:100], DocidsConfig(method="random"))  # what is allocated once
limit = data() + points.nbytes // 2
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones(points.shape, np.float32)
    sys.exit("the limit does not hold")
except MemoryError:
    pass
tree = build_tree(points, DocidsConfig(method="random"))
tree.save(folder / "tree.safetensors")
tree = remove_documents(add_documents(tree, points[:3]), np.array([5]))
tree.save(folder / "updated.safetensors")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_the_vectors_of_a_collection_never_are_in_memory_whole(tmp_path):
    points = np.random.default_rng(0).normal(size=(100_000, 400)).astype(np.float32)
    np.save(tmp_path / "points.npy", points)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _WITHIN, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tree = DocidTree.load(tmp_path / "tree.safetensors")
    np.testing.assert_array_equal(tree.embeddings[tree.positions], points)
    for node in (0, 1, 57, tree.num_inner - 1):
        below = tree.embeddings[tree.doc_start[node] : tree.doc_end[node]]
        np.testing.assert_allclose(tree.centroids[node], below.mean(axis=0, dtype=np.float64), atol=1e-6)
    assert DocidTree.load(tmp_path / "updated.safetensors").num_removed == 1


def test_large_clusters_are_split_where_small_ones_would_be(monkeypatch):
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(4, 6))
    points = np.repeat(centres, 60, axis=0).astype(np.float32) + rng.normal(size=(240, 6)).astype(np.float32)
    whole = build_tree(points, DocidsConfig(branching=4, max_leaf_size=100))
    monkeypatch.setattr("dsi.docids.schemes.splits.BLOCK", 50)
    blocks = build_tree(points, DocidsConfig(branching=4, max_leaf_size=100))
    for tree in (whole, blocks):
        groups = [set(tree.doc_rows[s:e] // 60) for s, e in zip(tree.doc_start[1:5], tree.doc_end[1:5], strict=True)]
        assert sorted(map(tuple, groups)) == [(0,), (1,), (2,), (3,)]
