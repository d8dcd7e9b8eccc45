"""Encoded queries: one pass of the encoder serves many searches. Knows nothing of trees."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrastive.encoder import Encoder
from docids.checks import plain, text
from docids.lexical import BM25, Lexical
from docids.progress import progress
from docids.tree import DocidTree
from dsi.search.added import AddedScores

LARGEST_EXTRA = 1e30
"""Bound of `extra_scores`: further ones could overflow float32."""


class QueryBatch(NamedTuple):
    """A batch of encoded queries.

    Attributes:
        rows: [n] their indices in the order given.
        states: [n, length, state_dim] token states.
        mask: [n, length] True at real tokens.
        embeddings: [n, embedding_dim].
        texts: the queries, without the encoder's prompt.
        added: what joins their dense scores.
    """

    rows: Tensor
    states: Tensor
    mask: Tensor
    embeddings: Tensor
    texts: list[str]
    added: AddedScores | None = None

    def select(self, which: Tensor) -> "QueryBatch":
        """Return the queries at the indices `which`."""
        added = None if self.added is None else self.added.select(which)
        texts = [self.texts[n] for n in which.tolist()]
        return QueryBatch(self.rows[which], self.states[which], self.mask[which], self.embeddings[which], texts, added)


WordFactors = Callable[[QueryBatch, BM25], Sequence[NDArray[np.floating]]]
"""A function that gives one factor for each of the `terms` of each query."""


@dataclass(frozen=True)
class EncodedQueries:
    """Encoded queries, to be searched with any options.

    Attributes:
        query_ids: in the order given; "0", "1", … for queries without ids.
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
        """The queries in the order given."""
        found = {
            row: text for batch in self.batches for row, text in zip(batch.rows.tolist(), batch.texts, strict=True)
        }
        return [found[row] for row in range(self.count)]

    @property
    def embeddings(self) -> Tensor:
        """[count, embedding_dim] on the CPU, in the order given."""
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
    texts = encoder.query_texts(queries)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    batches = []
    starts = range(0, len(order), batch_size)
    for start in progress(starts, "queries", unit="batch", enabled=show_progress):
        rows = order[start : start + batch_size]
        encoded = encoder.forward([texts[row] for row in rows], "query")
        batches.append(QueryBatch(torch.tensor(rows), *encoded, [queries[row] for row in rows]))
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
        raise TypeError(f"This call takes a list of queries, got the text {queries!r}; put it into a list.")
    return encode_queries(encoder, queries, show_progress=show_progress)


def ids_and_texts(queries: Iterable[str] | Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return query_ids and texts, checked."""
    if not isinstance(queries, Iterable) or isinstance(queries, str | bytes | Set):
        raise TypeError(f"Queries must be a list of texts, in order, or {{query_id: text}}, got {queries!r}.")
    if isinstance(queries, Mapping):
        query_ids = [text(query_id, "A query_id") for query_id in queries]
        return query_ids, [_query(query, f"Query {query_id!r}") for query_id, query in queries.items()]
    texts = [_query(query, f"Query {row}") for row, query in enumerate(queries)]
    return [str(row) for row in range(len(texts))], texts


def _query(query: object, name: str) -> str:
    if not isinstance(query, str) or not query.strip():
        raise ValueError(f"{name} must be a text that is not empty, got {query!r}.")
    if "\0" in query:
        raise ValueError(f"{name} must be a text without NUL characters, got {query!r}.")
    return text(query, name)


def with_scores(
    encoded: EncodedQueries,
    tree: DocidTree,
    lexical: Lexical | None,
    lexical_weight: float,
    extra_scores: NDArray[np.floating] | None,
    factors: WordFactors | None = None,
) -> Iterator[QueryBatch]:
    """Yield the batches with the scores that join the dense ones: weighted lexical ones, and the caller's own.

    Args:
        encoded: the queries.
        tree: the docids.
        lexical: BM25 or learned sparse vectors of the document table, if the index has them.
        lexical_weight: weight of the lexical scores; 0 leaves them out.
        extra_scores: [queries, rows of the document table].
        factors: of the words of BM25; 1 by default.

    Raises:
        ValueError: extra_scores are no such array or not finite, or lexical_weight is set but the index has no lexical part.
    """
    if lexical_weight and lexical is None:
        raise ValueError(
            f"lexical_weight is {lexical_weight:g}, but this index has no lexical part; "
            "use 0, or train with lexical.enabled = true."
        )
    if extra_scores is not None:
        _check_extra_scores(extra_scores, (encoded.count, tree.num_rows))
    words = lexical if lexical_weight else None
    for batch in encoded.batches:
        given = None if extra_scores is None else extra_scores[batch.rows.numpy()]
        if words is not None or given is not None:
            weights = factors(batch, words) if factors is not None and isinstance(words, BM25) else None
            batch = batch._replace(added=AddedScores(batch.texts, tree, words, lexical_weight, weights, given))
        yield batch


def _check_extra_scores(extra_scores: object, expected: tuple[int, int]) -> None:
    if not isinstance(extra_scores, np.ndarray) or extra_scores.dtype.kind not in "fiu":
        got = (
            f"an array of {extra_scores.dtype}" if isinstance(extra_scores, np.ndarray) else type(extra_scores).__name__
        )
        raise ValueError(f"extra_scores must be a NumPy array of floats [queries, documents] = {expected}, got {got}.")
    if extra_scores.shape != expected:
        raise ValueError(f"extra_scores must be [queries, documents] = {expected}, got {extra_scores.shape}.")
    good = np.abs(extra_scores, dtype=np.float64) <= LARGEST_EXTRA
    if not good.all():
        query, row = np.argwhere(~good)[0].tolist()
        raise ValueError(
            f"extra_scores must be finite, from -1e30 to 1e30, got {extra_scores[query, row]} for query {query} and document "
            f"row {row}; exclude a document with `deny`."
        )
