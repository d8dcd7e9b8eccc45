"""Token vectors of documents in few bytes, and late interaction over them (ColBERT; Khattab and Zaharia 2020).

Each place of a document in the docid tree has the vectors of its tokens as codes of 2, 4 or 8 bits a dimension.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.reading import RESTORE, is_finite, read_tensors
from dsi.docids.files.storage import save_tensors, scratch_blocks
from dsi.docids.files.threads import one_thread
from dsi.docids.types import Bools, Floats, Ints

Codes = NDArray[np.uint8]

BITS = (2, 4, 8)
_CODECS = {2: "QT_2bit_tqmse", 4: "QT_4bit_tqmse", 8: "QT_8bit_tqmse"}
_PLACES = 4_096
"""Places whose codes are copied at a time."""
_PRODUCTS, _DECODED = 2**20, 4_096
"""Products in memory at a time, and tokens that are decoded at a time: with 128 dimensions 2 MB, what a cache holds."""


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
        first, last = self.starts[rows], self.starts[rows + 1]
        pairs = zip(first.tolist(), last.tolist(), strict=True)
        codes = np.concatenate([self.codes[:0], *(self.codes[start:end] for start, end in pairs)])
        return TokenCodes(codes, np.concatenate([[0], np.cumsum(last - first)]))


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
        both = [part.gather(at) for part, at in zip(self.parts, (rows[~later], rows[later] - first), strict=True)]
        return TokenCodes.join(both).gather(np.argsort(np.argsort(later, kind="stable")))

    def late_interaction(self, queries: Sequence[Floats], places: Sequence[Ints]) -> list[Floats]:
        """Return for each query scores [n] of its places: means over its tokens of the best product with one of the place's.

        A place without tokens scores 0, as do all for a query without tokens. A place is decoded once for all queries.

        `queries`: normalised vectors [x, dim] of the tokens of each; `places`: [n] docid positions of each.
        """
        lengths, counts = np.array([*map(len, queries)]), np.array([*map(len, places)])
        unique, at = np.unique(np.concatenate(places), return_inverse=True)
        asked = np.zeros((len(unique), len(queries)), dtype=bool)
        asked[at, np.repeat(np.arange(len(queries)), counts)] = True
        asked &= (self.counts[unique] > 0)[:, None] & (lengths > 0)
        scores = np.zeros(asked.shape, dtype=np.float32)
        if asked.any():
            tokens = np.broadcast_to(lengths, asked.shape)[asked]  # [pairs] tokens of the query
            with one_thread():
                best = np.concatenate([*self._best(np.concatenate(queries), lengths, unique, asked)])
            scores[asked] = np.add.reduceat(best, tokens.cumsum() - tokens) / tokens
        edges = counts.cumsum()[:-1]
        return [scores[rows, query] for query, rows in enumerate(np.split(at, edges))]

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
        vectors, norms = decode(self.gather(np.array([place])).codes, self.dim, self.bits)
        return np.asarray(vectors @ tokens.T / norms[:, None])

    def _best(self, tokens: Floats, lengths: Ints, places: Ints, asked: Bools) -> Iterator[Floats]:
        """Yield the best products at places [n], one place after another, of all tokens of the queries that ask for it.

        `tokens`: [x, dim] of all queries; `lengths`: [queries] how many each has; `asked`: [n, queries].
        """
        counts = self.counts[places]
        blocks = counts.cumsum() // max(1, min(_DECODED, _PRODUCTS // len(tokens)))
        begins = np.append(True, blocks[1:] != blocks[:-1])
        edges = np.flatnonzero(begins).tolist()
        ends = dict(pairwise([*edges, len(places)]))
        buffer = np.empty((np.add.reduceat(counts, edges).max(), self.dim), dtype=np.float32)
        begins[1:] |= (asked[1:] != asked[:-1]).any(axis=1)  # the same queries ask for the places of a run
        for start, end in pairwise([*np.flatnonzero(begins).tolist(), len(places)]):
            if start in ends:
                block, gathered = start, self.gather(places[start : ends[start]])
                vectors, norms = decode(gathered.codes, self.dim, self.bits, buffer)
            if asked[start].any():
                starts = gathered.starts[start - block : end - block + 1]
                rows = slice(starts[0], starts[-1])
                products = vectors[rows] @ tokens[np.repeat(asked[start], lengths)].T
                products /= norms[rows, None]
                yield np.maximum.reduceat(products, starts[:-1] - starts[0]).ravel()

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """[places] how many tokens each place has."""
        counts = np.concatenate([part.counts for part in self.parts])
        return counts[self.order]

    def arranged(self, source: Ints, new: TokenCodes) -> "TokenVectors":
        """Return the vectors in another order; existing codes are not copied.

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
        ordered = self.in_order()
        bits = np.array([self.bits], dtype=np.int32)
        counts = ordered.counts.astype(np.int32)
        queries = {} if self.query_head is None else {"query_head": self.query_head}
        save_tensors({"codes": ordered.codes, "counts": counts, "head": self.head, "bits": bits, **queries}, path)

    @classmethod
    def load(cls, path: Path, places: int) -> "TokenVectors":
        """Return what `save` wrote for a number of places; the codes stay on disk."""
        arrays = read_tensors(path, _ARRAYS, optional=("query_head",))
        bits, codes, counts, head = (arrays[name] for name in ("bits", "codes", "counts", "head"))
        other = arrays.get("query_head")
        if len(counts) != places or bits.size != 1 or int(counts.sum()) != len(codes):
            raise ValueError(f"{path} does not hold the tokens of {places} docids; {RESTORE}.")
        parts, order = (TokenCodes.from_counts(codes, counts),), np.arange(places, dtype=np.int32)
        return cls(np.asarray(head), int(bits.item()), parts, order, None if other is None else np.asarray(other))

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


