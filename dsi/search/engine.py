"""What searches an index, and what it takes: encoded queries, and methods that score documents for them.

One pass of the encoder serves many searches. There are two engines, by the docid tokens of the index: `dsi.search.generate` for
tied ones, `dsi.search.beam` for those with weights of their own, (level, digit) and word tokens. Knows nothing of how they
score.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsi.contrastive.encoder import Encoder
from dsi.docids.files.checks import plain, shown, text
from dsi.docids.files.progress import progress
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import Lexical
from dsi.generator.base import Generator
from dsi.search.request import SearchConfig, SearchRequest, check_extra_scores
from dsi.search.results import Bools, Floats, Ints, SearchResult, Trace


class QueryBatch(NamedTuple):
    """A batch of encoded queries.

    Attributes:
        rows: [n] their indices among all queries of the call.
        states: [n, length, state_dim] token states.
        mask: [n, length] True at real tokens.
        embeddings: [n, embedding_dim].
        texts: the queries, without the encoder's prompt.
        words: [n, length] True at real tokens that are not special ones; all real tokens by default.
        vectors_by_model: returns [n] the vectors [tokens, dim] of the index's multi-vector model, computed when they are first
            needed; None without such a model.
    """

    rows: Tensor
    states: Tensor
    mask: Tensor
    embeddings: Tensor
    texts: list[str]
    words: Tensor | None = None
    vectors_by_model: Callable[[], Sequence[NDArray[np.float32]]] | None = None

    def select(self, which: Tensor) -> "QueryBatch":
        """Return the queries at the indices `which`."""
        texts = [self.texts[n] for n in which.tolist()]
        words = None if self.words is None else self.words[which]
        tensors = self.rows[which], self.states[which], self.mask[which], self.embeddings[which]
        of_all = self.vectors_by_model
        return QueryBatch(*tensors, texts, words, of_all and (lambda: [of_all()[n] for n in which.tolist()]))

    def word_states(self, row: int) -> NDArray[np.float32]:
        """[words, token_dim] what a query's token vectors are made of, on the CPU.

        The vectors of the multi-vector model, else the states of the tokens that are not special ones.
        """
        if self.vectors_by_model:
            return self.vectors_by_model()[row]
        words = self.mask if self.words is None else self.words
        states: NDArray[np.float32] = self.states[row].float().numpy(force=True)
        return states[words[row].numpy(force=True)]

    @property
    def vectors(self) -> NDArray[np.float32]:
        """[n, embedding_dim] embeddings on the CPU."""
        return self.embeddings.float().numpy(force=True)


@dataclass(frozen=True)
class EncodedQueries:
    """Encoded queries, to be searched with any options.

    Attributes:
        query_ids: in the order of the call; "0", "1", … for queries without ids.
        batches: the queries, grouped by length.
    """

    query_ids: list[str]
    batches: list[QueryBatch]

    @property
    def count(self) -> int:
        """The number of queries."""
        return len(self.query_ids)

    @property
    def texts(self) -> list[str]:
        """The queries in the order of the call."""
        texts = {
            row: text for batch in self.batches for row, text in zip(batch.rows.tolist(), batch.texts, strict=True)
        }
        return [texts[row] for row in range(self.count)]

    def one(self, row: int) -> "EncodedQueries":
        """Return one of the queries, by its row in the order of the call."""
        (batch,) = (batch.select((batch.rows == row).nonzero()[:, 0]) for batch in self.batches if row in batch.rows)
        return EncodedQueries([self.query_ids[row]], [batch._replace(rows=torch.zeros_like(batch.rows))])

    @property
    def embeddings(self) -> Tensor:
        """[count, embedding_dim] on the CPU, in the order of the call."""
        rows = torch.cat([batch.rows for batch in self.batches])
        return torch.cat([batch.embeddings.cpu() for batch in self.batches])[rows.argsort()]


def encode_queries(
    encoder: Encoder, queries: Iterable[str] | Mapping[str, str], *, batch_size: int = 32, show_progress: bool = False
) -> EncodedQueries:
    """Encode queries, in batches of similar length.

    Args:
        encoder: the index's encoder.
        queries: texts, or {query_id: text}.
        batch_size: queries per forward pass.
        show_progress: show a progress bar.

    Raises:
        TypeError: queries are neither a list of texts nor a mapping.
        ValueError: a query is empty, or no text.
    """
    query_ids, queries = ids_and_texts(queries)
    if plain(int, batch_size, "batch_size") < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    texts, model = encoder.query_texts(queries), encoder.token_model
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    batches = []
    starts: Iterable[int] = range(0, len(order), batch_size)
    for start in progress(starts, "queries", unit="batch") if show_progress else starts:
        rows = order[start : start + batch_size]
        encoded = encoder.forward([texts[row] for row in rows], "query")
        texts_of_batch = [queries[row] for row in rows]
        by_model = None if model is None else cache(partial(model.vectors, texts_of_batch, "query"))
        batches.append(QueryBatch(torch.tensor(rows), *encoded[:3], texts_of_batch, encoded.words, by_model))
    return EncodedQueries(query_ids, batches)


def encoded_queries(
    encoder: Encoder, queries: Iterable[str] | Mapping[str, str] | EncodedQueries, *, show_progress: bool = False
) -> EncodedQueries:
    """Encode several queries, unless they are encoded already.

    Raises:
        TypeError: the queries are one text.
    """
    if isinstance(queries, EncodedQueries):
        return queries
    if isinstance(queries, str):
        raise TypeError(f"This call takes a list of queries, got the text {shown(queries)}; put it into a list.")
    return encode_queries(encoder, queries, show_progress=show_progress)


def ids_and_texts(queries: Iterable[str] | Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return query_ids and texts, checked."""
    if not isinstance(queries, Iterable) or isinstance(queries, str | bytes | Set):
        raise TypeError(f"Queries must be a list of texts, in order, or {{query_id: text}}, got {shown(queries)}.")
    if isinstance(queries, Mapping):
        query_ids = [text(query_id, "A query_id") for query_id in queries]
        return query_ids, [_query(query, f"Query {shown(query_id)}") for query_id, query in queries.items()]
    texts = [_query(query, f"Query {row}") for row, query in enumerate(queries)]
    return [str(row) for row in range(len(texts))], texts


