"""Our systems in the index benchmark, and the list of all."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from dsi.docids.tree import DocidTree
from dsi.docids.updating import add_documents, remove_documents
from dsi.docids.vectors import Vectors, VectorsConfig
from dsi.docids.words.bm25 import BM25
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.vector_search import VectorEngine
from dsi_experiments.benchmarks.index_data import Searched
from dsi_experiments.benchmarks.index_faiss import (
    Bools,
    Codes,
    Flat,
    Floats,
    Found,
    Graph,
    K,
    Lists,
    RefinedCodes,
    ScalarCodes,
    Search,
    System,
)
from dsi_experiments.controls import WordsOnly

WORDS_ONLY = "words only"
_NARROWEST, _BEAMS, _SHARE = 5.0, 10, 8


class Exact(System):
    """The index with method "exact": all documents, by the vectors as they are kept."""

    name, knob, method = "exact, float32", "", "exact"
    files: tuple[str, ...] = ("docids.safetensors",)

    def build(self, data: Searched) -> None:
        """The collection has the tree."""

    def load(self, data: Searched) -> Search:
        """As in `System`."""
        return self.search(data)

    def search(self, data: Searched, lexical: BM25 | None = None) -> "TreeSearch":
        """As `load`; with words if there are any."""
        return TreeSearch(DocidTree.load(data.folder / self.files[0]), self.method, lexical, data.lexical_weight)

    def knobs(self, documents: int) -> list[float]:
        """None."""
        return [0]

    def add(self, data: Searched) -> Callable[[], object]:
        """As in `System`."""
        tree, query, beam = DocidTree.load(data.folder / self.files[0]), data.queries[:1], SearchConfig().beam_width
        TreeSearch(tree, self.method)(query, beam)
        return lambda: TreeSearch(add_documents(tree, query), self.method)(query, beam)

    def filtered(self, data: Searched, allowed: Bools) -> Search:
        """As in `System`."""
        search = self.search(data)
        return lambda queries, beam: search(queries, beam, allowed=allowed)

    def removed(self, data: Searched, gone: Bools) -> tuple[Search, float | None]:
        """As in `System`."""
        tree, started = DocidTree.load(data.folder / self.files[0]), time.process_time()
        smaller = remove_documents(tree, tree.doc_rows[gone])
        return TreeSearch(smaller, self.method), time.process_time() - started


class ExactSmall(Exact):
    """The same over int8 vectors."""

    name, files, built_as = "exact, int8", ("docids-int8.safetensors",), "int8 and codes"

    def build(self, data: Searched) -> None:
        """Encode the vectors, and make codes to find them by."""
        codes = Vectors.search_codes(data.tree.embeddings)
        tree = replace(data.tree.stored_as(VectorsConfig("int8")), codes=codes)
        tree.save(data.folder / self.files[0])


class Generate(Exact):
    """The index with method "generate": the documents below the nodes that a walk keeps; a large index finds these by codes."""

    name, knob, method = "generate, float32", "beam", "generate"
    exact: type[Exact] = Exact
    """The exact answer by the same vectors."""

    def knobs(self, documents: int) -> list[float]:
        """5, 10, 20, … up to 2,560, or to an eighth of the documents."""
        beams = [_NARROWEST * 2**n for n in range(_BEAMS)]
        return [beam for beam in beams if beam <= documents / _SHARE]


class GenerateSmall(Generate, ExactSmall):
    """The same with int8 vectors, and codes to find them by at every size."""

    name, exact = "generate, int8 and codes", ExactSmall


class TreeSearch:
    """Searches one tree. `method`: "generate", "exact", or `WORDS_ONLY`, a control."""

    def __init__(
        self, tree: DocidTree, method: str = "generate", lexical: BM25 | None = None, weight: float = 0.0
    ) -> None:
        index = VectorEngine(tree, lexical)
        self._method = WordsOnly(index) if method == WORDS_ONLY else index.methods[method]
        self._weight = weight if lexical else 0.0

    def __call__(self, queries: Floats, beam: float, texts: Sequence[str] = (), allowed: Bools | None = None) -> Found:
        """Return the nearest documents; `beam` takes no part in an exact search."""
        config = SearchConfig(beam_width=max(int(beam), 1), lexical_weight=self._weight)
        states, mask = np.zeros((len(queries), 1, 1), np.float32), np.ones((len(queries), 1), bool)
        batch = QueryBatch(np.arange(len(queries)), states, mask, queries, list(texts) or [""] * len(queries))
        result = self._method.retrieve(batch, SearchRequest(K, config, allowed))
        return Found(result.positions, result.read)


def systems(left_out: Collection[str] = ()) -> list[System]:
    """The systems, without some of them by name; the exact answers of faiss and ours always and first."""
    others = [Generate(), ExactSmall(), GenerateSmall(), Lists(), ScalarCodes(), Codes(), RefinedCodes(), Graph()]
    names = [system.name for system in others]
    for name in left_out:
        if name not in names:
            raise ValueError(f"--leave-out takes {', '.join(map(repr, names))}, got {name!r}.")
    return [Flat(), Exact(), *(system for system in others if system.name not in left_out)]
