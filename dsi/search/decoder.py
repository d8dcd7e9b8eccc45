"""What scores children in a search: a decoder of one level, over many beams of many queries; and the T5 decoder, run fast.

It computes the same numbers as `DocidGenerator.decoder`. It is faster because cross-attention keys and values are computed once
per query and shared by its beams; query, key and value projections are one matrix product; the norms' constants are folded into
the weights, which are packed for the CPU; and only the digits of the current level get logits. Knows nothing of trees and
scores.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dsi.contrastive.inference import PackedLinear, for_inference
from dsi.generator.base import Generator
from dsi.generator.model import DocidGenerator
from dsi.generator.words import WordGenerator
from dsi.search.queries import QueryBatch


@dataclass
class DecoderCache:
    """Attention keys and values of a batch of queries.

    Attributes:
        cross: per layer, keys and values [batch, heads, length, head_dim] of the token states.
        cross_bias: [batch, 1, 1, length] 0 at tokens, -inf at padding.
        past: per layer, [depth, 2, batch * beams, heads, head_dim] keys and values of the tokens chosen so far.
        levels: how many levels of `past` are filled.
        ahead: [batch, first digits, fan_out] logits of the second level if `first_step` computed them; `past` then holds every
            first digit.
    """

    cross: list[tuple[Tensor, Tensor]]
    cross_bias: Tensor
    past: list[Tensor]
    levels: int = 0
    ahead: Tensor | None = None
    _spare: list[Tensor] | None = None

    def select(self, beams: Tensor) -> None:
        """Copy to each new beam the past of the beam it continues; beams: [batch, new beams] indices of old beams.

        After `first_step`, the next step does that by the digits chosen.
        """
        if self.ahead is not None:
            return
        batch, old = len(beams), self.past[0].shape[2] // len(beams)
        rows = (torch.arange(batch, device=beams.device)[:, None] * old + beams).flatten()  # [batch * new beams]
        if self._spare is None or self._spare[0].shape[2] != len(rows):
            self._spare = [past.new_empty(*past.shape[:2], len(rows), *past.shape[3:]) for past in self.past]
        for past, target in zip(self.past, self._spare, strict=True):
            torch.index_select(past[: self.levels], 2, rows, out=target[: self.levels])
        self.past, self._spare = self._spare, self.past


class Decoder(ABC):
    """Scores the children of nodes, one level after the other.

    Args:
        generator: a trained generator.

    Attributes:
        device: where the weights are.
        score: how search ranks nodes, one of `dsi.generator.objectives.SCORES`.
        fan_out: digits of each level.
        token_offsets: token of each level's first digit.
        most_nodes: an exact search runs it over about this many nodes at a time.
    """

    device: torch.device
    most_nodes: ClassVar[int] = 8_192

    def __init__(self, generator: Generator) -> None:
        self.score: str = generator.config.score
        self.fan_out = list(generator.config.fan_out)
        self.token_offsets = [1 + sum(self.fan_out[:level]) for level in range(len(self.fan_out))]

    def tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the docid tokens of digits of a level, below nodes with the tokens `parents` [batch, beams].

        A digit added after training has no embedding; any serves, as no logits below it are used.
        """
        return self.token_offsets[level] + digits.clamp(max=self.fan_out[level] - 1)

    @abstractmethod
    def start(self, batch: QueryBatch) -> Any:
        """Return a cache of a batch of queries; its `select(beams)` gives new beams [batch, n] the past of old ones."""

    @abstractmethod
    def logits(self, tokens: Tensor, level: int, cache: Any, beam_width: int) -> Tensor:
        """Return the logits [batch, beams, fan_out] of a level, given the tokens [batch, beams] chosen at level - 1.

        Args:
            tokens: 0, the root, at level 0.
            level: from 0, one after the other.
            cache: of the queries.
            beam_width: nodes that will be kept.
        """


