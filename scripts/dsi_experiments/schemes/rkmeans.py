"""Docids by residual k-means (RK-means): each level clusters what the levels above leave over of the vectors."""

import numpy as np

from docids.schemes import Docids, SchemeInput
from docids.schemes.kmeans import train_kmeans
from docids.tree import Floats, Ints
from dsi_experiments.schemes.codes import Coder, code


def make(documents: SchemeInput) -> Docids:
    """Docids by residual k-means, with `branching` centroids a level."""
    return code(documents, _train)


def _train(points: Floats, seed: int, codewords: int, levels: int) -> Coder:
    left, indexes, centroids = points, [], []
    for _ in range(levels):
        found = train_kmeans(left, codewords, seed)
        indexes.append(found.index)
        centroids.append(np.asarray(found.centroids))
        left = left - centroids[-1][found.index.search(left, 1)[1][:, 0]]

    def encode(block: Floats) -> Ints:
        numbers = []
        for index, own in zip(indexes, centroids, strict=True):
            numbers.append(index.search(block, 1)[1][:, 0])
            block = block - own[numbers[-1]]
        return np.stack(numbers, axis=1).astype(np.int32)

    return encode
