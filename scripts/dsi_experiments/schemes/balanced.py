"""Docids by hierarchical k-means whose clusters differ in size by at most one."""

import faiss
import numpy as np

from dsi.docids.files.processes import MatrixRows
from dsi.docids.schemes import Docids, DocidsConfig, SchemeInput
from dsi.docids.schemes.lloyd import read_points, train_clusters
from dsi.docids.schemes.splits import split_from_root
from dsi.docids.types import Floats, Ints, Numbers


def make(documents: SchemeInput) -> Docids:
    """Return docids by balanced k-means."""
    return Docids(split_from_root(documents, _split))


def _split(documents: MatrixRows, sizes: Numbers, config: DocidsConfig, seed: int) -> Ints:
    labels = []
    for batch in train_clusters(read_points(documents), sizes, config, seed):
        for points, there, centroids, k in zip(*batch, strict=True):
            labels.append(_assign(points[there], centroids[:k]))
    return np.concatenate(labels)


def _assign(points: Floats, centroids: Floats) -> Ints:
    """Assign points to the nearest centroid with room, closest pairs first; clusters hold floor(n/k) or ceil(n/k) points."""
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
