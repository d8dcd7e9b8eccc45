"""The weight of a sum of two runs that is best by a measure, found exactly: the line search of LambdaSMART.

As a function of the weight, a query's ranking changes only where the scores of two candidates cross, and a measure only where
one of the two is judged. So the measure is a step function of the weight. All steps of all queries are sorted, and the best
interval follows from their running sum; without a grid of weights. Knows nothing of how runs are made.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dsi.docids.types import Qrels, Run
from dsi.eval.fusion import aligned
from dsi.eval.measures import cutoff, evaluate


def interpolate(a: Run, b: Run, weight: float) -> Run:
    """Return (1 - weight) * a + weight * b over the documents of either; a document that a run lacks gets its lowest score.

    >>> interpolate({"q": {"x": 4.0, "y": 2.0}}, {"q": {"y": 1.0, "z": 3.0}}, 0.5)
    {'q': {'x': 2.5, 'y': 1.5, 'z': 2.5}}
    """
    fused = {}
    for query_id in {**a, **b}:
        doc_ids, scores = aligned([a, b], query_id)
        combined = (1 - weight) * scores[:, 0] + weight * scores[:, 1]
        fused[query_id] = dict(zip(doc_ids, combined.tolist(), strict=True))
    return fused


def best_weight(a: Run, b: Run, qrels: Qrels, measure: str = "RR@10") -> tuple[float, float]:
    """Return the weight of `interpolate` with the highest mean of a measure over judged queries, and that mean.

    Exact: considers every interval between neighbouring crossings, and both ends. The weight is the middle of the best
    interval (of equals the widest), where only candidates that tie everywhere tie. Takes O(c log c) for c crossings of a judged
    candidate with another.
    """
    ends = {w: evaluate(interpolate(a, b, w), qrels, [measure])[measure] for w in (0.0, 1.0)}
    best = max((sum(values.values()) / len(qrels), w) for w, values in ends.items())
    positions, changes, total = [np.zeros(1)], [np.zeros(1)], 0.0
    for query_id, judged in qrels.items():
        where, values = _steps(*aligned([a, b], query_id), judged, measure)
        total += values[0]
        positions.append(where)
        changes.append(np.diff(values))
    at = np.concatenate(positions)
    order = np.argsort(at, kind="stable")
    at, sums = at[order], total + np.cumsum(np.concatenate(changes)[order])
    widths = np.diff(np.append(at, 1.0))
    sums[widths <= 1e-12] = -np.inf  # of several steps at one weight only the last sum belongs to an interval
    top = np.flatnonzero(sums >= sums.max() - 1e-9)
    widest = top[np.argmax(widths[top])]
    inside = (float(sums[widest]) / len(qrels), float(at[widest] + widths[widest] / 2))
    value, weight = max(inside, best, key=lambda entry: entry[0])  # of equals not an end
    return weight, value


def _steps(
    doc_ids: Sequence[str], scores: NDArray[np.float64], judged: Mapping[str, float], measure: str
) -> tuple[NDArray[np.float64], list[float]]:
    """Return the weights in (0, 1), ascending, at which a query's measure may change, and its value between them.

    `scores`: [candidates, 2] in either run.
    """
    judged_rows = [n for n, doc_id in enumerate(doc_ids) if doc_id in judged]
    # Lead of every candidate over each judged one at weight 0 and at weight 1: [judged, candidates].
    start, end = (row[None, :] - row[judged_rows][:, None] for row in scores.T)
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.where(np.sign(start) * np.sign(end) < 0, start / (start - end), np.nan)
    start = np.where(at == 0, 0.0, start)  # a crossing that rounds to weight 0 is a tie there
    at = np.where((at > 0) & (at < 1), at, np.nan)
    where = np.unique(at[~np.isnan(at)])
    # Just right of weight 0 the sign of `start` decides; ties at 0 are broken by `end`, then by doc_id.
    side = np.where(start != 0, start, end)
    ahead = (side > 0) | ((side == 0) & (np.arange(len(doc_ids))[None, :] < np.array(judged_rows, dtype=int)[:, None]))
    ranks = np.repeat(ahead.sum(axis=1)[:, None], len(where) + 1, axis=1)  # [judged, intervals], from 0
    for row, (positions, falls) in enumerate(zip(at, end < 0, strict=True)):
        crosses = ~np.isnan(positions)
        change = np.zeros(len(where) + 1, dtype=int)
        np.add.at(change, 1 + np.searchsorted(where, positions[crosses]), np.where(falls[crosses], -1, 1))
        ranks[row] += np.cumsum(change)
    depth = cutoff(measure)
    gains = [judged[doc_ids[n]] for n in judged_rows]
    found = set(doc_ids)
    missing = [gain for doc_id, gain in judged.items() if doc_id not in found]
    columns = map(tuple, np.minimum(ranks, depth).T.tolist())  # below the cut-off all ranks are alike
    return where, [_value(column, (*gains, *missing), measure) for column in columns]


@lru_cache(maxsize=100_000)
def _value(ranks: tuple[int, ...], gains: tuple[float, ...], measure: str) -> float:
    """Return the measure of a ranking with judged documents at these ranks; further gains are of documents outside it."""
    depth = cutoff(measure)
    scores = {f"unjudged {rank}": -float(rank) for rank in range(depth)}
    for number, rank in enumerate(ranks):
        scores.pop(f"unjudged {rank}", None)
        scores[f"judged {number}"] = -float(rank)
    judged = {f"judged {number}": gain for number, gain in enumerate(gains)}
    return evaluate({"q": scores}, {"q": judged}, [measure])[measure]["q"]
