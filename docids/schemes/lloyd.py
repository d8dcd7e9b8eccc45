"""k-means for many clusters at a time: k-means++ seeds (Arthur & Vassilvitskii 2007) and Lloyd's algorithm.

Clusters of about the same size are padded to one array, for batches of matrix products; a large one has a sample's centroids.
"""

from collections.abc import Iterator

import numpy as np

from dsi.docids.files.processes import MatrixRows
from dsi.docids.schemes import DocidsConfig
from dsi.docids.types import Bools, Floats, Ints, Numbers

POINTS_PER_CENTROID = 1000
"""k-means is trained on at most this many points a centroid."""
ITERATIONS = 20
_SEEDING_POINTS = 2048
_BATCH = 2**18
"""Numbers of points in work at a time: what a cache holds."""


def train_clusters(
    points: Floats, sizes: Numbers, config: DocidsConfig, seed: int
) -> Iterator[tuple[Floats, Bools, Floats, Numbers]]:
    """Fit k-means to each of several clusters, or to a sample: points [n, dim] one cluster after another, sizes ascending.

    Yields, for some clusters of about the same size: points [clusters, n, dim], 0 past the last; [clusters, n] True at points;
    centroids [clusters, most k, dim]; k [clusters], how many centroids each cluster has.
    """
    rng, starts = np.random.default_rng(seed), sizes.cumsum() - sizes
    distinct, which = np.unique(sizes, return_inverse=True)
    all_k, first = np.array([config.clusters(int(size)) for size in distinct])[which], 0
    while first < len(sizes):
        fits = np.arange(1, len(sizes) - first + 1) * sizes[first:] * points.shape[1] <= _BATCH  # if padded to this one
        batch = slice(first, first := first + max(1, int(fits.sum())))
        numbers = np.arange(sizes[batch.stop - 1])
        is_point = numbers < sizes[batch, None]
        padded = points[starts[batch, None] + np.where(is_point, numbers, 0)]
        padded[~is_point] = 0
        yield padded, is_point, _train(padded, sizes[batch], all_k[batch], rng), all_k[batch]


def read_points(rows: MatrixRows) -> Floats:
    """Return the points [n, dim] of documents, in memory."""
    return np.asarray(rows.read(), dtype=np.float32)


def train_kmeans(points: Floats, k: int, seed: int) -> Floats:
    """Return the centroids [k, dim] of all points [n, dim], or of a sample of `POINTS_PER_CENTROID` for each."""
    return _train(points[None], np.array([len(points)]), np.array([k]), np.random.default_rng(seed))[0]


def nearest(points: Floats, centroids: Floats) -> Ints:
    """Return the number [n] of the nearest of the centroids [k, dim] of each point [n, dim]."""
    return nearest_of(points[None], centroids[None], np.array([len(centroids)]))[0]


def _train(points: Floats, sizes: Numbers, k: Numbers, rng: np.random.Generator) -> Floats:
    """Return the centroids [clusters, most k, dim] of padded points [clusters, n, dim]."""
    points, sizes = _some(points, sizes, POINTS_PER_CENTROID * int(k.max()), rng)
    is_point = np.arange(points.shape[1]) < sizes[:, None]
    centroids = _first_centroids(*_some(points, sizes, _SEEDING_POINTS, rng), int(k.max()), rng)
    for _ in range(ITERATIONS):
        sums, counts = np.zeros_like(centroids), np.zeros((*centroids.shape[:2], 1), dtype=np.float32)
        for block in _blocks(points, centroids):
            members = members_of(nearest_of(points[:, block], centroids, k), is_point[:, block], centroids.shape[1])
            sums += members @ points[:, block]
            counts += members.sum(axis=2, keepdims=True)
        before, centroids = centroids, np.where(counts > 0, sums / np.maximum(counts, 1), centroids)
        if np.array_equal(before, centroids):
            break
    return centroids


def _first_centroids(points: Floats, sizes: Numbers, k: int, rng: np.random.Generator) -> Floats:
    """Choose seeds [clusters, k, dim] by k-means++: each the best of a few drawn points, as scikit-learn does."""
    clusters, tries = np.arange(len(points)), 2 + int(np.log(k))
    centroids = np.empty((len(points), k, points.shape[2]), dtype=np.float32)
    squares = np.einsum("cnd,cnd->cn", points, points)
    distances = np.where(np.arange(points.shape[1]) < sizes[:, None], np.float32(np.inf), np.float32(0))
    drawn = (rng.random((len(points), 1)) * sizes[:, None]).astype(np.int64)  # [clusters, tries], one at first
    for number in range(k):
        seeds = points[clusters[:, None], drawn]  # [clusters, tries, dim]
        after = seeds @ points.transpose(0, 2, 1)  # [clusters, tries, n]
        after *= -2
        after += squares[:, None]
        after += squares[clusters[:, None], drawn][:, :, None]
        np.minimum(np.maximum(after, 0, out=after), distances[:, None], out=after)
        best = after.sum(axis=2).argmin(axis=1)
        centroids[:, number], distances = seeds[clusters, best], after[clusters, best]
        before = distances.cumsum(axis=1)  # [clusters, n]
        aims = rng.random((len(points), tries, 1)) * before[:, None, -1:]
        drawn = np.minimum((before[:, None] <= aims).sum(axis=2), sizes[:, None] - 1)
    return centroids


def nearest_of(points: Floats, centroids: Floats, k: Numbers) -> Ints:
    """Return the number [clusters, n] of the nearest of the first k [clusters] centroids of its cluster for each point."""
    halves = np.einsum("ckd,ckd->ck", centroids, centroids) / 2
    halves[np.arange(centroids.shape[1]) >= k[:, None]] = np.inf
    labels = np.empty(points.shape[:2], dtype=np.int32)
    for block in _blocks(points, centroids):
        products = points[:, block] @ centroids.transpose(0, 2, 1)  # [clusters, block, k]
        products -= halves[:, None]
        labels[:, block] = products.argmax(axis=2)
    return labels


def members_of(labels: Ints, is_point: Bools, k: int) -> Floats:
    """Return [clusters, k, n] 1 where a point is among those of a centroid, else 0."""
    return ((labels[:, None] == np.arange(k, dtype=np.int32)[:, None]) & is_point[:, None]).astype(np.float32)


def _blocks(points: Floats, centroids: Floats) -> list[slice]:
    """Return the slices of points whose products with centroids a cache holds."""
    step = max(1, _BATCH // (len(points) * max(centroids.shape[1:])))
    return [slice(start, start + step) for start in range(0, points.shape[1], step)]


def _some(points: Floats, sizes: Numbers, most: int, rng: np.random.Generator) -> tuple[Floats, Numbers]:
    """Return all points [clusters, n, dim] and their number, or a sample of at most this many of each cluster."""
    if points.shape[1] <= most:
        return points, sizes
    return points[np.arange(len(points))[:, None], sample_rows(sizes, most, rng)], np.full(len(sizes), most)


def sample_rows(sizes: Numbers, count: int, rng: np.random.Generator) -> Numbers:
    """Return [clusters, count] numbers below each size, spread evenly and ascending."""
    return ((np.arange(count) + rng.random((len(sizes), count))) / count * sizes[:, None]).astype(np.int64)
