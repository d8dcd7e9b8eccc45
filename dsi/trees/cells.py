"""The clusters of a large tree as the cells of an inverted file: the nearest documents without looking at all.

A cell is the highest node with few enough documents, so the cells partition the documents in docid order. A query looks into
the cells with the best estimates (`dsi.trees.estimates`), at about as many documents as it may. If the tree has codes, faiss
scores these documents by them; otherwise their vectors do. Runs on the CPU. Knows nothing of decoders.
"""

import math
from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from docids.tree import DocidTree
from docids.vectors import Product
from dsi.trees.estimates import SIZE_WEIGHT, NodeEstimates

_PER_ROOT = 16
"""There are at most this many cells for each of the square root of the number of documents, unless clusters are large."""

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class Cells:
    """Cells of one tree.

    Args:
        estimates: of its nodes, without look-ahead.
    """

    def __init__(self, estimates: NodeEstimates) -> None:
        self.tree = tree = estimates.tree
        self.nodes = _cells(tree)
        self.starts, self.ends = tree.doc_start[self.nodes].astype(np.int64), tree.doc_end[self.nodes].astype(np.int64)
        bonus = SIZE_WEIGHT * estimates.size_terms[torch.from_numpy(self.nodes)]
        self._vectors = torch.cat(
            [torch.from_numpy(tree.centroids[self.nodes]), bonus[:, None].cpu()], dim=1
        )  # [cells, dim + 1]
        self._lists = _inverted_file(self) if tree.codes is not None else None

    def nearest(self, queries: Tensor, count: int, looked_at: int, allowed: Mask | None = None) -> list[Tensor]:
        """The positions of up to `count` documents near each query, best first.

        Args:
            queries: [batch, dim].
            count: documents for each.
            looked_at: about how many documents are looked at for each.
            allowed: [documents] True at those that count; all by default.
        """
        cells = self._chosen(queries, looked_at, allowed)
        if self._lists is not None:
            return self._by_codes(self._lists, queries.numpy(), cells, count, allowed)
        return [self._by_vectors(*each, count, allowed) for each in zip(queries, cells, strict=True)]

    def _chosen(self, queries: Tensor, looked_at: int, allowed: Mask | None) -> list[Numbers]:
        """The best cells of each query, with about so many documents that count."""
        sizes = self.ends - self.starts
        if allowed is not None:
            before = np.concatenate([[0], np.cumsum(allowed)])
            sizes = before[self.ends] - before[self.starts]
        scores = torch.cat([queries, torch.ones(len(queries), 1)], dim=1) @ self._vectors.T
        scores[:, torch.from_numpy(sizes == 0)] = -torch.inf
        some = min(len(sizes), math.ceil(2 * looked_at / max(sizes.mean(), 1)))
        best = scores.topk(some, dim=1).indices.numpy()
        full = np.cumsum(sizes[best], axis=1) - sizes[best] < looked_at
        return [own[keep & (sizes[own] > 0)] for own, keep in zip(best, full, strict=True)]

    def _by_vectors(self, query: Tensor, cells: Numbers, count: int, allowed: Mask | None) -> Tensor:
        positions = np.concatenate([np.arange(self.starts[cell], self.ends[cell]) for cell in cells])
        if allowed is not None:
            positions = positions[allowed[positions]]
        scores = torch.from_numpy(self.tree.embeddings[positions]) @ query
        return torch.from_numpy(positions)[scores.topk(min(count, len(positions))).indices]

    def _by_codes(
        self,
        lists: Any,
        queries: NDArray[np.float32],
        cells: Sequence[Numbers],
        count: int,
        allowed: Mask | None,
    ) -> list[Tensor]:
        most = max(map(len, cells))
        chosen = np.full((len(cells), most), -1, dtype=np.int64)
        for row, own in zip(chosen, cells, strict=True):
            row[: len(own)] = own
        given: Any = faiss.SearchParametersIVF()
        given.nprobe = most
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))  # faiss keeps no reference to either
            given.sel = selector
        queries, coarse = np.ascontiguousarray(queries), np.zeros(chosen.shape, np.float32)
        scores, found = np.empty((len(cells), count), np.float32), np.empty((len(cells), count), np.int64)
        arrays = [faiss.swig_ptr(own) for own in (chosen, coarse, scores, found)]
        lists.search_preassigned_c(len(cells), faiss.swig_ptr(queries), count, *arrays, False, given)
        return [torch.from_numpy(own[own >= 0]) for own in found]


def _cells(tree: DocidTree) -> NDArray[np.intp]:
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


def _inverted_file(cells: Cells) -> Any:
    """An index of faiss whose lists are the cells; the ids are docid positions."""
    codes = cells.tree.codes
    assert codes is not None
    assert isinstance(codes.codec, Product)
    numbers = codes.in_order()
    lists: Any = faiss.IndexIVFPQ(
        faiss.IndexFlatIP(codes.shape[1]),
        codes.shape[1],
        len(cells.nodes),
        numbers.shape[1],
        8,
        faiss.METRIC_INNER_PRODUCT,
    )
    lists.pq, lists.by_residual, lists.is_trained = codes.codec.quantizer(), False, True
    for cell, (start, end) in enumerate(zip(cells.starts.tolist(), cells.ends.tolist(), strict=True)):
        own, ids = np.ascontiguousarray(numbers[start:end]), np.arange(start, end)
        lists.invlists.add_entries(cell, end - start, faiss.swig_ptr(ids), faiss.swig_ptr(own))
    lists.ntotal = len(numbers)
    return lists
