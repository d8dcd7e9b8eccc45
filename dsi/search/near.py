"""The nearest documents of queries in a large index: those with the best codes in its cells, and the best by their words."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsi.search.added import AddedScores
from dsi.trees.bounds import Nearest
from dsi.trees.cells import NearDocuments
from dsi.trees.dense import DenseScores

_BY_CODES = 2
"""So many times the documents that are wanted are found by their codes; their vectors say which are best."""


@dataclass(frozen=True, eq=False)
class DocumentScores:
    """Scores of any documents for a batch of queries.

    Attributes:
        dense: the tree on a device.
        queries: [batch, dim] what scores documents.
        added: what joins the dense scores.
        temperature: divides them.
    """

    dense: DenseScores
    queries: Tensor
    added: AddedScores | None
    temperature: float

    def __call__(self, positions: Tensor) -> Tensor:
        """[batch, n] the scores of documents [batch, n]."""
        dots = self.dots(positions)
        return (dots if self.added is None else dots + self.added.of(positions)) / self.temperature

    def dots(self, positions: Tensor) -> Tensor:
        """[batch, n] the dot products alone; -inf at padding, which is the number of documents."""
        documents = self.dense.tree.num_documents
        found = self.dense.dot(self.queries, positions.clamp(max=documents - 1) + self.dense.tree.num_inner)
        return found.masked_fill(positions == documents, -torch.inf)


def nearest_documents(
    near: NearDocuments, scores: DocumentScores, count: int, words: int, looked_at: int, allowed: Tensor | None
) -> Nearest:
    """About the best documents of each query, by all scores together.

    Args:
        near: finds documents of the tree by their vectors.
        scores: of documents.
        count: so many by their vectors.
        words: and so many by their words.
        looked_at: about how many documents are looked at for their vectors.
        allowed: [documents] True at those that count; all by default.
    """
    mask, added = None if allowed is None else allowed.numpy(), scores.added
    positions = near(scores.queries, _BY_CODES * count, looked_at, mask)
    dots, order = scores.dots(positions).topk(min(count, positions.shape[1]), dim=1)
    positions = positions.gather(1, order)
    if added is None:
        return Nearest.of_some(positions, dots / scores.temperature)
    best = added.best(words, mask, positions.clamp(max=len(scores.dense.tree.doc_rows) - 1))
    known = torch.cat([dots + best.others, scores.dots(best.positions) + best.scores], dim=1)
    return Nearest.of_some(*_once(torch.cat([positions, best.positions], dim=1), known / scores.temperature))


def _once(positions: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Documents [batch, n], some of them twice, and their scores: ascending, and -inf where one is there already."""
    positions, order = positions.sort(dim=1)
    scores = scores.gather(1, order)
    scores[:, 1:] = scores[:, 1:].masked_fill(positions[:, 1:] == positions[:, :-1], -torch.inf)
    return positions, scores
