"""The systems that the index benchmark compares: each is built into a file, loaded, and searched with a knob.

A search takes queries [n, dim] and the value of the knob, and returns [n, 10] documents, numbered in docid order. Knows nothing
of times and measures.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import faiss as library
import numpy as np
import torch
from numpy.typing import NDArray

from docids.lexical import Lexical
from docids.storage import map_tensors, read_record, save_tensors, write_json
from docids.tree import DocidTree
from docids.updating import add_documents
from docids.vectors import VectorsConfig, searchable_parts
from dsi.generator.config import GeneratorConfig, ObjectiveConfig
from dsi.generator.tied import TiedGenerator
from dsi.search.added import AddedScores
from dsi.search.beam import TreeSearcher
from dsi.search.decoder import search_decoder
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.trees.cells import Cells, NearDocuments
from scripts.benchmarks.index_data import Searched
from scripts.benchmarks.index_router import routed, trained_router

faiss: Any = library  # its stubs lack some keywords
Floats = NDArray[np.float32]
Found = NDArray[np.int64]
Search = Callable[[Floats, float], Found]

K = 10
_FULL_SCORES = 1 << 26
"""Scores of all documents that are in memory at a time."""
_REFINED = (10, 100)
"""faiss re-scores so many times the answers, half of nprobe between these; our search 1,024 documents."""
LISTS = "lists"
_BLOCK = 100_000


class System(ABC):
    """One way to find the nearest documents.

    Attributes:
        name: in tables.
        knob: what is varied.
        files: of the collection's folder that it searches.
    """

    name: str
    knob: str
    files: tuple[str, ...]

    @abstractmethod
    def build(self, data: Searched) -> None:
        """Write the files."""

    @abstractmethod
    def load(self, data: Searched) -> Search:
        """Read the files."""

    @abstractmethod
    def knobs(self, documents: int) -> list[float]:
        """The values of the knob for so many documents, ascending."""

    @abstractmethod
    def add(self, data: Searched) -> Callable[[], object]:
        """What adds one document to the system as it is in memory; ours searches it once as well."""

    def prepare(self, data: Searched) -> None:
        """Build once, and keep how long it took."""
        once(data, self.name, self.build)


class Tree(System):
    """Our index: the tree's cells, the documents in them by their vectors."""

    name, knob = "ours, float32", "probed"
    files: tuple[str, ...] = ("docids.safetensors",)

    def build(self, data: Searched) -> None:
        """The collection has the tree."""

    def load(self, data: Searched) -> Search:
        """As in `System`."""
        return TreeSearch(DocidTree.load(data.folder / self.files[0]))

    def knobs(self, documents: int) -> list[float]:
        """From a 512th to a quarter of the documents, and all; an eighth is the default of a large index."""
        return [*(documents // 2**n for n in range(9, 1, -1)), math.inf]

    def add(self, data: Searched) -> Callable[[], object]:
        """As in `System`."""
        tree, query = DocidTree.load(data.folder / self.files[0]), data.queries[:1]
        TreeSearch(tree)(query, len(tree.doc_rows) / 8)
        return lambda: TreeSearch(add_documents(tree, query))(query, len(tree.doc_rows) / 8)


class SmallTree(Tree):
    """Our index with codes to find the nearest, and int8 vectors to score them."""

    name, files = "ours, int8 and codes", ("docids-int8.safetensors",)

    def build(self, data: Searched) -> None:
        """Encode the vectors."""
        size = code_bytes(data.queries.shape[1])
        data.tree.stored_as(VectorsConfig("int8", size)).save(data.folder / self.files[0])


class RoutedTree(Tree):
    """The same cells, chosen by a trained linear map of the query: a learned router."""

    name, files = "cells by a linear router", ("docids.safetensors", "router.safetensors")

    def build(self, data: Searched) -> None:
        """Train the map."""
        flat = Flat().load(data)
        save_tensors(trained_router(TreeSearch(data.tree).near.cells, data.train, flat), data.folder / self.files[1])

    def load(self, data: Searched) -> Search:
        """As in `System`."""
        search = TreeSearch(DocidTree.load(data.folder / self.files[0]))
        router = map_tensors(data.folder / self.files[1])
        search.use(routed(search.near.cells, router["map"], router["size_weight"]))
        return search


class TreeSearch:
    """Searches one tree without a decoder.

    Args:
        tree: with vectors of any kind.
        lexical: what joins the dense scores, if anything.
        weight: of it.
    """

    def __init__(self, tree: DocidTree, lexical: Lexical | None = None, weight: float = 0.0) -> None:
        config = GeneratorConfig(docid_tokens="tied", decoder="", num_layers=0)
        generator = TiedGenerator.create(config, tree, tree.embeddings.shape[1], ObjectiveConfig("estimate"))
        self.searcher = TreeSearcher(tree, search_decoder(generator.eval()), torch.device("cpu"))
        self.lexical, self.weight = lexical, weight

    @property
    def near(self) -> NearDocuments:
        """Finds documents near queries."""
        return self.searcher.near

    def use(self, cells: Cells) -> None:
        """Search these cells from now on."""
        self.near.cells = cells

    def __call__(self, queries: Floats, probed: float, texts: Sequence[str] = ()) -> Found:
        """[n, 10] documents."""
        documents = self.searcher.tree.num_documents
        step = max(1, _FULL_SCORES // documents) if probed >= documents else len(queries)
        texts = texts or [""] * len(queries)
        parts = [slice(start, start + step) for start in range(0, len(queries), step)]
        return np.concatenate([self._search(queries[own], probed, list(texts[own])) for own in parts])

    def _search(self, queries: Floats, probed: float, texts: list[str]) -> Found:
        added = AddedScores(texts, self.searcher.tree, self.lexical, self.weight) if self.lexical else None
        states, mask = torch.zeros(len(queries), 1, 1), torch.ones(len(queries), 1, dtype=torch.bool)
        rows, embeddings = torch.arange(len(queries)), torch.from_numpy(queries)
        batch = QueryBatch(rows, states, mask, embeddings, texts, added)
        request = SearchRequest(K, SearchConfig(alpha=0.0, beam_width=K, probed=probed))
        return self.searcher.search(self.searcher.score(batch, request), request).positions.numpy()


class FaissSystem(System):
    """An index of faiss in a file, all of it in memory."""

    file: str

    @property
    def files(self) -> tuple[str, ...]:  # type: ignore[override]
        """As in `System`."""
        return (self.file,)

    @abstractmethod
    def make(self, data: Searched) -> Any:
        """The index, with the documents."""

    def search(self, index: Any, queries: Floats, knob: float) -> Found:
        """[n, 10] documents."""
        found: Found = index.search(queries, K)[1]
        return found

    def build(self, data: Searched) -> None:
        """As in `System`."""
        faiss.write_index(self.make(data), str(data.folder / self.file))

    def load(self, data: Searched) -> Search:
        """As in `System`."""
        index = faiss.read_index(str(data.folder / self.file))
        return lambda queries, knob: self.search(index, queries, knob)

    def add(self, data: Searched) -> Callable[[], object]:
        """As in `System`."""
        index = faiss.read_index(str(data.folder / self.file))
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

    name, knob, file = "faiss IVF-Flat", "nprobe", "ivf-flat.faiss"

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

    def search(self, index: Any, queries: Floats, knob: float) -> Found:
        """As in `FaissSystem`."""
        found: Found = index.search(queries, K, params=faiss.SearchParametersIVF(nprobe=int(knob)))[1]
        return found


class Codes(Lists):
    """An inverted file with a product quantiser's codes of residuals, as many bytes as ours."""

    name, file = "faiss IVF-PQ", "ivf-pq.faiss"

    def make(self, data: Searched) -> Any:
        """As in `FaissSystem`."""
        quantizer, dim, lists = coarse(data)
        return _filled(faiss.IndexIVFPQ(quantizer, dim, lists, code_bytes(dim), 8, faiss.METRIC_INNER_PRODUCT), data)


class RefinedCodes(Codes):
    """As many bytes, half a byte a part, which faiss scans fastest; the best are scored anew by int8 vectors, as in ours."""

    name, file = "faiss IVF-PQ fast scan, int8 refined", "ivf-pq-int8.faiss"

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

    def search(self, index: Any, queries: Floats, knob: float) -> Found:
        """As in `FaissSystem`."""
        lists, factor = faiss.SearchParametersIVF(nprobe=int(knob)), float(np.clip(knob / 2, *_REFINED))
        given = faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=lists)
        found: Found = index.search(queries, K, params=given)[1]
        return found


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

    def search(self, index: Any, queries: Floats, knob: float) -> Found:
        """As in `FaissSystem`."""
        found: Found = index.search(queries, K, params=faiss.SearchParametersHNSW(efSearch=int(knob)))[1]
        return found


def systems(documents: int, hnsw_largest: int) -> list[System]:
    """The systems for so many documents, flat search first."""
    every = [Flat(), Tree(), SmallTree(), RoutedTree(), Lists(), Codes(), RefinedCodes()]
    return [*every, Graph()] if documents <= hnsw_largest else every


def code_bytes(dim: int) -> int:
    """Bytes of codes: those that a large index has by default."""
    return searchable_parts(dim) // 2


def num_lists(documents: int) -> int:
    """Of an inverted file."""
    return int(4 * math.sqrt(documents))


def train_lists(data: Searched) -> None:
    """Write the means of the lists, by k-means of 64 documents a list, and the list of each document."""
    count = num_lists(data.tree.num_documents)
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
    for start in range(0, data.tree.num_documents, _BLOCK):
        yield start, np.ascontiguousarray(data.tree.embeddings[start : start + _BLOCK])


def _points(data: Searched) -> Floats:
    return np.ascontiguousarray(data.tree.embeddings[:])


def _sample(data: Searched, count: int) -> Floats:
    total = data.tree.num_documents
    rows = np.random.default_rng(0).choice(total, min(count, total), replace=False)
    return np.ascontiguousarray(data.tree.embeddings[np.sort(rows)])
