"""Dense scores of a tree's nodes for a batch of queries, on a device: the encoder's own scores of clusters and documents.

Documents below a node are contiguous, so the maximum and the log-sum-exp of their scores are segment reductions: over the
documents of every cluster, then level by level upwards. Both read every document. Scores of all nodes are stored node by node,
a batch of queries each, and returned as [batch, nodes] views. Knows nothing of decoders.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsi.docids.tree import DocidTree

_WIDE = 8
"""Reading a vector for one query costs up to this many times its share of a matrix product for a batch of queries."""


class DenseScores:
    """A tree's vectors and shape on a device.

    Args:
        tree: the docids.
        device: where scores are computed.
    """

    def __init__(self, tree: DocidTree, device: torch.device) -> None:
        self.tree, self.device = tree, device
        self.first_child = torch.from_numpy(tree.first_child).long().to(device)
        self.num_children = torch.from_numpy(tree.num_children).long().to(device)
        self._start = torch.from_numpy(tree.doc_start).long().to(device)
        self._end = torch.from_numpy(tree.doc_end).long().to(device)
        self._removed = torch.from_numpy(tree.doc_rows < 0).to(device) if tree.num_removed else None
        self._costs = None if tree.place_costs is None else torch.from_numpy(tree.place_costs).to(device)

    @cached_property
    def centroids(self) -> Tensor:
        """[inner nodes, dim]."""
        return torch.from_numpy(self.tree.centroids[:]).to(self.device)

    @cached_property
    def embeddings(self) -> Tensor:
        """[documents, dim] by docid position."""
        return torch.from_numpy(self.tree.embeddings[:]).to(self.device)

    @cached_property
    def _segments(self) -> "list[_Segments]":
        return [_Segments.from_nodes(self.tree, nodes, self.device) for nodes in _from_the_leaves_up(self.tree)]

    def document_scores(self, query_embeddings: Tensor) -> Tensor:
        """[batch, documents] dense scores in docid order, from query_embeddings [batch, dim]; -inf at removed documents."""
        scores = query_embeddings @ self.embeddings.T
        scores = scores if self._costs is None else scores - self._costs
        return scores if self._removed is None else scores.masked_fill(self._removed, -torch.inf)

    def dot(self, queries: Tensor, nodes: Tensor) -> Tensor:
        """[batch, …] dense scores of nodes [batch, …], centroids or documents, from queries [batch, dim]."""
        flat, inner = nodes.flatten(1), self.tree.num_inner  # flat: [batch, n]
        if flat.shape[1] * min(len(queries), _WIDE) >= inner + self.tree.num_documents:
            every = torch.cat([queries @ self.centroids.T, queries @ self.embeddings.T], dim=1)
            return self._less_costs(every.gather(1, flat), flat).view_as(nodes)
        is_inner = flat < inner
        above = self.centroids[flat.clamp(max=inner - 1)]  # [batch, n, dim]
        vectors = torch.where(is_inner[:, :, None], above, self.embeddings[(flat - inner).clamp(min=0)])
        return self._less_costs(torch.bmm(vectors, queries[:, :, None])[:, :, 0], flat).view_as(nodes)

    def _less_costs(self, products: Tensor, nodes: Tensor) -> Tensor:
        """Return products [batch, n] with nodes less what the pieces of their documents cost."""
        if self._costs is None:
            return products
        costs = self._costs[(nodes - self.tree.num_inner).clamp(min=0)]
        return products - costs.masked_fill(nodes < self.tree.num_inner, 0.0)

    def alive(self, allowed: Tensor) -> Tensor:
        """[nodes] True where an allowed document is, or lies below; allowed: [documents] in docid order."""
        before = torch.cat([allowed.new_zeros(1, dtype=torch.long), allowed.long().cumsum(0)])
        return torch.cat([before[self._end] > before[self._start], allowed])

    def largest(self, document_scores: Tensor) -> Tensor:
        """[batch, nodes] the largest score of the documents below each node; a document's is its own."""
        return self._with_nodes_above(document_scores, "max")

    def log_sum(self, document_scores: Tensor) -> Tensor:
        """[batch, nodes] the log-sum-exp of the scores of the documents below each node; a document's is its own score.

        A softmax over children of these is the share of each child in the softmax over all documents, so the product along a
        path is the document's probability under flat dense search.
        """
        largest = document_scores.amax(dim=1, keepdim=True)
        nodes = self._with_nodes_above((document_scores - largest).exp(), "sum")
        mass, documents = nodes.split([self.tree.num_inner, document_scores.shape[1]], dim=1)
        mass.clamp_(min=torch.finfo(mass.dtype).tiny).log_().add_(largest)
        documents.copy_(document_scores)
        return nodes

    def _with_nodes_above(self, document_values: Tensor, how: str) -> Tensor:
        batch, documents = document_values.shape
        values = document_values.new_empty(self.tree.num_inner + documents, batch)
        values[self.tree.num_inner :] = document_values.T
        for own in self._segments:
            below = values[own.below]
            values[own.nodes] = torch.segment_reduce(below, how, offsets=own.offsets, axis=0, unsafe=True)
        return values.T


@dataclass(frozen=True)
class _Segments:
    """Inner nodes whose children are contiguous.

    Attributes:
        nodes: [n] in the order of their children.
        below: all their children.
        offsets: [n + 1] where the children of each begin in `below`.
    """

    nodes: Tensor
    below: slice
    offsets: Tensor

    @classmethod
    def from_nodes(cls, tree: DocidTree, nodes: NDArray[np.integer], device: torch.device) -> "_Segments":
        start, counts = int(tree.first_child[nodes[0]]), tree.num_children[nodes].astype(np.int64)
        offsets = np.concatenate([[0], counts.cumsum()])
        below = slice(start, start + int(offsets[-1]))
        return cls(torch.from_numpy(nodes).to(device), below, torch.from_numpy(offsets).to(device))


def _from_the_leaves_up(tree: DocidTree) -> Iterator[NDArray[np.integer]]:
    """Inner nodes whose children are documents, in docid order; then, from the lowest level up, those above inner nodes."""
    holds_documents = tree.first_child >= tree.num_inner
    clusters = np.flatnonzero(holds_documents)
    yield clusters[tree.first_child[clusters].argsort()]
    for level in reversed(tree.levels):
        nodes = np.arange(level.start, level.stop)
        if len(nodes := nodes[~holds_documents[level]]):
            yield nodes
