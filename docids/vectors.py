"""Vectors as floats or int8, and codes to search them by; read as float32, updated without copying. Knows nothing of trees."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, TypeAlias

import faiss as library
import numpy as np

from dsi.docids.files.declarations import settings
from dsi.docids.files.reading import is_finite
from dsi.docids.files.storage import scratch_blocks
from dsi.docids.types import Floats, Ints, Numbers

faiss: Any = library  # its stubs lack some functions
VectorKind: TypeAlias = Literal["float32", "int8"]
BLOCK = 4_096
"""Vectors in memory at a time when all of them are copied or summed."""
LARGE = 65_536
"""Larger indexes are searched by codes, without scoring every document."""
_LARGEST = 127
_HEAVIEST = 1e18
"""Size of a parameter of a codec; sums of what it decodes are numbers."""
_CODEWORDS, _BITS = 16, 4
"""Of a part of a code."""
_TRAIN_VECTORS = 65_536
_TOO_LARGE = 1e15
_GATHER = 1.5
"""Multiplying a query by a vector at its place costs this times its product within a block of vectors."""
_SHARED_DECODING, _SHARED_READING, _READ_ALONE = 8, 4, 16
"""A large batch of queries shares the decoding of a block, and reading a block of floats; up to 16 queries gain nothing."""
_BATCH = 12
"""From this many queries on a matrix product takes less time than each query by itself."""
_KEPT = 2**24
"""Squared lengths of at most this many vectors stay in memory."""
_DECODED = 2**18
"""Numbers decoded at a time when all vectors are multiplied: what a cache holds."""
_PARTS, _PART = 32, 4
"""Search codes have at least `_PARTS` parts, of at most `_PART` dimensions."""


@settings("vectors")
class VectorsConfig:
    """How an index keeps the vectors of documents and nodes (section `[vectors]`)."""

    kind: VectorKind = "float32"
    """"float32", or "int8": one byte a dimension. Scores are those of the vectors as they are kept."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """int8: the number of a dimension times the dimension's scale."""

    scale: Floats  # [dim]

    @classmethod
    def fit(cls, vectors: "Floats | Vectors") -> "Scaled":
        """Fit the scale to the largest number of each dimension."""
        largest = np.max([np.abs(block).max(axis=0) for block in _blocks(vectors)], axis=0)
        return cls(np.where(largest > 0, largest / _LARGEST, 1).astype(np.float32))

    @property
    def arrays(self) -> dict[str, Floats]:
        """{name: parameters}, as stored with the vectors."""
        return {"scale": self.scale}

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return len(self.scale)

    def encode(self, vectors: Floats) -> Numbers:
        """Return codes [n, numbers] of vectors [n, dim]."""
        return np.rint(vectors / self.scale).clip(-_LARGEST, _LARGEST).astype(np.int8)

    def decode(self, codes: Numbers) -> Floats:
        """Return vectors [n, dim] of codes [n, numbers]."""
        return codes * self.scale


