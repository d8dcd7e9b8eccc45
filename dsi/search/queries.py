"""Encoded queries: one pass of the encoder serves many searches. Knows nothing of what searches them."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsi.contrastive.encoder import Encoder
from dsi.docids.files.checks import plain, shown, text
from dsi.docids.files.progress import progress


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
