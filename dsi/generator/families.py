"""Families: inner nodes with all their children, the unit that one decoder position scores; and their targets.

Training scores a few families of each query. Packed together they are a small tree that the decoder reads in one call, each
node attending to its ancestors and itself. Knows no decoder and no loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dsi.docids.tree import DocidTree


@dataclass(frozen=True)
class Families:
    """Some families of each instance of a batch; a node comes after its ancestors."""

    parents: Tensor  # [batch, n] inner nodes in ascending order, -1 past the end
    depths: Tensor  # [batch, n] digits on the way to each, which is the level at which its children are chosen
    tokens: Tensor  # [batch, n] docid token of its last digit; 0 for the root
    sees: Tensor  # [batch, n, n] True where the second is an ancestor of the first, or the same
    children: Tensor  # [batch, n, largest fan-out] nodes, -1 where there is none

    @property
    def exists(self) -> Tensor:
        """[batch, n, largest fan-out] True at children."""
        return self.children >= 0

    def among(self, nodes: Tensor) -> Tensor:
        """Return [batch, n]: True at families whose parent is one of nodes [batch, m] (-1 stands for none)."""
        return ((self.parents[:, :, None] == nodes[:, None, :]) & (nodes[:, None, :] >= 0)).any(dim=2)


class FamilyTree:
    """The families of one tree, as tensors on a device."""

    def __init__(self, tree: DocidTree, device: torch.device) -> None:
        self.tree, self.num_inner = tree, tree.num_inner
        self._first_child, self._num_children, self._start, self._end = (
            torch.from_numpy(array).long().to(device)
            for array in (tree.first_child, tree.num_children, tree.doc_start, tree.doc_end)
        )
        depths = torch.cat([torch.full((level.stop - level.start,), depth) for depth, level in enumerate(tree.levels)])
        parents = torch.from_numpy(tree.parents[: tree.num_inner]).long()
        offsets = torch.from_numpy(tree.token_offsets).long()
        digits = torch.arange(tree.num_inner) - torch.from_numpy(tree.first_child).long()[parents.clamp(min=0)]
        tokens = (offsets[(depths - 1).clamp(min=0)] + digits).masked_fill(parents < 0, 0)
        self._depths, self._tokens = depths.to(device), tokens.to(device)
        self._digits = torch.arange(max(tree.fan_out), device=device)
        self._parents = torch.from_numpy(tree.parents).long().to(device)

    def pack(self, parents: Tensor) -> Families:
        """Return the families of inner nodes [batch, m], in any order and with repetitions; -1 stands for none.

        A node's ancestors must be among them too.
        """
        none = self.num_inner
        nodes = torch.where(parents < 0, none, parents).sort(dim=1).values  # [batch, m]
        repeats = torch.zeros_like(nodes, dtype=torch.bool)
        repeats[:, 1:] = nodes[:, 1:] == nodes[:, :-1]
        nodes = nodes.masked_fill(repeats, none).sort(dim=1).values
        nodes = nodes[:, : int((nodes < none).sum(dim=1).max())]  # [batch, n]
        missing, nodes = nodes == none, nodes.masked_fill(nodes == none, 0)
        depths, start, end = self._depths[nodes], self._start[nodes], self._end[nodes]
        inside = (start[:, None, :] <= start[:, :, None]) & (end[:, :, None] <= end[:, None, :])
        sees = inside & (depths[:, None, :] <= depths[:, :, None]) & ~missing[:, None, :] & ~missing[:, :, None]
        sees |= torch.eye(nodes.shape[1], dtype=torch.bool, device=nodes.device)
        exists = (self._digits < self._num_children[nodes][:, :, None]) & ~missing[:, :, None]
        children = (self._first_child[nodes][:, :, None] + self._digits).masked_fill(~exists, -1)
        tokens = self._tokens[nodes].masked_fill(missing, 0)
        return Families(nodes.masked_fill(missing, -1), depths.masked_fill(missing, 0), tokens, sees, children)

    def above(self, positions: Tensor) -> Tensor:
        """Return the inner nodes [batch, n * depth] above documents at docid positions [batch, n]; -1 for position -1."""
        nodes = torch.where(positions < 0, -1, self._parents[self.num_inner + positions.clamp(min=0)])
        levels = [nodes]
        for _ in range(self.tree.depth - 1):
            nodes = torch.where(nodes < 0, -1, self._parents[nodes.clamp(min=0)])
            levels.append(nodes)
        return torch.cat(levels, dim=1)

    def holds_any(self, families: Families, positions: Tensor) -> Tensor:
        """Return z of the children, [batch, n, largest fan-out]: 1.0 above a relevant document (Zhuo et al. 2020, eq. 1).

        `positions`: [batch, m] docid positions of the relevant documents, -1 for none.
        """
        return (self._below(families, positions).any(dim=3) & families.exists).float()

    def _below(self, families: Families, positions: Tensor) -> Tensor:
        """Return [batch, n, largest fan-out, m]: True where the document at a position is below a child, or is the child."""
        nodes, inner = families.children, families.children < self.num_inner
        start = torch.where(inner, self._start[nodes.clamp(0, self.num_inner - 1)], nodes - self.num_inner)
        end = torch.where(inner, self._end[nodes.clamp(0, self.num_inner - 1)], start + 1)
        documents = positions[:, None, None, :]
        return (documents >= start[..., None]) & (documents < end[..., None]) & (documents >= 0)
