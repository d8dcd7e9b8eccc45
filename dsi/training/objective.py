"""What the generator is taught in a batch: which families are asked, what their children should say, and the loss.

Algorithm 1 of Zhuo et al. 2020 on a docid tree, in two phases. Without gradient, the search that retrieval uses finds the
beam that the decoder has now; then one call of the decoder, with gradient, answers for the beam's families and those above
the relevant documents together. The targets of eq. 15 come out of the same logits. Cross-entropy asks the path alone and
needs no beam.
"""

from typing import Any

import torch
from torch import Tensor

from docids.tree import DocidTree
from dsi.generator.model import DocidGenerator, GeneratorConfig
from dsi.search.beam import LevelTrace, TreeSearcher
from dsi.search.decoder import FastDecoder
from dsi.search.settings import SearchConfig
from dsi.trees.dense import DenseScores, KnownScores
from dsi.trees.families import Families, FamilyTree
from dsi.trees.objectives import Objective, find_objective, log_prior, objective_loss, phase


class GeneratorLoss:
    """The loss of a batch under an objective.

    Args:
        generator: that is trained; its weights are read anew for every beam.
        tree: its docids.
        config: of the training.
        device: of the batches.
        dense: dense scores to train on top of, or to distil.
    """

    def __init__(
        self,
        generator: DocidGenerator,
        tree: DocidTree,
        config: GeneratorConfig,
        device: torch.device,
        dense: "DenseLogits | None" = None,
    ) -> None:
        self.generator, self.tree, self.config, self.dense = generator, tree, config, dense
        self.families = FamilyTree(tree, device)
        self.objective = find_objective(config.objective)
        self._level_sizes = torch.tensor(tree.level_sizes, dtype=torch.float32, device=device)
        self._searcher: TreeSearcher | None = None

    def __call__(
        self, model: Any, features: dict[str, Tensor], relevant: Tensor, of_dense: dict[str, Tensor], done: float
    ) -> Tensor:
        """The loss (nats an instance), averaged over the batch.

        Args:
            model: the generator, or the whole model, perhaps wrapped for several processes.
            features: what it takes of the texts.
            relevant: [batch, m] docid positions of the relevant documents, -1 for none.
            of_dense: what the dense scores are made of.
            done: share of the training that is done.
        """
        objective, towards_zhat = phase(self.objective, done, self.config.warm_start, self.config.ramp)
        families, asked = self.ask(objective, features, relevant)
        logits = model(**features, tokens=families.tokens, depths=families.depths, sees=families.sees)["logits"].float()
        logits = logits.masked_fill(~families.exists, -torch.inf)
        wanted = self.families.holds_any(families, relevant)
        if self.dense is not None:
            return self._on_dense(families, logits, asked, wanted, self.dense(children=families.children, **of_dense))
        if towards_zhat:
            zhat = self.families.estimated(families, logits.detach(), wanted)
            wanted = torch.lerp(wanted, zhat, towards_zhat)
        logits = logits + self._prior(objective, families, asked)
        return objective_loss(objective, logits, asked, wanted, families.depths)

    @torch.no_grad()
    def ask(self, objective: Objective, features: dict[str, Tensor], relevant: Tensor) -> tuple[Families, Tensor]:
        """The families that the decoder reads, and [batch, n, largest fan-out] True at the children that are asked."""
        path = self.families.above(relevant)
        sources = [path] if "path" in objective.candidates or objective.forces_relevant else []
        if "beam" in objective.candidates:
            sources.append(self._beam(features["token_states"], features["states_mask"]))
        if "random" in objective.candidates:
            shape = (len(relevant), self.config.random_paths)
            sources.append(self.families.above(torch.randint(self.tree.num_documents, shape, device=relevant.device)))
        families = self.families.pack(torch.cat([path, *sources], dim=1))
        rows = torch.stack([families.among(source) for source in sources]).any(dim=0)
        return families, families.exists & rows[:, :, None]

    def _beam(self, token_states: Tensor, states_mask: Tensor) -> Tensor:
        """[batch, m] the inner nodes whose children a search with the decoder as it is scores."""
        dtype = torch.bfloat16 if self.config.bf16 else torch.float32
        width, trace = self.config.beam_width, list[LevelTrace]()
        with torch.autocast(token_states.device.type, enabled=False):
            decoder = FastDecoder(self.generator, dtype)
            if self._searcher is None:
                self._searcher = TreeSearcher(self.tree, decoder, token_states.device)
            self._searcher.decoder = decoder
            settings = SearchConfig(alpha=1.0, beta=0.0, beam_width=width)
            self._searcher.search(token_states, states_mask, None, width, settings, trace=trace)
        nodes = torch.cat([level.nodes.masked_fill(~level.kept, -1) for level in trace], dim=1)
        root = nodes.new_zeros(len(nodes), 1)
        return torch.cat([root, nodes.masked_fill(nodes >= self.tree.num_inner, -1)], dim=1)

    def _prior(self, objective: Objective, families: Families, asked: Tensor) -> Tensor:
        """[batch, n, 1] what search adds to the logits, and what makes up for relevant nodes that were put among the asked."""
        level_size = self._level_sizes[families.depths]
        prior = log_prior(objective.score, families.exists.sum(dim=2).clamp(min=1), level_size)
        if objective.forces_relevant:
            counts = torch.zeros(len(asked), self.tree.depth, device=asked.device)
            counts.scatter_add_(1, families.depths, asked.sum(dim=2).float())
            prior = prior + (level_size / counts.gather(1, families.depths).clamp(min=1)).clamp(min=1).log()
        return prior[:, :, None]

    def _on_dense(
        self, families: Families, logits: Tensor, asked: Tensor, wanted: Tensor, dense_logits: Tensor
    ) -> Tensor:
        """Cross-entropy with the dense scores in the softmax, or with them as a teacher."""
        share = self.config.distillation
        dense_logits = dense_logits.masked_fill(~families.exists, -torch.inf)
        if not share:
            return objective_loss(self.objective, logits + dense_logits, asked, wanted, families.depths)
        on_path = families.parents >= 0
        teacher, student = dense_logits[on_path].log_softmax(dim=1), logits[on_path].log_softmax(dim=1)
        divergence = (teacher.exp() * (teacher - student)).masked_fill(teacher == -torch.inf, 0.0).sum() / len(logits)
        plain = objective_loss(self.objective, logits, asked, wanted, families.depths)
        return (1 - share) * plain + share * divergence


