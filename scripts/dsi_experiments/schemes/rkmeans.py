"""Docids by residual k-means (RK-means): each level clusters the residuals of the levels above."""

import numpy as np

from dsi.docids.schemes import Docids, SchemeInput
from dsi.docids.schemes.lloyd import nearest, train_kmeans
from dsi.docids.types import Floats, Ints
from dsi_experiments.schemes.codes import Coder, code


def make(documents: SchemeInput) -> Docids:
    """Return docids by residual k-means, with `branching` centroids a level."""
    return code(documents, _train)


def _train(points: Floats, seed: int, codewords: int, levels: int) -> Coder:
    residuals, centroids = points, []
    for _ in range(levels):
        centroids.append(train_kmeans(residuals, codewords, seed))
        residuals = residuals - centroids[-1][nearest(residuals, centroids[-1])]

    def encode(block: Floats) -> Ints:
        numbers = []
        for level in centroids:
            numbers.append(nearest(block, level))
            block = block - level[numbers[-1]]
        return np.stack(numbers, axis=1)

    return encode
