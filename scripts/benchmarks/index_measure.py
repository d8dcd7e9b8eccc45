"""What each system of the index benchmark finds, and what it costs; in one process, systems and knobs timed alternating.

Milliseconds are of the processor: other work on the machine adds nothing to them, and with one thread they are those of the
clock on an idle machine. What the clock said is kept beside them.
"""

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from docids.clustering import DocidsConfig, build_tree
from docids.lexical import Lexical
from docids.storage import read_record
from docids.tree import DocidTree
from dsi.generator.config import GeneratorConfig
from dsi.generator.model import DocidGenerator
from dsi.search.added import AddedScores
from dsi.search.beam import TreeSearcher
from dsi.search.decoder import search_decoder
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from scripts.benchmarks.index_data import Searched, hardness
from scripts.benchmarks.index_systems import (
    LISTS,
    Found,
    K,
    Lists,
    Search,
    SmallTree,
    System,
    Tree,
    TreeSearch,
    systems,
)
from scripts.benchmarks.memory import private_mib
from scripts.benchmarks.timing import alternate

Row = dict[str, Any]
Asked = Callable[[slice], Found]
BATCH = 64
FUSED, DECODER = "dense and BM25", "decoder, dense and BM25"
_STATES, _WIDTH = 16, 384
_MATRIX = 1000
"""Queries times dimensions from which faiss multiplies matrices. By default it does so from more on, and flat search for 64
queries of 384 dimensions takes eight times as long."""


def measure(folder: Path, rounds: int, hnsw_largest: int) -> dict[str, Any]:
    """The figures of one collection, all of whose systems are built."""
    faiss.omp_set_num_threads(threads := torch.get_num_threads())
    faiss.cvar.distance_compute_blas_threshold = _MATRIX
    data = Searched.load(folder)
    documents = data.tree.num_documents
    chosen = systems(documents, hnsw_largest)
    sizes = {system.name: _sizes(system, data) for system in chosen}  # before this process has threads
    rows, functions = _dense(data, chosen)
    lexical = data.lexical
    for own, search in _fused(data, lexical):
        rows.append(own)
        functions.append(search)
    _time(rows, functions, len(data.queries), rounds)
    _rate(rows, data.relevant)
    return {
        "documents": documents,
        "dim": data.queries.shape[1],
        "queries": len(data.queries),
        "threads": threads,
        "hardness": hardness(data.tree, data.queries),
        "systems": sizes,
        "rows": rows,
        "left out": {} if documents <= hnsw_largest else {"faiss HNSW": f"more than {hnsw_largest:,} documents"},
    }


def _sizes(system: System, data: Searched) -> Row:
    """Bytes a document and what building took."""
    documents, built = data.tree.num_documents, read_record(data.folder / "built.json")
    with multiprocessing.get_context("fork").Pool(1) as alone:
        private, adding = alone.apply(_private, (system, data)), alone.apply(_adding, (system, data))
    seconds = built[system.name] + (built[LISTS] if isinstance(system, Lists) else 0)
    if isinstance(system, Tree):
        seconds = None if data.seconds is None else seconds + data.seconds
    disk = sum((data.folder / name).stat().st_size for name in system.files)
    return {
        "private bytes": round(private / documents, 1),
        "disk bytes": round(disk / documents, 1),
        "ms to add one": round(1000 * adding, 1),
        "build seconds": None if seconds is None else round(seconds, 1),
    }


def _private(system: System, data: Searched) -> float:
    """The bytes by which this process grows until a query is answered; those of mapped files do not count."""
    TreeSearch(build_tree(data.queries, DocidsConfig()))(data.queries[:1], 1)  # what the libraries take once
    before = private_mib()
    search = system.load(data)
    search(data.queries[:1], system.knobs(data.tree.num_documents)[0])
    return (private_mib() - before) * 2**20


def _adding(system: System, data: Searched) -> float:
    """Seconds of the processor that one more document takes."""
    add = system.add(data)
    started = time.process_time()
    add()
    return time.process_time() - started


def _dense(data: Searched, chosen: Sequence[System]) -> tuple[list[Row], list[Asked]]:
    """A row for each system and knob, and what searches; the first one is exact."""
    rows: list[Row] = []
    functions: list[Asked] = []
    for system in chosen:
        search = system.load(data)
        for value in system.knobs(data.tree.num_documents):
            rows.append({"scores": "dense", "system": system.name, "knob": system.knob, "value": value})
            functions.append(_asking(search, data, value))
    return rows, functions


def _asking(search: Search, data: Searched, value: float) -> Asked:
    return lambda own: search(data.queries[own], value)


