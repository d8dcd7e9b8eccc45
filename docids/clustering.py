"""From document embeddings to a docid tree: hierarchical k-means (DR-SCL section 3.4), balanced k-means, random digits.

A cluster of more than `max_leaf_size` documents is split into `branching` clusters, again and again; what is small enough
numbers its documents. scikit-learn seeds the splits (k-means++), faiss does them. Knows nothing of texts or models.
"""

from dataclasses import dataclass
from itertools import pairwise

import faiss
import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus
from tqdm.auto import tqdm

from docids.tree import DocidTree, Floats

_METHODS = ("kmeans", "balanced", "random")
_CLUSTER_ON = ("documents", "queries", "untrained")
_TRAIN_POINTS_PER_CENTROID = 1000
_SEEDING_POINTS = 2000


@dataclass(frozen=True)
class DocidsConfig:
    """How docids are made.

    Attributes:
        method: "kmeans" (the paper), "balanced" (k-means whose clusters differ in size by at most one) or "random" (digits
            that mean nothing: a control).
        branching: clusters a split; digits a level.
        max_leaf_size: a cluster of at most this many documents is not split.
        cluster_on: "documents"; "queries" for the mean of a document's embedding and those of its train queries and
            pseudo-queries; or "untrained" for the documents' embeddings before contrastive training. The documents' own
            embeddings score them in any case.
        iterations: of k-means.
        seed: of k-means; one seed gives one tree.
    """

    method: str = "kmeans"
    branching: int = 10
    max_leaf_size: int = 10
    cluster_on: str = "documents"
    iterations: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise ValueError(f"docids.method must be one of {', '.join(_METHODS)}, got {self.method!r}.")
        if self.cluster_on not in _CLUSTER_ON:
            raise ValueError(f"docids.cluster_on must be one of {', '.join(_CLUSTER_ON)}, got {self.cluster_on!r}.")
        if self.branching < 2 or self.max_leaf_size < 1:
            raise ValueError(
                f"docids.branching must be at least 2 and max_leaf_size at least 1, "
                f"got {self.branching} and {self.max_leaf_size}."
            )


def build_tree(
    embeddings: Floats, config: DocidsConfig, *, cluster_embeddings: Floats | None = None, progress: bool = False
) -> DocidTree:
    """Cluster documents into a docid tree.

    Args:
        embeddings: [N, dim] document embeddings, in collection order; they become centroids.
        config: the settings.
        cluster_embeddings: [N, any] what to cluster on instead.
        progress: show a progress bar over documents.

    Raises:
        ValueError: fewer documents than `branching`, or values that are not finite.
    """
    embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
    points = embeddings if cluster_embeddings is None else np.ascontiguousarray(cluster_embeddings, dtype=np.float32)
    _check_points(embeddings, points, config)
    doc_rows = np.arange(len(points), dtype=np.int32)
    if config.method == "random":
        np.random.default_rng(config.seed).shuffle(doc_rows)
    bar = tqdm(total=len(points), desc="docids", unit="doc", disable=not progress)
    levels = _split_levels(points, doc_rows, config, bar)
    bar.close()
    return _assemble(levels, doc_rows, embeddings, config.max_leaf_size)


def _check_points(embeddings: Floats, points: Floats, config: DocidsConfig) -> None:
    if embeddings.ndim != 2 or len(points) != len(embeddings):
        raise ValueError(f"embeddings must be [documents, dim] and as many as the points, got {embeddings.shape}.")
    if len(points) < config.branching:
        raise ValueError(
            f"The collection has {len(points)} documents, fewer than docids.branching = {config.branching}; "
            f"set branching to at most {len(points)}."
        )
    for name, array in (("embeddings", embeddings), ("cluster_embeddings", points)):
        bad = ~np.isfinite(array.sum(axis=1))
        if bad.any():
            raise ValueError(
                f"{name} must be finite; row {int(np.argmax(bad))} (and {int(bad.sum()) - 1} more) is not."
            )


def _split_levels(
    points: Floats, doc_rows: NDArray[np.int32], config: DocidsConfig, bar: tqdm
) -> list[list[tuple[int, int]]]:
    """Reorder `doc_rows` in place, level by level; returns the (start, end) ranges of each level's clusters."""
    levels: list[list[tuple[int, int]]] = []
    clusters = [(0, len(doc_rows))]
    while clusters:
        levels.append(clusters)
        below: list[tuple[int, int]] = []
        for start, end in clusters:
            if end - start <= config.max_leaf_size:
                bar.update(end - start)
                continue
            rows = doc_rows[start:end]
            labels = _split(points, rows, config)
            doc_rows[start:end] = rows[np.argsort(labels, kind="stable")]
            edges = start + np.concatenate([[0], np.cumsum(np.bincount(labels))])
            below += [(a, b) for a, b in pairwise(edges.tolist())]
        clusters = below
    return levels


