"""Adds documents to a docid tree and removes them, without changing the docid of any other.

A generator may be trained on these docids, and users may keep them, so they stay. A removed document leaves its place free. A
new one descends to the nearest cluster and takes a free place there, or a new one at the end; beside a full cluster a new one
is opened. `DocidTree.trained` records which nodes the tree was made with. Knows nothing of texts or models.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dsi.docids.token_vectors import TokenCodes
from dsi.docids.tree import DocidTree
from dsi.docids.types import Floats, Ints
from dsi.docids.vectors import Vectors

_OVERFULL = 2
"""A cluster is full with this many times the documents (or clusters) of the largest one at training."""


def remove_documents(tree: DocidTree, rows: Ints) -> DocidTree:
    """Return the tree without some documents; their places become free."""
    gone = np.zeros(tree.num_places + 1, dtype=bool)  # the last entry is that of row -1, free places
    gone[rows] = True
    moved = (np.cumsum(~gone) - 1).astype(np.int32)
    free = gone[tree.doc_rows] | (tree.doc_rows < 0)
    doc_rows = np.where(free, -1, moved[tree.doc_rows]).astype(np.int32)
    changed = np.flatnonzero(free & (tree.doc_rows >= 0))
    zeros = np.zeros((len(changed), tree.embeddings.shape[1]), np.float32)
    embeddings = _with_rows(tree.embeddings, changed, zeros)
    codes = _with_rows(tree.codes, changed, zeros) if tree.codes else None
    tokens = tree.tokens.without(changed) if tree.tokens else None
    spans = None if tree.spans is None else np.where(free[:, None], np.int32(0), tree.spans)
    smaller = replace(
        tree,
        doc_rows=doc_rows,
        embeddings=embeddings,
        codes=codes,
        tokens=tokens,
        spans=spans,
        origin=tree.origin_bytes,
    )
    return _with_means(smaller, changed)


def without_traces(tree: DocidTree) -> DocidTree:
    """Return the tree with nothing of removed documents: a node without documents gets the centroid of its parent."""
    before = np.concatenate([[0], np.cumsum(tree.doc_rows >= 0, dtype=np.int32)])
    is_empty = before[tree.doc_end] == before[tree.doc_start]
    nodes = np.flatnonzero(is_empty)
    above = tree.parents[nodes]
    while (is_empty_too := is_empty[above]).any():
        above[is_empty_too] = tree.parents[above[is_empty_too]]
    means = tree.centroids[above]
    stale = (tree.centroids[nodes] != means).any(axis=1)
    return replace(tree, centroids=_with_rows(tree.centroids, nodes[stale], means[stale])) if stale.any() else tree


def add_documents(
    tree: DocidTree, embeddings: Floats, rows: Ints | None = None, tokens: TokenCodes | None = None,
    spans: Ints | None = None,
) -> DocidTree:  # fmt: skip
    """Return the tree with more documents, which take the next rows of the document table.

    `embeddings`: [n, dim] of the new documents; `rows`: [n] new document, from 0, of each embedding, if some have
    several places; `spans`: [n, 2] characters start to end of the piece of a text that each is of, for a tree of
    pieces.
    """
    embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
    if not np.isfinite(embeddings).all():
        raise ValueError("embeddings must be finite; some of the new documents' are not.")
    if (tree.tokens is None) != (tokens is None):
        raise ValueError("tokens must be given for a tree with token vectors, and for no other.")
    growing = _Growing(tree)
    for embedding in embeddings:
        growing.place(embedding)
    return growing.assemble(embeddings, np.arange(len(embeddings)) if rows is None else rows, tokens, spans)


class _Opened(NamedTuple):
    """An inner node that an update opened."""

    parent: int
    digit: int
    is_cluster: bool
    centroid: Floats


class _Growing:
    """A tree and additions to it; only the nodes on the paths of new documents are read before `assemble`.

    An inner node is a node number of the tree or, from `num_inner` on, an opened one. A place is a docid position of the tree
    or, from `num_places` on, a new one.
    """

    def __init__(self, tree: DocidTree) -> None:
        self.tree = tree
        self.opened: list[_Opened] = []
        self.taken: dict[int, None] = {}  # places of the new documents, in order
        self.new_places: list[tuple[int, int]] = []  # (cluster, digit) of each new place
        self.more: dict[int, list[int]] = {}  # {inner node: its new children}
        trained = tree.trained[: tree.num_inner]
        are_clusters = tree.first_child >= tree.num_inner
        self.most_documents = _OVERFULL * int(tree.num_children[trained & are_clusters].max(initial=2))
        self.most_clusters = _OVERFULL * int(tree.num_children[trained & ~are_clusters].max(initial=2))

    def place(self, embedding: Floats) -> None:
        """Choose a place for the next document."""
        node = 0
        while not self._is_cluster(node):
            node = self._nearest(embedding, self._children(node))
        for place in self._children(node):
            if place < self.tree.num_places and self.tree.doc_rows[place] < 0 and place not in self.taken:
                self.taken[place] = None
                return
        if self._is_full(node):
            node = self._open_beside(node, embedding)
        place = self.tree.num_places + len(self.new_places)
        self.new_places.append((node, len(self._children(node))))
        self.more.setdefault(node, []).append(place)
        self.taken[place] = None

    # The tree with its additions.

    def _is_cluster(self, node: int) -> bool:
        """True if its children are documents."""
        inner = self.tree.num_inner
        return bool(self.tree.first_child[node] >= inner) if node < inner else self.opened[node - inner].is_cluster

    def _children(self, node: int) -> list[int]:
        """Inner nodes, or the places of a cluster."""
        tree, children = self.tree, range(0)
        if node < tree.num_inner:
            first = int(tree.first_child[node])
            first -= tree.num_inner if first >= tree.num_inner else 0
            children = range(first, first + int(tree.num_children[node]))
        return [*children, *self.more.get(node, ())]

    def _centroids(self, nodes: list[int]) -> Floats:
        """[nodes, dim] of nodes of the tree and opened ones, which come last."""
        inner = self.tree.num_inner
        old = self.tree.centroids[[node for node in nodes if node < inner]]
        return np.concatenate([old, *(self.opened[node - inner].centroid[None] for node in nodes if node >= inner)])

    def _parent(self, node: int) -> int:
        inner = self.tree.num_inner
        return int(self.tree.parents[node]) if node < inner else self.opened[node - inner].parent

    def _nearest(self, embedding: Floats, nodes: list[int]) -> int:
        distances = ((self._centroids(nodes) - embedding) ** 2).sum(axis=1)
        return nodes[int(distances.argmin())]

    def _is_full(self, node: int) -> bool:
        """True if no child should be added; never for the root, which has no sibling."""
        most = self.most_documents if self._is_cluster(node) else self.most_clusters
        return node != 0 and len(self._children(node)) >= most

    # New clusters.

    def _open_beside(self, cluster: int, embedding: Floats) -> int:
        """Return a cluster with room beside a full one, opened earlier or now."""
        parent = self._parent(cluster)
        opened = self._with_room(parent, are_clusters=True)
        if not opened and self._is_full(parent):
            parent = self._parent_with_room(cluster)
            opened = self._with_room(parent, are_clusters=True)
        return self._nearest(embedding, opened) if opened else self._append_inner(parent, embedding, is_cluster=True)

    def _parent_with_room(self, node: int) -> int:
        """Return the parent for a new sibling of `node`: the node's or, if that is full, one opened beside it."""
        parent = self._parent(node)
        if not self._is_full(parent):
            return parent
        grandparent = self._parent_with_room(parent)
        opened = self._with_room(grandparent, are_clusters=False)
        (centroid,) = self._centroids([parent])
        if opened:
            return self._nearest(centroid, opened)
        return self._append_inner(grandparent, centroid, is_cluster=False)

    def _with_room(self, parent: int, *, are_clusters: bool) -> list[int]:
        """Return children that an update opened, and that have room."""
        inner, trained = self.tree.num_inner, self.tree.trained
        opened = [node for node in self._children(parent) if node >= inner or not trained[node]]
        return [node for node in opened if self._is_cluster(node) == are_clusters and not self._is_full(node)]

    def _append_inner(self, parent: int, centroid: Floats, *, is_cluster: bool) -> int:
        node = self.tree.num_inner + len(self.opened)
        self.opened.append(_Opened(parent, len(self._children(parent)), is_cluster, centroid))
        self.more.setdefault(parent, []).append(node)
        return node

    # The resulting tree.

    def assemble(self, embeddings: Floats, rows: Ints, tokens: TokenCodes | None, spans: Ints | None) -> DocidTree:
        """Return the tree with its nodes renumbered: inner nodes breadth-first, documents in docid order."""
        tree, inner, documents = self.tree, self.tree.num_inner, self.tree.num_places
        # 1) Parent and digit of each inner node, cluster and digit of each place.
        cluster_of_new, digit_of_new = np.array(self.new_places, dtype=np.int64).reshape(-1, 2).T
        parent_of_new, digit_of_opened = np.array([node[:2] for node in self.opened], dtype=np.int64).reshape(-1, 2).T
        parent = np.concatenate([tree.parents[:inner], parent_of_new])
        cluster = np.concatenate([tree.parents[inner:], cluster_of_new])
        digits = np.arange(1, inner + documents) - tree.first_child[tree.parents[1:]]
        digit = np.concatenate([[0], digits[: inner - 1], digit_of_opened])
        digit_in_cluster = np.concatenate([digits[inner - 1 :], digit_of_new])
        # 2) Their numbers in the new tree.
        levels, number = _breadth_first(parent, digit)
        start, size = _document_ranges(levels, parent, np.bincount(cluster, minlength=len(parent)))
        position = start[cluster] + digit_in_cluster

        num_children = np.bincount(cluster, minlength=len(parent)) + np.bincount(parent[1:], minlength=len(parent))
        first_child = len(parent) + start
        firsts = 1 + np.flatnonzero(digit[1:] == 0)  # of inner nodes
        first_child[parent[firsts]] = number[firsts]
        order = np.concatenate(levels)
        # 3) What nodes and places hold, in the new order.
        doc_rows, trained = np.empty(len(position), np.int32), np.zeros(len(parent) + len(position), bool)
        added = position[np.fromiter(self.taken, dtype=np.int64)]
        doc_rows[position[:documents]] = tree.doc_rows
        doc_rows[added] = tree.num_rows + rows
        trained[number[:inner]] = tree.trained[:inner]
        trained[len(parent) + position[:documents]] = tree.trained[inner:]
        trained[len(parent) + added] = False
        source = np.empty(len(position), dtype=np.int32)  # old position of each, or N + number of the new document
        source[position[:documents]] = np.arange(documents)
        source[added] = documents + np.arange(len(added))
        if spans is not None:
            old = np.zeros((documents, 2), np.int32) if tree.spans is None else tree.spans
            spans = np.concatenate([old, spans.astype(np.int32)])[source]
        opened = np.array([node.centroid for node in self.opened], dtype=np.float32).reshape(-1, embeddings.shape[1])
        larger = DocidTree(
            first_child=first_child[order].astype(np.int32),
            num_children=num_children[order].astype(np.int32),
            doc_start=start[order].astype(np.int32),
            doc_end=(start + size)[order].astype(np.int32),
            doc_rows=doc_rows,
            centroids=tree.centroids.rearrange(order, opened),
            embeddings=tree.embeddings.rearrange(source, embeddings),
            codes=tree.codes.rearrange(source, embeddings) if tree.codes else None,
            trained=trained,
            origin=tree.origin_bytes,
            pieces=tree.pieces,
            piece_cost=tree.piece_cost,
            spans=spans,
            tokens=tree.tokens.arranged(source, tokens) if tree.tokens and tokens else None,
        )
        return _with_means(larger, added)


