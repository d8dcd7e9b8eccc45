"""Dense scores of nodes from each query's nearest documents: the best document below a node, or a bound of it.

A search needs the largest document score below the nodes it visits. The nearest documents of a query give it. Documents below a
node are contiguous, so it is a maximum over a range of the nearest in docid order; a table of the maxima of all runs of 1, 2,
4, … of them answers any range from two entries. Below a node with other documents too, the bound of those holds. So the cost
depends on how many documents are near, not on how many there are. Knows nothing of decoders.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from dsi.trees.dense import DenseScores


@dataclass(frozen=True)
class Nearest:
    """The nearest documents of a batch of queries.

    Attributes:
        positions: [batch, n] ascending; the number of documents past the last.
        scores: [batch, n] their scores; -inf past the last.
        rest: [batch] a bound of all other documents' scores, -inf if there are none.
        proven: whether `rest` is a proven bound, or the best guess of an approximate search.
    """

    positions: Tensor
    scores: Tensor
    rest: Tensor
    proven: bool = True

    @classmethod
    def of_all(cls, scores: Tensor, count: int) -> "Nearest":
        """The `count` best of the scores [batch, documents] of all documents."""
        documents = scores.shape[1]
        values, positions = scores.topk(min(count + 1, documents), dim=1)
        rest = values[:, -1] if documents > count else torch.full_like(values[:, 0], -torch.inf)
        values, positions = values[:, :count], positions[:, :count]
        return cls._in_order(positions.masked_fill(values == -torch.inf, documents), values, rest)

    @classmethod
    def of_some(cls, positions: Tensor, scores: Tensor) -> "Nearest":
        """Documents [batch, n] that an approximate search found, in any order; scores are -inf at padding.

        The guess for the others is the lowest score of these: a higher one draws the beam away from what is known. It is 0 if
        there are none.
        """
        lowest = scores.masked_fill(scores == -torch.inf, torch.inf).amin(dim=1)
        return cls._in_order(positions, scores, lowest.where(lowest < torch.inf, 0.0), proven=False)

    @classmethod
    def _in_order(cls, positions: Tensor, scores: Tensor, rest: Tensor, *, proven: bool = True) -> "Nearest":
        positions, order = positions.sort(dim=1)
        return cls(positions, scores.gather(1, order), rest, proven)

    def top(self, k: int) -> tuple[Tensor, Tensor] | None:
        """positions, scores [batch, k] of the best documents, ties in docid order; None if others could be among them."""
        if self.scores.shape[1] < k:
            return None
        order = self.scores.argsort(dim=1, descending=True, stable=True)[:, :k]
        scores = self.scores.gather(1, order)
        if not (scores[:, -1] >= self.rest.where(self.rest > -torch.inf, -torch.finfo(scores.dtype).max)).all():
            return None
        return self.positions.gather(1, order), scores


@dataclass(frozen=True)
class BestBelow:
    """The score of the best document below any node, or a bound of it; a document's is its own.

    Attributes:
        positions: [batch, n] of the nearest documents, as in `Nearest`, like the next three.
        near: [batch, n] their scores.
        rest: [batch] bound of the other documents.
        proven: whether that is proven.
        scores: [batch, documents] of all documents; None if they are scored where a search visits them.
        visit: gives the scores [batch, m] of documents [batch, m].
        dense: the tree on a device.
    """

    positions: Tensor
    near: Tensor
    rest: Tensor
    proven: bool
    scores: Tensor | None
    visit: Callable[[Tensor], Tensor] | None
    dense: DenseScores

    @classmethod
    def of_nearest(
        cls,
        nearest: Nearest,
        dense: DenseScores,
        scores: Tensor | None,
        visit: Callable[[Tensor], Tensor] | None = None,
    ) -> "BestBelow":
        """From the nearest documents, and either all documents' scores or what scores some."""
        return cls(nearest.positions, nearest.scores, nearest.rest, nearest.proven, scores, visit, dense)

    @property
    def nearest(self) -> Nearest:
        """The nearest documents."""
        return Nearest(self.positions, self.near, self.rest, self.proven)

    @property
    def of_queries(self) -> dict[str, Tensor]:
        """The tensors that depend on the queries."""
        found = {"positions": self.positions, "near": self.near, "rest": self.rest}
        return found if self.scores is None else {**found, "scores": self.scores}

    @cached_property
    def _maxima(self) -> Tensor:
        """[batch, steps, n] the largest score of the 2^step nearest documents from each on."""
        maxima, step = [self.near], 1
        while step < self.near.shape[1]:
            shifted = F.pad(maxima[-1][:, step:], (0, step), value=-torch.inf)
            maxima.append(torch.maximum(maxima[-1], shifted))
            step *= 2
        return torch.stack(maxima, dim=1)

    def of(self, nodes: Tensor, level: int) -> Tensor:
        """[batch, …] the scores of nodes [batch, …], children that are chosen at `level`."""
        flat, tree = nodes.flatten(1), self.dense.tree
        found = self._of_inner(flat.clamp(max=tree.num_inner - 1))
        if tree.holds_documents[level]:
            documents = (flat - tree.num_inner).clamp(min=0)
            own = (
                self.scores.gather(1, documents)
                if self.scores is not None
                else self._visited(flat >= tree.num_inner, documents)
            )
            found = torch.where(flat < tree.num_inner, found, own)
        return found.view_as(nodes)

    def _of_inner(self, nodes: Tensor) -> Tensor:
        start, end = self.dense.doc_start[nodes], self.dense.doc_end[nodes]  # [batch, n]
        first, last = (torch.searchsorted(self.positions, edge) for edge in (start, end))
        count = last - first
        step = count.clamp(min=1).float().log2().long()
        width = self.positions.shape[1]
        table = self._maxima.flatten(1)
        left = table.gather(1, step * width + first.clamp(max=width - 1))
        right = table.gather(1, step * width + (last - 2**step).clamp(min=0))
        best = torch.maximum(left, right).masked_fill(count == 0, -torch.inf)
        return torch.where(count == end - start, best, torch.maximum(best, self.rest[:, None]))

    def _visited(self, is_document: Tensor, positions: Tensor) -> Tensor:
        assert self.visit is not None
        if not is_document.any():
            return torch.zeros(positions.shape)
        return self.visit(positions)