def project(head: Floats, states: Floats) -> Floats:
    """Return the normalised vectors [..., dim] of token states [..., state_dim]; a zero stays zero."""
    vectors = states @ head.T
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12))


def encode_states(head: Floats, bits: int, states: Sequence[Floats]) -> TokenCodes:
    """Return the codes of texts, each given by the states [tokens, state_dim] of its tokens."""
    joined = np.concatenate([np.empty((0, head.shape[1]), np.float32), *states]).astype(np.float32, copy=False)
    counts = np.array([*map(len, states)], dtype=np.int64)
    return TokenCodes.from_counts(encode(project(head, joined), bits), counts)


def encode(vectors: Floats, bits: int) -> Codes:
    """Return the codes [n, bytes] of normalised vectors [n, dim]."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    return np.asarray(_quantizer(vectors.shape[1], bits).compute_codes(vectors))


def decode(codes: Codes, dim: int, bits: int, buffer: Floats | None = None) -> tuple[Floats, Floats]:
    """Return the vectors [n, dim] of codes [n, bytes], and the norms [n] to divide them by.

    Each byte stands for 8 / bits numbers, whichever its place.

    `dim`: of the vectors, a multiple of 8 / bits; `buffer`: [at least n, dim], for the vectors; a new one by default.
    """
    vectors = np.empty((len(codes), dim), dtype=np.float32) if buffer is None else buffer[: len(codes)]
    table = _table(dim, bits)
    table.take(codes, axis=0, out=vectors.reshape(*codes.shape, table.shape[1]), mode="clip")
    return vectors, np.maximum(np.sqrt(np.vecdot(vectors, vectors)), np.float32(1e-12))


@cache
def _quantizer(dim: int, bits: int) -> "faiss.ScalarQuantizer":
    """Return faiss's quantiser of the coordinates of unit vectors, which needs no training data (TurboQuant, 2025)."""
    quantizer = faiss.ScalarQuantizer(dim, getattr(faiss.ScalarQuantizer, _CODECS[bits]))
    quantizer.train(np.eye(1, dim, dtype=np.float32))
    return quantizer


@cache
def _table(dim: int, bits: int) -> Floats:
    """Return the numbers [256, 8 / bits] that each byte stands for."""
    codes = np.zeros((256, dim * bits // 8), dtype=np.uint8)
    codes[:, 0] = np.arange(256)
    return np.ascontiguousarray(_quantizer(dim, bits).decode(codes)[:, : 8 // bits])
