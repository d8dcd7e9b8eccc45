"""Diversification without training, by pyversity: MMR and others."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from dsi.docids.types import Reals
from dsi_experiments.rerankers.candidates import Candidates, Reranker

STRATEGIES = ("mmr", "msd", "dpp", "ssd", "cover")
"""Names of pyversity."""


class Pyversity(Reranker):
    """Diversification without training, by pyversity: trades score against similarity to the documents chosen before.

    `diversity` goes from 0, the order of the scores, to 1, diversity alone.
    """

    kind = "pyversity"

    def __init__(self, strategy: str = "mmr", diversity: float = 0.5) -> None:
        self.strategy, self.diversity = strategy, diversity

    def score(self, candidates: Candidates) -> Reals:
        """[n, k] k for the first candidate, k - 1 for the second, …; the scores of a list are scaled to [0, 1] before."""
        try:
            diversify = importlib.import_module("pyversity").diversify
        except ImportError:
            raise ValueError('This reranker needs pyversity; pip install "dr-scl-experiments[rerank]".') from None
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