def _fused(data: Searched, lexical: Lexical) -> list[tuple[Row, Asked]]:
    """Rows of the index with BM25, and with a decoder too; the first of either kind is exact."""
    found: list[tuple[Row, Asked]] = []
    for system in (Tree(), SmallTree()):
        tree = DocidTree.load(data.folder / system.files[0])
        search = TreeSearch(tree, lexical, data.lexical_weight)
        for value in sorted(system.knobs(tree.num_documents), reverse=True):
            row = {"scores": FUSED, "system": system.name, "knob": system.knob, "value": value}
            found.append((row, _asking_words(search, data, value)))
    decoder = Decoder(tree, lexical, data)
    own = {"scores": DECODER, "system": system.name, "knob": "probed"}
    every = [({**own, "value": value}, decoder.asking(value)) for value in (math.inf, 0.0)]
    return [*found, *every]


def _asking_words(search: TreeSearch, data: Searched, value: float) -> Asked:
    return lambda own: search(data.queries[own], value, data.texts[own])


class Decoder:
    """A search with a decoder of two layers and random weights, on states that an encoder might give.

    Args:
        tree: what it decodes.
        lexical: BM25.
        data: the queries.
    """

    def __init__(self, tree: DocidTree, lexical: Lexical, data: Searched) -> None:
        config = GeneratorConfig(decoder="", num_layers=2, num_heads=6)
        generator = DocidGenerator.create(config, tree, _WIDTH).eval()
        self.searcher = TreeSearcher(tree, search_decoder(generator), torch.device("cpu"))
        self.lexical, self.data = lexical, data
        rng = torch.Generator().manual_seed(0)
        self.states = torch.randn(BATCH, _STATES, _WIDTH, generator=rng)

    def asking(self, probed: float) -> Asked:
        """A search with the knob `probed`; 0 is the default of an index."""
        config = SearchConfig(alpha=0.5, beam_width=K, lexical_weight=self.data.lexical_weight, probed=probed)
        request = SearchRequest(K, config)
        all_scored = config.looked_at(self.data.tree.num_documents) == math.inf
        step = max(1, 2**26 // self.data.tree.num_documents) if all_scored else BATCH

        def search(own: slice) -> Found:
            starts = range(own.start, own.stop, step)
            return np.concatenate([self._search(slice(n, min(n + step, own.stop)), request) for n in starts])

        return search

    def _search(self, own: slice, request: SearchRequest) -> Found:
        texts, embeddings = self.data.texts[own], torch.from_numpy(self.data.queries[own])
        added = AddedScores(texts, self.searcher.tree, self.lexical, self.data.lexical_weight)
        states = self.states[: len(texts)]
        mask = torch.ones(states.shape[:2], dtype=torch.bool)
        batch = QueryBatch(torch.arange(len(texts)), states, mask, embeddings, texts, added)
        found: Found = self.searcher.search(self.searcher.score(batch, request), request).positions.numpy()
        return found


class Timed:
    """A search whose calls are timed, each with the next queries.

    Attributes:
        answers: of the first call with each batch of queries.
        seconds: of the processor, a call.
    """

    def __init__(self, search: Asked, queries: int, batch: int) -> None:
        starts = range(0, max(queries - batch, 0) + 1, batch)
        self._search, self._batches = search, [slice(start, start + min(batch, queries)) for start in starts]
        self.answers: list[Found] = []
        self.seconds: list[float] = []

    @property
    def batches(self) -> int:
        """How many batches of queries there are."""
        return len(self._batches)

    def __call__(self) -> None:
        """Search once."""
        own, started = self._batches[len(self.seconds) % self.batches], time.process_time()
        found = self._search(own)
        self.seconds.append(time.process_time() - started)
        if len(self.answers) < self.batches:
            self.answers.append(found)


def _time(rows: list[Row], functions: Sequence[Asked], queries: int, rounds: int) -> None:
    """Write milliseconds a query and the answers into the rows."""
    for batch in (1, BATCH):
        timed = [Timed(function, queries, batch) for function in functions]
        wanted = rounds if batch == 1 else max(rounds, timed[0].batches)
        wall, _ = alternate(timed, wanted)
        asked = min(batch, queries)
        for row, own, seconds in zip(rows, timed, wall, strict=True):
            row[f"ms at batch {batch}"] = round(1000 * statistics.median(own.seconds[1:]) / asked, 4)
            row[f"clock ms at batch {batch}"] = round(1000 * seconds / asked, 4)
            row["answers"] = np.concatenate(own.answers)


def _rate(rows: list[Row], relevant: Sequence[Sequence[int]]) -> None:
    """Put recall of the exact answer and Hit@10 in the place of the answers."""
    exact: dict[str, NDArray[np.int64]] = {}
    for row in rows:
        found = row.pop("answers")
        true = exact.setdefault(row["scores"], found)
        shared = (found[:, :, None] == true[:, None]).any(axis=2)
        row["recall@10"] = round(float(shared.mean()), 4)
        if relevant:
            hits = [bool(set(own) & set(judged)) for own, judged in zip(found.tolist(), relevant, strict=False)]
            row["Hit@10"] = round(float(np.mean(hits)), 4)
        if row["scores"] == DECODER:
            row.pop("Hit@10", None)  # its weights are random
