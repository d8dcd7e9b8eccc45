"""The loss of a batch: selects training nodes, builds their targets, scores them in one pass of the decoder.

Implements Algorithm 1 of Zhuo et al. 2020 on a docid tree, in two phases. Without gradient, the search that retrieval uses
finds the decoder's current beam. Then one decoder pass, with gradient, scores the children of the beam's nodes together with
those of the nodes above the relevant documents; the targets of eq. 15 come from the same logits. Cross-entropy (DR-SCL eq. 8)
trains the path only and needs no beam; "estimate" trains all inner nodes of each level. Knows nothing of texts or of the
training loop.
"""

from typing import Any

import torch
from torch import Tensor

from docids.tree import DocidTree
from dsi.generator.base import Generator
from dsi.generator.config import ObjectiveConfig
from dsi.generator.tied import LevelOutputs
from dsi.search.beam import BeamSearch
from dsi.search.decoder import search_decoder
from dsi.trees.bonus import bonuses
from dsi.trees.dense import DenseScores
from dsi.trees.families import Families, FamilyTree
from dsi.trees.objectives import Objective, find_objective, log_prior, margin_loss, objective_loss, phase, softmax_loss

_LABELS = ("relevant", "kinds", "taught", "taught_weights")
"""Entries of a batch that are not the model's inputs."""
_LARGEST_LEVEL = 16_384
"""Levels with more inner nodes are sampled: the nodes that the batch's labels name, and random ones."""
_SAMPLE = 4096
"""Random nodes of a sampled level."""


