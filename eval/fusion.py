"""Fusion of runs: reciprocal ranks, and a weighted sum whose weights are learned. Knows nothing of how runs are made."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from dsi.docids.types import Qrels, Run
from dsi.eval.measures import checked_values, ranking

Doubles = NDArray[np.float64]
_LEAST = 0.1
"""Least sum of the likely coefficients, and least share of its likely coefficient that the first run keeps."""
_FLAT = 1e-9
"""Standard deviation of scores that are all alike."""


def reciprocal_rank_fusion(runs: Sequence[Run], k: int = 60) -> Run:
    """Return a run whose scores are sums over runs of 1 / (k + rank) (Cormack et al. 2009).

    >>> reciprocal_rank_fusion([{"q": {"a": 2.0, "b": 1.0}}, {"q": {"b": 5.0}}], k=1)
    {'q': {'a': 0.5, 'b': 0.8333333333333333}}

    Raises:
        ValueError: a score is not a number.
    """
    fused: Run = {}
    for run in map(checked_values, runs):
        for query_id, scores in run.items():
            sums = fused.setdefault(query_id, {})
            for rank, doc_id in enumerate(ranking(scores), start=1):
                sums[doc_id] = sums.get(doc_id, 0.0) + 1 / (k + rank)
    return fused


def fit_weights(first: Run, others: Sequence[Run], start: Sequence[float], qrels: Qrels) -> list[float]:
    """Return weights of `others` in first + sum of weight * other, by a conditional logit of which candidates are relevant.

    The chance that a relevant document beats all that are not is a softmax of the weighted sum (McFadden 1974); the relevant
    ones of a query count by their grades. Coefficients count in standard deviations of their runs, and a penalty keeps them
    near `start`, the weights that are likely, so that few queries change little. The problem is convex. Weights are at least
    0; those of `start` if no query has a relevant candidate, and for a run that scores all candidates alike.
    """
    queries = [_choices([first, *others], query_id, judged) for query_id, judged in qrels.items()]
    queries = [choices for choices in queries if len(choices.relevant) and len(choices.others)]
    if not queries:
        return list(start)
    spread = np.mean([np.concatenate(choices[:2]).std(axis=0) for choices in queries], axis=0)
    flat = spread < _FLAT
    if flat[0]:
        return list(start)
    scale = 1 / np.where(flat, 1.0, spread)
    likely = np.array([1.0, *start]) / scale

    def along(rate: Doubles) -> tuple[float, Doubles]:
        value, slope = _loss(rate * likely, queries, scale)
        return value, np.array([slope @ likely])

    unit = 1 / likely.sum()  # a sum of coefficients of 1
    centre = _minimum(along, np.array([unit]), [(_LEAST * unit, None)]) * likely

    def penalised(coefficients: Doubles) -> tuple[float, Doubles]:
        value, slope = _loss(coefficients, queries, scale)
        away = coefficients - centre
        return value + float(away @ away), slope + 2 * away

    fitted = _minimum(penalised, centre, [(_LEAST * centre[0], None), *[(0.0, None)] * len(others)]) * scale
    weights = fitted[1:] / fitted[0]
    return [initial if same else float(value) for initial, same, value in zip(start, flat[1:], weights, strict=True)]


class _Choices(NamedTuple):
    """Candidates of a query."""

    relevant: Doubles  # [n, runs] scores of relevant documents
    others: Doubles  # [m, runs] scores of others
    shares: Doubles  # [n] of the relevant ones, which sum to 1


def _choices(runs: Sequence[Run], query_id: str, judged: Mapping[str, float]) -> _Choices:
    doc_ids, scores = aligned(runs, query_id)
    grades = np.array([max(0, judged.get(doc_id, 0)) for doc_id in doc_ids], dtype=np.float64)
    relevant = grades > 0
    return _Choices(scores[relevant], scores[~relevant], grades[relevant] / max(1.0, grades.sum()))


def aligned(runs: Sequence[Run], query_id: str) -> tuple[list[str], Doubles]:
    """Return the documents of a query, ascending, and their scores [n, runs]; what a run lacks has its lowest score."""
    answers = [run.get(query_id, {}) for run in runs]
    doc_ids = sorted(set().union(*answers))
    lowest = [min(scores.values(), default=0.0) for scores in answers]
    columns = [[scores.get(doc_id, low) for doc_id in doc_ids] for scores, low in zip(answers, lowest, strict=True)]
    return doc_ids, np.array(columns, dtype=np.float64).reshape(len(runs), -1).T


def _loss(coefficients: Doubles, queries: Sequence[_Choices], scale: Doubles) -> tuple[float, Doubles]:
    """Return the negative log-likelihood of the relevant candidates, and its slope."""
    value, slope, weights = 0.0, np.zeros(len(coefficients)), coefficients * scale
    for relevant, others, shares in queries:
        scores = others @ weights
        total = np.logaddexp.reduce(scores)
        behind = total - relevant @ weights
        value += float(shares @ np.logaddexp(0, behind))
        missing = shares * expit(behind)
        slope += (missing.sum() * (np.exp(scores - total) @ others) - missing @ relevant) * scale
    return value, slope


def _minimum(
    function: Callable[[Doubles], tuple[float, Doubles]], start: Doubles, bounds: Sequence[tuple[float, float | None]]
) -> Doubles:
    return np.asarray(minimize(function, start, jac=True, bounds=bounds, method="L-BFGS-B").x)
