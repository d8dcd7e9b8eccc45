"""Docids by hierarchical k-means (DR-SCL section 3.4). Several processes assign the documents of a large cluster, by blocks."""

import numpy as np

from dsi.docids.files.processes import MatrixRows
from dsi.docids.schemes import Docids, DocidsConfig, SchemeInput, lloyd, splits
from dsi.docids.types import Floats, Ints, Numbers


def make(documents: SchemeInput) -> Docids:
    """Return docids by hierarchical k-means."""
    return Docids(splits.split_from_root(documents, _split, together=_split_together))


def _split(documents: MatrixRows, sizes: Numbers, config: DocidsConfig, seed: int) -> Ints:
    labels = []
    for points, is_point, centroids, k in lloyd.train_clusters(lloyd.read_points(documents), sizes, config, seed):
        padded = lloyd.nearest_of(points, centroids, k)  # [clusters, n]
        counts = lloyd.members_of(padded, is_point, centroids.shape[1]).sum(axis=2)
        for cluster in np.flatnonzero(((counts == 0) & (np.arange(counts.shape[1]) < k[:, None])).any(axis=1)):
            members = is_point[cluster]
            distances = _distances(points[cluster, members], centroids[cluster], padded[cluster, members])
            padded[cluster, members] = _fill_empty(padded[cluster, members], distances, k[cluster])
        labels.append(padded[is_point])
    return np.concatenate(labels)


def _split_together(points: Floats, rows: Ints, documents: SchemeInput) -> Ints:
    """`_split` of a large cluster, block by block: no process holds all of its points."""
    k, processes = documents.config.clusters(len(rows)), documents.processes
    (sample,) = lloyd.sample_rows(
        np.array([len(rows)]), k * lloyd.POINTS_PER_CENTROID, np.random.default_rng(documents.seed)
    )
    centroids = lloyd.train_kmeans(lloyd.read_points(MatrixRows(points, rows[sample])), k, documents.seed)
    starts = range(0, len(rows), splits.BLOCK)

    def block(start: int) -> tuple[MatrixRows, Floats]:
        return MatrixRows(points, rows[start : start + splits.BLOCK]), centroids

    distances, labels = (np.concatenate(arrays) for arrays in zip(*processes.map(_assign, starts, block), strict=True))
    return _fill_empty(labels, distances, k)


def _assign(block: MatrixRows, centroids: Floats) -> tuple[Floats, Ints]:
    """Return the distance [n] to the nearest centroid, and its number [n]."""
    points = lloyd.read_points(block)
    labels = lloyd.nearest(points, centroids)
    return _distances(points, centroids, labels), labels


def _distances(points: Floats, centroids: Floats, labels: Ints) -> Floats:
    """Return the squared distance [n] of each point to its centroid."""
    away = points - centroids[labels]
    return np.einsum("nd,nd->n", away, away)


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
