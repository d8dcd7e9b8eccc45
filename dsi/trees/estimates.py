"""Estimates of the best document below a node, from the vectors that the tree stores and one query a level.

The vector v of a document is its embedding, that of an inner node the mean below it. For the query q of a level,

    estimate(n) = max over g of [ q.v_g + size_weight * bonus_g ],    bonus_g = spread_g * sqrt(2 ln |g|),

where g is n itself, or runs over the nodes `look_ahead` levels below n. |g| counts the documents below g and spread_g is their
root mean squared distance from v_g; the largest of |g| normal values lies about sqrt(2 ln |g|) deviations above their mean. A
document is one point, so its bonus is 0. With the log-sum-exp in place of the maximum, and ln |g| in place of the bonus, a
softmax over children gives the share of each child in all that lies below them.

Search scores the nodes it visits; training scores whole levels. Knows nothing of decoders.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dsi.trees.dense import DenseScores

SIZE_WEIGHT = 0.09
"""Weight of the bonus before training; chosen on dev queries."""
_KEPT = 32_768
"""A search keeps up to so many vectors of a level as floats."""


class NodeEstimates:
    """The vectors and sizes of a tree's nodes.

    Args:
        dense: the tree on a device.
        look_ahead: levels between a node and the nodes whose vectors stand for it; 0 for its own.
        largest: the maximum and the bonus, or else the log-sum-exp and the logarithm of the size.
    """

    def __init__(self, dense: DenseScores, look_ahead: int, *, largest: bool = True) -> None:
        self.dense, self.tree, self.look_ahead, self.largest = dense, dense.tree, look_ahead, largest

    @cached_property
    def size_terms(self) -> Tensor:
        """[inner nodes] what the size weight multiplies: the bonus, or the logarithm of the size."""
        tree = self.tree
        start, end = tree.doc_start, tree.doc_end
        sums = np.concatenate([[0.0], np.cumsum(tree.embeddings.squares(), dtype=np.float64)])
        documents = np.concatenate([[0], np.cumsum(tree.doc_rows >= 0)])
        count = np.maximum(documents[end] - documents[start], 1)
        variance = (sums[end] - sums[start]) / count - tree.centroids.squares()
        terms = np.sqrt(np.maximum(variance, 0) * 2 * np.log(count)) if self.largest else np.log(count)
        return torch.from_numpy(terms.astype(np.float32)).to(self.dense.device)

    def of(self, queries: Tensor, nodes: Tensor, level: int | None, scale: Tensor, size_weight: Tensor) -> Tensor:
        """[batch, …] `scale` times the estimates of nodes [batch, …].

        Args:
            queries: [batch, dim] of their level.
            nodes: any of them; a document's estimate is its dot product.
            level: at which they are chosen, 0 for the children of the root; None for various levels.
            scale: scalar, or [batch, 1, 1]; inside the log-sum-exp where that is used.
            size_weight: scalar, or [batch, 1, 1].
        """
        if level is not None and self._is_most_of(level, nodes[0].numel()):
            return self._among_all(queries, nodes.flatten(1), level, scale, size_weight).view_as(nodes)
        below, exists = self._below(nodes.flatten(1), level)  # [batch, nodes, g]
        values = self.dense.dot(queries, below) * scale
        values = values + self._size_terms_of(below) * (size_weight * scale if self.largest else size_weight)
        return self._combine(values.masked_fill(~exists, -torch.inf)).view_as(nodes)

    def _is_most_of(self, level: int, count: int) -> bool:
        """Whether so many nodes, padded to the widest, read more vectors than all inner nodes chosen at that level have."""
        padded = count * math.prod(self.tree.fan_out[level + 1 :][: self.look_ahead])
        return level + 1 < self.tree.depth and padded > self._sizes[level]

    def _among_all(self, queries: Tensor, nodes: Tensor, level: int, scale: Tensor, size_weight: Tensor) -> Tensor:
        """[batch, n] as `of`, by way of all inner nodes of the level."""
        kept = self._sizes[level] <= _KEPT or self.dense.fixed_shape
        every = self.of_level(queries, level, scale, size_weight, None if kept else self._nodes_of(level))
        first = self.tree.levels[level + 1].start
        found = every.gather(1, (nodes - first).clamp(0, every.shape[1] - 1))
        if not self.tree.holds_documents[level]:
            return found
        return torch.where(nodes < self.tree.num_inner, found, self.dense.dot(queries, nodes) * scale)

    @cached_property
    def _sizes(self) -> list[int]:
        """How many vectors stand for all inner nodes that are chosen at each level."""
        tree, inner = self.tree, [level.stop - level.start for level in self.tree.levels]
        below = [int(tree.num_children[own][tree.first_child[own] >= tree.num_inner].sum()) for own in tree.levels]
        ends = [start + self.look_ahead for start in range(1, tree.depth + 1)]
        return [sum(below[end - self.look_ahead : end]) + sum(inner[end : end + 1]) for end in ends]

    def of_level(
        self, queries: Tensor, level: int, scale: Tensor, size_weight: Tensor, nodes: Tensor | None = None
    ) -> Tensor:
        """[batch, nodes] `scale` times the estimates of inner nodes that are chosen at a level, of all queries alike.

        Args:
            queries: [batch, dim] of this level.
            level: 0 for the children of the root.
            scale: as in `of`.
            size_weight: as in `of`.
            nodes: [n] some inner nodes of that level; all by default.
        """
        own = self._whole_level(level) if nodes is None else self._vectors_below(nodes)
        weight = size_weight * scale if self.largest else size_weight
        values = own.vectors @ queries.T * scale + (own.size_terms * weight)[:, None]  # [vectors, batch]
        return self._combine_runs(values, own).T

    def _combine(self, values: Tensor) -> Tensor:
        return values.amax(dim=-1) if self.largest else values.logsumexp(dim=-1)

    def _combine_runs(self, values: Tensor, own: "_Vectors") -> Tensor:
        """[nodes, batch] from the values [vectors, batch] of what stands for the nodes, not padded to the widest node."""
        owners, nothing = own.owners, values.new_full((own.nodes, values.shape[1]), -torch.inf)
        most = nothing.scatter_reduce(0, owners[:, None].expand_as(values), values, "amax")
        if self.largest:
            return most
        most = most.detach()
        shares = (values - most[owners]).exp()
        return most + shares.new_zeros(most.shape).index_add(0, owners, shares).log()

    def _size_terms_of(self, nodes: Tensor) -> Tensor:
        inner = nodes < self.tree.num_inner
        return self.size_terms[nodes.clamp(max=self.tree.num_inner - 1)].masked_fill(~inner, 0.0)

    def _below(self, nodes: Tensor, level: int | None) -> tuple[Tensor, Tensor]:
        """The nodes [batch, n, g] that stand for nodes [batch, n], and True where there is one."""
        found, exists = nodes[:, :, None], torch.ones_like(nodes[:, :, None], dtype=torch.bool)
        fan_outs = self.tree.fan_out
        fan_outs = [max(fan_outs)] * len(fan_outs) if level is None else fan_outs[level + 1 :]
        for fan_out in fan_outs[: self.look_ahead]:
            digits = torch.arange(fan_out, device=nodes.device)
            inner, own = found < self.tree.num_inner, found.clamp(max=self.tree.num_inner - 1)
            count = torch.where(inner, self.dense.num_children[own], 1)[..., None]  # a document stands for itself
            first = torch.where(inner, self.dense.first_child[own], found)[..., None]
            exists = exists[..., None] & (digits < count)
            found = torch.where(exists, first + digits, 0).flatten(2)
            exists = exists.flatten(2)
        return found, exists

    @cached_property
    def _levels(self) -> "dict[int, _Vectors]":
        return {}

    def _whole_level(self, level: int) -> "_Vectors":
        if level not in self._levels:
            self._levels[level] = self._vectors_below(self._nodes_of(level))
        return self._levels[level]

    def _nodes_of(self, level: int) -> Tensor:
        """[n] the inner nodes that are chosen at a level."""
        nodes = self.tree.levels[level + 1]
        return torch.arange(nodes.start, nodes.stop, device=self.dense.device)

    def _vectors_below(self, nodes: Tensor) -> "_Vectors":
        below, owners = nodes, torch.arange(len(nodes), device=nodes.device)
        for _ in range(self.look_ahead):
            inner, own = below < self.tree.num_inner, below.clamp(max=self.tree.num_inner - 1)
            count = torch.where(inner, self.dense.num_children[own], 1)  # a document stands for itself
            first = torch.where(inner, self.dense.first_child[own], below) - (count.cumsum(0) - count)
            below = first.repeat_interleave(count) + torch.arange(int(count.sum()), device=nodes.device)
            owners = owners.repeat_interleave(count)
        stays = ~self.dense.is_removed(below)
        below, owners = below[stays], owners[stays]
        return _Vectors(self.dense.vectors(below), self._size_terms_of(below), owners, len(nodes))


@dataclass(frozen=True)
class _Vectors:
    """What stands for some nodes: vectors [n, dim], their size terms [n], and the place of the node [n], ascending."""

    vectors: Tensor
    size_terms: Tensor
    owners: Tensor
    nodes: int


@dataclass(frozen=True)
class EstimatedScores:
    """Scores of nodes where a search visits them: a document's own, and the estimate of the best one below an inner node.

    Attributes:
        level_queries: [batch, depth, dim].
        document_queries: [batch, dim].
        extra_scores: [batch, documents] in docid order, added to the documents' dot products, or what gives those of
            documents [batch, n], or None.
        size_weights: [depth] as the generator gives them.
        estimates: of inner nodes.
        temperature: divides all scores.
    """

    level_queries: Tensor
    document_queries: Tensor
    extra_scores: Tensor | Callable[[Tensor], Tensor] | None
    size_weights: Tensor
    estimates: NodeEstimates
    temperature: float

    @property
    def of_queries(self) -> dict[str, Tensor]:
        """The tensors that depend on the queries."""
        found = {"level_queries": self.level_queries, "document_queries": self.document_queries}
        return {**found, "extra_scores": self.extra_scores} if isinstance(self.extra_scores, Tensor) else found

    def of(self, nodes: Tensor, level: int) -> Tensor:
        """[batch, …] the scores of nodes [batch, …], children that are chosen at `level`."""
        tree, dense = self.estimates.tree, self.estimates.dense
        scores = torch.zeros(nodes.shape, device=nodes.device)
        if level + 1 < tree.depth:
            own, one = min(level, len(self.size_weights) - 1), torch.ones((), device=nodes.device)
            scores = self.estimates.of(self.level_queries[:, own], nodes, level, one, self.size_weights[own])
        if tree.holds_documents[level]:
            documents = dense.dot(self.document_queries, nodes)
            if self.extra_scores is not None:
                positions = (nodes - tree.num_inner).clamp(min=0).flatten(1)
                extra = self.extra_scores
                values = extra.gather(1, positions) if isinstance(extra, Tensor) else extra(positions)
                documents = documents + values.view_as(nodes)
            scores = torch.where(nodes < tree.num_inner, scores, documents)
        return scores / self.temperature
