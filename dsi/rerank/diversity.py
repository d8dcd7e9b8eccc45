"""What a list that covers many subtopics is worth, and stages that need no training for it (pyversity: MMR and others)."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsi.rerank.candidates import Candidates, Floats, Ints, Stage

Bools = NDArray[np.bool_]
STRATEGIES = ("mmr", "msd", "dpp", "ssd", "cover")


class AlphaNdcg:
    """alpha-nDCG of lists of candidates (Clarke et al. 2008), normalised by the list that is greedily best.

    Args:
        labels: [n, k, subtopics] is a candidate about a subtopic?
        positions: of the lists that count.
        alpha: how little a subtopic is worth that was there before: (1 - alpha) a time.
    """

    def __init__(self, labels: Bools, positions: int, alpha: float = 0.5) -> None:
        if not 0 <= alpha < 1:
            raise ValueError(f"alpha must be in [0, 1), got {alpha}.")
        self.labels, self.positions, self.alpha = labels, positions, alpha
        self.ideal = np.ones(len(labels))
        rows = np.arange(len(labels))
        lists = np.full((len(labels), positions), -1)
        for position in range(min(positions, labels.shape[1])):
            lists[:, position] = self.gains(rows, lists).argmax(axis=1)
        self.ideal = np.maximum(self.of(rows, lists), 1e-12)

    def seen(self, rows: Ints, lists: Ints) -> Ints:
        """[m, subtopics] how often each was there in lists [m, positions] of queries [m]; -1 past the end of a list."""
        found = self.labels[rows[:, None], lists] & (lists >= 0)[:, :, None]
        return found.sum(axis=1)

    def gains(self, rows: Ints, lists: Ints) -> Floats:
        """[m, k] what each candidate would add after these lists, the discount by position left out; -inf at those in it."""
        worth = (1 - self.alpha) ** self.seen(rows, lists)
        gains = (self.labels[rows] * worth[:, None, :]).sum(axis=2)
        at, positions = np.nonzero(lists >= 0)
        gains[at, lists[at, positions]] = -np.inf
        return gains

    def of(self, rows: Ints, lists: Ints) -> Floats:
        """[m] alpha-nDCG of lists [m, positions] of queries [m]; -1 past the end of a list."""
        total, seen = np.zeros(len(rows)), np.zeros((len(rows), self.labels.shape[2]))
        for position in range(self.positions):
            own = lists[:, position]
            about = self.labels[rows, own] & (own >= 0)[:, None]
            total += (about * (1 - self.alpha) ** seen).sum(axis=1) / np.log2(2 + position)
            seen += about
        return total / self.ideal[rows]


def subtopic_labels(candidates: Candidates, subtopics: Mapping[str, Mapping[str, Sequence[str]]]) -> Bools:
    """[n, k, subtopics] from judgements.

    Args:
        candidates: of the queries.
        subtopics: {query text: {doc_id: subtopics}}; documents that are not named are about nothing.
    """
    numbers = [
        {
            name: number
            for number, name in enumerate(sorted({s for own in subtopics.get(query, {}).values() for s in own}))
        }
        for query in candidates.queries
    ]
    n, k = candidates.scores.shape
    labels = np.zeros((n, k, max(map(len, numbers), default=0) or 1), dtype=bool)
    for row, (query, doc_ids) in enumerate(zip(candidates.queries, candidates.doc_ids, strict=True)):
        for column, doc_id in enumerate(doc_ids):
            for name in subtopics.get(query, {}).get(doc_id, ()):
                labels[row, column, numbers[row][name]] = True
    return labels


def prefix_labels(candidates: Candidates, digits: int = 1) -> Bools:
    """[n, k, subtopics] where nobody judged: candidates whose docids begin with the same digits count as one subtopic.

    A proxy: clusters of the encoder stand for subtopics of the query.
    """
    prefixes = candidates.digits[:, :, :digits].reshape(-1, min(digits, candidates.digits.shape[2]))
    _, numbers = np.unique(prefixes, axis=0, return_inverse=True)
    numbers = numbers.reshape(candidates.scores.shape)
    labels: Bools = numbers[:, :, None] == np.arange(numbers.max() + 1)
    return labels & candidates.there[:, :, None]


class Pyversity(Stage):
    """Diversification without training by pyversity: greedy trade-offs of score and similarity to what was chosen.

    Args:
        strategy: "mmr", "msd", "dpp", "ssd" or "cover".
        diversity: 0 for the order of the scores, 1 for diversity alone.
    """

    kind = "pyversity"

    def __init__(self, strategy: str = "mmr", diversity: float = 0.5) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}.")
        if not 0 <= diversity <= 1:
            raise ValueError(f"diversity must be in [0, 1], got {diversity}.")
        self.strategy, self.diversity = strategy, diversity

    def rerank(self, candidates: Candidates) -> Floats:
        """[n, k] k for the candidate that comes first, k - 1 for the second, …; scores count scaled to [0, 1] in a list."""
        try:
            diversify = importlib.import_module("pyversity").diversify
        except ImportError:
            raise ValueError('This stage needs pyversity; pip install "dr-scl[rerank]".') from None
        scores = np.zeros(candidates.scores.shape)
        for row, doc_ids in enumerate(candidates.doc_ids):
            count = len(doc_ids)
            own = candidates.scores[row, :count]
            scaled = (own - own.min()) / max(own.max() - own.min(), 1e-12)
            found = diversify(candidates.embeddings[row, :count], scaled, count, self.strategy, self.diversity)
            scores[row, found.indices] = np.arange(count, 0, -1)
        return scores

    def write(self, folder: Path) -> dict[str, Any]:
        """Nothing but the settings."""
        return {"strategy": self.strategy, "diversity": self.diversity}

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any]) -> "Pyversity":
        """What `write` wrote."""
        return cls(**settings)
