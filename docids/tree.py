"""The docid tree: nodes, digits, centroids and the order of the documents, as flat arrays.

Inner nodes are numbered breadth-first from the root (0); the document at docid position p is node num_inner + p. A node's
children are either all inner nodes or all documents, numbered consecutively; the documents below a node are the positions
doc_start..doc_end. So a digit is an offset and a subtree a slice. A document with several docids, one for each piece
of its text, has several positions, its places. Knows nothing of texts or models.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsi.docids.files.reading import read_tensors
from dsi.docids.files.storage import save_tensors
from dsi.docids.token_vectors import TokenVectors
from dsi.docids.types import Bools, Floats, Ints, Numbers
from dsi.docids.vectors import BLOCK, LARGE, Product, Vectors, VectorsConfig, read_codec

MOST_PLACES = 2**16
"""Docids of one document, at most."""
PIECE_COST = 0.02
"""Of the spread of a tree's vectors: what each doubling of a document's pieces takes from its dense score."""
MOST_LEVELS = 1000
"""Digits of a docid, at most; a search takes a step a level."""
_STRUCTURE = ("first_child", "num_children", "doc_start", "doc_end", "doc_rows")


@dataclass(frozen=True, eq=False)
class DocidTree:
    """A tree with N leaves, the places of documents, and I inner nodes.

    Attributes:
        first_child: [I] node number of each inner node's first child.
        num_children: [I] its number of children; child number c has digit c.
        doc_start: [I] first docid position below it.
        doc_end: [I] one past the last docid position below it.
        doc_rows: [N] collection row of the document at each docid position; -1 where it was removed and the place is free.
        centroids: [I, dim] mean of the document embeddings below each inner node.
        embeddings: [N, dim] embedding of the document at each docid position.
        codes: [N, dim] the embeddings in few bytes, by which a large tree is searched; None in a small one.
        trained: [I + N] by node: True if the tree was made with it, and a generator trained; False if an update added it.
        origin: sha256 of the tree as it was made, which a generator was trained for, if it was updated since; else empty.
        pieces: of a text that get a place each, at most.
        piece_cost: what each doubling of a document's places takes from its dense score, as more of them have more chances.
        spans: [N, 2] first character, and one past the last, of the piece of the text at each docid position; None if each
            document is one piece.
        tokens: token vectors of the text at each docid position, saved in a separate file; None if there are none.
    """

    first_child: Ints
    num_children: Ints
    doc_start: Ints
    doc_end: Ints
    doc_rows: Ints
    centroids: Vectors
    embeddings: Vectors
    codes: Vectors | None = None
    trained: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    origin: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    pieces: int = 1
    piece_cost: float = 0.0
    spans: Ints | None = None
    tokens: TokenVectors | None = None

    def __post_init__(self) -> None:
        if not len(self.trained):
            object.__setattr__(self, "trained", np.ones(len(self.first_child) + len(self.doc_rows), dtype=bool))

    @property
    def num_inner(self) -> int:
        """Number of inner nodes, including the root."""
        return len(self.first_child)

    @property
    def num_places(self) -> int:
        """Number of leaves: places of documents, free ones included."""
        return len(self.doc_rows)

    @cached_property
    def num_removed(self) -> int:
        """Number of free places: leaves whose document was removed."""
        return int((self.doc_rows < 0).sum())

    @cached_property
    def num_rows(self) -> int:
        """Number of documents: rows of the document table."""
        return int(self.doc_rows.max(initial=-1)) + 1

    @cached_property
    def most_places(self) -> int:
        """Largest number of places of a document; 1 if each has one docid."""
        if self.num_rows == self.num_places - self.num_removed:  # every row has one
            return 1
        return int(self.place_counts.max(initial=1))

    @cached_property
    def place_counts(self) -> Numbers:
        """[documents] how many places each collection row has."""
        return np.bincount(self.doc_rows[self.doc_rows >= 0], minlength=self.num_rows)

    @cached_property
    def place_costs(self) -> Floats | None:
        """[N] what is taken from the dense score at each docid position, by the pieces of its document; None if nothing is."""
        if not self.piece_cost or self.most_places == 1:
            return None
        costs = np.append(self.piece_cost * np.log2(self.place_counts), 0.0)  # the last for free places
        return costs.astype(np.float32)[self.doc_rows]

    @cached_property
    def levels(self) -> list[slice]:
        """The inner nodes of each level, root first; a docid has at most len(levels) digits."""
        levels, start, stop = [], 0, 1
        while stop > start:
            levels.append(slice(start, stop))
            above_inner = self.first_child[start:stop] < self.num_inner
            start, stop = stop, stop + int(self.num_children[start:stop][above_inner].sum())
        return levels

    @cached_property
    def level_sizes(self) -> list[int]:
        """Number of nodes, leaves included, to choose from at each level."""
        return [int(self.num_children[level].sum()) for level in self.levels]

    @property
    def depth(self) -> int:
        """Digits of the longest docid."""
        return len(self.levels)

    @cached_property
    def fan_out(self) -> list[int]:
        """Largest number of children at each level: the size of its digit vocabulary."""
        return [int(self.num_children[level].max()) for level in self.levels]

    @cached_property
    def holds_documents(self) -> list[bool]:
        """For each level, True if some of the children to choose from are documents."""
        return [bool((self.first_child[level] >= self.num_inner).any()) for level in self.levels]

    @cached_property
    def token_offsets(self) -> Ints:
        """[depth] token id of digit 0 of each level; token 0 starts a sequence."""
        return (1 + np.concatenate([[0], np.cumsum(self.fan_out)[:-1]])).astype(np.int32)

    @property
    def vocab_size(self) -> int:
        """Number of docid tokens of all levels, and the start token."""
        return 1 + sum(self.fan_out)

    @cached_property
    def positions(self) -> Ints:
        """[documents] docid position of each collection row, the first if it has several: the inverse of `doc_rows`."""
        places = np.flatnonzero(self.doc_rows >= 0)[::-1]  # the first place of a row is assigned last
        inverse = np.empty(self.num_rows, dtype=np.int32)
        inverse[self.doc_rows[places]] = places
        return inverse

    @cached_property
    def by_row(self) -> Ints:
        """[places] docid positions of all documents, ordered by row; `positions` if each has one place."""
        if self.most_places == 1:
            return self.positions
        return np.argsort(self.doc_rows, kind="stable")[self.num_removed :].astype(np.int32)

    @cached_property
    def first_places(self) -> Numbers:
        """[documents] where the places of each collection row begin in `by_row`."""
        return np.cumsum(self.place_counts) - self.place_counts

    def places_of(self, rows: Ints) -> tuple[Ints, Numbers]:
        """Return the docid positions of collection rows [n], ascending and one row after another, and how many each row has."""
        counts = self.place_counts[rows]
        return self.by_row[ranges(self.first_places[rows], counts)], counts

    @cached_property
    def parents(self) -> Ints:
        """[I + N] parent of each node, -1 for the root."""
        parents = np.full(self.num_inner + self.num_places, -1, dtype=np.int32)
        children = ranges(self.first_child, self.num_children)
        parents[children] = np.repeat(np.arange(self.num_inner), self.num_children)
        return parents

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the structure and the order of the documents."""
        digest = hashlib.sha256()
        for name in _STRUCTURE:
            digest.update(np.ascontiguousarray(getattr(self, name)).tobytes())
        return digest.hexdigest()

    @property
    def origin_fingerprint(self) -> str:
        """`fingerprint` of the tree that the decoder was trained for."""
        return self.origin_bytes.tobytes().hex()

    @property
    def origin_bytes(self) -> NDArray[np.uint8]:
        """`origin_fingerprint` as the array that an updated tree carries."""
        return self.origin if len(self.origin) else np.frombuffer(bytes.fromhex(self.fingerprint), dtype=np.uint8)

    def paths(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return [n, depth] the inner nodes at which the digits of documents are chosen, and the digits; -1 past the end."""
        positions = np.asarray(positions)
        parents = np.full((len(positions), self.depth), -1, dtype=np.int32)
        digits = np.full_like(parents, -1)
        rows, nodes = np.arange(len(positions)), np.zeros(len(positions), dtype=np.int32)
        for level in range(self.depth):
            at_leaf = self.first_child[nodes] >= self.num_inner
            parents[rows, level] = nodes
            children = self.num_inner + positions[rows]
            if level + 1 < self.depth:
                below = self.levels[level + 1]
                inner = below.start + np.searchsorted(self.doc_start[below], positions[rows], side="right") - 1
                children = np.where(at_leaf, children, inner)
            digits[rows, level] = children - self.first_child[nodes]
            rows, nodes = rows[~at_leaf], children[~at_leaf].astype(np.int32)
        return parents, digits

    def digits(self, position: int) -> tuple[int, ...]:
        """Return the docid of the document at a docid position."""
        (row,) = self.paths(np.array([position]))[1]
        return tuple(int(digit) for digit in row if digit >= 0)

    def node(self, digits: Sequence[int]) -> int:
        """Return the node at the end of a path of digits."""
        node = 0
        for level, digit in enumerate(digits):
            if node >= self.num_inner:
                raise ValueError(f"digits {tuple(digits)} go on below a document, which ends at level {level}.")
            if not 0 <= digit < self.num_children[node]:
                most = self.num_children[node] - 1
                raise ValueError(f"digits {tuple(digits)}: level {level} has digits 0 to {most}, got {digit}.")
            node = int(self.first_child[node] + digit)
        return node

    def rows_below(self, node: int) -> Ints:
        """Return the collection rows of the documents at or below a node, in docid order."""
        start, end = node - self.num_inner, node - self.num_inner + 1
        if start < 0:
            start, end = int(self.doc_start[node]), int(self.doc_end[node])
        rows = self.doc_rows[start:end]
        return rows[rows >= 0]

    def count_below(self, node: int) -> int:
        """Return how many documents are at or below a node; one with several docids there counts once."""
        rows = self.rows_below(node)
        return len(rows) if self.most_places == 1 else len(np.unique(rows))

    def spans_at(self, positions: Ints) -> list[tuple[int, int] | None]:
        """Return `spans` at docid positions [n]; None for a document of one piece."""
        if self.spans is None:
            return [None] * len(positions)
        counts = self.place_counts[self.doc_rows[positions]]
        pairs = zip(self.spans[positions].tolist(), counts.tolist(), strict=True)
        return [(start, end) if count > 1 else None for (start, end), count in pairs]

    def stored_as(self, config: VectorsConfig) -> "DocidTree":
        """Return the tree with its vectors in another format, and with codes to search them by if they are many."""
        centroids, embeddings = (Vectors.from_array(part, config.kind) for part in (self.centroids, self.embeddings))
        codes = Vectors.search_codes(self.embeddings) if len(self.embeddings) > LARGE else None
        return replace(self, centroids=centroids, embeddings=embeddings, codes=codes)

    def save(self, path: Path) -> None:
        """Write the arrays as one safetensors file."""
        arrays = {name: getattr(self, name) for name in (*_STRUCTURE, "origin")}
        if not self.trained.all():
            arrays["trained"] = self.trained
        if self.pieces > 1:
            arrays["pieces"] = np.array([self.pieces], dtype=np.int32)
            arrays["piece_cost"] = np.array([self.piece_cost], dtype=np.float32)
        if self.spans is not None:
            arrays["spans"] = self.spans
        for name in _VECTORS:
            vectors: Vectors | None = getattr(self, name)
            if vectors is not None:
                codec = vectors.codec.arrays if vectors.codec else {}
                arrays |= {name: vectors.all_numbers(), **{f"{name}_{part}": array for part, array in codec.items()}}
        save_tensors(arrays, path)

    @classmethod
    def load(cls, path: Path) -> "DocidTree":
        """Return what `save` wrote, memory-mapped; processes that load the same file share it."""
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; build the docids first (dsi train).")
        arrays: dict[str, Any] = read_tensors(
            path, _ARRAYS, ("trained", "origin", "pieces", "piece_cost", "spans", "codes", *_CODECS)
        )
        vectors = {name: Vectors((arrays[name],), read_codec(arrays, name)) for name in _VECTORS if name in arrays}
        structure = {name: array for name, array in arrays.items() if name not in _CODECS}
        pieces = int(structure.pop("pieces", np.ones(1)).clip(1, MOST_PLACES).max(initial=1))
        cost = float(structure.pop("piece_cost", np.zeros(1)).max(initial=0.0))
        return cls(**structure | vectors, pieces=pieces, piece_cost=cost)

    def is_sound(self) -> bool:
        """True if the arrays fit each other; a search follows them without checks."""
        inner, places = self.num_inner, self.num_places
        vectors = [array for array in (self.centroids, self.embeddings, self.codes) if array is not None]
        return bool(
            all(len(getattr(self, name)) == inner for name in ("num_children", "doc_start", "doc_end", "centroids"))
            and places
            and all(len(array) == places for array in vectors[1:])
            and (len(self.trained), self.trained.view(np.uint8).max(initial=0) > 1) == (inner + places, False)
            and len(self.origin) in (0, 32)
            and _are_pieces(self.spans, self.piece_cost, places)
            and self.doc_rows.min() >= -1
            and self._has_all_rows()
            and self.most_places <= MOST_PLACES
            and all(array.is_sound() and array.shape[1] == self.embeddings.shape[1] > 0 for array in vectors)
            and [isinstance(array.codec, Product) for array in vectors] == [False, False, True][: len(vectors)]
            and self._is_tree()
            and (self.tokens is None or self.tokens.is_sound())
        )

    def _has_all_rows(self) -> bool:
        """True if every row below the largest one has a place; free places are -1."""
        if self.num_rows > self.num_places:
            return False
        seen = np.zeros(self.num_rows + 1, dtype=bool)  # the last one for free places
        for start in range(0, self.num_places, BLOCK):
            seen[self.doc_rows[start : start + BLOCK]] = True
        return bool(seen[:-1].all())

    def _is_tree(self) -> bool:
        """True if inner nodes are numbered by level below one root, and their documents are those of their children."""
        inner, places = self.num_inner, self.num_places
        first, count, start, end = (
            getattr(self, name).astype(np.int64) for name in ("first_child", "num_children", "doc_start", "doc_end")
        )
        if not inner or count.min() < 1 or count.sum() != inner + places - 1:
            return False
        branches = first < inner
        child, last = first[branches], (first + count)[branches] - 1
        numbered = np.array_equal(child, 1 + np.cumsum(count[branches]) - count[branches])
        if not numbered or (child <= np.flatnonzero(branches)).any() or last.max(initial=0) != inner - 1:
            return False
        followed = np.delete(np.arange(inner), [0, *last])  # by a sibling
        return bool(
            len(self.levels) <= MOST_LEVELS
            and (start[0], end[0]) == (0, places)
            and ((start + inner == first) & (end - start == count))[~branches].all()
            and np.array_equal(start[branches], start[child])
            and np.array_equal(end[branches], end[last])
            and np.array_equal(end[followed], start[followed + 1])
        )


def _are_pieces(spans: Ints | None, cost: float, documents: int) -> bool:
    if not np.isfinite(cost) or spans is None:
        return bool(np.isfinite(cost))
    return spans.shape == (documents, 2) and bool((spans[:, 0] >= 0).all() and (spans[:, 1] >= spans[:, 0]).all())


def piece_cost(embeddings: Vectors | Floats, centroid: Floats) -> float:
    """Return `DocidTree.piece_cost` of vectors [N, dim] with a mean [dim], in the units of their dot products."""
    blocks = (np.asarray(embeddings[start : start + BLOCK]) - centroid for start in range(0, len(embeddings), BLOCK))
    return PIECE_COST * sum(float((block**2).sum()) for block in blocks) / len(embeddings)


def ranges(first: Numbers, counts: Numbers) -> Numbers:
    """[total] the numbers first, first + 1, … (`counts` of them) of all entries one after the other.

    >>> ranges(np.array([5, 9]), np.array([2, 1])).tolist()
    [5, 6, 9]
    """
    if len(first) == 1:
        return np.arange(first[0], first[0] + counts[0])
    ends = counts.cumsum()
    numbers = np.repeat(first - ends + counts, counts)
    numbers += np.arange(len(numbers))
    return numbers


def pad(numbers: Numbers, counts: Numbers) -> Numbers:
    """[rows, most] the numbers row by row, `counts` of them in each, and -1 at the end of rows with fewer.

    >>> pad(np.array([5, 6, 9]), np.array([2, 1])).tolist()
    [[5, 6], [9, -1]]
    """
    padded = np.full((len(counts), counts.max(initial=0)), -1, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < counts[:, None]] = numbers
    return padded


_VECTORS = ("centroids", "embeddings", "codes")
_CODECS = {f"{name}_{part}": (np.float32, ndim) for name in _VECTORS for part, ndim in (("scale", 1), ("codebooks", 3))}
_ARRAYS: dict[str, tuple[type[np.generic] | tuple[type[np.generic], ...], int]] = {
    **dict.fromkeys(_STRUCTURE, (np.int32, 1)),
    **dict.fromkeys(_VECTORS, ((np.float32, np.int8, np.uint8), 2)),
    **_CODECS,
    "trained": (np.bool_, 1),
    "origin": (np.uint8, 1),
    "pieces": (np.int32, 1),
    "piece_cost": (np.float32, 1),
    "spans": (np.int32, 2),
}
"""{array on disk: element types and dimensions}."""


def document_scores(queries: Floats, tree: DocidTree) -> Floats:
    """[queries, documents] dense scores of queries [queries, dim]: those of the best place of each document."""
    scores = tree.embeddings.products(queries)
    if tree.place_costs is not None:
        scores -= tree.place_costs
    return np.maximum.reduceat(scores[:, tree.by_row], tree.first_places, axis=1)


def padded_places(tree: DocidTree, rows: Ints) -> Numbers:
    """[n, most] the docid positions of collection rows [n], ascending; a row with fewer repeats its first."""
    places = pad(*tree.places_of(rows))
    return np.where(places < 0, places[:, :1], places)


def nearest_places(tree: DocidTree, rows: Ints, vectors: Floats) -> Ints:
    """[n] the docid position of each document in `rows` [n]; of several the one whose vector is nearest to its of `vectors`."""
    nearest: list[Ints] = [np.empty(0, dtype=np.int32)]
    blocks = np.cumsum(tree.place_counts[rows]) // BLOCK
    for block in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(blocks)) + 1) if len(rows) else ():
        places, counts = tree.places_of(rows[block])
        scores = np.einsum("pd,pd->p", tree.embeddings[places], np.repeat(vectors[block], counts, axis=0))
        nearest.append(places[first_of_highest(scores, counts)])
    return np.concatenate(nearest)


def first_of_highest(scores: Floats, counts: Ints) -> Ints:
    """Return where the highest score of each of several groups, one after another, comes first.

    >>> first_of_highest(np.array([1, 3, 3, 2]), np.array([3, 1])).tolist()
    [1, 3]
    """
    starts = counts.cumsum() - counts
    highest = np.flatnonzero(scores == np.repeat(np.maximum.reduceat(scores, starts), counts))
    return np.asarray(highest[np.searchsorted(highest, starts)])
