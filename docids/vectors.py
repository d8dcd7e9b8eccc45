"""Vectors in few bytes: as floats, as int8, or as codes of a product quantiser; read as float32, changed without copying.

Knows nothing of trees.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import faiss
import numpy as np
from numpy.typing import NDArray

from docids.files.declarations import Whole, settings
from docids.files.storage import scratch_array
from docids.files.untrusted import is_finite

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Numbers = NDArray[Any]

VectorKind: TypeAlias = Literal["float32", "float16", "int8", "pq"]
BLOCK = 4_096
"""Vectors in memory at a time when all of them are copied or summed."""
LARGE = 262_144
"""A search of an index with more documents looks at some of them, by their codes."""
_LARGEST = 127
_CODEWORDS, _FEW_CODEWORDS = 256, 16
_TRAIN_VECTORS = 65_536
_TOO_LARGE = 1e15
_GATHER, _SHARED = 3, 4
"""A vector that is gathered costs this many times one that is read beside its neighbours; and that this many times its share
of a matrix product for a large batch of queries."""
_DECODED = 2**18
"""Numbers that are decoded at a time when all vectors are multiplied: what a cache holds."""
_PARTS, _PART = 32, 8
"""Codes to search by have at least so many parts, and parts of at most so many dimensions."""


@settings("vectors")
class VectorsConfig:
    """How an index keeps the vectors of documents and nodes (section `[vectors]`)."""

    kind: VectorKind = "float32"
    """"float32", "float16", "int8" (one byte a dimension), or "pq": `code_bytes` a vector, of a product quantiser. Scores
    are those of the vectors as they are kept."""
    code_bytes: Whole = 0
    """Bytes of a vector's codes. With kind "pq" they are the vectors, and a divisor of the dimension. With another kind they
    are beside the vectors, a large index is searched by them, and twice as many divide the dimension; 0
    chooses: none up to 262,144 documents, else a sixteenth of the dimension, and at least 16."""

    def __post_init__(self) -> None:
        if self.kind == "pq" and not self.code_bytes:
            raise ValueError(
                'vectors.kind "pq" needs vectors.code_bytes of 1 or more, got 0; 64 is good for 384 dimensions.'
            )


class Codec(Protocol):
    """A way to keep vectors as small integers."""

    @property
    def arrays(self) -> dict[str, Floats]:
        """{name: what the codec knows}."""

    def encode(self, vectors: Floats) -> Numbers:
        """[n, numbers] of vectors [n, dim]."""

    def decode(self, codes: Numbers) -> Floats:
        """[n, dim] vectors of codes [n, numbers]."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """int8: a number of a dimension stands for itself times the dimension's scale.

    Attributes:
        scale: [dim].
    """

    scale: Floats

    @classmethod
    def fit(cls, vectors: "Floats | Vectors") -> "Scaled":
        """The scale that fits the largest number of each dimension."""
        largest = np.max([np.abs(block).max(axis=0) for block in _blocks(vectors)], axis=0)
        return cls(np.where(largest > 0, largest / _LARGEST, 1).astype(np.float32))

    @property
    def arrays(self) -> dict[str, Floats]:
        """As in `Codec`."""
        return {"scale": self.scale}

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return len(self.scale)

    def encode(self, vectors: Floats) -> Numbers:
        """As in `Codec`."""
        return np.rint(vectors / self.scale).clip(-_LARGEST, _LARGEST).astype(np.int8)

    def decode(self, codes: Numbers) -> Floats:
        """As in `Codec`."""
        return codes * self.scale


@dataclass(frozen=True, eq=False)
class Product:
    """Product quantisation (Jégou et al. 2011): each part of a vector is the nearest of its codewords.

    Attributes:
        codebooks: [parts, codewords, dim / parts]; a code has a byte a part with 256 codewords, half a byte with 16.
    """

    codebooks: Floats

    @classmethod
    def fit(cls, vectors: "Floats | Vectors", parts: int, codewords: int = _CODEWORDS, seed: int = 0) -> "Product":
        """Codewords of a sample of vectors, by k-means; `parts` divides their dimension.

        Raises:
            ValueError: there are fewer vectors than 256 codewords, or they are too long.
        """
        n, dim = vectors.shape
        if n < codewords == _CODEWORDS:
            raise ValueError(
                f'Codes of a product quantiser need at least {_CODEWORDS} documents, got {n}; use vectors.kind "int8".'
            )
        sample = np.random.default_rng(seed).choice(n, min(max(n, codewords), _TRAIN_VECTORS), replace=n < codewords)
        quantizer = faiss.ProductQuantizer(dim, parts, codewords.bit_length() - 1)
        quantizer.cp.seed, quantizer.cp.min_points_per_centroid = seed, 1
        points = np.ascontiguousarray(vectors[np.sort(sample)])
        if not np.abs(points).max() < _TOO_LARGE:  # faiss ends the process
            raise ValueError(f"Embeddings that get codes must be below {_TOO_LARGE:g}, got {np.abs(points).max():g}.")
        quantizer.train(points)
        return cls(faiss.vector_to_array(quantizer.centroids).reshape(parts, codewords, -1).copy())

    @property
    def arrays(self) -> dict[str, Floats]:
        """As in `Codec`."""
        return {"codebooks": self.codebooks}

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return int(self.codebooks.shape[0] * self.codebooks.shape[2])

    @property
    def bits(self) -> int:
        """Of a part's code."""
        return self.codebooks.shape[1].bit_length() - 1

    @property
    def code_size(self) -> int:
        """Bytes of a vector's codes; -1 if the number of codewords is not one that is made here."""
        known = self.codebooks.shape[1] in (_CODEWORDS, _FEW_CODEWORDS)
        return -(-self.bits * len(self.codebooks) // 8) if known else -1

    def quantizer(self) -> Any:
        """The same for faiss."""
        own: Any = faiss.ProductQuantizer(self.dim, len(self.codebooks), self.bits)
        faiss.copy_array_to_vector(self.codebooks.ravel(), own.centroids)
        return own

    def encode(self, vectors: Floats) -> Numbers:
        """As in `Codec`."""
        codes: Numbers = self.quantizer().compute_codes(np.ascontiguousarray(vectors, dtype=np.float32))
        return codes

    def decode(self, codes: Numbers) -> Floats:
        """As in `Codec`."""
        flat = np.ascontiguousarray(codes.reshape(-1, codes.shape[-1]))
        found: Floats = self.quantizer().decode(flat)
        return found.reshape(*codes.shape[:-1], self.dim)


@dataclass(frozen=True, eq=False)
class Vectors:
    """[n, dim] vectors, indexed like an array of float32.

    Attributes:
        parts: [n_i, numbers] arrays of one type, counted one after the other: what was first there, and what came later.
        codec: what their numbers mean; None for floats.
        order: [n] which row of the parts each vector is; None if there is one part in order.
    """

    parts: tuple[Numbers, ...]
    codec: Scaled | Product | None = None
    order: Ints | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    """What readers keep of the first part, for all vectors that are arranged of it."""

    @classmethod
    def of(cls, vectors: "Floats | Vectors", kind: str = "float32", code_bytes: int = 0) -> "Vectors":
        """Vectors kept as `VectorKind` says; those of float32 are not copied.

        Raises:
            ValueError: as `Product.fit`.
        """
        if kind == "float32":
            return cls((np.asarray(vectors[:], dtype=np.float32),))
        if kind == "pq":
            _check_parts(vectors, code_bytes, code_bytes)
            return cls.encoded(vectors, Product.fit(vectors, code_bytes))
        return cls.encoded(vectors, Scaled.fit(vectors) if kind == "int8" else None)

    @classmethod
    def searchable(cls, vectors: "Floats | Vectors", code_bytes: int = 0) -> "Vectors":
        """Codes by which vectors are found, two parts a byte; as many bytes as `VectorsConfig.code_bytes` chooses by default.

        Raises:
            ValueError: twice `code_bytes` does not divide the dimension.
        """
        parts = 2 * code_bytes or searchable_parts(vectors.shape[1])
        _check_parts(vectors, code_bytes, parts)
        return cls.encoded(vectors, Product.fit(vectors, parts, _FEW_CODEWORDS))

    @classmethod
    def encoded(cls, vectors: "Floats | Vectors", codec: Scaled | Product | None) -> "Vectors":
        """Vectors by a codec that is there; float16 without one. They live in a scratch file."""
        blocks = map(codec.encode if codec else np.float16, _blocks(vectors))
        first = next(blocks)
        codes, start = scratch_array((len(vectors), first.shape[1]), first.dtype.type), len(first)
        codes[:start] = first
        for block in blocks:
            codes[start : start + len(block)] = block
            start += len(block)
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
        """How many vectors there are."""
        return len(self.parts[0]) if self.order is None else len(self.order)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        """All vectors, as NumPy asks for them."""
        return np.array(self[:], dtype=dtype, copy=copy)

    def __getitem__(self, rows: "int | slice | Numbers | list[int]") -> Floats:
        """Some vectors [..., dim]; those of a slice are not copied where they are float32 and in order."""
        if isinstance(rows, int | np.integer):
            return self[[int(rows)]][0]
        return self._decoded(self.stored(rows))

    def stored(self, rows: "slice | Numbers | list[int]") -> Numbers:
        """The numbers of some vectors, as they are kept."""
        if self.order is None:
            return self.parts[0][rows]
        first, places = self.parts[0], self.order[rows]
        found = first[np.minimum(places, len(first) - 1)]
        if (later := places >= len(first)).any():
            found[later] = self.parts[1][places[later] - len(first)]
        return found

    def in_order(self) -> Numbers:
        """[n, numbers] of all vectors, as they are kept, in one array: a scratch file unless they are so already."""
        if self.order is None:
            return self.parts[0]
        found = scratch_array((len(self), self.parts[0].shape[1]), self.dtype.type)
        for start in range(0, len(self), BLOCK):
            found[start : start + BLOCK] = self.stored(slice(start, start + BLOCK))
        return found

    def take(self, rows: Numbers) -> Floats:
        """[n, dim] the vectors in some rows [n]; like indexing, and faster for few rows."""
        if self.order is None and self._is_plain:
            return self.parts[0].take(rows, axis=0)
        return self[rows]

    def products(self, queries: Floats) -> Floats:
        """[batch, n] dot products of queries [batch, dim] with all vectors."""
        found = np.empty((len(queries), sum(map(len, self.parts))), dtype=np.float32)
        start = 0
        for part in self.parts:
            rows = max(1, len(part) if self._is_plain else _DECODED // self.shape[1])
            for block in (part[first : first + rows] for first in range(0, len(part), rows)):
                np.matmul(queries, self._decoded(block).T, out=found[:, start : start + len(block)])
                start += len(block)
        return found if self.order is None else found[:, self.order]

    def products_of(self, queries: Floats, rows: Numbers) -> Floats:
        """[batch, m] dot products of queries [batch, dim] with their own vectors, in rows [batch, m].

        Reads these vectors only, or all of them where that is less work.
        """
        batch, m = rows.shape
        if reads_all(m, len(self), batch):
            return np.take_along_axis(self.products(queries), rows, axis=1)
        found = np.empty((batch, m), dtype=np.float32)
        for query, own, row in zip(queries, found, rows, strict=True):
            np.matmul(self[row], query, out=own)
        return found

    @property
    def _is_plain(self) -> bool:
        return self.codec is None and self.dtype == np.float32

    def _decoded(self, codes: Numbers) -> Floats:
        return self.codec.decode(codes) if self.codec else codes.astype(np.float32, copy=False)

    def arranged(self, source: NDArray[np.integer], new: Floats) -> "Vectors":
        """Vectors in another order; none of those that are there is copied.

        Args:
            source: [m] for each vector, its row here; n + i for row i of `new`.
            new: [k, dim] vectors that join.
        """
        start = np.int32(sum(map(len, self.parts)))
        rows = np.arange(len(self), dtype=np.int32) if self.order is None else self.order
        order = np.concatenate([rows, start + np.arange(len(new), dtype=np.int32)])[source]
        codes = self.codec.encode(new) if self.codec else new.astype(self.dtype)
        later = np.concatenate([*self.parts[1:], codes])
        own = order >= len(self.parts[0])
        if 2 * own.sum() < len(later):  # the others were replaced since
            later, order[own] = later[order[own] - len(self.parts[0])], len(self.parts[0]) + np.arange(own.sum())
        return Vectors((self.parts[0], later), self.codec, order, self.kept)

    def squares(self) -> Floats:
        """[n] squared lengths; those of the first part are computed once, however the vectors change."""
        if "squares" not in self.kept:
            self.kept["squares"] = _squares(Vectors(self.parts[:1], self.codec))
        first: Floats = self.kept["squares"]
        if self.order is None:
            return first
        return np.concatenate([first, _squares(Vectors(self.parts[1:], self.codec))])[self.order]

    def is_sound(self) -> bool:
        """Whether all numbers are finite, and of the type that the codec reads."""
        types = {Scaled: np.int8, Product: np.uint8}
        if (self.codec is None) == (self.dtype in types.values()):
            return False
        if self.codec is None:
            return all(map(is_finite, self.parts))
        (known,) = self.codec.arrays.values()
        width = self.codec.code_size if isinstance(self.codec, Product) else self.shape[1]
        return self.dtype == types[type(self.codec)] and self.parts[0].shape[1] == width and is_finite(known)

    @property
    def is_searchable(self) -> bool:
        """Whether they are codes as `searchable` makes them."""
        return isinstance(self.codec, Product) and self.codec.codebooks.shape[1] == _FEW_CODEWORDS


def read_codec(arrays: Mapping[str, Numbers], name: str) -> Scaled | Product | None:
    """The codec of the vectors `name` among the arrays of a file."""
    if f"{name}_scale" in arrays:
        return Scaled(arrays[f"{name}_scale"])
    return Product(arrays[f"{name}_codebooks"]) if f"{name}_codebooks" in arrays else None


def reads_all(candidates: int, vectors: int, batch: int) -> bool:
    """Return whether a product of a batch of queries with all vectors is less work than each query's with its candidates."""
    return candidates * _GATHER * min(batch, _SHARED) >= vectors


def searchable_parts(dim: int) -> int:
    """How many parts the codes of vectors have by which a large index is searched, unless it is said."""
    enough = min(dim, max(_PARTS, dim // _PART))
    return next(n for n in range(enough, dim + 1) if dim % n == 0)


def _check_parts(vectors: "Floats | Vectors", code_bytes: int, parts: int) -> None:
    dim = vectors.shape[1]
    if dim % parts:
        what = "vectors.code_bytes" if parts == code_bytes else "Twice vectors.code_bytes"
        raise ValueError(f"{what} must divide the dimension of the embeddings, {dim}, got {code_bytes}.")


def _squares(vectors: Vectors) -> Floats:
    own = [np.einsum("nd,nd->n", block, block) for block in _blocks(vectors)]
    return np.concatenate([np.empty(0, dtype=np.float32), *own])


def _blocks(vectors: "Floats | Vectors") -> Iterator[Floats]:
    return (np.asarray(vectors[start : start + BLOCK]) for start in range(0, len(vectors), BLOCK))
