"""Decoding by a `PretrainedGenerator`: a model of transformers over many beams of many queries.

The model reads each query once. The keys and values of the query, and of the root of the docids, are kept once and shared by
its beams; each beam has those of its own digits beside them. Computes the same numbers as the generator's `forward`. Knows
nothing of trees and scores.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from dsi.generator.pretrained import PROMPTS, PretrainedGenerator
from dsi.search.decoder import Decoder
from dsi.search.queries import QueryBatch


class _SharedLayer(DynamicLayer):
    """Keys and values of one layer: those that the beams of a query share, and those of each beam's own tokens.

    Args:
        keys: [batch, heads, length, head_dim] shared.
        values: the same.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._shared, self._beams = (keys, values), 1
        self._own = (keys[:, :, :0], values[:, :, :0])  # [batch * beams, heads, own tokens, head_dim]
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
        shared = self._shared[which].repeat_interleave(self._beams, dim=0)
        return torch.cat([shared, self._own[which]], dim=2)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add a token of each beam, and return the keys and values of all tokens."""
        new = (key_states, value_states)
        self._own = tuple(torch.cat(pair, dim=2) for pair in zip(self._own, new, strict=True))  # type: ignore[assignment]
        return self.keys, self.values

    def select(self, rows: Tensor, beams: int) -> None:
        """Give beams, `beams` of each query, the own tokens of the rows [batch * beams] that they continue."""
        self._own, self._beams = (self._own[0][rows], self._own[1][rows]), beams

    def get_seq_length(self) -> int:
        """Return the number of tokens."""
        return int(self._shared[0].shape[2] + self._own[0].shape[2])


def _shared(cache: Cache) -> DynamicCache:
    """Return a cache whose layers share what one that was filled holds."""
    shared = DynamicCache()
    shared.layers = [_SharedLayer(layer.keys, layer.values) for layer in cache.layers]
    return shared


@dataclass
class PretrainedCache:
    """What the model has read of a batch of queries.

    Attributes:
        past: keys and values.
        layers: its layers that hold digits.
        states: [batch, length, width] of a sequence-to-sequence model's encoder; None for a causal model.
        mask: [batch, length] 1 at real tokens of the queries, and at the root after them in a causal model.
        first: [batch, width] the hidden state of the root.
        beams: of each query.
        digits: read after the root.
    """

    past: Cache
    layers: list[Any]
    states: Tensor | None
    mask: Tensor
    first: Tensor
    beams: int = 1
    digits: int = 0

    def select(self, beams: Tensor) -> None:
        """Give each new beam the digits of the beam that it continues; beams: [batch, new beams] indices of old beams."""
        batch, count = beams.shape
        rows = (torch.arange(batch, device=beams.device)[:, None] * self.beams + beams).flatten()
        for layer in self.layers:
            layer.select(rows, count)
        self.beams = count


class PretrainedDecoder(Decoder):
    """A `PretrainedGenerator`, for search.

    Args:
        generator: a trained generator; not changed later.
        dtype: of weights and arithmetic; the generator's own by default.
    """

    most_nodes = 1_024  # each has keys and values of its digits in every layer

    def __init__(self, generator: PretrainedGenerator, dtype: torch.dtype | None = None) -> None:
        super().__init__(generator)
        self.dtype = dtype or generator.head.weight.dtype
        if self.dtype != generator.head.weight.dtype:
            generator = copy.deepcopy(generator).to(self.dtype)
        self.generator, self.device = generator.eval(), generator.device
        self.level_heads = generator.head.weight[1:].split(self.fan_out)  # row 0 is the root

    @torch.no_grad()
    def start(self, batch: QueryBatch) -> PretrainedCache:
        """Read a batch of queries, and the root of the docids after them."""
        generator = self.generator
        read = generator.tokenize([PROMPTS["query"] + text for text in batch.read or batch.texts])
        read = {name: tensor.to(self.device) for name, tensor in read.items()}
        root = generator.embed(torch.zeros(len(batch.texts), 1, dtype=torch.long, device=self.device))
        own, mask = DynamicCache(), read["attention_mask"]
        past: Cache = EncoderDecoderCache(own, DynamicCache()) if generator.is_seq2seq else own
        output = generator.read(**read, docid=root, past_key_values=past, use_cache=True)
        first = output.last_hidden_state[:, -1]
        own = _shared(own)
        if isinstance(past, EncoderDecoderCache):
            cross = _shared(past.cross_attention_cache)
            both, states = EncoderDecoderCache(own, cross), output.encoder_last_hidden_state
            return PretrainedCache(both, [*own.layers, *cross.layers], states, mask, first)
        return PretrainedCache(own, own.layers, None, F.pad(mask, (0, 1), value=1), first)

    @torch.no_grad()
    def logits(self, tokens: Tensor, level: int, cache: PretrainedCache, beam_width: int = 0) -> Tensor:
        """Return the logits [batch, beams, fan_out] of a level, given the tokens [batch, beams] chosen at level - 1."""
        batch, beams = tokens.shape
        if cache.beams != beams:  # the paths to given documents, of which each begins at the root
            cache.select(torch.zeros_like(tokens))
        if level == 0:
            hidden = cache.first[:, None].expand(-1, beams, -1)
        else:
            hidden = self._read(tokens.flatten(), cache).view(batch, beams, -1)
        return F.linear(hidden, self.level_heads[level])

    def _read(self, tokens: Tensor, cache: PretrainedCache) -> Tensor:
        """[batch * beams, width] the hidden states of one more digit of each beam, tokens [batch * beams]."""
        model, embeddings = self.generator.upper, self.generator.embed(tokens)[:, None]
        mask, cache.digits = cache.mask.repeat_interleave(cache.beams, dim=0), cache.digits + 1
        more: dict[str, Any] = {"past_key_values": cache.past, "use_cache": True, "return_dict": True}
        if cache.states is not None:
            states = cache.states[:1].expand(
                len(tokens), -1, -1
            )  # of which only the shape counts: `past` has what they give
            more |= {"encoder_outputs": (states,), "decoder_inputs_embeds": embeddings}
        else:
            mask = F.pad(mask, (0, cache.digits), value=1)
            more |= {"inputs_embeds": embeddings, **self.generator.positions(mask, 1)}
        return model(attention_mask=mask, **more).last_hidden_state[:, -1]  # type: ignore[no-any-return]


@torch.no_grad()
def check_walk(generator: PretrainedGenerator, name: str) -> None:
    """Raise ValueError unless a model gives the same numbers where it reads on from keys and values as in one pass.

    Args:
        generator: for docids of two digits at least.
        name: `generator.decoder`, for the message.
    """
    texts = ["a", "a longer text than that"]
    nothing, tokens = torch.zeros(2, 0), torch.tensor([[0, 1], [0, 1]], device=generator.device)
    try:
        decoder = PretrainedDecoder(generator)
        cache = decoder.start(QueryBatch(torch.arange(2), nothing, nothing, nothing, texts))
        decoder.logits(tokens[:, :1], 0, cache)
        found = decoder.logits(tokens[:, 1:], 1, cache)[:, 0]
        read = generator.tokenize([PROMPTS["query"] + text for text in texts])
        read = {kind: own.to(generator.device) for kind, own in read.items()}
        depths = torch.arange(2, device=generator.device).expand(2, -1)
        whole = generator(**read, tokens=tokens, depths=depths, sees=depths)["logits"][:, 1, : found.shape[1]]
        same = torch.allclose(found, whole, rtol=1e-3, atol=1e-3)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        same = False
    if not same:
        raise ValueError(
            f"generator.decoder {name!r} does not read on from the keys and values of a query, as a search does; name another "
            "causal or sequence-to-sequence model, one of attention layers alone."
        )
