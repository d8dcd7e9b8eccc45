"""One level of decoding, fast: the generator's decoder over many beams of many queries.

The same numbers as `DocidGenerator.decoder`, computed for search: the query's cross-attention keys and values are made once
and shared by its beams, query/key/value projections are one product, weights are packed for the processor, with the constants
of the norms before them, and only the digits of the level at hand get logits.
Knows nothing of trees, scores or fusion.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contrastive.inference import PackedLinear, for_inference
from dsi.generator.model import DocidGenerator


@dataclass
class DecoderCache:
    """What the decoder remembers of a batch of queries.

    Attributes:
        cross: a layer: keys and values [batch, heads, length, head_dim] of the query's token states.
        cross_bias: [batch, 1, 1, length] 0 at tokens, -inf at padding.
        past: a layer: keys and values [batch, beams, heads, levels so far, head_dim] of the digits chosen.
        ahead: [batch, first digits, fan-out] logits of the second level, where they were computed with the first; `past` is
            then that of all first digits.
    """

    cross: list[tuple[Tensor, Tensor]]
    cross_bias: Tensor
    past: list[tuple[Tensor, Tensor]]
    ahead: Tensor | None = None

    def select(self, beams: Tensor) -> None:
        """Keep, for each new beam, the past of the old beam it continues; beams: [batch, new beams]."""
        rows = torch.arange(len(beams), device=beams.device)[:, None]
        self.past = [(keys[rows, beams], values[rows, beams]) for keys, values in self.past]


class FastDecoder:
    """The weights of a `DocidGenerator`, laid out for search.

    Args:
        generator: a trained generator; later changes to its weights are not seen.
        dtype: of weights and arithmetic; the generator's own by default.
    """

    @torch.no_grad()
    def __init__(self, generator: DocidGenerator, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype or generator.head.weight.dtype
        if self.dtype != generator.head.weight.dtype:
            generator = copy.deepcopy(generator).to(self.dtype)
        config, stack = generator.config, generator.decoder
        self.score = generator.objective.score
        self.heads, self.eps = config.num_heads, config.d_model * config.layer_norm_epsilon
        self.layers = [_Layer(block.layer) for block in stack.block]
        self.embeddings = stack.embed_tokens.weight.detach()
        attention = stack.block[0].layer[0].SelfAttention
        self.position_bias = attention.compute_bias(len(config.fan_out), len(config.fan_out))[0].detach()
        self.fan_out = list(config.fan_out)
        self.token_offsets = [1 + sum(self.fan_out[:level]) for level in range(len(self.fan_out))]
        head = _after_norm(generator.head.weight, stack.final_layer_norm)
        self.level_heads = head[1:].split(config.fan_out)  # row 0 is the start token

    def start(self, token_states: Tensor, states_mask: Tensor) -> DecoderCache:
        """Cross-attention keys and values of queries: token_states [batch, length, d_model], states_mask [batch, length]."""
        batch, length, _ = token_states.shape
        token_states = token_states.to(self.dtype)
        cross = []
        for layer in self.layers:
            keys, values = layer.cross_kv(token_states).view(batch, length, 2, self.heads, -1).unbind(2)
            cross.append((keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous()))
        bias = torch.zeros_like(states_mask, dtype=token_states.dtype).masked_fill(~states_mask, -torch.inf)
        return DecoderCache(cross, bias[:, None, None, :], [])

    def step(self, tokens: Tensor, level: int, cache: DecoderCache) -> Tensor:
        """Logits [batch, beams, fan-out of the level] after `tokens` [batch, beams], the token chosen at level - 1."""
        if cache.ahead is not None:
            chosen = tokens - 1  # the first level's tokens are 1, 2, …
            cache.select(chosen)
            logits = cache.ahead[torch.arange(len(tokens), device=tokens.device)[:, None], chosen]
            cache.ahead = None
            return logits
        past, cache.past = cache.past, []

        def attend(query: Tensor, key: Tensor, value: Tensor, number: int) -> Tensor:
            if level > 0:
                keys, values = past[number]
                key, value = torch.cat([keys, key], dim=3), torch.cat([values, value], dim=3)
            cache.past.append((key, value))
            bias = self.position_bias[:, level, : level + 1]
            return (query @ key.transpose(3, 4) + bias[:, None, :]).softmax(dim=-1) @ value

        return F.linear(self._layers(self.embeddings[tokens], cache, attend), self.level_heads[level])

    def first_step(self, cache: DecoderCache) -> Tensor:
        """`step` for the first level, and ahead for the second, in one pass over the weights.

        Which first digits will be kept is not known yet, so all are computed: cheaper than another pass while they are not
        more than the beam is wide.
        """
        batch, digits = len(cache.cross_bias), len(self.level_heads[0])

        def attend(query: Tensor, key: Tensor, value: Tensor, number: int) -> Tensor:
            cache.past.append((self._with_root(key), self._with_root(value)))
            query, key, value = (each.squeeze(3).transpose(1, 2) for each in (query, key, value))
            attended = (query @ key.transpose(2, 3) + self._first_bias).softmax(dim=-1) @ value
            return attended.transpose(1, 2)

        hidden = self._layers(self.embeddings[: 1 + digits].expand(batch, -1, -1), cache, attend)
        cache.ahead = F.linear(hidden[:, 1:], self.level_heads[1])
        return F.linear(hidden[:, :1], self.level_heads[0])

    @cached_property
    def _first_bias(self) -> Tensor:
        """[heads, 1 + digits, 1 + digits] of `first_step`: token 0 is the root, each child sees the root and itself."""
        tokens = 1 + len(self.level_heads[0])
        bias = self.position_bias.new_full((self.heads, tokens, tokens), -torch.inf)
        bias[:, 0, 0] = self.position_bias[:, 0, 0]
        bias[:, 1:, 0] = self.position_bias[:, 1, 0, None]
        bias[:, 1:, 1:].diagonal(dim1=1, dim2=2).copy_(self.position_bias[:, 1, 1, None].expand(-1, tokens - 1))
        return bias

    @staticmethod
    def _with_root(states: Tensor) -> Tensor:
        """[batch, 1 + digits, heads, 1, head_dim] -> [batch, digits, heads, 2, head_dim]: the root, then the digit."""
        return torch.cat([states[:, :1].expand_as(states[:, 1:]), states[:, 1:]], dim=3)

    def _layers(
        self, hidden: Tensor, cache: DecoderCache, attend: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    ) -> Tensor:
        """All blocks and the last norm over hidden [batch, n, d_model].

        `attend` gets query, key and value [batch, n, heads, 1, head_dim] and a layer's number, and returns what each position
        takes from those it may see.
        """
        batch, positions, _ = hidden.shape
        for number, (layer, cross) in enumerate(zip(self.layers, cache.cross, strict=True)):
            projected = layer.self_qkv(self._norm(hidden))
            query, key, value = projected.view(batch, positions, 3, self.heads, 1, -1).unbind(2)
            attended = attend(query, key, value, number).reshape(batch, positions, -1)
            hidden = hidden + layer.self_out(attended)
            hidden = hidden + self._cross_attention(layer, hidden, cross, cache.cross_bias)
            hidden = hidden + self._feed_forward(layer, hidden)
        return self._norm(hidden)

    def _cross_attention(
        self, layer: "_Layer", hidden: Tensor, cross: tuple[Tensor, Tensor], cross_bias: Tensor
    ) -> Tensor:
        batch, beams, _ = hidden.shape
        query = layer.cross_q(self._norm(hidden))
        query = query.view(batch, beams, self.heads, -1).transpose(1, 2)
        weights = (query @ cross[0].transpose(2, 3) + cross_bias).softmax(dim=-1)
        return layer.cross_out((weights @ cross[1]).transpose(1, 2).reshape(batch, beams, -1))

    def _feed_forward(self, layer: "_Layer", hidden: Tensor) -> Tensor:
        hidden, dense = self._norm(hidden), layer.feed_forward
        if not isinstance(dense.act, torch.nn.ReLU):
            return dense(hidden)
        # In place: the memory of a fresh tensor of this size costs more than the ReLU itself.
        return dense.wo(dense.wi(hidden).relu_())

    def _norm(self, hidden: Tensor) -> Tensor:
        """Each position over its length; T5's norm but for constants, which are in the weights that come next."""
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        return hidden * (length.square() + self.eps).rsqrt().to(hidden.dtype)


def _after_norm(weight: Tensor, norm: Any) -> Tensor:
    """The weight of a linear layer that follows a norm, with the norm's constants in it."""
    return (weight.detach().float() * norm.weight.detach().float() * weight.shape[1] ** 0.5).to(weight.dtype)


class _Layer:
    """Weights of one T5 decoder block."""

    def __init__(self, block: Any) -> None:
        own, cross, feed_forward = block
        attention = own.SelfAttention
        together = torch.cat([attention.q.weight, attention.k.weight, attention.v.weight])
        self.self_qkv = PackedLinear(_after_norm(together, own.layer_norm))
        self.self_out = PackedLinear(attention.o.weight)
        attention = cross.EncDecAttention
        self.cross_q = PackedLinear(_after_norm(attention.q.weight, cross.layer_norm))
        self.cross_kv = PackedLinear(torch.cat([attention.k.weight, attention.v.weight]))
        self.cross_out = PackedLinear(attention.o.weight)
        dense = copy.deepcopy(feed_forward.DenseReluDense)
        for name, linear in dense.named_children():
            if name.startswith("wi"):
                linear.weight.copy_(_after_norm(linear.weight, feed_forward.layer_norm))
        self.feed_forward: Any = for_inference(dense, together.dtype)
