"""The training objectives of tree models, as rows of one table: candidates, targets, loss, and the score that search uses.

ce is hierarchical softmax, the objective of the library; it is here for models of labels, and as the warm-up of others. plt is
a probabilistic label tree (Jasinska et al. 2016), tdm the tree-based deep model (Zhu et al. 2018), otm Algorithm 1 of Zhuo et
al. 2020 with its ablations (-BS: no beam, -OptEst: no zhat), man PECOS' matcher-aware negatives (Yu et al. 2020), dtr a softmax
over a level's candidates (Liu et al. 2024). ripor and ltrgr add margins over the decoder's own beam to ce, at every prefix of a
docid (Zeng et al. 2024) or for whole docids (Li et al. 2024); see `margin_loss`.

Logits, candidates and targets are those of families (`dsi.generator.families`): [batch, n, largest fan-out], the children of n
inner nodes. Knows neither models nor trees.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dsi.generator.objectives import softmax_loss

WARM_START = 0.3
"""Share of the steps that train "tdm" first ("ce" with margins), in objectives that need a warmed-up model."""
_RAMP = 0.5
"""Share of the remaining steps over which targets move from z to zhat, in objectives with "mixed" targets."""
_MARGIN = 1.0
"""Nats by which the right path should be ahead of others."""


@dataclass(frozen=True)
class ObjectiveRow:
    """One row of the table."""

    # the nodes that are trained: "path" (children of the nodes above a relevant document), "random" (a random sample of
    # each level, and the relevant nodes), "beam" (children of the model's own beam, eq. 3), or two of them.
    candidates: str
    targets: str  # "z" (eq. 1), "zhat" (eq. 15) or "mixed": z at first, zhat in the end.
    # "bce" on every candidate; "child softmax" over the children of each candidate's parent; "level softmax" over the
    # candidates of a level
    loss: str
    # what ranks nodes in search: "softmax path" or "sigmoid path" (sums of log-probabilities along the path), or the
    # "node"'s own logit
    score: str
    # what the loss also puts ahead of its rivals in the beam: "prefixes", the nodes above a relevant document at every
    # level; "documents", the relevant document itself; or "" for nothing
    margins: str = ""

    @property
    def needs_warm_start(self) -> bool:
        """True if candidates or targets come from the model itself, so that it has to be warmed up first."""
        return bool(self.margins) or (self.score == "node" and ("beam" in self.candidates or self.targets != "z"))

    @property
    def warm_up(self) -> "ObjectiveRow":
        """The row that is trained first, if one is needed."""
        return ROWS["ce" if self.margins else "tdm"]

    @property
    def forces_relevant(self) -> bool:
        """True if relevant nodes join every sample, so that they are more frequent among the candidates than in the tree."""
        return self.candidates == "random"


ROWS = {
    "ce": ObjectiveRow("path", "z", "child softmax", "softmax path"),
    "plt": ObjectiveRow("path", "z", "bce", "sigmoid path"),
    "tdm": ObjectiveRow("random", "z", "bce", "node"),
    "otm": ObjectiveRow("beam", "mixed", "bce", "node"),
    "otm-bs": ObjectiveRow("random", "mixed", "bce", "node"),
    "otm-optest": ObjectiveRow("beam", "z", "bce", "node"),
    "otm-mix": ObjectiveRow("beam+random", "mixed", "bce", "node"),
    "man": ObjectiveRow("path+beam", "z", "bce", "sigmoid path"),
    "dtr": ObjectiveRow("beam+random", "z", "level softmax", "node"),
    "ripor": ObjectiveRow("path+beam", "z", "child softmax", "softmax path", "prefixes"),
    "ltrgr": ObjectiveRow("path+beam", "z", "child softmax", "softmax path", "documents"),
}


def phase(row: ObjectiveRow, done: float) -> tuple[ObjectiveRow, float]:
    """Return the row that is trained at one point of the training, and the share of zhat in the targets there.

    The beam of an untrained model holds no relevant node, and its greedy descent ends nowhere. So another row is trained
    first, and "mixed" targets then move from z to zhat step by step.
    """
    if row.needs_warm_start and done < WARM_START:
        return row.warm_up, 0.0
    late = (done - WARM_START) / (_RAMP * (1 - WARM_START))
    return row, {"z": 0.0, "zhat": 1.0, "mixed": min(1.0, max(0.0, late))}[row.targets]


def objective_loss(row: ObjectiveRow, logits: Tensor, candidates: Tensor, targets: Tensor, depths: Tensor) -> Tensor:
    """Return the loss of a batch, a scalar: summed over the candidates of an instance, averaged over instances.

    Logits (-inf without a child), candidates and targets are [batch, n, largest fan-out]; `depths`, [batch, n] or [n],
    are the levels at which children are chosen.
    """
    if row.loss == "bce":
        logits, weights = logits.masked_fill(~candidates, 0.0), candidates.to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, targets, weights, reduction="sum") / len(logits)
    if row.loss == "child softmax":
        return softmax_loss(logits, targets * candidates) / len(logits)
    total = logits.new_zeros(())
    for depth in range(int(depths.max()) + 1):
        here = candidates & (depths == depth)[..., None]
        total = total + softmax_loss(logits.masked_fill(~here, -torch.inf).flatten(1), (targets * here).flatten(1))
    return total / len(logits)


def margin_loss(margins: str, scores: Tensor, candidates: Tensor, relevant: Tensor, depths: Tensor) -> Tensor:
    """Return by how much the best relevant path falls short of a margin over its rivals, averaged over instances.

    "prefixes": at every level with a relevant node, the mean over the other candidates of that level, summed over
    levels (RIPOR has the squared error to a teacher's margins instead). "documents": one hinge, against the best other
    document (LTRGR). `scores` (log-probabilities of the paths to nodes), `candidates` and `relevant` are [batch, n,
    largest fan-out].
    """
    total = scores.new_zeros(())
    levels = range(int(depths.max()) + 1) if margins == "prefixes" else [None]
    for level in levels:
        here = candidates if level is None else candidates & (depths == level)[..., None]
        right = scores.masked_fill(~(here & relevant), -torch.inf).flatten(1).amax(dim=1)  # [batch]
        rivals = (here & ~relevant).flatten(1)  # [batch, n * largest fan-out]
        lacking = (_MARGIN + scores.flatten(1) - right[:, None]).masked_fill(~rivals, 0.0).clamp(min=0)
        lacking = lacking.masked_fill(right[:, None] == -torch.inf, 0.0)
        per_instance = lacking.amax(dim=1) if level is None else lacking.sum(dim=1) / rivals.sum(dim=1).clamp(min=1)
        total = total + per_instance.mean()
    return total
