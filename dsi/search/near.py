"""The nearest documents of queries in a large index: those of its cells and those with the best lexical scores."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dsi.search.added import AddedScores
from dsi.trees.bounds import Nearest
from dsi.trees.cells import Cells
from dsi.trees.dense import DenseScores


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
        scores = self.dense.dot(self.queries, positions + self.dense.tree.num_inner)
        return (scores if self.added is None else scores + self.added.of(positions)) / self.temperature


def nearest_documents(
    cells: Cells, scores: DocumentScores, count: int, looked_at: int, allowed: Tensor | None
) -> Nearest:
    """About the best documents of each query, by all scores together.

    Args:
        cells: of the tree.
        scores: of documents.
        count: so many by their vectors, and so many by their words.
        looked_at: about how many documents are looked at in the cells.
        allowed: [documents] True at those that count; all by default.

    Returns:
        `rest` is what the last of each kind suggests, and not proven.
    """
    mask = None if allowed is None else allowed.numpy()
    dense, added = scores.dense, scores.added
    near = cells.nearest(scores.queries, count, looked_at, mask)
    words, of_words, rest = _by_words(added, len(near), count, mask)
    near = [own[~torch.isin(own, others)] for own, others in zip(near, words, strict=True)]
    positions = _padded([torch.cat(both) for both in zip(near, words, strict=True)], dense.tree.num_documents)
    extra = [torch.zeros(len(own)) for own in near] if added is None else added.of_each(near)
    gains = _padded([torch.cat(both) for both in zip(extra, of_words, strict=True)], -torch.inf)
    found = dense.dot(scores.queries, positions.clamp(max=dense.tree.num_documents - 1) + dense.tree.num_inner)
    last = torch.tensor([max(len(own) - 1, 0) for own in near])[:, None]
    rest = rest + found.gather(1, last)[:, 0]
    return Nearest.of_some(positions, (found + gains) / scores.temperature, rest / scores.temperature)


def _by_words(
    added: AddedScores | None, queries: int, count: int, mask: NDArray[np.bool_] | None
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    if added is not None:
        return added.best(count, mask)
    return [torch.empty(0, dtype=torch.long)] * queries, [torch.empty(0)] * queries, torch.zeros(queries)


def _padded(rows: list[Tensor], value: float) -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=value)
