"""A tree model without text: instances are feature vectors, documents are labels, and several may be relevant.

It uses the trees, objectives and beams of docids. A node's logit is linear in the features. Knows no text and no docid decoder.
"""

import logging
import math
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from dsi.docids.files.declarations import Count, Whole, settings
from dsi.docids.files.progress import progress
from dsi.docids.tree import DocidTree
from dsi.generator.objectives import log_prior
from dsi_experiments.objectives.rows import find_row, objective_loss, phase
from dsi_experiments.tree_targets import TreeTargets, candidate_nodes, ranking_scores

logger = logging.getLogger(__name__)


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

    def __post_init__(self) -> None:
        if find_row(self.objective).margins:
            raise ValueError(
                f"objective {self.objective!r} compares whole paths, which only docid generators do; choose another one."
            )


class TreeModel(nn.Module):
    """A scorer of the nodes of one tree. Label l is the document of collection row l."""

    def __init__(self, tree: DocidTree, num_features: int, config: TreeModelConfig) -> None:
        super().__init__()
        torch.manual_seed(config.seed)
        self.tree, self.config, self.num_features = tree, config, num_features
        self.row = find_row(config.objective)
        self.targets = TreeTargets(tree)
        nodes = tree.num_inner + tree.num_places
        self.nodes = nn.Linear(num_features, nodes)
        nn.init.zeros_(self.nodes.weight)
        with torch.no_grad():
            self.nodes.bias.copy_(log_prior(self.row.score, self.targets.family_sizes, self.targets.level_sizes))

    def forward(self, features: Tensor) -> Tensor:
        """[batch, nodes] logits of features [batch, num_features]."""
        return self.nodes(features)  # type: ignore[no-any-return]

    def fit(self, features: csr_matrix, relevant: csr_matrix, *, show_progress: bool = False) -> list[float]:
        """Train in place and return the mean loss of every epoch.

        `features`: [instances, num_features]; `relevant`: [instances, labels].
        """
        features, relevant = self._checked(features, relevant)
        config = self.config
        optimizer = torch.optim.AdamW(self.parameters(), lr=config.learning_rate, weight_decay=0.0)
        batches = math.ceil(features.shape[0] / config.batch_size)
        steps = config.epochs * batches
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
        rng, losses, step = np.random.default_rng(config.seed), [], 0
        self.train()
        for _ in progress(range(config.epochs), config.objective, unit="epoch", enabled=show_progress):
            total = 0.0
            for rows in np.array_split(rng.permutation(features.shape[0]), batches):
                loss = self._loss(_dense(features[rows]), _dense(relevant[rows]), step / steps)
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
    def search(self, features: csr_matrix, k: int, beam_width: int, *, batch_size: int = 256) -> NDArray[np.int64]:
        """[instances, k] the best labels that the beam finds, best first; -1 where it reaches fewer."""
        if self.row.candidates == "beam" and beam_width > self.config.beam_width:
            warnings.warn(
                f"This model was trained with a beam of {self.config.beam_width}; nodes outside that beam were never trained, "
                f"and a beam of {beam_width} may find worse answers than {self.config.beam_width}.",
                stacklevel=2,
            )
        found = []
        for start in range(0, features.shape[0], batch_size):
            logits = self.eval()(_dense(features[start : start + batch_size]))
            scores = ranking_scores(self.targets, logits, self.row.score)
            positions = self.targets.search(scores, k, beam_width).numpy()
            found.append(np.where(positions < 0, -1, self.tree.doc_rows[np.maximum(positions, 0)]))
        return np.concatenate(found)

    def _checked(self, features: csr_matrix, relevant: csr_matrix) -> tuple[csr_matrix, csr_matrix]:
        if features.shape[0] != relevant.shape[0] or features.shape[1] != self.num_features:
            raise ValueError(
                f"features must be [{relevant.shape[0]}, {self.num_features}] for these labels, got {list(features.shape)}."
            )
        if relevant.shape[1] != self.tree.num_places:
            raise ValueError(
                f"There are {relevant.shape[1]} labels, the tree has leaves for {self.tree.num_places}; "
                "build it for all labels."
            )
        relevant = (relevant != 0).astype(np.float32).tocsr()
        judged = np.diff(relevant.indptr) > 0
        if not judged.any():
            raise ValueError("No instance has a relevant label; there is nothing to train on.")
        if not judged.all():
            logger.warning("%d instances without a relevant label are left out.", int((~judged).sum()))
        return features.tocsr()[judged], relevant[judged]


def _dense(matrix: csr_matrix) -> Tensor:
    return torch.from_numpy(np.asarray(matrix.todense(), dtype=np.float32))
