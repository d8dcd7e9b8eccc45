"""The docid schemes that cluster, and the way from clusters to a docid tree.

Hierarchical k-means (DR-SCL section 3.4), balanced k-means and random digits split a cluster of more than `max_leaf_size`
documents into `branching` clusters, again and again; what is small enough numbers its documents. scikit-learn seeds the splits
(k-means++), faiss computes them. Several processes share the work: they assign a large cluster's documents to the same
centroids block by block, and divide the small clusters among them. Knows nothing of texts or models.
"""

from collections.abc import Callable

import faiss
import numpy as np
from sklearn.cluster import kmeans_plusplus

from docids.processes import ALONE, Processes
from docids.progress import Bar
from docids.schemes import Clusters, DocidsConfig, SchemeInput, find_scheme
from docids.storage import scratch_array
from docids.tree import VECTORS, DocidTree, Floats, Ints, means_below

__all__ = ["Clusters", "DocidsConfig", "assemble", "balanced", "build_tree", "cluster", "kmeans", "random_digits"]

_TRAIN_POINTS_PER_CENTROID = 1000
_SEEDING_POINTS = 2000
_BLOCK = 65_536
"""Documents that are assigned at a time; k-means splits a cluster of more by all processes together."""

_Split = Callable[[Floats, Ints, DocidsConfig], Ints]
"""(points, rows of a cluster's documents, config) -> cluster number of each row, 0..k-1, none of them empty."""


def build_tree(
    embeddings: Floats,
    config: DocidsConfig,
    *,
    cluster_embeddings: Floats | None = None,
    progress: bool = False,
    processes: Processes = ALONE,
) -> DocidTree:
    """The docid tree of documents: `cluster`, then `assemble`.

    Args:
        embeddings: [N, dim] document embeddings, in collection order; they become centroids.
        config: the settings.
        cluster_embeddings: [N, any] what to cluster on instead.
        progress: show a progress bar over documents.
        processes: that share the clustering; each gets the tree, the same for any number of them.

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
    """The clusters of `build_tree`, which says what the arguments and errors are; every process gets them."""
    scheme = find_scheme(config.method)
    return scheme(SchemeInput(embeddings, config, cluster_embeddings, processes=processes, progress=progress))


def kmeans(documents: SchemeInput) -> Clusters:
    """Clusters by hierarchical k-means (DR-SCL section 3.4)."""
    return _split_from_root(documents, _order(documents), _split_kmeans, together=True)


def balanced(documents: SchemeInput) -> Clusters:
    """Clusters by k-means whose clusters differ in size by at most one."""
    return _split_from_root(documents, _order(documents), _split_balanced)


def random_digits(documents: SchemeInput) -> Clusters:
    """Clusters of shuffled documents, as even as can be."""
    doc_rows = _order(documents)
    np.random.default_rng(documents.config.seed).shuffle(doc_rows)
    return _split_from_root(documents, doc_rows, _split_evenly)


def _order(documents: SchemeInput) -> Ints:
    """[N] the rows in collection order."""
    return np.arange(len(documents.embeddings), dtype=np.int32)


def _split_from_root(documents: SchemeInput, doc_rows: Ints, split: _Split, *, together: bool = False) -> Clusters:
    """Clusters of all levels; reorders `doc_rows` in place, level by level.

    Args:
        documents: what to cluster.
        doc_rows: [N] in their first order.
        split: one cluster into at most `branching`.
        together: whether all processes split a large cluster together, by k-means.
    """
    config, processes = documents.config, documents.processes
    points = np.ascontiguousarray(documents.points, dtype=np.float32)
    levels: list[Ints] = []
    clusters = np.array([[0, len(doc_rows)]], dtype=np.int32)
    shown = documents.progress and processes.is_main
    with Bar("docids", unit="doc", total=len(doc_rows), enabled=shown) as bar:
        while len(clusters):
            levels.append(clusters)
            sizes = clusters[:, 1] - clusters[:, 0]
            bar.update(int(sizes[sizes <= config.max_leaf_size].sum()))
            to_split, edges = clusters[sizes > config.max_leaf_size].tolist(), []
            labels = _split_all(points, doc_rows, to_split, documents, split, together=together)
            for (start, end), own_labels in zip(to_split, labels, strict=True):
                doc_rows[start:end] = doc_rows[start:end][np.argsort(own_labels, kind="stable")]
                own = start + np.concatenate([[0], np.cumsum(np.bincount(own_labels))])
                edges.append(np.stack([own[:-1], own[1:]], axis=1))
            clusters = np.concatenate(edges).astype(np.int32) if edges else np.empty((0, 2), np.int32)
    return Clusters(doc_rows, levels)


def _split_all(
    points: Floats,
    doc_rows: Ints,
    clusters: list[tuple[int, int]],
    documents: SchemeInput,
    split: _Split,
    *,
    together: bool,
) -> list[Ints]:
    """The labels of every cluster's documents: large ones by all processes together, the others by one process each."""
    config, processes = documents.config, documents.processes
    large = [together and end - start > _BLOCK for start, end in clusters]
    small = [cluster for cluster, is_large in zip(clusters, large, strict=True) if not is_large]
    own = [split(points, doc_rows[start:end], config) for start, end in processes.share(small)]
    labels = iter(processes.collect(own))
    return [
        _split_together(points, doc_rows[start:end], config, processes) if is_large else next(labels)
        for (start, end), is_large in zip(clusters, large, strict=True)
    ]


