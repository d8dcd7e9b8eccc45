"""What searches an index, and what it takes: encoded queries, and methods that score documents for them.

One pass of the encoder serves many searches. There are two engines, by the docid tokens of the index: `dsi.search.generate` for
tied ones, `dsi.search.beam` for those with weights of their own, (level, digit) and word tokens. Knows nothing of how they
score.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsi.contrastive.encoder import Encoder
from dsi.docids.data.oddities import Oddities
from dsi.docids.data.records import EMPTY_QUERIES, checked_queries, id_of, is_table, items_of, records_of
from dsi.docids.files.checks import plain, shown, text
from dsi.docids.files.progress import progress
from dsi.docids.tree import DocidTree
from dsi.docids.words.bm25 import Lexical
from dsi.generator.base import Generator
from dsi.search.request import SearchConfig, SearchRequest, check_extra_scores
from dsi.search.results import Bools, Floats, Ints, SearchResult, Trace

Queries: TypeAlias = Mapping[str, str] | Iterable[Any]
"""Texts, whose places are their ids; {query_id: text}; a series of texts; records or a table with an id and a text. The answer
of an empty query is empty."""
_NOTHING = "?"
"""What is encoded for an empty query, so that arrays have a row for it; its answer is empty."""
FEATURE_TEMPERATURE = 0.05
"""Of softmaxes over siblings, which features of rerankers read; search has none."""


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
    encoder: Encoder, queries: Queries, *, batch_size: int = 32, show_progress: bool = False
) -> EncodedQueries:
    """Encode queries, in batches of similar length.

    Args:
        encoder: the index's encoder.
        queries: texts, {query_id: text}, or records or a table with an id and a text.
        batch_size: queries per forward pass.
        show_progress: show a progress bar.

    Raises:
        TypeError: queries are neither a list of texts nor a mapping.
        ValueError: a query is no text.
    """
    query_ids, queries = ids_and_texts(queries)
    if plain(int, batch_size, "batch_size") < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    read = [query if query.strip() else _NOTHING for query in queries]
    texts, model = encoder.query_texts(read), encoder.token_model
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    batches = []
    starts: Iterable[int] = range(0, len(order), batch_size)
    for start in progress(starts, "queries", unit="batch") if show_progress else starts:
        rows = order[start : start + batch_size]
        encoded = encoder.forward([texts[row] for row in rows], "query")
        by_model = None if model is None else cache(partial(model.vectors, [read[row] for row in rows], "query"))
        batches.append(
            QueryBatch(torch.tensor(rows), *encoded[:3], [queries[row] for row in rows], encoded.words, by_model)
        )
    return EncodedQueries(query_ids, batches)


def encoded_queries(
    encoder: Encoder, queries: Queries | EncodedQueries, *, show_progress: bool = False
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


def ids_and_texts(queries: Queries) -> tuple[list[str], list[str]]:
    """Return query_ids and texts, checked; a line counts empty ones.

    Raises:
        TypeError: queries are neither a list, a series, records, a table nor a mapping.
        ValueError: an id or a query is no text.
    """
    if isinstance(queries, list | tuple) and not any(isinstance(query, Mapping) for query in queries[:1]):
        return _checked(enumerate(queries))
    if isinstance(queries, Mapping):
        return _checked((id_of(query_id), query) for query_id, query in queries.items())
    if is_table(queries):
        return _checked(checked_queries(records_of(queries, "queries"), "queries", whole=False).items(), warn=False)
    if not isinstance(queries, Iterable) or isinstance(queries, str | bytes | Set):
        raise TypeError(
            "Queries must be a list of texts, in order, {query_id: text}, or records or a table with an id and a text, got "
            f"{shown(queries)}."
        )
    given = list(items_of(queries, "queries"))
    if any(isinstance(query, Mapping) for query in given[:1]):
        return _checked(checked_queries(records_of(given, "queries"), "queries").items(), warn=False)
    return _checked(enumerate(given))


def _checked(queries: Iterable[tuple[Any, Any]], *, warn: bool = True) -> tuple[list[str], list[str]]:
    """Return query_ids, places written out, and texts; `warn` of empty ones."""
    query_ids, texts = list[str](), list[str]()
    for query_id, query in queries:
        name = f"Query {shown(query_id)}"
        if "\0" in text(query, name):
            raise ValueError(f"{name} must be a text without NUL characters, got {shown(query)}.")
        query_ids.append(str(query_id) if type(query_id) is int else text(query_id, "A query_id"))
        texts.append(query)
    empty = [query_id for query_id, query in zip(query_ids, texts, strict=True) if not query.strip()]
    if empty and warn:
        odd = Oddities("queries")
        for query_id in empty:
            odd.count(EMPTY_QUERIES, query_id)
        odd.warn()
    return query_ids, texts


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


class Siblings(NamedTuple):
    """Scores of the nodes on the paths to documents, and of their siblings, at one level.

    Attributes:
        generative: [batch, n, fan_out] the generator's.
        dense: [batch, n, fan_out] the encoder's.
        valid: [batch, n, fan_out] True at siblings that exist.
        digits: [batch, n] which sibling is on the path; arbitrary past the end.
    """

    generative: Floats
    dense: Floats
    valid: Bools
    digits: Ints


class DigitScores(NamedTuple):
    """Log-probabilities of the digits of docids, [batch, n, depth], 0 past the end.

    Attributes:
        generative: by the generator.
        dense: by the encoder.
        entropy: of the generator's choice at that level.
        margin: of the digit over the best other, by the generator.
    """

    generative: Floats
    dense: Floats
    entropy: Floats
    margin: Floats

    @classmethod
    def from_siblings(cls, levels: Sequence[Siblings]) -> "DigitScores":
        """Return those of softmaxes over siblings."""
        columns = [_digit_scores(level) for level in levels]
        return cls(*(np.stack(column, axis=2) for column in zip(*columns, strict=True)))


def _digit_scores(level: Siblings) -> tuple[Floats, Floats, Floats, Floats]:
    """[batch, n] each: log-probabilities by generator and encoder, the generator's entropy and margin, at one level."""
    exists = level.valid.any(axis=2)
    digits = level.digits[:, :, None]
    log_p, dense_log_p = (_log_softmax(scores, level.valid) for scores in (level.generative, level.dense))
    generative, dense = (
        np.where(exists, np.take_along_axis(values, digits, axis=2)[:, :, 0], 0) for values in (log_p, dense_log_p)
    )
    entropy = -(np.where(level.valid, np.exp(log_p), 0) * log_p).sum(axis=2)
    others = np.where(level.valid, log_p, -np.inf)
    np.put_along_axis(others, digits, -np.inf, axis=2)
    best = others.max(axis=2, initial=-np.inf)
    margin = np.where(exists & (best > -np.inf), generative - np.where(best > -np.inf, best, 0), 0)
    return tuple(np.asarray(v, dtype=np.float32) for v in (generative, dense, entropy, margin))  # type: ignore[return-value]