class FastDecoder(Decoder):
    """The weights of a `DocidGenerator`, laid out for search.

    Args:
        generator: a trained generator; if its weights change, make a new `FastDecoder`.
        dtype: of weights and arithmetic; the generator's own by default.
    """

    @torch.no_grad()
    def __init__(self, generator: DocidGenerator, dtype: torch.dtype | None = None) -> None:
        super().__init__(generator)
        self.dtype = dtype or generator.head.weight.dtype
        if self.dtype != generator.head.weight.dtype:
            generator = copy.deepcopy(generator).to(self.dtype)
        config, stack = generator.config, generator.decoder
        self.heads, self.eps = config.num_heads, config.d_model * config.layer_norm_epsilon
        self.layers = [_Layer(block.layer) for block in stack.block]
        self.embeddings = stack.embed_tokens.weight.detach()
        self.device = self.embeddings.device
        attention = stack.block[0].layer[0].SelfAttention
        self.position_bias = attention.compute_bias(len(config.fan_out), len(config.fan_out))[0].detach()
        self._take_head(generator, _after_norm(generator.head.weight, stack.final_layer_norm))

    def _take_head(self, generator: DocidGenerator, head: Tensor) -> None:
        """Lay the output layer [vocab_size, d_model] out by level."""
        self.level_heads = head[1:].split(generator.config.fan_out)  # row 0 is the start token

    def start(self, batch: QueryBatch) -> DecoderCache:
        """Return a cache with the cross-attention keys and values of a batch of queries."""
        token_states, states_mask = batch.states, batch.mask
        rows, length, _ = token_states.shape
        token_states = token_states.to(self.dtype)
        cross = []
        for layer in self.layers:
            # keys, values: [batch, length, heads, head_dim]
            keys, values = layer.cross_kv(token_states).view(rows, length, 2, self.heads, -1).unbind(2)
            cross.append((keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous()))
        bias = torch.zeros_like(states_mask, dtype=token_states.dtype).masked_fill(~states_mask, -torch.inf)
        return DecoderCache(cross, bias[:, None, None, :], [])

    def step(self, tokens: Tensor, level: int, cache: DecoderCache) -> Tensor:
        """Return the logits [batch, beams, fan_out] of a level, given the tokens [batch, beams] chosen at level - 1."""
        if (ahead := cache.ahead) is not None:
            chosen, cache.ahead = tokens - 1, None  # tokens of the first level count from 1
            cache.select(chosen)
            return ahead[torch.arange(len(tokens), device=tokens.device)[:, None], chosen]
        past = self._room(cache, tokens.numel(), level)

        def attend(query: Tensor, key: Tensor, value: Tensor, number: int) -> Tensor:
            past[number][level, 0], past[number][level, 1] = key.flatten(0, 1), value.flatten(0, 1)
            return self._attend(query.flatten(0, 1), past[number][: level + 1]).view_as(query)

        return self._logits(self._layers(self._embedded(tokens), cache, attend), tokens, level)

    def logits(self, tokens: Tensor, level: int, cache: DecoderCache, beam_width: int) -> Tensor:
        """Return `step`, by `first_step` where all digits of the first level will be kept; see `Decoder`."""
        if level == 0 and tokens.shape[1] == 1 and len(self.fan_out) > 1 and self.fan_out[0] <= beam_width:
            return self.first_step(cache)
        return self.step(tokens, level, cache)

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.embeddings[tokens]

    def _logits(self, hidden: Tensor, tokens: Tensor, level: int) -> Tensor:
        """Return the logits [batch, beams, fan_out] of hidden [batch, beams, d_model], nodes with these tokens."""
        return F.linear(hidden, self.level_heads[level])

    def first_step(self, cache: DecoderCache) -> Tensor:
        """Return the logits of the first level, and cache those of the second, in one pass over the weights.

        Which first digits will be kept is not known yet, so all are computed. As long as there are no more than `beam_width` of
        them, that is cheaper than a second pass.
        """
        batch, digits = len(cache.cross_bias), len(self.level_heads[0])
        past = self._room(cache, batch * digits, 1)

        def attend(query: Tensor, key: Tensor, value: Tensor, number: int) -> Tensor:
            for kind, states in enumerate((key, value)):  # a digit attends to the root and itself, the root to itself
                past[number][0, kind] = states[:, :1].expand_as(states[:, 1:]).flatten(0, 1)
                past[number][1, kind] = states[:, 1:].flatten(0, 1)
            below = self._attend(query[:, 1:].flatten(0, 1), past[number][:2])
            return torch.cat([value[:, :1], below.view_as(query[:, 1:])], dim=1)

        # hidden: [batch, 1 + first digits, d_model], the root and then every first digit
        hidden = self._layers(self.embeddings[: 1 + digits].repeat(batch, 1, 1), cache, attend)
        cache.ahead = F.linear(hidden[:, 1:], self.level_heads[1])
        return F.linear(hidden[:, :1], self.level_heads[0])

    def _room(self, cache: DecoderCache, rows: int, level: int) -> list[Tensor]:
        """Return the cache's `past`, allocated for `rows` beams on first use, with `level` marked as filled."""
        if not cache.past:
            shape = (len(self.fan_out), 2, rows, self.heads, cache.cross[0][0].shape[3])
            cache.past = [cache.cross_bias.new_empty(shape) for _ in self.layers]
        cache.levels = level + 1
        return cache.past

    def _attend(self, query: Tensor, past: Tensor) -> Tensor:
        """Return self-attention of query [rows, heads, head_dim] over past [levels, 2, rows, heads, head_dim].

        The last level is that of the query. Each row attends to a few levels only, so elementwise products are faster
        than matrix products with a single row.
        """
        levels = len(past)
        bias = self.position_bias[:, levels - 1, :levels].t()[:, None, :, None]  # [levels, 1, heads, 1]
        weights = ((query * past[:, 0]).sum(dim=-1, keepdim=True) + bias).softmax(dim=0)
        return (weights * past[:, 1]).sum(dim=0)

    def _layers(
        self, hidden: Tensor, cache: DecoderCache, attend: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    ) -> Tensor:
        """Run all blocks and the final norm over hidden [batch, n, d_model], which is changed in place.

        `attend` takes query, key and value [batch, n, heads, head_dim] and the number of the layer, and returns the output of
        self-attention in the same shape.
        """
        batch, positions, _ = hidden.shape
        for number, (layer, cross) in enumerate(zip(self.layers, cache.cross, strict=True)):
            projected = layer.self_qkv(self._norm(hidden))
            query, key, value = projected.view(batch, positions, 3, self.heads, -1).unbind(2)
            hidden += layer.self_out(attend(query, key, value, number).flatten(2))
            hidden += self._cross_attention(layer, hidden, cross, cache.cross_bias)
            hidden += self._feed_forward(layer, hidden)
        return self._norm(hidden)

    def _cross_attention(
        self, layer: "_Layer", hidden: Tensor, cross: tuple[Tensor, Tensor], cross_bias: Tensor
    ) -> Tensor:
        batch, beams, _ = hidden.shape
        # query: [batch, heads, beams, head_dim]
        query = layer.cross_q(self._norm(hidden)).view(batch, beams, self.heads, -1).transpose(1, 2)
        attended = F.scaled_dot_product_attention(query, *cross, attn_mask=cross_bias, scale=1.0)  # T5 does not scale
        return layer.cross_out(attended.transpose(1, 2).flatten(2))

    def _feed_forward(self, layer: "_Layer", hidden: Tensor) -> Tensor:
        hidden, dense = self._norm(hidden), layer.feed_forward
        if not isinstance(dense.act, torch.nn.ReLU):
            return dense(hidden)
        return dense.wo(dense.wi(hidden, "relu"))

    def _norm(self, hidden: Tensor) -> Tensor:
        """Return T5's RMS norm of each position, without the constants that `_after_norm` folded into the next weights."""
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        return hidden * (length.square() + self.eps).rsqrt().to(hidden.dtype)


