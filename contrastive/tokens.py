"""Token vectors of an encoder's states: the head that maps them, and the codes of a collection. Knows nothing of search."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from dsi.contrastive.config import TokensConfig
from dsi.contrastive.text_encoder import TextEncoder
from dsi.docids.token_vectors import TokenCodes, encode_states
from dsi.docids.types import Floats

SAMPLE = 500
"""Texts whose states the head is fitted to: some 60,000 tokens."""
_BATCH = 64


@dataclass(frozen=True, eq=False)
class TokenHead:
    """Makes token vectors of token states."""

    matrix: Floats  # [dim, state_dim]
    bits: int  # of a dimension

    @classmethod
    def fit(cls, encoder: TextEncoder, texts: Sequence[str], config: TokensConfig) -> "TokenHead":
        """Return the principal directions of a sample of token states, rotated, so that none is more important."""
        rows = np.unique(np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int))
        moments = np.zeros((encoder.state_dim, encoder.state_dim), dtype=np.float64)
        sample = [texts[row] for row in rows.tolist()]
        for _, states, _ in encoder.for_search().token_states(sample, "document"):
            moments += states.T @ states
        dim = min(config.dim, encoder.state_dim // 8 * 8)
        directions = np.linalg.eigh(moments)[1][:, ::-1][:, :dim]  # [state_dim, dim]
        rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))[0]  # always the same
        return cls((rotation @ directions.T).astype(np.float32), config.bits)

    def encode(
        self, encoder: TextEncoder, texts: Sequence[str], *, progress: bool = False
    ) -> tuple[Floats, TokenCodes]:
        """Return embeddings [n, embedding_dim] and token codes of documents, of one pass."""
        embeddings = np.empty((len(texts), encoder.embedding_dim), dtype=np.float32)
        codes = [encode_states(self.matrix, self.bits, [])]
        order: list[int] = []
        encoded = encoder.token_states(texts, "document", progress="embeddings and tokens" if progress else "")
        while batch := list(islice(encoded, _BATCH)):
            places, states, embedded = zip(*batch, strict=True)
            embeddings[list(places)] = np.stack(embedded)
            codes.append(encode_states(self.matrix, self.bits, states))
            order += places
        return embeddings, TokenCodes.join(codes).gather(np.argsort(order))
