"""The words of queries as the encoder read them: which tokens are a word's, and the mean of their states. Knows no trees."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrastive.encoder import Encoder
from docids.lexical import BM25
from dsi.generator.ranking import DocumentRanking
from dsi.search.queries import QueryBatch


class Words(NamedTuple):
    """The words of a batch of queries that BM25 scores.

    Attributes:
        rarity: [batch, words], 0 at padding. reads: [batch, words, tokens] the share of each token in the mean state of a word;
            zero for words that the encoder has not read because the query is cut before them, and at padding.
    """

    rarity: Tensor
    reads: Tensor

    @property
    def read(self) -> Tensor:
        """[batch, words] True at words that the encoder has read."""
        return self.reads.sum(dim=2) > 0

    def states(self, token_states: Tensor) -> Tensor:
        """Return the mean states [batch, words, state_dim] of all words, from [batch, tokens, state_dim]."""
        return self.reads.to(token_states.dtype) @ token_states


def words_of(texts: Sequence[str], lexical: BM25, encoder: Encoder, length: int) -> Words:
    """Return the words of queries.

    Args:
        texts: the queries, not cut.
        lexical: says what a word is.
        encoder: says what a token is.
        length: of the batch of token states.
    """
    terms = [lexical.terms(text) for text in texts]
    most = max(map(len, terms), default=0)
    rarity = np.zeros((len(texts), most), dtype=np.float32)
    reads = np.zeros((len(texts), most, length), dtype=np.float32)
    spans = encoder.token_spans(encoder.query_texts(texts), "query")
    for row, (own, tokens) in enumerate(zip(terms, spans, strict=True)):
        for column, term in enumerate(own):
            rarity[row, column] = term.rarity
            inside = _overlap(tokens[:length], term.start, term.end)
            reads[row, column, : len(inside)] = inside / max(inside.sum(), 1)
    return Words(torch.from_numpy(rarity), torch.from_numpy(reads))


def _overlap(spans: NDArray[np.integer], start: int, end: int) -> NDArray[np.bool_]:
    """[tokens] True at tokens that share a character with a span of characters."""
    return (spans[:, 0] < end) & (spans[:, 1] > start) & (spans[:, 1] > spans[:, 0])


@torch.no_grad()
def word_factors(
    batch: QueryBatch, lexical: BM25, encoder: Encoder, ranking: DocumentRanking, alpha: float
) -> list[NDArray[np.floating]]:
    """Return for each query the factors of its words: 1 - alpha + alpha times the learned ones; 1 for words not read."""
    words = words_of(batch.texts, lexical, encoder, batch.states.shape[1])
    on_device = Words(*(each.to(batch.states.device) for each in words))
    learned = ranking.factors(on_device.states(batch.states.float()), on_device.rarity)
    factors = torch.where(on_device.read, 1 + alpha * (learned - 1), 1.0).numpy(force=True)  # [batch, words]
    counts = (words.rarity > 0).sum(dim=1).tolist()  # no word of a query has rarity 0
    return [own[:count] for own, count in zip(factors, counts, strict=True)]
