"""The nearest documents of queries in a large index: those with the best codes in its cells, and the best by their words."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from docids.tree import DocidTree
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
    tree = scores.dense.tree
    if tree.most_places > 1:  # a document has the score of its best place
        positions = _all_places(positions, tree)
        positions, dots = _once(positions, scores.dots(positions), tree.num_documents)
    if added is None:
        return Nearest.of_some(positions, dots / scores.temperature)
    best = added.best(words, mask, positions.clamp(max=tree.num_documents - 1))
    known = torch.cat([dots + best.others, scores.dots(best.positions) + best.scores], dim=1)
    positions = torch.cat([positions, best.positions], dim=1)
    return Nearest.of_some(*_once(positions, known / scores.temperature, tree.num_documents))


def _once(positions: Tensor, scores: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Documents [batch, n] and their scores, with padding for what is there already, whose score is -inf."""
    positions, order = positions.sort(dim=1)
    again = F.pad(positions[:, 1:] == positions[:, :-1], (1, 0))
    return positions.masked_fill(again, padding), scores.gather(1, order).masked_fill(again, -torch.inf)


def _all_places(positions: Tensor, tree: DocidTree) -> Tensor:
    """[batch, n * most_places] all places of the documents at positions [batch, n]; some are there several times."""
    places = torch.from_numpy(tree.places[tree.doc_rows[positions.clamp(max=tree.num_documents - 1)]]).long()
    return places.masked_fill(positions[:, :, None] == tree.num_documents, tree.num_documents).flatten(1)
