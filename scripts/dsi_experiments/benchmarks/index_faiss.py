"""The systems of faiss in the index benchmark, and what a system is: built into a file, loaded, and searched with a knob.

A search takes queries [n, dim] and the value of the knob. Knows nothing of times and measures.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import faiss as library
import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.reading import map_tensors, read_record
from dsi.docids.files.storage import save_tensors, write_json
from dsi.docids.vectors import search_code_parts
from dsi_experiments.benchmarks.index_data import Searched

faiss: Any = library  # its stubs lack some keywords
Floats = NDArray[np.float32]
Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]


class Found(NamedTuple):
    """What a search finds."""

    documents: Ints  # [n, 10] numbered in docid order, best first; -1 where there are fewer
    # [n] how many vectors of nodes and documents were scored for each query; None if the system does not count them
    read: Ints | None = None


Search = Callable[[Floats, float], Found]

K = 10
_REFINED = (10, 100)
"""faiss rescores this many times the answers, half of nprobe between these; ours two hundred documents."""
_WIDER = 4
"""Codes without vectors have this many times the bytes of codes with vectors beside them: a small index in memory."""
LISTS = "lists"
_NEVER = 2**30
_BLOCK = 100_000


class System(ABC):
    """One way to find the nearest documents."""

    name: str
    knob: str  # what is varied
    files: tuple[str, ...]  # of the collection's folder that it searches

    @abstractmethod
    def build(self, data: Searched) -> None:
        """Write the files."""

    @abstractmethod
    def load(self, data: Searched) -> Search:
        """Read the files."""

    @abstractmethod
    def knobs(self, documents: int) -> list[float]:
        """The values of the knob for this number of documents, ascending."""

    @abstractmethod
    def add(self, data: Searched) -> Callable[[], object]:
        """What adds one document to the system as it is in memory; ours searches it once as well."""

    @abstractmethod
    def filtered(self, data: Searched, allowed: Bools) -> Search:
        """A search that finds allowed documents only; `allowed` is True at those."""

    @abstractmethod
    def removed(self, data: Searched, gone: Bools) -> tuple[Search, float | None]:
        """A search without some documents, and the processor's seconds that removing them took.

        None for a system that removes nothing: it hides them by a filter.
        """

    @property
    def built_as(self) -> str:
        """The name of its build, which systems with the same files share."""
        return self.name

    def prepare(self, data: Searched) -> None:
        """Build once, and keep how long it took."""
        once(data, self.built_as, self.build)


class FaissSystem(System):
    """An index of faiss in a file, all of it in memory."""

    file: str  # its name
    removes = False  # whether documents can be removed from it, the others keeping their numbers

    @property
    def files(self) -> tuple[str, ...]:  # type: ignore[override]
        """As in `System`."""
        return (self.file,)

    @abstractmethod
    def make(self, data: Searched) -> Any:
        """The index, with the documents."""

    def parameters(self, knob: float, selector: Any) -> Any:
        """Of a search by faiss, for a knob and a selector of documents, None for all."""
        return faiss.SearchParameters(sel=selector)

    def search(self, index: Any, queries: Floats, knob: float, selector: Any = None) -> Ints:
        """[n, 10] documents, of those that faiss' selector lets through."""
        found: Ints = index.search(queries, K, params=self.parameters(knob, selector))[1]
        return found

    def build(self, data: Searched) -> None:
        """As in `System`."""
        faiss.write_index(self.make(data), str(data.folder / self.file))

    def load(self, data: Searched) -> Search:
        """As in `System`."""
        index = self._read(data)
        return lambda queries, knob: Found(self.search(index, queries, knob))

    def filtered(self, data: Searched, allowed: Bools) -> Search:
        """As in `System`."""
        index, bits = self._read(data), np.packbits(allowed, bitorder="little")
        selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))

        def search(queries: Floats, knob: float, _kept: Any = bits) -> Found:  # faiss keeps no reference to the bits
            return Found(self.search(index, queries, knob, selector))

        return search

    def removed(self, data: Searched, gone: Bools) -> tuple[Search, float | None]:
        """As in `System`."""
        if not self.removes:
            return self.filtered(data, ~gone), None
        index, started = self._read(data), time.process_time()
        index.remove_ids(np.flatnonzero(gone))
        seconds = time.process_time() - started
        return lambda queries, knob: Found(self.search(index, queries, knob)), seconds

    def _read(self, data: Searched) -> Any:
        return faiss.read_index(str(data.folder / self.file))

    def add(self, data: Searched) -> Callable[[], object]:
        """As in `System`."""
        index = self._read(data)
        return lambda: index.add(data.queries[:1])


class Flat(FaissSystem):
    """The exact answer."""

    name, knob, file = "faiss Flat", "", "flat.faiss"

    def make(self, data: Searched) -> Any:
        """As in `FaissSystem`."""
        index = faiss.IndexFlatIP(data.queries.shape[1])
        index.add(_points(data))
        return index

    def knobs(self, documents: int) -> list[float]:
        """None."""
        return [0]


