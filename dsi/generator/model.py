"""The docid generator: a T5 decoder over the encoder's token states, with a small vocabulary of docid tokens.

Each (level, digit) pair is a token with its own embedding and output row, so the output layer has one row per digit of the
tree instead of T5's 32,128. Softmaxes run over a node's children only, in training as in search. The frozen encoder is not
part of the model; its token states are inputs. Knows the shape of the tree, no documents.
"""

from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import T5Config
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.models.t5.modeling_t5 import T5Attention, T5Stack

from dsi.contrastive.inference import for_inference
from dsi.docids.tree import DocidTree
from dsi.docids.types import Ints
from dsi.generator.cached import DecoderCache, TokenGenerator
from dsi.search.queries import QueryBatch


class DocidGenerator(TokenGenerator):
    """T5 decoder with docid embeddings and a docid output layer; its config is that of the decoder stack."""

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.decoder = T5Stack(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def initialise(self, tree: DocidTree, checkpoint: Any, numbers: Ints | None) -> None:
        """Initialise the output layer for logits of unit size; transformers' default makes them d_model^0.5 times larger."""
        nn.init.normal_(self.head.weight, std=self.config.d_model**-0.5)

    def forward(
        self, token_states: Tensor, states_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor
    ) -> dict[str, Tensor]:
        """Compute the logits of the children of several inner nodes of each instance in one pass.

        The nodes form a small tree. Each attends to its ancestors and itself, and relative positions are differences of
        depth, so every node gets the same logits as at the end of its own sequence of digits. `token_states`: [batch,
        length, d_model]; `states_mask`: [batch, length]; `tokens` (of each node's last digit, 0 for the root) and
        `depths`: [batch, n]; `sees`: [batch, n, n] True if the second node is an ancestor of the first, or the same.
        """
        return self.pick(self.head(self.hidden(token_states, states_mask, tokens, depths, sees)), depths)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., width] of docid tokens."""
        return self.decoder.embed_tokens(tokens)

    def for_search(self, dtype: torch.dtype | None = None) -> Self:
        """Return a copy laid out for search, with packed weights; see `Generator.for_search`."""
        return for_inference(self, dtype or self.head.weight.dtype)  # type: ignore[return-value]

    @torch.no_grad()
    def start(self, batch: QueryBatch) -> DecoderCache:
        """Read the states of a batch of queries; see `Scorer.start`."""
        root = self.embed(torch.zeros(len(batch.states), 1, dtype=torch.long, device=self.device))
        past = EncoderDecoderCache(DynamicCache(), DynamicCache())
        mask, states = torch.from_numpy(batch.mask).to(root.device).long(), torch.from_numpy(batch.states).to(root)
        return DecoderCache(past, states, mask, self._run(root, states, mask, past))

    def read_on(self, embeddings: Tensor, mask: Tensor, cache: DecoderCache) -> Tensor:
        """Return the hidden states of one more digit of each beam; see `TokenGenerator`."""
        return self._run(embeddings, cache.shape_of_states(len(mask)), mask, cache.past)

    def _run(self, embeddings: Tensor, states: Tensor, mask: Tensor, past: Cache) -> Tensor:
        output = self.decoder(
            inputs_embeds=embeddings, encoder_hidden_states=states, encoder_attention_mask=mask, past_key_values=past,
            use_cache=True,
        )  # fmt: skip
        return output.last_hidden_state[:, -1]

    def hidden(self, token_states: Tensor, states_mask: Tensor, tokens: Tensor, depths: Tensor, sees: Tensor) -> Tensor:
        """Run T5's blocks over a tree of nodes; returns [batch, n, d_model]."""
        # Attention bias: relative positions from differences of depth; other branches are masked.
        stack = self.decoder
        attention = stack.block[0].layer[0].SelfAttention
        buckets = attention._relative_position_bucket(
            depths[:, None, :] - depths[:, :, None],
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        bias = attention.relative_attention_bias(buckets).permute(0, 3, 1, 2)  # [batch, heads, n, n]
        lowest = torch.finfo(bias.dtype).min
        bias = bias.masked_fill(~sees[:, None], lowest)
        device = token_states.device.type
        if torch.is_autocast_enabled(device):
            token_states = token_states.to(torch.get_autocast_dtype(device))  # once, not in every layer

        # The blocks of the stack, with cross-attention that does not project the states.
        hidden = stack.dropout(self.embed(tokens))  # [batch, n, d_model]
        for attend_nodes, attend_states, feed_forward in (block.layer for block in stack.block):
            hidden = attend_nodes(hidden, position_bias=bias)[0]
            means = _attend(attend_states.EncDecAttention, attend_states.layer_norm(hidden), token_states, states_mask)
            hidden = feed_forward(hidden + attend_states.dropout(means))
        return stack.dropout(stack.final_layer_norm(hidden))  # type: ignore[no-any-return]


def _attend(attention: T5Attention, hidden: Tensor, states: Tensor, mask: Tensor) -> Tensor:
    """Compute T5's cross-attention without projecting the encoder states; returns [batch, n, d_model].

    q.(W_k s) = (W_k' q).s, and the weighted sum of W_v s is W_v times the weighted sum of s. So queries are projected into the
    space of the states, and the weighted means out of it. A docid has a few digits and a text a hundred tokens, which makes
    this much cheaper than projecting every state [batch, length, d_model].
    """
    batch, n, _ = hidden.shape  # [batch, n, d_model]
    heads, head_dim, width = attention.n_heads, attention.key_value_proj_dim, states.shape[2]
    queries = attention.q(hidden).view(batch, n, heads, head_dim)
    # W_k' q: [batch, n, heads, d_model]
    queries = torch.einsum("bnhk,hkd->bnhd", queries, attention.k.weight.view(heads, head_dim, width))
    scores = torch.bmm(queries.reshape(batch, n * heads, width), states.transpose(1, 2)).float()
    weights = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min).softmax(dim=2)
    weights = nn.functional.dropout(weights, attention.dropout, attention.training)  # [batch, n * heads, length]
    means = torch.bmm(weights.to(states.dtype), states).view(batch, n, heads, width)
    values = torch.einsum("bnhd,hkd->bnhk", means, attention.v.weight.view(heads, head_dim, width))
    return attention.o(values.reshape(batch, n, heads * head_dim))  # type: ignore[no-any-return]
