"""How far the best document below a node is likely to lie above the node's mean vector. Knows no queries."""

import numpy as np
from numpy.typing import NDArray

from dsi.docids.tree import DocidTree

SIZE_WEIGHT = 0.09
"""Weight of the bonus without a generator; chosen on dev queries."""


def bonuses(tree: DocidTree) -> NDArray[np.float32]:
    """[inner nodes] spread_n sqrt(2 ln |n|), over the documents that were not removed.

    |n| documents lie below a node, and spread_n is their root mean squared distance from its vector. The largest of |n| normal
    values lies about sqrt(2 ln |n|) deviations above their mean.
    """
    squares, count = tree.embeddings.squares(), tree.doc_end - tree.doc_start
    if tree.num_removed:
        there = tree.doc_rows >= 0
        squares, before = np.where(there, squares, 0), np.concatenate([[0], np.cumsum(there)])
        count = before[tree.doc_end] - before[tree.doc_start]
    sums = np.zeros(tree.num_places + 1)
    np.cumsum(squares, dtype=np.float64, out=sums[1:])
    count = np.maximum(count, 1)
    variance = (sums[tree.doc_end] - sums[tree.doc_start]) / count - tree.centroids.squares()
    return np.sqrt(np.maximum(variance, 0) * 2 * np.log(count)).astype(np.float32)
