"""Docids by hierarchical k-means (DR-SCL section 3.4): scikit-learn seeds the splits (k-means++), faiss computes them.

Several processes assign a large cluster's documents to the same centroids block by block.
"""

import faiss
import numpy as np
from sklearn.cluster import kmeans_plusplus

from docids.schemes import Docids, SchemeInput, splits
from docids.tree import Floats, Ints

TRAIN_POINTS_PER_CENTROID = 1000
"""k-means is trained on at most this many points a centroid."""
ITERATIONS = 20
_SEEDING_POINTS = 2000


def make(documents: SchemeInput) -> Docids:
    """Docids by hierarchical k-means."""
    return splits.split_from_root(documents, _split, together=_split_together)


def train_kmeans(points: Floats, k: int, seed: int) -> faiss.Kmeans:
    """k-means of all the points, or of a thousand a centroid where there are more."""
    found = faiss.Kmeans(
        points.shape[1],
        k,
        niter=ITERATIONS,
        seed=seed + 1,  # faiss takes 0 for "no seed"
        min_points_per_centroid=1,
        max_points_per_centroid=TRAIN_POINTS_PER_CENTROID,
    )
    found.train(points, init_centroids=_first_centroids(points, k, seed))
    return found


def _split_together(points: Floats, rows: Ints, documents: SchemeInput) -> Ints:
    """`_split` of a large cluster, block by block: no process holds all of its points."""
    k, block, processes = documents.config.clusters(len(rows)), splits.BLOCK, documents.processes
    size = min(len(rows), k * TRAIN_POINTS_PER_CENTROID)
    sample = np.random.default_rng(documents.seed).choice(len(rows), size, replace=False)
    found = train_kmeans(points[np.sort(rows[sample])], k, documents.seed)
    own = [
        found.index.search(np.ascontiguousarray(points[rows[start : start + block]]), 1)
        for start in processes.share(range(0, len(rows), block))
    ]
    blocks = processes.collect([(d[:, 0], labels[:, 0].astype(np.int32)) for d, labels in own])
    distances, labels = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return _fill_empty(labels, distances, k)


def _split(points: Floats, rows: Ints, documents: SchemeInput) -> Ints:
    subset, k = np.ascontiguousarray(points[rows]), documents.config.clusters(len(rows))
    distances, labels = train_kmeans(subset, k, documents.seed).index.search(subset, 1)  # [rows, 1] each
    return _fill_empty(labels[:, 0].astype(np.int32), distances[:, 0], k)


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
