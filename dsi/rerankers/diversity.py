"""alpha-nDCG of lists that should cover subtopics; diversification without training by pyversity (MMR and others)."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsi.docids.types import Bools, Ints, Reals
from dsi.search.candidates import Candidates, Reranker

STRATEGIES = ("mmr", "msd", "dpp", "ssd", "cover")
"""Names of pyversity."""


class AlphaNdcg:
    """alpha-nDCG of lists of candidates (Clarke et al. 2008), normalised by the list that is greedily best.

    Args:
        labels: [n, k, subtopics] True where a candidate is about a subtopic.
        positions: length of the lists that is measured.
        alpha: discount of repetition: a subtopic seen m times before is worth (1 - alpha)^m.

    Raises:
        ValueError: alpha is not in [0, 1).
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


def subtopic_labels(candidates: Candidates, subtopics: Mapping[str, Mapping[str, Sequence[str]]]) -> Bools:
    """[n, k, subtopics] True where a candidate is judged to be about a subtopic of its query.

    Args:
        candidates: of the queries.
        subtopics: {query_id: {doc_id: subtopics}}; documents that are not named are about no subtopic.
    """
    numbers = [
        {
            name: number
            for number, name in enumerate(
                sorted({name for names in subtopics.get(query_id, {}).values() for name in names})
            )
        }
        for query_id in candidates.query_ids
    ]
    n, k = candidates.scores.shape
    labels = np.zeros((n, k, max(map(len, numbers), default=0) or 1), dtype=bool)
    for row, (query_id, doc_ids) in enumerate(zip(candidates.query_ids, candidates.doc_ids, strict=True)):
        for column, doc_id in enumerate(doc_ids):
            for name in subtopics.get(query_id, {}).get(doc_id, ()):
                labels[row, column, numbers[row][name]] = True
    return labels


def prefix_labels(candidates: Candidates, digits: int = 1) -> Bools:
    """[n, k, subtopics] without judgements: candidates whose docids begin with the same digits share a subtopic.

    A proxy: clusters of the encoder stand for subtopics of the query.
    """
    prefixes = candidates.digits[:, :, :digits].reshape(-1, min(digits, candidates.digits.shape[2]))
    _, numbers = np.unique(prefixes, axis=0, return_inverse=True)
    numbers = numbers.reshape(candidates.scores.shape)
    labels: Bools = numbers[:, :, None] == np.arange(numbers.max() + 1)
    return labels & candidates.valid[:, :, None]


class Pyversity(Reranker):
    """Diversification without training, by pyversity: trades score against similarity to the documents chosen before.

    Args:
        strategy: "mmr", "msd", "dpp", "ssd" or "cover".
        diversity: from 0, the order of the scores, to 1, diversity alone.

    Raises:
        ValueError: an unknown strategy, or a diversity that is not in [0, 1].
    """

    kind = "pyversity"

    def __init__(self, strategy: str = "mmr", diversity: float = 0.5) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}.")
        if not 0 <= diversity <= 1:
            raise ValueError(f"diversity must be in [0, 1], got {diversity}.")
        self.strategy, self.diversity = strategy, diversity

    def score(self, candidates: Candidates) -> Reals:
        """[n, k] k for the first candidate, k - 1 for the second, …; the scores of a list are scaled to [0, 1] before."""
        try:
            diversify = importlib.import_module("pyversity").diversify
        except ImportError:
            raise ValueError('This reranker needs pyversity; pip install "dr-scl[rerank]".') from None
        scores = np.zeros(candidates.scores.shape)
        for row, doc_ids in enumerate(candidates.doc_ids):
            count = len(doc_ids)
            if not count:
                continue
            before = candidates.scores[row, :count]
            scaled = (before - before.min()) / max(before.max() - before.min(), 1e-12)
            result = diversify(candidates.embeddings[row, :count], scaled, count, self.strategy, self.diversity)
            scores[row, result.indices] = np.arange(count, 0, -1)
        return scores

    def write(self, folder: Path) -> dict[str, Any]:
        """Return strategy and diversity; write no file."""
        return {"strategy": self.strategy, "diversity": self.diversity}