def _split(points: Floats, rows: NDArray[np.int32], config: DocidsConfig) -> NDArray[np.int64]:
    """Cluster number of each row, 0..k-1, none of them empty."""
    k = min(config.branching, len(rows))
    if config.method == "random":
        return np.arange(len(rows)) * k // len(rows)
    subset = points[rows]
    kmeans = faiss.Kmeans(
        subset.shape[1],
        k,
        niter=config.iterations,
        seed=config.seed + 1,  # faiss takes 0 for "no seed"
        min_points_per_centroid=1,
        max_points_per_centroid=_TRAIN_POINTS_PER_CENTROID,
    )
    kmeans.train(subset, init_centroids=_first_centroids(subset, k, config.seed))
    if config.method == "balanced":
        return _assign_balanced(subset, np.asarray(kmeans.centroids))
    distances, labels = kmeans.index.search(subset, 1)
    return _fill_empty(labels[:, 0].astype(np.int64), distances[:, 0], k)


def _first_centroids(points: Floats, k: int, seed: int) -> Floats:
    """k-means++ seeding (Arthur & Vassilvitskii 2007) on a sample: random seeds too often leave a group without one."""
    rng = np.random.RandomState(seed)
    if len(points) > _SEEDING_POINTS:
        points = points[rng.choice(len(points), _SEEDING_POINTS, replace=False)]
    centroids, _ = kmeans_plusplus(points, k, random_state=rng)
    return np.ascontiguousarray(centroids, dtype=np.float32)


def _fill_empty(labels: NDArray[np.int64], distances: Floats, k: int) -> NDArray[np.int64]:
    """Give every empty cluster the farther half of the largest one; among equal distances (duplicates) the later half."""
    counts = np.bincount(labels, minlength=k)
    for empty in np.flatnonzero(counts == 0):
        largest = int(np.argmax(counts))
        members = np.flatnonzero(labels == largest)
        order = members[np.argsort(distances[members], kind="stable")]
        labels[order[len(order) - len(order) // 2 :]] = empty
        counts = np.bincount(labels, minlength=k)
    return labels


def _assign_balanced(points: Floats, centroids: Floats) -> NDArray[np.int64]:
    """Nearest centroid with room left, closest pairs first; clusters hold floor(n/k) or ceil(n/k) points."""
    n, k = len(points), len(centroids)
    distances = faiss.pairwise_distances(points, np.ascontiguousarray(centroids))
    labels = np.full(n, -1, dtype=np.int64)
    room = np.full(k, n // k)
    extra = n % k  # this many clusters take one more
    for pair in np.argsort(distances, axis=None, kind="stable"):
        point, cluster = divmod(int(pair), k)
        if labels[point] >= 0 or (room[cluster] == 0 and extra == 0) or room[cluster] < 0:
            continue
        extra -= room[cluster] == 0
        room[cluster] -= 1
        labels[point] = cluster
    return labels


def _assemble(
    levels: list[list[tuple[int, int]]], doc_rows: NDArray[np.int32], embeddings: Floats, max_leaf_size: int
) -> DocidTree:
    ranges = np.array([cluster for level in levels for cluster in level], dtype=np.int32)
    doc_start, doc_end = ranges[:, 0].copy(), ranges[:, 1].copy()
    num_inner = len(ranges)
    first_child, num_children = np.empty(num_inner, np.int32), np.empty(num_inner, np.int32)
    next_inner = node = 1
    for level, below in zip(levels, [*levels[1:], []], strict=True):
        starts = np.array([start for start, _ in below])
        node = next_inner - len(level)
        for start, end in level:
            if end - start <= max_leaf_size:
                first_child[node], num_children[node] = num_inner + start, end - start
            else:
                first, last = np.searchsorted(starts, [start, end])
                first_child[node], num_children[node] = next_inner + first, last - first
            node += 1
        next_inner += len(below)
    ordered = embeddings[doc_rows]
    centroids = _centroids(ordered, first_child, doc_start, doc_end, levels)
    return DocidTree(first_child, num_children, doc_start, doc_end, doc_rows, centroids, ordered)


def _centroids(
    ordered: Floats,
    first_child: NDArray[np.int32],
    doc_start: NDArray[np.int32],
    doc_end: NDArray[np.int32],
    levels: list[list[tuple[int, int]]],
) -> Floats:
    """Mean embedding below each inner node; sums in float64, from the leaves up."""
    num_inner = len(first_child)
    leaf_parents = np.flatnonzero(first_child >= num_inner)
    order = leaf_parents[np.argsort(doc_start[leaf_parents])]
    sums = np.empty((num_inner, ordered.shape[1]), dtype=np.float64)
    sums[order] = np.add.reduceat(ordered, doc_start[order], axis=0)
    ends = np.cumsum([len(level) for level in levels])
    for level in range(len(levels) - 2, -1, -1):
        nodes = np.arange(ends[level] - len(levels[level]), ends[level])
        nodes = nodes[first_child[nodes] < num_inner]
        if len(nodes):
            below = slice(int(ends[level]), int(ends[level + 1]))
            sums[nodes] = np.add.reduceat(sums[below], first_child[nodes] - below.start, axis=0)
    return (sums / (doc_end - doc_start)[:, None]).astype(np.float32)
