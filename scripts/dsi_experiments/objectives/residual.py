"""Objective "residual": cross-entropy on top of dense search, so that the decoder learns what the encoder's scores miss."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsi.docids.tree import DocidTree
from dsi.generator.families import Families
from dsi.generator.objectives import CrossEntropy, Task

TEMPERATURE = 0.03
"""Divides the dot products."""
_SMOOTHING = 0.01
"""Added to each document's number of examples."""


class Residual(CrossEntropy):
    """Cross-entropy in which each child's logit gets the log-sum-exp of the dense scores below it.

    A document's score is z.e_d / temperature plus the log of its frequency among the training examples. The decoder then need
    not learn what frequency explains, and since search leaves frequencies out, frequent documents get no head start (logit
    adjustment, Menon et al. 2021).
    """

    frozen_encoder = True

    def __init__(self, task: Task, temperature: float = TEMPERATURE) -> None:
        super().__init__(task)
        counts = np.bincount(task.positions, minlength=task.tree.num_places)
        frequencies = torch.from_numpy(np.log(counts + _SMOOTHING)).float().to(task.device)
        self.dense = DenseLogits(task.tree, temperature, frequencies, task.device)

    def logits(self, model: Any, batch: dict[str, Tensor], families: Families) -> Tensor:
        """Return the decoder's logits plus those of dense search."""
        return super().logits(model, batch, families) + self.dense(batch["embeddings"], families.children)


class DenseLogits:
    """Flat dense search as logits of children: along a path, their softmaxes multiply to the document's probability.

    `log_frequencies` [documents], in docid order, are added to the scores.
    """

    def __init__(self, tree: DocidTree, temperature: float, log_frequencies: Tensor, device: torch.device) -> None:
        self.tree, self.temperature, self.log_frequencies = tree, temperature, log_frequencies
        self._embeddings = torch.from_numpy(tree.embeddings[:]).to(device)
        self._segments = [_Segments.from_nodes(tree, nodes, device) for nodes in _from_the_leaves_up(tree)]

    @torch.no_grad()
    def __call__(self, embeddings: Tensor, children: Tensor) -> Tensor:
        """Return the logits [batch, n, fan_out] of children [batch, n, fan_out].

        Padding (child -1) gets an arbitrary logit.
        """
        documents = embeddings.float() @ self._embeddings.T / self.temperature + self.log_frequencies
        nodes = self.log_sum(documents)  # [batch, nodes]
        return nodes.gather(1, children.clamp(min=0).flatten(1)).view_as(children)

    def log_sum(self, document_scores: Tensor) -> Tensor:
        """[batch, nodes] the log-sum-exp of the scores of the documents below each node; a document's is its own score.

        A softmax over children of these is the share of each child in the softmax over all documents, so the product along a
        path is the document's probability under flat dense search.
        """
        batch, documents = document_scores.shape
        largest = document_scores.amax(dim=1, keepdim=True)
        masses = document_scores.new_empty(self.tree.num_inner + documents, batch)  # node by node: segments are rows
        masses[self.tree.num_inner :] = (document_scores - largest).exp().T
        for own in self._segments:
            masses[own.nodes] = torch.segment_reduce(masses[own.below], "sum", offsets=own.offsets, axis=0, unsafe=True)
        inner = masses[: self.tree.num_inner].T.clamp(min=torch.finfo(masses.dtype).tiny).log() + largest
        return torch.cat([inner, document_scores], dim=1)


@dataclass(frozen=True)
class _Segments:
    """Inner nodes whose children are contiguous."""

    nodes: Tensor  # [n] in the order of their children
    below: slice  # all their children
    offsets: Tensor  # [n + 1] where the children of each begin in `below`

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
