"""The clusters of a large tree as the cells of an inverted file: documents near a query without a look at all.

A cell is the highest node with few enough documents. faiss keeps the codes of a cell's documents as one list. A query goes into
the cells with the best estimates (`dsi.trees.estimates`), at about as many documents as it may, and finds those with the best
codes. The lists hold the documents that the tree was built or loaded with, by their rows in the vectors as they are stored; so
they outlast updates. Documents that came later are all looked at. Runs on the CPU. Knows nothing of decoders.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import faiss
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from docids.tree import DocidTree
from docids.vectors import Product, Vectors
from dsi.trees.estimates import SIZE_WEIGHT, NodeEstimates

_PER_ROOT = 16
"""There are at most this many cells for each of the square root of the number of documents, unless clusters are large."""

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a tree, and of those that updates make of it.

    Attributes:
        rows: [documents] of the stored vectors, cell by cell; None if they are in order.
        edges: [cells + 1] where each cell begins in them.
        vectors: [cells, dim + 1] what stands for each: the mean, and the bonus of its estimate.
        lists: of faiss, one a cell; ids are rows of the stored vectors.
    """

    rows: Numbers | None
    edges: Numbers
    vectors: Tensor
    lists: Any

    @classmethod
    def of(cls, estimates: NodeEstimates) -> "Cells":
        """The cells of a tree, by its estimates without look-ahead; made of its codes, or of codes that are made for it.

        The first call makes them; trees that updates make of this one have the same. A tree from before those updates can hold
        more documents, and has them made anew.
        """
        kept, stored = estimates.tree.embeddings.kept, len(estimates.tree.embeddings.parts[0])
        found: Cells | None = kept.get("cells")
        if found is None or found.edges[-1] < np.count_nonzero(stored_rows(estimates.tree) < stored):
            found = kept["cells"] = cls._made(estimates)
        return found

    @classmethod
    def _made(cls, estimates: NodeEstimates) -> "Cells":
        tree = estimates.tree
        nodes = cell_nodes(tree)
        places, first = stored_rows(tree), len(tree.embeddings.parts[0])
        is_first = places < first
        before = np.concatenate([[0], np.cumsum(is_first)])
        edges = np.append(before[tree.doc_start[nodes]], before[-1])
        bonus = SIZE_WEIGHT * estimates.size_terms[torch.from_numpy(nodes)]
        vectors = torch.cat([torch.from_numpy(tree.centroids[nodes]), bonus[:, None].cpu()], dim=1)
        codes = tree.codes or Vectors.searchable(tree.embeddings)
        rows = places[is_first]
        lists = _lists(codes, np.flatnonzero(is_first), rows, edges)
        return cls(None if tree.embeddings.order is None else rows, edges, vectors, lists)

    def nearest(self, queries: Tensor, count: int, looked_at: int, allowed: Mask | None = None) -> Numbers:
        """[batch, count] rows of documents near queries [batch, dim], best first; -1 past the last.

        Args:
            queries: on the CPU.
            count: documents for each.
            looked_at: about how many documents are looked at for each.
            allowed: [stored rows] True at those that count; all by default.
        """
        chosen, asked = self._chosen(queries, looked_at, allowed), queries.contiguous().numpy()
        given: Any = faiss.SearchParametersIVF()
        given.nprobe = chosen.shape[1]
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))  # faiss keeps no reference to either
            given.sel = selector
        coarse = np.zeros(chosen.shape, np.float32)  # codes are of whole vectors, not of what cells leave over
        scores, found = np.empty((len(asked), count), np.float32), np.empty((len(asked), count), np.int64)
        arrays = [faiss.swig_ptr(own) for own in (chosen, coarse, scores, found)]
        self.lists.search_preassigned_c(len(asked), faiss.swig_ptr(asked), count, *arrays, False, given)
        return found

    def _chosen(self, queries: Tensor, looked_at: int, allowed: Mask | None) -> Numbers:
        """[batch, most] the best cells of each query, with about so many documents that count; -1 past the last."""
        sizes = self._sizes
        if allowed is not None:
            count = np.cumsum(np.append(False, allowed if self.rows is None else allowed[self.rows]), dtype=np.int64)
            sizes = torch.from_numpy(np.diff(count[self.edges]))
        scores = F.pad(queries, (0, 1), value=1.0) @ self.vectors.T
        scores[:, sizes == 0] = -torch.inf
        some = min(len(sizes), math.ceil(2 * looked_at * len(sizes) / max(int(sizes.sum()), 1)) + 1)
        best = scores.topk(some, dim=1).indices
        taken = sizes[best]
        enough = (taken.cumsum(dim=1) - taken >= looked_at) | (taken == 0)
        return best.masked_fill(enough, -1).numpy()

    @cached_property
    def _sizes(self) -> Tensor:
        return torch.from_numpy(np.diff(self.edges))


