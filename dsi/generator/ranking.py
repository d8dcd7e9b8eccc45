"""What a generator with tied tokens adds to the scores of documents: a linear map of the query, and a factor for each word.

A document d scores z.e_d + w sum over the query's words t of BM25_t(d). The learned score is

    (z + M z).e_d + w sum_t exp(u.[h_t; rarity_t / 5] + b) BM25_t(d),

M one map beside BM25 and another for dense scores alone (w = 0), h_t the mean of the encoder's states of the word's tokens;
search interpolates between the two. With M, u and b zero, as at first, they are equal. Both are sums over all documents alike,
so they bound and certify like dense scores. Knows no trees.
"""

import torch
from torch import Tensor, nn

_RARITY_SCALE = 5.0


class DocumentRanking(nn.Module):
    """The maps M, u and b.

    Args:
        embedding_dim: of queries and documents.
        state_dim: of the encoder's token states.
    """

    def __init__(self, embedding_dim: int, state_dim: int) -> None:
        super().__init__()
        self.maps = nn.Parameter(
            torch.zeros(2, embedding_dim, embedding_dim)
        )  # for dense scores alone, and beside BM25
        self.word_weights = nn.Parameter(torch.zeros(state_dim + 1))
        self.word_bias = nn.Parameter(torch.zeros(()))

    def queries(self, embeddings: Tensor, *, lexical: bool, mapped: Tensor | None = None) -> Tensor:
        """Return the query vectors [batch, dim] that score documents.

        Args:
            embeddings: [batch, dim].
            lexical: whether BM25 is added to the scores.
            mapped: [batch, dim] what M is applied to, in training; the embeddings by default.
        """
        return embeddings + (embeddings if mapped is None else mapped) @ self.maps[int(lexical)].T

    def factors(self, states: Tensor, rarity: Tensor) -> Tensor:
        """Return the factors of words […], from their states […, state_dim] and rarities […]; in float32."""
        features = torch.cat([states.float(), rarity[..., None] / _RARITY_SCALE], dim=-1)
        return (features @ self.word_weights + self.word_bias).exp()
