"""What scores children in a search: a model over many beams of many queries, which reads on from cached keys and values.

The model reads each query once. The keys and values of the query, and of the root of the docids, are shared by its beams; each
beam has those of its own digits beside them. A T5 decoder reads the encoder's states, a `PretrainedGenerator` the text. The
numbers are those of the generator's `forward`. Knows nothing of trees and scores.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from dsi.contrastive.inference import for_inference
from dsi.generator.base import Generator
from dsi.generator.model import DocidGenerator
from dsi.generator.nodes import NodeGenerator, ReadQueries
from dsi.generator.pretrained import PROMPTS, PretrainedGenerator
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
        shared, own = self._shared[which].repeat_interleave(self._beams, dim=0), self._own[which]
        return torch.cat([shared, own], dim=2) if own.shape[2] else shared

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
class DecoderCache:
    """What a model has read of a batch of queries.

    Attributes:
        past: keys and values, filled with the queries and the root.
        states: [batch, length, width] that a decoder attends to; None for a causal model.
        mask: [batch, length] 1 at real tokens of the queries, and at the root after them in a causal model.
        first: [batch, width] the hidden state of the root.
        beams: of each query.
        digits: read after the root.
    """

    past: Cache
    states: Tensor | None
    mask: Tensor
    first: Tensor
    beams: int = 1
    digits: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.past, EncoderDecoderCache):
            own, cross = _shared(self.past.self_attention_cache), _shared(self.past.cross_attention_cache)
            self.past, self._layers = EncoderDecoderCache(own, cross), [*own.layers, *cross.layers]
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


class Decoder(ABC):
    """Scores the children of nodes, one level after the other.

    Args:
        generator: a trained generator; not changed later.

    Attributes:
        device: where the weights are.
        score: how search ranks nodes, one of `dsi.generator.objectives.SCORES`.
        fan_out: digits of each level.
        most_nodes: an exact search runs it over about this many nodes at a time: each has keys and values in every layer.
    """

    most_nodes: ClassVar[int] = 1_024

    def __init__(self, generator: Generator) -> None:
        self.generator: Any = generator
        self.device: torch.device = generator.device
        self.score: str = generator.config.score
        self.fan_out = list(generator.config.fan_out)

    @abstractmethod
    def start(self, batch: QueryBatch) -> Any:
        """Read a batch of queries, and the root of the docids; return the cache of both."""

    @abstractmethod
    def logits(self, tokens: Tensor, level: int, cache: Any) -> Tensor:
        """Return the logits [batch, beams, fan_out] of a level, given the tokens [batch, beams] chosen at level - 1.

        Args:
            tokens: 0, the root, at level 0.
            level: from 0, one after the other.
            cache: of the queries; its `select(beams)` gives new beams [batch, n] the past of old ones.
        """

    @abstractmethod
    def tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the docid tokens of digits of a level, below nodes with the tokens `parents` [batch, beams].

        A digit added after training has no embedding; any serves, as no logits below it are used.
        """


class CachedDecoder(Decoder):
    """A decoder that reads on from cached keys and values.

    Args:
        generator: see `Decoder`.
        dtype: of weights and arithmetic; the generator's own by default.

    Attributes:
        token_offsets: token of each level's first digit.
    """

    def __init__(self, generator: Generator, dtype: torch.dtype | None = None) -> None:
        super().__init__(generator)
        self.generator = self._prepared(generator, dtype or generator.head.weight.dtype)
        self.token_offsets = [1 + sum(self.fan_out[:level]) for level in range(len(self.fan_out))]
        self.level_heads = self._level_heads(self.generator.head.weight)

    @abstractmethod
    def _prepared(self, generator: Generator, dtype: torch.dtype) -> Generator:
        """Return the generator for searches in a dtype."""

    def _level_heads(self, head: Tensor) -> Sequence[Tensor]:
        """Return the rows of each level in the output layer [vocab_size, width], whose first is that of the root."""
        return head[1:].split(self.fan_out)

    def tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the docid tokens of digits; see `Decoder.tokens`."""
        return self.token_offsets[level] + digits.clamp(max=self.fan_out[level] - 1)

    @torch.no_grad()
    def logits(self, tokens: Tensor, level: int, cache: DecoderCache) -> Tensor:
        """Return the logits of a level; see `Decoder.logits`."""
        batch, beams = tokens.shape
        if cache.beams != beams:  # the paths to given documents, of which each begins at the root
            cache.select(torch.zeros_like(tokens))
        if level == 0:
            hidden = cache.first[:, None].expand(-1, beams, -1)
        else:
            cache.digits += 1
            mask = cache.mask.repeat_interleave(beams, dim=0)
            hidden = self._read(self._embed(tokens).flatten(0, 1)[:, None], mask, cache).view(batch, beams, -1)
        return self._logits(hidden, tokens, level)

    @abstractmethod
    def _embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., width] of docid tokens."""

    @abstractmethod
    def _read(self, embeddings: Tensor, mask: Tensor, cache: DecoderCache) -> Tensor:
        """Return the hidden states [rows, width] of one more digit of each beam.

        Args:
            embeddings: [rows, 1, width] of the digits, rows = batch * beams.
            mask: [rows, length] of what their queries have read.
            cache: of the queries.
        """

    def _logits(self, hidden: Tensor, tokens: Tensor, level: int) -> Tensor:
        """Return the logits [batch, beams, fan_out] of hidden [batch, beams, width], nodes with these tokens."""
        return F.linear(hidden, self.level_heads[level])