def _query(query: object, name: str) -> str:
    if not isinstance(query, str) or not query.strip():
        raise ValueError(f"{name} must be a text that is not empty, got {shown(query)}.")
    if "\0" in query:
        raise ValueError(f"{name} must be a text without NUL characters, got {shown(query)}.")
    return text(query, name)


class Method(ABC):
    """One method of search."""

    @abstractmethod
    def retrieve(self, batch: QueryBatch, request: SearchRequest, trace: Trace | None = None) -> SearchResult:
        """Return the top k documents of each query.

        Args:
            batch: the queries.
            request: the options of the search.
            trace: if not None, receives how the search came about; for one query.
        """


class Followed(NamedTuple):
    """How the paths to some documents are scored.

    Attributes:
        positions: [batch, n] docid positions of their best places.
        nodes: [batch, n, depth] score of the node at each level of the path, last the document's; NaN past the end.
        parts: {name: [batch, n]} what the parts of the document's score contribute.
    """

    positions: Ints
    nodes: Floats
    parts: dict[str, Floats]

    @property
    def scores(self) -> Floats:
        """[batch, n] the documents' scores."""
        return np.asarray(np.sum(list(self.parts.values()), axis=0, dtype=np.float32))


class Engine(ABC):
    """Searches one index at one moment.

    Attributes:
        tree: the docids.
        lexical: BM25 or learned sparse vectors of the documents; None if the index has neither.
        is_tied: whether docid tokens are tied to the tree's vectors.
    """

    tree: DocidTree
    lexical: Lexical | None
    is_tied: ClassVar[bool]

    @classmethod
    @abstractmethod
    def from_generator(
        cls, generator: Generator, tree: DocidTree, lexical: Lexical | None, device: torch.device, dtype: torch.dtype
    ) -> Self:
        """Return an engine that searches with a copy of a generator, laid out for search.

        Args:
            generator: trained for these docids.
            tree: the docids.
            lexical: BM25 or learned sparse vectors of the documents, if the index has them.
            device: of the decoder.
            dtype: of a decoder's weights and arithmetic; all else is float32.
        """

    @abstractmethod
    def with_content(self, tree: DocidTree, lexical: Lexical | None) -> Self:
        """Return an engine with the same generator over updated documents."""

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

    def search(
        self,
        encoded: EncodedQueries,
        request: SearchRequest,
        *,
        method: Method | None = None,
        trace: Trace | None = None,
        show_progress: bool = False,
    ) -> SearchResult:
        """Return the top k documents of each query, rows in the order of the queries.

        Args:
            encoded: the queries.
            request: the options of the search.
            method: in place of the request's, for measurements.
            trace: receives how the search came about; for one query.
            show_progress: show a progress bar.

        Raises:
            ValueError: extra_scores of another shape, or scores that overflow.
        """
        self._check_extra_scores(encoded, request)
        method = method or self.methods[request.config.method]
        batches = progress(encoded.batches, "search", unit="batch") if show_progress else encoded.batches
        results = [method.retrieve(batch, request, trace) for batch in batches]
        whole = SearchResult.empty(encoded.count, results[0].positions.shape[1] if results else 0)
        for batch, result in zip(encoded.batches, results, strict=True):
            whole.put(batch.rows.numpy(), result)
        _check_finite(whole, request.config)
        return whole

    def follow_all(self, encoded: EncodedQueries, request: SearchRequest, rows: Ints) -> Followed:
        """Return `follow` for all queries and documents [queries, n], rows in the order of the queries."""
        self._check_extra_scores(encoded, request)
        parts = [self.follow(batch, request, rows[batch.rows.numpy()]) for batch in encoded.batches]
        order = np.concatenate([batch.rows.numpy() for batch in encoded.batches]).argsort()
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


def _check_finite(result: SearchResult, config: SearchConfig) -> None:
    """Raise ValueError if scores overflow: an order of such scores would mean nothing."""
    if np.isfinite(result.scores[result.positions >= 0]).all() and not np.isnan(result.scores).any():
        return
    raise ValueError(
        f"Scores overflow with lexical_weight {config.lexical_weight:g}, token_weight {config.token_weight:g} and "
        f"ann_temperature {config.ann_temperature:g}; choose values closer to the scale of the scores."
    )


def count_documents(tree: DocidTree, allowed: Bools | None) -> int:
    """Return how many documents may be returned; `allowed`: [places] True at those, None for all."""
    if allowed is None:
        return tree.num_rows
    if tree.most_places == 1:
        return int(np.count_nonzero(allowed))
    return len(np.unique(tree.doc_rows[allowed]))


def check_parts(options: Mapping[str, Any], engine: Engine) -> None:
    """Raise ValueError if a call weights a part of the score that the index lacks; without options it is left out."""
    lacking = {
        "lexical_weight": (engine.lexical, 'no lexical part; use 0, or train with lexical.model = "bm25"'),
        "token_weight": (engine.tree.tokens, "no token vectors; use 0, or train with tokens.bits = 2"),
    }
    for option, (part, remedy) in lacking.items():
        if options.get(option) and part is None:
            raise ValueError(f"{option} is {options[option]:g}, but this index has {remedy}.")
