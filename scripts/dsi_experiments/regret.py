"""Regret of answers whose probabilities of relevance are known, as in synthetic data. Knows nothing of models."""

import numpy as np
from numpy.typing import NDArray


def regret(probabilities: NDArray[np.floating], chosen: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return [n] the mean probability of the m best documents minus that of the m chosen (Zhuo et al. 2020, eq. 10).

    `probabilities`: [n, documents]; `chosen`: [n, m] columns, -1 for a missing result, which has probability 0.

    >>> regret(np.array([[0.5, 0.25, 1.0]]), np.array([[0, 1]])).tolist()
    [0.375]
    """
    m = chosen.shape[1]
    probabilities = np.pad(probabilities, ((0, 0), (0, max(0, m - probabilities.shape[1]))))
    best = -np.partition(-probabilities, m - 1, axis=1)[:, :m]
    achieved = np.take_along_axis(probabilities, np.maximum(chosen, 0), axis=1) * (chosen >= 0)
    return np.asarray(best.mean(axis=1, dtype=np.float64) - achieved.mean(axis=1, dtype=np.float64))
