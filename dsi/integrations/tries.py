"""Identifiers as a trie of flat tensors: where prefixes stand, and which tokens go on from there. Knows no model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STRIDE = 2**31
"""A node and a token make one key, node * _STRIDE + token."""


@dataclass(frozen=True, eq=False)
class Trie:
    """A trie of identifiers, each followed by the end token.

    Nodes are numbered level by level from the root, 0. All identifiers end in the last node, where the end token, the only one
    there, stays. So does all else that does not begin an identifier.

    Attributes:
        keys: [edges] node and token of each edge, ascending.
        children: [edges] the node that it leads to.
        starts: [nodes + 1] the first edge of each node.
        widest: by depth, the largest number of edges of a node.
        largest: token.
    """

    keys: Tensor
    children: Tensor
    starts: Tensor
    widest: tuple[int, ...]
    largest: int

    @classmethod
    def from_rows(cls, rows: NDArray[np.int64], end: int) -> "Trie":
        """Return the trie of identifiers, none of which is a prefix of another.

        Args:
            rows: [identifiers, longest] tokens, -1 past the end.
            end: the token after each identifier.
        """
        ended = np.pad(rows, ((0, 0), (0, 1)), constant_values=-1)  # [identifiers, longest + 1]
        ended[np.arange(len(rows)), (rows >= 0).sum(axis=1)] = end
        ended = ended[np.lexsort(ended.T[::-1])]
        new = np.ones(ended.shape, dtype=bool)  # is this the first row with its prefix?
        new[1:] = np.logical_or.accumulate(ended[1:] != ended[:-1], axis=1)
        node, nodes = np.zeros(len(ended), dtype=np.int64), 1  # node: [identifiers] at the current depth
        keys, children, widest = [], [], []
        for token, first in zip(ended.T, new.T, strict=True):
            edge, goes_on = first & (token >= 0), (token >= 0) & (token != end)
            below = nodes - 1 + np.cumsum(first & goes_on)
            keys.append(node[edge] * _STRIDE + token[edge])
            children.append(np.where(goes_on, below, -1)[edge])
            widest.append(int(np.bincount(node[edge] - node[edge].min()).max()))
            node, nodes = below, nodes + int((first & goes_on).sum())
        all_keys = np.concatenate([*keys, [nodes * _STRIDE + end]])
        all_children = np.concatenate([*children, [nodes]])
        all_children[all_children < 0] = nodes
        starts = np.searchsorted(all_keys, np.arange(nodes + 2) * _STRIDE)
        flat = [torch.from_numpy(array) for array in (all_keys, all_children, starts)]
        return cls(flat[0], flat[1], flat[2], (*widest, 1), max(int(ended.max()), end))

    def to(self, device: torch.device) -> "Trie":
        """Return the trie on a device."""
        return replace(
            self, keys=self.keys.to(device), children=self.children.to(device), starts=self.starts.to(device)
        )

    def follow(self, prefixes: Tensor) -> Tensor:
        """Return the nodes [n] at which prefixes [n, length] stand."""
        end = len(self.starts) - 2
        nodes = torch.zeros(len(prefixes), dtype=torch.int64, device=prefixes.device)
        for token in prefixes.T:
            keys = nodes * _STRIDE + token  # [n]
            edges = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
            nodes = torch.where(self.keys[edges] == keys, self.children[edges], end)
        return nodes

    def allowed(self, nodes: Tensor, depth: int) -> Tensor:
        """Return the tokens that go on from nodes [n] of a depth, [n, at most widest]; a node with fewer repeats its last."""
        most = self.widest[min(depth, len(self.widest) - 1)]
        edges = self.starts[nodes, None] + torch.arange(most, device=nodes.device)  # [n, most]
        return self.keys[torch.minimum(edges, self.starts[nodes + 1, None] - 1)] % _STRIDE


def token_rows(identifiers: Sequence[Sequence[int]], names: Sequence[str], end: int) -> NDArray[np.int64]:
    """Return identifiers as [identifiers, longest] tokens, -1 past the end.

    Args:
        identifiers: their tokens.
        names: what messages call them.
        end: the token that follows them.

    Raises:
        ValueError: there are none, one is empty, has a token that it cannot have, or is equal to another or the start of it.
    """
    if not len(identifiers):
        raise ValueError("There are no identifiers to generate; give at least one.")
    rows = np.full((len(identifiers), max(map(len, identifiers))), -1, dtype=np.int64)
    for row, identifier, name in zip(rows, identifiers, names, strict=True):
        if not len(identifier):
            raise ValueError(f"The identifier of {name} is empty; give it at least one token.")
        row[: len(identifier)] = identifier
        if min(identifier) < 0 or max(identifier) >= _STRIDE or end in identifier:
            raise ValueError(
                f"The identifier of {name} must have tokens from 0 to {_STRIDE - 1} other than the end token {end}, "
                f"got {list(map(int, identifier))}."
            )
    _check_prefixes(rows, names)
    return rows


def _check_prefixes(rows: NDArray[np.int64], names: Sequence[str]) -> None:
    """Raise ValueError if a row is equal to another, or the start of another: sorted, they are neighbours."""
    order = np.lexsort(rows.T[::-1])
    first, second = rows[order[:-1]], rows[order[1:]]
    (pairs,) = np.nonzero(((first == second) | (first < 0)).all(axis=1))
    if len(pairs):
        one, other = (names[order[pairs[0] + step]] for step in (0, 1))
        how = "equal" if (first[pairs[0]] == second[pairs[0]]).all() else "the first is the start of the second"
        raise ValueError(f"The identifiers of {one} and {other} cannot be distinguished: {how}; give each its own.")
