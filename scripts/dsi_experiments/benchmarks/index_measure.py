"""What each system of the index benchmark finds, and what it costs; in one process, systems and knobs timed alternating.

Milliseconds are of the processor: other work on the machine adds nothing to them, and with one thread they are those of the
clock on an idle machine. What the clock said is kept beside them.
"""

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np
import torch

from dsi.docids.clustering import DocidsConfig, build_tree
from dsi.docids.files.reading import read_record
from dsi.store.retriever import load
from dsi_experiments.benchmarks.index_data import Searched, hardness
from dsi_experiments.benchmarks.index_faiss import LISTS, Floats, Found, Ints, Lists, Search, System, set_for
from dsi_experiments.benchmarks.index_systems import WORDS_ONLY, Exact, Generate, TreeSearch, systems
from dsi_experiments.benchmarks.memory import private_mib
from dsi_experiments.benchmarks.timing import alternate

Row = dict[str, Any]
Value = TypeVar("Value")
Asked = Callable[[slice], Found]
BATCH = 64
FUSED = "dense and BM25"
ALLOWED, GONE, NEEDED = 0.01, 0.1, 0.95
"""Shares of the documents that a filter lets through, and that are removed; the recall at which both are measured."""
FILTERED, REMOVED = "1 % allowed", "a tenth removed"
_TOGETHER = 16
"""Single queries timed together: the clock of a processor can take longer than a search."""


def measure(folder: Path, rounds: int, left_out: Sequence[str]) -> dict[str, Any]:
    """The figures of one collection, all of whose systems are built but those that are left out, by name."""
    faiss.omp_set_num_threads(threads := torch.get_num_threads())
    data = Searched.load(folder)
    chosen = systems(left_out)
    sizes = {system.name: _sizes(system, data) for system in chosen}  # before this process has threads
    figures = _alone(hardness, data.tree, data.queries)
    asked = [*_dense(data, chosen), *_fused(data, chosen), *_encoder(data)]
    rows = [row for row, _ in asked]
    answers = _time(rows, [search for _, search in asked], len(data.queries), rounds)
    encoder = rows.pop() if data.run else None
    _rate(rows, answers, data.relevant)
    changed = list(_changed(data, chosen, rows))
    changes = [row for row, _ in changed]
    _rate(changes, _time(changes, [search for _, search in changed], len(data.queries), rounds), ())
    return {
        "documents": data.tree.num_places,
        "dim": data.queries.shape[1],
        "queries": len(data.queries),
        "threads": threads,
        "hardness": figures,
        "systems": sizes,
        "encoder": encoder,
        "rows": rows,
        "changes": changes,
        "left out": list(left_out),
    }


def _sizes(system: System, data: Searched) -> Row:
    """Bytes a document and what building took."""
    documents, built = data.tree.num_places, read_record(data.folder / "built.json")
    private, adding = _alone(_private, system, data), _alone(_adding, system, data)
    seconds = built[system.built_as] + (built[LISTS] if isinstance(system, Lists) else 0)
    if isinstance(system, Exact):
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
    if not hasattr(os, "fork"):
        raise OSError(
            f"This benchmark measures in forked processes, which {sys.platform} does not have; run it on Linux."
        )
    with multiprocessing.get_context("fork").Pool(1) as process:
        return process.apply(function, given)


def _private(system: System, data: Searched) -> float:
    """The bytes by which this process grows until a query is answered; those of mapped files do not count."""
    TreeSearch(build_tree(data.queries, DocidsConfig(max_leaf_size=10)))(
        data.queries[:1], 1
    )  # what the libraries take once
    before = private_mib()
    search = system.load(data)
    search(data.queries[:1], system.knobs(data.tree.num_places)[0])
    return (private_mib() - before) * 2**20


def _adding(system: System, data: Searched) -> float:
    """Seconds of the processor that one more document takes."""
    add = system.add(data)
    started = time.process_time()
    add()
    return time.process_time() - started


def _dense(data: Searched, chosen: Sequence[System]) -> Iterator[tuple[Row, Asked]]:
    """Yield a row for each system and knob, and what searches; the first one is exact."""
    for system in chosen:
        search = system.load(data)
        for value in system.knobs(data.tree.num_places):
            yield _row("dense", system, value), _asking(search, data, value)


def _row(scores: str, system: System, value: float) -> Row:
    exact = {"exact": system.exact.name} if isinstance(system, Generate) else {}
    return {"scores": scores, "system": system.name, "knob": system.knob, "value": value, **exact}


def _asking(search: Search, data: Searched, value: float) -> Asked:
    return lambda own: search(data.queries[own], value)


def _fused(data: Searched, chosen: Sequence[System]) -> Iterator[tuple[Row, Asked]]:
    """Yield rows of the index with words, if there are any, and last those of words alone; the first one is exact."""
    lexical = data.lexical
    if lexical is None:
        return
    for system in chosen:
        if isinstance(system, Exact):
            search = system.search(data, lexical)
            for value in system.knobs(data.tree.num_places):
                yield _row(FUSED, system, value), _asking_words(search, data, value)
    alone = TreeSearch(data.tree, WORDS_ONLY, lexical, data.lexical_weight)
    row = {"scores": FUSED, "system": WORDS_ONLY, "knob": "", "value": 0, "exact": Exact.name}
    yield row, _asking_words(alone, data, 0)


