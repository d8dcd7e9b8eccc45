"""Runs of an index and of its baselines over one split of a collection, with weights chosen on the dev queries.

Knows nothing of tables.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dsi.contrastive.blocks import DocumentTexts
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.data.collection import Collection
from dsi.docids.data.identical import most_identical, without_identical
from dsi.docids.files.processes import ALONE, Processes
from dsi.docids.tree import DocidTree
from dsi.docids.types import Run
from dsi.docids.words.analyzer import FOUND
from dsi.docids.words.bm25 import BM25
from dsi.eval.baselines import dense_run, tune_bm25
from dsi.eval.protocol import FEWEST_QUERIES, count_answered
from dsi.measuring.tuning import choose, choose_weights, hybrid_scores
from dsi.measuring.weights import DEPTH, NO_PARTS
from dsi.search.engine import Method
from dsi.search.queries import EncodedQueries
from dsi.search.request import LEXICAL_WEIGHT, SearchConfig, SearchRequest
from dsi.store.retriever import Retriever

_BATCH = 128
"""Queries searched at a time."""


def generator_only(retriever: Retriever) -> dict[str, Any]:
    """Return the settings of `[search]` for the walk alone: no words, tokens, memory, or encoder beside a generator."""
    alone = {"alpha": 1.0, "beta": 0.0} if retriever.snapshot.engine.has_generator else {}
    return {"method": "generate", **NO_PARTS, **alone}


def language_of(retriever: Retriever) -> str:
    """Return the language that an index compares words in; English if its lexical part is not BM25."""
    lexical = retriever.snapshot.lexical
    return lexical.language if isinstance(lexical, BM25) else FOUND


class BM25Runs:
    """BM25 over the documents, tuned on dev.

    Args:
        collection: the documents and queries.
        texts: one per document; title and full text by default.
        tuned: choose k1 and b on dev (not if dev itself is measured), if 20 queries have a relevant document.
        language: of the documents.
    """

    def __init__(
        self, collection: Collection, texts: list[str] | None = None, *, tuned: bool = True, language: str = FOUND
    ) -> None:
        self.collection = collection
        self.bm25 = BM25(collection.documents["doc_id"], texts or collection.full_texts(), language=language)
        if tuned and count_answered(collection.qrels["dev"]) >= FEWEST_QUERIES:
            tune_bm25(self.bm25, collection.query_texts("dev"), collection.qrels["dev"], collection.identical)

    @property
    def options(self) -> dict[str, float]:
        """The settings k1 and b."""
        return {"k1": self.bm25.k1, "b": self.bm25.b}

    def run(self, split: str, k: int = DEPTH) -> Run:
        """Return the top k documents of each query of a split."""
        identical = self.collection.identical
        run = self.bm25.run(self.collection.query_texts(split), k + most_identical(identical))
        return without_identical(run, identical, k)


class DenseRuns:
    """Flat and approximate dense search with an encoder.

    Args:
        collection: the documents and queries.
        encoder: of the queries.
        embeddings: [n, dim] of the documents to search; of the beginnings of their texts, by the encoder, by default.
        doc_ids: of the documents to search; those of the collection by default.
        rows: [n] the document of each embedding, ascending, if some have several; the best one counts.
        costs: [n] what is taken from the score of each; nothing by default.
    """

    def __init__(
        self,
        collection: Collection,
        encoder: TextEncoder,
        embeddings: NDArray[np.float32] | None = None,
        doc_ids: Sequence[str] | None = None,
        rows: NDArray[np.integer] | None = None,
        costs: NDArray[np.float32] | None = None,
    ) -> None:
        self.collection, self.encoder = collection, encoder
        if embeddings is None:
            embeddings = encoder.encode(DocumentTexts(encoder, collection.documents)[:], "document", progress=True)
        self.embeddings, self.doc_ids = embeddings, doc_ids or list(collection.rows)
        self._rows, self._costs = np.arange(len(embeddings)) if rows is None else rows, costs

    @classmethod
    def of_tree(cls, collection: Collection, encoder: TextEncoder, tree: DocidTree, doc_ids: Sequence[str]) -> Self:
        """Return dense search over the documents of a tree, `doc_ids` in the order of its rows."""
        own, costs = tree.by_row, tree.place_costs
        costs = None if costs is None else costs[own]
        return cls(collection, encoder, tree.embeddings[own], doc_ids, tree.doc_rows[own], costs)

    def run(
        self, split: str, encoded: NDArray[np.float32] | None = None, k: int = DEPTH, *, approximate: bool = False
    ) -> Run:
        """Return the top k documents of each query of a split; `encoded`: [queries, dim], if computed already."""
        queries, identical = self.collection.query_texts(split), self.collection.identical
        most = k + most_identical(identical)
        if encoded is None:
            encoded = self.encoder.encode(self.encoder.query_texts(list(queries.values())), "query")
        if len(self._rows) == len(self.doc_ids):
            run = dense_run(list(queries), encoded, self.doc_ids, self.embeddings, most, approximate=approximate)
        elif approximate:
            raise ValueError("Approximate dense search has one embedding a document; set docids.pieces to 1.")
        else:
            run = self._run_of_pieces(list(queries), encoded, most)
        run = {query_id: scores if queries[query_id].strip() else {} for query_id, scores in run.items()}
        return without_identical(run, identical, k)

    def _run_of_pieces(self, query_ids: Sequence[str], encoded: NDArray[np.float32], k: int) -> Run:
        starts = np.flatnonzero(np.diff(self._rows, prepend=-1))
        run: Run = {}
        for start in range(0, len(query_ids), _BATCH):
            block = slice(start, start + _BATCH)
            scores = encoded[block] @ self.embeddings.T
            scores = np.maximum.reduceat(scores if self._costs is None else scores - self._costs, starts, axis=1)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            top = np.take_along_axis(scores, order, axis=1)
            for query_id, rows, values in zip(query_ids[block], order.tolist(), top.tolist(), strict=True):
                run[query_id] = {self.doc_ids[row]: value for row, value in zip(rows, values, strict=True)}
        return run


@dataclass(frozen=True)
class CostedRun:
    """A run of an index, and its cost.

    Attributes:
        run: {query_id: {doc_id: score}}.
        config: the search config that was used.
        read: how many vectors were scored a query.
        compared: how many documents were scored by late interaction.
        milliseconds: a query, after the encoder.
    """

    run: Run
    config: SearchConfig
    read: float
    compared: float
    milliseconds: float


class IndexRuns:
    """An index searched with any settings, and the dense search of its own encoder.

    Args:
        collection: the documents and queries.
        retriever: the index.
        processes: share the searching; each gets the whole run.
    """

    def __init__(self, collection: Collection, retriever: Retriever, processes: Processes = ALONE) -> None:
        self.collection, self.retriever, self.processes = collection, retriever, processes
        doc_ids = list(retriever.snapshot.documents.rows)  # in the index's order
        self.dense = DenseRuns.of_tree(collection, retriever.snapshot.encoder, retriever.snapshot.tree, doc_ids)
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
        encoded = self.encode(split, self.collection.query_texts(split)).embeddings
        return self.dense.run(split, encoded, k)

    def scores(self, split: str, doc_ids: Mapping[str, str], **changes: Any) -> dict[str, float]:
        """Return {query_id: score of its document in `doc_ids`}, whether or not a search finds it."""
        index, encoded = self.retriever.snapshot, self.encode(split, self.collection.query_texts(split))
        rows = index.documents.rows_of([doc_ids[query_id] for query_id in encoded.query_ids], "doc_ids")
        request = SearchRequest(1, dataclasses.replace(index.search_config, **changes))
        followed = index.engine.follow_all(encoded, request, np.array(rows)[:, None])
        return dict(zip(encoded.query_ids, followed.scores[:, 0].tolist(), strict=True))

    def encode(self, split: str, queries: Mapping[str, str]) -> EncodedQueries:
        """Return queries of a split, all or this process's share, encoded once."""
        key = split, len(queries)
        if key not in self._encoded:
            self._encoded[key] = self.retriever.encode_queries(
                queries, batch_size=_BATCH, show_progress=self.processes.is_main
            )
        return self._encoded[key]

    def tune(
        self, *, learned: bool = True, lexical: bool = True, on_dev: bool = True, **changes: Any
    ) -> dict[str, Any]:
        """Return the best settings of `[search]` on dev, and `changes`.

        Without dev queries, the weights are the index's own; with `learned` False, words get the recommended weight if theirs
        is 0. All processes get those of rank 0, in case scores differ in the last digit.

        Args:
            learned: also weight the generator and late interaction; False gives the settings of dense + BM25, for `search` by
                `DenseAndWords`.
            lexical: also weight the lexical part.
            on_dev: False passes over the dev queries, as where they are measured.
            **changes: settings of `[search]` that are not chosen.
        """
        index, qrels = copy(self.retriever), self.collection.qrels["dev"] if on_dev else {}
        changes = {**changes, **({} if lexical else {"lexical_weight": 0.0})}
        if not learned:  # for `DenseAndWords`
            changes |= {"method": "exact", "token_weight": 0.0}
            words = index.search_config.lexical_weight or LEXICAL_WEIGHT
            index.search_config = dataclasses.replace(index.search_config, lexical_weight=words)
        if not qrels:
            own = {"lexical_weight": index.search_config.lexical_weight}
            return changes if learned or not lexical else own | changes
        dev, identical = self.encode("dev", self.collection.query_texts("dev")), self.collection.identical
        if learned:
            config = dataclasses.replace(index.search_config, **changes)
            return self.processes.first(
                {**changes, **choose(index, dev, qrels, config, lexical=lexical, identical=identical).best}
            )
        if not index.snapshot.engine.has_generator:
            start = {"lexical_weight": index.snapshot.configured.lexical_weight or LEXICAL_WEIGHT}
            config = dataclasses.replace(index.search_config, **{**start, **changes})
            weights = choose_weights(index, dev, qrels, config, lexical=lexical, tokens=False, identical=identical)
            return self.processes.first({**changes, **weights})
        scores = hybrid_scores(index, index.snapshot.lexical if lexical else None)
        weight = scores.best_weight(dev.query_ids, dev.embeddings, dev.texts, qrels, identical)
        return self.processes.first({**changes, "lexical_weight": weight})
