"""The heads of long posting lists: their documents with the highest weights, of which a search reads as many as it needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from docids.words.postings import Floats, Ints

_DEPTHS = (0, *(1 << n for n in range(8, 15)))
"""How many postings may be read of a list that is left."""
_DRIFT = 0.01
"""The best of a list are found anew when the documents' mean length has changed by this share."""


@dataclass(frozen=True)
class Damping:
    """What BM25 adds to the count of a term: k1 * (1 - b + b * length / mean length)."""

    k1: float
    b: float
    mean: float

    def of(self, lengths: Ints) -> Floats:
        """[documents] from their lengths."""
        return (self.k1 * (1 - self.b + self.b * lengths / self.mean)).astype(np.float32)

    def is_near(self, other: "Damping | None") -> bool:
        """Whether an order by weight with one is good enough for the other."""
        if other is None or (self.k1, self.b) != (other.k1, other.b):
            return False
        return abs(self.mean - other.mean) <= _DRIFT * other.mean

    def bound(self, weight: float, before: "Damping") -> float:
        """A bound of weights that were at most `weight` with the damping `before`, where only the mean was another.

        A document's damping is at least min(1, ratio of the means) times what it was.
        """
        ratio = min(1.0, before.mean / self.mean)
        return weight / (weight + (1 - weight) * ratio)


class Head(NamedTuple):
    """The documents of a long list with the highest weights.

    Attributes:
        documents: ascending.
        values: of the term in them.
        ranks: their order by weight.
        bounds: for each of `_DEPTHS`, the highest weight that is not read then; 0 if there is none.
        damping: of these weights.
    """

    documents: Ints
    values: Floats
    ranks: Ints
    bounds: list[float]
    damping: Damping | None

    @classmethod
    def of(cls, documents: Ints, values: Floats, weights: Floats, damping: Damping | None) -> "Head":
        """From a whole list: documents, ascending, the values of the term in them, and their weights with a damping."""
        losses = -weights
        if _DEPTHS[-1] < len(losses):
            places = np.argpartition(losses, _DEPTHS[-1])[: _DEPTHS[-1] + 1]  # and the first that is not read
            places.sort()
            documents, values, losses = documents[places], values[places], losses[places]
        order = np.argsort(losses)
        ranks = np.empty(len(order), dtype=np.int32)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        bounds = [float(-losses[order[depth]]) if depth < len(order) else 0.0 for depth in _DEPTHS]
        return cls(documents, values, ranks, bounds, damping)

    def best(self, level: int) -> tuple[Ints, Floats]:
        """The best documents, ascending, as many as a place in the depths says, and the values of the term in them."""
        read = self.ranks < _DEPTHS[level]
        return self.documents[read], self.values[read]

    def bounds_with(self, damping: Damping | None) -> Floats:
        """[depths] the bounds with the damping of now."""
        if damping is None or self.damping is None:
            return np.array(self.bounds, dtype=np.float32)
        return np.array([damping.bound(own, self.damping) for own in self.bounds], dtype=np.float32)


def levels(bounds: Sequence[Floats], budget: int) -> list[int]:
    """How deep to read each list, as a place in `_DEPTHS`: always further where what is not read weighs most."""
    levels, queue = [0] * len(bounds), [(-float(own[0]), n) for n, own in enumerate(bounds)]
    heapify(queue)
    while queue:
        _, n = heappop(queue)
        level = levels[n] + 1
        if level < len(_DEPTHS) and (more := _DEPTHS[level] - _DEPTHS[level - 1]) <= budget:
            budget -= more
            levels[n] = level
            heappush(queue, (-float(bounds[n][level]), n))
    return levels
