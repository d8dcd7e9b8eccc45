"""The base class of custom generators: a model that scores the children of nodes for a query, whatever it is inside.

A subclass writes one method, `log_probs`, which training and search both call. Knows no objective and no beam.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import T5Config

from dsi.config import GeneratorConfig
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.base import Generator
from dsi.search.queries import QueryBatch


class ReadQueries(NamedTuple):
    """What a generator reads of a batch of queries, or of documents in training.

    Attributes:
        states: [batch, length, width] the encoder's token states.
        mask: [batch, length] True at real tokens.
    """

    states: Tensor
    mask: Tensor

    @property
    def means(self) -> Tensor:
        """[batch, width] the mean state of each text."""
        real = self.mask[..., None].to(self.states.dtype)
        return (self.states * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)

    def select(self, beams: Tensor) -> None:
        """Do nothing, unlike a cache of digits (`Scorer`): a node determines the path to it."""


class NodeGenerator(Generator):
    """A custom generator. A subclass makes its weights in `__init__(config)` and scores children in `log_probs`.

    It is trained by the objective, cross-entropy by default, saved with its import path, and searched by the same beam as every
    generator: filters, updates, `explain` and resuming need nothing of it.

    Args:
        config: has `d_model`, the width of the encoder's states; `nodes` and `inner_nodes`, how many the tree has; `fan_out`,
            the most children a node has at each level.

    Attributes:
        first_child: [inner_nodes] the first child of each, as in the tree that it is trained for.
        num_children: [inner_nodes] how many it has.
    """

    tokens_are_nodes = True
    first_child: Tensor
    num_children: Tensor

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        for name in ("first_child", "num_children"):
            self.register_buffer(name, torch.zeros(config.inner_nodes, dtype=torch.long))

    def log_probs(self, queries: ReadQueries, nodes: Tensor) -> Tensor:
        """Return log-probabilities of the children of nodes, [batch, n, largest fan-out]; a softmax over siblings follows.

        Args:
            queries: what the encoder made of the texts.
            nodes: [batch, n] inner nodes, the root is 0; `children_of` names theirs.
        """
        raise ValueError(f"{type(self).__name__} has no step: it must define log_probs(queries, nodes).")

    def children_of(self, nodes: Tensor) -> Tensor:
        """[batch, n, largest fan-out] the children of inner nodes [batch, n]; the last one again past the end."""
        digits = torch.arange(max(self.config.fan_out), device=nodes.device)
        return self.first_child[nodes][..., None] + torch.minimum(digits, self.num_children[nodes][..., None] - 1)

    def forward(
        self, token_states: Tensor, states_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor
    ) -> dict[str, Tensor]:
        """Return {"logits": what `log_probs` gives}; see `DocidGenerator.forward`. Tokens are the nodes themselves."""
        log_probs = self.log_probs(ReadQueries(token_states, states_mask), tokens)
        expected = (*tokens.shape, max(self.config.fan_out))
        if log_probs.shape != expected:
            raise ValueError(
                f"{type(self).__name__}.log_probs must return [batch, n, largest fan-out] = {list(expected)}, got "
                f"{list(log_probs.shape)}."
            )
        return {"logits": log_probs}

    @torch.no_grad()
    def child_logits(self, tokens: Tensor, level: int, cache: ReadQueries) -> Tensor:
        """Return the logits [batch, beams, fan_out] of the children of nodes [batch, beams]; see `Scorer`."""
        known = tokens.clamp(max=len(self.first_child) - 1)
        logits = self(*cache, tokens=known, depths=known, sees=known)["logits"]
        return logits[..., : self.config.fan_out[level]]

    def child_tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the children [batch, beams, fan_out]; any of them for one that was added after training."""
        known = parents.clamp(max=len(self.first_child) - 1)
        return self.children_of(known)[..., digits.clamp(max=max(self.config.fan_out) - 1)]

    def start(self, batch: QueryBatch) -> ReadQueries:
        """Put the states of a batch of queries on the device; see `Scorer`."""
        states, mask = (torch.from_numpy(array).to(self.device) for array in (batch.states, batch.mask))
        return ReadQueries(states.float(), mask.bool())

    @classmethod
    def entries(cls, config: GeneratorConfig, tree: DocidTree, numbers: Ints | None) -> dict[str, object]:
        """Return the sizes of the tree; see `Generator.entries`."""
        return {"inner_nodes": tree.num_inner, "nodes": tree.num_inner + tree.num_places}

    @torch.no_grad()
    def initialise(self, tree: DocidTree, checkpoint: Any, numbers: Ints | None) -> None:
        """Take over the tree's shape; a subclass that makes weights of the tree calls this too."""
        self.first_child.copy_(torch.from_numpy(tree.first_child))
        self.num_children.copy_(torch.from_numpy(tree.num_children))