class StatesDecoder(CachedDecoder):
    """A `DocidGenerator`: a T5 decoder that attends to the encoder's states."""

    def _prepared(self, generator: Generator, dtype: torch.dtype) -> Generator:
        return for_inference(generator, dtype)  # type: ignore[return-value]

    @torch.no_grad()
    def start(self, batch: QueryBatch) -> DecoderCache:
        """Read the states of a batch of queries; see `Decoder.start`."""
        root = self._embed(torch.zeros(len(batch.states), 1, dtype=torch.long, device=self.device))
        past, mask = (
            EncoderDecoderCache(DynamicCache(), DynamicCache()),
            torch.from_numpy(batch.mask).to(root.device).long(),
        )
        states = torch.from_numpy(batch.states).to(root)
        first = self._run(root, states, mask, past)
        return DecoderCache(past, states, mask, first)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.generator.decoder.embed_tokens(tokens)  # type: ignore[no-any-return]

    def _read(self, embeddings: Tensor, mask: Tensor, cache: DecoderCache) -> Tensor:
        return self._run(embeddings, cache.shape_of_states(len(mask)), mask, cache.past)

    def _run(self, embeddings: Tensor, states: Tensor, mask: Tensor, past: Cache) -> Tensor:
        output = self.generator.decoder(
            inputs_embeds=embeddings, encoder_hidden_states=states, encoder_attention_mask=mask, past_key_values=past,
            use_cache=True,
        )  # fmt: skip
        return output.last_hidden_state[:, -1]  # type: ignore[no-any-return]


class TextDecoder(CachedDecoder):
    """A `PretrainedGenerator`: a model of transformers that reads the text."""

    def _prepared(self, generator: Generator, dtype: torch.dtype) -> Generator:
        if dtype != generator.head.weight.dtype:
            generator = copy.deepcopy(generator).to(dtype)
        return generator.eval()

    @torch.no_grad()
    def start(self, batch: QueryBatch) -> DecoderCache:
        """Read a batch of queries, and the root of the docids after them."""
        generator = self.generator
        read = generator.tokenize([PROMPTS["query"] + text for text in batch.read or batch.texts])
        read = {name: tensor.to(self.device) for name, tensor in read.items()}
        root = self._embed(torch.zeros(len(batch.texts), 1, dtype=torch.long, device=self.device))
        past: Cache = EncoderDecoderCache(DynamicCache(), DynamicCache()) if generator.is_seq2seq else DynamicCache()
        output = generator.read(**read, docid=root, past_key_values=past, use_cache=True)
        first, mask = output.last_hidden_state[:, -1], read["attention_mask"]
        if generator.is_seq2seq:
            return DecoderCache(past, output.encoder_last_hidden_state, mask, first)
        return DecoderCache(past, None, F.pad(mask, (0, 1), value=1), first)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.generator.embed(tokens)  # type: ignore[no-any-return]

    def _read(self, embeddings: Tensor, mask: Tensor, cache: DecoderCache) -> Tensor:
        more: dict[str, Any] = {"past_key_values": cache.past, "use_cache": True, "return_dict": True}
        if self.generator.is_seq2seq:
            states = cache.shape_of_states(len(mask))
            more |= {"encoder_outputs": (states,), "decoder_inputs_embeds": embeddings}
        else:
            mask = F.pad(mask, (0, cache.digits), value=1)
            more |= {"inputs_embeds": embeddings, **self.generator.positions(mask, 1)}
        return self.generator.model(attention_mask=mask, **more).last_hidden_state[:, -1]  # type: ignore[no-any-return]


