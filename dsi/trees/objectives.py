"""Training objectives of tree models as rows of one table: which nodes are asked, what they should say, how that is scored.

| name | candidates | targets | loss | score |
| --- | --- | --- | --- | --- |
| ce | path | z | child softmax | softmax path |
| plt | path | z | bce | sigmoid path |
| tdm | random | z | bce | node |
| otm | beam | mixed | bce | node |
| otm-bs | random | mixed | bce | node |
| otm-optest | beam | z | bce | node |
| otm-mix | beam+random | mixed | bce | node |
| man | path+beam | z | bce | sigmoid path |
| dtr | beam+random | z | level softmax | node |

ce is hierarchical softmax (what a docid decoder learns), plt a probabilistic label tree (Jasinska et al. 2016), tdm the
tree-based deep model (Zhu et al. 2018), otm Algorithm 1 of Zhuo et al. 2020 with its ablations (-BS: no beam, -OptEst: no
zhat), man PECOS' matcher-aware negatives (Yu et al. 2020), dtr a softmax over a level's candidates (Liu et al. 2024).

Logits, candidates and targets come as families (`dsi.trees.families`): [batch, n, largest fan-out], the children of n
inner nodes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dsi.trees.targets import TreeTargets

_CANDIDATES = ("path", "random", "beam", "beam+random", "path+beam")
_TARGETS = ("z", "zhat", "mixed")
_LOSSES = ("bce", "child softmax", "level softmax")
_SCORES = ("softmax path", "sigmoid path", "node")


@dataclass(frozen=True)
class Objective:
    """One row of the table.

    Attributes:
        candidates: "path" (children of the nodes above a relevant document), "random" (nodes of each level at random, and the
            relevant ones), "beam" (children of the beam that the model itself has, eq. 3), or two of them.
        targets: "z" (eq. 2), "zhat" (eq. 15) or "mixed": z at first, zhat in the end.
        loss: "bce" on every candidate; "child softmax" over each asked parent's children; "level softmax" over a level's
            candidates.
        score: what ranks nodes in search: "softmax path" and "sigmoid path" (sums of log-probabilities), or the "node"'s own.
    """

    candidates: str
    targets: str
    loss: str
    score: str

    def __post_init__(self) -> None:
        for name, allowed in (
            ("candidates", _CANDIDATES),
            ("targets", _TARGETS),
            ("loss", _LOSSES),
            ("score", _SCORES),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if (self.loss == "child softmax") != (self.score == "softmax path"):
            raise ValueError(
                f'loss "child softmax" and score "softmax path" go together, got loss {self.loss!r} with score {self.score!r}: '
                "probabilities among siblings only mean something along a path."
            )
        if self.score != "node" and "path" not in self.candidates:
            raise ValueError(
                f'score "{self.score}" multiplies what nodes say given their parent; candidates must have "path", '
                f"got {self.candidates!r}."
            )
        if self.loss == "child softmax" and self.candidates != "path":
            raise ValueError(
                f'loss "child softmax" asks the path alone; candidates must be "path", got {self.candidates!r}.'
            )

    @property
    def asks_itself(self) -> bool:
        """Do candidates or targets need a model that knows something already?"""
        return self.score == "node" and ("beam" in self.candidates or self.targets != "z")

    @property
    def forces_relevant(self) -> bool:
        """Are relevant nodes asked whatever the sample is, so that they are more frequent among the asked than in the tree?"""
        return self.candidates == "random"


OBJECTIVES = {
    "ce": Objective("path", "z", "child softmax", "softmax path"),
    "plt": Objective("path", "z", "bce", "sigmoid path"),
    "tdm": Objective("random", "z", "bce", "node"),
    "otm": Objective("beam", "mixed", "bce", "node"),
    "otm-bs": Objective("random", "mixed", "bce", "node"),
    "otm-optest": Objective("beam", "z", "bce", "node"),
    "otm-mix": Objective("beam+random", "mixed", "bce", "node"),
    "man": Objective("path+beam", "z", "bce", "sigmoid path"),
    "dtr": Objective("beam+random", "z", "level softmax", "node"),
}


def find_objective(name: str) -> Objective:
    """The row of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {name!r}.")
    return OBJECTIVES[name]


