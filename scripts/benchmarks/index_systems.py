"""Our systems in the index benchmark, and the list of all."""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch

from docids.lexical import Lexical
from docids.storage import map_tensors, save_tensors
from docids.tree import DocidTree
from docids.updating import add_documents
from docids.vectors import VectorsConfig
from dsi.generator.config import GeneratorConfig, ObjectiveConfig
from dsi.generator.tied import TiedGenerator
from dsi.search.added import AddedScores
from dsi.search.beam import TreeSearcher
from dsi.search.decoder import search_decoder
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.trees.cells import Cells, NearDocuments
from scripts.benchmarks.index_data import Searched
from scripts.benchmarks.index_faiss import (
    Codes,
    Flat,
    Floats,
    Found,
    Graph,
    K,
    Lists,
    RefinedCodes,
    Search,
    System,
    code_bytes,
)
from scripts.benchmarks.index_router import routed, trained_router

_FULL_SCORES = 1 << 26
"""Scores of all documents that are in memory at a time."""


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


class Descent(SmallTree):
    """A generator alone, whose beam goes down the tree of the index and ranks the documents that it reaches.

    It has tied tokens without look-ahead, and is not trained: a trained one asks each level with another vector, at the same
    cost. It looks at no documents but those that its beam reaches.
    """

    name, knob = "ours, a generator alone", "beam"

    def prepare(self, data: Searched) -> None:
        """The index with int8 vectors is built before."""
        SmallTree().prepare(data)
        super().prepare(data)

    def build(self, data: Searched) -> None:
        """Nothing of its own."""

    def load(self, data: Searched) -> Search:
        """As in `System`."""
        return TreeSearch(DocidTree.load(data.folder / self.files[0])).descend

    def knobs(self, documents: int) -> list[float]:
        """10 to 640."""
        return [10.0 * 2**n for n in range(7)]


class RoutedTree(Tree):
    """The same cells, chosen by a trained linear map of the query: a learned router."""

    name, files = "cells by a linear router", ("docids.safetensors", "router.safetensors")

    def build(self, data: Searched) -> None:
        """Train the map; raise ValueError without queries to train it on."""
        if not len(data.train):
            raise ValueError(f'{self.name!r} needs train queries; add qrels/train.tsv, or --leave-out "{self.name}".')
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
        config = GeneratorConfig(docid_tokens="tied", decoder="", num_layers=0, look_ahead=0)
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
        config = SearchConfig(alpha=0.0, beam_width=K, probed=probed)
        return np.concatenate([self._search(queries[own], config, list(texts[own])) for own in parts])

    def descend(self, queries: Floats, beam: float) -> Found:
        """[n, 10] documents that a generator finds alone."""
        config = SearchConfig(fusion="estimate", alpha=0.0, beam_width=int(beam))
        return self._search(queries, config, [""] * len(queries))

    def _search(self, queries: Floats, config: SearchConfig, texts: list[str]) -> Found:
        added = AddedScores(texts, self.searcher.tree, self.lexical, self.weight) if self.lexical else None
        states, mask = torch.zeros(len(queries), 1, 1), torch.ones(len(queries), 1, dtype=torch.bool)
        rows, embeddings = torch.arange(len(queries)), torch.from_numpy(queries)
        batch = QueryBatch(rows, states, mask, embeddings, texts, added)
        request = SearchRequest(K, config)
        return self.searcher.search(self.searcher.score(batch, request), request).positions.numpy()


def systems(left_out: Collection[str] = ()) -> list[System]:
    """The systems, without some of them by name; flat search, the exact answer, always and first.

    Raises:
        ValueError: a name that is none, or that of flat search.
    """
    others = [Tree(), SmallTree(), Descent(), RoutedTree(), Lists(), Codes(), RefinedCodes(), Graph()]
    names = [system.name for system in others]
    for name in left_out:
        if name not in names:
            raise ValueError(f"--leave-out takes {', '.join(map(repr, names))}, got {name!r}.")
    return [Flat(), *(system for system in others if system.name not in left_out)]