def _split_together(points: Floats, rows: Ints, config: DocidsConfig, processes: Processes) -> Ints:
    """`_split_kmeans` of a large cluster, block by block: no process holds all of its points."""
    k = config.branching
    size = min(len(rows), k * _TRAIN_POINTS_PER_CENTROID)
    sample = np.random.default_rng(config.seed).choice(len(rows), size, replace=False)
    found = _train_kmeans(points[np.sort(rows[sample])], k, config)
    own = [
        found.index.search(np.ascontiguousarray(points[rows[start : start + _BLOCK]]), 1)
        for start in processes.share(range(0, len(rows), _BLOCK))
    ]
    blocks = processes.collect([(d[:, 0], labels[:, 0].astype(np.int32)) for d, labels in own])
    distances, labels = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return _fill_empty(labels, distances, k)


def _split_kmeans(points: Floats, rows: Ints, config: DocidsConfig) -> Ints:
    subset, k = np.ascontiguousarray(points[rows]), min(config.branching, len(rows))
    distances, labels = _train_kmeans(subset, k, config).index.search(subset, 1)  # [rows, 1] each
    return _fill_empty(labels[:, 0].astype(np.int32), distances[:, 0], k)


def _split_balanced(points: Floats, rows: Ints, config: DocidsConfig) -> Ints:
    subset = np.ascontiguousarray(points[rows])
    found = _train_kmeans(subset, min(config.branching, len(rows)), config)
    return _assign_balanced(subset, np.asarray(found.centroids))


def _split_evenly(points: Floats, rows: Ints, config: DocidsConfig) -> Ints:
    return (np.arange(len(rows)) * min(config.branching, len(rows)) // len(rows)).astype(np.int32)


def _train_kmeans(points: Floats, k: int, config: DocidsConfig) -> faiss.Kmeans:
    """k-means of all the points, or of a thousand a centroid where there are more."""
    found = faiss.Kmeans(
        points.shape[1],
        k,
        niter=config.iterations,
        seed=config.seed + 1,  # faiss takes 0 for "no seed"
        min_points_per_centroid=1,
        max_points_per_centroid=_TRAIN_POINTS_PER_CENTROID,
    )
    found.train(points, init_centroids=_first_centroids(points, k, config.seed))
    return found


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
    """The docid tree of clusters; its vectors are written block by block, to scratch files.

    Args:
        clusters: of any scheme.
        embeddings: [N, dim] the document embeddings that the scheme was given, perhaps mapped into memory.
    """
    levels, doc_rows = clusters.levels, clusters.doc_rows
    ranges = np.concatenate(levels)
    doc_start, doc_end = ranges[:, 0].copy(), ranges[:, 1].copy()
    num_inner = len(ranges)
    first_child, num_children = np.empty(num_inner, np.int32), np.empty(num_inner, np.int32)
    start = 0
    for level, below in zip(levels, [*levels[1:], np.empty((0, 2), np.int32)], strict=True):
        nodes, next_level = slice(start, start + len(level)), start + len(level)
        first, last = (np.searchsorted(below[:, 0], edge) for edge in level.T)
        split = last > first
        first_child[nodes] = np.where(split, next_level + first, num_inner + level[:, 0])
        num_children[nodes] = np.where(split, last - first, level[:, 1] - level[:, 0])
        start = next_level
    ordered = scratch_array(embeddings.shape, np.float32)
    for start in range(0, len(doc_rows), VECTORS):
        ordered[start : start + VECTORS] = embeddings[doc_rows[start : start + VECTORS]]
    centroids = means_below(ordered, doc_start, doc_end)
    return DocidTree(first_child, num_children, doc_start, doc_end, doc_rows, centroids, ordered)
