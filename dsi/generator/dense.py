"""Dense scores of a tree's nodes for a batch of queries, on a device: the encoder's scores of clusters and documents.

Knows nothing of decoders.
"""

from functools import cached_property

import torch
from torch import Tensor

from dsi.docids.tree import DocidTree

_WIDE = 8
"""Reading a vector for one query costs up to this many times its share of a matrix product for a batch of queries."""


class DenseScores:
    """A tree's vectors and shape on a device."""

    def __init__(self, tree: DocidTree, device: torch.device) -> None:
        self.tree, self.device = tree, device
        self.first_child = torch.from_numpy(tree.first_child).long().to(device)
        self.num_children = torch.from_numpy(tree.num_children).long().to(device)

    @cached_property
    def centroids(self) -> Tensor:
        """[inner nodes, dim]."""
        return torch.from_numpy(self.tree.centroids[:]).to(self.device)

    @cached_property
    def embeddings(self) -> Tensor:
        """[documents, dim] by docid position."""
        return torch.from_numpy(self.tree.embeddings[:]).to(self.device)

    def dot(self, queries: Tensor, nodes: Tensor) -> Tensor:
        """[batch, …] dot products of queries [batch, dim] with centroids, or embeddings of documents, of nodes [batch, …]."""
        flat, inner = nodes.flatten(1), self.tree.num_inner  # flat: [batch, n]
        if flat.shape[1] * min(len(queries), _WIDE) >= inner + self.tree.num_places:
            products = torch.cat([queries @ self.centroids.T, queries @ self.embeddings.T], dim=1)
            return products.gather(1, flat).view_as(nodes)
        is_inner = flat < inner
        above = self.centroids[flat.clamp(max=inner - 1)]  # [batch, n, dim]
        vectors = torch.where(is_inner[:, :, None], above, self.embeddings[(flat - inner).clamp(min=0)])
        return torch.bmm(vectors, queries[:, :, None])[:, :, 0].view_as(nodes)
