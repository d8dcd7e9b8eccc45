"""What each system of the index benchmark finds, and what it costs; in one process, systems and knobs timed alternating.

Milliseconds are of the processor: other work on the machine adds nothing to them, and with one thread they are those of the
clock on an idle machine. What the clock said is kept beside them.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from docids.clustering import DocidsConfig, build_tree
from docids.storage import read_record
from docids.tree import DocidTree
from scripts.benchmarks.index_data import Searched, hardness
from scripts.benchmarks.index_faiss import LISTS, Found, Lists, Search, System
from scripts.benchmarks.index_systems import SmallTree, Tree, TreeSearch, systems
from scripts.benchmarks.memory import private_mib
from scripts.benchmarks.timing import alternate

Row = dict[str, Any]
Value = TypeVar("Value")
Asked = Callable[[slice], Found]
BATCH = 64
FUSED = "dense and BM25"
_MATRIX = 1000
"""Queries times dimensions from which faiss multiplies matrices. By default it does so from more on, and flat search for 64
queries of 384 dimensions takes eight times as long."""


def measure(folder: Path, rounds: int, left_out: Sequence[str]) -> dict[str, Any]:
    """The figures of one collection, all of whose systems are built but those that are left out, by name."""
    faiss.omp_set_num_threads(threads := torch.get_num_threads())
    faiss.cvar.distance_compute_blas_threshold = _MATRIX
    data = Searched.load(folder)
    chosen = systems(left_out)
    sizes = {system.name: _sizes(system, data) for system in chosen}  # before this process has threads
    figures = _alone(hardness, data.tree, data.queries)
    rows, functions = _dense(data, chosen)
    for own, search in _fused(data, chosen):
        rows.append(own)
        functions.append(search)
    _time(rows, functions, len(data.queries), rounds)
    _rate(rows, data.relevant)
    return {
        "documents": data.tree.num_documents,
        "dim": data.queries.shape[1],
        "queries": len(data.queries),
        "threads": threads,
        "hardness": figures,
        "systems": sizes,
        "rows": rows,
        "left out": list(left_out),
    }


def _sizes(system: System, data: Searched) -> Row:
    """Bytes a document and what building took."""
    documents, built = data.tree.num_documents, read_record(data.folder / "built.json")
    private, adding = _alone(_private, system, data), _alone(_adding, system, data)
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


def _alone(function: Callable[..., Value], *given: object) -> Value:
    """What a function returns in a process of its own, which gives its memory back."""
    with multiprocessing.get_context("fork").Pool(1) as process:
        return process.apply(function, given)


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


def _fused(data: Searched, chosen: Sequence[System]) -> list[tuple[Row, Asked]]:
    """Rows of the index with BM25; the first one is exact."""
    found, lexical = [], data.lexical
    for system in (own for own in chosen if type(own) in (Tree, SmallTree)):
        tree = DocidTree.load(data.folder / system.files[0])
        search = TreeSearch(tree, lexical, data.lexical_weight)
        for value in sorted(system.knobs(tree.num_documents), reverse=True):
            row = {"scores": FUSED, "system": system.name, "knob": system.knob, "value": value}
            found.append((row, _asking_words(search, data, value)))
    return found


def _asking_words(search: TreeSearch, data: Searched, value: float) -> Asked:
    return lambda own: search(data.queries[own], value, data.texts[own])


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