class NearDocuments:
    """Finds documents of one tree near queries.

    Args:
        estimates: of the tree, without look-ahead.
    """

    def __init__(self, estimates: NodeEstimates) -> None:
        self.tree, self.cells = estimates.tree, Cells.of(estimates)
        first, places = len(self.tree.embeddings.parts[0]), stored_rows(self.tree)
        self._positions = None  # [stored rows] docid position of each, -1 if it is not in the tree
        if self.tree.embeddings.order is not None:
            self._positions = np.full(first + 1, -1, dtype=np.int64)  # the last one for no row
            own = np.flatnonzero(places < first)
            self._positions[places[own]] = own
        self.later = torch.from_numpy(np.flatnonzero((places >= first) & (self.tree.doc_rows >= 0)))

    def __call__(self, queries: Tensor, count: int, looked_at: int, allowed: Mask | None = None) -> Tensor:
        """[batch, n] docid positions of about `count` documents near queries [batch, dim]; the number of documents is padding.

        Args:
            queries: on the CPU.
            count: documents for each.
            looked_at: about how many documents are looked at for each.
            allowed: [documents] by docid position, True at those that count; all by default.
        """
        found = self.cells.nearest(queries, count, looked_at, self._allowed_rows(allowed))
        if self._positions is not None:
            found = self._positions[found]
        positions = torch.from_numpy(found)
        positions = positions.masked_fill(positions < 0, self.tree.num_documents)
        return (
            positions
            if not len(self.later)
            else torch.cat([positions, self._best_later(queries, count, allowed)], dim=1)
        )

    def _allowed_rows(self, allowed: Mask | None) -> Mask | None:
        if self._positions is None:
            return allowed
        if allowed is None and len(self.tree.embeddings.parts[0]) == len(self.tree.doc_rows) - len(self.later):
            return None
        rows = self._positions[:-1]
        return rows >= 0 if allowed is None else (rows >= 0) & allowed[rows]

    def _best_later(self, queries: Tensor, count: int, allowed: Mask | None) -> Tensor:
        scores = queries @ self._later_vectors.T
        if allowed is not None:
            scores[:, ~torch.from_numpy(allowed)[self.later]] = -torch.inf
        values, best = scores.topk(min(count, len(self.later)), dim=1)
        return self.later[best].masked_fill(values == -torch.inf, self.tree.num_documents)

    @cached_property
    def _later_vectors(self) -> Tensor:
        return torch.from_numpy(self.tree.embeddings[self.later.numpy()])


def cell_nodes(tree: DocidTree) -> NDArray[np.intp]:
    """The cells, in docid order: highest nodes with at most so many documents that the cells are few, or clusters of more."""
    sizes = tree.doc_end - tree.doc_start
    most, limit = _PER_ROOT * math.sqrt(tree.num_documents), 1
    while True:
        small = sizes <= limit
        highest = small & ~np.concatenate([[False], small[tree.parents[1 : tree.num_inner]]])
        cells = np.flatnonzero(highest | (~small & (tree.first_child >= tree.num_inner)))
        if len(cells) <= most or limit >= tree.num_documents:
            return cells[np.argsort(tree.doc_start[cells])]
        limit *= 2


def stored_rows(tree: DocidTree) -> Numbers:
    """[documents] the row of each docid position in the parts of the stored vectors."""
    order = tree.embeddings.order
    return np.arange(tree.num_documents) if order is None else order.astype(np.int64)


def _lists(codes: Vectors, positions: Numbers, rows: Numbers, edges: Numbers) -> Any:
    """An index of faiss that scans codes.

    Args:
        codes: of all documents, by docid position.
        positions: [n] of the documents in lists.
        rows: [n] their ids.
        edges: [lists + 1] where each list begins.
    """
    codec, stored = codes.codec, codes.stored(positions)
    assert isinstance(codec, Product)
    plain: Any = faiss.IndexIVFPQ(
        faiss.IndexFlatIP(codec.dim),
        codec.dim,
        len(edges) - 1,
        len(codec.codebooks),
        codec.bits,
        faiss.METRIC_INNER_PRODUCT,
    )
    plain.pq, plain.by_residual, plain.is_trained, plain.ntotal = codec.quantizer(), False, True, len(rows)
    for cell, (start, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        if end > start:
            plain.invlists.add_entries(cell, end - start, faiss.swig_ptr(rows[start:]), faiss.swig_ptr(stored[start:]))
    lists: Any = faiss.IndexIVFPQFastScan(plain)
    nothing: Any = faiss.ArrayInvertedLists(plain.nlist, plain.code_size)
    nothing.this.disown()
    lists.orig_invlists = None
    plain.replace_invlists(nothing, True)  # frees the codes, which the other index holds in another order
    return lists
