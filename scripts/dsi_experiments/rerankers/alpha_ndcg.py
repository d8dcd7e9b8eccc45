"""alpha-nDCG of lists of candidates that should cover subtopics. Knows nothing of how lists are made."""

import numpy as np

from dsi.docids.types import Bools, Ints, Reals


class AlphaNdcg:
    """alpha-nDCG of lists of candidates (Clarke et al. 2008), normalised by the list that is greedily best.

    `labels`: [n, k, subtopics] True where a candidate is about a subtopic. A subtopic that was seen m times is worth
    (1 - alpha)^m.
    """

    def __init__(self, labels: Bools, positions: int, alpha: float = 0.5) -> None:
        self.labels, self.positions, self.alpha = labels, positions, alpha
        self.ideal = np.ones(len(labels))
        rows = np.arange(len(labels))
        lists = np.full((len(labels), positions), -1)
        for position in range(min(positions, labels.shape[1])):
            lists[:, position] = self.gains(rows, lists).argmax(axis=1)
        self.ideal = np.maximum(self.measure(rows, lists), 1e-12)

    def seen(self, rows: Ints, lists: Ints) -> Ints:
        """[m, subtopics] how often each occurs in lists [m, positions] of queries [m]; lists have -1 past their end."""
        return (self.labels[rows[:, None], lists] & (lists >= 0)[:, :, None]).sum(axis=1)

    def gains(self, rows: Ints, lists: Ints) -> Reals:
        """[m, k] gain of appending each candidate to these lists, without the discount by position; -inf at those in them."""
        worth = (1 - self.alpha) ** self.seen(rows, lists)
        gains = (self.labels[rows] * worth[:, None, :]).sum(axis=2)
        at, positions = np.nonzero(lists >= 0)
        gains[at, lists[at, positions]] = -np.inf
        return gains

    def measure(self, rows: Ints, lists: Ints) -> Reals:
        """[m] alpha-nDCG of lists [m, positions] of queries [m]; lists have -1 past their end."""
        total, seen = np.zeros(len(rows)), np.zeros((len(rows), self.labels.shape[2]))
        for position in range(self.positions):
            columns = lists[:, position]
            about = self.labels[rows, columns] & (columns >= 0)[:, None]
            total += (about * (1 - self.alpha) ** seen).sum(axis=1) / np.log2(2 + position)
            seen += about
        return total / self.ideal[rows]
