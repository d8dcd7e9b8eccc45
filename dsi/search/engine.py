"""What searches an index: methods that return the best documents of encoded queries.

There are three engines: `dsi.search.vector_search`, with a generator `dsi.generator.beam`, over shards `dsi.cluster.router`.
Knows nothing of how they walk.
"""

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.files.progress import progress
from dsi.docids.query_memory import Earlier, QueryMemory
from dsi.docids.tree import DocidTree
from dsi.docids.types import Bools, Floats, Ints
from dsi.docids.words.bm25 import BM25
from dsi.search.queries import EncodedQueries, QueryBatch, not_finite
from dsi.search.request import SearchConfig, SearchRequest, check_extra_scores
from dsi.search.results import SearchResult, Trace

logger = logging.getLogger(__name__)


class Method(ABC):
    """One method of search."""

    @abstractmethod
    def retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None) -> SearchResult:
        """Return the top k documents of each query; `trace` receives how the search came about, for one query."""


class Followed(NamedTuple):
    """How the paths to some documents are scored."""

    positions: Ints  # [batch, n] docid positions of their best places
    # [batch, n, depth] score of the node at each level of the path, last the document's; NaN past the end
    nodes: Floats
    parts: dict[str, Floats]  # {name: [batch, n]} what the parts of the document's score contribute

    @property
    def scores(self) -> Floats:
        """[batch, n] the documents' scores."""
        return np.asarray(np.sum(list(self.parts.values()), axis=0, dtype=np.float32))


class Engine(ABC):
    """Searches one index at one moment: its docids, BM25 if it has it, and what users took for earlier queries."""

    has_generator: ClassVar[bool]  # whether one scores nodes and paths of docids; else vectors do, and score documents

    def __init__(self, tree: DocidTree, lexical: BM25 | None = None, memory: QueryMemory | None = None) -> None:
        self.tree, self.lexical = tree, lexical
        self.memory = QueryMemory() if memory is None else memory

    def with_content(self, tree: DocidTree, lexical: BM25 | None, memory: QueryMemory) -> Self:
        """Return an engine over updated documents."""
        return type(self)(tree, lexical, memory)

    def with_memory(self, memory: QueryMemory) -> Self:
        """Return an engine that has learned, or forgotten; what was made of the documents is kept."""
        engine = copy.copy(self)
        engine.memory = memory
        return engine

    def check(self, call: str, given: Mapping[str, Any], config: SearchConfig) -> None:
        """Raise ValueError if a call sets options, `given`, that the method or the index does not use.

        `call`: name of the public method, for messages; `config`: with these options applied.
        """
        if "passages" in given and call in ("run", "follow", "evidence"):
            raise ValueError(f"{call}() does not use passages, as it shows none. Leave it out.")
        if config.method == "exact" and (unused := [name for name in ("beam_width", "candidates") if name in given]):
            raise ValueError(
                f'{call}() does not use {unused[0]} with method "exact", which scores all documents; "generate" takes it.'
            )

    def reads_generator(self, config: SearchConfig) -> bool:
        """Whether a generator has a part in the scores."""
        return self.has_generator

    @abstractmethod
    def meaning(self, config: SearchConfig) -> str:
        """Return what the scores of nodes and documents are."""

    @property
    @abstractmethod
    def methods(self) -> Mapping[str, Method]:
        """The methods of search."""

    @abstractmethod
    def follow(self, batch: QueryBatch, request: SearchRequest, rows: Ints) -> Followed:
        """Return how the paths to documents [batch, n], rows of the document table, are scored; a filter changes no score."""

    def token_shares(
        self, batch: QueryBatch, request: SearchRequest, positions: Sequence[int]
    ) -> list[tuple[Ints, Floats]] | None:
        """Return what each token of the first query finds at docid positions: tokens there, and their shares of the scores.

        None if late interaction takes no part.
        """
        return None

    def earlier(self, batch: QueryBatch, request: SearchRequest, row: int) -> tuple[list[Earlier], list[str]]:
        """Return what speaks for a document, by its row, for the first query: earlier queries, and terms that these have."""
        return [], []

    def search(
        self, encoded: EncodedQueries, request: SearchRequest, *, method: Method | None = None,
        trace: Trace | None = None, show_progress: bool = False,
    ) -> SearchResult:  # fmt: skip
        """Return the top k documents of each query, rows in the order of the queries.

        A query whose vectors are not finite has an empty answer, which is not exact; a line names it. `method` takes the place
        of the request's, for measurements; `trace` receives how the search came about, for one query.
        """
        self._check_extra_scores(encoded, request)
        encoded, refused = encoded.cleaned()
        _warn_refused(encoded, refused)
        method = method or self.methods[request.config.method]
        batches = progress(encoded.batches, "search", unit="batch") if show_progress else encoded.batches
        results = [method.retrieve(batch, request, trace) for batch in batches]
        k = results[0].positions.shape[1] if results else 0
        merged = SearchResult.empty(encoded.count, k)
        for batch, result in zip(encoded.batches, results, strict=True):
            merged.put(batch.numbers, result)
        unasked = {*encoded.empty}
        empty = np.array(sorted({*unasked, *refused}), dtype=np.int64)
        merged.put(empty, SearchResult.empty(len(empty), k))
        merged.exact[refused] = False
        _check_finite(merged, request.config)
        return merged.down_to(request.min_score)

    def rank(
        self, encoded: EncodedQueries, request: SearchRequest, candidates: Sequence[Sequence[int]]
    ) -> SearchResult:
        """Return the top k of given documents of each query, by their scores, whatever a search would find.

        `candidates`: of each query, rows of the document table; those that the filters of the request exclude are left out.
        """
        encoded, refused = encoded.cleaned()
        _warn_refused(encoded, refused)
        searchable = [[] if row in refused else rows for row, rows in enumerate(candidates)]
        candidates = self._permitted(encoded, request, searchable)
        counts = np.array([len(rows) for rows in candidates], dtype=np.int64)
        most = int(counts.max(initial=0))
        result = SearchResult.empty(encoded.count, min(request.k, most))
        if not most:
            return result
        filled = [[*rows, *[rows[0] if rows else 0] * (most - len(rows))] for rows in candidates]
        followed = self.follow_all(encoded, request, np.array(filled, dtype=np.int64))
        scores = np.where(np.arange(most) < counts[:, None], followed.scores, -np.inf)  # [queries, most]
        order = np.lexsort((followed.positions, -scores))[:, : request.k]  # ties by docid order
        result.scores[:] = np.take_along_axis(scores, order, axis=1)
        result.positions[:] = np.take_along_axis(followed.positions, order, axis=1)
        result.positions[result.scores == -np.inf] = -1
        result.exact[:] = False
        result.read[:] = counts
        _check_finite(result, request.config)
        return result.down_to(request.min_score)

    def _permitted(
        self, encoded: EncodedQueries, request: SearchRequest, candidates: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[int]]:
        """Return the candidates that filters let through; an empty query has none."""
        allowed = permitted(request.allowed, self.tree)
        asked = zip(encoded.texts, candidates, strict=True)
        return [[row for row in rows if allowed[row]] if query.strip() else [] for query, rows in asked]

    def follow_all(self, encoded: EncodedQueries, request: SearchRequest, rows: Ints) -> Followed:
        """Return `follow` for all queries and documents [queries, n], rows in the order of the queries."""
        self._check_extra_scores(encoded, request)
        encoded, _ = encoded.cleaned()
        parts = [self.follow(batch, request, rows[batch.numbers]) for batch in encoded.batches]
        order = np.concatenate([batch.numbers for batch in encoded.batches]).argsort()
        positions, nodes = (np.concatenate([part[field] for part in parts])[order] for field in (0, 1))
        names = parts[0].parts
        return Followed(
            positions, nodes, {name: np.concatenate([part.parts[name] for part in parts])[order] for name in names}
        )

    def follow_result(self, encoded: EncodedQueries, request: SearchRequest, result: SearchResult) -> Followed:
        """Return `follow` for the documents of a result [queries, k]; what it has at padding means nothing."""
        return self.follow_all(encoded, request, self.rows_at(result.positions))

    def rows_at(self, positions: Ints) -> Ints:
        """Return rows of the document table [queries, k] at the docid positions of a result; at padding that of the first."""
        return self.tree.doc_rows[np.maximum(np.where(positions < 0, positions[:, :1], positions), 0)]

    def _check_extra_scores(self, encoded: EncodedQueries, request: SearchRequest) -> None:
        if request.extra_scores is not None:
            check_extra_scores(request.extra_scores, (encoded.count, self.tree.num_rows))


