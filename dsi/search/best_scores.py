"""Where a score lies among the best scores of questions that an index's documents answer.

The questions are sentences that were taken out of documents (`dsi.measuring.cloze`), so they need no labels. It says how good
an answer is beside others of this index, with its encoder and weights, and not whether it is right.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from annotated_types import Len
from pydantic import FiniteFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from dsi.docids.types import Floats
from dsi.search.request import SearchRequest

_STEPS = 21
"""Quantiles that are kept, from the least to the greatest score."""
_FLAT = 1e-3
"""Scores that differ by less say nothing: the documents are alike."""
_CHANGED = 0.1
"""Share of an index that updates may change before its questions no longer stand for it."""


@dataclass(frozen=True)
class BestScores:
    """How the best scores of questions are distributed."""

    quantiles: Annotated[tuple[FiniteFloat, ...], Len(_STEPS, _STEPS)]  # ascending
    weights: tuple[FiniteFloat, FiniteFloat, FiniteFloat]  # of words, late interaction and what was learned
    documents: PositiveInt  # how many there were
    changed: NonNegativeInt = 0  # that updates have added or removed since

    @classmethod
    def from_scores(cls, scores: Floats, request: SearchRequest, documents: int) -> Self | None:
        """Return the distribution of scores [questions]; None if they are all alike."""
        quantiles = np.quantile(scores, np.linspace(0, 1, _STEPS)).tolist()
        is_flat = quantiles[-1] - quantiles[0] < _FLAT
        return None if is_flat else cls(tuple(quantiles), _weights(request), documents)

    @classmethod
    def from_manifest(cls, entry: Any) -> Self | None:
        """Return what a manifest holds, None if it is nothing; ValueError if it is malformed."""
        try:
            return None if entry is None else TypeAdapter(cls).validate_python(entry)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            name = ".".join(map(str, wrong["loc"]))
            raise ValueError(f"manifest.json: best_scores.{name}: {wrong['msg']}. Run dsi tune.") from None

    @property
    def holds(self) -> bool:
        """False if updates have changed a tenth of the documents since."""
        return self.changed < _CHANGED * self.documents

    def after(self, changed: int) -> Self:
        """Return the same after an update that added or removed some documents."""
        return replace(self, changed=self.changed + changed)

    def percentile(self, score: float, request: SearchRequest) -> float | None:
        """Return how many of 100 questions have a lower best score.

        None for other weights, with scores of the caller's, and after updates that changed a tenth of the documents.
        """
        if _weights(request) != self.weights or request.extra_scores is not None or not self.holds:
            return None
        return round(float(np.interp(score, self.quantiles, np.linspace(0, 100, _STEPS))), 1)


def _weights(request: SearchRequest) -> tuple[float, float, float]:
    return request.config.lexical_weight, request.config.token_weight, request.config.memory_weight
