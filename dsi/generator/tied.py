"""A generator whose docid tokens are tied to the vectors of the tree's nodes, so that its digits have a meaning from the start.

It turns a query into one query vector a level, q_l = z + A_l z + W_l h_l: z is the query's embedding, A_l and W_l are linear
maps, and h_l is the output of a T5 decoder over the token states at position l; with num_layers = 0 it has no decoder and no
W_l. A node is scored by q_l and the vector that the tree stores (`dsi.search.walk`): level queries do not depend on the path.
A_l and W_l are zero at first: an untrained generator descends the tree by the encoder's own scores. Nothing is learned for a
single node, and a document that is added later is scored like any other. Knows no tree but its shape.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Stack

from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.base import Generator
from dsi.generator.bonus import SIZE_WEIGHT
from dsi.generator.config import GeneratorConfig

_SCALE = 20.0
"""Factor of the scores in a softmax before training: cosines at a temperature of 0.05."""


class LevelOutputs(NamedTuple):
    """Outputs of a tied generator for a batch of queries; level 0 chooses among the children of the root.

    Attributes:
        queries: [batch, depth, embedding_dim] that score the inner nodes of each level.
        scales: [depth] factor of the scores in the softmax over a level, in training.
        size_weights: [depth] weight of the nodes' bonus in their scores.
    """

    queries: Tensor
    scales: Tensor
    size_weights: Tensor


class TiedGenerator(Generator):
    """Maps from a query's embedding, and token states, to a query vector for each level.

    Args:
        config: a T5Config for the decoder stack, with the entries that `Generator` names, and `embedding_dim`, the width of
            embeddings.
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        depth, dim = len(config.fan_out), config.embedding_dim
        self.maps = nn.Parameter(torch.zeros(depth, dim, dim))
        self.log_scales = nn.Parameter(torch.full((depth,), _SCALE).log())
        self.size_weights = nn.Parameter(torch.full((depth,), SIZE_WEIGHT))
        if config.num_layers:
            self.decoder = T5Stack(config)
            self.states_maps = nn.Parameter(torch.zeros(depth, dim, config.d_model))
        self.post_init()

    @classmethod
    def _entries(cls, config: GeneratorConfig, tree: DocidTree, numbers: Ints | None) -> dict[str, object]:
        return {"embedding_dim": tree.embeddings.shape[1], "vocab_size": tree.depth}

    @property
    def reads_states(self) -> bool:
        """True if it has a decoder, which reads the encoder's token states."""
        return bool(self.config.num_layers)

    @property
    def is_trained(self) -> bool:
        """False if the query of every level is the query's embedding, as at first."""
        return bool(self.maps.any() or (self.reads_states and self.states_maps.any()))

    def forward(
        self, embeddings: Tensor, token_states: Tensor | None = None, states_mask: Tensor | None = None
    ) -> LevelOutputs:
        """Compute the queries of all levels.

        Args:
            embeddings: [batch, embedding_dim] of the texts.
            token_states: [batch, length, d_model] encoder states, if the generator reads them.
            states_mask: [batch, length] True at real tokens.
        """
        queries = embeddings[:, None] + torch.einsum("lij,bj->bli", self.maps, embeddings)  # [batch, depth, dim]
        if self.reads_states:
            # Position l of the decoder stands for level l, and so does token l.
            tokens = torch.arange(len(self.maps), device=embeddings.device).expand(len(embeddings), -1)
            inputs = {"encoder_hidden_states": token_states, "encoder_attention_mask": states_mask}
            hidden = self.decoder(input_ids=tokens, **inputs).last_hidden_state  # [batch, depth, d_model]
            queries = queries + torch.einsum("lij,blj->bli", self.states_maps, hidden.to(self.states_maps.dtype))
        # A copy, because data parallel training takes a parameter that is itself an output for unused.
        return LevelOutputs(queries, self.log_scales.exp(), self.size_weights.clone())

    @torch.no_grad()
    def level_queries(self, embeddings: Tensor, token_states: Tensor, states_mask: Tensor) -> NDArray[np.float32]:
        """[batch, depth, embedding_dim] the queries of all levels, for a search; see `forward`."""
        if self.reads_states:
            token_states = token_states.to(self.decoder.dtype)
        return self(embeddings.float(), token_states, states_mask).queries.float().numpy(force=True)

    def row_of(self, level: int) -> int:
        """Return which of the level queries scores the nodes chosen at a level; updates can make a tree deeper."""
        return min(level, len(self.maps) - 1)

    def map_array(self, level: int) -> NDArray[np.float32]:
        """[embedding_dim, embedding_dim] A_l, on the CPU."""
        return self.maps[self.row_of(level)].detach().numpy(force=True)

    def size_weight(self, level: int) -> float:
        """Return the weight of the nodes' bonus at a level."""
        return float(self.size_weights[self.row_of(level)].detach())
