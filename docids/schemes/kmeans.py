"""Docids by hierarchical k-means (DR-SCL section 3.4): k-means++ seeds by scikit-learn, k-means by faiss.

Several processes assign the documents of a large cluster to the same centroids, block by block.
"""

import faiss
import numpy as np
from sklearn.cluster import kmeans_plusplus

from dsi.docids.files.processes import Rows
from dsi.docids.schemes import Docids, DocidsConfig, SchemeInput, splits
from dsi.docids.types import Floats, Ints

TRAIN_POINTS_PER_CENTROID = 1000
"""k-means is trained on at most this many points a centroid."""
ITERATIONS = 20
_SEEDING_POINTS = 2000


def make(documents: SchemeInput) -> Docids:
    """Return docids by hierarchical k-means."""
    return splits.split_from_root(documents, _split, together=_split_together)


def train_kmeans(points: Floats, k: int, seed: int) -> faiss.Kmeans:
    """Fit k-means to all points, or to a sample of a thousand per centroid."""
    kmeans = faiss.Kmeans(
        points.shape[1],
        k,
        niter=ITERATIONS,
        seed=seed + 1,  # faiss takes 0 for "no seed"
        min_points_per_centroid=1,
        max_points_per_centroid=TRAIN_POINTS_PER_CENTROID,
    )
    kmeans.train(points, init_centroids=_first_centroids(points, k, seed))
    return kmeans


def _split_together(points: Floats, rows: Ints, documents: SchemeInput) -> Ints:
    """`_split` of a large cluster, block by block: no process holds all of its points."""
    k, block, processes = documents.config.clusters(len(rows)), splits.BLOCK, documents.processes
    size = min(len(rows), k * TRAIN_POINTS_PER_CENTROID)
    sample = np.random.default_rng(documents.seed).choice(len(rows), size, replace=False)
    centroids = np.asarray(train_kmeans(points[np.sort(rows[sample])], k, documents.seed).centroids)
    blocks = processes.map(
        _assign, range(0, len(rows), block), lambda start: (Rows(points, rows[start : start + block]), centroids)
    )
    distances, labels = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    return _fill_empty(labels, distances, k)


def _assign(block: Rows, centroids: Floats) -> tuple[Floats, Ints]:
    """Return the distance [n] to the nearest centroid, and its number [n]."""
    index = faiss.IndexFlatL2(centroids.shape[1])
    index.add(centroids)
    distances, labels = index.search(block.read(), 1)  # [n, 1] each
    return distances[:, 0], labels[:, 0].astype(np.int32)


def _split(cluster: Rows, config: DocidsConfig, seed: int) -> Ints:
    points = cluster.read()
    k = config.clusters(len(points))
    distances, labels = train_kmeans(points, k, seed).index.search(points, 1)  # [n, 1] each
    return _fill_empty(labels[:, 0].astype(np.int32), distances[:, 0], k)


def _first_centroids(points: Floats, k: int, seed: int) -> Floats:
    """Choose seeds by k-means++ (Arthur & Vassilvitskii 2007) on a sample; random seeds often miss a cluster."""
    rng = np.random.RandomState(seed)
    if len(points) > _SEEDING_POINTS:
        points = points[rng.choice(len(points), _SEEDING_POINTS, replace=False)]
    centroids, _ = kmeans_plusplus(points, k, random_state=rng)
    return np.ascontiguousarray(centroids, dtype=np.float32)


def _fill_empty(labels: Ints, distances: Floats, k: int) -> Ints:
    """Move the farther half of the largest cluster to each empty one; of equal distances (duplicates) the later half."""
    counts = np.bincount(labels, minlength=k)
    for empty in np.flatnonzero(counts == 0):
        largest = int(np.argmax(counts))
        members = np.flatnonzero(labels == largest)
        order = members[np.argsort(distances[members], kind="stable")]
        labels[order[len(order) - len(order) // 2 :]] = empty
        counts = np.bincount(labels, minlength=k)
    return labels
