"""Documents added to a docid tree and removed from it, without touching the docid of any other.

A decoder has learnt the docids it was trained on, so they stay: a removed document leaves its place free, a new one descends
to the nearest cluster and takes a free place there, or one at the end; where the cluster is full, a new cluster opens beside
it. `DocidTree.trained` remembers which nodes the decoder knows. Knows nothing of texts or models.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from docids.tree import DocidTree, Floats

_OVERFULL = 2
"""A cluster is full with this many times the documents (or clusters) of the largest one at training."""


def remove_documents(tree: DocidTree, rows: NDArray[np.integer]) -> DocidTree:
    """The tree without some documents; their places stay, free.

    Args:
        tree: the docids.
        rows: of the document table; the rows behind them move up.
    """
    gone = np.zeros(tree.num_documents + 1, dtype=bool)  # one more for the free places' row -1
    gone[rows] = True
    moved = (np.cumsum(~gone) - 1).astype(np.int32)
    removed = gone[tree.doc_rows] & (tree.doc_rows >= 0)
    doc_rows = np.where(removed | (tree.doc_rows < 0), -1, moved[tree.doc_rows]).astype(np.int32)
    embeddings = np.where((doc_rows < 0)[:, None], 0, tree.embeddings).astype(np.float32)
    return _with_means(replace(tree, doc_rows=doc_rows, embeddings=embeddings, origin=tree.origin_bytes))


def add_documents(tree: DocidTree, embeddings: Floats) -> DocidTree:
    """The tree with more documents, which take the next rows of the document table.

    Args:
        tree: the docids.
        embeddings: [n, dim] of the new documents.

    Raises:
        ValueError: another width than the tree's, or values that are not finite.
    """
    embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
    if embeddings.ndim != 2 or embeddings.shape[1] != tree.embeddings.shape[1]:
        raise ValueError(f"embeddings must be [documents, {tree.embeddings.shape[1]}], got {list(embeddings.shape)}.")
    if not np.isfinite(embeddings).all():
        raise ValueError("embeddings must be finite; some of the new documents' are not.")
    growing = _Growing(tree)
    for number, embedding in enumerate(embeddings):
        growing.place(embedding, tree.num_documents - tree.num_removed + number)
    return _with_means(growing.assemble())


@dataclass
class _Places:
    """Nodes of one kind as growing columns; numbers are places in the columns."""

    parent: list[int]
    digit: list[int]
    trained: list[bool]


class _Growing:
    """A tree that nodes are appended to; inner nodes keep their numbers until `assemble`."""

    def __init__(self, tree: DocidTree) -> None:
        self.tree, inner = tree, tree.num_inner
        parents = tree.parents
        digits = np.arange(len(parents)) - tree.first_child[parents]
        digits[0] = 0
        self.inner = _Places(parents[:inner].tolist(), digits[:inner].tolist(), tree.trained[:inner].tolist())
        self.documents = _Places(parents[inner:].tolist(), digits[inner:].tolist(), tree.trained[inner:].tolist())
        self.rows, self.embeddings = tree.doc_rows.tolist(), list(tree.embeddings)
        self.centroids = list(tree.centroids)
        self.is_cluster = (tree.first_child >= inner).tolist()  # its children are documents
        self.children = [_range(tree, node) for node in range(inner)]
        sizes = tree.num_children[tree.trained[:inner]]
        clusters = np.array(self.is_cluster)[tree.trained[:inner]]
        self.most_documents = _OVERFULL * int(sizes[clusters].max())
        self.most_clusters = _OVERFULL * int(sizes[~clusters].max(initial=2))

    def place(self, embedding: Floats, row: int) -> None:
        """Put a document where it belongs."""
        node = 0
        while not self.is_cluster[node]:
            node = self._nearest(embedding, self.children[node])
        free = [place for place in self.children[node] if self.rows[place] < 0]
        if free:
            self._fill(free[0], embedding, row)
        else:
            if self._is_full(node):
                node = self._open_beside(node, embedding)
            self._append_document(node, embedding, row)

    def _nearest(self, embedding: Floats, nodes: list[int]) -> int:
        distances = ((np.stack([self.centroids[node] for node in nodes]) - embedding) ** 2).sum(axis=1)
        return nodes[int(distances.argmin())]

    def _open_beside(self, cluster: int, embedding: Floats) -> int:
        """A cluster with room next to a full one: one that was opened before, or a new one."""
        if cluster == 0:  # the tree is one cluster: nothing is beside it
            return cluster
        parent = self.inner.parent[cluster]
        opened = self._opened(parent, are_clusters=True)
        if not opened and self._is_full(parent):
            parent = self._parent_with_room(cluster)
            opened = self._opened(parent, are_clusters=True)
        return self._nearest(embedding, opened) if opened else self._append_inner(parent, embedding, is_cluster=True)

    def _parent_with_room(self, node: int) -> int:
        """Where a new node beside `node` goes: its parent, or, where that is full, one opened beside the parent."""
        parent = self.inner.parent[node]
        if not self._is_full(parent):
            return parent
        grandparent = self._parent_with_room(parent)
        opened = self._opened(grandparent, are_clusters=False)
        centroid = self.centroids[parent]
        return (
            self._nearest(centroid, opened) if opened else self._append_inner(grandparent, centroid, is_cluster=False)
        )

    def _opened(self, parent: int, *, are_clusters: bool) -> list[int]:
        """Children that were opened by an update and have room."""
        return [
            node
            for node in self.children[parent]
            if self.is_cluster[node] == are_clusters and not self.inner.trained[node] and not self._is_full(node)
        ]

    def _is_full(self, node: int) -> bool:
        """The root never is: there is nothing beside it."""
        most = self.most_documents if self.is_cluster[node] else self.most_clusters
        return node != 0 and len(self.children[node]) >= most

    def _append_inner(self, parent: int, centroid: Floats, *, is_cluster: bool) -> int:
        node = len(self.centroids)
        self.inner.parent.append(parent)
        self.inner.digit.append(len(self.children[parent]))
        self.inner.trained.append(False)
        self.children[parent] = [*self.children[parent], node]
        self.centroids.append(np.array(centroid))
        self.is_cluster.append(is_cluster)
        self.children.append([])
        return node

    def _append_document(self, cluster: int, embedding: Floats, row: int) -> None:
        self.documents.parent.append(cluster)
        self.documents.digit.append(len(self.children[cluster]))
        self.documents.trained.append(False)
        self.children[cluster] = [*self.children[cluster], len(self.rows)]
        self.rows.append(row)
        self.embeddings.append(embedding)

    def _fill(self, place: int, embedding: Floats, row: int) -> None:
        self.rows[place], self.embeddings[place], self.documents.trained[place] = row, embedding, False

    def assemble(self) -> DocidTree:
        """Number the nodes anew: inner nodes breadth-first, documents in docid order."""
        parent, digit = np.array(self.inner.parent), np.array(self.inner.digit)
        children = [np.array(own, dtype=np.int64) for own in self.children]
        levels, level = [], np.array([0])
        while len(level):
            levels.append(level)
            inner = [children[node] for node in level if not self.is_cluster[node]]
            level = np.concatenate(inner) if inner else np.array([], dtype=np.int64)
        order = np.concatenate(levels)
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))

        size = np.array(
            [len(own) if cluster else 0 for own, cluster in zip(self.children, self.is_cluster, strict=True)]
        )
        for level in reversed(levels[1:]):
            np.add.at(size, parent[level], size[level])
        start = np.zeros(len(order), dtype=np.int64)
        for level in levels[1:]:
            before = np.cumsum(size[level]) - size[level]
            first = np.flatnonzero(digit[level] == 0)
            within = before - np.repeat(before[first], np.diff(np.append(first, len(level))))
            start[level] = start[parent[level]] + within
        position = start[self.documents.parent] + np.array(self.documents.digit)
        by_position = np.argsort(position)

        first_child = [
            len(order) + start[node] if self.is_cluster[node] else number[self.children[node][0]] for node in order
        ]
        trained = [np.array(self.inner.trained)[order], np.array(self.documents.trained)[by_position]]
        return DocidTree(
            first_child=np.array(first_child, dtype=np.int32),
            num_children=np.array([len(self.children[node]) for node in order], dtype=np.int32),
            doc_start=start[order].astype(np.int32),
            doc_end=(start + size)[order].astype(np.int32),
            doc_rows=np.array(self.rows, dtype=np.int32)[by_position],
            centroids=np.stack([self.centroids[node] for node in order]).astype(np.float32),
            embeddings=np.stack([self.embeddings[place] for place in by_position]).astype(np.float32),
            trained=np.concatenate(trained),
            origin=self.tree.origin_bytes,
        )


def _range(tree: DocidTree, node: int) -> list[int]:
    first = int(tree.first_child[node])
    first -= tree.num_inner if first >= tree.num_inner else 0
    return list(range(first, first + int(tree.num_children[node])))


def _with_means(tree: DocidTree) -> DocidTree:
    """Centroids as the means of the documents below; a node with none left keeps its centroid."""
    occupied = tree.doc_rows >= 0
    sums = np.concatenate(
        [np.zeros((1, tree.embeddings.shape[1])), np.cumsum(tree.embeddings, axis=0, dtype=np.float64)]
    )
    counts = np.concatenate([[0], np.cumsum(occupied)])
    below = (counts[tree.doc_end] - counts[tree.doc_start])[:, None]
    means = (sums[tree.doc_end] - sums[tree.doc_start]) / np.maximum(below, 1)
    return replace(tree, centroids=np.where(below > 0, means, tree.centroids).astype(np.float32))
