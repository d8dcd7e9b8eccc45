"""Docids by hierarchical k-means (DR-SCL section 3.4). Several processes assign the documents of a large cluster, by blocks.

Very many documents are split once and then clustered part by part: a process needs memory for one part, and a run that is
killed loses the parts in work.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dsi.docids.files.processes import MatrixRows
from dsi.docids.files.progress import Bar
from dsi.docids.files.storage import scratch_array, write_array
from dsi.docids.schemes import Docids, DocidsConfig, SchemeInput, splits
from dsi.docids.schemes.lloyd import (
    POINTS_PER_CENTROID,
    members_of,
    nearest,
    nearest_of,
    read_points,
    sample_rows,
    train_clusters,
    train_kmeans,
)
from dsi.docids.types import Floats, Ints, Numbers

MOST_TOGETHER = 2**24
"""More documents are clustered in parts."""


def make(documents: SchemeInput) -> Docids:
    """Return docids by hierarchical k-means."""
    return Docids(_paths(documents))


def _paths(documents: SchemeInput) -> Numbers:
    if len(documents.points) > MOST_TOGETHER:
        return _paths_by_parts(documents)
    return splits.split_from_root(documents, _split, together=_split_together)


def _paths_by_parts(documents: SchemeInput) -> Numbers:
    """Return paths whose first number is that of a part; finished parts stay in the documents' `folder`."""
    points, config, folder, processes = documents.points, documents.config, documents.folder, documents.processes
    parts = _parts(documents)
    sizes = np.bincount(parts)
    with Bar("docids", unit="doc", total=len(points), enabled=documents.progress and processes.is_main) as bar:

        def part(number: int) -> tuple[MatrixRows, DocidsConfig, int, Path | None]:
            bar.update(int(sizes[number]))
            rows = np.flatnonzero(parts == number).astype(np.int32)
            file = None if folder is None else folder / f"part-{number}.npy"
            return MatrixRows(points, rows), config, documents.seed, file

        below = processes.map(_part_paths, range(len(sizes)), part)
    paths = scratch_array((len(points), 1 + max(own.shape[1] for own in below)), np.result_type(parts, *below).type)
    paths[:, 0], paths[:, 1:] = parts, -1
    for number, own in enumerate(below):
        paths[np.flatnonzero(parts == number), 1 : 1 + own.shape[1]] = own
    return paths


def _parts(documents: SchemeInput) -> Numbers:
    """Return the number of the part [N] of each document."""
    file = None if documents.folder is None else documents.folder / "parts.npy"
    if file and documents.processes.first(file.exists()):
        return np.load(file)
    labels = _split_together(documents.points, np.arange(len(documents.points), dtype=np.int32), documents)
    parts = labels.astype(np.min_scalar_type(-int(labels.max()) - 1))
    if file and documents.processes.is_main:
        write_array(file, parts)
    return parts


def _part_paths(documents: MatrixRows, config: DocidsConfig, seed: int, file: Path | None) -> Numbers:
    """Return the paths [n, longest] of the documents of a part; from a file, if they were written to it."""
    if file and file.exists():
        return np.load(file)
    count = len(documents)
    config = replace(config, branching=min(config.branching, count) if count > 1 else 0)  # no part is too small
    paths = _paths(SchemeInput(documents.read(), config, seed=seed))
    if file:
        write_array(file, paths)
    return paths


def _split(documents: MatrixRows, sizes: Numbers, config: DocidsConfig, seed: int) -> Ints:
    labels = []
    for points, there, centroids, k in train_clusters(read_points(documents), sizes, config, seed):
        padded = nearest_of(points, centroids, k)  # [clusters, n]
        counts = members_of(padded, there, centroids.shape[1]).sum(axis=2)
        for cluster in np.flatnonzero(((counts == 0) & (np.arange(counts.shape[1]) < k[:, None])).any(axis=1)):
            own = there[cluster]
            distances = _distances(points[cluster, own], centroids[cluster], padded[cluster, own])
            padded[cluster, own] = _fill_empty(padded[cluster, own], distances, k[cluster])
        labels.append(padded[there])
    return np.concatenate(labels)


def _split_together(points: Floats, rows: Ints, documents: SchemeInput) -> Ints:
    """`_split` of a large cluster, block by block: no process holds all of its points."""
    k, processes = documents.config.clusters(len(rows)), documents.processes
    (sample,) = sample_rows(np.array([len(rows)]), k * POINTS_PER_CENTROID, np.random.default_rng(documents.seed))
    centroids = train_kmeans(read_points(MatrixRows(points, rows[sample])), k, documents.seed)
    starts = range(0, len(rows), splits.BLOCK)

    def block(start: int) -> tuple[MatrixRows, Floats]:
        return MatrixRows(points, rows[start : start + splits.BLOCK]), centroids

    distances, labels = (np.concatenate(arrays) for arrays in zip(*processes.map(_assign, starts, block), strict=True))
    return _fill_empty(labels, distances, k)


def _assign(block: MatrixRows, centroids: Floats) -> tuple[Floats, Ints]:
    """Return the distance [n] to the nearest centroid, and its number [n]."""
    points = read_points(block)
    labels = nearest(points, centroids)
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
