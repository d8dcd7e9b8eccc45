"""Very many documents are clustered in parts: each as it would be alone, whoever does it, and whatever is killed meanwhile."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dsi.docids.clustering import assemble, build_tree
from dsi.docids.files.processes import Processes
from dsi.docids.schemes import DocidsConfig, SchemeInput, kmeans, make_docids
from tests.support.trees import ROOT, shared


@pytest.fixture
def points(monkeypatch):
    monkeypatch.setattr(kmeans, "MOST_TOGETHER", 500)
    return np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)


def test_each_part_is_clustered_as_it_would_be_alone(points):
    config = DocidsConfig(branching=7)
    paths = make_docids(SchemeInput(points, config, seed=3)).paths
    assert sorted(set(paths[:, 0])) == list(range(7))
    for part in range(7):
        rows = np.flatnonzero(paths[:, 0] == part)
        alone = make_docids(SchemeInput(points[rows], config, seed=3)).paths
        np.testing.assert_array_equal(paths[rows, 1 : 1 + alone.shape[1]], alone)
        assert (paths[rows, 1 + alone.shape[1] :] == -1).all()
    tree = assemble(make_docids(SchemeInput(points, config, seed=3)), points)
    assert sorted(tree.doc_rows) == list(range(3000))
    assert (tree.doc_end - tree.doc_start)[tree.first_child >= tree.num_inner].max() <= config.max_leaf_size


def test_the_parts_are_those_of_the_nearest_centroids(points):
    paths = make_docids(SchemeInput(points, DocidsConfig(branching=7))).paths
    means = np.stack([points[paths[:, 0] == part].mean(axis=0) for part in range(7)])
    nearest = ((points[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == paths[:, 0]).mean() > 0.9


def test_any_number_of_processes_makes_the_same_parts(points, tmp_path):
    alone = build_tree(points, DocidsConfig(branching=7))
    for count in (1, 2, 3):
        (folder := tmp_path / str(count)).mkdir()

        def build(processes: Processes):
            return build_tree(points, DocidsConfig(branching=7), processes=processes, folder=folder)

        assert all(tree.fingerprint == alone.fingerprint for tree in shared(count, build))
        assert {path.name for path in folder.iterdir()} == {"parts.npy", *(f"part-{part}.npy" for part in range(7))}


def test_parts_with_fewer_documents_than_the_branching_and_with_one(points):
    far = np.array([[1e4] * 8, [1e4 + 1] * 8, [-1e4] * 8, *[[0, *[-2e4] * 7]] * 30], dtype=np.float32)
    tree = build_tree(np.vstack([points, far]), DocidsConfig(branching=50))
    sizes = (tree.doc_end - tree.doc_start)[tree.levels[1]]
    assert len(sizes) == 50
    assert {1, 30} <= set(sizes.tolist())
    assert sorted(tree.doc_rows) == list(range(len(points) + len(far)))


def test_half_precision_is_clustered_as_the_same_numbers_in_single_precision(points):
    half = points.astype(np.float16)
    tree, same = (build_tree(given, DocidsConfig()) for given in (half, half.astype(np.float32)))
    assert tree.fingerprint == same.fingerprint
    assert tree.embeddings.dtype == np.float32
    np.testing.assert_array_equal(tree.embeddings[:], same.embeddings[:])
    np.testing.assert_allclose(tree.centroids[:], same.centroids[:], atol=1e-6)


_BUILD = """
import sys
from pathlib import Path
import numpy as np
from dsi.docids.clustering import build_tree
from dsi.docids.schemes import DocidsConfig, kmeans
from dsi.docids.vectors import VectorsConfig
kmeans.MOST_TOGETHER = 2000
folder = Path(sys.argv[1])
(folder / "parts").mkdir(exist_ok=True)
points = np.load(folder.parent / "points.npy", mmap_mode="r")
print("begins", flush=True)
tree = build_tree(points, DocidsConfig(), folder=folder / "parts").stored_as(VectorsConfig("int8", 4))
tree.save(folder / "tree.safetensors")
"""


@pytest.mark.programs
@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_a_build_that_is_killed_five_times_goes_on_and_gives_the_same_file(tmp_path):
    np.save(tmp_path / "points.npy", np.random.default_rng(1).normal(size=(60_000, 16)).astype(np.float16))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    sums, kept, rng = [], [], random.Random(0)
    for name, kills in (("whole", 0), ("killed", 5)):
        (folder := tmp_path / name).mkdir()
        for wanted in [*(10 * kill for kill in range(kills)), None]:
            process = subprocess.Popen([sys.executable, "-c", _BUILD, folder], env=environment, stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()
            if wanted is None:
                assert process.wait() == 0
                continue
            while len(list((folder / "parts").glob("part-*.npy"))) < wanted and process.poll() is None:
                time.sleep(0.002)
            time.sleep(rng.random() / 50)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kept.append({path.name: path.stat().st_mtime_ns for path in (folder / "parts").glob("part*.npy")})
        sums.append(hashlib.sha256((folder / "tree.safetensors").read_bytes()).hexdigest())
    assert sums[0] == sums[1]
    assert len(kept[-1]) > 40
    last = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "parts").iterdir()}
    assert all(last[name] == written for names in kept for name, written in names.items())  # nothing is made twice