def _asking_words(search: TreeSearch, data: Searched, value: float) -> Asked:
    return lambda own: search(data.queries[own], value, data.texts[own])


def _changed(data: Searched, chosen: Sequence[System], rows: Sequence[Row]) -> Iterator[tuple[Row, Asked]]:
    """Yield rows of each system under a filter, and without some documents, at the knob it needs; the first ones are exact."""
    chances = np.random.default_rng(0).random(data.tree.num_places)
    for system in chosen:
        value = needed_knob(system.name, rows)
        search = system.filtered(data, chances < ALLOWED)
        yield _row(FILTERED, system, value), _asking(search, data, value)
        search, seconds = system.removed(data, chances < GONE)
        removing = {"seconds to remove": None if seconds is None else round(seconds, 2)}
        yield {**_row(REMOVED, system, value), **removing}, _asking(search, data, value)


def needed_knob(name: str, rows: Sequence[Row]) -> float:
    """Return the knob at which a system's recall of the dense answer is .95 in the least time, else its widest."""
    own = [row for row in rows if (row["scores"], row["system"]) == ("dense", name)]
    enough = [row for row in own if row["recall@10"] >= NEEDED]
    best = min(enough, key=lambda row: row[f"ms at batch {BATCH}"]) if enough else own[-1]
    return float(best["value"])


def _encoder(data: Searched) -> Iterator[tuple[Row, Callable[[slice], Floats]]]:
    """Yield a row for the encoder of the index that is searched, and what encodes; nothing for synthetic embeddings."""
    if data.run:
        encoder = load(data.run, device="cpu").snapshot.encoder
        yield {}, lambda own: encoder.encode(encoder.query_texts(data.texts[own]), "query")


class Timed:
    """A search whose calls are timed, each with the next queries."""

    def __init__(self, search: Callable[[slice], Any], queries: int, batch: int) -> None:
        starts = range(0, max(queries - batch, 0) + 1, batch)
        self._search, self._batches = search, [slice(start, start + min(batch, queries)) for start in starts]
        self.together = min(_TOGETHER, queries) if batch == 1 else 1  # searches that are timed as one call
        self.answers: list[Any] = []  # of the first call with each batch of queries
        self.seconds: list[float] = []  # of the processor, a call

    @property
    def batches(self) -> int:
        """How many batches of queries there are."""
        return len(self._batches)

    def __call__(self) -> None:
        """Search once."""
        first = len(self.seconds) * self.together
        own = [self._batches[(first + n) % self.batches] for n in range(self.together)]
        started = time.process_time()
        found = [self._search(part) for part in own]
        self.seconds.append((time.process_time() - started) / self.together)
        self.answers += found[: self.batches - len(self.answers)]


def _time(rows: list[Row], functions: Sequence[Callable[[slice], Any]], queries: int, rounds: int) -> list[list[Any]]:
    """Write milliseconds a query into the rows; return the answers of each function, batch by batch."""
    for batch in (1, BATCH):
        set_for(batch)
        timed = [Timed(function, queries, batch) for function in functions]
        wanted = rounds if batch == 1 else max(rounds, timed[0].batches)
        wall, _ = alternate(timed, wanted)
        asked = min(batch, queries)
        for row, own, seconds in zip(rows, timed, wall, strict=True):
            row[f"ms at batch {batch}"] = round(1000 * statistics.median(own.seconds[1:]) / asked, 4)
            row[f"clock ms at batch {batch}"] = round(1000 * seconds / asked / own.together, 4)
    return [own.answers for own in timed]


def _rate(rows: list[Row], answers: list[list[Found]], relevant: Sequence[Sequence[int]]) -> None:
    """Write recall of the exact answer, agreement with the index's own, and the vectors read."""
    exact: dict[tuple[str, str], Ints] = {}
    true: dict[str, Ints] = {}
    for row, own in zip(rows, answers, strict=False):
        found, kind = np.concatenate([part.documents for part in own]), row["scores"]
        exact[kind, row["system"]] = found
        row["recall@10"] = shared(found, true.setdefault(kind, found))
        if (agreed := exact.get((kind, row.pop("exact", "")))) is not None:
            row["agree@10"] = shared(found, agreed)
        if own[0].read is not None:
            row["vectors read"] = round(float(np.mean([part.read for part in own])), 1)
        if relevant:
            hits = [bool(set(some) & set(judged)) for some, judged in zip(found.tolist(), relevant, strict=False)]
            row["Hit@10"] = round(float(np.mean(hits)), 4)


def shared(found: Ints, true: Ints) -> float:
    """Return the share of true documents [queries, 10] among those that were found [queries, 10]."""
    return round(float((found[:, :, None] == true[:, None]).any(axis=2).mean()), 4)