class GeneratorLoss:
    """The loss of a batch under an objective.

    Args:
        generator: the model to train; every beam search uses its current weights.
        tree: its docids.
        config: the objective.
        device: of the batches.
        dense: dense scores to train on top of.
        dtype: of the searches that find the decoder's beam.
    """

    def __init__(
        self,
        generator: Generator,
        tree: DocidTree,
        config: ObjectiveConfig,
        device: torch.device,
        dense: "DenseLogits | None" = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.generator, self.tree, self.config, self.dense, self.dtype = generator, tree, config, dense, dtype
        self.families = FamilyTree(tree, device)
        self.objective = find_objective(config.name)
        self.tied, self.words = (generator.config.docid_tokens == kind for kind in ("tied", "words"))
        if self.tied:
            self._vectors = torch.from_numpy(tree.centroids[:]).to(device)  # [inner nodes, dim]
            self._bonuses = torch.from_numpy(bonuses(tree)).to(device)
        self._level_sizes = torch.tensor(tree.level_sizes, dtype=torch.float32, device=device)
        self._beam_search: BeamSearch | None = None

    def __call__(self, model: Any, batch: dict[str, Tensor], done: float) -> Tensor:
        """Return the loss in nats per example, averaged over the batch.

        Args:
            model: the generator, or encoder and generator as one model, possibly wrapped for several processes.
            batch: as `DocidExamples.collate` returns it.
            done: share of the training steps that are done.
        """
        features = {name: value for name, value in batch.items() if name not in _LABELS}
        if self.tied:
            return self._level_loss(model(**features), batch)
        features.pop("embeddings", None)

        # Candidates (Algorithm 1, step 4), and the logits of all families in one pass.
        objective, towards_zhat = phase(self.objective, done, self.config.warm_start, self.config.ramp)
        families, asked = self.ask(objective, batch)
        logits = self._logits(model, features, families).float().masked_fill(~families.exists, -torch.inf)

        # Targets: z (Zhuo et al. 2020, eq. 1), or moved towards zhat (eq. 15; Algorithm 1, step 5) or the teacher.
        relevant = wanted = self.families.holds_any(families, batch["relevant"])
        if "taught" in batch:
            taught = self.families.mass(families, batch["taught"], batch["taught_weights"])
            wanted = torch.lerp(wanted, taught, self.config.distillation)
        elif self.dense is not None:
            logits = logits + self.dense(batch["embeddings"], families.children, batch["kinds"])
        elif towards_zhat:
            zhat = self.families.estimated(families, logits.detach(), wanted)
            wanted = torch.lerp(wanted, zhat, towards_zhat)

        # Loss: DR-SCL eq. 8 ("ce"); Zhuo et al. 2020, eq. 2 (path or random candidates) or eq. 16 (beam; Algorithm 1, step 6).
        logits = logits + self._prior(objective, families, asked)
        loss = objective_loss(objective, logits, asked, wanted, families.depths)
        if objective.margins:
            compared = asked & (families.children >= self.tree.num_inner) if objective.margins == "documents" else asked
            scores = path_scores(logits, families)
            loss = loss + margin_loss(objective.margins, scores, compared, relevant > 0, families.depths)
        return loss

    def _logits(self, model: Any, features: dict[str, Tensor], families: Families) -> Tensor:
        """Return the logits [batch, n, largest fan_out] of the children of all families."""
        tokens = families.parents.clamp(min=0) if self.words else families.tokens
        decoded = model(**features, tokens=tokens, depths=families.depths, sees=families.sees)
        return decoded["logits"]  # type: ignore[no-any-return]

    def _level_loss(self, outputs: LevelOutputs, batch: dict[str, Tensor]) -> Tensor:
        """Return the cross-entropy of the softmax over the inner nodes of each level, summed over levels."""
        positions, weights = self._labels(batch)
        loss = weights.new_zeros(())
        for level, wanted in enumerate(self.families.at_depths(positions)[1:]):  # wanted: [batch, m]
            nodes = self._sampled(level, wanted)
            own = self.tree.levels[level + 1] if nodes is None else nodes
            scores = outputs.queries[:, level].float() @ self._vectors[own].T  # [batch, nodes]
            scores = outputs.scales[level] * (scores + outputs.size_weights[level] * self._bonuses[own])
            first = self.tree.levels[level + 1].start
            columns = wanted - first if nodes is None else torch.searchsorted(nodes, wanted)
            there = wanted >= 0
            targets = torch.zeros_like(scores).scatter_add(1, columns.masked_fill(~there, 0), weights * there)
            loss = loss + softmax_loss(scores, targets)
        return loss / len(positions)

    def _labels(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return docid positions [batch, m] of relevant and taught documents, and their weights, which sum to 1."""
        relevant = batch["relevant"]
        weights = (relevant >= 0).float()
        weights = weights / weights.sum(dim=1, keepdim=True)
        if "taught" not in batch:
            return relevant, weights
        share = self.config.distillation
        return (
            torch.cat([relevant, batch["taught"]], dim=1),
            torch.cat([(1 - share) * weights, share * batch["taught_weights"]], dim=1),
        )

    def _sampled(self, level: int, wanted: Tensor) -> Tensor | None:
        """Return the inner nodes of a level over which its softmax runs, in order; None for all."""
        nodes = self.tree.levels[level + 1]
        if nodes.stop - nodes.start <= _LARGEST_LEVEL:
            return None
        drawn = torch.randint(nodes.start, nodes.stop, (_SAMPLE,), device=wanted.device)
        return torch.cat([wanted[wanted >= 0], drawn]).unique()

    @torch.no_grad()
    def ask(self, objective: Objective, batch: dict[str, Tensor]) -> tuple[Families, Tensor]:
        """Return the families to score, and their candidates: [batch, n, largest fan_out] True at children that are trained."""
        relevant = batch["relevant"]
        path = self.families.above(relevant)
        sources = [path] if "path" in objective.candidates or objective.forces_relevant else []
        if "beam" in objective.candidates:
            sources.append(self._beam(batch))
        if "random" in objective.candidates:
            shape = (len(relevant), self.config.random_paths)
            sources.append(self.families.above(torch.randint(self.tree.num_documents, shape, device=relevant.device)))
        if "taught" in batch and objective.loss == "level softmax":
            sources.append(self.families.above(batch["taught"]))
        # The path is always scored, because zhat needs its logits.
        families = self.families.pack(torch.cat([path, *sources], dim=1))
        rows = torch.stack([families.among(source) for source in sources]).any(dim=0)  # [batch, n]
        return families, families.exists & rows[:, :, None]

    def _beam(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the inner nodes [batch, m] that beam search with the current decoder keeps (Zhuo et al. 2020, eq. 3)."""
        states = batch["token_states"]
        mask = batch.get("states_mask", torch.ones_like(states[:, :, 0], dtype=torch.bool))
        with torch.autocast(states.device.type, enabled=False):
            decoder = search_decoder(self.generator, self.dtype)
            if self._beam_search is None:
                self._beam_search = BeamSearch(self.tree, decoder, states.device)
            self._beam_search.decoder = decoder
            nodes = self._beam_search.kept_nodes(states, mask, self.config.training_beam)
        root = nodes.new_zeros(len(nodes), 1)
        return torch.cat([root, nodes.masked_fill(nodes >= self.tree.num_inner, -1)], dim=1)

    def _prior(self, objective: Objective, families: Families, asked: Tensor) -> Tensor:
        """Return what search adds to the logits, [batch, n, 1], corrected for the relevant nodes forced into the sample."""
        level_size = self._level_sizes[families.depths]  # [batch, n]
        prior = log_prior(objective.score, families.exists.sum(dim=2).clamp(min=1), level_size)
        if objective.forces_relevant:
            # [batch, depth] candidates per level
            counts = torch.zeros(len(asked), self.tree.depth, device=asked.device)
            counts.scatter_add_(1, families.depths, asked.sum(dim=2).float())
            prior = prior + (level_size / counts.gather(1, families.depths).clamp(min=1)).clamp(min=1).log()
        return prior[:, :, None]


def decoder_positions(tree: DocidTree, config: ObjectiveConfig, samples: int = 256) -> float:
    """Estimate the decoder positions that an example costs under an objective; one with gradient counts three times.

    Args:
        tree: the docids.
        config: the objective.
        samples: number of documents whose paths are averaged.
    """
    families, rng = FamilyTree(tree, torch.device("cpu")), torch.Generator().manual_seed(0)
    searched = tree.expansions(config.training_beam)

    def cost(objective: Objective) -> float:
        documents = 1 + (config.random_paths if "random" in objective.candidates else 0)
        drawn = torch.randint(tree.num_documents, (samples, documents), generator=rng)
        paths = (families.pack(families.above(drawn)).parents >= 0).sum(dim=1).float().mean().item()
        return 3 * paths + (4 * searched if "beam" in objective.candidates else 0)

    own = find_objective(config.name)
    share = config.warm_start if own.needs_warm_start else 0.0
    return share * cost(own.warm_up) + (1 - share) * cost(own)


def path_scores(logits: Tensor, families: Families) -> Tensor:
    """Return the log-probabilities [batch, n, largest fan-out] of the paths from the root to all children.

    Args:
        logits: the same shape, -inf where there is no child.
        families: with all ancestors of each.
    """
    own = logits.log_softmax(dim=2).masked_fill(~families.exists, 0.0)  # of the last step
    children = families.children.flatten(1)[:, None]  # [batch, 1, n * largest fan-out]
    is_step = (children == families.parents[:, :, None]) & (children >= 0)  # [batch, n, n * largest fan-out]
    steps = (is_step * own.flatten(1)[:, None]).sum(dim=2)  # [batch, n] the step into each family; 0 into the root's
    above = torch.einsum("bij,bj->bi", families.sees.to(own.dtype), steps)
    return above[:, :, None] + own


class DenseLogits:
    """Flat dense search as logits of children: along a path, their softmaxes multiply to the document's probability.

    A document's score is z.e_d / temperature plus the log of its frequency among training examples of the same kind. The
    decoder then need not learn what frequency explains, and since search leaves frequencies out, frequent documents get no
    head start (logit adjustment, Menon et al. 2021).

    Args:
        tree: the docids.
        temperature: divides the dot products.
        log_frequencies: [kinds, documents] in docid order.
        device: where scores are computed.
    """

    def __init__(self, tree: DocidTree, temperature: float, log_frequencies: Tensor, device: torch.device) -> None:
        self.scores, self.temperature = DenseScores(tree, device), temperature
        self.log_frequencies = log_frequencies.to(device)

    @torch.no_grad()
    def __call__(self, embeddings: Tensor, children: Tensor, kinds: Tensor) -> Tensor:
        """Return the logits [batch, n, fan_out] of children [batch, n, fan_out].

        Padding (child -1) gets an arbitrary logit.

        Args:
            embeddings: [batch, dim] of the texts.
            children: nodes, -1 at padding.
            kinds: [batch] kind of each text.
        """
        documents = self.scores.document_scores(embeddings.float()) / self.temperature + self.log_frequencies[kinds]
        nodes = self.scores.log_sum(documents)  # [batch, nodes]
        return nodes.gather(1, children.clamp(min=0).flatten(1)).view_as(children)
