"""Dense scores of a tree's nodes for a batch of queries: what the encoder alone says of every cluster and document.

Documents below a node are contiguous, so both summaries of the documents below (their maximum, their log-sum-exp) are
segment reductions, level by level from the leaves up. They look at every document; centroids are only looked at where a search
comes by, so that its cost does not grow with the collection. Knows nothing of decoders.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from docids.tree import DocidTree


class NodeScores(Protocol):
    """Dense scores of any nodes for a batch of queries."""

    @property
    def of_queries(self) -> Tensor:
        """What of them depends on the queries; the rest is the tree's."""

    def of(self, nodes: Tensor) -> Tensor:
        """[batch, …] the scores of nodes [batch, …]."""


@dataclass(frozen=True)
class KnownScores:
    """Scores that are there for all nodes.

    Attributes:
        of_queries: [batch, nodes] the scores.
    """

    of_queries: Tensor

    def of(self, nodes: Tensor) -> Tensor:
        """[batch, …] the scores of nodes [batch, …]."""
        return self.of_queries.gather(1, nodes.flatten(1)).view_as(nodes)


class DenseScores:
    """A tree's embeddings and shape on a device.

    Args:
        tree: the docids.
        device: where scores are computed.
    """

    def __init__(self, tree: DocidTree, device: torch.device) -> None:
        self.tree, self.device = tree, device
        self.first_child = torch.from_numpy(tree.first_child).long().to(device)
        self.num_children = torch.from_numpy(tree.num_children).long().to(device)
        self._centroids = torch.from_numpy(tree.centroids).to(device)
        self._embeddings = torch.from_numpy(tree.embeddings).to(device)
        self._removed = torch.from_numpy(tree.doc_rows < 0).to(device) if tree.num_removed else None

    def document_scores(self, query_embeddings: Tensor) -> Tensor:
        """[batch, documents] dot products in docid order, from query_embeddings [batch, dim]; -inf at removed documents."""
        scores = query_embeddings @ self._embeddings.T
        return scores if self._removed is None else scores.masked_fill(self._removed, -torch.inf)

    def centroid_scores(self, query_embeddings: Tensor, temperature: float) -> "CentroidScores":
        """Dot products with the nodes' centroids over a temperature, computed where they are asked for."""
        return CentroidScores(query_embeddings / temperature, self._centroids, self._embeddings, self._removed)

    def alive(self, allowed: Tensor) -> Tensor:
        """[nodes] True where an allowed document is, or lies below; allowed: [documents] in docid order."""
        before = torch.cat([allowed.new_zeros(1, dtype=torch.long), allowed.long().cumsum(0)])
        start, end = (torch.from_numpy(a).long().to(self.device) for a in (self.tree.doc_start, self.tree.doc_end))
        return torch.cat([before[end] > before[start], allowed])

    def largest_below(self, document_scores: Tensor) -> Tensor:
        """[batch, inner nodes] the largest score of the documents below each node."""
        return self._reduce_below(document_scores, "max")

    def log_sum_below(self, document_scores: Tensor) -> Tensor:
        """[batch, inner nodes] the log-sum-exp of the scores of the documents below each node.

        A softmax over children of these is the share of each child in the softmax over all documents, so the product along a
        path is the document's probability under flat dense search.
        """
        largest = document_scores.amax(dim=1, keepdim=True)
        mass = self._reduce_below((document_scores - largest).exp(), "sum")
        return mass.clamp(min=torch.finfo(mass.dtype).tiny).log() + largest

    def _reduce_below(self, document_values: Tensor, how: str) -> Tensor:
        tree = self.tree
        inner = document_values.new_empty(len(document_values), tree.num_inner)
        for level in reversed(tree.levels):
            nodes = torch.arange(level.start, level.stop, device=self.device)
            first = self.first_child[nodes]
            for source, offset in ((document_values, tree.num_inner), (inner, 0)):
                chosen = (first >= tree.num_inner) == (offset > 0)
                parents = nodes[chosen]
                if len(parents):
                    inner[:, parents] = _segments(source, first[chosen] - offset, self.num_children[parents], how)
        return inner


@dataclass(frozen=True)
class CentroidScores:
    """Dot products with the centroids of nodes, a document's being its embedding.

    Attributes:
        of_queries: [batch, dim] the queries, over the temperature.
        centroids: [inner nodes, dim].
        embeddings: [documents, dim] in docid order.
        removed: [documents] True at documents that score -inf, or None.
    """

    of_queries: Tensor
    centroids: Tensor
    embeddings: Tensor
    removed: Tensor | None

    def of(self, nodes: Tensor) -> Tensor:
        """[batch, …] the scores of nodes [batch, …]."""
        documents = nodes.flatten(1) - len(self.centroids)
        inner = documents < 0
        vectors = self.centroids[nodes.flatten(1).clamp(max=len(self.centroids) - 1)]
        vectors = torch.where(inner[:, :, None], vectors, self.embeddings[documents.clamp(min=0)])
        scores = torch.einsum("bnd,bd->bn", vectors, self.of_queries)
        if self.removed is not None:
            scores = scores.masked_fill(~inner & self.removed[documents.clamp(min=0)], -torch.inf)
        return scores.view_as(nodes)


def _segments(source: Tensor, starts: Tensor, counts: Tensor, how: str) -> Tensor:
    """[batch, segments] `how` over source[:, start : start + count]; segments in order, possibly with gaps between."""
    # segment_reduce wants segments without gaps: name every segment and every gap, and drop the gaps afterwards.
    edges = torch.stack([starts, starts + counts], dim=1).flatten()
    offsets = torch.cat([edges, edges.new_tensor([source.shape[1]])])
    initial = -torch.inf if how == "max" else 0.0
    reduced = torch.segment_reduce(
        source, how, offsets=offsets.expand(len(source), -1).contiguous(), axis=1, initial=initial, unsafe=True
    )
    return reduced[:, 0::2]
