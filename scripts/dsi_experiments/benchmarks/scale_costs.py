"""A large synthetic index: its documents, what building it takes, and what searching it costs and finds.

Everything is written into one folder, and what a killed run has finished is used again. Documents are those of the index
benchmark (`index_data`), as float16, without texts; the index has int8 vectors and codes.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.files.processes import Processes
from dsi.docids.files.reading import map_tensors, read_record, sha256
from dsi.docids.files.storage import replacing, save_tensors, write_array, write_json
from dsi.docids.tree import DocidTree
from dsi.docids.vectors import VectorsConfig
from dsi_experiments.benchmarks.index_data import QUERIES, Clouds
from dsi_experiments.benchmarks.index_faiss import Floats, Ints, K, set_for
from dsi_experiments.benchmarks.index_measure import BATCH, shared
from dsi_experiments.benchmarks.index_systems import TreeSearch
from dsi_experiments.benchmarks.memory import family_memory, private_mib, watching_memory

_NARROWEST, _SHARE, _ENOUGH = 40, 8, 0.99
"""Beams double from the first one to an eighth of the documents, until they find enough, or read all."""
_SINGLE, _FEW = 64, 8
"""Queries that are searched one at a time, and by all products."""
_BLOCK, _INTERVAL = 262_144, 1.0
DOCUMENTS, ASKED, TRUE = "documents.npy", "queries.safetensors", "true.npy"
INDEX, BUILT = "docids.safetensors", "built.json"


def write_documents(folder: Path, size: int, dim: int) -> None:
    """Write the documents [size, dim] as float16, and the queries, unless both are there."""
    if (folder / ASKED).exists():
        return
    with replacing(folder / DOCUMENTS) as partial:
        documents = np.lib.format.open_memmap(partial, "w+", np.float16, (size, dim))
        queries, _ = Clouds(size, dim, 0, documents).queries(QUERIES)
        documents.flush()
        del documents
    with replacing(folder / ASKED) as partial:
        save_tensors({"queries": queries}, partial)


def build(folder: Path, processes: Processes) -> dict[str, Any]:
    """Build and write the index, unless it is there, and return what that took: this call alone, not those killed before."""
    if record := read_record(folder / BUILT):
        return record
    documents = np.load(folder / DOCUMENTS, mmap_mode="r")
    before, started, cpu = family_memory(), time.perf_counter(), time.process_time()
    with watching_memory(family_memory, _INTERVAL) as most:
        tree = build_tree(documents, DocidsConfig(), progress=True, processes=processes)
        clustered = time.perf_counter() - started
        tree = tree.stored_as(VectorsConfig("int8"))
        with replacing(folder / INDEX) as partial:
            tree.save(partial)
    record = {
        "inner nodes": tree.num_inner,
        "depth": tree.depth,
        "tree, s": round(clustered),
        "build, s": round(time.perf_counter() - started),
        "of this process, s": round(time.process_time() - cpu),
        "private bytes a document when built": round((most() - before) / len(documents), 1),
        "bytes a document on disk": round((folder / INDEX).stat().st_size / len(documents), 1),
        "sha256": sha256(folder / INDEX),
    }
    write_json(folder / BUILT, record)
    return record


def true_answers(folder: Path) -> Ints:
    """Return the rows [queries, 10] of the nearest documents, by all products; written once."""
    if not (folder / TRUE).exists():
        set_for(BATCH)
        documents, queries = np.load(folder / DOCUMENTS, mmap_mode="r"), _queries(folder)
        scores: Floats = np.full((len(queries), K), -np.inf, np.float32)
        rows: Ints = np.full((len(queries), K), -1, np.int64)
        for start in range(0, len(documents), _BLOCK):
            block = np.asarray(documents[start : start + _BLOCK], dtype=np.float32)
            found, own = faiss.knn(queries, block, K, metric=faiss.METRIC_INNER_PRODUCT)
            scores, rows = np.hstack([scores, found]), np.hstack([rows, own + start])
            best = np.argsort(-scores, axis=1, kind="stable")[:, :K]
            scores, rows = np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)
        write_array(folder / TRUE, rows)
    found_rows: Ints = np.load(folder / TRUE)
    return found_rows


def _queries(folder: Path) -> Floats:
    return np.array(map_tensors(folder / ASKED)["queries"])


def search_costs(folder: Path) -> dict[str, Any]:
    """Return what loading takes, and for each beam what is found, read and spent; in a fresh process."""
    queries, true, before = _queries(folder), true_answers(folder), private_mib()
    started = time.perf_counter()
    tree = DocidTree.load(folder / INDEX)
    loaded = time.perf_counter() - started
    search = TreeSearch(tree)
    search(queries[:1], _NARROWEST)
    first = time.perf_counter() - started
    size = tree.num_places
    return {
        "load, s": round(loaded, 1),
        "first answer, s": round(first, 1),
        "private bytes a document when searched": round((private_mib() - before) * 2**20 / size, 1),
        "beams": list(_beams(search, tree, queries, true)),
        "exact": _cost(TreeSearch(tree, "exact"), tree, queries[:_FEW], true[:_FEW], 0),
    }


def _beams(search: TreeSearch, tree: DocidTree, queries: Floats, true: Ints) -> Iterator[dict[str, Any]]:
    beam, recall, read = _NARROWEST, 0.0, 0
    while recall < _ENOUGH and read < tree.num_places and beam <= max(_NARROWEST, tree.num_places // _SHARE):
        cost = _cost(search, tree, queries, true, beam)
        yield cost
        recall, read, beam = cost["recall@10"], cost["vectors read"], 2 * beam


def _cost(search: TreeSearch, tree: DocidTree, queries: Floats, true: Ints, beam: int) -> dict[str, Any]:
    """Return recall@10, vectors read, and milliseconds of the processor a query, one at a time and 64 at a time."""
    found, times = [], []
    for batch, asked in ((BATCH, queries), (1, queries[:_SINGLE])):
        set_for(batch)
        search(asked[:batch], beam)
        started = time.process_time()
        results = [search(asked[start : start + batch], beam) for start in range(0, len(asked), batch)]
        times.append(round(1000 * (time.process_time() - started) / len(asked), 3))
        found.append(results)
    rows = tree.doc_rows[np.concatenate([result.documents for result in found[0]])]
    read = np.concatenate([result.read for result in found[0] if result.read is not None])
    return {
        "beam": beam,
        "recall@10": shared(rows, true),
        "vectors read": round(float(read.mean())),
        "ms at batch 1": times[1],
        "ms at batch 64": times[0],
    }