@dataclass
class NodeCache:
    """A batch of queries; nothing but them is read in a step.

    Attributes:
        queries: what the generator reads.
    """

    queries: ReadQueries

    def select(self, beams: Tensor) -> None:
        """Do nothing: a node says all of the way to it."""


class NodeDecoder(Decoder):
    """A `NodeGenerator`: each step asks its `log_probs` for the children of the beam's nodes."""

    def __init__(self, generator: NodeGenerator, dtype: torch.dtype | None = None) -> None:
        super().__init__(generator.eval())

    def start(self, batch: QueryBatch) -> NodeCache:
        """Put the states of a batch of queries on the device; see `Decoder.start`."""
        states, mask = (torch.from_numpy(array).to(self.device) for array in (batch.states, batch.mask))
        return NodeCache(ReadQueries(states.float(), mask.bool()))

    def tokens(self, parents: Tensor, digits: Tensor, level: int) -> Tensor:
        """Return the children [batch, beams, fan_out]; any of them for one that was added after training."""
        known = parents.clamp(max=len(self.generator.first_child) - 1)
        return self.generator.children_of(known)[..., digits.clamp(max=max(self.fan_out) - 1)]

    @torch.no_grad()
    def logits(self, tokens: Tensor, level: int, cache: NodeCache) -> Tensor:
        """Return the logits [batch, beams, fan_out] of the children of nodes [batch, beams]."""
        known = tokens.clamp(max=len(self.generator.first_child) - 1)
        found = self.generator(*cache.queries, tokens=known, depths=known, sees=known)["logits"]
        return found[..., : self.fan_out[level]]  # type: ignore[no-any-return]


@torch.no_grad()
def check_walk(generator: PretrainedGenerator, name: str) -> None:
    """Raise ValueError unless a model gives the same numbers where it reads on from keys and values as in one pass.

    Args:
        generator: for docids of two digits at least.
        name: `generator.decoder`, for the message.
    """
    texts = ["a", "a longer text than that"]
    nothing, tokens = np.zeros((2, 0), np.float32), torch.tensor([[0, 1], [0, 1]], device=generator.device)
    try:
        decoder = TextDecoder(generator)
        cache = decoder.start(QueryBatch(np.arange(2), nothing, nothing.astype(bool), nothing, texts))
        decoder.logits(tokens[:, :1], 0, cache)
        found = decoder.logits(tokens[:, 1:], 1, cache)[:, 0]
        read = generator.tokenize([PROMPTS["query"] + text for text in texts])
        read = {kind: own.to(generator.device) for kind, own in read.items()}
        depths = torch.arange(2, device=generator.device).expand(2, -1)
        sees = torch.ones(2, 2, 2, dtype=torch.bool, device=generator.device).tril()
        whole = generator(**read, tokens=tokens, depths=depths, sees=sees)["logits"][:, 1, : found.shape[1]]
        same = torch.allclose(found, whole, rtol=1e-3, atol=1e-3)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        same = False
    if not same:
        raise ValueError(
            f"generator.decoder {name!r} does not read on from the keys and values of a query, as a search does; name another "
            "causal or sequence-to-sequence model, one of attention layers alone."
        )


DECODERS: dict[type[Generator], type[Any]] = {
    DocidGenerator: StatesDecoder,
    PretrainedGenerator: TextDecoder,
    NodeGenerator: NodeDecoder,
}
"""{kind of generator: what runs it and its subclasses in a search}; one that has `search_decoder` says so itself."""


def search_decoder(generator: Generator, dtype: torch.dtype | None = None) -> Decoder:
    """Return what runs a generator in a search.

    Args:
        generator: not changed later.
        dtype: of a decoder's weights and arithmetic; the generator's by default.
    """
    if own := getattr(generator, "search_decoder", None):
        return own(dtype)  # type: ignore[no-any-return]
    kind = next(DECODERS[base] for base in type(generator).__mro__ if base in DECODERS)
    return kind(generator, dtype)  # type: ignore[no-any-return]
