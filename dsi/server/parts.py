"""What generator, encoder and BM25 contribute to the scores of nodes. Knows nothing of HTTP."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dsi.search.queries import EncodedQueries
from dsi.snapshot import IndexSnapshot


def score_parts(
    index: IndexSnapshot, encoded: EncodedQueries, options: Mapping[str, Any], doc_ids: Sequence[Sequence[str]]
) -> Tensor:
    """Return the parts of the scores of documents and of the nodes above them.

    A generator with tied tokens changes the dense and lexical scores in place of adding to them; its part is what the score
    gains by alpha. BM25's part is what it gains by `lexical_weight`, the encoder's is the rest.

    Args:
        index: of the search.
        encoded: the queries.
        options: of the search.
        doc_ids: documents of each query; lists may be of different lengths.

    Returns:
        [queries, documents, depth, 3] generator, encoder, BM25, which sum to the score; documents past the end of a list are
        arbitrary.
    """
    longest = max(map(len, doc_ids), default=0)
    if not longest:
        return torch.zeros(len(doc_ids), 0, index.tree.depth, 3)
    known = next(itertools.chain.from_iterable(doc_ids))
    padded = [[*own, *[known] * (longest - len(own))] for own in doc_ids]

    def follow(**changes: float) -> tuple[Tensor, Tensor]:
        request = index.request("follow", 1, {**options, **changes})
        return index.follow(encoded, request, padded)

    config = index.request("follow", 1, options).config
    changes = index.searcher.estimating and config.alpha > 0
    generative, dense = follow()
    own = {"alpha": 0.0} if changes else {}
    unchanged = follow(**own)[1] if changes else dense
    encoder = follow(**own, lexical_weight=0.0)[1] if config.lexical_weight else unchanged
    return torch.stack([generative + dense - unchanged, encoder, unchanged - encoder], dim=3)