def decoder_positions(tree: DocidTree, config: GeneratorConfig, samples: int = 256) -> float:
    """About how many decoder positions an example costs under an objective; one with gradient counts three times.

    Args:
        tree: the docids.
        config: objective, beam, random paths, warm start.
        samples: documents whose paths are averaged over.
    """
    families, rng = FamilyTree(tree, torch.device("cpu")), torch.Generator().manual_seed(0)
    searched = tree.expansions(config.beam_width)

    def cost(objective: Objective) -> float:
        documents = 1 + (config.random_paths if "random" in objective.candidates else 0)
        drawn = torch.randint(tree.num_documents, (samples, documents), generator=rng)
        paths = (families.pack(families.above(drawn)).parents >= 0).sum(dim=1).float().mean().item()
        return 3 * paths + (4 * searched if "beam" in objective.candidates else 0)

    own = find_objective(config.objective)
    share = config.warm_start if own.asks_itself else 0.0
    return share * cost(find_objective("tdm")) + (1 - share) * cost(own)


def drop_states(mask: Tensor, share: float) -> Tensor:
    """Mask [batch, length] without a random share of its tokens; the first token stays."""
    kept = mask & (torch.rand(mask.shape, device=mask.device) >= share)
    kept[:, 0] = mask[:, 0]
    return kept


class DenseLogits:
    """Flat dense search as logits over children: their softmaxes along a path multiply to the document's probability.

    A document's score is z.e_d / temperature, plus the log of how often it is asked for by training examples of the same kind:
    what frequency explains the decoder need not learn, and without it at search time frequent documents get no head start
    (logit adjustment, Menon et al. 2021).

    Args:
        tree: the docids.
        temperature: divides the dot products.
        log_frequencies: [kinds, documents] in docid order.
        device: where the scores are computed.
    """

    def __init__(self, tree: DocidTree, temperature: float, log_frequencies: Tensor, device: torch.device) -> None:
        self.scores, self.temperature = DenseScores(tree, device), temperature
        self.log_frequencies = log_frequencies.to(device)

    @torch.no_grad()
    def __call__(self, embeddings: Tensor, children: Tensor, kinds: Tensor) -> Tensor:
        """[batch, n, fan-out] of children [batch, n, fan-out], from embeddings [batch, dim] and kinds [batch].

        Where there is no child (-1) the logit is of no meaning.
        """
        documents = self.scores.document_scores(embeddings.float()) / self.temperature + self.log_frequencies[kinds]
        nodes = self.scores.log_sum(documents)
        return KnownScores(nodes).of(children.clamp(min=0))
