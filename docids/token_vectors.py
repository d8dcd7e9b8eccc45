"""Token vectors of documents in few bytes, and late interaction over them (ColBERT; Khattab and Zaharia 2020).

Each place of a document in the docid tree has the vectors of its tokens as codes of 2, 4 or 8 bits a dimension. Knows nothing
of texts, of models, or of how places are chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.reading import RESTORE, is_finite, read_tensors
from dsi.docids.files.storage import save_tensors, scratch_blocks
from dsi.docids.files.threads import one_thread
from dsi.docids.types import Floats, Ints

Codes = NDArray[np.uint8]

BITS = (2, 4, 8)
_CODECS = {2: "QT_2bit_tqmse", 4: "QT_4bit_tqmse", 8: "QT_8bit_tqmse"}
_PLACES = 4_096
"""Places whose codes are copied at a time."""
_PRODUCTS, _DECODED = 2**20, 2_048
"""Products in memory at a time, and tokens that are decoded at a time: with 128 dimensions 1 MB, what a cache holds."""


@dataclass(frozen=True, eq=False)
class TokenCodes:
    """Codes of the tokens of some texts."""

    codes: Codes  # [tokens, dim * bits / 8]
    starts: NDArray[np.int64]  # [texts + 1] the first token of each text, last the number of tokens

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """[texts] how many tokens each text has."""
        return np.diff(self.starts)

    @classmethod
    def from_counts(cls, codes: Codes, counts: Ints) -> "TokenCodes":
        """Return codes of texts, given how many tokens each has."""
        return cls(codes, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))

    @classmethod
    def join(cls, blocks: Sequence["TokenCodes"]) -> "TokenCodes":
        """Return the codes of all blocks, one after another."""
        counts = np.concatenate([block.counts for block in blocks])
        return cls.from_counts(np.concatenate([block.codes for block in blocks]), counts)

    def gather(self, rows: Ints) -> "TokenCodes":
        """Return the codes of the texts in some rows [n], in this order."""
        counts = self.starts[rows + 1] - self.starts[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        tokens = np.repeat(self.starts[rows] - starts[:-1], counts) + np.arange(starts[-1])
        return TokenCodes(self.codes[tokens], starts)


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """The token vectors of all places of a docid tree."""

    head: Floats  # [dim, state_dim] maps an encoder's token state to a token vector, before normalisation
    bits: int  # of a dimension, one of `BITS`
    # codes in the order in which they were written: what was there first, and what updates added
    parts: tuple[TokenCodes, ...]
    order: Ints  # [places] the text of each place, counted over all parts
    query_head: Floats | None = None  # [dim, state_dim] of queries, if it is another one

    @property
    def dim(self) -> int:
        """Dimensions of a token vector."""
        return len(self.head)

    def project(self, states: Floats) -> Floats:
        """Return the normalised vectors [..., dim] of the token states [..., state_dim] of a query."""
        return project(self.head if self.query_head is None else self.query_head, states)

    def gather(self, places: Ints) -> TokenCodes:
        """Return the codes of some places [n], in this order."""
        rows, first = self.order[places], len(self.parts[0])
        later = rows >= first
        if not later.any():
            return self.parts[0].gather(rows)
        both = [part.gather(own) for part, own in zip(self.parts, (rows[~later], rows[later] - first), strict=True)]
        return TokenCodes.join(both).gather(np.argsort(np.argsort(later, kind="stable")))

    def late_interaction(self, queries: Sequence[Floats], places: Ints) -> Floats:
        """Return scores [queries, n] of places [n]: the mean over a query's tokens of the best product with one of the place's.

        A place without tokens has 0, as all have for a query without any. Codes are decoded once for all queries.

        `queries`: normalised vectors [x, dim] of the tokens of each; `places`: [n] docid positions.
        """
        scores, tokens = np.zeros((len(queries), len(places)), dtype=np.float32), np.concatenate(queries)
        if not len(tokens) or not len(places):
            return scores
        lengths = [len(own) for own in queries]
        shares = (np.eye(len(queries)) / np.maximum(lengths, 1)).astype(np.float32)
        means = np.repeat(shares, lengths, axis=0)  # [x, queries]
        blocks = np.cumsum(self.counts[places]) // max(1, _PRODUCTS // len(tokens))
        step = np.searchsorted(blocks, np.unique(blocks), side="right")
        with one_thread():
            for start, end in zip([0, *step[:-1].tolist()], step.tolist(), strict=True):
                scores[:, start:end] = self._scan(tokens, means, places[start:end]).T
        return scores

    def best_tokens(self, tokens: Floats, place: int) -> tuple[Ints, Floats]:
        """Return for each token [x] of a query the token of a place with the best product, and the product.

        For a place without tokens, each finds token -1 with product 0.
        """
        products = self.products(tokens, place)
        if not len(products):
            return np.full(len(tokens), -1), np.zeros(len(tokens), dtype=np.float32)
        return products.argmax(axis=0), products.max(axis=0)

    def products(self, tokens: Floats, place: int) -> Floats:
        """[document tokens, x] the products of the tokens of a place with the tokens [x] of a query."""
        return self._products(tokens, self.gather(np.array([place])).codes)

    def _scan(self, tokens: Floats, means: Floats, places: Ints) -> Floats:
        """Return the scores [n, queries] of places [n], given all queries' tokens [x, dim] and their shares [x, queries]."""
        found = self.gather(places)
        scores = np.zeros((len(places), means.shape[1]), dtype=np.float32)
        filled = found.counts > 0
        if filled.any():
            best = np.maximum.reduceat(self._products(tokens, found.codes), found.starts[:-1][filled], axis=0)
            scores[filled] = best @ means
        return scores

    def _products(self, tokens: Floats, codes: Codes) -> Floats:
        """Return the products [document tokens, x] of normalised vectors."""
        products = np.empty((len(codes), len(tokens)), dtype=np.float32)
        buffer = np.empty((_DECODED, self.dim), dtype=np.float32)
        for start in range(0, len(codes), _DECODED):
            vectors, norms = decode(codes[start : start + _DECODED], self.dim, self.bits, buffer)
            np.divide(vectors @ tokens.T, norms[:, None], out=products[start : start + _DECODED])
        return products

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """[places] how many tokens each place has."""
        counts = np.concatenate([part.counts for part in self.parts])
        return counts[self.order]

    def arranged(self, source: Ints, new: TokenCodes) -> "TokenVectors":
        """Return the vectors in another order; no codes that are there are copied.

        `source`: [m] for each place, its place here; places here + i for text i of `new`; `new`: codes of the texts
        that join.
        """
        first = sum(map(len, self.parts))
        order = np.concatenate([self.order, first + np.arange(len(new), dtype=np.int32)])[source]
        later, old = TokenCodes.join([*self.parts[1:], new]), len(self.parts[0])
        in_use = np.flatnonzero(order >= old)
        if 2 * len(in_use) < len(later):  # most later texts were removed since
            later, order[in_use] = later.gather(order[in_use] - old), old + np.arange(len(in_use))
        return replace(self, parts=(self.parts[0], later), order=order.astype(np.int32))

    def without(self, places: Ints) -> "TokenVectors":
        """Return the vectors with some places left without tokens."""
        source = np.arange(len(self.order))
        source[places] = len(self.order)
        return self.arranged(source, TokenCodes(self.parts[0].codes[:0], np.zeros(2, dtype=np.int64)))

    def in_order(self) -> TokenCodes:
        """Return the codes of all places, by place; in a scratch file unless they are so already."""
        first = self.parts[0]
        if len(self.parts) == 1 and np.array_equal(self.order, np.arange(len(first))):
            return first
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        places = np.arange(len(self.order))
        blocks = (self.gather(places[start : start + _PLACES]).codes for start in range(0, len(places), _PLACES))
        return TokenCodes(scratch_blocks((int(starts[-1]), first.codes.shape[1]), np.uint8, blocks), starts)

    def save(self, path: Path) -> None:
        """Write heads and codes as one safetensors file; nothing of a removed document is written."""
        whole = self.in_order()
        bits = np.array([self.bits], dtype=np.int32)
        counts = whole.counts.astype(np.int32)
        queries = {} if self.query_head is None else {"query_head": self.query_head}
        save_tensors({"codes": whole.codes, "counts": counts, "head": self.head, "bits": bits, **queries}, path)

    @classmethod
    def load(cls, path: Path, places: int) -> "TokenVectors":
        """Return what `save` wrote for a number of places; the codes stay on disk."""
        arrays = read_tensors(path, _ARRAYS, optional=("query_head",))
        bits, codes, counts, head = (arrays[name] for name in ("bits", "codes", "counts", "head"))
        own = arrays.get("query_head")
        if len(counts) != places or bits.size != 1 or int(counts.sum()) != len(codes):
            raise ValueError(f"{path} does not hold the tokens of {places} docids; {RESTORE}.")
        parts, order = (TokenCodes.from_counts(codes, counts),), np.arange(places, dtype=np.int32)
        return cls(np.asarray(head), int(bits.item()), parts, order, None if own is None else np.asarray(own))

    def is_sound(self) -> bool:
        """True if codes, counts and heads fit each other."""
        codes, counts, heads = self.parts[0].codes, self.parts[0].counts, [self.head, self.query_head]
        return bool(
            self.bits in BITS
            and codes.shape[1] * 8 == len(self.head) * self.bits
            and all(head is None or (head.shape == self.head.shape and is_finite(head)) for head in heads)
            and counts.min(initial=0) >= 0
            and counts.sum(dtype=np.int64) == len(codes)
        )


