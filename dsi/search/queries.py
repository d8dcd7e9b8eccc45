"""Queries after the encoder, so that one encoding can be searched under many settings. Knows nothing of trees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from contrastive.encoder import Encoder
from docids.lexical import BM25


class QueryBatch(NamedTuple):
    """Some queries after the encoder.

    Attributes:
        rows: [n] which of the queries they are.
        states: [n, length, state_dim] token states.
        mask: [n, length] True at real tokens.
        embeddings: [n, embedding_dim].
        texts: the queries as they were asked, without the encoder's prompt.
        extra_scores: [n, documents] in docid order, added to the dense scores.
    """

    rows: Tensor
    states: Tensor
    mask: Tensor
    embeddings: Tensor
    texts: list[str]
    extra_scores: Tensor | None = None

    def select(self, which: Tensor) -> "QueryBatch":
        """Those at the indices `which`."""
        extra = None if self.extra_scores is None else self.extra_scores[which]
        texts = [self.texts[n] for n in which.tolist()]
        return QueryBatch(self.rows[which], self.states[which], self.mask[which], self.embeddings[which], texts, extra)


@dataclass(frozen=True)
class EncodedQueries:
    """Queries after the encoder, ready to be searched under any settings."""

    count: int
    batches: list[QueryBatch]

    @property
    def texts(self) -> list[str]:
        """The queries in their order."""
        found = {
            row: text for batch in self.batches for row, text in zip(batch.rows.tolist(), batch.texts, strict=True)
        }
        return [found[row] for row in range(self.count)]

    @property
    def embeddings(self) -> Tensor:
        """[count, embedding_dim] on the CPU, in their order."""
        rows = torch.cat([batch.rows for batch in self.batches])
        return torch.cat([batch.embeddings.cpu() for batch in self.batches])[rows.argsort()]


def encode_queries(
    encoder: Encoder, queries: Sequence[str], *, batch_size: int = 32, progress: bool = False
) -> EncodedQueries:
    """Run the encoder over queries; a batch holds queries of like length.

    Raises:
        ValueError: a query is empty, or not a text.
    """
    for row, query in enumerate(queries):
        if not isinstance(query, str) or not query.strip():
            raise ValueError(f"Query {row} must be a text that is not empty, got {query!r}.")
    texts = encoder.query_texts(queries)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    batches = []
    starts = range(0, len(order), batch_size)
    for start in tqdm(starts, desc="queries", unit="batch", disable=not progress):
        rows = order[start : start + batch_size]
        encoded = encoder.forward([texts[row] for row in rows], "query")
        batches.append(QueryBatch(torch.tensor(rows), *encoded, [queries[row] for row in rows]))
    return EncodedQueries(len(texts), batches)


def with_scores(
    encoded: EncodedQueries,
    doc_rows: NDArray[np.integer],
    lexical: BM25 | None,
    lexical_weight: float,
    extra_scores: NDArray[np.floating] | None,
) -> Iterator[QueryBatch]:
    """The batches with all that joins the dense scores: BM25 times its weight, and the caller's own.

    Args:
        encoded: the queries.
        doc_rows: [documents] row of the document table at each docid position; -1 at free places, whose scores do not matter.
        lexical: BM25 over the document table, if the index has it.
        lexical_weight: of it; with 0 it takes no part.
        extra_scores: [queries, rows of the table].

    Raises:
        ValueError: extra_scores have another shape, or there is no lexical part to weigh.
    """
    if lexical_weight and lexical is None:
        raise ValueError(
            f"lexical_weight is {lexical_weight:g}, but this index has no lexical part; "
            "use 0, or train with lexical.enabled = true."
        )
    expected = (encoded.count, int((doc_rows >= 0).sum()))
    if extra_scores is not None and extra_scores.shape != expected:
        raise ValueError(f"extra_scores must be [queries, documents] = {expected}, got {extra_scores.shape}.")
    for batch in encoded.batches:
        parts = []
        if extra_scores is not None:
            parts.append(np.asarray(extra_scores[batch.rows.numpy()], dtype=np.float32))
        if lexical is not None and lexical_weight:
            parts.append(np.float32(lexical_weight) * lexical.scores(batch.texts))
        if parts:
            in_docid_order = torch.from_numpy(np.sum(parts, axis=0)[:, doc_rows])
            batch = batch._replace(extra_scores=in_docid_order.to(batch.embeddings.device))
        yield batch
