"""Objective "residual": cross-entropy on top of dense search, so that the decoder learns what the encoder's scores miss."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsi.docids.tree import DocidTree
from dsi.generator.families import Families
from dsi.generator.objectives import CrossEntropy, Task
from dsi.search.dense import DenseScores

TEMPERATURE = 0.03
"""Divides the dot products."""
_SMOOTHING = 0.01
"""Added to each document's number of examples."""


class Residual(CrossEntropy):
    """Cross-entropy in which each child's logit gets the log-sum-exp of the dense scores below it.

    A document's score is z.e_d / temperature plus the log of its frequency among the training examples. The decoder then need
    not learn what frequency explains, and since search leaves frequencies out, frequent documents get no head start (logit
    adjustment, Menon et al. 2021).

    Args:
        task: the training.
        temperature: divides the dot products.
    """

    distils = False
    frozen_encoder = True

    def __init__(self, task: Task, temperature: float = TEMPERATURE) -> None:
        super().__init__(task)
        counts = np.bincount(task.positions, minlength=task.tree.num_documents)
        frequencies = torch.from_numpy(np.log(counts + _SMOOTHING)).float().to(task.device)
        self.dense = DenseLogits(task.tree, temperature, frequencies, task.device)

    def logits(self, model: Any, batch: dict[str, Tensor], families: Families) -> Tensor:
        """Return the decoder's logits plus those of dense search."""
        return super().logits(model, batch, families) + self.dense(batch["embeddings"], families.children)


class DenseLogits:
    """Flat dense search as logits of children: along a path, their softmaxes multiply to the document's probability.

    Args:
        tree: the docids.
        temperature: divides the dot products.
        log_frequencies: [documents] in docid order, added to the scores.
        device: where scores are computed.
    """

    def __init__(self, tree: DocidTree, temperature: float, log_frequencies: Tensor, device: torch.device) -> None:
        self.scores, self.temperature, self.log_frequencies = DenseScores(tree, device), temperature, log_frequencies

    @torch.no_grad()
    def __call__(self, embeddings: Tensor, children: Tensor) -> Tensor:
        """Return the logits [batch, n, fan_out] of children [batch, n, fan_out].

        Padding (child -1) gets an arbitrary logit.

        Args:
            embeddings: [batch, dim] of the texts.
            children: nodes, -1 at padding.
        """
        documents = self.scores.document_scores(embeddings.float()) / self.temperature + self.log_frequencies
        nodes = self.scores.log_sum(documents)  # [batch, nodes]
        return nodes.gather(1, children.clamp(min=0).flatten(1)).view_as(children)