_ARRAYS: dict[str, tuple[type[np.generic], int]] = {
    "codes": (np.uint8, 2),
    "counts": (np.int32, 1),
    "head": (np.float32, 2),
    "query_head": (np.float32, 2),
    "bits": (np.int32, 1),
}


def code_size(dim: int, bits: int) -> int:
    """Return the bytes of a token's code."""
    return -(-dim * bits // 8)


def project(head: Floats, states: Floats) -> Floats:
    """Return the normalised vectors [..., dim] of token states [..., state_dim]; a zero stays zero."""
    vectors = states @ head.T
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12))


def encode_states(head: Floats, bits: int, states: Sequence[Floats]) -> TokenCodes:
    """Return the codes of texts, each given by the states [tokens, state_dim] of its tokens."""
    joined = np.concatenate([np.empty((0, head.shape[1]), np.float32), *states]).astype(np.float32, copy=False)
    counts = np.array([len(own) for own in states], dtype=np.int64)
    return TokenCodes.from_counts(encode(project(head, joined), bits), counts)


def encode(vectors: Floats, bits: int) -> Codes:
    """Return the codes [n, bytes] of normalised vectors [n, dim]."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    return np.asarray(_quantizer(vectors.shape[1], bits).compute_codes(vectors))


def decode(codes: Codes, dim: int, bits: int, buffer: Floats | None = None) -> tuple[Floats, Floats]:
    """Return the vectors [n, dim] of codes [n, bytes], and the norms [n] to divide them by.

    Each byte stands for 8 / bits numbers, whichever its place.

    `dim`: of their vectors; a multiple of 8 / bits; `buffer`: [at least n, dim] in which the vectors are returned; a
    new one by default.
    """
    vectors = np.empty((len(codes), dim), dtype=np.float32) if buffer is None else buffer[: len(codes)]
    table = _table(dim, bits)
    table.take(codes, axis=0, out=vectors.reshape(*codes.shape, table.shape[1]), mode="clip")
    return vectors, np.sqrt(np.einsum("ij,ij->i", vectors, vectors)).clip(1e-12)


@cache
def _quantizer(dim: int, bits: int) -> "faiss.ScalarQuantizer":
    """Return faiss's quantiser of the coordinates of unit vectors, which needs no training data (TurboQuant, 2025)."""
    quantizer = faiss.ScalarQuantizer(dim, getattr(faiss.ScalarQuantizer, _CODECS[bits]))
    quantizer.train(np.eye(1, dim, dtype=np.float32))
    return quantizer


@cache
def _table(dim: int, bits: int) -> Floats:
    """Return the numbers [256, 8 / bits] that each byte stands for."""
    codes = np.zeros((256, code_size(dim, bits)), dtype=np.uint8)
    codes[:, 0] = np.arange(256)
    return np.ascontiguousarray(_quantizer(dim, bits).decode(codes)[:, : 8 // bits])
