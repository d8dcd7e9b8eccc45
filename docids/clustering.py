"""From document embeddings to a docid tree: hierarchical k-means (DR-SCL section 3.4), balanced k-means, random digits.

A cluster of more than `max_leaf_size` documents is split into `branching` clusters, again and again; what is small enough
numbers its documents. scikit-learn seeds the splits (k-means++), faiss does them. Several processes share the work: of a large
cluster each assigns some blocks of documents to centroids that all have found on the same sample, of small clusters each splits
some. Knows nothing of texts or models.
"""

from dataclasses import dataclass

import faiss
import numpy as np
from sklearn.cluster import kmeans_plusplus
from tqdm.auto import tqdm

from docids.checks import at_least, one_of
from docids.processes import ALONE, Processes
from docids.storage import scratch_array
from docids.tree import VECTORS, DocidTree, Floats, Ints, means_below

_METHODS = ("kmeans", "balanced", "random")
_CLUSTER_ON = ("documents", "queries", "untrained")
_TRAIN_POINTS_PER_CENTROID = 1000
_SEEDING_POINTS = 2000
_BLOCK = 65_536
"""Documents that are assigned at a time; a cluster of more is assigned by all processes together."""


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
        one_of(self, "docids.", method=_METHODS, cluster_on=_CLUSTER_ON)
        at_least(self, "docids.", branching=2, max_leaf_size=1)


@dataclass(frozen=True)
class Clusters:
    """Documents in the order of their docids, and the clusters of each level.

    Attributes:
        doc_rows: [N] collection row of the document at each docid position.
        levels: root first, [clusters, 2] int32 each: first docid position of a cluster and one past its last.
        max_leaf_size: the largest cluster that was not split.
    """

    doc_rows: Ints
    levels: list[Ints]
    max_leaf_size: int


def build_tree(
    embeddings: Floats,
    config: DocidsConfig,
    *,
    cluster_embeddings: Floats | None = None,
    progress: bool = False,
    processes: Processes = ALONE,
) -> DocidTree:
    """Cluster documents into a docid tree: `cluster`, then `assemble`.

    Args:
        embeddings: [N, dim] document embeddings, in collection order; they become centroids.
        config: the settings.
        cluster_embeddings: [N, any] what to cluster on instead.
        progress: show a progress bar over documents.
        processes: that share the clustering; every one of them gets the tree, the same for any number of them.

    Raises:
        ValueError: fewer documents than `branching`, or values that are not finite.
    """
    clusters = cluster(
        embeddings, config, cluster_embeddings=cluster_embeddings, progress=progress, processes=processes
    )
    return assemble(clusters, embeddings)


def cluster(
    embeddings: Floats,
    config: DocidsConfig,
    *,
    cluster_embeddings: Floats | None = None,
    progress: bool = False,
    processes: Processes = ALONE,
) -> Clusters:
    """The clusters of `build_tree`, which says what the arguments and errors are; all processes get them."""
    points = embeddings if cluster_embeddings is None else cluster_embeddings
    points = np.ascontiguousarray(points, dtype=np.float32)
    _check_points(embeddings, points, config)
    _check_finite("embeddings", embeddings)
    if cluster_embeddings is not None:
        _check_finite("cluster_embeddings", points)
    doc_rows = np.arange(len(points), dtype=np.int32)
    if config.method == "random":
        np.random.default_rng(config.seed).shuffle(doc_rows)
    bar = tqdm(total=len(points), desc="docids", unit="doc", disable=not progress or not processes.is_main)
    levels = _split_levels(points, doc_rows, config, bar, processes)
    bar.close()
    return Clusters(doc_rows, levels, config.max_leaf_size)


def _check_points(embeddings: Floats, points: Floats, config: DocidsConfig) -> None:
    if embeddings.ndim != 2 or points.ndim != 2 or len(points) != len(embeddings):
        raise ValueError(
            f"embeddings must be [documents, dim] and as many as the points to cluster, got {list(embeddings.shape)} "
            f"and {list(points.shape)}."
        )
    if len(points) < config.branching:
        raise ValueError(
            f"The collection has {len(points)} documents, fewer than docids.branching = {config.branching}; "
            f"set branching to at most {len(points)}."
        )


def _check_finite(name: str, array: Floats) -> None:
    bad = ~np.isfinite(array.sum(axis=1))
    if bad.any():
        raise ValueError(f"{name} must be finite; row {int(np.argmax(bad))} (and {int(bad.sum()) - 1} more) is not.")


def _split_levels(points: Floats, doc_rows: Ints, config: DocidsConfig, bar: tqdm, processes: Processes) -> list[Ints]:
    """Reorder `doc_rows` in place, level by level; returns the clusters of each."""
    levels: list[Ints] = []
    clusters = np.array([[0, len(doc_rows)]], dtype=np.int32)
    while len(clusters):
        levels.append(clusters)
        sizes = clusters[:, 1] - clusters[:, 0]
        bar.update(int(sizes[sizes <= config.max_leaf_size].sum()))
        to_split, edges = clusters[sizes > config.max_leaf_size].tolist(), []
        for (start, end), labels in zip(
            to_split, _split_all(points, doc_rows, to_split, config, processes), strict=True
        ):
            doc_rows[start:end] = doc_rows[start:end][np.argsort(labels, kind="stable")]
            own = start + np.concatenate([[0], np.cumsum(np.bincount(labels))])
            edges.append(np.stack([own[:-1], own[1:]], axis=1))
        clusters = np.concatenate(edges).astype(np.int32) if edges else np.empty((0, 2), np.int32)
    return levels


