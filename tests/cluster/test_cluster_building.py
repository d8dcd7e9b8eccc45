"""Indexes that several processes build: the same files from any number of them, whatever dies meanwhile."""

import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import dsi
from dsi.cluster.backends import LostError
from dsi.cluster.cluster import Cluster
from dsi.config import Config, write_config
from dsi.contrastive import blocks
from dsi.contrastive.config import EncoderConfig
from dsi.contrastive.encoder import Encoder
from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.files.processes import MatrixRows
from dsi.docids.files.reading import folder_sums
from dsi.docids.schemes import splits
from tests.support.small import PROMPTS, write_collection

pytest_plugins = ("tests.support.ray_cluster",)
BLOCK = 16
"""Texts of a block, and documents of a cluster from which on all processes split it together."""


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", BLOCK)
        patch.setattr(splits, "BLOCK", BLOCK)
        yield


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return dsi.read_collection(write_collection(tmp_path_factory.mktemp("building") / "collection"))


@pytest.fixture(scope="module")
def config(sentence_bert_folder) -> Config:
    encoder = {"encoder": {"name": str(sentence_bert_folder), **PROMPTS, "document_length": 16}}
    own = {"docids": {"branching": 4, "max_leaf_size": 3, "pieces": 3}, "dev_queries": 0}
    return Config().without_training().with_changes({**encoder, **own})


def files_of(folder: Path) -> dict[str, str]:
    """The sums of all files of an index but the records of how long each stage took, which the manifest lists too."""
    kept = {
        name: own for name, own in folder_sums(folder).items() if not name.endswith(("stage.json", "manifest.json"))
    }
    assert not [name for name in kept if "partial" in name or name.startswith("checkpoints/")]
    return kept


@pytest.fixture(scope="module")
def expected(small_blocks, collection, config, tmp_path_factory) -> dict[str, str]:
    """The files that one process makes."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    dsi.train(collection, folder, config=config, device="cpu")
    return files_of(folder)


@pytest.fixture(scope="module")
def ray(ray_address) -> Iterator[Cluster]:
    with Cluster(ray_address, processes=2) as cluster:
        yield cluster


@pytest.fixture(params=["here", pytest.param("processes", marks=pytest.mark.slow), "ray"])
def cluster(request) -> Iterator[Cluster]:
    if request.param == "ray":
        yield request.getfixturevalue("ray")
        return
    with Cluster("local", processes=1 + (request.param == "processes")) as cluster:
        yield cluster


@pytest.mark.cluster
def test_any_number_of_processes_makes_the_same_files(cluster, collection, config, expected, tmp_path):
    retriever = dsi.train(collection, tmp_path / "run", config=config, device="cpu", cluster=cluster)
    assert files_of(tmp_path / "run") == expected
    assert len(retriever.search("noble gases")) == 10


def kill_a_task(killed: list[int]) -> None:
    """Kill a process of Ray that works for this one, once it does."""
    deadline = time.monotonic() + 120
    while not killed and time.monotonic() < deadline:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if child.cmdline()[:1] == ["ray::run"]:
                    child.kill()
                    killed.append(child.pid)
                    return
        time.sleep(0.005)


@pytest.mark.slow
def test_a_process_that_dies_costs_its_block(ray, collection, config, expected, tmp_path, monkeypatch):
    """A process is killed while blocks are made; a part of a file that one left is gone."""
    values, killed = ray.processes.map, []

    class Deadly(type(ray.processes)):
        def map(self, work, pieces, arguments):
            if work is blocks._write_block:
                (tmp_path / "run" / "checkpoints").mkdir(exist_ok=True)
                for folder in (tmp_path / "run" / "checkpoints").glob("docids-*/documents"):
                    (folder / "000000000000.npy.dead.partial").write_bytes(b"x")
                threading.Thread(target=kill_a_task, args=(killed,)).start()
            return values(work, pieces, arguments)

    monkeypatch.setattr(type(ray), "processes", property(lambda self: Deadly(backend=self.backend)))
    dsi.train(collection, tmp_path / "run", config=config, device="cpu", cluster=ray)
    assert killed
    assert files_of(tmp_path / "run") == expected


DRIVER = """
import sys, dsi
from dsi.cluster.cluster import Cluster
from dsi.contrastive import blocks
from dsi.docids.schemes import splits
blocks.BLOCK = splits.BLOCK = 16
collection = dsi.read_collection(sys.argv[1])
with Cluster(sys.argv[4], processes=1) as cluster:
    dsi.train(collection, sys.argv[2], config=sys.argv[3], device="cpu", cluster=cluster)