def _after_norm(weight: Tensor, norm: Any) -> Tensor:
    """Return the weight of the linear layer that follows a norm, with the norm's constants folded in."""
    return (weight.detach().float() * norm.weight.detach().float() * weight.shape[1] ** 0.5).to(weight.dtype)


class _Layer:
    """The weights of one T5 decoder block."""

    def __init__(self, block: Any) -> None:
        self_attention, cross, feed_forward = block
        attention = self_attention.SelfAttention
        together = torch.cat([attention.q.weight, attention.k.weight, attention.v.weight])
        self.self_qkv = PackedLinear(_after_norm(together, self_attention.layer_norm))
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


class WordDecoder(FastDecoder):
    """A `WordGenerator`, laid out for search: its tokens are nodes, as they were numbered in training.

    Args:
        generator: a trained generator; if its weights change, make a new `WordDecoder`.
        dtype: of weights and arithmetic; the generator's own by default.
    """

    def _take_head(self, generator: DocidGenerator, head: Tensor) -> None:
        assert isinstance(generator, WordGenerator)
        self.generator = generator
        self.columns, self.level_heads = torch.zeros_like(generator.rows), ()
        nodes = torch.zeros(1, dtype=torch.long, device=head.device)
        for fan_out in self.fan_out:
            digits = torch.arange(fan_out, device=head.device)
            nodes = generator.children_of(nodes, digits)[digits < generator.num_children[nodes][:, None]]
            rows, self.columns[nodes] = generator.rows[nodes].unique(return_inverse=True)
            self.level_heads = (*self.level_heads, head[rows])  # [words of the level, d_model]
            nodes = nodes[nodes < len(generator.first_child)]

    def tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the children [batch, beams, fan_out]; any of them for one that was added after training."""
        return self.generator.children_of(parents.clamp(max=len(self.generator.first_child) - 1), digits)

    def first_step(self, cache: DecoderCache) -> Tensor:
        """Return the logits of the first level."""
        return self.step(torch.zeros_like(cache.cross_bias[:, :1, 0, 0], dtype=torch.long), 0, cache)

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.embeddings[self.generator.rows[tokens]]

    def _logits(self, hidden: Tensor, tokens: Tensor, level: int) -> Tensor:
        children = self.tokens(tokens, torch.arange(self.fan_out[level], device=tokens.device), level)
        return super()._logits(hidden, tokens, level).gather(2, self.columns[children])
