"""A generator that reads on from cached keys and values in a search: many beams of many queries.

The model reads each query once. The keys and values of the query, and of the root of the docids, are shared by its beams; each
beam has those of its digits beside them. The numbers are those of the generator's `forward`. Knows nothing of trees and
scores.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from dsi.generator.base import Generator


class _SharedLayer(DynamicLayer):
    """Keys and values of one layer: those that the beams of a query share, and those of the tokens of each beam."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._shared, self._beams = (keys, values), 1  # [batch, heads, length, head_dim]
        self._own = (keys[:, :, :0], values[:, :, :0])  # [batch * beams, heads, tokens of the beam, head_dim]
        self.is_initialized = True

    @property
    def keys(self) -> Tensor:  # type: ignore[override]
        """[batch * beams, heads, tokens, head_dim] of all tokens."""
        return self._all(0)

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """The values of the same tokens."""
        return self._all(1)

    def _all(self, which: int) -> Tensor:
        shared, per_beam = self._shared[which].repeat_interleave(self._beams, dim=0), self._own[which]
        return torch.cat([shared, per_beam], dim=2) if per_beam.shape[2] else shared

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add a token of each beam, and return the keys and values of all tokens."""
        new = (key_states, value_states)
        self._own = tuple(torch.cat(pair, dim=2) for pair in zip(self._own, new, strict=True))  # type: ignore[assignment]
        return self.keys, self.values

    def select(self, rows: Tensor, beams: int) -> None:
        """Give the beams, `beams` of each query, the tokens of the rows [batch * beams] that they continue."""
        self._own, self._beams = (self._own[0][rows], self._own[1][rows]), beams

    def get_seq_length(self) -> int:
        return int(self._shared[0].shape[2] + self._own[0].shape[2])


def _shared(cache: Cache) -> DynamicCache:
    """Return a cache whose layers share what one that was filled holds."""
    shared = DynamicCache()
    shared.layers = [_SharedLayer(layer.keys, layer.values) for layer in cache.layers]
    return shared


@dataclass
class DecoderCache:
    """What a model has read of a batch of queries."""

    past: Cache  # keys and values, filled with the queries and the root
    states: Tensor | None  # [batch, length, width] that a decoder attends to; None for a causal model
    mask: Tensor  # [batch, length] 1 at real tokens of the queries, and at the root after them in a causal model
    first: Tensor  # [batch, width] the hidden state of the root
    beams: int = 1  # of each query
    digits: int = 0  # read after the root

    def __post_init__(self) -> None:
        if isinstance(self.past, EncoderDecoderCache):
            itself, cross = _shared(self.past.self_attention_cache), _shared(self.past.cross_attention_cache)
            self.past, self._layers = EncoderDecoderCache(itself, cross), [*itself.layers, *cross.layers]
        else:
            self.past = _shared(self.past)
            self._layers = self.past.layers

    def select(self, beams: Tensor) -> None:
        """Give each new beam the digits of the beam that it continues; beams: [batch, new beams] indices of old beams."""
        batch, count = beams.shape
        rows = (torch.arange(batch, device=beams.device)[:, None] * self.beams + beams).flatten()
        for layer in self._layers:
            layer.select(rows, count)
        self.beams = count

    def shape_of_states(self, rows: int) -> Tensor:
        """Return states [rows, length, width] of which only the shape counts, as `past` has what they give."""
        assert self.states is not None
        return self.states[:1].expand(rows, -1, -1)


class TokenGenerator(Generator):
    """A model whose docid tokens, by default (level, digit) pairs, have rows of an output layer, `head`.

    One with other tokens overrides `embed`, `child_tokens` and `score_children`, and what it trains by, `forward`.
    """

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., width] of docid tokens."""

    @abstractmethod
    def read_on(self, embeddings: Tensor, mask: Tensor, cache: DecoderCache) -> Tensor:
        """Return the hidden states [rows, width] of one more digit of each beam, rows = batch * beams.

        It reads the digits' embeddings [rows, 1, width] after what their queries have read, with mask [rows, length].
        """

    def score_children(self, hidden: Tensor, tokens: Tensor, level: int) -> Tensor:
        """Return the logits [batch, beams, fan_out] of the children of nodes with these hidden states and tokens."""
        start, fan_out = self._first_token(level), self.config.fan_out[level]
        return F.linear(hidden, self.head.weight[start : start + fan_out])

    def child_tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the docid tokens of digits; see `Scorer`."""
        return self._first_token(level) + digits.clamp(max=self.config.fan_out[level] - 1)

    def pick(self, logits: Tensor, depths: Tensor) -> dict[str, Tensor]:
        """Return {"logits": [batch, n, largest fan_out] of the children of nodes at depths [batch, n], -inf past the last}.

        They are picked of the logits [batch, n, vocab_size] of all tokens.
        """
        fan_out = torch.tensor(self.config.fan_out, device=depths.device)
        digits = torch.arange(max(self.config.fan_out), device=depths.device)
        first = (1 + fan_out.cumsum(0) - fan_out)[depths]  # [batch, n] token of each level's first digit
        columns = (first[..., None] + digits).clamp(max=self.config.vocab_size - 1)  # [batch, n, largest fan_out]
        return {"logits": logits.gather(2, columns).masked_fill(digits >= fan_out[depths][..., None], -torch.inf)}

    def _first_token(self, level: int) -> int:
        return 1 + sum(self.config.fan_out[:level])

    @torch.no_grad()
    def child_logits(self, tokens: Tensor, level: int, cache: DecoderCache) -> Tensor:
        """Return the logits of a level; see `Scorer`."""
        batch, beams = tokens.shape
        if cache.beams != beams:  # the paths to given documents, of which each begins at the root
            cache.select(torch.zeros_like(tokens))
        if level == 0:
            hidden = cache.first[:, None].expand(-1, beams, -1)
        else:
            cache.digits += 1
            mask = cache.mask.repeat_interleave(beams, dim=0)
            hidden = self.read_on(self.embed(tokens).flatten(0, 1)[:, None], mask, cache).view(batch, beams, -1)
        return self.score_children(hidden, tokens, level)
