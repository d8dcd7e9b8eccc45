"""A generator whose docid tokens are tied to the vectors of the tree's nodes, so that it knows what its digits mean.

It turns a query into one query vector a level, q_l = z + A_l z + W_l h_l: z is the query's embedding, A_l and W_l are linear
maps, and h_l is what a T5 decoder over the token states says at position l; with num_layers = 0 there is no decoder and no W_l.
Scores of nodes are made of q_l and the vectors that the tree stores (`dsi.trees.estimates`). A_l and W_l are zero at first, so
an untrained generator descends the tree by the encoder's own scores. Nothing is learned for a single node: a document that is
added later is scored like any other. Knows no tree but its shape.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Stack

from docids.tree import DocidTree, Ints
from dsi.generator.base import Generator
from dsi.generator.config import GeneratorConfig
from dsi.generator.ranking import DocumentRanking
from dsi.trees.estimates import SIZE_WEIGHT

_SCALE = 20.0
"""Factor of the scores in a softmax before training: cosines at a temperature of 0.05."""
_NEUTRAL = 0.4
"""The cosine that leaves a node the probability it has by its size, in sigmoids, before training."""


class LevelQueries(NamedTuple):
    """What a tied generator says of a batch of queries; level 0 chooses among the children of the root.

    Attributes:
        queries: [batch, depth, embedding_dim] that score the inner nodes of each level.
        scales: [depth] factor of the scores in softmaxes and sigmoids.
        size_weights: [depth] weight of the sizes of nodes in their scores.
        biases: [depth] added to the scores in sigmoids; estimates do not use them.
    """

    queries: Tensor
    scales: Tensor
    size_weights: Tensor
    biases: Tensor


class TiedGenerator(Generator):
    """Maps from a query's embedding, and token states, to a query vector for each level.

    Args:
        config: a T5Config for the decoder stack, with the entries that `Generator` names, and `embedding_dim`, the width of
            embeddings, and `look_ahead`, as in `GeneratorConfig`.
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        depth, dim = len(config.fan_out), config.embedding_dim
        path = self.objective.score == "softmax path"
        self.maps = nn.Parameter(torch.zeros(depth, dim, dim))
        self.ranking = DocumentRanking(dim, config.d_model)
        self.log_scales = nn.Parameter(torch.full((depth,), _SCALE).log())
        self.size_weights = nn.Parameter(torch.full((depth,), 1.0 if path else SIZE_WEIGHT))
        self.biases = nn.Parameter(torch.full((depth,), -_SCALE * _NEUTRAL))
        if config.num_layers:
            self.decoder = T5Stack(config)
            self.states_maps = nn.Parameter(torch.zeros(depth, dim, config.d_model))
        self.post_init()

    @classmethod
    def _entries(cls, config: GeneratorConfig, tree: DocidTree, numbers: Ints | None) -> dict[str, object]:
        return {"embedding_dim": tree.embeddings.shape[1], "look_ahead": config.look_ahead, "vocab_size": tree.depth}

    @property
    def reads_states(self) -> bool:
        """True if it has a decoder, which reads the encoder's token states."""
        return bool(self.config.num_layers)

    def forward(
        self, embeddings: Tensor, token_states: Tensor | None = None, states_mask: Tensor | None = None
    ) -> LevelQueries:
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
            read = {"encoder_hidden_states": token_states, "encoder_attention_mask": states_mask}
            hidden = self.decoder(input_ids=tokens, **read).last_hidden_state  # [batch, depth, d_model]
            queries = queries + torch.einsum("lij,blj->bli", self.states_maps, hidden.to(self.states_maps.dtype))
        # Copies, because data parallel training takes a parameter that is itself an output for unused.
        biases = (
            self.biases.clone() if self.objective.loss == "bce" else self.biases.detach()
        )  # they cancel in a softmax
        return LevelQueries(queries, self.log_scales.exp(), self.size_weights.clone(), biases)