@dataclass(frozen=True, eq=False)
class Product:
    """Product quantisation (Jégou et al. 2011): each part of a vector becomes its nearest codeword."""

    codebooks: Floats  # [parts, 16, dim / parts]; a code has half a byte a part
    bits = _BITS  # of a part's code

    @classmethod
    def fit(cls, vectors: "Floats | Vectors", parts: int, seed: int = 0) -> "Product":
        """Fit codewords to a sample of vectors by k-means; `parts` must divide their dimension."""
        n, dim = vectors.shape
        sample = np.random.default_rng(seed).choice(n, min(max(n, _CODEWORDS), _TRAIN_VECTORS), replace=n < _CODEWORDS)
        quantizer = faiss.ProductQuantizer(dim, parts, _BITS)
        quantizer.cp.seed, quantizer.cp.min_points_per_centroid = seed, 1
        points = np.ascontiguousarray(vectors[np.sort(sample)])
        if not np.abs(points).max() < _TOO_LARGE:  # faiss ends the process
            raise ValueError(f"Embeddings that get codes must be below {_TOO_LARGE:g}, got {np.abs(points).max():g}.")
        quantizer.train(points)
        return cls(faiss.vector_to_array(quantizer.centroids).reshape(parts, _CODEWORDS, -1).copy())

    @property
    def arrays(self) -> dict[str, Floats]:
        """{name: parameters}, as stored with the vectors."""
        return {"codebooks": self.codebooks}

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return int(self.codebooks.shape[0] * self.codebooks.shape[2])

    @property
    def code_size(self) -> int:
        """Bytes of a vector's codes; -1 if the number of codewords is not that of `fit`."""
        return -(-_BITS * len(self.codebooks) // 8) if self.codebooks.shape[1] == _CODEWORDS else -1

    def quantizer(self) -> Any:
        """Return the quantizer as faiss's."""
        quantizer: Any = faiss.ProductQuantizer(self.dim, len(self.codebooks), self.bits)
        faiss.copy_array_to_vector(self.codebooks.ravel(), quantizer.centroids)
        return quantizer

    def encode(self, vectors: Floats) -> Numbers:
        """Return codes [n, numbers] of vectors [n, dim]."""
        codes: Numbers = self.quantizer().compute_codes(np.ascontiguousarray(vectors, dtype=np.float32))
        return codes

    def decode(self, codes: Numbers) -> Floats:
        """Return vectors [n, dim] of codes [n, numbers]."""
        flat = np.ascontiguousarray(codes.reshape(-1, codes.shape[-1]))
        vectors: Floats = self.quantizer().decode(flat)
        return vectors.reshape(*codes.shape[:-1], self.dim)


@dataclass(frozen=True, eq=False)
class Vectors:
    """[n, dim] vectors, indexed like an array of float32."""

    # [n_i, numbers] arrays of one type, rows numbered through: the original vectors, and later ones
    parts: tuple[Numbers, ...]
    codec: Scaled | Product | None = None  # decodes the numbers; None for floats
    order: Ints | None = None  # [n] row of each vector in the parts; None if there is one part, in order
    # what readers compute from the first part, shared by all rearrangements of it
    cache: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_array(cls, vectors: "Floats | Vectors", kind: str = "float32") -> "Vectors":
        """Return vectors stored as one of `VectorKind`; float32 is not copied."""
        if kind == "float32":
            return cls((np.ascontiguousarray(vectors[:], dtype=np.float32),))
        return cls.from_codec(vectors, Scaled.fit(vectors))

    @classmethod
    def search_codes(cls, vectors: "Floats | Vectors") -> "Vectors":
        """Return codes to search vectors by, two parts a byte."""
        return cls.from_codec(vectors, Product.fit(vectors, search_code_parts(vectors.shape[1])))

    @classmethod
    def from_codec(cls, vectors: "Floats | Vectors", codec: Scaled | Product) -> "Vectors":
        """Return vectors encoded by a codec, in a scratch file."""
        blocks = (codec.encode(block) for block in _blocks(vectors))
        first = next(blocks)
        codes = scratch_blocks((len(vectors), first.shape[1]), first.dtype.type, chain([first], blocks))
        return cls((codes,), codec)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, dim)."""
        return len(self), self.codec.dim if self.codec else self.parts[0].shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type in memory and on disk."""
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return sum(part.nbytes for part in self.parts)

    def __len__(self) -> int:
        """Number of vectors."""
        return len(self.parts[0]) if self.order is None else len(self.order)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        """All vectors, for NumPy."""
        return np.array(self[:], dtype=dtype, copy=copy)

    def __getitem__(self, rows: "int | slice | Numbers | list[int]") -> Floats:
        """Vectors [..., dim]; a slice of float32 in order is not copied."""
        if isinstance(rows, int | np.integer):
            return self[[int(rows)]][0]
        return self._decode(self.numbers(rows))

    def numbers(self, rows: "slice | Numbers | list[int]") -> Numbers:
        """Return the numbers of some vectors as they are stored."""
        if self.order is None:
            return self.parts[0][rows]
        first, order = self.parts[0], self.order[rows]
        codes = first[np.minimum(order, len(first) - 1)]
        if (later := order >= len(first)).any():
            codes[later] = self.parts[1][order[later] - len(first)]
        return codes

    def all_numbers(self) -> Numbers:
        """Return [n, numbers] of all vectors as stored, in one array: the first part, or a scratch file."""
        if self.order is None:
            return self.parts[0]
        blocks = (self.numbers(slice(start, start + BLOCK)) for start in range(0, len(self), BLOCK))
        return scratch_blocks((len(self), self.parts[0].shape[1]), self.dtype.type, blocks)

    def dots(self, queries: Floats, rows: Numbers) -> Floats:
        """Return [batch, m] dot products of each query [batch, dim] with the vectors in its rows [batch, m]; -inf at row -1."""
        if not self._is_plain:
            return self._decoded_dots(queries, rows)
        if self.order is None:
            return dots(self.parts[0], queries, rows)
        rows, first = np.where(rows < 0, -1, self.order[rows]), len(self.parts[0])
        products, later = dots(self.parts[0], queries, np.where(rows < first, rows, -1)), rows >= first
        if later.any():
            np.maximum(products, dots(self.parts[1], queries, np.where(later, rows - first, -1)), out=products)
        return products

    def _decoded_dots(self, queries: Floats, rows: Numbers) -> Floats:
        """`dots` of vectors that are not float32."""
        products = np.full(rows.shape, -np.inf, dtype=np.float32)
        for query, numbers, line in zip(queries, rows, products, strict=True):
            valid = numbers >= 0
            line[valid] = self[numbers[valid]] @ query
        return products

    def products(self, queries: Floats) -> Floats:
        """Return [batch, n] dot products of queries [batch, dim] with all vectors."""
        products = np.empty((len(queries), sum(map(len, self.parts))), dtype=np.float32)
        start = 0
        for part in self.parts:
            rows = max(1, len(part) if self._is_plain else _DECODED // self.shape[1])
            for block in (part[first : first + rows] for first in range(0, len(part), rows)):
                multiply(queries, self._decode(block), products[:, start : start + len(block)])
                start += len(block)
        return products if self.order is None else products[:, self.order]

    def reads_all(self, candidates: int, batch: int) -> bool:
        """True if multiplying a batch of queries by all vectors is less work than each query by its candidates."""
        return reads_all(candidates, len(self), batch, decoded=not self._is_plain)

    @property
    def _is_plain(self) -> bool:
        return self.codec is None

    def _decode(self, codes: Numbers) -> Floats:
        return self.codec.decode(codes) if self.codec else codes

    def rearrange(self, source: Ints, new: Floats) -> "Vectors":
        """Return vectors in another order, without copying the original ones.

        `source`: [m] row of each vector here; n + i for row i of `new`; `new`: [k, dim] further vectors.
        """
        start = np.int32(sum(map(len, self.parts)))
        rows = np.arange(len(self), dtype=np.int32) if self.order is None else self.order
        order = np.concatenate([rows, start + np.arange(len(new), dtype=np.int32)])[source]
        codes = self.codec.encode(new) if self.codec else new
        later = np.concatenate([*self.parts[1:], codes])
        in_use, first = order >= len(self.parts[0]), len(self.parts[0])
        if 2 * in_use.sum() < len(later):  # most later vectors were replaced since
            later, order[in_use] = later[order[in_use] - first], first + np.arange(in_use.sum())
        return Vectors((self.parts[0], later), self.codec, order, self.cache)

    def squares(self) -> Floats:
        """Return [n] squared lengths; those of the first part are computed once for all rearrangements, if not very many."""
        first: Floats | None = self.cache.get("squares")
        if first is None:
            first = _squares(Vectors(self.parts[:1], self.codec))
        if len(first) <= _KEPT:
            self.cache["squares"] = first
        if self.order is None:
            return first
        return np.concatenate([first, _squares(Vectors(self.parts[1:], self.codec))])[self.order]

    def is_sound(self) -> bool:
        """True if all numbers are finite, and of the type that the codec decodes."""
        types = {Scaled: np.int8, Product: np.uint8}
        if (self.codec is None) == (self.dtype in types.values()):
            return False
        if self.codec is None:
            return all(map(is_finite, self.parts))
        (parameters,) = self.codec.arrays.values()
        width = self.codec.code_size if isinstance(self.codec, Product) else self.shape[1]
        if not is_finite(parameters) or np.abs(parameters).max(initial=0) > _HEAVIEST:
            return False
        return self.dtype == types[type(self.codec)] and self.parts[0].shape[1] == width


def read_codec(arrays: Mapping[str, Numbers], name: str) -> Scaled | Product | None:
    """Return the codec of the vectors `name` in the arrays of a file; None for floats."""
    if f"{name}_scale" in arrays:
        return Scaled(arrays[f"{name}_scale"])
    return Product(arrays[f"{name}_codebooks"]) if f"{name}_codebooks" in arrays else None


def multiply(queries: Floats, vectors: Floats, out: Floats) -> None:
    """Write dot products of queries [batch, dim] with contiguous vectors [n, dim] into rows of an array [batch, n]."""
    if len(queries) >= _BATCH:
        np.matmul(queries, vectors.T, out=out)
        return
    for query, line in zip(np.ascontiguousarray(queries), out, strict=True):
        arrays = [faiss.swig_ptr(array) for array in (line, query, vectors)]
        faiss.fvec_inner_products_ny(*arrays, vectors.shape[1], len(vectors))


def dots(vectors: Floats, queries: Floats, rows: Numbers) -> Floats:
    """[batch, m] products of queries [batch, dim] with their rows [batch, m] of an array, uncopied; -inf at row -1."""
    products, places = np.empty(rows.shape, dtype=np.float32), np.ascontiguousarray(rows, dtype=np.int64)
    queries = np.ascontiguousarray(queries)
    arrays = [faiss.swig_ptr(array) for array in (products, queries, vectors, places)]
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(min(threads, max(1, len(rows))))  # each takes queries: others would wait for nothing
    faiss.fvec_inner_products_by_idx(*arrays, vectors.shape[1], *rows.shape)
    faiss.omp_set_num_threads(threads)
    return products


def reads_all(candidates: int, vectors: int, batch: int, *, decoded: bool = False) -> bool:
    """True if multiplying a batch of queries by all vectors is less work than each query by its candidates."""
    shared = min(batch, _SHARED_DECODING) if decoded else min(max(batch / _READ_ALONE, 1), _SHARED_READING)
    return candidates * _GATHER * shared >= vectors


def search_code_parts(dim: int) -> int:
    """Return the number of parts of search codes."""
    enough = min(dim, max(_PARTS, dim // _PART))
    return next(n for n in range(enough, dim + 1) if dim % n == 0)


def _squares(vectors: Vectors) -> Floats:
    blocks = [np.einsum("nd,nd->n", block, block) for block in _blocks(vectors)]
    return np.concatenate([np.empty(0, dtype=np.float32), *blocks])


def _blocks(vectors: "Floats | Vectors") -> Iterator[Floats]:
    return (np.asarray(vectors[start : start + BLOCK]) for start in range(0, len(vectors), BLOCK))
