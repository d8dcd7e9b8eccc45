"""A tree model without text: instances are feature vectors, documents are labels, and several may be relevant.

It uses the trees, objectives and beams of docids. A node's logit is linear in the features. Knows no text and no docid decoder.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dsi.docids.files.declarations import Count, Whole, settings
from dsi.docids.tree import DocidTree
from dsi.generator.objectives import log_prior
from dsi_experiments.objectives.rows import ROWS, objective_loss, phase
from dsi_experiments.tree_targets import TreeTargets, candidate_nodes, ranking_scores

Floats = NDArray[np.float32]
_BATCH = 256
"""Instances that are searched together."""


@settings()
class TreeModelConfig:
    """How a tree model is trained."""

    objective: str = "plt"  # a row of `dsi_experiments.objectives.rows`
    beam_width: Count = 10  # inner nodes kept a level by objectives with beam candidates
    random_nodes: Whole = 50  # random candidates a level, on average, for objectives that have them
    epochs: Count = 20  # passes over the instances
    batch_size: Count = 128  # instances a step
    learning_rate: float = 1e-2  # of AdamW at the start; falls linearly to zero
    seed: Whole = 0  # of initialisation, order and random candidates


class TreeModel(nn.Module):
    """A scorer of the nodes of one tree. Label l is the document of collection row l."""

    def __init__(self, tree: DocidTree, num_features: int, config: TreeModelConfig) -> None:
        super().__init__()
        torch.manual_seed(config.seed)
        self.tree, self.config, self.row = tree, config, ROWS[config.objective]
        self.targets = TreeTargets(tree)
        nodes = tree.num_inner + tree.num_places
        self.nodes = nn.Linear(num_features, nodes)
        nn.init.zeros_(self.nodes.weight)
        with torch.no_grad():
            self.nodes.bias.copy_(log_prior(self.row.score, self.targets.family_sizes, self.targets.level_sizes))

    def forward(self, features: Tensor) -> Tensor:
        """[batch, nodes] logits of features [batch, num_features]."""
        return self.nodes(features)  # type: ignore[no-any-return]

    def fit(self, features: Floats, relevant: Floats) -> list[float]:
        """Train in place and return the mean loss of every epoch; instances without a relevant label are left out.

        `features`: [instances, num_features]; `relevant`: [instances, labels] of 0 and 1.
        """
        config, judged = self.config, relevant.any(axis=1)
        features, relevant = features[judged], relevant[judged]
        optimizer = torch.optim.AdamW(self.parameters(), lr=config.learning_rate, weight_decay=0.0)
        batches = math.ceil(features.shape[0] / config.batch_size)
        steps = config.epochs * batches
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        rng, losses, step = np.random.default_rng(config.seed), [], 0
        self.train()
        for _ in range(config.epochs):
            total = 0.0
            for rows in np.array_split(rng.permutation(features.shape[0]), batches):
                loss = self._loss(torch.from_numpy(features[rows]), torch.from_numpy(relevant[rows]), step / steps)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total, step = total + loss.item(), step + 1
            losses.append(total / batches)
        self.eval()
        return losses

    def _loss(self, features: Tensor, relevant: Tensor, done: float) -> Tensor:
        """Loss of a batch.

        `features`: [batch, num_features]; `relevant`: [batch, labels]; `done`: share of the training that is done.
        """
        config, targets = self.config, self.targets
        row, towards_zhat = phase(self.row, done)
        relevant = relevant[:, self.tree.doc_rows]  # [batch, documents] in docid order
        z = targets.any_below(relevant)  # [batch, nodes]
        logits = self(features)  # [batch, nodes]
        own = logits.detach()
        chosen = candidate_nodes(targets, row, own, z, config.beam_width, config.random_nodes)
        wanted = torch.lerp(z, targets.estimated(own, relevant), towards_zhat) if towards_zhat else z
        if row.forces_relevant:
            logits = logits + (targets.level_sizes / config.random_nodes).clamp(min=1).log()
        logits, chosen = targets.of_children(logits, -torch.inf), targets.of_children(chosen, False)
        return objective_loss(row, logits, chosen, targets.of_children(wanted, 0.0), targets.depths)

    @torch.no_grad()
    def search(self, features: Floats, k: int, beam_width: int) -> NDArray[np.int64]:
        """[instances, k] the best labels that the beam finds, best first; -1 where it reaches fewer."""
        found = []
        for start in range(0, len(features), _BATCH):
            logits = self.eval()(torch.from_numpy(features[start : start + _BATCH]))
            scores = ranking_scores(self.targets, logits, self.row.score)
            positions = self.targets.search(scores, k, beam_width).numpy()
            found.append(np.where(positions < 0, -1, self.tree.doc_rows[np.maximum(positions, 0)]))
        return np.concatenate(found)
