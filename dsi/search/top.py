"""The highest of many scores. Knows nothing of what they are scores of."""

import numpy as np

from dsi.docids.types import Bools, Floats, Ints

_LONG, _MANY, _BLOCK = 2**14, 128, 256
"""Of at least `_LONG` scores, `_MANY` for each that is looked for, few are sorted: those that reach a floor, which maxima of
blocks of at most `_BLOCK` give."""


def highest(scores: Floats, count: int) -> Ints:
    """[count] the indices of the highest of scores [n], ascending; of equal ones the first.

    >>> highest(np.array([1.0, 3.0, 2.0, 2.0]), 2).tolist()
    [1, 2]
    """
    return highest_and_rest(scores, count)[0]


def highest_and_rest(scores: Floats, count: int) -> tuple[Ints, float]:
    """Return the indices of the `count` highest of scores [n], ascending, and the highest score of the others, -inf if none."""
    n = len(scores)
    if count >= n:
        return np.arange(n), -np.inf
    is_long = n >= max(_LONG, _MANY * (count + 1))
    ordered = scores[scores >= _floor(scores, count + 1)] if is_long else scores.copy()
    rest = len(ordered) - count
    ordered.partition((rest - 1, rest))
    limit = ordered[rest]  # the lowest score that is kept
    (indices,) = (scores >= limit).nonzero()
    if len(indices) > count:
        ties = indices[scores[indices] == limit]
        indices = np.setdiff1d(indices, ties[len(ties) - (len(indices) - count) :], assume_unique=True)
    return indices, float(ordered[rest - 1])


def highest_in_rows(scores: Floats, count: int) -> tuple[Bools, Floats]:
    """Return where the `count` highest scores of each row are [rows, n], and the highest of each row's others [rows].

    Of equal ones the first; -inf, which stands at padding, is never among them, and is the highest where there are no others.
    """
    rest, finite = scores.shape[1] - count, scores > -np.inf
    if rest <= 0:
        return finite, np.full(len(scores), -np.inf, dtype=np.float32)
    ordered = np.partition(scores, (rest - 1, rest), axis=1)
    limits = ordered[:, rest]  # the lowest scores that are kept
    chosen = (scores >= limits[:, None]) & finite
    surplus = np.count_nonzero(chosen, axis=1) - count
    for row in np.flatnonzero(surplus > 0):
        ties = np.flatnonzero(scores[row] == limits[row])
        chosen[row, ties[len(ties) - surplus[row] :]] = False
    return chosen, ordered[:, rest - 1]


def _floor(scores: Floats, count: int) -> np.float32:
    """A score that at least `count` of very many scores [n] reach, and few more: the `count`-th highest of blocks' maxima."""
    size = min(_BLOCK, len(scores) // (4 * count))
    whole = len(scores) // size * size
    highest = scores[:whole].reshape(-1, size).max(axis=1)
    return np.float32(np.partition(highest, len(highest) - count)[len(highest) - count])


def best(scores: Floats, count: int) -> Ints:
    """[count] the indices of the highest of scores [n], best first; ties in ascending order.

    >>> best(np.array([1.0, 3.0, 3.0, 2.0]), 3).tolist()
    [1, 2, 3]
    """
    indices = highest(scores, count)
    return indices[np.argsort(-scores[indices], kind="stable")]