def _log_softmax(scores: Floats, valid: Bools) -> Floats:
    """[batch, n, fan_out] log-softmax over valid siblings, 0 elsewhere."""
    masked = np.where(valid, scores, -np.inf)
    highest = np.where(valid.any(axis=2), masked.max(axis=2, initial=-np.inf), 0)[:, :, None]
    total = np.exp(masked - highest).sum(axis=2, keepdims=True)
    return np.where(valid, masked - highest - np.log(total.clip(1e-30)), 0)


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

    def digit_scores(self, batch: QueryBatch, positions: Ints) -> DigitScores:
        """Return log-probabilities of the digits of docids [batch, n], from softmaxes over siblings."""
        return DigitScores.from_siblings(list(self.siblings(batch, positions)))

    @abstractmethod
    def siblings(self, batch: QueryBatch, positions: Ints) -> Iterator[Siblings]:
        """Yield for each level the scores of the nodes on the paths to docids [batch, n], and of their siblings."""

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
        k = results[0].positions.shape[1] if results else 0
        whole = SearchResult.empty(encoded.count, k)
        for batch, result in zip(encoded.batches, results, strict=True):
            whole.put(batch.rows.numpy(), result)
        empty = np.array([row for row, query in enumerate(encoded.texts) if not query.strip()], dtype=np.int64)
        whole.put(empty, SearchResult.empty(len(empty), k))
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


def path_nodes(tree: DocidTree, positions: Ints) -> Ints:
    """[n, depth] the nodes on the paths to docid positions [n], from the children of the root on; -1 past the document."""
    parents, digits = tree.paths(positions)
    return np.where(digits >= 0, tree.first_child[parents] + digits, -1)


def check_parts(options: Mapping[str, Any], engine: Engine) -> None:
    """Raise ValueError if a call weights a part of the score that the index lacks; without options it is left out."""
    lacking = {
        "lexical_weight": (engine.lexical, 'no lexical part; use 0, or train with lexical.model = "bm25"'),
        "token_weight": (engine.tree.tokens, "no token vectors; use 0, or train with tokens.bits = 2"),
    }
    for option, (part, remedy) in lacking.items():
        if options.get(option) and part is None:
            raise ValueError(f"{option} is {options[option]:g}, but this index has {remedy}.")
