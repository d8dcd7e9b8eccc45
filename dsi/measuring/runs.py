"""Runs of an index and of its baselines over one split of a collection, with weights chosen on the dev queries.

Knows nothing of tables.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsi.docids.data.collection import Collection
from dsi.docids.data.identical import most_identical, without_identical
from dsi.docids.files.processes import ALONE, Processes
from dsi.docids.tree import DocidTree, document_scores
from dsi.docids.types import Run
from dsi.docids.words.analyzer import FOUND
from dsi.docids.words.bm25 import BM25
from dsi.eval.baselines import tune_bm25
from dsi.eval.protocol import FEWEST_QUERIES, count_answered
from dsi.measuring.tuning import DEPTH, NO_PARTS, choose_weights
from dsi.search.engine import Method
from dsi.search.queries import EncodedQueries
from dsi.search.request import LEXICAL_WEIGHT, SearchConfig, SearchRequest
from dsi.search.top import best
from dsi.search.vector_search import VectorEngine
from dsi.store.retriever import Retriever

_BATCH = 128
"""Queries searched at a time."""
_SCORES = 2**26
"""Dense scores in memory at a time: 256 MB."""


def generator_only(retriever: Retriever) -> dict[str, Any]:
    """Return the settings of `[search]` for the walk alone: no words, tokens, memory, or encoder beside a generator."""
    alone = {"alpha": 1.0, "beta": 0.0} if retriever.snapshot.engine.has_generator else {}
    return {"method": "generate", **NO_PARTS, **alone}


def language_of(retriever: Retriever) -> str:
    """Return the language that an index compares words in; without BM25 "auto"."""
    lexical = retriever.snapshot.lexical
    return lexical.language if lexical else FOUND


class BM25Runs:
    """BM25 over the documents, by default of title and full text.

    `tuned`: choose k1 and b on dev (not if dev itself is measured), if 20 queries have a relevant document.
    """

    def __init__(
        self, collection: Collection, texts: list[str] | None = None, *, tuned: bool = True, language: str = FOUND
    ) -> None:
        self.collection = collection
        self.bm25 = BM25(collection.documents["doc_id"], texts or collection.full_texts(), language=language)
        self.is_tuned = tuned and count_answered(collection.qrels["dev"]) >= FEWEST_QUERIES
        if self.is_tuned:
            tune_bm25(self.bm25, collection.query_texts("dev"), collection.qrels["dev"], collection.identical)

    @property
    def options(self) -> dict[str, float]:
        """The settings k1 and b, and whether they were tuned."""
        return {"k1": self.bm25.k1, "b": self.bm25.b, "tuned": self.is_tuned}

    def run(self, split: str, k: int = DEPTH) -> Run:
        """Return the top k documents of each query of a split."""
        identical = self.collection.identical
        run = self.bm25.run(self.collection.query_texts(split), k + most_identical(identical))
        return without_identical(run, identical, k)


def dense_run(
    query_ids: Sequence[str], encoded: NDArray[np.float32], tree: DocidTree, doc_ids: Sequence[str], k: int
) -> Run:
    """Return the top k documents of each query [queries, dim] by flat dense search; the best place of a document counts."""
    run: Run = {}
    step = max(1, _SCORES // len(doc_ids))
    for start in range(0, len(query_ids), step):
        block = slice(start, start + step)
        for query_id, scores in zip(query_ids[block], document_scores(encoded[block], tree), strict=True):
            run[query_id] = {doc_ids[row]: float(scores[row]) for row in best(scores, k).tolist()}
    return run


class CostedRun(NamedTuple):
    """A run of an index, and its cost a query."""

    run: Run
    config: SearchConfig  # that was used
    read: float  # how many vectors were scored
    compared: float  # how many documents were scored by late interaction
    milliseconds: float  # after the encoder


class IndexRuns:
    """An index searched with any settings, and the dense search of its encoder.

    `processes` share the searching; each gets the whole run.
    """

    def __init__(self, collection: Collection, retriever: Retriever, processes: Processes = ALONE) -> None:
        self.collection, self.retriever, self.processes = collection, retriever, processes
        index = retriever.snapshot
        self.doc_ids = list(index.documents.rows)  # in the index's order
        self._encoded: dict[tuple[str, int], EncodedQueries] = {}

    def run(self, split: str, k: int = DEPTH, control: type[Method] | None = None, **changes: Any) -> Run:
        """Return the documents of `search`."""
        return self.search(split, k, control, **changes).run

    def search(self, split: str, k: int = DEPTH, control: type[Method] | None = None, **changes: Any) -> CostedRun:
        """Return the top k documents of each query of a split, and what finding them cost."""
        index = self.retriever.snapshot
        identical = self.collection.identical
        request = SearchRequest(k + most_identical(identical), dataclasses.replace(index.search_config, **changes))
        method = control(index.engine) if control else None  # type: ignore[call-arg]
        counts: list[tuple[int, int]] = []
        started = time.perf_counter()

        def search(queries: dict[str, str]) -> Run:
            nonlocal counts, started
            encoded = self.encode(split, queries)
            started = time.perf_counter()
            result = index.engine.search(encoded, request, method=method)
            counts = list(zip(result.read.tolist(), result.compared.tolist(), strict=True))
            return without_identical(index.as_run(encoded.query_ids, result), identical, k)

        run = self.processes.merge(self.collection.query_texts(split), search)
        milliseconds = 1000 * (time.perf_counter() - started) / max(len(run), 1)
        of_all = [count for part in self.processes.gather(counts) for count in part]
        read, compared = np.mean(of_all, axis=0).tolist() if of_all else (0.0, 0.0)
        return CostedRun(run, request.config, read, compared, milliseconds)

    def run_dense(self, split: str, k: int = DEPTH) -> Run:
        """Return the top k documents of each query of a split by flat dense search."""
        queries, identical = self.collection.query_texts(split), self.collection.identical
        encoded, tree = self.encode(split, queries).embeddings, self.retriever.snapshot.tree
        run = dense_run(list(queries), encoded, tree, self.doc_ids, k + most_identical(identical))
        run = {query_id: scores if queries[query_id].strip() else {} for query_id, scores in run.items()}
        return without_identical(run, identical, k)

    def encode(self, split: str, queries: Mapping[str, str]) -> EncodedQueries:
        """Return queries of a split, all or this process's share, encoded once."""
        key = split, len(queries)
        if key not in self._encoded:
            self._encoded[key] = self.retriever.encode_queries(
                queries, batch_size=_BATCH, show_progress=self.processes.is_main
            )
        return self._encoded[key]

    def tune_hybrid(self, *, on_dev: bool = True) -> dict[str, Any]:
        """Return the settings of dense + BM25, for `search` by `DenseAndWords`, with the weight of words that is best on dev.

        Without dev queries, or where these are measured, it is the weight of the index, or what we recommend if that is 0.
        """
        index, qrels = self.retriever.snapshot, self.collection.qrels["dev"] if on_dev else {}
        changes: dict[str, Any] = {"method": "exact", "token_weight": 0.0}
        if not qrels:
            return {"lexical_weight": index.search_config.lexical_weight or LEXICAL_WEIGHT, **changes}
        if index.engine.has_generator:  # dense + BM25 has nothing of it
            index = dataclasses.replace(index, engine=VectorEngine(index.tree, index.lexical, index.memory))
        start = index.configured.lexical_weight or LEXICAL_WEIGHT
        config = dataclasses.replace(index.search_config, lexical_weight=start, **changes)
        dev = self.encode("dev", self.collection.query_texts("dev"))
        weights = choose_weights(index, dev, qrels, config, tokens=False, identical=self.collection.identical)
        return self.processes.first({**changes, **weights})