"""


@pytest.mark.cluster
def test_a_driver_that_dies_is_resumed(ray, collection, config, expected, tmp_path):
    write_config(config, tmp_path / "config.toml")
    folder = tmp_path / "run"
    arguments = [sys.executable, "-c", DRIVER, collection.name, str(folder), str(tmp_path / "config.toml"), ray.address]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    driver = subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    written = list[Path]()
    while not written and driver.poll() is None:
        with suppress(FileNotFoundError):  # a folder that is done with while it is listed
            written = list(folder.rglob("*.npy"))
        assert time.monotonic() < deadline
        time.sleep(0.005)
    driver.kill()
    driver.wait()
    assert not (folder / "manifest.json").exists()
    dsi.train(collection, folder, config=config, device="cpu", cluster=ray)
    assert files_of(folder) == expected


@pytest.mark.slow
def test_a_block_whose_processes_die_is_named(ray, collection, config, tmp_path, monkeypatch):
    monkeypatch.setattr(Encoder, "__reduce__", lambda self: (os._exit, (1,)))
    with pytest.raises(LostError, match=r"write_block \d+ was given up: its process died 3 times \("):
        dsi.train(collection, tmp_path / "run", config=config, device="cpu", cluster=ray)
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.cluster
def test_trees_of_a_mapped_file_are_built_by_processes_that_read_it(tmp_path):
    points = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    np.save(tmp_path / "points.npy", points)
    with Cluster("local", processes=2) as cluster:
        config = DocidsConfig(branching=4, max_leaf_size=5)
        alone = build_tree(points, config)
        for matrix in (points, np.load(tmp_path / "points.npy", mmap_mode="r")):
            tree = build_tree(matrix, config, processes=cluster.processes)
            assert tree.fingerprint == alone.fingerprint


def test_rows_of_a_mapped_file_are_sent_as_numbers(tmp_path):
    points = np.random.default_rng(0).normal(size=(300, 80)).astype(np.float32)
    np.save(tmp_path / "points.npy", points)
    mapped, rows = np.load(tmp_path / "points.npy", mmap_mode="r"), np.arange(0, 300, 2)
    for matrix, sent in ((points, 48_000), (np.ascontiguousarray(mapped), 2_000), (mapped[:200], 48_000)):
        packed = pickle.dumps(MatrixRows(matrix, rows[: len(matrix) // 2]))
        assert len(packed) < sent + 1_000
        assert np.array_equal(pickle.loads(packed).read(), points[rows[: len(matrix) // 2]])


def test_an_encoder_is_pickled_as_the_place_that_it_was_loaded_from(sentence_bert_folder, tmp_path, monkeypatch):
    folder = shutil.copytree(sentence_bert_folder, tmp_path / "encoder")
    encoder = Encoder.load(EncoderConfig(name=str(folder)), device="cpu")
    packed = pickle.dumps(encoder)
    assert len(packed) < 10_000
    assert pickle.loads(packed).fingerprint == encoder.fingerprint
    with pytest.raises(ValueError, match="pickled as the folder or name that it was loaded from"):
        pickle.dumps(encoder.for_search())


def test_a_folder_that_a_machine_does_not_see_is_refused(collection, config, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "touch", lambda self: None)
    message = r"does not see .*run; put it on a folder that all machines share"
    with Cluster("local", processes=1) as cluster, pytest.raises(FileNotFoundError, match=message):
        dsi.train(collection, tmp_path / "run", config=config, device="cpu", cluster=cluster)
