"""Token vectors of an encoder's own states: the head that makes them small, and the codes of a collection.

Knows nothing of docid trees or of search.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from dsi.contrastive.encoder import Encoder
from dsi.docids.files.declarations import Remedy, settings
from dsi.docids.token_vectors import BITS, TokenCodes, encode_states

SAMPLE = 500
"""Texts whose states the head is fitted to: some 60,000 tokens."""
_BATCH = 64


@settings("tokens")
class TokensConfig:
    """Token vectors for late interaction (section `[tokens]`)."""

    dim: Annotated[int, Field(ge=8, le=4096), Remedy("use a multiple of 8")] = 128
    """Dimensions of a token vector, a multiple of 8; at most those of the encoder's states."""
    bits: int = 2
    """Bits of a dimension: 2, 4 or 8, so that a token takes dim * bits / 8 bytes; 0 for an index without token vectors. Only
    tied docid tokens use them."""

    def __post_init__(self) -> None:
        if self.dim % 8:
            raise ValueError(f"tokens.dim must be a multiple of 8, got {self.dim}.")
        if self.bits not in (0, *BITS):
            raise ValueError(f"tokens.bits must be 0 (none) or one of {', '.join(map(str, BITS))}, got {self.bits}.")


@dataclass(frozen=True, eq=False)
class TokenHead:
    """Makes token vectors of token states.

    Attributes:
        matrix: [dim, state_dim].
        bits: of a dimension.
    """

    matrix: NDArray[np.float32]
    bits: int

    @classmethod
    def fit(cls, encoder: Encoder, texts: Sequence[str], config: TokensConfig) -> "TokenHead":
        """Return the principal directions of the token states of some documents, rotated at random.

        The rotation changes no score, and makes all dimensions equally important to the quantiser.

        Args:
            encoder: of the documents.
            texts: of all documents, made by `document_texts`; a sample is read.
            config: dimensions and bits.
        """
        rows = np.unique(np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int))
        moments = np.zeros((encoder.state_dim, encoder.state_dim), dtype=np.float64)
        for _, states, _ in encoder.token_states([texts[row] for row in rows.tolist()], "document"):
            own = states.float().numpy(force=True)
            moments += own.T @ own
        dim = min(config.dim, encoder.state_dim // 8 * 8)
        directions = np.linalg.eigh(moments)[1][:, ::-1][:, :dim]  # [state_dim, dim]
        rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]
        return cls((rotation @ directions.T).astype(np.float32), config.bits)

    def encode(
        self, encoder: Encoder, texts: Sequence[str], *, progress: bool = False
    ) -> tuple[NDArray[np.float32], TokenCodes]:
        """Return embeddings [n, embedding_dim] and token codes of documents, of one pass.

        Args:
            encoder: of the documents.
            texts: made by `document_texts`.
            progress: show a progress bar.
        """
        embeddings = np.empty((len(texts), encoder.embedding_dim), dtype=np.float32)
        codes = [encode_states(self.matrix, self.bits, [])]
        order: list[int] = []
        for rows, states, embedded in _batches(encoder, texts, "embeddings and tokens" if progress else ""):
            embeddings[rows] = embedded
            codes.append(encode_states(self.matrix, self.bits, states))
            order += rows
        return embeddings, TokenCodes.join(codes).gather(np.argsort(order))


def _batches(
    encoder: Encoder, texts: Sequence[str], progress: str
) -> Iterator[tuple[list[int], list[NDArray[np.float32]], NDArray[np.float32]]]:
    """Yield rows, token states and embeddings of some documents at a time."""
    encoded = encoder.token_states(texts, "document", batch_size=_BATCH, progress=progress)
    while batch := list(islice(encoded, _BATCH)):
        rows, states, embedded = zip(*batch, strict=True)
        yield list(rows), [own.float().numpy(force=True) for own in states], torch.stack(embedded).numpy(force=True)
