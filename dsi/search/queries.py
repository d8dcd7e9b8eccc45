"""Encoded queries: one pass of the encoder serves many searches. Knows nothing of trees."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrastive.encoder import Encoder
from docids.files.checks import plain, text
from docids.files.progress import progress


class QueryBatch(NamedTuple):
    """A batch of encoded queries.

    Attributes:
        rows: [n] their indices in the order given.
        states: [n, length, state_dim] token states.
        mask: [n, length] True at real tokens.
        embeddings: [n, embedding_dim].
        texts: the queries, without the encoder's prompt.
        words: [n, length] True at real tokens that are not special ones; all real tokens by default.
    """

    rows: Tensor
    states: Tensor
    mask: Tensor
    embeddings: Tensor
    texts: list[str]
    words: Tensor | None = None

    def select(self, which: Tensor) -> "QueryBatch":
        """Return the queries at the indices `which`."""
        texts = [self.texts[n] for n in which.tolist()]
        words = None if self.words is None else self.words[which]
        return QueryBatch(self.rows[which], self.states[which], self.mask[which], self.embeddings[which], texts, words)

    def word_states(self, row: int) -> NDArray[np.float32]:
        """[words, state_dim] states of a query's tokens that are not special ones, on the CPU."""
        words = self.mask if self.words is None else self.words
        return self.states[row][words[row]].float().numpy(force=True)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """[n, embedding_dim] embeddings on the CPU."""
        return self.embeddings.float().numpy(force=True)


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
        texts_of = [queries[row] for row in rows]
        batches.append(QueryBatch(torch.tensor(rows), *encoded[:3], texts_of, encoded.words))
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
