"""Dense scores of a tree's nodes for a batch of queries: the encoder's own scores of every cluster and document.

Documents below a node are contiguous, so the maximum and the log-sum-exp of their scores are segment reductions: over the
documents of every cluster, then level by level upwards. Both read every document. Centroids are scored only where a search
visits them, so that its cost does not grow with the collection. Scores of all nodes are stored node by node, a batch of queries
each, and returned as [batch, nodes] views. Knows nothing of decoders.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from docids.tree import DocidTree
from dsi.trees.stored import StoredVectors

_WIDE = 8
"""Reading a vector for one query costs up to this many times its share of a matrix product for a batch of queries."""
_BLOCK = 2**20
"""Numbers gathered at a time on a CPU."""


class NodeScores(Protocol):
    """Dense scores of any nodes for a batch of queries."""

    @property
    def of_queries(self) -> dict[str, Tensor]:
        """The fields that depend on the queries; everything else belongs to the tree."""

    def of(self, nodes: Tensor, level: int) -> Tensor:
        """[batch, …] the scores of nodes [batch, …], children that are chosen at `level`."""


@dataclass(frozen=True)
class KnownScores:
    """Scores that were computed for all nodes.

    Attributes:
        scores: [batch, nodes].
    """

    scores: Tensor

    @property
    def of_queries(self) -> dict[str, Tensor]:
        """The scores."""
        return {"scores": self.scores}

    def of(self, nodes: Tensor, level: int = 0) -> Tensor:
        """[batch, …] the scores of nodes [batch, …]."""
        return self.scores.gather(1, nodes.flatten(1)).view_as(nodes)


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
        self.doc_start = torch.from_numpy(tree.doc_start).long().to(device)
        self.doc_end = torch.from_numpy(tree.doc_end).long().to(device)
        self.centroids = StoredVectors.of(tree.centroids, device)
        self.embeddings = StoredVectors.of(tree.embeddings, device)
        self.fixed_shape = device.type == "cuda"
        """Whether no step may depend on a tensor's value."""
        self._removed = torch.from_numpy(tree.doc_rows < 0).to(device) if tree.num_removed else None

    @cached_property
    def _segments(self) -> "list[_Segments]":
        return [_Segments.of(self.tree, nodes, self.device) for nodes in _from_the_leaves_up(self.tree)]

    def document_scores(self, query_embeddings: Tensor) -> Tensor:
        """[batch, documents] dot products in docid order, from query_embeddings [batch, dim]; -inf at removed documents."""
        scores = self.embeddings.dot(query_embeddings)
        return scores if self._removed is None else scores.masked_fill(self._removed, -torch.inf)

    def vectors(self, nodes: Tensor) -> Tensor:
        """[n, dim] centroids of inner nodes, embeddings of documents, for nodes [n]."""
        inner, above = nodes < self.tree.num_inner, nodes.clamp(max=self.tree.num_inner - 1)
        if self.fixed_shape:
            below = self.embeddings.take((nodes - self.tree.num_inner).clamp(min=0))
            return torch.where(inner[:, None], self.centroids.take(above), below)
        if inner.all():
            return self.centroids.take(nodes)
        found = self.embeddings.take((nodes - self.tree.num_inner).clamp(min=0))
        if inner.any():
            found[inner] = self.centroids.take(nodes[inner])
        return found

    def dot(self, queries: Tensor, nodes: Tensor) -> Tensor:
        """[batch, …] dot products of queries [batch, dim] with the vectors of nodes [batch, …]; -inf at removed documents.

        Reads the vectors of these nodes only, or all where that is less work.
        """
        flat, dim = nodes.flatten(1), queries.shape[1]  # flat: [batch, n]
        batch, n = flat.shape
        if n * min(batch, _WIDE) > self.tree.num_inner + self.tree.num_documents:
            scores = torch.cat([self.centroids.dot(queries), self.embeddings.dot(queries)], dim=1).gather(1, flat)
        else:
            rows = batch if flat.is_cuda else max(1, _BLOCK // max(1, n * dim))  # on a CPU, what its cache holds
            blocks = zip(queries.split(rows), flat.split(rows), strict=True)
            scores = torch.cat([self._dot(*block) for block in blocks])
        if self._removed is not None:
            scores = scores.masked_fill(self.is_removed(flat), -torch.inf)
        return scores.view_as(nodes)

    def is_removed(self, nodes: Tensor) -> Tensor:
        """[…] True at documents that were removed, for nodes […]."""
        if self._removed is None:
            return torch.zeros_like(nodes, dtype=torch.bool)
        return (nodes >= self.tree.num_inner) & self._removed[(nodes - self.tree.num_inner).clamp(min=0)]

    def _dot(self, queries: Tensor, nodes: Tensor) -> Tensor:
        own = self.vectors(nodes.flatten()).view(*nodes.shape, queries.shape[1])
        return torch.bmm(own, queries[:, :, None])[:, :, 0]

    def alive(self, allowed: Tensor) -> Tensor:
        """[nodes] True where an allowed document is, or lies below; allowed: [documents] in docid order."""
        before = torch.cat([allowed.new_zeros(1, dtype=torch.long), allowed.long().cumsum(0)])
        return torch.cat([before[self.doc_end] > before[self.doc_start], allowed])

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
    def of(cls, tree: DocidTree, nodes: NDArray[np.integer], device: torch.device) -> "_Segments":
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


@dataclass(frozen=True)
class CentroidScores:
    """Dot products of queries with the centroids of nodes, a document's being its embedding.

    Attributes:
        queries: [batch, dim], divided by the temperature.
        dense: the tree on a device.
    """

    queries: Tensor
    dense: DenseScores

    @property
    def of_queries(self) -> dict[str, Tensor]:
        """The queries."""
        return {"queries": self.queries}

    def of(self, nodes: Tensor, level: int = 0) -> Tensor:
        """[batch, …] the scores of nodes [batch, …]."""
        return self.dense.dot(self.queries, nodes)