def phase(objective: Objective, done: float, warm_start: float, ramp: float) -> tuple[Objective, float]:
    """What is trained at some point of the training, and the share of zhat in "mixed" targets there.

    A model that knows nothing finds no relevant node with its beam, and greedy descent from upper nodes ends nowhere: tdm comes
    first, then zhat step by step.

    Args:
        objective: of the training.
        done: share of all steps, in [0, 1).
        warm_start: share of the steps for tdm.
        ramp: share of the remaining steps over which targets go from z to zhat.
    """
    if objective.asks_itself and done < warm_start:
        return OBJECTIVES["tdm"], 0.0
    late = (done - warm_start) / max(1e-9, ramp * (1 - warm_start))
    return objective, {"z": 0.0, "zhat": 1.0, "mixed": min(1.0, max(0.0, late))}[objective.targets]


def log_prior(score: str, num_children: Tensor, level_size: Tensor) -> Tensor:
    """What is added to logits, so that an untrained scorer calls a node as probable as one relevant document makes it.

    Args:
        score: of the objective.
        num_children: of the node's parent.
        level_size: how many nodes its level has.
    """
    if score == "softmax path":
        return torch.zeros_like(level_size)
    return -(num_children if score == "sigmoid path" else level_size).log()


def ranking_scores(targets: TreeTargets, logits: Tensor, score: str) -> Tensor:
    """[batch, nodes] what ranks nodes, from the scorer's logits [batch, nodes]; for paths the sum of log-probabilities."""
    if score == "node":
        return logits
    return targets.path_sums(F.logsigmoid(logits) if score == "sigmoid path" else targets.sibling_log_softmax(logits))


def candidate_nodes(
    targets: TreeTargets, objective: Objective, logits: Tensor, z: Tensor, beam_width: int, random_nodes: int
) -> Tensor:
    """[batch, nodes] True at the nodes that are asked.

    Args:
        targets: of the tree.
        objective: whose candidates.
        logits: [batch, nodes] of the scorer as it is.
        z: [batch, nodes] 1 where a relevant document is below.
        beam_width: of the beam.
        random_nodes: of each level, on average.
    """
    asked = torch.zeros_like(z, dtype=torch.bool)
    if "path" in objective.candidates:
        asked |= targets.below_parents(z > 0)
    if "beam" in objective.candidates:
        for nodes in targets.beams(ranking_scores(targets, logits, objective.score), beam_width):
            rows = torch.arange(len(nodes), device=nodes.device)[:, None].expand_as(nodes)
            asked[rows[nodes >= 0], nodes[nodes >= 0]] = True
    if "random" in objective.candidates:
        asked |= torch.rand_like(logits) < (random_nodes / targets.level_sizes)
    if objective.forces_relevant:
        asked |= z > 0
    asked[:, 0] = False  # the root is no choice
    return asked


def objective_loss(objective: Objective, logits: Tensor, asked: Tensor, wanted: Tensor, depths: Tensor) -> Tensor:
    """Scalar: the sum over the candidates of an instance, averaged over the batch.

    Args:
        objective: whose loss.
        logits: [batch, n, largest fan-out], -inf where there is no child.
        asked: the same shape, True at candidates.
        wanted: the same shape, their targets.
        depths: [batch, n] or [n] level at which the children of each family are chosen.
    """
    if objective.loss == "bce":
        logits = logits.masked_fill(~asked, 0.0)
        return F.binary_cross_entropy_with_logits(logits, wanted, asked.to(logits.dtype), reduction="sum") / len(logits)
    if objective.loss == "child softmax":
        return _softmax_loss(logits, wanted * asked) / len(logits)
    total = logits.new_zeros(())
    for depth in range(int(depths.max()) + 1):
        here = asked & (depths == depth)[..., None]
        total = total + _softmax_loss(logits.masked_fill(~here, -torch.inf).flatten(1), (wanted * here).flatten(1))
    return total / len(logits)


def _softmax_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy over the last dimension, summed; the targets share their weight equally, rows without any count nothing."""
    some = (wanted > 0).any(dim=-1)
    share = wanted[some] / wanted[some].sum(dim=-1, keepdim=True)
    log_p = logits[some].log_softmax(dim=-1)
    return -(share * log_p.masked_fill(share == 0, 0.0)).sum()