def _breadth_first(parent: NDArray[np.int64], digit: NDArray[np.int64]) -> tuple[list[NDArray[np.int64]], Ints]:
    """Return the nodes of each level in docid order, and each node's number in that order."""
    levels, number = [np.array([0])], np.zeros(len(parent), dtype=np.int32)
    above, numbered = np.zeros(len(parent), dtype=bool), 1
    above[0] = True
    while numbered < len(parent):
        (below,) = np.nonzero(above[parent] & ~above)
        below = below[np.lexsort((digit[below], number[parent[below]]))]
        number[below] = numbered + np.arange(len(below))
        above[below] = True
        numbered += len(below)
        levels.append(below)
    return levels, number


def _document_ranges(
    levels: list[NDArray[np.int64]], parent: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first docid position below each node, and how many there are; `counts` are of its direct documents."""
    size = counts.copy()
    for level in reversed(levels[1:]):
        np.add.at(size, parent[level], size[level])
    start = np.zeros(len(parent), dtype=np.int64)
    for level in levels[1:]:
        before = np.cumsum(size[level]) - size[level]
        _, first, sibling = np.unique(parent[level], return_index=True, return_inverse=True)
        start[level] = start[parent[level]] + before - before[first][sibling]
    return start, size


def _with_rows(vectors: Vectors, rows: Ints, new: Floats) -> Vectors:
    """Return the vectors with some replaced."""
    source = np.arange(len(vectors), dtype=np.int32)
    source[rows] = len(vectors) + np.arange(len(new), dtype=np.int32)
    return vectors.rearrange(source, new)


def _with_means(tree: DocidTree, changed: Ints) -> DocidTree:
    """Return the tree with the centroids above changed places recomputed; a node without documents keeps its centroid."""
    occupied = tree.doc_rows >= 0
    before = np.concatenate([[0], np.cumsum(occupied, dtype=np.int32)])
    above, _ = tree.paths(changed)
    means: dict[int, NDArray[np.float64]] = {}
    for node in np.unique(above[above >= 0])[::-1].tolist():  # children before parents
        first = int(tree.first_child[node])
        below = slice(first, first + int(tree.num_children[node]))
        if first >= tree.num_inner:
            places = slice(first - tree.num_inner, below.stop - tree.num_inner)
            vectors, weights = tree.embeddings[places], occupied[places].astype(np.int32)
        else:
            vectors, weights = tree.centroids[below].copy(), before[tree.doc_end[below]] - before[tree.doc_start[below]]
            for child in means.keys() & range(below.start, below.stop):
                vectors[child - first] = means[child]
        if weights.any():
            means[node] = np.average(vectors, axis=0, weights=weights)
    new = np.array([*means.values()], dtype=np.float32).reshape(-1, tree.centroids.shape[1])
    return replace(tree, centroids=_with_rows(tree.centroids, np.array([*means], dtype=np.int64), new))
