"""Docids by residual k-means (RK-means): each level clusters the residuals of the levels above."""

import numpy as np

from dsi.docids.schemes import Docids, SchemeInput
from dsi.docids.schemes.kmeans import train_kmeans
from dsi.docids.types import Floats, Ints
from dsi_experiments.schemes.codes import Coder, code


def make(documents: SchemeInput) -> Docids:
    """Return docids by residual k-means, with `branching` centroids a level."""
    return code(documents, _train)


def _train(points: Floats, seed: int, codewords: int, levels: int) -> Coder:
    residuals, indexes, centroids = points, [], []
    for _ in range(levels):
        kmeans = train_kmeans(residuals, codewords, seed)
        indexes.append(kmeans.index)
        centroids.append(np.asarray(kmeans.centroids))
        residuals = residuals - centroids[-1][kmeans.index.search(residuals, 1)[1][:, 0]]

    def encode(block: Floats) -> Ints:
        numbers = []
        for index, level_centroids in zip(indexes, centroids, strict=True):
            numbers.append(index.search(block, 1)[1][:, 0])
            block = block - level_centroids[numbers[-1]]
        return np.stack(numbers, axis=1).astype(np.int32)

    return encode
