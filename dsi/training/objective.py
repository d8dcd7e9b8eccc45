"""The loss of a batch: selects training nodes, builds their targets, scores them in one pass of the decoder.

Implements Algorithm 1 of Zhuo et al. 2020 on a docid tree, in two phases. Without gradient, the search that retrieval uses
finds the decoder's current beam. Then one decoder pass, with gradient, scores the children of the beam's nodes together with
those of the nodes above the relevant documents; the targets of eq. 15 come from the same logits. Cross-entropy (DR-SCL eq. 8)
trains the path only and needs no beam. Knows nothing of texts or of the training loop.
"""

from typing import Any

import torch
from torch import Tensor

from docids.tree import DocidTree
from dsi.generator.config import ObjectiveConfig
from dsi.generator.model import DocidGenerator
from dsi.search.beam import LevelTrace, TreeSearcher
from dsi.search.decoder import FastDecoder
from dsi.search.request import ScoredQueries, SearchConfig, SearchRequest
from dsi.trees.dense import DenseScores, KnownScores
from dsi.trees.families import Families, FamilyTree
from dsi.trees.objectives import Objective, find_objective, log_prior, objective_loss, phase


class GeneratorLoss:
    """The loss of a batch under an objective.

    Args:
        generator: the model to train; every beam search uses its current weights.
        tree: its docids.
        config: the objective.
        device: of the batches.
        dense: dense scores to train on top of, or to distil.
        dtype: of the searches that find the decoder's beam.
    """

    def __init__(
        self,
        generator: DocidGenerator,
        tree: DocidTree,
        config: ObjectiveConfig,
        device: torch.device,
        dense: "DenseLogits | None" = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.generator, self.tree, self.config, self.dense, self.dtype = generator, tree, config, dense, dtype
        self.families = FamilyTree(tree, device)
        self.objective = find_objective(config.name)
        self._level_sizes = torch.tensor(tree.level_sizes, dtype=torch.float32, device=device)
        self._searcher: TreeSearcher | None = None

    def __call__(
        self, model: Any, features: dict[str, Tensor], relevant: Tensor, of_dense: dict[str, Tensor], done: float
    ) -> Tensor:
        """Return the loss in nats per example, averaged over the batch.

        Args:
            model: the generator, or encoder and generator as one model, possibly wrapped for several processes.
            features: the model's inputs for the texts.
            relevant: [batch, m] docid positions of the relevant documents, -1 at padding.
            of_dense: inputs of `dense`.
            done: share of the training steps that are done.
        """
        # Candidates (Algorithm 1, step 4), and the logits of all families in one pass.
        objective, towards_zhat = phase(self.objective, done, self.config.warm_start, self.config.ramp)
        families, asked = self.ask(objective, features, relevant)
        logits = model(**features, tokens=families.tokens, depths=families.depths, sees=families.sees)["logits"].float()
        logits = logits.masked_fill(~families.exists, -torch.inf)  # [batch, n, largest fan_out]

        # Targets: z (Zhuo et al. 2020, eq. 1), or moved towards zhat (eq. 15; Algorithm 1, step 5).
        wanted = self.families.holds_any(families, relevant)
        if self.dense is not None:
            return self._on_dense(families, logits, asked, wanted, self.dense(children=families.children, **of_dense))
        if towards_zhat:
            zhat = self.families.estimated(families, logits.detach(), wanted)
            wanted = torch.lerp(wanted, zhat, towards_zhat)

        # Loss: DR-SCL eq. 8 ("ce"); Zhuo et al. 2020, eq. 2 (path or random candidates) or eq. 16 (beam; Algorithm 1, step 6).
        logits = logits + self._prior(objective, families, asked)
        return objective_loss(objective, logits, asked, wanted, families.depths)

    @torch.no_grad()
    def ask(self, objective: Objective, features: dict[str, Tensor], relevant: Tensor) -> tuple[Families, Tensor]:
        """Return the families to score, and their candidates: [batch, n, largest fan_out] True at children that are trained."""
        path = self.families.above(relevant)
        sources = [path] if "path" in objective.candidates or objective.forces_relevant else []
        if "beam" in objective.candidates:
            sources.append(self._beam(features["token_states"], features["states_mask"]))
        if "random" in objective.candidates:
            shape = (len(relevant), self.config.random_paths)
            sources.append(self.families.above(torch.randint(self.tree.num_documents, shape, device=relevant.device)))
        # The path is always scored, because zhat needs its logits.
        families = self.families.pack(torch.cat([path, *sources], dim=1))
        rows = torch.stack([families.among(source) for source in sources]).any(dim=0)  # [batch, n]
        return families, families.exists & rows[:, :, None]

    def _beam(self, token_states: Tensor, states_mask: Tensor) -> Tensor:
        """Return the inner nodes [batch, m] that beam search with the current decoder keeps (Zhuo et al. 2020, eq. 3)."""
        width, trace = self.config.training_beam, list[LevelTrace]()
        with torch.autocast(token_states.device.type, enabled=False):
            decoder = FastDecoder(self.generator, self.dtype)
            if self._searcher is None:
                self._searcher = TreeSearcher(self.tree, decoder, token_states.device)
            self._searcher.decoder = decoder
            alone = SearchConfig(alpha=1.0, beta=0.0, beam_width=width)
            queries = ScoredQueries(token_states, states_mask, None)
            self._searcher.search(queries, SearchRequest(width, alone), trace)
        nodes = torch.cat([level.nodes.masked_fill(~level.kept, -1) for level in trace], dim=1)
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

    def _on_dense(
        self, families: Families, logits: Tensor, asked: Tensor, wanted: Tensor, dense_logits: Tensor
    ) -> Tensor:
        """Return the cross-entropy with the dense logits added, or the loss of distillation from them."""
        share = self.config.distillation
        dense_logits = dense_logits.masked_fill(~families.exists, -torch.inf)
        if not share:
            return objective_loss(self.objective, logits + dense_logits, asked, wanted, families.depths)

        # Distillation: KL divergence from the softmax of the dense logits to the decoder's, summed over the path.
        on_path = families.parents >= 0  # [batch, n]
        teacher, student = dense_logits[on_path].log_softmax(dim=1), logits[on_path].log_softmax(dim=1)
        divergence = (teacher.exp() * (teacher - student)).masked_fill(teacher == -torch.inf, 0.0).sum() / len(logits)
        plain = objective_loss(self.objective, logits, asked, wanted, families.depths)
        return (1 - share) * plain + share * divergence


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
    return share * cost(find_objective("tdm")) + (1 - share) * cost(own)


def drop_states(mask: Tensor, share: float) -> Tensor:
    """Return mask [batch, length] without a random share of its tokens; the first token is always kept."""
    kept = mask & (torch.rand(mask.shape, device=mask.device) >= share)
    kept[:, 0] = mask[:, 0]
    return kept


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
        return KnownScores(nodes).of(children.clamp(min=0))
