"""One multi-label classifier, trained and measured in a process of its own by `dsi_experiments.commands.benchmark_multilabel`.

Run by path under any Python, so that other libraries can have an environment of their own; imports only what it needs.
"""

import argparse
import importlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.datasets import load_svmlight_file
from sklearn.preprocessing import normalize

ANSWERS = 5
Data = tuple[csr_matrix, csr_matrix]
"""Features [instances, features] of unit length; labels [instances, labels]."""


def read(paths: list[Path]) -> list[Data]:
    """The data of multi-label svmlight files that share features and labels."""
    loaded = [load_svmlight_file(str(path), multilabel=True) for path in paths]
    features = max(x.shape[1] for x, _ in loaded)
    labels = 1 + int(max(max(own, default=0) for _, ys in loaded for own in ys))
    result = []
    for x, ys in loaded:
        rows = np.repeat(np.arange(len(ys)), [len(own) for own in ys])
        columns = np.concatenate([np.array(own, dtype=int) for own in ys])
        x = csr_matrix((x.data, x.indices, x.indptr), shape=(x.shape[0], features), dtype=np.float32)
        y = csr_matrix((np.ones(len(columns), np.float32), (rows, columns)), shape=(len(ys), labels))
        result.append((normalize(x).tocsr(), y))
    return result


def tree_model(train: Data, objective: str, seed: int, threads: int) -> Callable[[csr_matrix], Any]:
    """Our tree model; one configuration for all objectives and data sets, chosen on a fifth of the training instances."""
    torch, clustering = importlib.import_module("torch"), importlib.import_module("dsi.docids.clustering")
    model = importlib.import_module("dsi_experiments.tree_model")
    torch.set_num_threads(threads)
    tree = model.label_tree(*train, clustering.DocidsConfig(branching=16, max_leaf_size=100), seed)
    config = model.TreeModelConfig(
        objective=objective, hidden=1024, dropout=0.5, epochs=30, learning_rate=3e-3, beam_width=10, seed=seed
    )
    fitted = model.TreeModel(tree, train[0].shape[1], config)
    fitted.fit(*train)
    return lambda features: fitted.search(features, ANSWERS, config.beam_width)


def napkinxc(train: Data, seed: int, threads: int) -> Callable[[csr_matrix], Any]:
    """NapkinXC's probabilistic label tree with its defaults."""
    model = importlib.import_module("napkinxc.models").PLT(
        tempfile.mkdtemp(), verbose=False, threads=threads, seed=seed
    )
    model.fit(train[0], [[int(label) for label in row.indices] for row in train[1]])

    def search(features: csr_matrix) -> Any:
        found = model.predict(features, top_k=ANSWERS)
        return np.array([[*row, *[-1] * (ANSWERS - len(row))] for row in found])

    return search


def pecos(train: Data, seed: int, threads: int) -> Callable[[csr_matrix], Any]:
    """PECOS' XR-Linear over a tree of 16 splits, at most 20 labels a leaf, beam 10."""
    xmc, xlinear = importlib.import_module("pecos.xmc"), importlib.import_module("pecos.xmc.xlinear.model")
    embeddings = xmc.LabelEmbeddingFactory.create(train[1], train[0], method="pifa")
    clusters = xmc.Indexer.gen(embeddings, nr_splits=16, max_leaf_size=20, seed=seed, threads=threads)
    model = xlinear.XLinearModel.train(*train, C=clusters, threads=threads)

    def search(features: csr_matrix) -> Any:
        scores = model.predict(features, only_topk=ANSWERS, beam_size=10, threads=threads)
        found = np.full((features.shape[0], ANSWERS), -1)
        for row, own in enumerate(scores):
            best = own.indices[np.argsort(-own.data, kind="stable")]
            found[row, : len(best)] = best
        return found

    return search


def main() -> None:
    """Train, search, write the labels found, print times and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", help="napkinxc, pecos, or an objective of the tree model")
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("answers", type=Path, help="file for the labels found (npy)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    train, test = read([arguments.train, arguments.test])
    peers = {"napkinxc": napkinxc, "pecos": pecos}
    if arguments.system not in peers:
        importlib.import_module("dsi_experiments.tree_model")  # importing it is not training
    before, started = _resident(reset_peak=True), time.perf_counter()
    if arguments.system in peers:
        search = peers[arguments.system](train, arguments.seed, arguments.threads)
    else:
        search = tree_model(train, arguments.system, arguments.seed, arguments.threads)
    trained = time.perf_counter()
    found = search(test[0])
    searched = time.perf_counter()
    np.save(arguments.answers, found)
    print(
        json.dumps(
            {
                "train seconds": round(trained - started, 2),
                "milliseconds an instance": round(1000 * (searched - trained) / len(found), 3),
                "MiB beyond the data": round(_resident(peak=True) - before),
            }
        )
    )


def _resident(*, peak: bool = False, reset_peak: bool = False) -> float:
    """Resident memory of this process in MiB, now or at its peak since that was reset (Linux)."""
    if reset_peak:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return int(values["VmHWM" if peak else "VmRSS"].split()[0]) / 1024


if __name__ == "__main__":
    main()
