"""The inverted lists of a large index: its documents' codes, a list for each node where a walk ends, scanned by faiss.

A list belongs to a cell: the highest node with few enough documents. The lists hold the documents that the tree was built or
loaded with, by their rows in the vectors as they are stored, so they outlast updates; documents that came later are read from
the nodes themselves. Only the lists of nodes that a walk kept are scanned. Runs on the CPU. Knows nothing of generators.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from dsi.docids.tree import DocidTree, pad, ranges
from dsi.docids.types import Bools, Floats, Ints, Rows
from dsi.docids.vectors import LARGE, Product, Vectors

_OVERSAMPLED = 4
"""Oversampling factor of the smallest large index."""
_PER_ROOT = 16
"""There are at most this many cells for each of the square root of the number of documents, unless clusters are large."""


@dataclass(frozen=True, eq=False)
class InvertedLists:
    """The lists of a tree, and of those that updates make of it."""

    rows: Rows | None  # [documents] rows of the stored vectors, list by list; None if they are in order
    edges: Rows  # [lists + 1] where each list begins in them
    digits: Ints  # [lists, depth] the path to the node of each list, -1 past the end
    index: Any  # of faiss; ids are rows of the stored vectors

    @classmethod
    def from_tree(cls, tree: DocidTree, cells: Rows | None = None) -> "InvertedLists":
        """Return the lists of a tree, made of its codes, or of codes that are made for it; of `cells` in place of `cell_nodes`.

        The first call makes them; trees that updates make of this one have the same. A tree from before those updates can hold
        more documents, and has them made again.
        """
        cache, places = tree.embeddings.cache, tree.embeddings.order
        stored = len(tree.embeddings.parts[0])
        if places is not None:
            stored = int(np.count_nonzero(places < stored))  # that are in the tree
        lists: InvertedLists | None = cache.get("lists")
        if lists is None or lists.edges[-1] < stored:
            lists = cache["lists"] = cls._make(tree, cells)
        return lists

    @classmethod
    def _make(cls, tree: DocidTree, cells: Rows | None) -> "InvertedLists":
        nodes, places = cell_nodes(tree) if cells is None else cells, tree.embeddings.order
        edges = np.append(tree.doc_start[nodes], tree.num_places).astype(np.int64)
        positions = rows = None
        if places is not None:
            is_first = places < len(tree.embeddings.parts[0])
            edges = np.concatenate([[0], np.cumsum(is_first)])[edges]
            positions, rows = np.flatnonzero(is_first), places[is_first].astype(np.int64)
        # Later documents are in other parts of the vectors; they are read from the nodes, and are not in the lists.
        index = _faiss_lists(tree.codes or Vectors.search_codes(tree.embeddings), positions, rows, edges)
        paths = _paths(tree, nodes) if cells is None else np.empty((0, 0), dtype=np.int32)
        return cls(rows, edges, paths, index)

    def nodes_of(self, tree: DocidTree) -> Rows:
        """[lists] the node of each list in this tree, or in one that updates made of it: digits stay."""
        nodes = np.zeros(len(self.digits), dtype=np.int64)
        for column in self.digits.T:
            deeper = column >= 0
            nodes[deeper] = tree.first_child[nodes[deeper]] + column[deeper]
        return nodes

    def scan(self, queries: Floats, lists: Ints, count: int, allowed: Bools | None = None) -> Rows:
        """[batch, count] rows of the documents with the best codes, best first; -1 past the last.

        `lists`: [batch, n] to scan, -1 at padding; `allowed`: [stored rows] True at those that may be returned.
        """
        queries, chosen = np.ascontiguousarray(queries), np.ascontiguousarray(lists, dtype=np.int64)
        parameters: Any = faiss.SearchParametersIVF()
        parameters.nprobe = chosen.shape[1]
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))  # faiss keeps no reference to either
            parameters.sel = selector
        coarse = np.zeros(chosen.shape, np.float32)  # codes are of whole vectors, not of what cells leave over
        scores, rows = np.empty((len(queries), count), np.float32), np.empty((len(queries), count), np.int64)
        arrays = [faiss.swig_ptr(array) for array in (chosen, coarse, scores, rows)]
        self.index.search_preassigned_c(len(queries), faiss.swig_ptr(queries), count, *arrays, False, parameters)
        return rows


class ListedDocuments:
    """Finds documents below the nodes of one tree, or of a share of `whole` with all its nodes, by the lists.

    `oversampling` candidates are retrieved by their codes for each document that is wanted. A walk ends at the nodes where
    `ends` [inner nodes] is True: those with a list, and clusters of documents that came later.
    """

    def __init__(self, tree: DocidTree, whole: DocidTree | None = None) -> None:
        cells = None if whole is None else cell_nodes(whole)
        self.tree, self.lists = tree, InvertedLists.from_tree(tree, cells)
        self.oversampling = oversampling((whole or tree).num_places)
        nodes = self.lists.nodes_of(tree) if cells is None else cells
        self._list_of = np.full(tree.num_inner, -1, dtype=np.int32)
        self._list_of[nodes] = np.arange(len(nodes))
        self.ends = (self._list_of >= 0) | (tree.first_child >= tree.num_inner)
        self._positions = None  # [stored rows + 1] docid position of each, -1 if it is not in the tree
        self._later = np.empty(0, dtype=np.int64)  # positions of documents that came later, ascending
        if (places := tree.embeddings.order) is not None:
            first = len(tree.embeddings.parts[0])
            self._positions = np.full(first + 1, -1, dtype=np.int64)  # the last one for no row
            positions = np.flatnonzero(places < first)
            self._positions[places[positions]] = positions
            self._later = np.flatnonzero((places >= first) & (tree.doc_rows >= 0))

    def below(self, queries: Floats, nodes: Sequence[Ints], count: int, allowed: Bools | None) -> list[Rows]:
        """Return the docid positions [n], ascending, of roughly the top `count` documents of each query, and of all later ones.

        `nodes`: where the walk of each query ended; `allowed`: [places] True at those that may be returned; all by default.
        """
        counts = np.array([len(ends) for ends in nodes])
        if not counts.any():
            return [np.zeros(0, dtype=np.int64)] * len(nodes)
        lists = pad(self._list_of[np.concatenate(nodes)], counts)
        count = min(count, self.tree.num_places)
        positions = self.lists.scan(queries, lists, count, self._allowed_rows(allowed))
        if self._positions is not None:
            positions = self._positions[positions]
        return [self._with_others(*pair) for pair in zip(positions, nodes, strict=True)]

    def _with_others(self, positions: Rows, nodes: Ints) -> Rows:
        """Return documents that a scan found below nodes, -1 at padding, and the later ones there; ascending."""
        if positions[-1] < 0:  # faiss returns no document whose code scores lowest of all, such as for a zero query
            starts = self.tree.doc_start[nodes]
            below = ranges(starts, self.tree.doc_end[nodes] - starts)
            positions = np.union1d(positions[positions >= 0], below[: len(positions)])
        return np.union1d(positions, self._later_below(nodes)) if len(self._later) else np.sort(positions)

    def _allowed_rows(self, allowed: Bools | None) -> Bools | None:
        if self._positions is None:
            return allowed
        if allowed is None and len(self.tree.embeddings.parts[0]) == len(self.tree.doc_rows) - len(self._later):
            return None
        positions = self._positions[:-1]
        return positions >= 0 if allowed is None else (positions >= 0) & allowed[positions]

    def _later_below(self, nodes: Ints) -> Rows:
        """[n] positions of documents below nodes that came after the lists were made."""
        first = np.searchsorted(self._later, self.tree.doc_start[nodes])
        last = np.searchsorted(self._later, self.tree.doc_end[nodes])
        return self._later[ranges(first, last - first)]


def oversampling(documents: int) -> int:
    """Return how many candidates are retrieved by their codes for each document that is wanted, then rescored by their vectors.

    Codes are coarse, so the more documents lie near the best ones, the deeper these are among the best codes.
    """
    return round(_OVERSAMPLED * math.sqrt(max(1.0, documents / LARGE)))


def cell_nodes(tree: DocidTree) -> Rows:
    """Return the cells, in docid order: the highest nodes with at most `limit` documents, and larger clusters.

    `limit` is the smallest power of two that makes few enough cells.
    """
    sizes = tree.doc_end - tree.doc_start
    most, limit = _PER_ROOT * math.sqrt(tree.num_places), 1
    # Doubling the limit merges cells: a cell is a node that is small enough, below one that is not.
    branches = np.flatnonzero(tree.first_child < tree.num_inner)
    parents = np.repeat(branches, tree.num_children[branches])  # of all inner nodes but the root
    while True:
        small = sizes <= limit
        highest = small & ~np.concatenate([[False], small[parents]])
        cells = np.flatnonzero(highest | (~small & (tree.first_child >= tree.num_inner)))
        if len(cells) <= most or limit >= tree.num_places:
            return cells[np.argsort(tree.doc_start[cells])]
        limit *= 2


def _paths(tree: DocidTree, nodes: Rows) -> Ints:
    """[n, depth] the digits on the way to inner nodes, -1 past the end."""
    parents, digits = tree.paths(tree.doc_start[nodes])
    above = np.cumsum(parents == nodes[:, None], axis=1) > 0  # from the node itself on
    return np.where(above, -1, digits)


def _faiss_lists(codes: Vectors, positions: Rows | None, rows: Rows | None, edges: Rows) -> Any:
    """Return an index of faiss that scans the codes of documents in lists, which begin at `edges` [lists + 1].

    `positions`: [n] of these documents, None if all are, in order; `rows`: [n] their ids, None if these are the positions.
    """
    codec = codes.codec
    assert isinstance(codec, Product)
    # 1) An index of plain codes, list by list. Its quantizer is empty: a search names the lists itself.
    quantizer, size = faiss.IndexFlatIP(codec.dim), len(codec.codebooks)
    plain: Any = faiss.IndexIVFPQ(quantizer, codec.dim, len(edges) - 1, size, codec.bits, faiss.METRIC_INNER_PRODUCT)
    plain.pq, plain.by_residual, plain.is_trained, plain.ntotal = codec.quantizer(), False, True, int(edges[-1])
    for cell, (start, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        if end > start:
            places = slice(start, end) if positions is None else positions[start:end]
            stored = np.ascontiguousarray(codes.numbers(places))  # [documents of the list, code bytes] uint8
            ids = np.arange(start, end) if rows is None else rows[start:end]
            plain.invlists.add_entries(cell, end - start, faiss.swig_ptr(ids), faiss.swig_ptr(stored))

    # 2) The same codes in blocks that are scanned by lookups in registers. The copy shares the quantizer alone, so the plain
    # codes are freed with the index that holds them.
    lists: Any = faiss.IndexIVFPQFastScan(plain)
    lists.orig_invlists = None
    lists.referenced_objects = [quantizer]
    return lists