class Lists(FaissSystem):
    """An inverted file; all of them have the same lists."""

    name, knob, file, removes = "faiss IVF-Flat", "nprobe", "ivf-flat.faiss", True

    def prepare(self, data: Searched) -> None:
        """As in `System`."""
        once(data, LISTS, train_lists)
        super().prepare(data)

    def make(self, data: Searched) -> Any:
        """As in `FaissSystem`."""
        index = faiss.IndexIVFFlat(*coarse(data), faiss.METRIC_INNER_PRODUCT)
        return _filled(index, data)

    def knobs(self, documents: int) -> list[float]:
        """1, 2, 4, … up to a quarter of the lists."""
        return [float(2**n) for n in range(20) if 2**n <= max(1, num_lists(documents) // 4)]

    def parameters(self, knob: float, selector: Any) -> Any:
        """As in `FaissSystem`."""
        return faiss.SearchParametersIVF(nprobe=int(knob), sel=selector)


class ScalarCodes(Lists):
    """An inverted file with a byte a dimension."""

    name, file = "faiss IVF-SQ8", "ivf-sq8.faiss"

    def make(self, data: Searched) -> Any:
        """As in `FaissSystem`."""
        kind, metric = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        return _filled(faiss.IndexIVFScalarQuantizer(*coarse(data), kind, metric), data)


class Codes(Lists):
    """An inverted file with a product quantiser's codes of residuals: about as many bytes as ours has in memory, or more."""

    name, file = "faiss IVF-PQ", "ivf-pq.faiss"

    def make(self, data: Searched) -> Any:
        """As in `FaissSystem`."""
        quantizer, dim, lists = coarse(data)
        size = max(n for n in range(1, _WIDER * code_bytes(dim) + 1) if dim % n == 0)
        return _filled(faiss.IndexIVFPQ(quantizer, dim, lists, size, 8, faiss.METRIC_INNER_PRODUCT), data)


class RefinedCodes(Codes):
    """Codes of half a byte a part, as large as ours, which faiss scans fastest; the best are scored by int8, as in ours."""

    name, file, removes = "faiss IVF-PQ fast scan, int8 refined", "ivf-pq-int8.faiss", False

    def make(self, data: Searched) -> Any:
        """As in `FaissSystem`."""
        quantizer, dim, lists = coarse(data)
        plain = faiss.IndexIVFPQ(quantizer, dim, lists, 2 * code_bytes(dim), 4, faiss.METRIC_INNER_PRODUCT)
        base = faiss.IndexIVFPQFastScan(_filled(plain, data))
        exact = faiss.IndexScalarQuantizer(base.d, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        exact.train(_sample(data, 100_000))
        exact.add(_points(data))
        index = faiss.IndexRefine(base, exact)
        index.own_fields = index.own_refine_index = False
        self.parts = base, exact
        return index

    def parameters(self, knob: float, selector: Any) -> Any:
        """As in `FaissSystem`."""
        lists, factor = super().parameters(knob, selector), float(np.clip(knob / 2, *_REFINED))
        return faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=lists)


class Graph(FaissSystem):
    """A navigable graph with 32 links a document."""

    name, knob, file = "faiss HNSW", "efSearch", "hnsw.faiss"

    def make(self, data: Searched) -> Any:
        """As in `FaissSystem`."""
        index = faiss.IndexHNSWFlat(data.queries.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.add(_points(data))
        return index

    def knobs(self, documents: int) -> list[float]:
        """16 to 1,024."""
        return [float(2**n) for n in range(4, 11)]

    def parameters(self, knob: float, selector: Any) -> Any:
        """As in `FaissSystem`."""
        return faiss.SearchParametersHNSW(efSearch=int(knob), sel=selector)


def set_for(batch: int) -> None:
    """Make faiss multiply matrices for several queries, and not for one; by default it can take eight times as long."""
    faiss.cvar.distance_compute_blas_threshold = 1 if batch > 1 else _NEVER


def code_bytes(dim: int) -> int:
    """Bytes of a code in a large index."""
    return search_code_parts(dim) // 2


def num_lists(documents: int) -> int:
    """Of an inverted file."""
    return int(4 * math.sqrt(documents))


def train_lists(data: Searched) -> None:
    """Write the means of the lists, by k-means of 64 documents a list, and the list of each document."""
    count = num_lists(data.tree.num_places)
    means = faiss.Kmeans(
        data.queries.shape[1], count, niter=10, seed=0, max_points_per_centroid=64, min_points_per_centroid=1
    )
    means.train(_sample(data, 64 * count))
    own = [means.index.search(block, 1)[1][:, 0] for _, block in _blocks(data)]
    save_tensors(
        {"means": means.centroids, "list_of": np.concatenate(own).astype(np.int32)},
        data.folder / f"{LISTS}.safetensors",
    )


def coarse(data: Searched) -> tuple[Any, int, int]:
    """The quantizer that chooses lists, the dimension, and how many lists there are."""
    means = np.array(map_tensors(data.folder / f"{LISTS}.safetensors")["means"])
    quantizer = faiss.IndexFlatIP(means.shape[1])
    quantizer.add(means)
    return quantizer, means.shape[1], len(means)


def once(data: Searched, name: str, build: Callable[[Searched], None]) -> None:
    """Build what is not there yet, and keep how long it took in `built.json`."""
    record = data.folder / "built.json"
    built = read_record(record)
    if name not in built:
        started = time.process_time()
        build(data)
        write_json(record, {**built, name: round(time.process_time() - started, 1)})


def _filled(index: Any, data: Searched) -> Any:
    index.train(_sample(data, 65_536))
    lists = map_tensors(data.folder / f"{LISTS}.safetensors")["list_of"].astype(np.int64)
    for start, block in _blocks(data):
        ids = np.arange(start, start + len(block))
        arrays = [faiss.swig_ptr(own) for own in (block, ids, lists[start:])]
        index.add_core(len(block), *arrays)
    return index


def _blocks(data: Searched) -> Iterator[tuple[int, Floats]]:
    for start in range(0, data.tree.num_places, _BLOCK):
        yield start, np.ascontiguousarray(data.tree.embeddings[start : start + _BLOCK])


def _points(data: Searched) -> Floats:
    return np.ascontiguousarray(data.tree.embeddings[:])


def _sample(data: Searched, count: int) -> Floats:
    total = data.tree.num_places
    rows = np.random.default_rng(0).choice(total, min(count, total), replace=False)
    return np.ascontiguousarray(data.tree.embeddings[np.sort(rows)])