def _warn_refused(encoded: EncodedQueries, rows: Sequence[int]) -> None:
    """Warn of queries whose vectors are not finite."""
    for row in rows:
        logger.warning("%s Its answer is empty.", not_finite(encoded.texts[row]))


def _check_finite(result: SearchResult, config: SearchConfig) -> None:
    """Raise ValueError if scores overflow: an order of such scores would mean nothing."""
    if np.isfinite(result.scores[result.positions >= 0]).all() and not np.isnan(result.scores).any():
        return
    raise ValueError(
        f"Scores overflow with lexical_weight {config.lexical_weight:g}, token_weight {config.token_weight:g}, memory_weight "
        f"{config.memory_weight:g} and ann_temperature {config.ann_temperature:g}; choose values closer to the scale of the "
        "scores."
    )


def count_documents(tree: DocidTree, allowed: Bools | None) -> int:
    """Return how many documents may be returned; `allowed`: [places] True at those, None for all."""
    if allowed is None:
        return tree.num_rows
    if tree.most_places == 1:
        return int(np.count_nonzero(allowed))
    return len(np.unique(tree.doc_rows[allowed]))


def permitted(allowed: Bools | None, tree: DocidTree) -> Bools:
    """[documents] True at those that may be returned; `allowed`: [places] True at those, None for all."""
    rows = np.full(tree.num_rows, allowed is None)
    if allowed is not None:
        rows[tree.doc_rows[allowed]] = True
    return rows


def nodes_above(tree: DocidTree, allowed: Bools) -> Bools:
    """[inner nodes] True at those above an allowed document; `allowed`: [places] True at these."""
    before = np.concatenate([[0], np.cumsum(allowed)])
    return np.asarray(before[tree.doc_end] > before[tree.doc_start])


def restricted(request: SearchRequest, tree: DocidTree, documents: Bools) -> SearchRequest:
    """Return a request for some documents alone, [documents] True, of those that it lets through."""
    allowed = np.asarray(documents[tree.doc_rows] & (tree.doc_rows >= 0))  # [places]
    return replace(request, allowed=allowed if request.allowed is None else request.allowed & allowed)


class IndexGenerator(Protocol):
    """A generator of docids, as an index holds it; `dsi.generator` has them."""

    def engine(
        self, encoder: TextEncoder, tree: DocidTree, lexical: BM25 | None, memory: QueryMemory, dtype: str
    ) -> Engine:
        """Return what searches an index with this generator, which moves to the encoder's device; refuses other docids."""

    def save_pretrained(self, save_directory: str) -> Any:
        """Write it into a folder."""
