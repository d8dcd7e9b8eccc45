"""Training objectives: what one is, and that of the library, "ce".

An objective says how search ranks nodes, and computes the loss of a batch. Other packages add theirs as entry points
`dsi.objectives` (see `dsi.docids.extensions`). Knows no training loop and no decoder: the model to train is a function of a
batch.
"""

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsi.docids import extensions
from dsi.docids.files.checks import shown
from dsi.docids.tree import DocidTree
from dsi.generator.families import Families, FamilyTree

SCORES = ("softmax path", "sigmoid path", "node")
"""How search ranks nodes: by sums of log-probabilities along the path ("softmax path": among siblings; "sigmoid path": of each
child), or by the "node"'s own probability."""


@dataclass(frozen=True)
class Task:
    """The training that an objective takes part in."""

    generator: Any  # the model to train, a `dsi.generator.base.Generator`
    tree: DocidTree  # its docids
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # of the batches
    dtype: torch.dtype = torch.float32  # of arithmetic outside the model, such as that of a search
    # [n] docid position of each training example
    positions: NDArray[np.integer] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


class Objective(ABC):
    """A training objective. A subclass sets `score` and computes `loss`.

    Args:
        task: the training.

    Attributes:
        score: how search ranks nodes, "softmax path", "sigmoid path" or "node" (see `SCORES`); an index keeps it.
        training_beam: beam width of the training if nodes outside the beam are not trained, so that a search with a wider one
            warns; 0 otherwise. An index keeps it.
        all_relevant: True if all documents with an example's text are relevant for it; False if each example has one document.
        frozen_encoder: True if the loss itself reads token states or embeddings of a batch, which a batch lacks under
            `training.train_encoder`.
        families: packs inner nodes of the tree for `logits`.
    """

    score: ClassVar[str]
    training_beam: ClassVar[int] = 0
    all_relevant: ClassVar[bool] = False
    frozen_encoder: ClassVar[bool] = False

    def __init__(self, task: Task) -> None:
        self.task, self.families = task, FamilyTree(task.tree, task.device)

    @abstractmethod
    def loss(self, model: Any, batch: dict[str, Tensor], done: float) -> Tensor:
        """Return the loss in nats per example, a scalar averaged over the batch.

        Args:
            model: the generator, or encoder and generator as one model, possibly wrapped for several processes.
            batch: as `DocidExamples.collate` returns it: the model's inputs, and `relevant` [batch, m] docid positions (-1 at
                padding).
            done: share of the training steps that are done, in [0, 1).
        """

    def logits(self, model: Any, batch: dict[str, Tensor], families: Families) -> Tensor:
        """Return the decoder's logits of the families' children, [batch, n, largest fan-out]; -inf without a child."""
        inputs = {name: value for name, value in batch.items() if name not in ("relevant", "embeddings")}
        by_node = self.task.generator.tokens_are_nodes
        tokens = families.parents.clamp(min=0) if by_node else families.tokens
        decoded = model(**inputs, tokens=tokens, depths=families.depths, sees=families.sees)
        logits: Tensor = decoded["logits"].float()
        return logits.masked_fill(~families.exists, -torch.inf)


class CrossEntropy(Objective):
    """A softmax over the children of each node on the path: objective "ce", as in the paper."""

    score = "softmax path"

    def loss(self, model: Any, batch: dict[str, Tensor], done: float) -> Tensor:
        """Return −Σ log p along the paths to the relevant documents."""
        families = self.families.pack(self.families.above(batch["relevant"]))
        targets = self.families.holds_any(families, batch["relevant"])
        return softmax_loss(self.logits(model, batch, families), targets) / len(targets)  # DR-SCL eq. 8


BUILT_IN: dict[str, type[Objective]] = {"ce": CrossEntropy}
"""The objectives of the library by name."""


def find_objective(name: str) -> type[Objective]:
    """Return the objective of that name: one of `BUILT_IN`, or an entry point of another package.

    >>> find_objective("ce").score
    'softmax path'
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    objective = extensions.load_extension(extensions.OBJECTIVES, name)
    if objective is None:
        names = ", ".join(extensions.extension_names(extensions.OBJECTIVES, list(BUILT_IN)))
        raise ValueError(
            f"training.objective must be one of {names}, got {name!r}; install it, or pass objective=Class."
        )
    if not (isinstance(objective, type) and issubclass(objective, Objective)):
        raise ValueError(
            f"The objective {name!r} must be a subclass of dsi.generator.objectives.Objective, got {shown(objective)}."
        )
    if (score := getattr(objective, "score", None)) not in SCORES:
        raise ValueError(f"The score of objective {name!r} must be one of {', '.join(SCORES)}, got {shown(score)}.")
    if not extensions.takes(objective.loss, "self", "model", "batch", "done") or inspect.isabstract(objective):
        raise ValueError(f"The objective {name!r} must define loss(self, model, batch, done).")
    return objective


def log_prior(score: str, num_children: Tensor, level_size: Tensor) -> Tensor:
    """Return the initial bias of the logits: before training, a node has the probability that a random document is below it."""
    if score == "softmax path":
        return torch.zeros_like(level_size)
    return -(num_children if score == "sigmoid path" else level_size).log()


def softmax_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy over the last dimension, summed; targets are rescaled to sum to 1, rows without one add 0."""
    has_positive = (targets > 0).any(dim=-1)
    share = targets[has_positive] / targets[has_positive].sum(dim=-1, keepdim=True)  # [rows with a positive, classes]
    log_p = logits[has_positive].log_softmax(dim=-1)
    return -(share * log_p.masked_fill(share == 0, 0.0)).sum()
