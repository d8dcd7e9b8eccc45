"""Token vectors of an encoder's own states, or of a multi-vector model: the head that maps them, and the codes of a collection.

Knows nothing of docid trees or of search.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dsi.contrastive.config import TokensConfig
from dsi.contrastive.text_encoder import TextEncoder, TokenModel
from dsi.docids.files.progress import Bar
from dsi.docids.token_vectors import TokenCodes, encode_states

logger = logging.getLogger(__name__)

SAMPLE = 500
"""Texts whose states the head is fitted to: some 60,000 tokens."""
_BATCH = 64


@dataclass(frozen=True, eq=False)
class TokenHead:
    """Makes token vectors of token states, or of the vectors of a multi-vector model.

    Attributes:
        matrix: [dim, state_dim], or [dim, the model's].
        bits: of a dimension.
    """

    matrix: NDArray[np.float32]
    bits: int

    @classmethod
    def fit(cls, encoder: TextEncoder, texts: Sequence[str], config: TokensConfig) -> "TokenHead":
        """Return the principal directions of the token states of some documents, rotated at random.

        The rotation changes no score, and makes all dimensions equally important to the quantiser. Vectors of a multi-vector
        model keep all their directions, and get zeros up to a multiple of 8 dimensions.

        Args:
            encoder: of the documents.
            texts: of all documents, made by `document_texts`; a sample is read.
            config: dimensions and bits.
        """
        if encoder.token_model:
            width = encoder.token_model.dim
            return cls(_rotation(-(-width // 8) * 8)[:, :width].astype(np.float32), config.bits)
        rows = np.unique(np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int))
        moments = np.zeros((encoder.state_dim, encoder.state_dim), dtype=np.float64)
        sample = [texts[row] for row in rows.tolist()]
        for _, states, _ in encoder.for_search().token_states(sample, "document"):
            moments += states.T @ states
        dim = min(config.dim, encoder.state_dim // 8 * 8)
        directions = np.linalg.eigh(moments)[1][:, ::-1][:, :dim]  # [state_dim, dim]
        return cls((_rotation(dim) @ directions.T).astype(np.float32), config.bits)

    def encode(
        self, encoder: TextEncoder, texts: Sequence[str], *, progress: bool = False
    ) -> tuple[NDArray[np.float32], TokenCodes]:
        """Return embeddings [n, embedding_dim] and token codes of documents, of one pass."""
        embeddings = np.empty((len(texts), encoder.embedding_dim), dtype=np.float32)
        codes = [encode_states(self.matrix, self.bits, [])]
        order: list[int] = []
        for rows, states, embedded in _batches(encoder, texts, "embeddings and tokens" if progress else ""):
            embeddings[rows] = embedded
            codes.append(encode_states(self.matrix, self.bits, states))
            order += rows
        return embeddings, TokenCodes.join(codes).gather(np.argsort(order))

    def encode_with(self, model: TokenModel, texts: Sequence[str], *, progress: bool = False) -> TokenCodes:
        """Return token codes of documents by a multi-vector model; `texts`: title and text of each, as long as they are."""
        codes = [encode_states(self.matrix, self.bits, [])]
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        with Bar("tokens", unit="text", total=len(order), enabled=progress) as bar:
            for start in range(0, len(order), _BATCH):
                batch = [texts[row].strip() for row in order[start : start + _BATCH]]
                codes.append(encode_states(self.matrix, self.bits, model.vectors(batch, "document")))
                bar.update(len(batch))
        return TokenCodes.join(codes).gather(np.argsort(order))


def tell_empty(codes: TokenCodes) -> None:
    """Warn of texts of which a multi-vector model keeps no token."""
    if empty := int((codes.counts == 0).sum()):
        logger.warning(
            "The multi-vector model keeps no token of %d of %d texts: late interaction gives them 0.", empty, len(codes)
        )


def _rotation(dim: int) -> NDArray[np.float64]:
    """Return a random rotation [dim, dim], always the same."""
    return np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]


def _batches(
    encoder: TextEncoder, texts: Sequence[str], progress: str
) -> Iterator[tuple[list[int], list[NDArray[np.float32]], NDArray[np.float32]]]:
    """Yield rows, token states and embeddings of some documents at a time."""
    encoded = encoder.token_states(texts, "document", progress=progress)
    while batch := list(islice(encoded, _BATCH)):
        rows, states, embedded = zip(*batch, strict=True)
        yield list(rows), list(states), np.stack(embedded)
