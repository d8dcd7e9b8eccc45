"""The rows of `dsi_experiments.objectives.rows` as training objectives of a docid decoder.

Implements Algorithm 1 of Zhuo et al. 2020 on a docid tree, in two phases. Without gradient, the search that retrieval uses
finds the decoder's current beam. Then one decoder pass, with gradient, scores the children of the beam's nodes together with
those of the nodes above the relevant documents; the targets of eq. 15 come from the same logits. Knows nothing of texts or of
the training loop.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dsi.docids.tree import DocidTree
from dsi.generator.beam import PathEngine
from dsi.generator.families import Families
from dsi.generator.objectives import Objective, Task, log_prior
from dsi.search.queries import QueryBatch
from dsi.search.request import SearchConfig, SearchRequest
from dsi.search.results import Trace
from dsi_experiments.objectives.rows import ROWS, ObjectiveRow, margin_loss, objective_loss, phase
from dsi_experiments.tree_targets import target_of_best_child

BEAM_WIDTH = 10
"""Of the search in objectives that train on the decoder's own beam."""
RANDOM_PATHS = 10
"""Random documents per example whose paths are trained on, in objectives with random candidates."""


class TreeObjective(Objective):
    """One row of the table as an objective."""

    row: ClassVar[ObjectiveRow]  # which nodes are trained, their targets and the loss
    all_relevant = True

    def __init_subclass__(cls, row: str) -> None:
        cls.row = ROWS[row]
        cls.score = cls.row.score
        cls.training_beam = BEAM_WIDTH if cls.row.candidates == "beam" else 0
        cls.frozen_encoder = "beam" in cls.row.candidates

    def __init__(self, task: Task, beam_width: int = BEAM_WIDTH, random_paths: int = RANDOM_PATHS) -> None:
        super().__init__(task)
        self.beam_width, self.random_paths = beam_width, random_paths
        self._best_child = BestChildTargets(task.tree, task.device)
        self._level_sizes = torch.tensor(task.tree.level_sizes, dtype=torch.float32, device=task.device)
        self._beam_search: PathEngine | None = None

    def loss(self, model: Any, batch: dict[str, Tensor], done: float) -> Tensor:
        """Return the loss of the row that is trained at this point of the training."""
        # Candidates (Algorithm 1, step 4), and the logits of all families in one pass.
        row, towards_zhat = phase(self.row, done)
        families, candidates = self.candidates(row, batch)
        logits = self.logits(model, batch, families)

        # Targets: z (Zhuo et al. 2020, eq. 1), or moved towards zhat (eq. 15; Algorithm 1, step 5).
        targets = z = self.families.holds_any(families, batch["relevant"])
        if towards_zhat:
            targets = torch.lerp(z, self._best_child(families, logits.detach(), z), towards_zhat)

        # Loss: Zhuo et al. 2020, eq. 2 (path or random candidates) or eq. 16 (beam; Algorithm 1, step 6).
        logits = logits + self._prior(row, families, candidates)
        loss = objective_loss(row, logits, candidates, targets, families.depths)
        if row.margins:
            documents = families.children >= self.task.tree.num_inner
            compared = candidates & documents if row.margins == "documents" else candidates
            loss = loss + margin_loss(row.margins, path_scores(logits, families), compared, z > 0, families.depths)
        return loss

    @torch.no_grad()
    def candidates(self, row: ObjectiveRow, batch: dict[str, Tensor]) -> tuple[Families, Tensor]:
        """Return the families to score, and [batch, n, largest fan-out]: True at children that are trained."""
        relevant = batch["relevant"]
        path = self.families.above(relevant)
        sources = [path] if "path" in row.candidates or row.forces_relevant else []
        if "beam" in row.candidates:
            sources.append(self._beam(batch))
        if "random" in row.candidates:
            shape = (len(relevant), self.random_paths)
            documents = torch.randint(self.task.tree.num_places, shape, device=relevant.device)
            sources.append(self.families.above(documents))
        # The path is always scored, because zhat needs its logits.
        families = self.families.pack(torch.cat([path, *sources], dim=1))
        trained = torch.stack([families.among(source) for source in sources]).any(dim=0)  # [batch, n]
        return families, families.exists & trained[:, :, None]

    def _beam(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the inner nodes [batch, m] that beam search with the current decoder keeps (Zhuo et al. 2020, eq. 3)."""
        states, tree = batch["token_states"], self.task.tree
        mask = batch.get("states_mask", torch.ones_like(states[:, :, 0], dtype=torch.bool))
        with torch.autocast(states.device.type, enabled=False):
            generator = self.task.generator.for_search(self.task.dtype)
            if self._beam_search is None:
                self._beam_search = PathEngine(tree, generator)
            self._beam_search.generator = generator
            nodes = _kept_nodes(self._beam_search, states, mask, self.beam_width)
        root = nodes.new_zeros(len(nodes), 1)
        return torch.cat([root, nodes.masked_fill(nodes >= tree.num_inner, -1)], dim=1)

    def _prior(self, row: ObjectiveRow, families: Families, candidates: Tensor) -> Tensor:
        """Return what search adds to the logits, [batch, n, 1], corrected for the relevant nodes forced into the sample."""
        level_size = self._level_sizes[families.depths]  # [batch, n]
        prior = log_prior(row.score, families.exists.sum(dim=2).clamp(min=1), level_size)
        if row.forces_relevant:
            # [batch, depth] candidates per level
            counts = torch.zeros(len(candidates), self.task.tree.depth, device=candidates.device)
            counts.scatter_add_(1, families.depths, candidates.sum(dim=2).float())
            prior = prior + (level_size / counts.gather(1, families.depths).clamp(min=1)).clamp(min=1).log()
        return prior[:, :, None]


class PLT(TreeObjective, row="plt"):
    """Probabilistic label tree (Jasinska et al. 2016)."""


class TDM(TreeObjective, row="tdm"):
    """Tree-based deep model (Zhu et al. 2018)."""


class OTM(TreeObjective, row="otm"):
    """Optimal tree model (Zhuo et al. 2020, Algorithm 1)."""


class OTMWithoutBeam(TreeObjective, row="otm-bs"):
    """The ablation OTM (-BS) of Zhuo et al. 2020."""


class OTMWithoutEstimates(TreeObjective, row="otm-optest"):
    """The ablation OTM (-OptEst) of Zhuo et al. 2020."""


class OTMMix(TreeObjective, row="otm-mix"):
    """OTM with random nodes beside those of the beam (ours)."""


class MAN(TreeObjective, row="man"):
    """Matcher-aware negatives (PECOS; Yu et al. 2020)."""


class DTR(TreeObjective, row="dtr"):
    """A softmax over the candidates of a level (Liu et al. 2024)."""


class RIPOR(TreeObjective, row="ripor"):
    """Margins at every prefix of a docid (Zeng et al. 2024)."""


class LTRGR(TreeObjective, row="ltrgr"):
    """A margin between whole docids (Li et al. 2024)."""


class BestChildTargets:
    """Computes zhat over families: the target of each child's best child."""

    def __init__(self, tree: DocidTree, device: torch.device) -> None:
        self.tree = tree
        self._parents = torch.from_numpy(tree.parents).long().to(device)
        self._first_child = torch.from_numpy(tree.first_child).long().to(device)

    def __call__(self, families: Families, logits: Tensor, z: Tensor) -> Tensor:
        """Return zhat of the children (eq. 15), [batch, n, largest fan-out].

        Computed from the documents upwards; 1 where greedy descent from the child ends in a relevant document.
        `families` must have that of every inner node with a relevant document below.
        """
        num_inner = self.tree.num_inner
        zhat = torch.where(families.children < num_inner, 0.0, z)  # documents; inner nodes follow, level by level
        parents, rows = families.parents, torch.arange(len(logits), device=logits.device)[:, None]
        above = self._parents[parents.clamp(min=0)]
        place = torch.searchsorted(torch.where(parents < 0, num_inner, parents), above.clamp(min=0))
        digit = (parents - self._first_child[above.clamp(min=0)]).clamp(min=0)
        for depth in range(self.tree.depth - 1, 0, -1):
            here = (families.depths == depth) & (parents >= 0)  # [batch, n]
            zhat[rows.expand_as(parents)[here], place[here], digit[here]] = target_of_best_child(
                logits[here], zhat[here]
            )
        return zhat


def path_scores(logits: Tensor, families: Families) -> Tensor:
    """Return the log-probabilities [batch, n, largest fan-out] of the paths from the root to all children."""
    last_step = logits.log_softmax(dim=2).masked_fill(~families.exists, 0.0)
    children = families.children.flatten(1)[:, None]  # [batch, 1, n * largest fan-out]
    is_step = (children == families.parents[:, :, None]) & (children >= 0)  # [batch, n, n * largest fan-out]
    steps = (is_step * last_step.flatten(1)[:, None]).sum(
        dim=2
    )  # [batch, n] the step into each family; 0 into the root's
    above = torch.einsum("bij,bj->bi", families.sees.to(last_step.dtype), steps)
    return above[:, :, None] + last_step


@torch.no_grad()
def _kept_nodes(engine: PathEngine, states: Tensor, mask: Tensor, beam_width: int) -> Tensor:
    """[batch, n] the nodes that a search by the decoder alone keeps; -1 at padding.

    It reads states [batch, length, d_model], with mask [batch, length] True at real tokens.
    """
    read, real = states.numpy(force=True), mask.bool().numpy(force=True)
    batch = QueryBatch(np.arange(len(read)), read, real, read[:, 0], [""] * len(read))
    request = SearchRequest(min(beam_width, engine.tree.num_rows), SearchConfig(alpha=1.0, beta=0.0))
    trace = Trace()
    engine.descend(engine.queries(batch, request), request.k, beam_width, None, trace)
    kept = [np.where(level.kept, level.nodes, -1) for level in trace.levels]
    return torch.from_numpy(np.concatenate(kept, axis=1)).to(states.device)