def _split_all(
    points: Floats,
    doc_rows: Ints,
    clusters: list[tuple[int, int]],
    config: DocidsConfig,
    processes: Processes,
) -> list[Ints]:
    """The labels of every cluster's documents: large ones by all processes together, the others by one process each."""
    together = [config.method == "kmeans" and end - start > _BLOCK for start, end in clusters]
    small = [cluster for cluster, large in zip(clusters, together, strict=True) if not large]
    own = [_split(points, doc_rows[start:end], config) for start, end in processes.share(small)]
    labels = iter(processes.collect(own))
    return [
        _split_together(points, doc_rows[start:end], config, processes) if large else next(labels)
        for (start, end), large in zip(clusters, together, strict=True)
    ]


def _split_together(points: Floats, rows: Ints, config: DocidsConfig, processes: Processes) -> Ints:
    """`_split` of a large cluster by k-means, block by block: no process holds all of its points."""
    k = config.branching
    size = min(len(rows), k * _TRAIN_POINTS_PER_CENTROID)
    sample = np.random.default_rng(config.seed).choice(len(rows), size, replace=False)
    kmeans = _kmeans(points[np.sort(rows[sample])], k, config)
    own = [
        kmeans.index.search(np.ascontiguousarray(points[rows[start : start + _BLOCK]]), 1)
        for start in processes.share(range(0, len(rows), _BLOCK))
    ]
    blocks = processes.collect([(d[:, 0], labels[:, 0].astype(np.int32)) for d, labels in own])
    distances, labels = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return _fill_empty(labels, distances, k)


def _split(points: Floats, rows: Ints, config: DocidsConfig) -> Ints:
    """Cluster number of each row, 0..k-1, none of them empty."""
    k = min(config.branching, len(rows))
    if config.method == "random":
        return (np.arange(len(rows)) * k // len(rows)).astype(np.int32)
    subset = np.ascontiguousarray(points[rows])
    kmeans = _kmeans(subset, k, config)
    if config.method == "balanced":
        return _assign_balanced(subset, np.asarray(kmeans.centroids))
    distances, labels = kmeans.index.search(subset, 1)
    return _fill_empty(labels[:, 0].astype(np.int32), distances[:, 0], k)


def _kmeans(points: Floats, k: int, config: DocidsConfig) -> faiss.Kmeans:
    """k-means of all the points, or of a thousand a centroid where there are more."""
    kmeans = faiss.Kmeans(
        points.shape[1],
        k,
        niter=config.iterations,
        seed=config.seed + 1,  # faiss takes 0 for "no seed"
        min_points_per_centroid=1,
        max_points_per_centroid=_TRAIN_POINTS_PER_CENTROID,
    )
    kmeans.train(points, init_centroids=_first_centroids(points, k, config.seed))
    return kmeans


def _first_centroids(points: Floats, k: int, seed: int) -> Floats:
    """k-means++ seeding (Arthur & Vassilvitskii 2007) on a sample: random seeds too often leave a group without one."""
    rng = np.random.RandomState(seed)
    if len(points) > _SEEDING_POINTS:
        points = points[rng.choice(len(points), _SEEDING_POINTS, replace=False)]
    centroids, _ = kmeans_plusplus(points, k, random_state=rng)
    return np.ascontiguousarray(centroids, dtype=np.float32)


def _fill_empty(labels: Ints, distances: Floats, k: int) -> Ints:
    """Give every empty cluster the farther half of the largest one; among equal distances (duplicates) the later half."""
    counts = np.bincount(labels, minlength=k)
    for empty in np.flatnonzero(counts == 0):
        largest = int(np.argmax(counts))
        members = np.flatnonzero(labels == largest)
        order = members[np.argsort(distances[members], kind="stable")]
        labels[order[len(order) - len(order) // 2 :]] = empty
        counts = np.bincount(labels, minlength=k)
    return labels


def _assign_balanced(points: Floats, centroids: Floats) -> Ints:
    """Nearest centroid with room left, closest pairs first; clusters hold floor(n/k) or ceil(n/k) points."""
    n, k = len(points), len(centroids)
    distances = faiss.pairwise_distances(points, np.ascontiguousarray(centroids))
    labels = np.full(n, -1, dtype=np.int32)
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


def assemble(clusters: Clusters, embeddings: Floats) -> DocidTree:
    """The docid tree of clusters; its vectors are made block by block, in scratch files.

    Args:
        clusters: what `cluster` found.
        embeddings: [N, dim] the document embeddings that were given to it, perhaps mapped into memory.
    """
    levels, doc_rows = clusters.levels, clusters.doc_rows
    ranges = np.concatenate(levels)
    doc_start, doc_end = ranges[:, 0].copy(), ranges[:, 1].copy()
    num_inner = len(ranges)
    first_child, num_children = np.empty(num_inner, np.int32), np.empty(num_inner, np.int32)
    start = 0
    for level, below in zip(levels, [*levels[1:], np.empty((0, 2), np.int32)], strict=True):
        nodes, next_level = slice(start, start + len(level)), start + len(level)
        split = level[:, 1] - level[:, 0] > clusters.max_leaf_size
        first, last = (np.searchsorted(below[:, 0], edge) for edge in level.T)
        first_child[nodes] = np.where(split, next_level + first, num_inner + level[:, 0])
        num_children[nodes] = np.where(split, last - first, level[:, 1] - level[:, 0])
        start = next_level
    ordered = scratch_array(embeddings.shape, np.float32)
    for start in range(0, len(doc_rows), VECTORS):
        ordered[start : start + VECTORS] = embeddings[doc_rows[start : start + VECTORS]]
    centroids = means_below(ordered, doc_start, doc_end)
    return DocidTree(first_child, num_children, doc_start, doc_end, doc_rows, centroids, ordered)
